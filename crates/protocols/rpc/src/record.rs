//! Record marking (RFC 5531 §11): cuts a byte stream into records, and puts the mark before one.
//!
//! ```text
//! byte 0          4
//! +-+-------------+----------------+ +-+-------------+----------------+
//! |0| length (31) | fragment       | |1| length (31) | last fragment  |
//! +-+-------------+----------------+ +-+-------------+----------------+
//! ```

use crate::xdr::{Writer, padding};

/// Bytes of a fragment's header.
pub const MARK_LEN: usize = 4;
/// In a fragment's header: the record's last one.
pub const LAST: u32 = 0x8000_0000;

/// Limits on a record from a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest record over all its fragments, bytes, without their headers.
    pub record: usize,
    /// The most fragments of a record, empty ones included.
    pub fragments: u32,
}

/// A record beyond the [`Limits`]. The stream cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Too many bytes, by the header of a fragment.
    #[error("a record of {length} bytes or more exceeds the limit of {limit}")]
    TooLong {
        /// Length with this fragment, bytes.
        length: u64,
        /// The longest accepted, bytes.
        limit: usize,
    },
    /// Too many fragments.
    #[error("a record of more than {0} fragments")]
    Fragments(u32),
}

/// A part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'b> {
    /// The record's next bytes, where they were received; never empty.
    Data(&'b [u8]),
    /// The record is whole.
    End,
}

/// Cuts a stream into pieces of records without a copy. It holds at most three bytes of the stream:
/// those of an incomplete fragment header.
#[derive(Debug, Clone)]
pub struct Cutter {
    limits: Limits,
    header: [u8; MARK_LEN],
    /// Bytes of `header` that have arrived.
    header_len: usize,
    /// Bytes of the current fragment that are still to come.
    left: usize,
    last: bool,
    /// The current record's bytes and fragments by the headers so far.
    length: u64,
    fragments: u32,
}

impl Cutter {
    /// At the start of a stream.
    pub fn new(limits: Limits) -> Self {
        Cutter { limits, header: [0; MARK_LEN], header_len: 0, left: 0, last: false, length: 0, fragments: 0 }
    }

    /// Takes the next piece from the front of `input`. `None` once all input is taken.
    ///
    /// # Errors
    /// [`RecordError`], as soon as a header exceeds the limits.
    pub fn next_piece<'b>(&mut self, input: &mut &'b [u8]) -> Result<Option<Piece<'b>>, RecordError> {
        loop {
            if self.left > 0 {
                let (piece, rest) = input.split_at(self.left.min(input.len()));
                *input = rest;
                self.left -= piece.len();
                return Ok((!piece.is_empty()).then_some(Piece::Data(piece)));
            }
            if self.last {
                *self = Cutter::new(self.limits);
                return Ok(Some(Piece::End));
            }
            let Some((byte, rest)) = input.split_first() else { return Ok(None) };
            *input = rest;
            if let Some(place) = self.header.get_mut(self.header_len) {
                *place = *byte;
            }
            self.header_len += 1;
            if self.header_len == MARK_LEN {
                self.fragment()?;
            }
        }
    }

    /// Bytes of the current fragment that have not arrived; 0 between fragments. The caller may
    /// receive so many directly into their destination.
    pub fn fragment_left(&self) -> usize {
        self.left
    }

    /// Begins the fragment of a complete header.
    fn fragment(&mut self) -> Result<(), RecordError> {
        let mark = u32::from_be_bytes(self.header);
        self.header_len = 0;
        self.length += u64::from(mark & !LAST);
        self.fragments += 1;
        if self.length > self.limits.record as u64 {
            return Err(RecordError::TooLong { length: self.length, limit: self.limits.record });
        }
        if self.fragments > self.limits.fragments {
            return Err(RecordError::Fragments(self.limits.fragments));
        }
        self.left = (mark & !LAST) as usize;
        self.last = mark & LAST != 0;
        Ok(())
    }
}

/// Cuts a stream into whole records. It copies only records that arrive in several pieces, and
/// holds at most what arrived of one record. Its buffer keeps the room of the longest such
/// record, so that later ones need no allocation.
#[derive(Debug, Clone)]
pub struct Assembler {
    cutter: Cutter,
    kept: Vec<u8>,
    /// `kept` was handed out whole.
    spent: bool,
}

impl Assembler {
    /// At the start of a stream.
    pub fn new(limits: Limits) -> Self {
        Assembler { cutter: Cutter::new(limits), kept: Vec::new(), spent: false }
    }

