//! [`Content`]: one file as programs see it, its part on the medium, and the versions between the
//! two.
//!
//! Programs see the page cache, which is a file in the machine's memory: it can be mapped, and has
//! holes. Each write leaves a version of its pages, any of which may have reached the medium until
//! a flush makes the last one durable. A page whose writing failed is clean, as on Linux: no later
//! flush writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::super::chance::Chance;
use super::Disturbed;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Bytes that the medium never tears.
pub(super) const SECTOR: u64 = 512;
/// Versions kept of a page. The oldest reaches the medium when there are more.
const MOST_VERSIONS: usize = 8;
/// All sectors of a page.
const WHOLE: u8 = u8::MAX;

type Page = Box<[u8; PAGE as usize]>;

/// A page after a write.
struct Version {
    /// The sectors that the write has put there, one bit each.
    sectors: u8,
    /// `None`: a hole.
    page: Option<Page>,
}

/// One file.
pub(super) struct Content {
    seen: File,
    /// Device and inode of `seen`.
    pub(super) number: (u64, u64),
    /// State after a power cut: pages without holes, and the length.
    durable: BTreeMap<u64, Page>,
    durable_len: u64,
    /// The versions since the last flush, oldest first.
    unsynced: BTreeMap<u64, Vec<Version>>,
    /// Clean pages that are not on the medium, since writing them has failed.
    lost: BTreeSet<u64>,
    /// Pages that are not holes.
    allocated: BTreeSet<u64>,
    /// Failed writebacks so far, and the number of them that a program has been told of.
    pub(super) failures: u64,
    pub(super) told: u64,
    pub(super) disturbed: Disturbed,
}

/// A new file in the machine's memory.
fn memory(len: u64) -> io::Result<File> {
    // SAFETY: the name is a C string; the descriptor returned is ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(c"sim".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::fchmod(fd, 0o600);
        File::from_raw_fd(fd)
    };
    file.set_len(len)?;
    Ok(file)
}

/// The pages that a range touches.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

/// The sectors of a page that a range touches.
fn sectors(page: u64, range: &Range<u64>) -> u8 {
    let touched = |sector: &u64| {
        let from = page * PAGE + sector * SECTOR;
        from < range.end && range.start < from + SECTOR
    };
    (0..PAGE / SECTOR).filter(touched).fold(0, |mask, sector| mask | 1 << sector)
}

impl Content {
    pub(super) fn new() -> io::Result<Self> {
        let seen = memory(0)?;
        let about = seen.metadata()?;
        Ok(Self {
            number: (about.dev(), about.ino()),
            seen,
            durable: BTreeMap::new(),
            durable_len: 0,
            unsynced: BTreeMap::new(),
            lost: BTreeSet::new(),
            allocated: BTreeSet::new(),
            failures: 0,
            told: 0,
            disturbed: Disturbed::default(),
        })
    }

