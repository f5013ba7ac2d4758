//! The iSER header (RFC 7145 §9.2 to §9.4): 28 bytes at the start of every message.
//!
//! This is the form with base offsets of 64 bits, which every implementation in use supports. A
//! side without zero-based virtual addresses uses it (InfiniBand Architecture, annex A12, table
//! 540). Reserved bits are zero when sent and ignored when received.

use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an iSER header.
pub const HEADER_LEN: usize = 28;

/// The version of RFC 7145 in Hello and HelloReply (§9.3, §9.4).
pub const VERSION: u8 = 10;

/// An iSCSI control-type PDU follows (§9.1), in the upper four bits of byte 0.
const CONTROL: u8 = 0x10;
/// Hello.
const HELLO: u8 = 0x20;
/// HelloReply.
const HELLO_REPLY: u8 = 0x30;
/// WSV: the write STag is valid (§9.2).
const WSV: u8 = 0x08;
/// RSV: the read STag is valid (§9.2).
const RSV: u8 = 0x04;
/// REJ: the target rejects the connection (§9.4).
const REJ: u8 = 0x01;

/// An address in the initiator's memory: the start of an RDMA Write or an RDMA Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The steering tag.
    pub stag: u32,
    /// The base offset: the tagged offset (or virtual address) of the first byte. A write's base
    /// offset already includes the unsolicited data, so the first RDMA Read begins there.
    pub offset: u64,
}

/// The header of an iSCSI control-type PDU (§9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// The memory with the data of a write.
    pub write: Option<Remote>,
    /// The memory for the data of a read.
    pub read: Option<Remote>,
}

/// The initiator's first message where it declared `iSERHelloRequired=Yes` (§5.1.3, §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The highest version that the initiator supports, 0 to 15.
    pub max_version: u8,
    /// The lowest version that the initiator supports, 0 to 15.
    pub min_version: u8,
    /// iSER-IRD: maximum RDMA Reads that the initiator answers at a time.
    pub ird: u16,
}

/// The target's answer to a Hello (§9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The target rejects the connection.
    pub rejected: bool,
    /// The highest version that the target supports, 0 to 15.
    pub max_version: u8,
    /// The version that both sides use.
    pub current_version: u8,
    /// iSER-ORD: maximum outstanding RDMA Reads of the target.
    pub ord: u16,
}

/// The decoded first 28 bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// An iSCSI PDU follows.
    Control(Control),
    /// Hello, the whole message.
    Hello(Hello),
    /// HelloReply, the whole message.
    HelloReply(HelloReply),
}

/// Why bytes are not an iSER header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer than [`HEADER_LEN`] bytes.
    #[error("a message of {0} bytes is shorter than an iSER header")]
    Short(usize),
    /// The upper four bits of byte 0 are not an opcode of §9.1.
    #[error("iSER opcode {0:#x} is unknown")]
    Opcode(u8),
}

/// §9.2, byte by byte.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ControlWire {
    flags: u8,
    reserved: [u8; 3],
    write_stag: U32,
    write_offset: U64,
    read_stag: U32,
    read_offset: U64,
}

/// §9.3 and §9.4, byte by byte: two versions of four bits, the highest first.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloWire {
    flags: u8,
    versions: u8,
    depth: U16,
    reserved: [u8; 24],
}

impl Header {
    /// Reads the first [`HEADER_LEN`] bytes of a message.
    ///
    /// # Errors
    /// Too few bytes, or an opcode that RFC 7145 does not define.
    pub fn decode(message: &[u8]) -> Result<Self, HeaderError> {
        let short = HeaderError::Short(message.len());
        let (wire, _) = ControlWire::ref_from_prefix(message).map_err(|_| short)?;
        match wire.flags & 0xf0 {
            CONTROL => {
                let write = Remote { stag: wire.write_stag.get(), offset: wire.write_offset.get() };
                let read = Remote { stag: wire.read_stag.get(), offset: wire.read_offset.get() };
                Ok(Self::Control(Control {
                    write: (wire.flags & WSV != 0).then_some(write),
                    read: (wire.flags & RSV != 0).then_some(read),
                }))
            }
            opcode @ (HELLO | HELLO_REPLY) => {
                let (wire, _) = HelloWire::ref_from_prefix(message).map_err(|_| short)?;
                let (high, low, depth) = (wire.versions >> 4, wire.versions & 0x0f, wire.depth.get());
                Ok(if opcode == HELLO {
                    Self::Hello(Hello { max_version: high, min_version: low, ird: depth })
                } else {
                    let rejected = wire.flags & REJ != 0;
                    Self::HelloReply(HelloReply {
                        rejected,
                        max_version: high,
                        current_version: low,
                        ord: depth,
                    })
                })
            }
            other => Err(HeaderError::Opcode(other >> 4)),
        }
    }
}

impl Control {
    /// The header's bytes. Invalid fields are zero.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let none = Remote { stag: 0, offset: 0 };
        let (write, read) = (self.write.unwrap_or(none), self.read.unwrap_or(none));
        let flag = |there: bool, bit: u8| if there { bit } else { 0 };
        let wire = ControlWire {
            flags: CONTROL | flag(self.write.is_some(), WSV) | flag(self.read.is_some(), RSV),
            reserved: [0; 3],
            write_stag: write.stag.into(),
            write_offset: write.offset.into(),
            read_stag: read.stag.into(),
            read_offset: read.offset.into(),
        };
        zerocopy::transmute!(wire)
    }

    /// The STag that the response may invalidate, if the initiator permits it. A Send names only
    /// one STag, so the initiator itself invalidates the write STag of a bidirectional command.
    pub fn invalidates(&self) -> Option<u32> {
        self.read.or(self.write).map(|remote| remote.stag)
    }

    /// Whether `stag` belongs to this command: the initiator checks this before it accepts that a
    /// response invalidated it.
    pub fn owns(&self, stag: u32) -> bool {
        [self.read, self.write].iter().flatten().any(|remote| remote.stag == stag)
    }
}

impl Hello {
    /// The Hello of an initiator that answers up to `ird` RDMA Reads at a time.
    pub fn new(ird: u16) -> Self {
        Self { max_version: VERSION, min_version: VERSION, ird }
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        hello_bytes(HELLO, self.max_version, self.min_version, self.ird)
    }

    /// The reply of a target that wants up to `ord` outstanding RDMA Reads. It gets at most as many
    /// as the initiator can answer (§5.1.3). A range without our version is rejected.
    pub fn answer(&self, ord: u16) -> HelloReply {
        let rejected = !(self.min_version..=self.max_version).contains(&VERSION);
        HelloReply { rejected, max_version: VERSION, current_version: VERSION, ord: ord.min(self.ird) }
    }
}

impl HelloReply {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let flags = HELLO_REPLY | if self.rejected { REJ } else { 0 };
        hello_bytes(flags, self.max_version, self.current_version, self.ord)
    }

    /// Whether the initiator that sent `hello` can continue after this reply.
    pub fn agrees_with(&self, hello: &Hello) -> bool {
        !self.rejected
            && (hello.min_version..=hello.max_version).contains(&self.current_version)
            && self.ord <= hello.ird
    }
}

fn hello_bytes(flags: u8, high: u8, low: u8, depth: u16) -> [u8; HEADER_LEN] {
    let versions = high << 4 | low & 0x0f;
    let wire = HelloWire { flags, versions, depth: depth.into(), reserved: [0; 24] };
    zerocopy::transmute!(wire)
}
