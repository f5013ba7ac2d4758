//! The boundaries of PDUs in a connection's byte stream (RFC 7143 §11.1). It cuts received bytes
//! into PDUs, and makes the bytes around a data segment on sending. It holds no bytes and no state:
//! a driver passes its input, and keeps or drops the bytes.
//!
//! On the wire a PDU is BHS, AHSs, header digest if on, data segment, padding to four bytes, data
//! digest if on. A PDU without data segment has no data digest either (§11.2.3, §11.2.4).

use crate::digest::{self, Crc32c, DIGEST_LEN};
use crate::pdu::{BHS_LEN, Bhs, ahs};
use arrayvec::ArrayVec;
use core::ops::Range;
use thiserror::Error;

/// The maximum number of bytes before a data segment: BHS, AHSs, header digest.
pub const MAX_HEADER_LEN: usize = BHS_LEN + ahs::MAX_LEN + DIGEST_LEN;

/// The maximum number of bytes after a data segment: padding and data digest.
pub const MAX_TRAILER_LEN: usize = 3 + DIGEST_LEN;

/// The digests that a connection negotiated (RFC 7143 §13.1). Both are off until the full feature
/// phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// HeaderDigest=CRC32C.
    pub header: bool,
    /// DataDigest=CRC32C.
    pub data: bool,
}

/// Cuts received bytes into PDUs within a connection's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutter {
    /// PDUs carry a header digest.
    pub header_digest: bool,
    /// Data segments carry a data digest.
    pub data_digest: bool,
    /// The maximum data segment that this side receives, bytes: the MaxRecvDataSegmentLength that
    /// it declared (8192 during login).
    pub max_data_segment: u32,
    /// The maximum length of AHSs that this side receives, bytes; at most [`ahs::MAX_LEN`].
    pub max_ahs: usize,
}

/// The PDU, or part of one, at the start of the bytes received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut<'a> {
    /// The header is not complete.
    NeedMore {
        /// The minimum length of the input for a next cut with another result.
        at_least: usize,
    },
    /// The header is complete and valid, the data segment is incomplete. A driver may wait. Or it
    /// may receive the rest directly into its destination, and check it with [`verify_trailer`].
    Partial {
        /// The header.
        bhs: &'a Bhs,
        /// All AHSs, well-formed.
        ahs: &'a [u8],
        /// The offset of the data segment in the input; may equal the input's length.
        data_offset: usize,
        /// The length of the data without padding, bytes.
        data_len: usize,
        /// The length of padding and data digest after the data, bytes.
        trailer: usize,
    },
    /// A whole PDU with verified digests.
    Pdu {
        /// The header.
        bhs: &'a Bhs,
        /// All AHSs, well-formed.
        ahs: &'a [u8],
        /// The range of the data in the input, without padding.
        data: Range<usize>,
        /// The length of the PDU in the input, bytes.
        consumed: usize,
    },
}

/// Why no PDU can be cut. After every error but [`FrameError::DataDigest`] the next PDU's start is
/// unknown, so the connection must end (RFC 7143 §7.7, §7.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The header digest is wrong: no field of the header is reliable, its lengths included.
    #[error("wrong header digest")]
    HeaderDigest,
    /// TotalAHSLength exceeds this side's limit.
    #[error("{len} bytes of AHS, more than the limit of {max}")]
    AhsTooLong {
        /// TotalAHSLength in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The AHSs do not parse: a format error.
    #[error("malformed AHS: {0}")]
    AhsMalformed(#[from] ahs::AhsError),
    /// DataSegmentLength exceeds the declared maximum.
    #[error("a data segment of {len} bytes, more than the limit of {max}")]
    DataSegmentTooLong {
        /// DataSegmentLength in bytes.
        len: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// The data digest is wrong, the header is valid. The receiver may drop the PDU, send Reject
    /// (0x02) with its header, and continue at `consumed` (RFC 7143 §7.9).
    #[error("wrong data digest in {bhs}")]
    DataDigest {
        /// The PDU's header.
        bhs: Bhs,
        /// The length of the AHSs after the BHS in the input, bytes.
        ahs_len: usize,
        /// The length of the PDU in the input, bytes.
        consumed: usize,
    },
}

impl Cutter {
    /// Cuts the PDU at the start of `input`. Reads a data segment only to verify a data digest.
    pub fn cut<'a>(&self, input: &'a [u8]) -> Result<Cut<'a>, FrameError> {
        let Some(bhs) = Bhs::ref_from(input) else {
            return Ok(Cut::NeedMore { at_least: BHS_LEN });
        };
        let ahs_len = bhs.total_ahs_len();
        let data_len = bhs.data_segment_len();
        // Limits are checked before the digest: with a corrupt length, the missing bytes would
        // never arrive, or be too many.
        if ahs_len > self.max_ahs {
            return Err(FrameError::AhsTooLong { len: ahs_len, max: self.max_ahs });
        }
        let headers_end = BHS_LEN + ahs_len;
        let data_offset = headers_end + if self.header_digest { DIGEST_LEN } else { 0 };
        if self.header_digest {
            let Some(wire) = input.get(headers_end..data_offset) else {
                return Ok(Cut::NeedMore { at_least: data_offset });
            };
            if digest::crc32c(&input[..headers_end]) != wire {
                return Err(FrameError::HeaderDigest);
            }
        }
        if data_len > self.max_data_segment {
            return Err(FrameError::DataSegmentTooLong { len: data_len, max: self.max_data_segment });
        }
        let Some(ahs) = input.get(BHS_LEN..headers_end) else {
            return Ok(Cut::NeedMore { at_least: headers_end });
        };
        ahs::validate(ahs)?;
        let data_len = data_len as usize;
        let trailer = trailer_len(data_len, self.data_digest);
        let data = data_offset..data_offset + data_len;
        let consumed = data.end + trailer;
        let Some(tail) = input.get(data.end..consumed) else {
            return Ok(Cut::Partial { bhs, ahs, data_offset, data_len, trailer });
        };
        if self.data_digest && data_len != 0 {
            let mut crc = Crc32c::new();
            crc.update(&input[data.clone()]);
            if !verify_trailer(crc, tail) {
                return Err(FrameError::DataDigest { bhs: *bhs, ahs_len, consumed });
            }
        }
        Ok(Cut::Pdu { bhs, ahs, data, consumed })
    }
}

