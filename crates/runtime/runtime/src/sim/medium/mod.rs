//! The files of a world: names and contents on a modelled medium, which loses what was not synced.
//!
//! All paths of a world are here, and directories exist by themselves. Names are journalled, as on
//! ext4: a power cut keeps a part of the changes since the last sync of a directory, and no later
//! change without the earlier ones. An open file is a descriptor of a file in memory, so that
//! descriptors are duplicated, locked, mapped and closed as usual. An error of writing back is
//! reported once to each open file, as Linux does.

mod content;
mod faults;
pub(crate) mod operations;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};

use super::chance::Chance;
use crate::op::sqe::Sqe;
use content::Content;
pub use faults::{
    cut_power, cut_power_after, drop_caches, fail_flush, fail_reads, fail_writes, is_powered, limit_space,
    on_medium, power_on, set_delay,
};

/// Faults of one file's operations.
#[derive(Default)]
struct Disturbed {
    /// Number of reads, and of writes, that will fail.
    reads: u64,
    writes: u64,
    /// Writing back fails once: in the next flush, or before it.
    flush: bool,
    /// Bytes that may still be allocated.
    room: Option<u64>,
}

/// An open file.
struct Open {
    content: usize,
    writable: bool,
    /// O_DIRECT and O_DSYNC.
    direct: bool,
    durable: bool,
    /// Failures of writing back that it was told of.
    told: u64,
}

/// A change of names.
enum Change {
    Made(PathBuf, usize),
    Moved(PathBuf, PathBuf),
    Removed(PathBuf),
}

impl Change {
    fn is_in(&self, directory: &Path) -> bool {
        let of = |path: &Path| path.parent() == Some(directory);
        match self {
            Self::Made(path, _) | Self::Removed(path) => of(path),
            Self::Moved(from, to) => of(from) || of(to),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Made(path, content) => drop(names.insert(path.clone(), *content)),
            Self::Removed(path) => drop(names.remove(path)),
            Self::Moved(from, to) => {
                let moved = names.remove(from);
                names.extend(moved.map(|content| (to.clone(), content)));
            }
        }
    }
}

/// An operation of a ring that has not taken place yet.
struct Begun {
    core: usize,
    sqe: Sqe,
}

/// The files.
pub(super) struct Medium {
    chance: Chance,
    contents: Vec<Content>,
    /// By device and inode of the file in memory.
    by_number: BTreeMap<(u64, u64), usize>,
    names: BTreeMap<PathBuf, usize>,
    /// The names after a power cut, and the changes since the last durable state.
    durable_names: BTreeMap<PathBuf, usize>,
    changes: Vec<Change>,
    open: BTreeMap<RawFd, Open>,
    begun: BTreeMap<u64, Begun>,
    next: u64,
    powered: bool,
    /// Operations until the power goes.
    cut_after: Option<u64>,
    /// Duration of an operation, nanoseconds.
    delay: Range<u64>,
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Device and inode of a descriptor.
fn number_of(fd: RawFd) -> Option<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the structure is plain numbers, which the call writes and for which zeros are valid.
    let stat = unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }?;
    Some((stat.st_dev, stat.st_ino))
}

impl Medium {
    pub(super) fn new(chance: Chance) -> Self {
        Self {
            chance,
            contents: Vec::new(),
            by_number: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            open: BTreeMap::new(),
            begun: BTreeMap::new(),
            next: 0,
            powered: true,
            cut_after: None,
            delay: 5_000..500_000,
        }
    }

    /// Closes all files.
    pub(super) fn end(&mut self) {
        self.contents.clear();
        self.by_number.clear();
        self.open.clear();
    }

    /// Drops the operations of a core that has ended.
    pub(super) fn forget(&mut self, core: usize) {
        self.begun.retain(|_, begun| begun.core != core);
    }

    /// The file that a descriptor belongs to.
    pub(super) fn find(&self, fd: RawFd) -> Option<usize> {
        self.by_number.get(&number_of(fd)?).copied()
    }

    fn named(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| error(libc::ENOENT))
    }

    /// Counts an operation, which may be the one at which the power goes.
    fn operate(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.cut_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.cut_power();
            }
        }
        if self.powered { Ok(()) } else { Err(error(libc::EIO)) }
    }

    /// openat(2).
    pub(super) fn open(&mut self, path: &Path, flags: i32) -> io::Result<RawFd> {
        self.operate()?;
        let (create, new) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
        let content = match self.named(path) {
            Ok(_) if create && new => return Err(error(libc::EEXIST)),
            Ok(content) => content,
            Err(_) if create => self.create(path)?,
            Err(missing) => return Err(missing),
        };
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let there = self.contents[content].path();
        let file =
            File::options().read(true).write(writable).truncate(flags & libc::O_TRUNC != 0).open(there)?;
        let fd = file.into_raw_fd();
        let open = Open {
            content,
            writable,
            direct: flags & libc::O_DIRECT != 0,
            durable: flags & libc::O_DSYNC != 0,
            told: self.contents[content].told,
        };
        self.open.insert(fd, open);
        Ok(fd)
    }

    fn create(&mut self, path: &Path) -> io::Result<usize> {
        let content = Content::new()?;
        let id = self.contents.len();
        self.by_number.insert(content.number, id);
        self.contents.push(content);
        self.change(Change::Made(path.to_owned(), id));
        Ok(id)
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// rename(2).
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate()?;
        self.named(from)?;
        self.change(Change::Moved(from.to_owned(), to.to_owned()));
        Ok(())
    }

    /// unlink(2).
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.operate()?;
        self.named(path)?;
        self.change(Change::Removed(path.to_owned()));
        Ok(())
    }

    /// The path by which the machine finds a file.
    pub(super) fn path(&mut self, path: &Path) -> io::Result<PathBuf> {
        self.operate()?;
        Ok(self.contents[self.named(path)?].path().into())
    }

    /// fsync(2) of a directory: the journal is committed up to its last change.
    pub(super) fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
        self.operate()?;
        let last = self.changes.iter().rposition(|change| change.is_in(directory));
        self.commit(last.map_or(0, |last| last + 1));
        Ok(())
    }

    fn commit(&mut self, changes: usize) {
        for change in self.changes.drain(..changes) {
            change.apply(&mut self.durable_names);
        }
    }

    /// Whether a file has a name; `at`: this one.
    pub(super) fn is_named(&self, fd: RawFd, at: Option<&Path>) -> Option<bool> {
        let content = self.find(fd)?;
        Some(match at {
            Some(path) => self.names.get(path) == Some(&content),
            None => self.names.values().any(|named| *named == content),
        })
    }

    /// Bytes that can still be allocated for a file.
    pub(super) fn room(&self, path: &Path) -> io::Result<u64> {
        Ok(self.contents[self.named(path)?].disturbed.room.unwrap_or(1 << 40))
    }

    fn cut_power(&mut self) {
        self.cut_after = None;
        if !std::mem::replace(&mut self.powered, false) {
            return;
        }
        let kept = self.chance.within(0..self.changes.len() as u64 + 1) as usize;
        self.commit(kept);
        self.changes.clear();
        self.names.clone_from(&self.durable_names);
        for content in &mut self.contents {
            content.cut(&mut self.chance);
        }
    }

    fn power_on(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.powered, true) {
            return Ok(());
        }
        self.open.clear();
        for (id, content) in self.contents.iter_mut().enumerate() {
            content.restart()?;
            // The old number stays known: what a dead process has open is no file of the machine's.
            self.by_number.insert(content.number, id);
        }
        Ok(())
    }
}
