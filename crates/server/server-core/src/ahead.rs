//! Amount of a write's data to request ahead of the unit, by the round-trip time to its initiator.
//!
//! A unit takes a long write one piece at a time. Requested one by one, each piece costs a round
//! trip. On a LAN that cost is negligible and memory matters more; on a WAN it dominates.
//! [`crate::grants`], MaxOutstandingR2T and MaxBurstLength, or the queue pair's ORD, still bound
//! the data requested ahead.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Upper bounds of round-trip times, each with the number of pieces to request ahead of the unit:
/// by R2Ts, and by RDMA Reads, which hold no queue up.
const STEPS: [(Duration, usize, usize); 3] =
    [(Duration::from_micros(500), 0, 4), (Duration::from_millis(5), 2, 4), (Duration::from_millis(40), 4, 8)];
/// R2Ts and RDMA Reads for round trips beyond all of [`STEPS`].
const FAR: (usize, usize) = (8, 16);
/// Time for which a measured round trip stays valid.
const FRESH: Duration = Duration::from_secs(1);

/// Number of pieces to request ahead of the unit, each as long as the unit takes at a time.
pub fn pieces(round_trip: Duration, rdma: bool) -> usize {
    let step = STEPS.iter().find(|(below, ..)| round_trip < *below);
    let (r2ts, reads) = step.map_or(FAR, |(_, r2ts, reads)| (*r2ts, *reads));
    if rdma { reads } else { r2ts }
}

/// One connection's round-trip time, as last looked up.
#[derive(Default)]
pub struct RoundTrip(Cell<Option<(Instant, Duration)>>);

impl RoundTrip {
    /// The round-trip time. Calls `look` if the stored value is older than a second; zero if it
    /// returns `None`.
    pub fn get(&self, now: Instant, look: impl FnOnce() -> Option<runtime::TcpInfo>) -> Duration {
        match self.0.get() {
            Some((at, known)) if now.saturating_duration_since(at) < FRESH => known,
            _ => {
                // The minimum RTT: queueing delay on the path is no reason to request further
                // ahead.
                let known = look().map_or(Duration::ZERO, |info| info.min_rtt.min(info.rtt));
                self.0.set(Some((now, known)));
                known
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farther_the_more_and_never_less() {
        for rdma in [false, true] {
            let mut before = 0;
            for us in [0, 100, 499, 500, 4_999, 5_000, 23_000, 39_999, 40_000, 10_000_000] {
                let ahead = pieces(Duration::from_micros(us), rdma);
                assert!(ahead >= before && ahead <= 16);
                before = ahead;
            }
        }
        // On a LAN: the same as without a lookup.
        assert_eq!((pieces(Duration::ZERO, false), pieces(Duration::ZERO, true)), (0, 4));
        assert_eq!(
            (pieces(Duration::from_millis(23), false), pieces(Duration::from_millis(23), true)),
            (4, 8)
        );
    }

    #[test]
    fn a_round_trip_is_looked_up_once_a_second() {
        let trip = RoundTrip::default();
        let begun = Instant::now();
        let of = |ms| {
            let rtt = Duration::from_millis(ms);
            Some(runtime::TcpInfo { rtt, min_rtt: rtt, ..runtime::TcpInfo::default() })
        };
        assert_eq!(trip.get(begun, || of(23)), Duration::from_millis(23));
        assert_eq!(
            trip.get(begun + Duration::from_millis(900), || unreachable!()),
            Duration::from_millis(23)
        );
        assert_eq!(trip.get(begun + FRESH, || of(1)), Duration::from_millis(1));
        assert_eq!(RoundTrip::default().get(begun, || None), Duration::ZERO);
    }
}
