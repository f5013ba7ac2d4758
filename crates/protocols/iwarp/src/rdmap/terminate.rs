//! The Terminate message (RFC 5040 §4.8): every error that ends a stream, and how to encode and
//! decode it.

use thiserror::Error;

use crate::ddp;

use super::READ_REQUEST_LEN;

/// Bytes of the longest Terminate payload: control, segment length, DDP header, RDMAP header.
pub(crate) const TERMINATE_MAX_LEN: usize = 4 + 2 + ddp::UNTAGGED_LEN + READ_REQUEST_LEN;

/// Why a stream ends: layer, error type and error code (RFC 5040 §4.8, RFC 5041 §7.1, RFC 5044 §8,
/// RFC 6581 §10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[repr(u16)]
#[non_exhaustive]
pub enum Terminate {
    /// RDMAP: this side cannot continue.
    #[error("local catastrophic error")]
    LocalCatastrophic = 0x0000,
    /// RDMAP: an RDMA Read's or Atomic's source STag isn't registered.
    #[error("invalid STag")]
    InvalidStag = 0x0100,
    /// RDMAP: outside the registered range.
    #[error("base or bounds violation")]
    BaseOrBounds = 0x0101,
    /// RDMAP: the STag doesn't allow this operation.
    #[error("access rights violation")]
    AccessRights = 0x0102,
    /// RDMAP: the STag is of another protection domain.
    #[error("STag not associated with this stream")]
    NotAssociated = 0x0103,
    /// RDMAP: tagged offset plus length passes 2^64.
    #[error("tagged offset wrap")]
    ToWrap = 0x0104,
    /// RDMAP: the peer may not invalidate this STag.
    #[error("STag cannot be invalidated")]
    CannotInvalidate = 0x0109,
    /// RDMAP: unspecified protection error.
    #[error("unspecified protection error")]
    Protection = 0x01ff,
    /// RDMAP: unknown version.
    #[error("invalid RDMAP version")]
    RdmapVersion = 0x0205,
    /// RDMAP: unknown opcode, or one that is not allowed now.
    #[error("unexpected opcode")]
    UnexpectedOpcode = 0x0206,
    /// RDMAP: catastrophic, this stream only.
    #[error("catastrophic error, localized to the stream")]
    StreamCatastrophic = 0x0207,
    /// RDMAP: catastrophic for the whole device.
    #[error("catastrophic error, global")]
    GlobalCatastrophic = 0x0208,
    /// RDMAP: the STag to invalidate isn't registered.
    #[error("STag to invalidate is not valid")]
    InvalidateUnknown = 0x0209,
    /// RDMAP: unspecified operation error, such as a message of the wrong length.
    #[error("malformed message")]
    Malformed = 0x02ff,
    /// DDP: this side cannot continue.
    #[error("local catastrophic DDP error")]
    DdpCatastrophic = 0x1000,
    /// DDP, tagged: the STag isn't registered.
    #[error("tagged: invalid STag")]
    TaggedInvalidStag = 0x1100,
    /// DDP, tagged: outside the registered range, or not the next offset of the message.
    #[error("tagged: base or bounds violation")]
    TaggedBaseOrBounds = 0x1101,
    /// DDP, tagged: the STag is of another protection domain.
    #[error("tagged: STag not associated with this stream")]
    TaggedNotAssociated = 0x1102,
    /// DDP, tagged: tagged offset plus length passes 2^64.
    #[error("tagged: tagged offset wrap")]
    TaggedToWrap = 0x1103,
    /// DDP, tagged: unknown version.
    #[error("tagged: invalid DDP version")]
    TaggedVersion = 0x1104,
    /// DDP, untagged: no such queue, or the wrong one for this operation.
    #[error("untagged: invalid queue number")]
    InvalidQn = 0x1201,
    /// DDP, untagged: no receive is posted for the message.
    #[error("untagged: no buffer available")]
    NoBuffer = 0x1202,
    /// DDP, untagged: not the next message.
    #[error("untagged: invalid message sequence number")]
    InvalidMsn = 0x1203,
    /// DDP, untagged: not the next offset of the message.
    #[error("untagged: invalid message offset")]
    InvalidMo = 0x1204,
    /// DDP, untagged: longer than the receive posted for it.
    #[error("untagged: message too long for the available buffer")]
    TooLong = 0x1205,
    /// DDP, untagged: unknown version.
    #[error("untagged: invalid DDP version")]
    UntaggedVersion = 0x1206,
    /// MPA: the TCP connection is lost.
    #[error("TCP connection closed, terminated or lost")]
    ConnectionLost = 0x2001,
    /// MPA: the CRC of an FPDU is wrong.
    #[error("MPA CRC error")]
    Crc = 0x2002,
    /// MPA: a marker doesn't point to the FPDU's start.
    #[error("MPA marker and ULPDU length do not agree")]
    Marker = 0x2003,
    /// MPA: a bad request or reply frame.
    #[error("invalid MPA request or reply frame")]
    StartupFrame = 0x2004,
    /// MPA: this side cannot continue (RFC 6581).
    #[error("local catastrophic MPA error")]
    MpaCatastrophic = 0x2005,
    /// MPA: the peer wants more outstanding reads than this side offers (RFC 6581).
    #[error("insufficient IRD resources")]
    InsufficientIrd = 0x2006,
    /// MPA: no RTR message that both sides support (RFC 6581).
    #[error("no matching RTR option")]
    NoMatchingRtr = 0x2007,
}

