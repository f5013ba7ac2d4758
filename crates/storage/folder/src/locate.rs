//! [`Locator`]: how files are named, and found by their ids. Owns the two forms of ids, and that
//! nothing outside of the folder is opened.
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::FileHandle;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;
use tree::{Kind, NodeId, TreeError};

use crate::failed;
use crate::folder::Base;
use crate::node::Node;
use crate::seal::{self, Seal};
use crate::stat::{Stat, nanoseconds};
use crate::table::{Key, Place, Table};

/// Most directories between a file and the root.
const DEEPEST: usize = 2048;

/// How files are named.
pub(crate) struct Locator {
    pub(crate) seal: Seal,
    pub(crate) by: By,
    /// Device and inode of the root.
    pub(crate) root: ((u32, u32), u64),
}

/// What files are known by.
pub(crate) enum By {
    /// Handles of the file system.
    Handles,
    /// Inode and birth.
    Table(Mutex<Table>),
}

impl Locator {
    /// The id of `name` in a directory, of which `stat` is known; an empty name is the directory's.
    pub(crate) fn id(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
    ) -> Result<NodeId, TreeError> {
        if let By::Table(_) = self.by {
            return self.id_of_key(key_of(stat));
        }
        let handle = FileHandle::of(directory, name)?;
        // Another file may have the name since its attributes were read.
        if !name.is_empty() && inode_of(&handle).is_some_and(|inode| inode != stat.inode()) {
            return Err(TreeError::NoEntry);
        }
        let mut contents = [0; seal::MOST];
        let bytes = handle.bytes();
        let kind = u8::try_from(handle.kind()).ok().filter(|kind| *kind != 0);
        contents[0] = kind.ok_or(TreeError::Unsupported)?;
        contents.get_mut(1..=bytes.len()).ok_or(TreeError::Unsupported)?.copy_from_slice(bytes);
        self.seal.id(&contents[..1 + bytes.len()])
    }

    /// The id of a file that is known by this key.
    fn id_of_key(&self, key: Key) -> Result<NodeId, TreeError> {
        let mut contents = [0; 17];
        contents[1..].copy_from_slice(&key.bytes());
        self.seal.id(&contents)
    }

    /// Notes where a file was seen.
    pub(crate) fn saw(&self, stat: &Stat, directory: &NodeId, name: &[u8]) {
        let By::Table(table) = &self.by else { return };
        let Ok(Contents::Key(directory)) = self.contents(directory) else { return };
        if let Err(error) = lock(table).put(key_of(stat), directory, name) {
            tracing::debug!(%error, "the table of a folder cannot be written");
        }
    }

    /// Notes that a file is gone.
    pub(crate) fn lost(&self, id: &NodeId) {
        if let (By::Table(table), Ok(Contents::Key(key))) = (&self.by, self.contents(id))
            && let Err(error) = lock(table).forget(key)
        {
            tracing::debug!(%error, "the table of a folder cannot be written");
        }
    }

    fn contents(&self, id: &NodeId) -> Result<Contents, TreeError> {
        match (self.seal.contents(id)?.split_first().ok_or(TreeError::Stale)?, &self.by) {
            ((0, key), By::Table(_)) => {
                Ok(Contents::Key(Key::from_bytes(key.try_into().map_err(|_| TreeError::Stale)?)))
            }
            ((kind, bytes), By::Handles) if *kind != 0 => {
                FileHandle::new(i32::from(*kind), bytes).map(Contents::Handle).ok_or(TreeError::Stale)
            }
            _ => Err(TreeError::Stale),
        }
    }

