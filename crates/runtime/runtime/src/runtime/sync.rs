//! What [`super::mailbox`] is made of. `tools/models` compiles it with loom's in its place.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
