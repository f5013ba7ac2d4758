//! redb's file, whose bytes wait in memory if they find no room on the medium.
//!
//! redb gives up for good a file that it could not write, for readers too, which would lose all
//! that is not in the journal any more. So bytes that find no room on the medium are kept here, and
//! redb takes them for written. The writer of a checkpoint asks afterwards whether all of it is
//! really there ([`Overflow::settle`]), and writes no other checkpoint before.
//!
//! From the first piece without room on, everything is kept here, flushes are not done, and the
//! header, which makes a checkpoint count, goes to the file last: until then the file is what the
//! checkpoint before has left, whose pages redb does not touch.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

const PIECE: usize = 4096;

/// Bytes that are not in the file yet.
#[derive(Debug, Default)]
struct Waiting {
    /// By their place in pieces.
    pieces: BTreeMap<u64, Box<[u8; PIECE]>>,
    /// Length that the file is to get: it may need all of its present bytes until the rest is
    /// there.
    len: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Overflow {
    file: Box<dyn StorageBackend>,
    waiting: Mutex<Waiting>,
    /// Number of pieces: mostly 0, and then readers take no lock.
    count: AtomicUsize,
    most: usize,
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

impl Overflow {
    /// Of `file`, for up to `bytes` that find no room.
    pub fn new(file: Box<dyn StorageBackend>, bytes: usize) -> Self {
        Self { file, waiting: Mutex::default(), count: AtomicUsize::new(0), most: bytes / PIECE }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the waiting pieces to the file, durably. Returns whether there was room for all of
    /// them. No other write may run meanwhile.
    pub fn settle(&self) -> io::Result<bool> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(true);
        }
        let places: Vec<u64> = self.waiting().pieces.keys().copied().collect();
        match places.iter().filter(|place| **place > 0).try_for_each(|place| self.bring(*place)) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.file.sync_data()?;
        match self.bring(0) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.file.sync_data()?;
        let mut waiting = self.waiting();
        waiting.pieces.clear();
        self.count.store(0, Ordering::Release);
        if let Some(len) = waiting.len.take() {
            self.file.set_len(len)?;
        }
        Ok(true)
    }

    /// Writes one piece to the file, if it waits.
    fn bring(&self, place: u64) -> io::Result<()> {
        let Some(piece) = self.waiting().pieces.get(&place).cloned() else { return Ok(()) };
        let at = place * PIECE as u64;
        let len = self.file.len()?.saturating_sub(at).min(PIECE as u64) as usize; // at most a piece
        if len == 0 { Ok(()) } else { self.file.write(at, &piece[..len]) }
    }

    /// A piece as it is in the file.
    fn piece(&self, place: u64) -> io::Result<Box<[u8; PIECE]>> {
        let mut piece = Box::new([0; PIECE]);
        let at = place * PIECE as u64;
        let len = self.file.len()?.saturating_sub(at).min(PIECE as u64) as usize; // at most a piece
        if len > 0 {
            self.file.read(at, &mut piece[..len])?;
        }
        Ok(piece)
    }
}

/// The pieces that a range of `len` bytes at `offset` meets: which, where in it, and where in the
/// range.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PIECE as u64) as usize;
        let some = (PIECE - within).min(len - done);
        let range = done..done + some;
        done += some;
        Some((at / PIECE as u64, within, range))
    })
}

#[derive(Debug)]
pub(super) struct Opened(pub Arc<Overflow>);

impl StorageBackend for Opened {
    fn len(&self) -> io::Result<u64> {
        match self.0.waiting().len {
            Some(len) => Ok(len),
            None => self.0.file.len(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return self.0.file.read(offset, out);
        }
        let waiting = self.0.waiting();
        self.0.file.read(offset, out)?;
        for (place, within, range) in pieces(offset, out.len()) {
            if let Some(piece) = waiting.pieces.get(&place) {
                let len = range.len();
                out[range].copy_from_slice(&piece[within..within + len]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut waiting = self.0.waiting();
        if !waiting.pieces.is_empty() && len <= self.0.file.len()? {
            waiting.len = Some(len);
            return Ok(());
        }
        waiting.len = None;
        self.0.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        // The data to flush first is not in the file.
        if self.0.count.load(Ordering::Acquire) > 0 { Ok(()) } else { self.0.file.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut waiting = self.0.waiting();
        if waiting.pieces.is_empty() {
            match self.0.file.write(offset, data) {
                Err(error) if is_full(&error) => {}
                result => return result,
            }
        }
        for (place, within, range) in pieces(offset, data.len()) {
            if !waiting.pieces.contains_key(&place) {
                if waiting.pieces.len() >= self.0.most {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
                let piece = self.0.piece(place)?;
                waiting.pieces.insert(place, piece);
            }
            if let Some(piece) = waiting.pieces.get_mut(&place) {
                piece[within..within + range.len()].copy_from_slice(&data[range]);
            }
        }
        self.0.count.store(waiting.pieces.len(), Ordering::Release);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }
}
