//! The transport header (RFC 8166 §4), which stands before each message, and its lists of chunks.
//!
//! ```text
//! xid | 1 | credits | 0 MSG   | read list | write list | reply chunk | RPC message
//! xid | 1 | credits | 1 NOMSG | read list | write list | reply chunk
//! xid | version | credits | 4 ERROR | 1 ERR_VERS | low | high
//! xid | version | credits | 4 ERROR | 2 ERR_CHUNK
//!
//! read list:   (1 | position | handle | length | offset)* 0
//! write list:  (1 | count | (handle | length | offset)*)* 0
//! reply chunk: 0, or 1 | count | (handle | length | offset)*
//! ```

use rpc::message::Versions;
use rpc::xdr::{Chain, List, Malformed, Reader, Writer, Xdr};
use rpc::{xdr_struct, xdr_union};

use crate::VERSION;

const ERROR: u32 = 4;

xdr_struct! {
    /// A run of bytes in the requester's memory (RFC 8166 §3.4.3).
    #[derive(Copy)]
    pub struct Segment {
        /// The steering tag.
        pub handle: u32,
        /// Bytes.
        pub length: u32,
        /// The tagged offset of the first byte.
        pub offset: u64,
    }

    /// A part of a read chunk. Those with the same position are one chunk, in their order.
    #[derive(Copy)]
    pub struct ReadSegment {
        /// Position of the chunk in the whole call, in bytes; 0: the call itself.
        pub position: u32,
        /// Memory of its bytes.
        pub source: Segment,
    }

    /// Memory for one item of a reply, or for all of it. In a reply the lengths are those that were
    /// written.
    #[derive(Copy)]
    pub struct WriteChunk<'a> {
        /// Filled in this order.
        pub segments: List<'a, Segment>,
    }

    /// The chunks of a message.
    #[derive(Copy)]
    pub struct Lists<'a> {
        /// Chunks that the responder has to read. Empty in a reply.
        pub reads: Chain<'a, ReadSegment>,
        /// For items of the reply.
        pub writes: Chain<'a, WriteChunk<'a>>,
        /// For a reply that is too long to be sent.
        pub reply: Option<WriteChunk<'a>>,
    }
}

impl Lists<'_> {
    /// No chunks.
    pub const NONE: Self = Lists { reads: Chain::EMPTY, writes: Chain::EMPTY, reply: None };
}

xdr_union! {
    /// Type of a message (`rdma_body`).
    #[derive(Copy)]
    pub enum Body<'a> {
        /// RDMA_MSG: an RPC message follows.
        Message(Lists<'a>) = 0,
        /// RDMA_NOMSG: the RPC message is in a chunk.
        NoMessage(Lists<'a>) = 1,
        /// RDMA_ERROR: the call could not be taken, or its reply not be sent.
        Error(Failure) = 4,
    }

    /// Reason why there is no reply (`rpc_rdma_error`).
    #[derive(Copy)]
    pub enum Failure {
        /// ERR_VERS: the supported versions.
        Version(Versions) = 1,
        /// ERR_CHUNK: the header or its chunks are unusable.
        Chunk(()) = 2,
    }
}

/// A transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// XID of the RPC message.
    pub xid: u32,
    /// Version of the protocol: 1, but for errors, which repeat that of the call.
    pub version: u32,
    /// Credits: requested by a requester, granted by a responder.
    pub credits: u32,
    /// The rest.
    pub body: Body<'a>,
}

/// Error of reading a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// No header at all, or one of an error. There is nothing to reply to.
    #[error("no header of RPC over RDMA: {0}")]
    Malformed(#[from] Malformed),
    /// Another version of the protocol.
    #[error("version {version} of RPC over RDMA")]
    Version {
        /// XID of the message.
        xid: u32,
        /// The version.
        version: u32,
    },
    /// An unknown type of message, or malformed chunks.
    #[error("the chunks of the message with XID {xid:08x}: {cause}")]
    Chunks {
        /// XID of the message.
        xid: u32,
        /// The error.
        cause: Malformed,
    },
}

impl BadHeader {
    /// The header of the error reply, if there can be one (RFC 8166 §4.5).
    pub fn reply(&self, credits: u32) -> Option<Header<'static>> {
        let (xid, version, failure) = match *self {
            BadHeader::Malformed(_) => return None,
            BadHeader::Version { xid, version } => {
                (xid, version, Failure::Version(Versions { low: VERSION, high: VERSION }))
            }
            BadHeader::Chunks { xid, .. } => (xid, VERSION, Failure::Chunk(())),
        };
        Some(Header { xid, version, credits, body: Body::Error(failure) })
    }
}

impl<'a> Header<'a> {
    /// The header of a message.
    pub fn new(xid: u32, credits: u32, body: Body<'a>) -> Self {
        Header { xid, version: VERSION, credits, body }
    }

    /// Reads a header; `from` is at the RPC message afterwards.
    ///
    /// # Errors
    /// [`BadHeader`].
    pub fn read(from: &mut Reader<'a>) -> Result<Self, BadHeader> {
        let (xid, version, credits) = (from.u32()?, from.u32()?, from.u32()?);
        let kind = {
            let mut ahead = *from;
            ahead.u32()?
        };
        if kind != ERROR && version != VERSION {
            return Err(BadHeader::Version { xid, version });
        }
        let body = Body::read(from).map_err(|cause| match kind {
            // An error in reply to an error would cause endless replies.
            ERROR => BadHeader::Malformed(cause),
            _ => BadHeader::Chunks { xid, cause },
        })?;
        Ok(Header { xid, version, credits, body })
    }

    /// Appends the header.
    pub fn write(&self, to: &mut Writer<'_>) {
        to.u32(self.xid);
        to.u32(self.version);
        to.u32(self.credits);
        self.body.write(to);
    }

    /// The chunks; none of an error.
    pub fn lists(&self) -> Option<&Lists<'a>> {
        match &self.body {
            Body::Message(lists) | Body::NoMessage(lists) => Some(lists),
            Body::Error(_) => None,
        }
    }
}
