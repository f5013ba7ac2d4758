//! What [`super::exclusion`] is made of. `tools/models` compiles it with loom's in its place.

use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::atomic::{AtomicU32, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};

/// Number of counters. With more threads some share a counter, which is slower but still correct.
pub(super) const SLOTS: usize = 64;

/// The number of this thread's counter.
pub(super) fn slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
    }
    MINE.with(|mine| *mine)
}
