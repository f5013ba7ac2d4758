//! Turns of a core's loop that took too long: all other tasks of the core waited meanwhile.
//!
//! It reads no clock. The core hands in the times that it reads anyway: for its timers when a turn
//! begins, and before it waits.

use std::time::{Duration, Instant};

/// A turn that takes longer than this is a stall.
pub const STALL: Duration = Duration::from_millis(1);
/// A stall of this length is in the log: peers have noticed it.
const LONG: Duration = Duration::from_secs(1);

/// Turns of a core that took longer than [`STALL`]. A call that blocked is in them, a task that
/// computed for long, and time in which another thread had the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Number of them.
    pub count: u64,
    /// Their duration in all.
    pub total: Duration,
    /// The duration of the longest.
    pub longest: Duration,
}

/// The turn under way, and the stalls before it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    began: Option<Instant>,
    stalls: Stalls,
}

impl Watch {
    /// A turn begins. What was under way, if the core has not waited since, ends here.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        self.end(now);
        self.began = Some(now);
    }

    /// The turn under way is over: the core may wait.
    #[inline]
    pub(super) fn end(&mut self, now: Instant) {
        if let Some(began) = self.began.take() {
            let took = now.saturating_duration_since(began);
            if took > STALL {
                self.count(took);
            }
        }
    }

    /// The loop is left or entered: what lies between is no turn.
    pub(super) fn forget(&mut self) {
        self.began = None;
    }

    #[cold]
    fn count(&mut self, took: Duration) {
        self.stalls.count += 1;
        self.stalls.total += took;
        self.stalls.longest = self.stalls.longest.max(took);
        if took >= LONG {
            tracing::warn!(took_ms = took.as_millis(), "this core did nothing else meanwhile");
        }
    }

    pub(super) fn stalls(&self) -> Stalls {
        self.stalls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_take_too_long_are_counted_and_waits_are_not() {
        let mut watch = Watch::default();
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        watch.begin(at(0));
        watch.end(at(1_000));
        assert_eq!(watch.stalls(), Stalls::default(), "a millisecond is none");
        // A wait of two seconds.
        watch.begin(at(2_000_000));
        watch.begin(at(2_001_500));
        watch.end(at(2_005_500));
        watch.end(at(9_000_000));
        // Between two futures that a thread drives it does something else.
        watch.begin(at(10_000_000));
        watch.forget();
        watch.end(at(15_000_000));
        let expected =
            Stalls { count: 2, total: Duration::from_micros(5_500), longest: Duration::from_millis(4) };
        assert_eq!(watch.stalls(), expected);
    }
}
