//! [`Locator`]: ids of files. Owns the two forms of ids, and the test whether a directory is below
//! the folder.
//!
//! | contents of an id | found by |
//! |---|---|
//! | kind of handle (1 byte, not 0), handle | open_by_handle_at(2) |
//! | 0, inode number, time of birth | the table, and getdents(2) in the directory that it names |
//!
//! A file has one id, whatever its names are. So ids do not hold connectable handles
//! (AT_HANDLE_CONNECTABLE, Linux 6.13), by which the kernel could refuse files outside: they name a
//! directory too, and change with it. Seals keep strangers out instead.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use runtime::FileHandle;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tree::{NodeId, TreeError};

use crate::failed;
use crate::ids::Ids;
use crate::seal::{self, Seal};
use crate::stat::{Stat, nanoseconds};
use crate::table::{Key, Table};

/// Most directories between a file and the root.
pub(crate) const DEEPEST: usize = 2048;

/// Makes and resolves ids of files.
pub(crate) struct Locator {
    pub(crate) seal: Seal,
    pub(crate) by: By,
    /// Device and inode of the root.
    pub(crate) root: ((u32, u32), u64),
}

/// Identification of files.
pub(crate) enum By {
    /// Handles of the file system. Of one on this machine, ids that were made already.
    Handles(Option<Box<Ids>>),
    /// Inode and birth.
    Table(Mutex<Table>),
}

impl Locator {
    /// The id of `name` in a directory, with the result `stat` of statx(2) for it; an empty name is
    /// the directory's.
    pub(crate) fn id(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
    ) -> Result<NodeId, TreeError> {
        let By::Handles(ids) = &self.by else { return self.id_of_key(key_of(stat)) };
        let ids = ids.as_deref().filter(|_| stat.device() == self.root.0);
        let known = ids.zip(Ids::file(stat));
        if let Some(id) = known.and_then(|(ids, file)| ids.get(file)) {
            return Ok(id);
        }
        let handle = FileHandle::of(directory, name)?;
        let inode = inode_of(&handle);
        // Another file may have the name since its attributes were read.
        if !name.is_empty() && inode.is_some_and(|inode| inode != stat.inode()) {
            return Err(TreeError::NoEntry);
        }
        let mut contents = [0; seal::MOST];
        let bytes = handle.bytes();
        let kind = u8::try_from(handle.kind()).ok().filter(|kind| *kind != 0);
        contents[0] = kind.ok_or(TreeError::Unsupported)?;
        contents.get_mut(1..=bytes.len()).ok_or(TreeError::Unsupported)?.copy_from_slice(bytes);
        let id = self.seal.id(&contents[..1 + bytes.len()])?;
        // Where a handle does not tell its inode, it may be that other file's.
        if let Some((ids, file)) = known.filter(|_| name.is_empty() || inode.is_some()) {
            ids.keep(file, id);
        }
        Ok(id)
    }

    /// The id of a file that is known by this key.
    pub(crate) fn id_of_key(&self, key: Key) -> Result<NodeId, TreeError> {
        let mut contents = [0; 17];
        contents[1..].copy_from_slice(&key.bytes());
        self.seal.id(&contents)
    }

    /// Records the directory and name at which a file was seen.
    pub(crate) fn saw(&self, stat: &Stat, directory: &NodeId, name: &[u8]) {
        let By::Table(table) = &self.by else { return };
        let Ok(Contents::Key(directory)) = self.contents(directory) else { return };
        if let Err(error) = lock(table).put(key_of(stat), directory, name) {
            tracing::debug!(%error, "the table of a folder cannot be written");
        }
    }

    /// Records that a file is gone.
    pub(crate) fn lost(&self, id: &NodeId) {
        if let (By::Table(table), Ok(Contents::Key(key))) = (&self.by, self.contents(id))
            && let Err(error) = lock(table).forget(key)
        {
            tracing::debug!(%error, "the table of a folder cannot be written");
        }
    }

    pub(crate) fn contents(&self, id: &NodeId) -> Result<Contents, TreeError> {
        match (self.seal.contents(id)?.split_first().ok_or(TreeError::Stale)?, &self.by) {
            ((0, key), By::Table(_)) => {
                Ok(Contents::Key(Key::from_bytes(key.try_into().map_err(|_| TreeError::Stale)?)))
            }
            ((kind, bytes), By::Handles(_)) if *kind != 0 => {
                FileHandle::new(i32::from(*kind), bytes).map(Contents::Handle).ok_or(TreeError::Stale)
            }
            _ => Err(TreeError::Stale),
        }
    }

    /// Whether a directory is below the folder.
    pub(crate) fn is_beneath(&self, directory: BorrowedFd<'_>) -> Result<bool, TreeError> {
        let mut above: Option<OwnedFd> = None;
        for _ in 0..DEEPEST {
            let here = above.as_ref().map_or(directory, AsFd::as_fd);
            let stat = Stat::of(here)?;
            if (stat.device(), stat.inode()) == self.root {
                return Ok(true);
            }
            let next = match open_below(here, b"..", ResolveFlags::NO_XDEV) {
                Err(TreeError::CrossDevice) => return Ok(false),
                other => other?,
            };
            let up = Stat::of(next.as_fd())?;
            if (up.device(), up.inode()) == (stat.device(), stat.inode()) {
                return Ok(false);
            }
            above = Some(next);
        }
        Ok(false)
    }
}

/// Content of an id.
pub(crate) enum Contents {
    Handle(FileHandle),
    Key(Key),
}

/// The inode's number in a handle, for the kinds that are known (linux/exportfs.h).
fn inode_of(handle: &FileHandle) -> Option<u64> {
    let bytes = handle.bytes();
    match (handle.kind(), bytes.len()) {
        // FILEID_INO32_GEN: inode, generation.
        (1, 8) => Some(u64::from(u32::from_ne_bytes(*bytes.first_chunk()?))),
        // The same of tmpfs: generation, inode.
        (1, 12) => Some(u64::from_ne_bytes(*bytes.last_chunk()?)),
        // FILEID_INO64_GEN, and FILEID_BTRFS_WITHOUT_PARENT.
        (0x81 | 0x4d, _) => Some(u64::from_ne_bytes(*bytes.first_chunk()?)),
        _ => None,
    }
}

/// The key of a file in the table.
pub(crate) fn key_of(stat: &Stat) -> Key {
    Key { inode: stat.inode(), birth: stat.birth().map_or(0, nanoseconds) }
}

/// Opens a name in a directory as O_PATH. Neither a link nor a mount is followed.
pub(crate) fn open_below(
    directory: BorrowedFd<'_>,
    name: &[u8],
    more: ResolveFlags,
) -> Result<OwnedFd, TreeError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS | more;
    rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve).map_err(failed)
}

/// Locks the table, even if an earlier holder panicked.
pub(crate) fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
