//! [`SlowLog`]: the slowest commands, or calls, of one core. One enters it when it has ended; those
//! that are still at work are asked for where they run.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Commands that a core keeps.
const KEPT: usize = 64;
/// No command that took less is slow.
pub const FLOOR: Duration = Duration::from_millis(10);
/// A command that is still at work is slow from here on.
pub const AT_WORK: Duration = Duration::from_secs(1);
/// How long a command is kept if others need its place.
const MEMORY: Duration = Duration::from_secs(900);

/// A slow command or call.
pub trait Slow {
    /// The time of all its stages that are known.
    fn took(&self) -> Duration;
    /// When its answer was ready; `None` if it is at work.
    fn ended(&self) -> Option<Instant>;
}

/// The slowest commands of one core.
pub struct SlowLog<T>(RefCell<Vec<T>>);

impl<T> Default for SlowLog<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T: Slow> SlowLog<T> {
    /// Keeps a slow command that ended at `now`, unless all that are kept are slower and not old.
    pub fn keep(&self, slow: T, now: Instant) {
        let took = slow.took();
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT {
            if kept.capacity() == 0 {
                kept.reserve_exact(KEPT);
            }
            return kept.push(slow);
        }
        if let Some(least) = kept.iter_mut().min_by_key(|one| rank(&**one, now))
            && rank(least, now) < (true, took)
        {
            *least = slow;
        }
    }

    /// Whether it would keep one that took so long and ended at `now`.
    pub fn takes(&self, took: Duration, now: Instant) -> bool {
        let kept = self.0.borrow();
        kept.len() < KEPT || kept.iter().any(|one| rank(one, now) < (true, took))
    }

    /// The commands that it keeps.
    pub fn all(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.0.borrow().clone()
    }
}

/// The order in which commands make room for others.
fn rank(one: &impl Slow, now: Instant) -> (bool, Duration) {
    let is_old = one.ended().is_some_and(|at| now.saturating_duration_since(at) > MEMORY);
    (!is_old, one.took())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Command(Duration, Instant);

    impl Slow for Command {
        fn took(&self) -> Duration {
            self.0
        }

        fn ended(&self) -> Option<Instant> {
            Some(self.1)
        }
    }

    fn slow(ms: u64, at: Instant) -> Command {
        Command(Duration::from_millis(ms), at)
    }

    fn kept(log: &SlowLog<Command>) -> Vec<u64> {
        let mut all: Vec<_> = log.all().iter().map(|one| one.took().as_millis() as u64).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn the_slowest_are_kept() {
        let (log, now) = (SlowLog::default(), runtime::clock());
        for ms in 0..200 {
            log.keep(slow(ms, now), now);
        }
        assert_eq!(kept(&log), (200 - KEPT as u64..200).collect::<Vec<_>>());
        let least = 200 - KEPT as u64;
        for (ms, is_slower) in [(100, false), (least, false), (least + 1, true)] {
            assert_eq!(log.takes(Duration::from_millis(ms), now), is_slower, "{ms}");
        }
        log.keep(slow(100, now), now);
        assert_eq!(kept(&log)[0], least);
    }

    #[test]
    fn an_old_command_makes_room_whatever_it_took() {
        let (log, then) = (SlowLog::default(), runtime::clock());
        (0..KEPT).for_each(|_| log.keep(slow(5000, then), then));
        log.keep(slow(11, then), then + MEMORY);
        assert_eq!(kept(&log)[0], 5000);
        let later = then + MEMORY + Duration::from_secs(1);
        log.keep(slow(11, later), later);
        assert_eq!((kept(&log)[0], kept(&log).len()), (11, KEPT));
    }
}
