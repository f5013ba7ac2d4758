//! Opens files by ids and names. Ensures that nothing outside of the folder is opened.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use runtime::FileHandle;
use rustix::fs::{RawDir, ResolveFlags};
use rustix::io::Errno;
use tree::{Kind, NodeId, TreeError};

use crate::base::Base;
use crate::locator::{By, Contents, DEEPEST, lock, open_below};
use crate::node::Node;
use crate::stat::Stat;
use crate::table::{Key, Place};

/// Number of attempts to open an inode that is being evicted, and the pause between them.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// The open file with this id. Blocks if it is not open yet.
pub(crate) fn find(base: &Base, id: &NodeId) -> Result<Arc<Node>, TreeError> {
    if let Some(node) = base.cached(id) {
        return Ok(node);
    }
    match base.locator.contents(id)? {
        Contents::Handle(handle) => {
            let file = open_handle(base, &handle)?;
            let stat = Stat::of(file.as_fd())?;
            if stat.is_gone() || stat.kind() == Kind::Directory && !base.locator.is_beneath(file.as_fd())? {
                return Err(TreeError::Stale);
            }
            Ok(base.keep(Node::new(*id, &stat, None, file)))
        }
        Contents::Key(key) => find_by_table(base, key),
    }
}

/// Opens a file by its handle as O_PATH.
fn open_handle(base: &Base, handle: &FileHandle) -> Result<OwnedFd, TreeError> {
    let open = || handle.open(base.descriptors.root(), libc::O_PATH | libc::O_NOFOLLOW);
    for _ in 0..ATTEMPTS {
        match open() {
            // Ext4 returns this for an inode that is being evicted.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => std::thread::sleep(PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(open()?)
}

/// The file with this key: starts at the first directory above it that is open, and goes down.
fn find_by_table(base: &Base, key: Key) -> Result<Arc<Node>, TreeError> {
    let By::Table(table) = &base.locator.by else { return Err(TreeError::Stale) };
    let (mut way, mut here) = (Vec::new(), key);
    let mut node = loop {
        let id = base.locator.id_of_key(here)?;
        if let Some(node) = base.cached(&id) {
            break node;
        }
        // A damaged log may lead in circles.
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

/// Looks for a file that another process has renamed within its directory.
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
    if cached && let Some(found) = open_child(base, directory, name) {
        return Ok(found);
    }
    let more = if cached { ResolveFlags::CACHED } else { ResolveFlags::empty() };
    let file = match open_below(directory.path(), name, ResolveFlags::BENEATH | more) {
        // Something is mounted there.
        Err(TreeError::CrossDevice) => return Err(TreeError::Access),
        other => other?,
    };
    adopt(base, file, Some((&directory.id, name)))
}

/// The file of this name, if it is one that was opened by it and is open yet: without opening it
/// once more, which costs three calls instead of one.
fn open_child(base: &Base, directory: &Node, name: &[u8]) -> Option<(Arc<Node>, Stat)> {
    let key = base.names.key(&directory.id, name);
    let node = base.cached(&base.names.get(key)?).filter(|node| node.name == Some(key))?;
    let stat = Stat::at(directory.path(), name).ok().filter(|stat| node.is(stat) && !stat.is_mount());
    if stat.is_none() {
        base.names.forget(key);
    }
    Some((node, stat?))
}

/// The file that a descriptor was opened for, at `place`.
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
    let name = place.map(|(directory, name)| base.names.key(directory, name));
    if let Some(name) = name {
        base.names.opened(name, id);
    }
    Ok((base.keep(Node::new(id, &stat, name, file)), stat))
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
    // Another process may have moved it out of the folder.
    if !base.locator.is_beneath(file.as_fd())? {
        return Err(TreeError::Stale);
    }
    adopt(base, file, None)
}

/// The inode number of the directory above.
pub(crate) fn parent_number(base: &Base, directory: &Node) -> Result<u64, TreeError> {
    let above =
        if directory.id == base.root.id { directory.stat() } else { Stat::at(directory.path(), "..") };
    Ok(above?.inode())
}

/// Whether an operation must be done where it may block.
pub(crate) fn must_wait(error: TreeError) -> bool {
    error == TreeError::from_errno(Errno::AGAIN.raw_os_error())
}
