//! What [`super::stripes`] are made of. `tools/models` compiles them with loom's in its place.

pub(super) use std::sync::atomic::{AtomicU32, Ordering, fence};
pub(super) use std::sync::{Mutex, MutexGuard};

/// Number of words. More would make collisions of commands on different blocks rarer, and use more
/// of the cache.
pub(super) const WORDS: usize = 4096;
