//! One io_uring a core: sockets, files, timers, and buffers that operations own.
//!
//! This is the only crate of the workspace with `unsafe`; each block says why it is sound. Everything here belongs to
//! the thread that made it, unless its documentation says `Send`.

mod buf;
mod pooled;

pub use buf::{Buf, BufMut, Bytes, Chain, Destination, OutOfRange, Region, RegionRange, pool};
pub use pooled::Pooled;
