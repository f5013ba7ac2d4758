//! When a core waits for the medium itself: while it has nothing else to do, and the medium is quick.
//!
//! Whoever waits for one small durable write waits for the medium anyway. By the ring, kernel threads wait for it as well (one ends the
//! write and begins the flush, another ends that), each of which has to be woken and to find a processor; a call of the core's own is
//! woken by the device. On a fast medium that is half of what a durable write takes. What it must never do: hold up a core that others
//! need, beyond the one call during which they came.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A call that took longer is not worth the waiting: a kernel thread's wake-up is little beside it.
const QUICK: Duration = Duration::from_millis(1);
/// After a call during which something else came, so many are the ring's; after slow ones at least.
const AFTER_COMPANY: u32 = 64;
/// After slow calls that follow one another twice as many each time: AFTER_COMPANY, doubled so often at most. A single one may be
/// another's doing, and the ring's kernel threads would have been held up more.
const MOST_DOUBLED: u32 = 7;

/// What the latest calls have shown. Counts that cores lose to one another do no harm.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// How many calls are still the ring's.
    left: AtomicU32,
    /// How many slow calls there were since the latest quick one.
    slow: AtomicU32,
}

impl Alone {
    /// Makes `call` if this core may wait for it; `None` if it is the ring's.
    pub(super) fn wait_for<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        self.decide(ring::is_alone, || {
            let begin = Instant::now();
            let result = call();
            (result, begin.elapsed())
        })
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    fn decide<T>(&self, is_alone: impl Fn() -> bool, call: impl FnOnce() -> (T, Duration)) -> Option<T> {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            return None;
        }
        if !is_alone() {
            return None;
        }
        let (result, took) = call();
        let slow = if took > QUICK { self.slow.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.slow.store(slow, Ordering::Relaxed);
        if slow > 1 {
            self.left.store(AFTER_COMPANY << (slow - 2).min(MOST_DOUBLED), Ordering::Relaxed);
        } else if !is_alone() {
            self.left.store(AFTER_COMPANY, Ordering::Relaxed);
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How many of `calls` a core waits for itself, each of which takes so long.
    fn waited(alone: &Alone, calls: u32, took: Duration, is_alone: impl Fn() -> bool + Copy) -> u32 {
        (0..calls).filter(|_| alone.decide(is_alone, || ((), took)).is_some()).count() as u32
    }

    #[test]
    fn a_core_that_is_alone_with_a_quick_medium_waits_every_time() {
        assert_eq!(waited(&Alone::default(), 1000, Duration::from_micros(100), || true), 1000);
    }

    #[test]
    fn a_core_that_others_need_never_waits() {
        assert_eq!(waited(&Alone::default(), 1000, Duration::from_micros(100), || false), 0);
    }

    #[test]
    fn whoever_comes_while_a_core_waits_waits_for_one_call_in_many() {
        let alone = Alone::default();
        for _ in 0..10 {
            let company = Cell::new(false);
            let comes = || company.replace(true);
            // Nobody is there before the call, and somebody after it.
            assert!(alone.decide(|| !comes(), || ((), Duration::ZERO)).is_some());
            assert_eq!(waited(&alone, AFTER_COMPANY, Duration::ZERO, || true), 0);
        }
        assert_eq!(waited(&alone, 10, Duration::ZERO, || true), 10);
    }

    #[test]
    fn one_slow_call_among_quick_ones_changes_nothing() {
        let (alone, calls) = (Alone::default(), Cell::new(0));
        let took = || {
            calls.set(calls.get() + 1);
            if calls.get() % 2 == 0 { Duration::from_millis(5) } else { Duration::from_micros(100) }
        };
        assert!((0..1000).all(|_| alone.decide(|| true, || ((), took())).is_some()));
    }

    #[test]
    fn a_slow_medium_is_tried_ever_more_seldom_until_it_is_quick() {
        let (alone, most) = (Alone::default(), AFTER_COMPANY << MOST_DOUBLED);
        // The first two, and then after 64, 128, … up to 8192 of the ring's.
        assert_eq!(waited(&alone, 20_000, Duration::from_millis(8), || true), 10);
        assert_eq!(waited(&alone, 1 + most, Duration::from_millis(8), || true), 1);
        let quick = waited(&alone, 2 * most, Duration::from_micros(100), || true);
        assert!(quick >= most, "{quick}");
        assert_eq!(waited(&alone, 2 + AFTER_COMPANY, Duration::from_millis(2), || true), 2);
    }
}
