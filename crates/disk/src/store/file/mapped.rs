//! A file's pages as memory: reads that copy nothing, and on a file system in memory writes that need no system call.
//!
//! Touching a page that is not in memory makes the whole core wait, so only pages are used that were seen there a short
//! while ago: a read that finds them elsewhere, or for the first time, goes the ordinary way, and notes that the page
//! cache has them now. Owns that knowledge, which may be stale.
//!
//! A file that was cut short, or a medium that fails to bring a page back, must not be found out by a send, which can only
//! end the connection. Pages whose bytes are copied are touched before they are handed out, which finds out, and costs
//! nothing that the copy would not. Pages that are lent are touched by nobody, and that is much of what lending saves: there
//! the file's length is looked at once a millisecond, and only a page that is lost within that time costs the connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ring::{Chain, File, Region};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that one word of knowledge is about.
const WORD: u64 = 32;
/// For how long a page that was seen in memory is taken to be there still, seconds: a fraction of what the kernel leaves an
/// unused page under pressure, and long enough that looking again costs nothing.
const TRUSTED_S: u64 = 10;

/// How often the length of a file whose pages are lent is looked at, milliseconds.
const LOOKED_AT_MS: u64 = 1;

/// A file's mapping, and which of its pages were seen in memory of late.
pub(super) struct Mapped {
    region: Arc<Region>,
    /// The age in which the bits were set (high half), and a bit for each page (low half).
    seen: Box<[AtomicU64]>,
    start: Instant,
    /// The file system allocates what is touched, so that only the kernel can tell a page from a hole.
    in_memory: bool,
    lent: bool,
    /// When the file's length was last looked at, milliseconds since the start.
    looked_at_ms: AtomicU64,
}

impl Mapped {
    /// Maps the first `size` bytes of `file`.
    pub(super) fn new(
        file: &File,
        size: u64,
        writable: bool,
        lent: bool,
        in_memory: bool,
    ) -> io::Result<Self> {
        let len = usize::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let words = usize::try_from(size.div_ceil(PAGE * WORD)).unwrap_or(usize::MAX);
        let mut seen = Vec::new();
        seen.try_reserve_exact(words).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // Age 0 is nobody's.
        seen.resize_with(words, AtomicU64::default);
        let region = Region::of_file(file, len, writable, lent)?;
        Ok(Self {
            region,
            seen: seen.into_boxed_slice(),
            start: Instant::now(),
            in_memory,
            lent,
            looked_at_ms: AtomicU64::new(0),
        })
    }

    /// The bytes of a range of `file`, if all of it is in memory as far as is known.
    #[inline]
    pub(super) fn slice(&self, file: &File, at: u64, len: usize) -> Option<Chain> {
        if !self.is_trusted(at, len) {
            return None;
        }
        let start = usize::try_from(at).ok()?;
        let there = if self.lent { self.is_whole(file) } else { self.region.touch(start, len).is_ok() };
        if !there {
            // Whoever reads it the ordinary way learns what is wrong.
            self.forget(at, len as u64);
            return None;
        }
        self.region.slice(start, len).ok().map(Chain::from)
    }

    /// Whether the file is as long as it was mapped, as far as was seen of late.
    #[inline]
    fn is_whole(&self, file: &File) -> bool {
        let elapsed = ring::now().saturating_duration_since(self.start).as_millis() as u64;
        elapsed < self.looked_at_ms.load(Ordering::Relaxed) + LOOKED_AT_MS || self.look(file, elapsed)
    }

    #[cold]
    fn look(&self, file: &File, elapsed_ms: u64) -> bool {
        let whole = file.size().is_ok_and(|size| size >= self.region.len() as u64);
        if whole {
            self.looked_at_ms.store(elapsed_ms, Ordering::Relaxed);
        }
        whole
    }

    /// Stores `data`, if all of the range is in memory as far as is known and the file system keeps it there. False if it
    /// has to be written in another way.
    #[inline]
    pub(super) fn store(&self, at: u64, data: &Chain) -> bool {
        if !self.in_memory || !self.is_trusted(at, data.len()) {
            return false;
        }
        let Ok(mut to) = usize::try_from(at) else { return false };
        for buf in data {
            if self.region.write_buf(to, buf).is_err() {
                self.forget(at, data.len() as u64);
                return false;
            }
            to += buf.len();
        }
        true
    }

    /// A range was just read or written: notes that it is in memory. A hole in memory is not: to touch it would fill it.
    pub(super) fn saw(&self, at: u64, len: usize, written: bool) {
        let (Ok(start), len) = (usize::try_from(at), len as u64) else { return };
        if at.checked_add(len).is_none_or(|end| end > self.region.len() as u64) {
            return;
        }
        if self.in_memory && !written && !self.region.is_resident(start, len as usize) {
            return;
        }
        let age = self.age();
        self.words(at, len, |word, mask| {
            let known = word.load(Ordering::Relaxed);
            if known >> 32 != age {
                // What another core notes of the same word meanwhile may be lost: then it is noted again.
                word.store(age << 32 | mask, Ordering::Relaxed);
            } else if known & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
            true
        });
    }

    /// A range is about to become a hole.
    pub(super) fn forget(&self, at: u64, len: u64) {
        self.words(at, len, |word, mask| {
            word.fetch_and(!mask, Ordering::Relaxed);
            true
        });
    }

    #[inline]
    fn is_trusted(&self, at: u64, len: usize) -> bool {
        let len = len as u64;
        if at.checked_add(len).is_none_or(|end| end > self.region.len() as u64) {
            return false;
        }
        let age = self.age();
        self.words(at, len, |word, mask| {
            let known = word.load(Ordering::Relaxed);
            known >> 32 == age && known & mask == mask
        })
    }

    /// Never 0.
    #[inline]
    fn age(&self) -> u64 {
        let elapsed = ring::now().saturating_duration_since(self.start).as_secs();
        (elapsed / TRUSTED_S + 1) & u64::from(u32::MAX)
    }

    /// Calls `each` with the words of a range and the bits of its pages there, until one says false. Whether none did.
    #[inline]
    fn words(&self, at: u64, len: u64, each: impl Fn(&AtomicU64, u64) -> bool) -> bool {
        let (mut page, end) = (at / PAGE, at.saturating_add(len).div_ceil(PAGE));
        while page < end {
            let stop = end.min((page / WORD + 1) * WORD);
            let mask = ((1u64 << (stop - page)) - 1) << (page % WORD);
            let Some(word) = self.seen.get((page / WORD) as usize) else { return false };
            if !each(word, mask) {
                return false;
            }
            page = stop;
        }
        true
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("region", &self.region).finish_non_exhaustive()
    }
}
