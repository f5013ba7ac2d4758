//! [`DataSink`]: memory of the upper layer in which the data of RDMA Reads is placed directly,
//! instead of in buffers of the pool. It is the Data Sink of RFC 5040 §1.1. Owns the interface; the
//! provider transfers the bytes.

use runtime::{Buf, RegionRange};

/// Fills the start of the given memory at once, and returns the number of bytes.
pub type Fill<'a> = dyn FnMut(&mut RegionRange) -> usize + 'a;

/// The destination of the next bytes of an RDMA Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This number of bytes, at least one, may be [placed](DataSink::place).
    Place(usize),
    /// This number of bytes, at least one, goes to a buffer; then ask again.
    Buffer(usize),
    /// All the rest goes to buffers.
    Rest,
}

/// An upper layer's memory for the data of RDMA Reads. The queue pair asks it for each piece, while
/// being polled. It must not use that queue pair meanwhile.
///
/// Without a CRC the data is received straight into its memory, by a system call that never waits.
/// With a CRC the data is copied there as soon as the CRC was checked. So no memory is held between
/// two calls.
pub trait DataSink {
    /// Decides where the bytes of read `id` from `offset` on go. `wanted`: bytes of the piece still
    /// missing; `there`: bytes available now; both at least 1. `any`: accept runs below the usual
    /// minimum, because they extend a placed run or would be copied anyway.
    fn next(&self, id: u64, offset: u64, wanted: usize, there: usize, any: bool) -> Next;

    /// Calls `fill` with memory for the `len` bytes from `offset` of this read on, and returns the
    /// filled bytes. The queue pair passes them on in order with the read's other bytes. `None`:
    /// not now; nothing was filled.
    fn place(&self, id: u64, offset: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf>;
}
