//! Whether to poll for the next completion or to sleep at once.
//!
//! Polling pays when completions come within a few microseconds, and is a waste otherwise. The decision follows the
//! recent waits: their moving average has to lie below the limit, and a wait that outlasts its polling counts as long.

use std::cell::Cell;
use std::time::{Duration, Instant};

pub(super) struct Spin {
    limit: Duration,
    /// Moving average of recent waits, in nanoseconds; each wait counts as at most eight limits.
    average_ns: Cell<u64>,
}

impl Spin {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, average_ns: Cell::new(0) }
    }

    /// Whether to poll before sleeping.
    pub(super) fn is_worthwhile(&self) -> bool {
        !self.is_off() && self.average_ns.get() <= self.limit.as_nanos() as u64
    }

    /// Polls `ready` until the limit. Whether it became ready.
    pub(super) fn poll(&self, start: Instant, mut ready: impl FnMut() -> bool) -> bool {
        loop {
            for _ in 0..16 {
                if ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= self.limit {
                return false;
            }
        }
    }

    /// Notes how long a wait took, polling and sleeping together.
    pub(super) fn waited(&self, time: Duration) {
        let most = self.limit.as_nanos() as u64 * 8;
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(most);
        self.average_ns.set((self.average_ns.get() * 7 + time) / 8);
    }

    pub(super) fn is_off(&self) -> bool {
        self.limit.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_polling_and_short_waits_bring_it_back() {
        let spin = Spin::new(Duration::from_micros(5));
        let mut asked = 0;
        assert!(!spin.poll(Instant::now(), || {
            asked += 1;
            false
        }));
        assert!(asked > 0 && spin.is_worthwhile());
        for _ in 0..4 {
            spin.waited(Duration::from_millis(10));
        }
        assert!(!spin.is_worthwhile());
        for _ in 0..40 {
            spin.waited(Duration::from_micros(1));
        }
        assert!(spin.is_worthwhile() && spin.poll(Instant::now(), || true));
    }
}
