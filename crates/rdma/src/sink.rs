//! [`DataSink`]: memory that the upper layer keeps, for what RDMA Reads bring (the Data Sink of RFC 5040 §1.1) to be placed in at once
//! instead of in buffers of the pool. Owns the words for it; who moves the bytes is the provider's business.

use ring::{Buf, RegionRange};

/// Fills the beginning of a place that was lent, at once, and says how many bytes.
pub type Fill<'a> = dyn FnMut(&mut RegionRange) -> usize + 'a;

/// Where the next bytes of an RDMA Read go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many, at least one, may be [placed](DataSink::place).
    Place(usize),
    /// So many, at least one, to a buffer; what follows them is asked for again.
    Buffer(usize),
    /// All the rest to buffers.
    Rest,
}

/// An upper layer's memory for what RDMA Reads bring. It is asked anew for each piece, while the queue pair is being polled: it must not use
/// that queue pair then.
///
/// Without a CRC the network's bytes are received straight into what it lends, by a system call that never waits; with one they are
/// copied there as soon as it has been found right. So no memory is held between two calls.
pub trait DataSink {
    /// Where the bytes from `offset` of the RDMA Read with this number on go, of which `wanted`, at least one, belong to one piece, and
    /// `there`, at least one, can be had at once. `any`: even few of them are worth it, since they follow what was placed, or are copied anyhow.
    fn next(&self, id: u64, offset: u64, wanted: usize, there: usize, any: bool) -> Next;

    /// Has `fill` called with memory for the `len` bytes from `offset` of this read on, and gives those that it has filled; they are handed
    /// on in their turn with the read's others. `None`: not now; nothing was filled.
    fn place(&self, id: u64, offset: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf>;
}
