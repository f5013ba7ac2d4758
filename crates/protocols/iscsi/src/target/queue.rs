//! The pieces of data that have arrived and that no logical unit has taken yet.

use smallvec::SmallVec;

use super::payload::Payload;

/// Payloads in order of arrival. Most writes arrive in one or two pieces, which need no allocation.
#[derive(Debug)]
pub(super) struct Queue<P> {
    pieces: SmallVec<[Option<P>; 2]>,
    head: usize,
}

/// The number of pieces that stay in their receive buffers regardless of their size.
pub(super) const FEW: usize = 4;
/// Smaller pieces than this many bytes keep much more memory alive than they contain: a driver
/// receives into buffers of many KiB.
const SMALL: usize = 16 << 10;

impl<P: Payload> Queue<P> {
    pub fn new() -> Self {
        Self { pieces: SmallVec::new(), head: 0 }
    }

    pub fn push(&mut self, piece: P) {
        let kept = self.pieces.len() - self.head;
        if kept < FEW || piece.len() >= SMALL {
            return self.pieces.push(Some(piece));
        }
        // Many small pieces are joined, so that a peer that sends tiny PDUs cannot pin a buffer
        // with each. A piece is joined with the preceding pieces that are shorter than twice its
        // length. That leaves few pieces, and copies each byte rarely.
        let mut bytes = piece.to_vec();
        while self.pieces.len() - self.head > FEW
            && let Some(Some(last)) = self.pieces.last()
            && last.len() < SMALL.min(2 * bytes.len())
        {
            let mut joined = last.to_vec();
            joined.append(&mut bytes);
            bytes = joined;
            self.pieces.pop();
        }
        self.pieces.push(Some(P::copied(bytes)));
    }

    pub fn front_mut(&mut self) -> Option<&mut P> {
        self.pieces.get_mut(self.head)?.as_mut()
    }

    pub fn pop(&mut self) -> Option<P> {
        let piece = self.pieces.get_mut(self.head)?.take();
        self.head += 1;
        if self.head == self.pieces.len() {
            self.clear();
        }
        piece
    }

    /// Whether it has memory of its own beyond the slot's.
    #[inline]
    pub fn is_spilled(&self) -> bool {
        self.pieces.spilled()
    }

    /// The number of pieces.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pieces.len() - self.head
    }

    #[inline]
    pub fn clear(&mut self) {
        if !self.pieces.is_empty() {
            self.pieces.clear();
        }
        self.head = 0;
    }
}
