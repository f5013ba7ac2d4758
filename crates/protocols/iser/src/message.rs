//! The layout of an iSCSI control-type PDU in one message (RFC 7145 §7.3, §9.2): iSER header, BHS,
//! AHSs, data.
//!
//! A message is one RDMA Send, so its length is known, and the lengths in the BHS must match it.
//! RFC 7145 does not define padding. AHSs are padded to four bytes, since TotalAHSLength counts
//! them in words. The sender pads the data segment; a receiver accepts it without padding. There
//! are never digests (§6.1).

use core::ops::Range;

use thiserror::Error;

use crate::header::HEADER_LEN;

/// Bytes of a Basic Header Segment.
pub const BHS_LEN: usize = 48;

/// Bytes of iSER header and BHS: the minimum length of a message with a PDU.
pub const HEAD_LEN: usize = HEADER_LEN + BHS_LEN;

/// Maximum data of a control-type PDU before the full feature phase, and in a discovery session, in
/// bytes (RFC 7143 §13.12).
pub const UNTIL_FULL_FEATURE_DATA: usize = 8192;

/// The limits of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest data segment, bytes: TargetRecvDataSegmentLength or
    /// InitiatorRecvDataSegmentLength.
    pub data: usize,
    /// The most AHSs, bytes: MaxAHSLength.
    pub ahs: usize,
}

/// The parts of a message, as offsets from its first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// All AHSs, in whole words; their contents are not yet checked.
    pub ahs: Range<usize>,
    /// The data segment, without padding.
    pub data: Range<usize>,
}

/// Why a message does not hold a PDU. The sender violates the protocol: close the connection (RFC
/// 7145 §10.1.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message ends before its BHS does.
    #[error("a message of {0} bytes is shorter than iSER header and BHS")]
    Short(usize),
    /// TotalAHSLength exceeds the receiver's limit.
    #[error("{len} bytes of AHS, more than the limit of {max}")]
    AhsTooLong {
        /// TotalAHSLength, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// DataSegmentLength exceeds the receiver's limit.
    #[error("a data segment of {len} bytes, more than the limit of {max}")]
    DataTooLong {
        /// DataSegmentLength, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// The lengths in the BHS do not match the message's.
    #[error("a message of {got} bytes whose PDU has {wanted}")]
    Length {
        /// Bytes of the message.
        got: usize,
        /// Bytes of header, BHS, AHSs and data according to the BHS.
        wanted: usize,
    },
}

impl Layout {
    /// The parts of a message of `len` bytes that starts with `head`. `head` has at least
    /// [`HEAD_LEN`] bytes, unless the message is shorter.
    ///
    /// # Errors
    /// The message is truncated, is longer than its PDU and its padding, or exceeds a limit.
    pub fn of(head: &[u8], len: usize, limits: Limits) -> Result<Self, MessageError> {
        let bhs =
            head.get(HEADER_LEN..HEAD_LEN).filter(|_| len >= HEAD_LEN).ok_or(MessageError::Short(len))?;
        // RFC 7143 §11.2.1.5, §11.2.1.6.
        let ahs_len = usize::from(bhs[4]) * 4;
        let data_len = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        if ahs_len > limits.ahs {
            return Err(MessageError::AhsTooLong { len: ahs_len, max: limits.ahs });
        }
        if data_len > limits.data {
            return Err(MessageError::DataTooLong { len: data_len, max: limits.data });
        }
        let data = HEAD_LEN + ahs_len;
        let end = data + data_len;
        // The padding is optional.
        if len < end || len > end.next_multiple_of(4) {
            return Err(MessageError::Length { got: len, wanted: end });
        }
        Ok(Self { ahs: HEAD_LEN..data, data: data..end })
    }

    /// Bytes of zeros that a sender appends to `data_len` bytes of data.
    pub fn padding(data_len: usize) -> usize {
        data_len.wrapping_neg() % 4
    }
}
