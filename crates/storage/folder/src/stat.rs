//! [`Stat`]: a file's result of statx(2), and the [`Attributes`] that follow. Owns the change
//! attribute: the ctime, and a count of changes that did not move it.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags, StatxTimestamp};
use rustix::path::Arg;
use tree::{Attributes, Device, Kind, NodeId, Time, TreeError};

use crate::failed;

/// Most files whose changes are counted; beyond that all counts are cleared.
const MOST_COUNTED: usize = 1 << 16;

/// Attributes by statx(2).
#[derive(Clone, Copy)]
pub(crate) struct Stat(Statx);

impl Stat {
    /// Attributes of an open file.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Result<Self, TreeError> {
        Self::read(file, c"", AtFlags::EMPTY_PATH)
    }

    /// Attributes of a name in a directory. A link is not followed.
    pub(crate) fn at(directory: BorrowedFd<'_>, name: impl Arg) -> Result<Self, TreeError> {
        Self::read(directory, name, AtFlags::empty())
    }

    fn read(directory: BorrowedFd<'_>, name: impl Arg, more: AtFlags) -> Result<Self, TreeError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | more;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rustix::fs::statx(directory, name, flags, wanted).map(Self).map_err(failed)
    }

    /// Type of the file.
    pub(crate) fn kind(&self) -> Kind {
        match FileType::from_raw_mode(u32::from(self.0.stx_mode)) {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::BlockDevice => Kind::Block,
            FileType::CharacterDevice => Kind::Character,
            FileType::Socket => Kind::Socket,
            FileType::Fifo => Kind::Fifo,
            _ => Kind::Regular,
        }
    }

    /// Whether it has no name any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.stx_nlink == 0
    }

    /// Whether another file system is mounted here.
    pub(crate) fn is_mount(&self) -> bool {
        self.0.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    }

    /// The device of the file system.
    pub(crate) fn device(&self) -> (u32, u32) {
        (self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// The inode's number.
    pub(crate) fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// Time of creation, if the file system keeps it.
    pub(crate) fn birth(&self) -> Option<Time> {
        let known = self.0.stx_mask & StatxFlags::BTIME.bits() != 0;
        known.then(|| time(self.0.stx_btime))
    }

    /// The time of its last change.
    pub(crate) fn ctime(&self) -> Time {
        time(self.0.stx_ctime)
    }

    /// The attributes, with a change attribute that follows from the ctime. `root` is the device of
    /// the tree's root.
    pub(crate) fn attributes(&self, root: (u32, u32)) -> Attributes {
        let stat = &self.0;
        let device = self.device();
        Attributes {
            kind: self.kind(),
            mode: u32::from(stat.stx_mode) & 0o7777,
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            used: stat.stx_blocks.saturating_mul(512),
            device: Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor },
            fsid: if device == root { 0 } else { u64::from(device.0) << 32 | u64::from(device.1) },
            fileid: stat.stx_ino,
            change: nanoseconds(self.ctime()),
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: self.ctime(),
            created: self.birth(),
        }
    }
}

fn time(time: StatxTimestamp) -> Time {
    Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
}

/// A time in nanoseconds since 1970, modulo 2⁶⁴.
pub(crate) fn nanoseconds(time: Time) -> u64 {
    (time.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.nanoseconds))
}

/// Counts the changes that a file system's clock was too coarse to show: kernels before 6.13 move
/// the ctime once a tick. Newer ones need no counts, and a check costs one load.
#[derive(Default)]
pub(crate) struct Changes {
    files: AtomicUsize,
    /// The ctime, and changes at that time.
    counted: Mutex<HashMap<NodeId, (Time, u64)>>,
}

impl Changes {
    /// Records a change by this server, which found `before` and left `after`.
    pub(crate) fn made(&self, id: &NodeId, before: Time, after: Time) {
        if before == after {
            self.count(id, after);
        }
    }

    #[cold]
    fn count(&self, id: &NodeId, at: Time) {
        let mut counted = self.lock();
        if counted.len() >= MOST_COUNTED {
            counted.clear();
        }
        let entry = counted.entry(*id).or_insert((at, 0));
        *entry = (at, if entry.0 == at { entry.1 + 1 } else { 1 });
        self.files.store(counted.len(), Ordering::Release);
    }

    /// Adds the counted changes to the change attribute of `file`.
    pub(crate) fn show(&self, id: &NodeId, file: &mut Attributes) {
        if self.files.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some((at, count)) = self.lock().get(id)
            && *at == file.ctime
        {
            file.change = file.change.wrapping_add(*count);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, (Time, u64)>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn changes_within_one_tick_of_the_clock_show() {
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::File::open(directory.path()).unwrap();
        let stat = Stat::of(file.as_fd()).unwrap();
        let id = NodeId::new(b"a").unwrap();
        let changes = Changes::default();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let mut file = stat.attributes(stat.device());
            changes.show(&id, &mut file);
            seen.push(file.change);
            changes.made(&id, stat.ctime(), stat.ctime());
        }
        assert!(seen[0] < seen[1] && seen[1] < seen[2], "{seen:?}");
        let mut other = stat.attributes(stat.device());
        changes.show(&NodeId::new(b"b").unwrap(), &mut other);
        assert_eq!(other.change, nanoseconds(other.ctime));
    }
}
