//! How much of a write's data is asked for before its unit wants it, by the round trip to its
//! initiator.
//!
//! A unit takes a long write a piece at a time. Asked for one by one, each piece costs a turnaround
//! of the network: near by that is nothing, and memory is worth more; far away it is all there is.
//! What is asked for ahead of its turn is still bounded by [`crate::grants`], MaxOutstandingR2T and
//! MaxBurstLength, or the queue pair's ORD.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Round trips, and up to how many pieces are asked for ahead of the unit: by R2Ts, and by RDMA
/// Reads, which hold no queue up.
const STEPS: [(Duration, usize, usize); 3] =
    [(Duration::from_micros(500), 0, 4), (Duration::from_millis(5), 2, 4), (Duration::from_millis(40), 4, 8)];
/// Beyond all of them.
const FAR: (usize, usize) = (8, 16);
/// How long a round trip is believed.
const FRESH: Duration = Duration::from_secs(1);

/// Pieces of what a unit takes at a time to ask for ahead of it.
pub fn pieces(round_trip: Duration, rdma: bool) -> usize {
    let step = STEPS.iter().find(|(below, ..)| round_trip < *below);
    let (r2ts, reads) = step.map_or(FAR, |(_, r2ts, reads)| (*r2ts, *reads));
    if rdma { reads } else { r2ts }
}

/// One connection's round trip, as it was last looked up.
#[derive(Default)]
pub struct RoundTrip(Cell<Option<(Instant, Duration)>>);

impl RoundTrip {
    /// The round trip now, by `look` if what is known is old. Where nobody knows it is none.
    pub fn get(&self, now: Instant, look: impl FnOnce() -> Option<runtime::TcpInfo>) -> Duration {
        match self.0.get() {
            Some((at, known)) if now.saturating_duration_since(at) < FRESH => known,
            _ => {
                // The shortest: a queue on the way is no reason to make it longer.
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
        // Near by, as it was without looking.
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