    /// The path by which the machine opens what programs see.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.seen.as_raw_fd())
    }

    pub(super) fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.seen.read_at(bytes, at)
    }

    fn page(&self, page: u64) -> io::Result<Page> {
        let mut bytes = Box::new([0; PAGE as usize]);
        self.seen.read_at(&mut bytes[..], page * PAGE)?;
        Ok(bytes)
    }

    /// Bytes of a write that find room, if no more than `room` more may be allocated.
    pub(super) fn fits(&self, range: &Range<u64>, room: u64) -> u64 {
        let mut left = room / PAGE;
        for page in pages(range) {
            if self.allocated.contains(&page) {
                continue;
            }
            if left == 0 {
                return (page * PAGE).saturating_sub(range.start);
            }
            left -= 1;
        }
        range.end - range.start
    }

    /// Writes through the page cache, which is dirty in whole pages, or past it. Returns the bytes
    /// that were allocated.
    pub(super) fn write(&mut self, bytes: &[u8], at: u64, direct: bool) -> io::Result<u64> {
        self.seen.write_all_at(bytes, at)?;
        let range = at..at + bytes.len() as u64;
        let mut allocated = 0;
        for page in pages(&range) {
            let sectors = if direct { sectors(page, &range) } else { WHOLE };
            let version = Version { sectors, page: Some(self.page(page)?) };
            allocated += u64::from(self.allocated.insert(page)) * PAGE;
            self.keep(page, version);
        }
        Ok(allocated)
    }

    fn keep(&mut self, page: u64, version: Version) {
        if version.sectors == WHOLE {
            self.lost.remove(&page);
        }
        let versions = self.unsynced.entry(page).or_default();
        versions.push(version);
        if versions.len() > MOST_VERSIONS {
            let oldest = versions.remove(0);
            put(&mut self.durable, page, &oldest, oldest.sectors);
        }
    }

    /// Makes a hole: whole pages are freed, and the rest is zeros. Returns the number of freed
    /// bytes.
    pub(super) fn punch(&mut self, range: Range<u64>) -> io::Result<u64> {
        let (at, len) = (range.start as i64, (range.end - range.start) as i64);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes numbers only.
        if unsafe { libc::fallocate(self.seen.as_raw_fd(), mode, at, len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut freed = 0;
        for page in pages(&range) {
            let whole = range.start <= page * PAGE && (page + 1) * PAGE <= range.end;
            if whole {
                freed += u64::from(self.allocated.remove(&page)) * PAGE;
                self.keep(page, Version { sectors: WHOLE, page: None });
            } else if self.allocated.contains(&page) {
                let version = Version { sectors: WHOLE, page: Some(self.page(page)?) };
                self.keep(page, version);
            }
        }
        Ok(freed)
    }

    /// Makes the pages of a range durable. `None` stands for all pages and the length.
    pub(super) fn flush(&mut self, range: Option<&Range<u64>>) {
        let taken = self.take(range);
        for (page, versions) in taken {
            versions.iter().for_each(|version| put(&mut self.durable, page, version, version.sectors));
        }
        self.durable_len = self.len();
        let end = self.durable_len.div_ceil(PAGE);
        self.durable.retain(|page, _| *page < end);
    }

    /// Makes what a direct write has put there durable, and nothing else.
    pub(super) fn flush_sectors(&mut self, range: &Range<u64>) {
        for page in pages(range) {
            let mask = sectors(page, range);
            let Some(versions) = self.unsynced.get_mut(&page) else { continue };
            for version in versions.iter_mut() {
                put(&mut self.durable, page, version, version.sectors & mask);
                version.sectors &= !mask;
            }
            versions.retain(|version| version.sectors != 0);
            if versions.is_empty() {
                self.unsynced.remove(&page);
            }
        }
        self.durable_len = self.durable_len.max(self.len());
    }

    /// Writing the pages of a range back fails: they are clean now, and not on the medium.
    pub(super) fn fail(&mut self, range: Option<&Range<u64>>) {
        let taken = self.take(range);
        self.lost.extend(taken.into_keys());
        self.failures += 1;
    }

    fn take(&mut self, range: Option<&Range<u64>>) -> BTreeMap<u64, Vec<Version>> {
        let Some(range) = range else { return std::mem::take(&mut self.unsynced) };
        let pages = pages(range);
        let mut from = self.unsynced.split_off(&pages.start);
        let mut behind = from.split_off(&pages.end);
        self.unsynced.append(&mut behind);
        from
    }

    pub(super) fn len(&self) -> u64 {
        self.seen.metadata().map_or(0, |about| about.len())
    }

    /// Forgets clean pages that writing has failed for: reads find what is on the medium. Returns
    /// whether there were any.
    pub(super) fn evict(&mut self) -> io::Result<bool> {
        let dirty = |page: &u64| self.unsynced.contains_key(page);
        let (kept, gone): (_, BTreeSet<u64>) = std::mem::take(&mut self.lost).into_iter().partition(dirty);
        self.lost = kept;
        let (len, any) = (self.len(), !gone.is_empty());
        for page in gone {
            let zeros = [0; PAGE as usize];
            let bytes = self.durable.get(&page).map_or(&zeros, |page| page);
            let there = (len.saturating_sub(page * PAGE)).min(PAGE) as usize;
            self.seen.write_all_at(&bytes[..there], page * PAGE)?;
        }
        Ok(any)
    }

    /// Cuts the power: of each version, all, some sectors or nothing has reached the medium.
    pub(super) fn cut(&mut self, chance: &mut Chance) {
        let len = self.len();
        for (page, versions) in std::mem::take(&mut self.unsynced) {
            for version in versions {
                let reached = match chance.within(0..3) {
                    0 => 0,
                    1 => version.sectors,
                    _ => version.sectors & chance.bits() as u8,
                };
                put(&mut self.durable, page, &version, reached);
            }
        }
        if chance.happens(500_000) {
            self.durable_len = len;
        }
        self.lost.clear();
        // A loss by a power cut is not reported as a failure.
        self.told = self.failures;
    }

    /// The machine starts again: programs see what is on the medium.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.seen = memory(self.durable_len)?;
        let about = self.seen.metadata()?;
        self.number = (about.dev(), about.ino());
        self.allocated = self.durable.keys().copied().collect();
        let bytes = self.medium();
        for page in self.durable.keys() {
            let at = page * PAGE;
            let end = (at + PAGE).min(self.durable_len);
            if at < end {
                self.seen.write_all_at(&bytes[at as usize..end as usize], at)?;
            }
        }
        Ok(())
    }

    /// The bytes that are on the medium.
    pub(super) fn medium(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.durable_len.next_multiple_of(PAGE) as usize];
        for (page, content) in &self.durable {
            let at = (page * PAGE) as usize;
            if let Some(place) = bytes.get_mut(at..at + PAGE as usize) {
                place.copy_from_slice(&content[..]);
            }
        }
        bytes.truncate(self.durable_len as usize);
        bytes
    }
}

/// Puts some sectors of a version on the medium.
fn put(medium: &mut BTreeMap<u64, Page>, page: u64, version: &Version, sectors: u8) {
    match &version.page {
        None if sectors == WHOLE => drop(medium.remove(&page)),
        from => {
            for sector in (0..PAGE / SECTOR).filter(|sector| sectors & 1 << sector != 0) {
                let range = (sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize;
                let to = medium.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
                match from {
                    Some(from) => to[range.clone()].copy_from_slice(&from[range]),
                    None => to[range].fill(0),
                }
            }
        }
    }
}
