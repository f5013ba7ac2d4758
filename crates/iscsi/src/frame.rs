//! Where PDUs begin and end in a connection's byte stream (RFC 7143 §11.1): cutting received bytes, and the bytes that stand
//! around a data segment on sending. Holds no bytes and no state: a driver shows what it has, and keeps or drops it.
//!
//! On the wire a PDU is BHS, AHSs, header digest if on, data segment, padding to four bytes, data digest if on. A PDU without
//! data segment has no data digest either (§11.2.3, §11.2.4).

use crate::digest::{self, Crc32c, DIGEST_LEN};
use crate::pdu::{BHS_LEN, Bhs, ahs};
use arrayvec::ArrayVec;
use core::ops::Range;
use thiserror::Error;

/// Bytes before a data segment at most: BHS, AHSs, header digest.
pub const MAX_HEADER_LEN: usize = BHS_LEN + ahs::MAX_LEN + DIGEST_LEN;

/// Bytes after a data segment at most: padding and data digest.
pub const MAX_TRAILER_LEN: usize = 3 + DIGEST_LEN;

/// Which digests a connection negotiated (RFC 7143 §13.1). Both are off until the full feature phase.
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
    /// Bytes of a data segment that this side takes: the MaxRecvDataSegmentLength it declared (8192 during login).
    pub max_data_segment: u32,
    /// Bytes of AHSs that this side takes, at most [`ahs::MAX_LEN`].
    pub max_ahs: usize,
}

/// What stands at the start of the bytes received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut<'a> {
    /// The header is not complete.
    NeedMore {
        /// How many bytes there must be from the start of the input on before another cut can tell more.
        at_least: usize,
    },
    /// The header is complete and right, the data segment is not here in full. A driver may wait, or may receive the rest
    /// straight to where it belongs and check it with [`verify_trailer`].
    Partial {
        /// The header.
        bhs: &'a Bhs,
        /// All AHSs, well-formed.
        ahs: &'a [u8],
        /// Where the data segment starts in the input; may be its end.
        data_offset: usize,
        /// Bytes of data, without padding.
        data_len: usize,
        /// Bytes of padding and data digest after the data.
        trailer: usize,
    },
    /// A whole PDU, digests verified.
    Pdu {
        /// The header.
        bhs: &'a Bhs,
        /// All AHSs, well-formed.
        ahs: &'a [u8],
        /// Where the data is in the input, without padding.
        data: Range<usize>,
        /// How many bytes of the input the PDU takes.
        consumed: usize,
    },
}

/// Why no PDU can be cut. All but [`FrameError::DataDigest`] leave the stream without a known next PDU: the connection must
/// end (RFC 7143 §7.7, §7.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The header digest is wrong: no field of the header can be believed, its lengths among them.
    #[error("wrong header digest")]
    HeaderDigest,
    /// TotalAHSLength passes this side's limit.
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
    /// DataSegmentLength passes what this side declared.
    #[error("a data segment of {len} bytes, more than the limit of {max}")]
    DataSegmentTooLong {
        /// DataSegmentLength in bytes.
        len: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// The data digest is wrong, the header is right: the receiver may drop the PDU, send Reject(0x02) with its header and go
    /// on at `consumed` (RFC 7143 §7.9).
    #[error("wrong data digest in {bhs}")]
    DataDigest {
        /// The PDU's header.
        bhs: Bhs,
        /// How many bytes of AHSs follow the BHS in the input.
        ahs_len: usize,
        /// How many bytes of the input the PDU takes.
        consumed: usize,
    },
}

impl Cutter {
    /// Finds the PDU that starts at the start of `input`. Reads a data segment only when a data digest must be verified.
    pub fn cut<'a>(&self, input: &'a [u8]) -> Result<Cut<'a>, FrameError> {
        let Some(bhs) = Bhs::ref_from(input) else {
            return Ok(Cut::NeedMore { at_least: BHS_LEN });
        };
        let ahs_len = bhs.total_ahs_len();
        let data_len = bhs.data_segment_len();
        // Limits come before the digest: bytes that a broken length asks for would never come, or be too many.
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

/// Bytes that follow a data segment of `data_len` bytes: padding, and a data digest when it is on and there are data.
#[inline]
pub const fn trailer_len(data_len: usize, data_digest: bool) -> usize {
    padding_len(data_len) + if data_digest && data_len != 0 { DIGEST_LEN } else { 0 }
}

/// Bytes that pad a data segment to a multiple of four.
#[inline]
pub const fn padding_len(data_len: usize) -> usize {
    data_len.wrapping_neg() % 4
}

/// Checks the data digest that ends a received `trailer` (padding, then digest). `data` is the CRC over the data segment
/// alone. False also when `trailer` is shorter than a digest.
#[must_use]
pub fn verify_trailer(mut data: Crc32c, trailer: &[u8]) -> bool {
    let Some((padding, wire)) = trailer.split_last_chunk::<DIGEST_LEN>() else {
        return false;
    };
    data.update(padding);
    data.finish() == *wire
}

/// Bytes that [`emit_header`] writes.
#[inline]
pub const fn header_len(ahs_len: usize, header_digest: bool) -> usize {
    BHS_LEN + ahs_len + if header_digest { DIGEST_LEN } else { 0 }
}

/// Writes what goes before a data segment of `data_len` bytes to the start of `out`: the BHS with both lengths set, the AHSs
/// and the header digest. Returns how many bytes it wrote; `None`, and `out` as it was, when they do not fit.
///
/// # Panics
/// When `ahs` is no whole number of words up to [`ahs::MAX_LEN`], or `data_len` passes 2^24 - 1.
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

/// What goes after a data segment of `data_len` bytes: zeros to pad it, and the data digest when `digest` has the CRC over
/// the segment.
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

/// Appends a whole PDU. For PDUs off the data path, whose data is in one piece.
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
