//! The number of commands of a length that fill a path. It depends on the round trips for solicited
//! data: arithmetic only.
//!
//! A read takes one round trip, and so does a write whose data is all unsolicited. For the rest of
//! a longer write the target sends R2Ts (RFC 7143 §11.8); over iSER it fetches all of it by RDMA
//! Read (RFC 7145 §7.3.5). That is one more round trip per amount that it may request at a time. A
//! command that waits for a request sends no data, so others must keep the path full.
//!
//! Commands tend to wait together: their data queues behind that of the others, so that at its end
//! all of them need requests again. That pause must be short compared to the time for their data.

use std::time::Duration;

/// Maximum share of the throughput to lose to pauses.
const PAUSE: f64 = 1.0 / 12.0;
/// Maximum useful number of commands.
const MOST: u64 = 1 << 16;

/// The properties of a path, and of writes over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Throughput, bytes per second.
    pub rate: u64,
    /// The round trip.
    pub rtt: Duration,
    /// Duration of a lone command with one round trip, at least the round trip.
    pub wait: Duration,
    /// Unsolicited bytes of a write; over iSER none of a longer write.
    pub unasked: u32,
    /// Over iSER a write longer than `unasked` is fetched whole.
    pub whole: bool,
    /// Maximum bytes of one write that the target requests at a time.
    pub asked: u64,
}

impl Flow {
    /// Round trips of a command: 1, except for writes with solicited data.
    pub fn turns(&self, write: bool, block: u64) -> u64 {
        let unasked = u64::from(self.unasked);
        if !write || block <= unasked {
            return 1;
        }
        let rest = if self.whole { block } else { block - unasked };
        rest.div_ceil(self.asked.max(1)).saturating_add(1)
    }

    /// Duration of a lone command with that many round trips.
    pub fn time(&self, write: bool, block: u64) -> Duration {
        let more = u32::try_from(self.turns(write, block) - 1).unwrap_or(u32::MAX);
        self.wait.saturating_add(self.rtt.saturating_mul(more))
    }

    /// Twice the bytes that the path transfers during a command of `block` bytes.
    pub fn twice(&self, write: bool, block: u64) -> u64 {
        // The conversion saturates.
        let passes = (self.rate as f64 * self.time(write, block).as_secs_f64()).ceil() as u64;
        passes.saturating_mul(2)
    }

    /// Bytes to have in flight in commands of `block` bytes: twice the amount transferred during
    /// one of them, or more if pauses would be too long.
    pub fn bytes(&self, write: bool, block: u64) -> u64 {
        let twice = self.twice(write, block);
        if self.turns(write, block) == 1 {
            return twice;
        }
        // More commands shorten the pause: find the smallest sufficient number.
        let (mut few, mut enough) = (0, MOST);
        while enough - few > 1 {
            let half = few + (enough - few) / 2;
            match self.pause(half, block) <= PAUSE * half as f64 * block as f64 {
                true => enough = half,
                false => few = half,
            }
        }
        twice.max(enough.saturating_mul(block))
    }

    /// Bytes that could have been transferred while `commands` writes wait together for requests
    /// and for their ends. Over iSER commands do not queue behind data.
    fn pause(&self, commands: u64, block: u64) -> f64 {
        let holds = self.rate as f64 * self.rtt.as_secs_f64();
        let idle = |bytes: u64| (holds - commands as f64 * bytes as f64).max(0.0);
        let (first, rest) = match self.whole {
            true => (0.0, block),
            false => (idle(self.unasked.into()), block.saturating_sub(self.unasked.into())),
        };
        let asked = self.asked.max(1);
        let last = if rest % asked > 0 { idle(rest % asked) } else { 0.0 };
        first + (rest / asked) as f64 * idle(asked) + last
    }

    /// The number of commands of `block` bytes for this, and one more, which is just starting or
    /// ending.
    pub fn commands(&self, write: bool, block: u64) -> u64 {
        self.bytes(write, block).div_ceil(block.max(1)).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn flow() -> Flow {
        let rtt = Duration::from_millis(20);
        Flow { rate: 100_000_000, rtt, wait: rtt, unasked: 256 << 10, whole: false, asked: 4 * MIB }
    }

    #[test]
    fn a_write_takes_a_round_trip_more_for_each_time_that_it_is_asked_for() {
        let tcp = flow();
        assert_eq!([64 * KIB, 16 * MIB].map(|block| tcp.turns(false, block)), [1, 1]);
        assert_eq!([0, 256 * KIB, 256 * KIB + 1, MIB].map(|block| tcp.turns(true, block)), [1, 1, 2, 2]);
        // At most 4 MiB are requested at a time, after 256 KiB unsolicited.
        assert_eq!([4 * MIB + 256 * KIB, 5 * MIB, 16 * MIB].map(|block| tcp.turns(true, block)), [2, 3, 5]);
        // Over iSER no part of a longer write is unsolicited.
        let iser = Flow { whole: true, ..tcp };
        assert_eq!([256 * KIB, MIB, 4 * MIB, 4 * MIB + 1].map(|block| iser.turns(true, block)), [1, 2, 2, 3]);
        // A target that requests 64 KiB at a time: twelve more round trips for a megabyte.
        assert_eq!(Flow { asked: 64 * KIB, ..tcp }.turns(true, MIB), 13);
    }

    #[test]
    fn so_much_is_under_way_that_nothing_waits_while_others_are_asked_for() {
        let tcp = flow();
        assert_eq!((tcp.bytes(false, MIB), tcp.bytes(true, 64 * KIB)), (4_000_000, 4_000_000));
        assert_eq!(tcp.bytes(true, MIB), 8_000_000);
        assert_eq!((tcp.commands(false, MIB), tcp.commands(true, MIB)), (5, 9));
        // There is always one more command, however long they are.
        assert_eq!((tcp.commands(false, 16 * MIB), tcp.commands(true, 1 << 40)), (2, 2));
        // The unit's time counts once, plus one round trip for each further request.
        let slow = Flow { wait: Duration::from_millis(50), ..tcp };
        assert_eq!(slow.time(true, MIB), Duration::from_millis(70));
    }

    #[test]
    fn enough_commands_keep_the_common_wait_for_r2ts_short() {
        // 2 MB are in flight. 64 KiB of each megabyte are unsolicited: nothing else is sent until
        // the R2Ts arrive.
        let little = Flow { unasked: 64 << 10, ..flow() };
        let commands = little.commands(true, MIB);
        let (brings, pauses) = (commands * MIB, 2_000_000 - commands * (64 << 10));
        assert!(pauses * 12 <= brings && commands > flow().commands(true, MIB), "{commands}");
        // Over iSER this number suffices, since commands do not queue behind data.
        let iser = Flow { unasked: 64 << 10, whole: true, ..flow() };
        assert_eq!(iser.commands(true, MIB), flow().commands(true, MIB));
    }

    #[test]
    fn no_number_makes_it_panic() {
        for asked in [0, 1, u64::MAX] {
            for wait in [Duration::ZERO, Duration::MAX] {
                for (whole, block) in [(false, 0), (false, 1), (false, u64::MAX), (true, 1), (true, u64::MAX)]
                {
                    let flow = Flow { rate: u64::MAX, rtt: wait, wait, asked, whole, ..flow() };
                    assert!(flow.commands(true, block) >= 1 && flow.turns(true, block) >= 1);
                }
            }
        }
        let nothing = Flow { rate: 0, ..flow() };
        assert_eq!(nothing.commands(false, 0), 1);
    }
}
