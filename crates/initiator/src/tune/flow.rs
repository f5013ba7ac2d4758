//! How many commands of a length fill a path. What counts is how often a command's data makes the target ask: arithmetic, and nothing
//! else.
//!
//! A read takes one round trip, and so does a write whose data goes unasked. Of a longer write the target asks for the rest by R2T
//! (RFC 7143 §11.8), or by RDMA Read for all of it (RFC 7145 §7.3.5): one round trip more for as much as it may ask for at a time, and
//! again for what is left then. While a command waits for that it brings nothing, and others have to keep the path full.
//!
//! Commands tend to wait together: what one sends stands in a queue behind what the others do, so that at the end of it all of them have
//! to be asked for again. That pause must be short beside what they bring.

use std::time::Duration;

/// The part of what commands bring that may be lost to pauses.
const PAUSE: f64 = 1.0 / 12.0;
/// Commands beyond which no more are of use.
const MOST: u64 = 1 << 16;

/// What a path, and what goes over it unasked, call for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// What goes through, bytes a second.
    pub rate: u64,
    /// The round trip.
    pub rtt: Duration,
    /// What a lone command of one round trip takes: no less than that.
    pub wait: Duration,
    /// Bytes of a write that go to the target unasked; of longer ones over iSER nothing does.
    pub unasked: u32,
    /// Over iSER a write that is longer than what goes unasked is fetched whole.
    pub whole: bool,
    /// Bytes of one write that the target asks for at a time, at most.
    pub asked: u64,
}

impl Flow {
    /// Round trips of a command: 1 for all but writes of which something has to be asked for.
    pub fn turns(&self, write: bool, block: u64) -> u64 {
        let unasked = u64::from(self.unasked);
        if !write || block <= unasked {
            return 1;
        }
        let rest = if self.whole { block } else { block - unasked };
        rest.div_ceil(self.asked.max(1)).saturating_add(1)
    }

    /// What a lone command takes that brings its data in as many round trips as that.
    pub fn time(&self, write: bool, block: u64) -> Duration {
        let more = u32::try_from(self.turns(write, block) - 1).unwrap_or(u32::MAX);
        self.wait.saturating_add(self.rtt.saturating_mul(more))
    }

    /// Twice what passes while a command of `block` bytes is under way, bytes.
    pub fn twice(&self, write: bool, block: u64) -> u64 {
        // A float becomes the nearest number that there is.
        let passes = (self.rate as f64 * self.time(write, block).as_secs_f64()).ceil() as u64;
        passes.saturating_mul(2)
    }

    /// Bytes of commands of `block` bytes that are to be under way: twice what passes while one of them is, or more where they would
    /// pause for too long.
    pub fn bytes(&self, write: bool, block: u64) -> u64 {
        let twice = self.twice(write, block);
        if self.turns(write, block) == 1 {
            return twice;
        }
        // The more, the shorter the pause: the fewest that are enough.
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

    /// What could have passed, in bytes, while so many writes that wait together wait for R2Ts or RDMA Reads and for their ends. Over iSER
    /// commands do not stand behind data.
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

    /// As many commands of `block` bytes, and one more: that one is only just begun, or just over.
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
        // 4 MiB and 256 KiB are asked for at once at most, with what came unasked.
        assert_eq!([4 * MIB + 256 * KIB, 5 * MIB, 16 * MIB].map(|block| tcp.turns(true, block)), [2, 3, 5]);
        // Over iSER nothing of a longer write goes unasked.
        let iser = Flow { whole: true, ..tcp };
        assert_eq!([256 * KIB, MIB, 4 * MIB, 4 * MIB + 1].map(|block| iser.turns(true, block)), [1, 2, 2, 3]);
        // A target that asks for 64 KiB at a time: a megabyte takes it twelve times.
        assert_eq!(Flow { asked: 64 * KIB, ..tcp }.turns(true, MIB), 13);
    }

    #[test]
    fn so_much_is_under_way_that_nothing_waits_while_others_are_asked_for() {
        let tcp = flow();
        assert_eq!((tcp.bytes(false, MIB), tcp.bytes(true, 64 * KIB)), (4_000_000, 4_000_000));
        assert_eq!(tcp.bytes(true, MIB), 8_000_000);
        assert_eq!((tcp.commands(false, MIB), tcp.commands(true, MIB)), (5, 9));
        // However long they are, there is another one.
        assert_eq!((tcp.commands(false, 16 * MIB), tcp.commands(true, 1 << 40)), (2, 2));
        // What the unit takes counts once, and a round trip for each more.
        let slow = Flow { wait: Duration::from_millis(50), ..tcp };
        assert_eq!(slow.time(true, MIB), Duration::from_millis(70));
    }

    #[test]
    fn commands_that_wait_for_their_r2ts_together_are_so_many_that_they_do_not_pause_for_long() {
        // 2 MB are on their way. 64 KiB of a megabyte go unasked: so long as the others' R2Ts are on theirs, that is all there is.
        let little = Flow { unasked: 64 << 10, ..flow() };
        let commands = little.commands(true, MIB);
        let (brings, pauses) = (commands * MIB, 2_000_000 - commands * (64 << 10));
        assert!(pauses * 12 <= brings && commands > flow().commands(true, MIB), "{commands}");
        // It is as much as can be over iSER, where commands go between data.
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
