//! Assembly of a call by a responder (RFC 8166 §3.4.5, §3.5): the bytes behind the header, or a
//! read chunk at position 0, with the other read chunks at their positions.

use std::ops::Range;

use smallvec::SmallVec;

use crate::{Body, Header, ReadSegment, Segment, Segments};

/// Limits on the chunks of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Segments to read.
    pub read_segments: usize,
    /// Chunks of the write list.
    pub write_chunks: usize,
    /// Segments of one chunk to write.
    pub segments: usize,
    /// The longest call, in bytes, including its read chunks.
    pub call: usize,
}

/// Error in the chunks of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadChunks {
    /// More chunks or segments than are allowed.
    #[error("too many chunks or segments")]
    TooMany,
    /// The call is longer than any may be.
    #[error("a call of {0} bytes")]
    TooLong(u64),
    /// A read chunk at a position that is not a multiple of 4 (§3.4.5.2).
    #[error("a read chunk at position {0}")]
    Unaligned(u32),
    /// A read chunk within another, or behind the end of the call.
    #[error("a read chunk at position {0}, where none can be")]
    Misplaced(u32),
    /// The call is both sent and in a read chunk, or neither.
    #[error("the call is not in one place")]
    NoCall,
    /// A segment beyond the end of all memory.
    #[error("a segment beyond the end of memory")]
    Wraps,
    /// Two segments to write have bytes in common.
    #[error("segments to write overlap")]
    Overlap,
}

/// A part of a call, in the order in which they follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// These of the bytes behind the header.
    Sent(Range<usize>),
    /// The content of this segment.
    Read(Segment),
    /// So many zero bytes, 1 to 3.
    Padding(usize),
}

/// The pieces of a call. A call without chunks has one.
pub type Pieces = SmallVec<[Piece; 4]>;

/// Checks that a segment ends within memory.
pub(crate) fn checked(segment: Segment) -> Result<Segment, BadChunks> {
    segment.offset.checked_add(segment.length.into()).map(|_| segment).ok_or(BadChunks::Wraps)
}

/// The call before chunks are inserted.
enum Base {
    Sent(Range<usize>),
    Chunk(Segments),
}

impl Base {
    /// Moves its first `bytes` bytes to `to`. False if it has fewer.
    fn split_to(&mut self, mut bytes: usize, to: &mut Pieces) -> bool {
        if bytes == 0 {
            return true;
        }
        match self {
            Base::Sent(range) => {
                if range.len() < bytes {
                    return false;
                }
                to.push(Piece::Sent(range.start..range.start + bytes));
                range.start += bytes;
            }
            Base::Chunk(segments) => {
                while bytes > 0 {
                    let Some(first) = segments.first_mut() else { return false };
                    let length = first.length.min(u32::try_from(bytes).unwrap_or(u32::MAX));
                    to.push(Piece::Read(Segment { length, ..*first }));
                    bytes -= length as usize;
                    first.length -= length;
                    first.offset += u64::from(length);
                    if first.length == 0 {
                        segments.remove(0);
                    }
                }
            }
        }
        true
    }

    fn len(&self) -> usize {
        match self {
            Base::Sent(range) => range.len(),
            Base::Chunk(segments) => segments.iter().map(|segment| segment.length as usize).sum(),
        }
    }
}

/// The pieces of a call with this header, behind which `sent` bytes came. No segment of them is
/// empty, and together they are no longer than the limit.
///
/// # Errors
/// [`BadChunks`]. An error has no pieces: [`BadChunks::NoCall`].
pub fn pieces(header: &Header<'_>, sent: usize, limits: &Limits) -> Result<Pieces, BadChunks> {
    let (lists, is_sent) = match &header.body {
        Body::Message(lists) => (lists, true),
        Body::NoMessage(lists) => (lists, false),
        Body::Error(_) => return Err(BadChunks::NoCall),
    };
    let mut reads: SmallVec<[ReadSegment; 4]> = SmallVec::new();
    let mut total = sent as u64;
    for read in lists.reads.iter() {
        if reads.len() == limits.read_segments {
            return Err(BadChunks::TooMany);
        }
        if read.position % 4 != 0 {
            return Err(BadChunks::Unaligned(read.position));
        }
        total += u64::from(checked(read.source)?.length);
        reads.push(read);
    }
    // Padding of chunks is not counted.
    if total > limits.call as u64 {
        return Err(BadChunks::TooLong(total));
    }
    // Segments of one chunk stay in their order.
    reads.sort_by_key(|read| read.position);
    let apart = reads.iter().position(|read| read.position > 0).unwrap_or(reads.len());
    if (apart == 0) != is_sent || (!is_sent && sent > 0) {
        return Err(BadChunks::NoCall);
    }
    let full = |read: &&ReadSegment| read.source.length > 0;
    let mut base = match is_sent {
        true => Base::Sent(0..sent),
        false => Base::Chunk(reads[..apart].iter().filter(full).map(|read| read.source).collect()),
    };
    let (mut pieces, mut at) = (Pieces::new(), 0);
    for chunk in reads[apart..].chunk_by(|a, b| a.position == b.position) {
        let position = chunk[0].position;
        let misplaced = BadChunks::Misplaced(position);
        let before = (position as usize).checked_sub(at).ok_or(misplaced)?;
        if !base.split_to(before, &mut pieces) {
            return Err(misplaced);
        }
        at += before;
        for read in chunk.iter().filter(full) {
            pieces.push(Piece::Read(read.source));
            at += read.source.length as usize;
        }
        let padding = at.wrapping_neg() % 4;
        if padding > 0 {
            pieces.push(Piece::Padding(padding));
            at += padding;
        }
    }
    base.split_to(base.len(), &mut pieces);
    Ok(pieces)
}
