//! What all lines of a link share: the clock, when the last packet came out of one, and when the
//! plans of rates began. No locks on the packet path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The time of plans that have not begun.
const NOT_BEGUN: u64 = u64::MAX;

/// All times are from the start, ns.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    last: AtomicU64,
    plans: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), last: AtomicU64::new(0), plans: AtomicU64::new(NOT_BEGUN) })
    }

    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// A packet came out at `now`.
    pub(crate) fn sent(&self, now: u64) {
        self.last.store(now, Ordering::Relaxed);
    }

    /// When the last packet came out of any line.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Begins the plans of rates now, or keeps the first rates.
    pub(crate) fn begin_plans(&self, now: bool) {
        self.plans.store(if now { self.now() } else { NOT_BEGUN }, Ordering::Relaxed);
    }

    /// When the plans of rates began; `None` while lines keep their first rate.
    pub(crate) fn plans_began(&self) -> Option<u64> {
        Some(self.plans.load(Ordering::Relaxed)).filter(|began| *began != NOT_BEGUN)
    }
}
