//! Values in the interface of queue pairs: names of memory, flags, completions.

use std::fmt;

use runtime::{BufMut, Chain};
use smallvec::SmallVec;

/// Buffers that form one run of bytes, in order. A single one is stored inline.
pub type Buffers = SmallVec<[BufMut; 1]>;

/// A steering tag: names memory to the other side of one connection (RFC 5040 §1; "R_Key" in
/// InfiniBand).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stag(pub u32);

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stag({:#010x})", self.0)
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// An address in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The STag that the peer advertised.
    pub stag: Stag,
    /// The tagged offset that the peer advertised: software begins at 0
    /// ([`crate::QueuePair::origin`]), devices at a virtual address.
    pub offset: u64,
}

impl Remote {
    /// The address `bytes` further on. Wraps around at 2^64, as tagged offsets do.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

/// Options of a Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The peer's memory to invalidate: Send with Invalidate. An STag that the peer has not exposed
    /// on this connection ends the connection.
    pub invalidate: Option<Stag>,
    /// Requests an event at the receiver: Send with Solicited Event.
    pub solicited: bool,
}

/// The peer's rights to exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// RDMA Write to it.
    Write,
    /// RDMA Write and RDMA Read. Data is copied before it is sent.
    ReadWrite,
    /// The same, and atomic operations on 64-bit numbers in this machine's byte order. Software
    /// iWARP only.
    All,
}

/// A completed operation, or an arrived message. Completions of each kind come in the order in
/// which their operations were posted.
#[derive(Debug)]
pub enum Completion {
    /// A Send of the peer has arrived.
    Received {
        /// Its bytes: slices of the receive buffers, if they were contiguous. A message that is
        /// kept pins receive buffers of 64 KiB, or of 256 KiB under a CRC.
        message: Chain,
        /// Exposed memory that the peer has invalidated with it. The queue pair still owns it:
        /// [`crate::QueuePair::withdraw`] returns it.
        invalidated: Option<Stag>,
        /// Whether the peer requested an event.
        solicited: bool,
    },
    /// Immediate Data has arrived (RFC 7306 §6); it consumed one posted receive.
    Immediate {
        /// The eight bytes of data.
        data: [u8; 8],
        /// Whether the peer requested an event.
        solicited: bool,
    },
    /// The network has taken a posted Send; its data is no longer in use.
    Sent {
        /// The id of the post.
        id: u64,
    },
    /// The network has taken a posted RDMA Write. Only an answer to a later message proves that the
    /// peer has the data.
    Written {
        /// The id of the post.
        id: u64,
    },
    /// An RDMA Read is complete.
    Read {
        /// The id of the post.
        id: u64,
        /// The data, of the requested length.
        data: Chain,
    },
    /// An atomic operation is complete.
    Atomic {
        /// The id of the post.
        id: u64,
        /// The peer's eight bytes before the operation, in the byte order of the peer's machine.
        original: u64,
    },
    /// The connection ended before this post, which would have had another completion. All of these
    /// come before [`crate::QueuePair::next`] returns the error.
    Flushed {
        /// The id of the post.
        id: u64,
    },
}

/// Memory that is no longer exposed.
#[derive(Debug, Default)]
pub struct Withdrawn {
    /// The exposed buffers, in their order. Empty for sources, and for sinks without memory.
    /// Buffers that the network is writing to are missing: they return to the pool when that ends.
    pub buffers: Buffers,
    /// The end of the last byte that the peer has written, in bytes from the start; 0 if none.
    /// `None` if the provider does not know.
    pub placed: Option<u64>,
    /// Whether the peer had invalidated it.
    pub invalidated: bool,
    /// Whether some buffers are missing.
    pub busy: bool,
}
