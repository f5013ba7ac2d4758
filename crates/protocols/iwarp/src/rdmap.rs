//! RDMAP's operations and the headers that follow DDP's in some of them (RFC 5040 §4, RFC 7306 §5
//! and §6). Layout and meaning of single messages; `stream` checks them and their order.

mod atomic;
mod terminate;

pub(crate) use atomic::{ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN};
pub use atomic::{Atomic, AtomicRequest, AtomicResponse};
pub(crate) use terminate::{Culprit, TERMINATE_MAX_LEN, emit as emit_terminate};
pub use terminate::{Terminate, Terminated};

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The bits of RV, RDMAP's version.
pub(crate) const VERSION_MASK: u8 = 0xc0;
/// RDMAP version 1.
pub(crate) const VERSION: u8 = 0x40;
/// The bits of the opcode.
pub(crate) const OPCODE_MASK: u8 = 0x0f;

/// An operation (RFC 5040 §4.1, RFC 7306 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306 §6).
    Immediate = 8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 9,
    /// Atomic Request (RFC 7306 §5.2.1).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306 §5.2.2).
    AtomicResponse = 11,
}

impl Opcode {
    /// The operation with this opcode; `None` if the opcode is not assigned.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits & OPCODE_MASK {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            _ => return None,
        })
    }

    /// RDMAP's control byte: version and opcode.
    #[inline]
    pub const fn byte(self) -> u8 {
        VERSION | self as u8
    }

    /// Whether the operation uses tagged segments.
    #[inline]
    pub const fn tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Whether the operation asks the receiver for an event at once (Solicited Event).
    #[inline]
    pub const fn solicited(self) -> bool {
        matches!(self, Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited)
    }

    /// Whether the operation invalidates an STag of the receiver.
    #[inline]
    pub(crate) const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

/// Bytes of an RDMA Read Request's header (RFC 5040 §4.4).
pub(crate) const READ_REQUEST_LEN: usize = 28;

/// An RDMA Read Request's header (RFC 5040 §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadRequest {
    /// STag of the destination buffer, at the requester.
    pub sink_stag: U32,
    /// Tagged offset in the destination buffer, in bytes.
    pub sink_to: U64,
    /// Number of bytes to read.
    pub len: U32,
    /// STag of the source buffer, at the responder.
    pub source_stag: U32,
    /// Tagged offset in the source buffer, in bytes.
    pub source_to: U64,
}

/// Bytes of Immediate Data (RFC 7306 §6.1).
pub(crate) const IMMEDIATE_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_request_lies_on_the_wire_as_rfc_5040_section_4_4_draws_it() {
        let header = ReadRequest {
            sink_stag: U32::new(0x0102_0304),
            sink_to: U64::new(0x1112_1314_1516_1718),
            len: U32::new(0x2122_2324),
            source_stag: U32::new(0x3132_3334),
            source_to: U64::new(0x4142_4344_4546_4748),
        };
        let wire = [
            1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32,
            0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
        ];
        assert_eq!(header.as_bytes(), wire);
        assert_eq!(wire.len(), READ_REQUEST_LEN);
    }

    #[test]
    fn every_opcode_is_found_by_its_bits_and_no_other_is() {
        for bits in 0..16 {
            match Opcode::from_bits(bits) {
                Some(opcode) => assert_eq!(opcode.byte(), 0x40 | bits),
                None => assert!(bits > 11),
            }
        }
    }
}
