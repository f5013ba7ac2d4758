//! A run of bytes that arrives in order, kept in few pieces without copying long ones.

use runtime::{Buf, BufMut, Bytes, Chain, pool};

/// Shorter pieces are gathered, except the first one.
const SMALL: usize = 4 << 10;
/// Size in bytes of a buffer for gathered pieces.
const GATHERED: usize = 16 << 10;

/// Slices of receive buffers, and own buffers for short or split pieces.
#[derive(Default)]
pub(super) struct Arriving {
    chain: Chain,
    /// A buffer that is not yet in the chain, and its fill level.
    open: Option<(BufMut, usize)>,
}

/// The result of taking a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The piece is kept in its receive buffer.
    Slice,
    /// The piece was copied.
    Copied,
    /// The piece was not taken: a buffer of this number of bytes is missing.
    Needs(usize),
}

impl Arriving {
    /// Whether nothing has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.chain.is_empty() && self.open.is_none()
    }

    /// Bytes that have arrived.
    pub(super) fn len(&self) -> usize {
        self.chain.len() + self.open.as_ref().map_or(0, |(_, filled)| *filled)
    }

    /// Bytes of memory that wait for the rest.
    pub(super) fn held(&self) -> usize {
        self.chain.len() + self.open.as_ref().map_or(0, |(open, _)| open.len())
    }

    /// The rest has not arrived, and may never do: a few bytes keep no receive buffer meanwhile.
    pub(super) fn settle(&mut self) {
        let len = self.len();
        if self.chain.is_empty() || len >= GATHERED {
            return;
        }
        // Without a buffer it stays where it is.
        let Some(mut own) = pool::alloc(GATHERED) else { return };
        self.finish().copy_to_slice(&mut own[..len]);
        self.open = Some((own, len));
    }

    /// Takes `here` bytes at `at` of `bytes`; `rest` more of the same piece will follow.
    pub(super) fn take(&mut self, bytes: &Bytes, at: usize, here: usize, rest: usize) -> Taken {
        let piece = &bytes[at..at + here];
        if let Some((open, filled)) = &mut self.open
            && let Some(room) = open.get_mut(*filled..*filled + here)
        {
            runtime::count_copy(here);
            room.copy_from_slice(piece);
            *filled += here;
            return Taken::Copied;
        }
        if rest == 0 && (here >= SMALL || self.is_empty()) {
            self.close();
            self.chain.push(bytes.slice(at..at + here));
            return Taken::Slice;
        }
        // Split by the end of the receive, or one of many short pieces.
        let len = if self.is_empty() { here + rest } else { (here + rest).max(GATHERED) };
        let Some(mut open) = pool::alloc(len) else { return Taken::Needs(len) };
        self.close();
        runtime::count_copy(here);
        open[..here].copy_from_slice(piece);
        self.open = Some((open, here));
        Taken::Copied
    }

    /// A buffer with room for the next `len` bytes, and the offset in it; `None` if there is none.
    /// Return it by [`Self::put_back`].
    pub(super) fn room(&mut self, len: usize) -> Option<(BufMut, usize)> {
        if self.open.as_ref().is_some_and(|(open, filled)| open.len() - filled >= len) {
            return self.open.take();
        }
        let fresh = pool::alloc(len.max(SMALL))?;
        self.close();
        Some((fresh, 0))
    }

    /// Takes back a buffer of [`Self::room`], filled up to `filled`.
    pub(super) fn put_back(&mut self, buffer: BufMut, filled: usize) {
        self.open = Some((buffer, filled));
    }

    /// Whether the last byte is in the upper layer's own memory.
    pub(super) fn ends_placed(&self) -> bool {
        let all = self.open.as_ref().is_none_or(|(_, filled)| *filled == 0);
        all && self.chain.bufs().last().is_some_and(Buf::is_region)
    }

    /// Appends bytes: copies short ones. Returns whether they were copied.
    pub(super) fn push(&mut self, bytes: Bytes) -> Taken {
        if bytes.is_empty() {
            return Taken::Slice;
        }
        let room = if bytes.len() < SMALL { self.room(bytes.len()) } else { None };
        match room {
            Some((mut open, filled)) => {
                let end = filled + bytes.len();
                runtime::count_copy(bytes.len());
                open[filled..end].copy_from_slice(&bytes);
                self.put_back(open, end);
                Taken::Copied
            }
            None => {
                self.close();
                self.chain.push(bytes);
                Taken::Slice
            }
        }
    }

    /// Lets `place` copy the newest bytes, which are not yet in the chain, to the upper layer's own
    /// memory. `place` gets their offset. Returns their number.
    pub(super) fn place_open(&mut self, place: impl FnOnce(u64, &[u8]) -> Option<Buf>) -> usize {
        let Some((open, filled)) = self.open.as_ref().filter(|(_, filled)| *filled > 0) else { return 0 };
        let filled = *filled;
        match place(self.chain.len() as u64, &open[..filled]).filter(|placed| placed.len() == filled) {
            Some(placed) => {
                self.open = None;
                self.chain.push_joined(placed);
                filled
            }
            None => 0,
        }
    }

    /// Appends bytes that are in the upper layer's own memory.
    pub(super) fn push_placed(&mut self, placed: Buf) {
        self.close();
        self.chain.push_joined(placed);
    }

    fn close(&mut self) {
        if let Some((mut open, filled)) = self.open.take() {
            open.truncate(filled);
            self.chain.push(open);
        }
    }

    /// Takes everything that has arrived.
    pub(super) fn finish(&mut self) -> Chain {
        self.close();
        std::mem::take(&mut self.chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Bytes {
        (0..len).map(|i| i as u8).collect::<Vec<_>>().into()
    }

    #[test]
    fn one_whole_piece_is_kept_where_it_was_received() {
        let (mut arriving, all) = (Arriving::default(), bytes(100));
        assert_eq!(arriving.take(&all, 10, 76, 0), Taken::Slice);
        let chain = arriving.finish();
        assert_eq!((chain.bufs().len(), chain.to_vec()), (1, all[10..86].to_vec()));
        assert!(arriving.is_empty());
    }

    #[test]
    fn many_small_pieces_make_few_buffers() {
        let (mut arriving, all) = (Arriving::default(), bytes(64 << 10));
        for piece in 0..64 {
            assert_ne!(arriving.take(&all, piece * 1024, 1024, 0), Taken::Needs(0));
        }
        let chain = arriving.finish();
        assert_eq!(chain.to_vec(), all.to_vec());
        assert!(chain.bufs().len() <= 5, "{}", chain.bufs().len());
    }

    #[test]
    fn a_piece_that_was_cut_is_gathered_in_one_buffer() {
        let (mut arriving, all) = (Arriving::default(), bytes(8000));
        assert_eq!(arriving.take(&all, 0, 100, 7900), Taken::Copied);
        assert_eq!(arriving.take(&all, 100, 7900, 0), Taken::Copied);
        let chain = arriving.finish();
        assert_eq!((chain.bufs().len(), chain.to_vec()), (1, all.to_vec()));
    }

    #[test]
    fn pieces_whose_rest_does_not_come_keep_no_receive_buffer() {
        let before = pool::stats().in_use;
        let mut arriving = Arriving::default();
        for start in [0, 5000] {
            let mut received = pool::alloc(64 << 10).unwrap();
            received[..5000].copy_from_slice(&bytes(10_000)[start..start + 5000]);
            assert_eq!(arriving.take(&received.freeze_bytes(), 0, 5000, 0) == Taken::Slice, start == 0);
            arriving.settle();
            assert_eq!((pool::stats().in_use - before, arriving.held()), (GATHERED, GATHERED));
        }
        assert_eq!(arriving.finish().to_vec(), bytes(10_000).to_vec());
    }

    #[test]
    fn large_pieces_behind_small_ones_are_not_copied() {
        let (mut arriving, all) = (Arriving::default(), bytes(32 << 10));
        assert_eq!(arriving.take(&all, 0, 10, 0), Taken::Slice);
        assert_eq!(arriving.take(&all, 10, 20, 0), Taken::Copied);
        assert_eq!(arriving.take(&all, 30, 30_000, 0), Taken::Slice);
        let chain = arriving.finish();
        assert_eq!((chain.bufs().len(), chain.to_vec()), (3, all[..30_030].to_vec()));
    }
}