    /// Whether a directory lies in the folder.
    fn is_beneath(&self, directory: BorrowedFd<'_>) -> Result<bool, TreeError> {
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

enum Contents {
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

fn key_of(stat: &Stat) -> Key {
    Key { inode: stat.inode(), birth: stat.birth().map_or(0, nanoseconds) }
}

/// Opens a name in a directory as O_PATH. Neither a link nor a mount is followed.
fn open_below(directory: BorrowedFd<'_>, name: &[u8], more: ResolveFlags) -> Result<OwnedFd, TreeError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS | more;
    rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve).map_err(failed)
}

/// The open file with this id. Blocks if it is not open yet.
pub(crate) fn find(base: &Base, id: &NodeId) -> Result<Arc<Node>, TreeError> {
    if let Some(node) = base.cached(id) {
        return Ok(node);
    }
    match base.locator.contents(id)? {
        Contents::Handle(handle) => {
            let file = handle.open(base.descriptors.root(), libc::O_PATH | libc::O_NOFOLLOW)?;
            let stat = Stat::of(file.as_fd())?;
            if stat.is_gone() || stat.kind() == Kind::Directory && !base.locator.is_beneath(file.as_fd())? {
                return Err(TreeError::Stale);
            }
            Ok(base.keep(Node::new(*id, stat.kind(), file)))
        }
        Contents::Key(key) => find_by_table(base, key),
    }
}

/// The file with this key: from the first directory above it that is open, down.
fn find_by_table(base: &Base, key: Key) -> Result<Arc<Node>, TreeError> {
    let By::Table(table) = &base.locator.by else { return Err(TreeError::Stale) };
    let (mut way, mut here) = (Vec::new(), key);
    let mut node = loop {
        let id = base.locator.id_of_key(here)?;
        if let Some(node) = base.cached(&id) {
            break node;
        }
        // A log that somebody has damaged may lead in circles.
        if way.len() == DEEPEST {
            return Err(TreeError::Stale);
        }
        let place = lock(table).get(here).ok_or(TreeError::Stale)?;
        let above = place.directory;
        way.push((here, id, place));
        here = above;
    };
    for (key, id, place) in way.into_iter().rev() {
        node = match child(base, &node, &place.name, false) {
            Ok((found, _)) if found.id == id => found,
            Err(error @ (TreeError::Io(_) | TreeError::Delay)) => return Err(error),
            _ => find_renamed(base, &node, key, &place)
                .filter(|found| found.id == id)
                .ok_or(TreeError::Stale)?,
        };
    }
    Ok(node)
}

/// Looks for a file that somebody else has renamed within its directory.
fn find_renamed(base: &Base, directory: &Node, key: Key, place: &Place) -> Option<Arc<Node>> {
    let open = directory.open_directory().ok()?;
    let mut room = Vec::with_capacity(64 << 10);
    let mut entries = RawDir::new(&open, room.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if entry.ino() == key.inode && name != place.name && name != b"." && name != b".." {
            return child(base, directory, name, false).ok().map(|(node, _)| node);
        }
    }
    None
}

/// The file of this name in a directory. With `cached`, `Delay` if the system would have to read.
pub(crate) fn child(
    base: &Base,
    directory: &Node,
    name: &[u8],
    cached: bool,
) -> Result<(Arc<Node>, Stat), TreeError> {
    let more = if cached { ResolveFlags::CACHED } else { ResolveFlags::empty() };
    let file = match open_below(directory.path(), name, ResolveFlags::BENEATH | more) {
        // Something is mounted there.
        Err(TreeError::CrossDevice) => return Err(TreeError::Access),
        other => other?,
    };
    adopt(base, file, Some((&directory.id, name)))
}

/// The file that a descriptor was opened for; `place` is where.
pub(crate) fn adopt(
    base: &Base,
    file: OwnedFd,
    place: Option<(&NodeId, &[u8])>,
) -> Result<(Arc<Node>, Stat), TreeError> {
    let stat = Stat::of(file.as_fd())?;
    if matches!(base.locator.by, By::Table(_)) && stat.device() != base.locator.root.0 {
        // A subvolume: its inode numbers are its own.
        return Err(TreeError::Access);
    }
    let id = base.locator.id(file.as_fd(), c"", &stat)?;
    if let Some((directory, name)) = place {
        base.locator.saw(&stat, directory, name);
    }
    if let Some(node) = base.cached(&id) {
        return Ok((node, stat));
    }
    Ok((base.keep(Node::new(id, stat.kind(), file)), stat))
}

/// The directory above, which for the root is itself.
pub(crate) fn parent(base: &Base, directory: &Node) -> Result<(Arc<Node>, Stat), TreeError> {
    if directory.id == base.root.id {
        return Ok((Arc::clone(&base.root), base.root.stat()?));
    }
    let file = match open_below(directory.path(), b"..", ResolveFlags::empty()) {
        Err(TreeError::CrossDevice) => return Err(TreeError::Stale),
        other => other?,
    };
    // Somebody may have moved it out of the folder.
    if !base.locator.is_beneath(file.as_fd())? {
        return Err(TreeError::Stale);
    }
    adopt(base, file, None)
}

/// The inode number of the directory above.
pub(crate) fn parent_number(base: &Base, directory: &Node) -> Result<u64, TreeError> {
    let name = if directory.id == base.root.id { c"" } else { c".." };
    Ok(Stat::at(directory.path(), name)?.inode())
}

/// Whether an operation must be done where it may block.
pub(crate) fn must_wait(error: TreeError) -> bool {
    error == TreeError::from_errno(Errno::AGAIN.raw_os_error())
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
