//! What queue pairs are told and what they tell, in values: names of memory, flags, completions.

use std::fmt;

use ring::{BufMut, Chain};
use smallvec::SmallVec;

/// Buffers that make one run of bytes, in order. One is held in place.
pub type Buffers = SmallVec<[BufMut; 1]>;

/// A steering tag: names memory to the other side of one connection (RFC 5040 §1, "R_Key" in InfiniBand's words).
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

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which memory.
    pub stag: Stag,
    /// The tagged offset, as the peer has advertised it: software begins at 0 ([`crate::QueuePair::origin`]), others at a virtual
    /// address.
    pub offset: u64,
}

impl Remote {
    /// A place `bytes` further on. Wraps around at 2^64, as tagged offsets do.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

/// What a Send asks of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Memory of the peer's that it is to take back: Send with Invalidate. One that the peer has not exposed on this
    /// connection costs the connection.
    pub invalidate: Option<Stag>,
    /// The receiver is to be told at once: Send with Solicited Event.
    pub solicited: bool,
}

/// What the peer may do with exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// RDMA Write to it.
    Write,
    /// RDMA Write to it, and RDMA Read from it. What is read is copied before it is sent.
    ReadWrite,
    /// That, and atomic operations on it, which find numbers of 64 bits in this machine's byte order. Software iWARP only.
    All,
}

/// What has come to an end, or has arrived. Each kind comes in the order in which its operations were posted.
#[derive(Debug)]
pub enum Completion {
    /// A Send of the peer's has arrived.
    Received {
        /// Its bytes: slices of what was received, where they lay in one piece. Kept for long they pin receive buffers of
        /// 64 KiB, or of 256 KiB under a CRC.
        message: Chain,
        /// Exposed memory that the peer has invalidated with it. It is still lent: [`crate::QueuePair::withdraw`] gives it
        /// back.
        invalidated: Option<Stag>,
        /// Whether the peer asked for an event.
        solicited: bool,
    },
    /// Immediate Data has arrived (RFC 7306 §6), which has used one of the receives up.
    Immediate {
        /// The data.
        data: [u8; 8],
        /// Whether the peer asked for an event.
        solicited: bool,
    },
    /// A Send that was posted with this number has been handed to the network; its data is not used any more.
    Sent {
        /// The number.
        id: u64,
    },
    /// The same of an RDMA Write. That the peer has it is known from what it sends in answer to something sent later.
    Written {
        /// The number.
        id: u64,
    },
    /// An RDMA Read is over.
    Read {
        /// The number that it was posted with.
        id: u64,
        /// What was read, as long as was asked for.
        data: Chain,
    },
    /// An atomic operation is done.
    Atomic {
        /// The number that it was posted with.
        id: u64,
        /// What the peer's eight bytes were before it, in whatever order the peer's machine has them.
        original: u64,
    },
    /// The connection has ended before this post: any that would have given another completion. All of them come before
    /// [`crate::QueuePair::next`] gives the error.
    Flushed {
        /// The number that it was posted with.
        id: u64,
    },
}

/// Memory that is not exposed any more.
#[derive(Debug, Default)]
pub struct Withdrawn {
    /// The buffers that were exposed, in their order. None for sources and sinks without memory. Buffers that the network
    /// is writing to at this moment are not here: they return to the pool when that is over.
    pub buffers: Buffers,
    /// How far the peer has written, in bytes from the start: the end of the last byte that it placed, 0 if none. `None` if
    /// the provider does not know.
    pub placed: Option<u64>,
    /// The peer had invalidated it.
    pub invalidated: bool,
    /// Some buffers are missing.
    pub busy: bool,
}
