//! The send queue of one connection: headers of its own, payload borrowed from the one block that
//! all writes send.

use std::io::IoSlice;
use std::ops::Range;

/// Slices given to one system call at most.
pub const SLICES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Headers(Range<usize>),
    Payload(Range<usize>),
}

impl Segment {
    fn len(&self) -> usize {
        let (Self::Headers(range) | Self::Payload(range)) = self;
        range.len()
    }
}

/// An ordered queue of bytes to send, kept as slices so that payload is never copied here. It keeps
/// its memory: once warm, it does not allocate.
#[derive(Debug, Default)]
pub struct Outbox {
    headers: Vec<u8>,
    segments: Vec<Segment>,
    /// Segments that were sent, and bytes sent of the next one.
    sent: (usize, usize),
}

impl Outbox {
    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Appends a header and then the bytes `payload` of the common block.
    pub fn push(&mut self, header: &[u8], payload: Range<usize>) {
        let from = self.headers.len();
        self.headers.extend_from_slice(header);
        match self.segments.last_mut() {
            Some(Segment::Headers(range)) => range.end = self.headers.len(),
            _ => self.segments.push(Segment::Headers(from..self.headers.len())),
        }
        if !payload.is_empty() {
            self.segments.push(Segment::Payload(payload));
        }
    }

    /// Appends `bytes` and padding to a multiple of four: a small data segment that is not of the
    /// common block.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if let (Some(Segment::Headers(range)), false) = (self.segments.last_mut(), bytes.is_empty()) {
            self.headers.extend_from_slice(bytes);
            self.headers.resize(self.headers.len().next_multiple_of(4), 0);
            range.end = self.headers.len();
        }
    }

    /// Fills `slices` with the next data and returns their number; `block` is the common block.
    pub fn slices<'a>(&'a self, block: &'a [u8], slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let mut count = 0;
        let mut skip = self.sent.1;
        for segment in self.segments[self.sent.0..].iter().take(SLICES) {
            let bytes = match segment {
                Segment::Headers(range) => &self.headers[range.clone()],
                Segment::Payload(range) => &block[range.clone()],
            };
            slices[count] = IoSlice::new(&bytes[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Forgets `bytes` that were sent.
    pub fn consume(&mut self, mut bytes: usize) {
        while let Some(segment) = self.segments.get(self.sent.0) {
            let left = segment.len() - self.sent.1;
            if bytes < left {
                self.sent.1 += bytes;
                return;
            }
            bytes -= left;
            self.sent = (self.sent.0 + 1, 0);
        }
        debug_assert_eq!(bytes, 0, "more was sent than was queued");
        self.headers.clear();
        self.segments.clear();
        self.sent = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::BHS;

    fn bytes(outbox: &Outbox, block: &[u8]) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = outbox.slices(block, &mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn any_partial_send_leaves_exactly_the_rest() {
        let block: Vec<u8> = (0..=255).collect();
        let queue = || {
            let mut outbox = Outbox::default();
            outbox.push(&[1; BHS], 0..0);
            outbox.push(&[2; BHS], 10..30);
            outbox.push(&[3; BHS], 0..256);
            outbox
        };
        let all = bytes(&queue(), &block);
        assert_eq!(all.len(), 3 * BHS + 20 + 256);
        for cut in 0..=all.len() {
            let mut outbox = queue();
            outbox.consume(cut);
            assert_eq!(bytes(&outbox, &block), all[cut..], "after {cut} bytes");
            assert_eq!(outbox.is_empty(), cut == all.len());
        }
    }

    #[test]
    fn headers_that_follow_each_other_are_one_slice() {
        let mut outbox = Outbox::default();
        for _ in 0..100 {
            outbox.push(&[7; BHS], 0..0);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        assert_eq!(outbox.slices(&[], &mut slices), 1);
    }
}