impl Terminate {
    /// Every error, in the order of its code.
    pub const ALL: [Self; 33] = [
        Self::LocalCatastrophic,
        Self::InvalidStag,
        Self::BaseOrBounds,
        Self::AccessRights,
        Self::NotAssociated,
        Self::ToWrap,
        Self::CannotInvalidate,
        Self::Protection,
        Self::RdmapVersion,
        Self::UnexpectedOpcode,
        Self::StreamCatastrophic,
        Self::GlobalCatastrophic,
        Self::InvalidateUnknown,
        Self::Malformed,
        Self::DdpCatastrophic,
        Self::TaggedInvalidStag,
        Self::TaggedBaseOrBounds,
        Self::TaggedNotAssociated,
        Self::TaggedToWrap,
        Self::TaggedVersion,
        Self::InvalidQn,
        Self::NoBuffer,
        Self::InvalidMsn,
        Self::InvalidMo,
        Self::TooLong,
        Self::UntaggedVersion,
        Self::ConnectionLost,
        Self::Crc,
        Self::Marker,
        Self::StartupFrame,
        Self::MpaCatastrophic,
        Self::InsufficientIrd,
        Self::NoMatchingRtr,
    ];

    /// The first 16 bits of the Terminate Control field: layer (4), error type (4), error code (8).
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The error with these first 16 bits of the Terminate Control field.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.code() == code)
    }

    /// The layer that found the error: 0 RDMAP, 1 DDP, 2 MPA.
    pub const fn layer(self) -> u8 {
        (self.code() >> 12) as u8
    }
}

/// A Terminate as the peer sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminated {
    /// The error; `None` if the RFCs do not define its code.
    pub error: Option<Terminate>,
    /// Layer, error type and error code in the layout of RFC 5040 §4.8, whatever layout the peer
    /// used.
    pub code: u16,
}

/// Header control bits (RFC 5040 §4.8): the message contains the DDP segment's length, its DDP
/// header, its RDMAP header.
const LENGTH_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;

impl Terminated {
    /// Reads a Terminate's payload; `None` if it is too short. A little-endian siw swaps the
    /// nibbles of Layer and EType and reverses the header control bits in their byte. This layout
    /// is understood too.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let [first, code, control, _, ..] = *payload else { return None };
        let (plain, swapped) =
            (u16::from_be_bytes([first, code]), u16::from_be_bytes([first.rotate_left(4), code]));
        let reversed = control & 0xe0 == 0 && control & 0x07 != 0;
        let code = match (Terminate::from_code(plain), Terminate::from_code(swapped)) {
            (_, Some(_)) if reversed => swapped,
            (None, Some(_)) => swapped,
            _ => plain,
        };
        Some(Self { error: Terminate::from_code(code), code })
    }
}

