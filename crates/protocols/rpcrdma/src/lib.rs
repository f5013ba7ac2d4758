//! RPC over RDMA, version 1 (RFC 8166), without I/O, for both ends. A call or a reply is one Send;
//! long parts go by RDMA Read and RDMA Write, between memory that the requester names.
//!
//! - [`header`]: the transport header before each message, with its lists of chunks.
//! - [`call`]: assembly of a call by a responder, from the bytes sent and the chunks to read.
//! - [`reply`]: placement of a reply's parts by a responder, and their lengths for the requester.
//! - [`credits`]: the limit on outstanding calls.
//! - [`private_data`]: parameters that both sides exchange while they connect (RFC 8797).
//!
//! It moves no data and posts no work. The program's upper-layer binding decides which of its items
//! may go by chunk.
#![forbid(unsafe_code)]

pub mod call;
pub mod credits;
pub mod header;
pub mod private_data;
pub mod reply;

pub use call::{BadChunks, Limits, Piece};
pub use credits::Credits;
pub use header::{BadHeader, Body, Failure, Header, Lists, ReadSegment, Segment, WriteChunk};
pub use private_data::PrivateData;
pub use reply::{Item, Placement, Shape, Sinks, TooShort};

use smallvec::SmallVec;

/// Version of the protocol.
pub const VERSION: u32 = 1;

/// The longest message that either side may send before it knows the peer's limit, in bytes, with
/// its header: the default inline threshold (RFC 8166 §3.3.2).
pub const INLINE: usize = 1024;

/// The well-known port of NFS over RDMA (RFC 8267 §6.1).
pub const NFS_PORT: u16 = 20049;

/// The segments of a chunk. Few are stored inline.
pub type Segments = SmallVec<[Segment; 2]>;

/// Direction of a message that carries an RPC message. Where both sides call, one connection
/// carries all four kinds (RFC 8167 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A call.
    Call,
    /// A reply.
    Reply,
}

impl Direction {
    /// Direction by the first bytes of an RPC message (RFC 5531 §9). `None`: neither.
    pub fn of(message: &[u8]) -> Option<Self> {
        match message.get(4..8)? {
            [0, 0, 0, 0] => Some(Direction::Call),
            [0, 0, 0, 1] => Some(Direction::Reply),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
