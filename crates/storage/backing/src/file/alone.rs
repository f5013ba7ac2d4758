//! Decides when a core itself waits for the medium: while it has no other work, and the medium is
//! fast.
//!
//! The sender of one small durable write waits for the medium anyway. Through the ring, kernel
//! threads wait as well: one ends the write and begins the flush, another ends that. Each must be
//! woken and scheduled, which takes half of a durable write's time on a fast medium. The device
//! itself wakes a call made by the core. This file must never block a core that others need, beyond
//! the one call during which they arrived.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest call that counts as fast. In a slower one a kernel thread's wake-up does not matter.
const QUICK: Duration = Duration::from_millis(1);
/// Number of calls to pass to the ring after a call during which other work arrived; the minimum
/// after slow calls.
const AFTER_COMPANY: u32 = 64;
/// After consecutive slow calls that number doubles each time, starting from AFTER_COMPANY, at most
/// this often. A single slow call may have another cause, which would have delayed the ring's
/// kernel threads even more.
const MOST_DOUBLED: u32 = 7;

/// The results of the latest calls. Cores may overwrite each other's counts, which is harmless.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// Number of calls still to pass to the ring.
    left: AtomicU32,
    /// Number of slow calls since the last fast one.
    slow: AtomicU32,
}

impl Alone {
    /// Makes `call` if this core may wait for it; `None` if the ring must make it.
    pub(super) fn wait_for<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        self.decide(runtime::is_alone, || {
            let begin = runtime::clock();
            let result = call();
            (result, runtime::clock().saturating_duration_since(begin))
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

    /// Number of `calls`, of `took` each, that a core makes itself.
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
            // No other work before the call, some after it.
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
        // The first two, then one after every 64, 128, … up to 8192 calls of the ring.
        assert_eq!(waited(&alone, 20_000, Duration::from_millis(8), || true), 10);
        assert_eq!(waited(&alone, 1 + most, Duration::from_millis(8), || true), 1);
        let quick = waited(&alone, 2 * most, Duration::from_micros(100), || true);
        assert!(quick >= most, "{quick}");
        assert_eq!(waited(&alone, 2 + AFTER_COMPANY, Duration::from_millis(2), || true), 2);
    }
}
