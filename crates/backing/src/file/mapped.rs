//! A file's pages as memory: reads that copy nothing, and on a file system in memory writes that need no system call.
//!
//! Touching a page that is not in memory makes the whole core wait, so only pages are used that were seen there a short
//! while ago: a read that finds them elsewhere, or for the first time, goes the ordinary way. If that finds the page cache to
//! have them, the kernel is asked about all pages around them at once, so that a file which is all there is known after one
//! ordinary read for each 2 MiB of it; if it had to wait for the medium, only its own pages are noted. Owns that knowledge,
//! which may be stale.
//!
//! A file that was cut short, or a medium that fails to bring a page back, must not be found out by a send, which can only
//! end the connection. Pages whose bytes are copied are touched before they are handed out, which finds out, and costs
//! nothing that the copy would not. Pages that are lent are touched by nobody, and that is much of what lending saves: there
//! the file's length is looked at once a millisecond, and only a page that is lost within that time costs the connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use ring::{Chain, File, Region};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that one word of knowledge is about.
const WORD: u64 = 32;
/// Pages that the kernel is asked about at once: 2 MiB, which takes it 2 µs if this process has used them all before and 40 µs if none.
const WINDOW: u64 = 512;
/// Of the time, one part in so many may be spent on asking.
const ASKING: u64 = 8;
/// For how long a page that was seen in memory is taken to be there still, seconds: a fraction of what the kernel leaves an
/// unused page under pressure, and long enough that asking again costs a two-thousandth of a core for each GiB.
const TRUSTED_S: u64 = 4;

/// How often the length of a file whose pages are lent is looked at, milliseconds.
const LOOKED_AT_MS: u64 = 1;

/// How a range got to be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A read found it there, or a write made it be there, without waiting.
    AtOnce {
        /// Whether it was written, which leaves no hole.
        written: bool,
    },
    /// It was fetched from the medium, or written by a call that may have waited.
    Waited {
        /// Whether it was written, which leaves no hole.
        written: bool,
    },
}

/// A file's mapping, and which of its pages were seen in memory of late.
pub(super) struct Mapped {
    region: Arc<Region>,
    /// The age in which the bits were set (high half), and a bit for each page (low half).
    seen: Box<[AtomicU64]>,
    /// For each window, in which second it was last asked about, counted from 1; 0 is never.
    asked: Box<[AtomicU32]>,
    /// When the kernel may be asked again, nanoseconds since the start.
    next_asking_ns: AtomicU64,
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
        // Age 0 is nobody's.
        let seen = zeros(size.div_ceil(PAGE * WORD))?;
        let asked = zeros(size.div_ceil(PAGE * WINDOW))?;
        let region = Region::of_file(file, len, writable, lent)?;
        Ok(Self {
            region,
            seen,
            asked,
            next_asking_ns: AtomicU64::new(0),
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

    /// A range was just read or written: notes that it is in memory, and what is in memory around it. A hole in memory is
    /// not: to touch it would fill it.
    pub(super) fn saw(&self, at: u64, len: usize, how: Seen) {
        let (Ok(start), len) = (usize::try_from(at), len as u64) else { return };
        if at.checked_add(len).is_none_or(|end| end > self.region.len() as u64) {
            return;
        }
        let (at_once, written) = match how {
            Seen::AtOnce { written } => (true, written),
            Seen::Waited { written } => (false, written),
        };
        if at_once && self.ask_around(at, len) {
            return;
        }
        if self.in_memory && !written && !self.region.is_resident(start, len as usize) {
            return;
        }
        self.words(at, len, |word, mask| {
            self.note(word, mask);
            true
        });
    }

    /// Notes pages of a word.
    fn note(&self, word: &AtomicU64, mask: u64) {
        let age = self.age();
        let known = word.load(Ordering::Relaxed);
        if known >> 32 != age {
            // What another core notes of the same word meanwhile may be lost: then it is noted again.
            word.store(age << 32 | mask, Ordering::Relaxed);
        } else if known & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Asks the kernel which pages of a range's window are in memory, and notes them. False if that was not to be: a window is
    /// asked about once a second, and all of them together for a part of the time only.
    #[cold]
    fn ask_around(&self, at: u64, len: u64) -> bool {
        let window = at / (PAGE * WINDOW);
        let first = window * PAGE * WINDOW;
        if at + len > first + PAGE * WINDOW {
            return false;
        }
        let begin = self.start.elapsed();
        let begin_ns = u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX);
        let second = u32::try_from(begin.as_secs() + 1).unwrap_or(u32::MAX);
        let Some(asked) = self.asked.get(window as usize) else { return false };
        if begin_ns < self.next_asking_ns.load(Ordering::Relaxed)
            || asked.swap(second, Ordering::Relaxed) == second
        {
            return false;
        }
        let mut pages = [0u8; WINDOW as usize];
        let there = (self.region.len() as u64 - first).div_ceil(PAGE).min(WINDOW);
        let pages = &mut pages[..there as usize];
        let told = self.region.resident_pages(first as usize, pages).is_ok();
        if told {
            let words = self.seen.iter().skip((first / (PAGE * WORD)) as usize);
            for (word, pages) in words.zip(pages.chunks(WORD as usize)) {
                let mask = pages.iter().rev().fold(0, |mask, page| mask << 1 | u64::from(*page));
                if mask != 0 {
                    self.note(word, mask);
                }
            }
        }
        let end_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let next = end_ns.saturating_add((end_ns - begin_ns).saturating_mul(ASKING - 1));
        self.next_asking_ns.store(next, Ordering::Relaxed);
        told
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

/// So many numbers that are 0.
fn zeros<T: Default>(count: u64) -> io::Result<Box<[T]>> {
    let count = usize::try_from(count).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(count).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    numbers.resize_with(count, T::default);
    Ok(numbers.into_boxed_slice())
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("region", &self.region).finish_non_exhaustive()
    }
}
