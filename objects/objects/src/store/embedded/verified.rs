//! A file whose pages do not change unnoticed: each page that was read or written once is the same
//! when it is read again.
//!
//! redb verifies all pages when it is opened, and none of them later. In the middle of a commit it
//! panics on a page that it does not expect, and again while it unwinds, which ends the process. So
//! no page gets to it that has changed since it was verified. One wrong bit is mended, with a line
//! in the log; other damage is an error.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use redb::StorageBackend;
use twox_hash::XxHash3_64;

use super::pages::mend;

/// Bytes of a page of redb's.
pub(super) const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct Verified {
    file: Box<dyn StorageBackend>,
    /// The file's name, for the log.
    name: String,
    /// Of each page its hash: 2 bytes for each KiB of the file. 0 if it is not known.
    sums: RwLock<Vec<u64>>,
    /// Damage was reported.
    told: AtomicBool,
}

impl Verified {
    pub fn new(file: Box<dyn StorageBackend>, name: String) -> Self {
        Self { file, name, sums: RwLock::default(), told: AtomicBool::new(false) }
    }

    /// Each whole page in a range, the number that it has, and its bytes. The first page is none:
    /// it is redb's header, which is written in parts and read only while redb is opened.
    fn whole(offset: u64, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let skipped = (offset.next_multiple_of(PAGE as u64).max(PAGE as u64) - offset) as usize; // of two pages
        let first = (offset + skipped as u64) / PAGE as u64;
        let count = len.saturating_sub(skipped) / PAGE;
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        (0..count).map(move |n| (first.saturating_add(n), skipped + n * PAGE..skipped + (n + 1) * PAGE))
    }

    /// Remembers the pages of a range.
    fn remember(&self, offset: u64, data: &[u8]) {
        let mut sums = self.sums.write().unwrap_or_else(PoisonError::into_inner);
        for (page, bytes) in Self::whole(offset, data.len()) {
            if page >= sums.len() {
                sums.resize(page + 1, 0);
            }
            sums[page] = XxHash3_64::oneshot(&data[bytes]);
        }
    }

    #[cold]
    fn mend(&self, page: usize, sum: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mended = mend(bytes, |bytes, _| XxHash3_64::oneshot(bytes) == sum);
        if !self.told.swap(true, Ordering::Relaxed) {
            let (file, at) = (&self.name, page * PAGE);
            let what = match mended {
                true => {
                    "a bit of the objects' metadata turned on its medium, and is turned back: watch the medium"
                }
                false => {
                    "the objects' metadata changed on its medium: it is made anew of what can be read, \
                     and then `stag osd check --repair` says what is lost"
                }
            };
            tracing::error!(file, at, "{what}");
        }
        match mended {
            // If that fails, the next reader mends it again. No page changes while it may be read.
            true => {
                let _ = self.file.write((page * PAGE) as u64, bytes);
                Ok(())
            }
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not what was written")),
        }
    }
}

impl StorageBackend for Verified {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)?;
        let mut new = false;
        for (page, bytes) in Self::whole(offset, out.len()) {
            let known = {
                let sums = self.sums.read().unwrap_or_else(PoisonError::into_inner);
                sums.get(page).copied().unwrap_or(0)
            };
            match known {
                0 => new = true,
                sum if sum == XxHash3_64::oneshot(&out[bytes.clone()]) => {}
                sum => self.mend(page, sum, &mut out[bytes])?,
            }
        }
        if new {
            self.remember(offset, out);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        let pages = usize::try_from(len / PAGE as u64).unwrap_or(usize::MAX);
        self.sums.write().unwrap_or_else(PoisonError::into_inner).truncate(pages);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // After a failed write, the contents of the pages are unknown.
        let first = usize::try_from(offset / PAGE as u64).unwrap_or(usize::MAX);
        let last = usize::try_from((offset + data.len() as u64).div_ceil(PAGE as u64)).unwrap_or(usize::MAX);
        {
            let mut sums = self.sums.write().unwrap_or_else(PoisonError::into_inner);
            let end = last.min(sums.len());
            sums[first.min(end)..end].fill(0);
        }
        self.file.write(offset, data)?;
        self.remember(offset, data);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}