/// The headers of the segment with the error, to be sent in the Terminate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Culprit {
    /// Bytes of the DDP segment.
    segment_len: u16,
    ddp: [u8; ddp::UNTAGGED_LEN],
    ddp_len: u8,
    read: Option<[u8; READ_REQUEST_LEN]>,
}

impl Culprit {
    /// A segment with this header and this total length, in bytes.
    pub(crate) fn new(header: &[u8], segment_len: usize) -> Self {
        let mut this = Self { segment_len: segment_len as u16, ..Self::default() };
        let n = header.len().min(ddp::UNTAGGED_LEN);
        this.ddp[..n].copy_from_slice(&header[..n]);
        this.ddp_len = n as u8;
        this
    }

    /// Adds the RDMA Read Request that the segment carries.
    pub(crate) fn with_read(mut self, read: [u8; READ_REQUEST_LEN]) -> Self {
        self.read = Some(read);
        self
    }
}

/// Writes a Terminate's payload to `out` and returns its length in bytes.
pub(crate) fn emit(error: Terminate, culprit: Option<&Culprit>, out: &mut [u8; TERMINATE_MAX_LEN]) -> usize {
    out[..2].copy_from_slice(&error.code().to_be_bytes());
    out[2..4].fill(0);
    let Some(culprit) = culprit else { return 4 };
    out[2] = LENGTH_VALID | DDP_HEADER;
    out[4..6].copy_from_slice(&culprit.segment_len.to_be_bytes());
    let n = usize::from(culprit.ddp_len);
    out[6..6 + n].copy_from_slice(&culprit.ddp[..n]);
    let Some(read) = &culprit.read else { return 6 + n };
    out[2] |= RDMAP_HEADER;
    out[6 + n..6 + n + READ_REQUEST_LEN].copy_from_slice(read);
    6 + n + READ_REQUEST_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminate_survives_the_wire() {
        for error in Terminate::ALL {
            let mut out = [0xaa; TERMINATE_MAX_LEN];
            let n = emit(error, None, &mut out);
            assert_eq!(
                Terminated::parse(&out[..n]),
                Some(Terminated { error: Some(error), code: error.code() })
            );
            let n = emit(error, Some(&Culprit::new(&[7; 18], 18)), &mut out);
            assert_eq!(Terminated::parse(&out[..n]).and_then(|t| t.error), Some(error));
        }
    }

    #[test]
    fn siws_terminate_is_understood_with_its_nibbles_and_bits_reversed() {
        for error in Terminate::ALL {
            let [first, code] = error.code().to_be_bytes();
            let siw = [first.rotate_left(4), code, 0x03, 0];
            assert_eq!(Terminated::parse(&siw).and_then(|t| t.error), Some(error), "{error:?}");
        }
    }

    #[test]
    fn a_short_terminate_is_none() {
        assert_eq!(Terminated::parse(&[0x12, 2, 0]), None);
        assert_eq!(Terminated::parse(&[]), None);
    }

    #[test]
    fn the_headers_of_a_bad_read_go_along() {
        let culprit = Culprit::new(&[0x41; 18], 46).with_read([0x99; READ_REQUEST_LEN]);
        let mut out = [0; TERMINATE_MAX_LEN];
        assert_eq!(emit(Terminate::BaseOrBounds, Some(&culprit), &mut out), TERMINATE_MAX_LEN);
        assert_eq!(out[..6], [0x01, 0x01, 0xe0, 0, 0, 46]);
        assert_eq!(out[6..24], [0x41; 18]);
        assert_eq!(out[24..], [0x99; READ_REQUEST_LEN]);
    }
}
