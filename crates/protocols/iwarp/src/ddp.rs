//! DDP's two segment headers (RFC 5041 §4) with RDMAP's bits in the field that DDP leaves to its
//! user (RFC 5040 §4.1). Layout only: `stream` checks the values.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::rdmap::Opcode;
use crate::stag::Stag;

/// Bytes of a tagged segment's header (RFC 5041 §4.1).
pub(crate) const TAGGED_LEN: usize = 14;
/// Bytes of an untagged segment's header (RFC 5041 §4.2).
pub(crate) const UNTAGGED_LEN: usize = 18;

/// T: the segment uses the tagged buffer model.
pub(crate) const TAGGED: u8 = 0x80;
/// L: the last segment of its message.
pub(crate) const LAST: u8 = 0x40;
/// The bits of DV, DDP's version.
pub(crate) const VERSION_MASK: u8 = 0x03;
/// DDP version 1.
pub(crate) const VERSION: u8 = 0x01;

/// The queues of untagged messages (RFC 5040 §5.1, RFC 7306 §5).
pub mod queue {
    /// Sends and Immediate Data.
    pub const SEND: u32 = 0;
    /// RDMA Read Requests and Atomic Requests.
    pub const REQUEST: u32 = 1;
    /// The Terminate.
    pub const TERMINATE: u32 = 2;
    /// Atomic Responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
    /// The number of queues.
    pub(crate) const COUNT: usize = 4;
}

/// A tagged segment's header: RDMA Write and RDMA Read Response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Tagged {
    /// T, L, four reserved bits, DV.
    pub control: u8,
    /// RDMAP's version, two reserved bits, opcode (RFC 5040 §4.1).
    pub rdmap: u8,
    /// STag of the buffer at the data sink.
    pub stag: U32,
    /// Tagged offset (TO) of the first byte, in bytes.
    pub to: U64,
}

/// An untagged segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Untagged {
    /// T, L, four reserved bits, DV.
    pub control: u8,
    /// RDMAP's version, two reserved bits, opcode (RFC 5040 §4.1).
    pub rdmap: u8,
    /// The STag to invalidate, in a Send with Invalidate; else reserved (RFC 5040 §4.3).
    pub invalidate: U32,
    /// Queue number.
    pub qn: U32,
    /// Message sequence number, from 1 in each queue.
    pub msn: U32,
    /// Message offset of the first byte, in bytes.
    pub mo: U32,
}

impl Tagged {
    /// The header of one segment.
    #[inline]
    pub fn new(opcode: Opcode, last: bool, stag: Stag, to: u64) -> Self {
        Self {
            control: TAGGED | VERSION | if last { LAST } else { 0 },
            rdmap: opcode.byte(),
            stag: U32::new(stag.0),
            to: U64::new(to),
        }
    }
}

impl Untagged {
    /// The header of one segment. `invalidate` is the STag of a Send with Invalidate.
    #[inline]
    pub fn new(opcode: Opcode, last: bool, invalidate: Option<Stag>, qn: u32, msn: u32, mo: u32) -> Self {
        Self {
            control: VERSION | if last { LAST } else { 0 },
            rdmap: opcode.byte(),
            invalidate: U32::new(invalidate.map_or(0, |stag| stag.0)),
            qn: U32::new(qn),
            msn: U32::new(msn),
            mo: U32::new(mo),
        }
    }
}

/// Bytes of the header that starts with this control byte.
#[inline]
pub const fn header_len(control: u8) -> usize {
    if control & TAGGED != 0 { TAGGED_LEN } else { UNTAGGED_LEN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_lengths_of_rfc_5041() {
        assert_eq!(size_of::<Tagged>(), TAGGED_LEN);
        assert_eq!(size_of::<Untagged>(), UNTAGGED_LEN);
    }

    #[test]
    fn control_words_are_those_on_the_wire() {
        let tagged = |opcode, last| {
            let header = Tagged::new(opcode, last, Stag(1), 2);
            [header.control, header.rdmap]
        };
        let untagged = |opcode, last| {
            let header = Untagged::new(opcode, last, None, 0, 1, 0);
            [header.control, header.rdmap]
        };
        assert_eq!(tagged(Opcode::Write, true), [0xc1, 0x40]);
        assert_eq!(untagged(Opcode::ReadRequest, true), [0x41, 0x41]);
        assert_eq!(tagged(Opcode::ReadResponse, true), [0xc1, 0x42]);
        assert_eq!(untagged(Opcode::Send, true), [0x41, 0x43]);
        assert_eq!(untagged(Opcode::SendInvalidate, true), [0x41, 0x44]);
        assert_eq!(untagged(Opcode::SendSolicited, true), [0x41, 0x45]);
        assert_eq!(untagged(Opcode::SendSolicitedInvalidate, true), [0x41, 0x46]);
        assert_eq!(untagged(Opcode::Terminate, true), [0x41, 0x47]);
        assert_eq!(untagged(Opcode::Immediate, true), [0x41, 0x48]);
        assert_eq!(untagged(Opcode::ImmediateSolicited, true), [0x41, 0x49]);
        assert_eq!(untagged(Opcode::AtomicRequest, true), [0x41, 0x4a]);
        assert_eq!(untagged(Opcode::AtomicResponse, true), [0x41, 0x4b]);
        assert_eq!(tagged(Opcode::Write, false), [0x81, 0x40]);
        assert_eq!(untagged(Opcode::Send, false), [0x01, 0x43]);
    }

    #[test]
    fn a_tagged_header_lies_on_the_wire_as_rfc_5041_section_4_1_draws_it() {
        let header = Tagged::new(Opcode::Write, true, Stag(0x0102_0304), 0x1122_3344_5566_7788);
        let wire = [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        assert_eq!(header.as_bytes(), wire);
    }

    #[test]
    fn an_untagged_header_lies_on_the_wire_as_rfc_5041_section_4_2_draws_it() {
        let header = Untagged::new(Opcode::SendInvalidate, false, Some(Stag(0xa1a2_a3a4)), 0, 7, 0x1000);
        let wire = [0x01, 0x44, 0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0x10, 0];
        assert_eq!(header.as_bytes(), wire);
    }
}
