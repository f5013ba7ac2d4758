//! Replies that may be long: put in pieces of the core's pool as fast as the initiator takes them,
//! so that a command holds one piece of its reply however long that is. If a reply's beginning
//! depends on its end, its parts are kept packed.
//!
//! Knows nothing of the contents.

use runtime::{BufMut, pool};

use super::failure::Failure;
use super::limits::{MAX_PACKED, PIECE_BYTES};
use super::task::Task;

/// A part of Data-In that is put piece by piece.
pub(super) struct Pieces {
    /// The piece that is being filled, and how far it is.
    piece: Option<(BufMut, usize)>,
    left: u64,
}

impl Pieces {
    /// `len` bytes at most: bytes written beyond are dropped.
    pub const fn new(len: u64) -> Self {
        Self { piece: None, left: len }
    }

    pub const fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Writes `bytes`, each piece when the initiator has room for it, and says how many were
    /// dropped.
    pub async fn write(&mut self, task: &mut Task<'_>, mut bytes: &[u8]) -> Result<usize, Failure> {
        while !bytes.is_empty() && self.left > 0 {
            if self.piece.is_none() {
                // A command that waits for its initiator holds no piece.
                task.keep_pace().await?;
                let len = self.left.min(PIECE_BYTES as u64) as usize; // at most PIECE_BYTES
                self.piece = Some((task.transfer.unless_lost(pool::alloc_wait(len)).await?, 0));
            }
            let Some((piece, filled)) = &mut self.piece else { continue };
            let len = bytes.len().min(piece.len() - *filled);
            piece[*filled..*filled + len].copy_from_slice(&bytes[..len]);
            *filled += len;
            self.left -= len as u64;
            bytes = &bytes[len..];
            if *filled == piece.len() {
                self.put(task);
            }
        }
        Ok(bytes.len())
    }

    pub fn put(&mut self, task: &mut Task<'_>) {
        if let Some((mut piece, filled)) = self.piece.take() {
            piece.truncate(filled);
            task.transfer.put(piece.freeze());
        }
    }
}

/// Numbers in their order, short ones in few bytes: seven bits a byte, the low ones first.
#[derive(Debug, Default)]
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// A number had no room. None that comes later is kept either.
    full: bool,
}

impl Packed {
    /// Adds all of `numbers`, or none of them where there is no room. Whether there was.
    pub fn push<const N: usize>(&mut self, numbers: [u64; N]) -> bool {
        // Ten bytes hold any number.
        self.full |= self.bytes.len() + 10 * N > MAX_PACKED;
        if !self.full {
            numbers.into_iter().for_each(|number| self.write(number));
        }
        !self.full
    }

    fn write(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80); // the low seven bits
            number >>= 7;
        }
        self.bytes.push(number as u8); // less than 0x80
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let mut bytes = self.bytes.iter();
        std::iter::from_fn(move || {
            let mut number = 0;
            for shift in (0..u64::BITS).step_by(7) {
                let byte = bytes.next()?;
                number |= u64::from(byte & 0x7F) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            Some(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_come_back_and_are_bounded() {
        let numbers = [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 1 << 56, u64::MAX];
        let mut packed = Packed::default();
        for number in numbers {
            assert!(packed.push([number, number]));
        }
        assert!(packed.iter().eq(numbers.into_iter().flat_map(|number| [number; 2])));
        let mut kept = 0;
        while packed.push([u64::MAX]) {
            kept += 1;
        }
        assert!(!packed.push([0]), "what comes later is not kept either");
        assert_eq!(packed.iter().count(), 16 + kept);
        assert!(packed.bytes.len() <= MAX_PACKED && packed.bytes.capacity() <= 2 * MAX_PACKED);
    }
}
