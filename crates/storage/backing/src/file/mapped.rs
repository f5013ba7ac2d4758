//! A file's pages as memory: reads without a copy, and on a file system in memory writes without a
//! system call.
//!
//! Touching a page that is not in memory blocks the whole core. So only pages seen in memory
//! recently are used; other reads use the ordinary path. If such a read finds its data in the page
//! cache, the kernel is asked about all pages around it. So a fully cached file is known after one
//! ordinary read per 2 MiB. If the read waited for the medium, only its own pages are recorded.
//! Owns these records, which may be stale.
//!
//! A truncated file, or a page that the medium fails to return, must not surface in a send: a
//! failed send ends the connection. Pages to be copied are touched before they are returned, at no
//! extra cost. Pages sent by reference are not touched, since that is much of the saving. Instead
//! the file's length is checked once per millisecond, and only a page lost within that time costs
//! the connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use runtime::{Buf, Chain, File, Region};

/// Bytes per page.
const PAGE: u64 = 4096;
/// Pages per word of `seen`.
const WORD: u64 = 32;
/// Pages per query to the kernel: 2 MiB. A query takes 2 µs if this process has used all of them
/// before, and 40 µs if none.
const WINDOW: u64 = 512;
/// Queries may take one part in this many of the time.
const ASKING: u64 = 8;
/// How long a page seen in memory counts as still there, seconds. It is a fraction of the time that
/// the kernel keeps an unused page under pressure. It is also long enough that queries cost only a
/// two-thousandth of a core per GiB.
const TRUSTED_S: u64 = 4;

/// Interval between checks of the length of a file whose pages are sent by reference, milliseconds.
const LOOKED_AT_MS: u64 = 1;

/// Ways in which the pages of a range get into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A read found them there, or a write put them there, without waiting.
    AtOnce {
        /// Whether the range was written, which leaves no hole.
        written: bool,
    },
    /// A read fetched them from the medium, or a call that may have waited wrote them.
    Waited {
        /// Whether the range was written, which leaves no hole.
        written: bool,
    },
}

/// A file's mapping, and the pages recently seen in memory.
pub(super) struct Mapped {
    region: Arc<Region>,
    /// Per word: the age in which its bits were set (high half), and one bit per page (low half).
    seen: Box<[AtomicU64]>,
    /// Per window: the second of its last query, counted from 1; 0 is never.
    asked: Box<[AtomicU32]>,
    /// Earliest time of the next query, nanoseconds since the start.
    next_asking_ns: AtomicU64,
    start: Instant,
    /// On a file system in memory. It allocates every touched page, so that only the kernel can
    /// tell a page from a hole.
    in_memory: bool,
    lent: bool,
    /// Time of the last check of the file's length, milliseconds since the start.
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
        // No record has age 0.
        let seen = zeros(size.div_ceil(PAGE * WORD))?;
        let asked = zeros(size.div_ceil(PAGE * WINDOW))?;
        let region = Region::of_file(file, len, writable, lent)?;
        Ok(Self {
            region,
            seen,
            asked,
            next_asking_ns: AtomicU64::new(0),
            start: runtime::clock(),
            in_memory,
            lent,
            looked_at_ms: AtomicU64::new(0),
        })
    }

    /// The bytes of a range of `file`, if all of it is known to be in memory.
    #[inline]
    pub(super) fn slice(&self, file: &File, at: u64, len: usize) -> Option<Chain> {
        if !self.is_trusted(at, len) {
            return None;
        }
        let start = usize::try_from(at).ok()?;
        let there = if self.lent { self.is_whole(file) } else { self.region.touch(start, len).is_ok() };
        if !there {
            // The ordinary read reports the error.
            self.forget(at, len as u64);
            return None;
        }
        self.region.slice(start, len).ok().map(Chain::from)
    }

    /// A copy of a range, if all of it is known to be in memory and it fits one buffer.
    #[inline]
    pub(super) fn copy(&self, file: &File, at: u64, len: usize) -> Option<Buf> {
        if !self.is_trusted(at, len) {
            return None;
        }
        let start = usize::try_from(at).ok()?;
        let copy = if self.is_whole(file) { self.region.copy(start, len) } else { None };
        if copy.is_none() {
            // The ordinary read reports the error.
            self.forget(at, len as u64);
        }
        copy
    }

    /// Whether the file had at least its mapped length at the last check.
    #[inline]
    fn is_whole(&self, file: &File) -> bool {
        let elapsed = runtime::now().saturating_duration_since(self.start).as_millis() as u64;
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

    /// Stores `data`, if all of the range is known to be in memory and the file system keeps it
    /// there. False if the caller must write it in another way.
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

    /// Records that a range just read or written is in memory, with the pages around it. Not a hole
    /// on a file system in memory: touching it would fill it.
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

    /// Sets bits of a word.
    fn note(&self, word: &AtomicU64, mask: u64) {
        let age = self.age();
        let known = word.load(Ordering::Relaxed);
        if known >> 32 != age {
            // Another core's concurrent update of the word may be lost; a later read repeats it.
            word.store(age << 32 | mask, Ordering::Relaxed);
        } else if known & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Asks the kernel which pages of a range's window are in memory, and records them. False if no
    /// query was made: at most one per window and second, and only a share of the time for all of
    /// them.
    #[cold]
    fn ask_around(&self, at: u64, len: u64) -> bool {
        let window = at / (PAGE * WINDOW);
        let first = window * PAGE * WINDOW;
        if at + len > first + PAGE * WINDOW {
            return false;
        }
        let begin = runtime::clock().saturating_duration_since(self.start);
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
        let end = runtime::clock().saturating_duration_since(self.start);
        let end_ns = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
        let next = end_ns.saturating_add((end_ns - begin_ns).saturating_mul(ASKING - 1));
        self.next_asking_ns.store(next, Ordering::Relaxed);
        told
    }

    /// Clears the records of a range that is about to become a hole.
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

    /// The current age, never 0.
    #[inline]
    fn age(&self) -> u64 {
        let elapsed = runtime::now().saturating_duration_since(self.start).as_secs();
        (elapsed / TRUSTED_S + 1) & u64::from(u32::MAX)
    }

    /// Calls `each` with the words of a range and the bits of its pages there, until one returns
    /// false. Returns whether all returned true.
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

/// A list of `count` zeros.
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