/// The number of bytes after a data segment of `data_len` bytes: padding, and a data digest if it
/// is on and there is data.
#[inline]
pub const fn trailer_len(data_len: usize, data_digest: bool) -> usize {
    padding_len(data_len) + if data_digest && data_len != 0 { DIGEST_LEN } else { 0 }
}

/// The number of bytes that pad a data segment to a multiple of four.
#[inline]
pub const fn padding_len(data_len: usize) -> usize {
    data_len.wrapping_neg() % 4
}

/// Checks the data digest at the end of a received `trailer` (padding, then digest). `data` is the
/// CRC over the data segment alone. Returns false if `trailer` is shorter than a digest.
#[must_use]
pub fn verify_trailer(mut data: Crc32c, trailer: &[u8]) -> bool {
    let Some((padding, wire)) = trailer.split_last_chunk::<DIGEST_LEN>() else {
        return false;
    };
    data.update(padding);
    data.finish() == *wire
}

/// The number of bytes that [`emit_header`] writes.
#[inline]
pub const fn header_len(ahs_len: usize, header_digest: bool) -> usize {
    BHS_LEN + ahs_len + if header_digest { DIGEST_LEN } else { 0 }
}

/// Writes the bytes before a data segment of `data_len` bytes to the start of `out`: the BHS with
/// both lengths set, the AHSs and the header digest. Returns the number of bytes written. If they
/// do not fit, returns `None` and leaves `out` unchanged.
///
/// # Panics
/// If the length of `ahs` is not a multiple of four or exceeds [`ahs::MAX_LEN`], or if `data_len`
/// exceeds 2^24 - 1.
pub fn emit_header(
    bhs: &mut Bhs,
    ahs: &[u8],
    data_len: usize,
    header_digest: bool,
    out: &mut [u8],
) -> Option<usize> {
    bhs.set_total_ahs_len(ahs.len());
    bhs.set_data_segment_len(data_len);
    let headers_end = BHS_LEN + ahs.len();
    let len = header_len(ahs.len(), header_digest);
    let out = out.get_mut(..len)?;
    out[..BHS_LEN].copy_from_slice(bhs.bytes());
    out[BHS_LEN..headers_end].copy_from_slice(ahs);
    if header_digest {
        let crc = digest::crc32c(&out[..headers_end]);
        out[headers_end..].copy_from_slice(&crc);
    }
    Some(len)
}

/// The bytes after a data segment of `data_len` bytes: padding zeros, and the data digest if
/// `digest` has the CRC over the segment.
#[inline]
pub fn trailer(data_len: usize, digest: Option<Crc32c>) -> ArrayVec<u8, MAX_TRAILER_LEN> {
    let mut out = ArrayVec::new();
    for _ in 0..padding_len(data_len) {
        out.push(0);
    }
    if let Some(mut crc) = digest.filter(|_| data_len != 0) {
        crc.pad(data_len);
        out.extend(crc.finish());
    }
    out
}

/// Appends a whole PDU. For PDUs outside the data path, whose data is contiguous.
///
/// # Panics
/// As [`emit_header`].
pub fn emit_pdu(bhs: &mut Bhs, ahs: &[u8], data: &[u8], digests: Digests, out: &mut Vec<u8>) {
    let start = out.len();
    let header = header_len(ahs.len(), digests.header);
    out.reserve(header + data.len() + MAX_TRAILER_LEN);
    out.resize(start + header, 0);
    let written = emit_header(bhs, ahs, data.len(), digests.header, &mut out[start..]);
    debug_assert_eq!(written, Some(header));
    out.extend_from_slice(data);
    let crc = digests.data.then(|| {
        let mut crc = Crc32c::new();
        crc.update(data);
        crc
    });
    out.extend_from_slice(&trailer(data.len(), crc));
}

#[cfg(test)]
mod tests;