    /// Takes the next record from the front of `input`. `None` once all input is taken.
    ///
    /// # Errors
    /// [`RecordError`]: drop the connection.
    pub fn next_record<'s, 'b: 's>(
        &'s mut self,
        input: &mut &'b [u8],
    ) -> Result<Option<&'s [u8]>, RecordError> {
        if std::mem::take(&mut self.spent) {
            self.kept.clear();
        }
        // The record's only piece so far, where it was received.
        let mut whole: &'b [u8] = &[];
        loop {
            match self.cutter.next_piece(input)? {
                Some(Piece::Data(piece)) if self.kept.is_empty() && whole.is_empty() => whole = piece,
                Some(Piece::Data(piece)) => {
                    self.kept.extend_from_slice(std::mem::take(&mut whole));
                    self.kept.extend_from_slice(piece);
                }
                Some(Piece::End) if self.kept.is_empty() => return Ok(Some(whole)),
                Some(Piece::End) => {
                    self.spent = true;
                    return Ok(Some(&self.kept));
                }
                None => {
                    self.kept.extend_from_slice(whole);
                    return Ok(None);
                }
            }
        }
    }
}

/// Begins a record in `to`: leaves room for its mark. The result is for [`end`].
pub fn begin(to: &mut Writer<'_>) -> usize {
    to.u32(0);
    to.position()
}

/// Ends a record of one fragment that [`begin`] began, and whose last `payload` bytes the caller
/// sends from elsewhere, with [`padding`] behind them. The mark counts both.
///
/// # Errors
/// [`RecordError::TooLong`] if it does not fit in 31 bits.
pub fn end(to: &mut Writer<'_>, begun: usize, payload: usize) -> Result<(), RecordError> {
    let head = to.position().saturating_sub(begun);
    let length = head as u64 + payload as u64 + padding(payload).len() as u64;
    let limit = !LAST as usize;
    let mark = u32::try_from(length).ok().filter(|length| length & LAST == 0);
    let mark = mark.ok_or(RecordError::TooLong { length, limit })?;
    to.replace_u32(begun.saturating_sub(MARK_LEN), mark | LAST);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { record: 100, fragments: 4 };

    /// The records of `stream`, received `step` bytes at a time.
    fn records(stream: &[u8], step: usize) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut assembler = Assembler::new(LIMITS);
        let mut found = Vec::new();
        for mut piece in stream.chunks(step) {
            while let Some(record) = assembler.next_record(&mut piece)? {
                found.push(record.to_vec());
            }
            assert!(piece.is_empty());
            assert!(assembler.kept.len() <= LIMITS.record);
        }
        Ok(found)
    }

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if last { LAST } else { 0 };
        [&mark.to_be_bytes(), bytes].concat()
    }

    #[test]
    fn a_record_in_one_piece_is_not_copied() {
        let stream = [0x80, 0, 0, 3, b'a', b'b', b'c', 0x80, 0, 0, 0];
        let mut input = &stream[..];
        let mut assembler = Assembler::new(LIMITS);
        let record = assembler.next_record(&mut input).unwrap().unwrap();
        assert_eq!(record, b"abc");
        assert!(std::ptr::eq(record, &raw const stream[4..7]));
        assert_eq!(assembler.next_record(&mut input), Ok(Some(&[][..])));
        assert_eq!(assembler.next_record(&mut input), Ok(None));
    }

    #[test]
    fn empty_fragments_before_the_last_are_legal_but_counted() {
        let stream =
            [fragment(b"", false), fragment(b"ab", false), fragment(b"", false), fragment(b"", true)]
                .concat();
        assert_eq!(records(&stream, 3), Ok(vec![b"ab".to_vec()]));
        let stream = fragment(b"", false).repeat(5);
        assert_eq!(records(&stream, 64), Err(RecordError::Fragments(4)));
    }

    #[test]
    fn the_header_of_a_record_beyond_the_limit_is_refused() {
        let too_long = Err(RecordError::TooLong { length: 101, limit: 100 });
        assert_eq!(records(&101u32.to_be_bytes(), 1), too_long);
        let stream = [fragment(&[7; 60], false), (41 | LAST).to_be_bytes().to_vec()].concat();
        assert_eq!(records(&stream, 1000), too_long);
        assert!(records(&[0xff; 4], 4).is_err());
    }

    #[test]
    fn the_mark_counts_a_payload_that_stays_elsewhere() {
        let mut out = b"earlier".to_vec();
        let mut to = Writer::new(&mut out);
        let begun = begin(&mut to);
        to.u32(7);
        end(&mut to, begun, 5).unwrap();
        assert_eq!(out, b"earlier\x80\0\0\x0c\0\0\0\x07");
        let mut to = Writer::new(&mut out);
        assert!(end(&mut to, begun, 0x7fff_fffd).is_err());
    }

    proptest! {
        #[test]
        fn records_are_the_same_however_the_stream_is_cut(
            parts in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..24), 1..4), 0..6),
            step in 1usize..80,
        ) {
            let mut stream = Vec::new();
            for record in &parts {
                for (at, part) in record.iter().enumerate() {
                    stream.extend(fragment(part, at + 1 == record.len()));
                }
            }
            let whole: Vec<Vec<u8>> = parts.iter().map(|record| record.concat()).collect();
            prop_assert_eq!(records(&stream, step).unwrap(), whole);
        }

        #[test]
        fn any_stream_ends_in_records_or_an_error(
            stream in prop::collection::vec(any::<u8>(), 0..300), step in 1usize..80,
        ) {
            let _ = records(&stream, step);
        }
    }
}
