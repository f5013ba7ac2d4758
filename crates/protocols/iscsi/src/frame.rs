//! The bytes around a PDU's data segment (RFC 7143 §11.1): their lengths, and how they are made and
//! checked. It holds no bytes and no state. [`crate::stream`] reads PDUs by it.
//!
//! On the wire a PDU is BHS, AHSs, header digest if on, data segment, padding to four bytes, data
//! digest if on. A PDU without data segment has no data digest either (§11.2.3, §11.2.4).

use crate::digest::{self, Crc32c, DIGEST_LEN};
use crate::pdu::{BHS_LEN, Bhs, ahs};
use arrayvec::ArrayVec;
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

/// Why a stream gives no PDU. The next PDU's start is unknown, so the connection must end (RFC 7143
/// §7.7, §7.8).
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
    /// The data digest is wrong, and the receiver does not recover ([`crate::stream::Assembler`]).
    #[error("wrong data digest in {bhs}")]
    DataDigest {
        /// The PDU's header.
        bhs: Bhs,
    },
    /// The bytes end within a PDU ([`crate::stream::pdus`]).
    #[error("the bytes end within a PDU")]
    Incomplete,
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
