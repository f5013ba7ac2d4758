//! [`Budget`]: the limit of a tree's memory or files, and the amount in use.

use std::sync::atomic::{AtomicU64, Ordering};

/// An amount that is limited.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    /// Takes `amount`. Returns false, and takes nothing, if it is not available.
    #[must_use]
    pub(crate) fn take(&self, amount: u64) -> bool {
        let sum = |used: u64| used.checked_add(amount).filter(|sum| *sum <= self.limit);
        amount == 0 || self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    /// Takes an amount that is already in use: beyond the limit, if it must be.
    pub(crate) fn take_anyway(&self, amount: u64) {
        self.used.fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns an amount that was taken.
    pub(crate) fn give(&self, amount: u64) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}
