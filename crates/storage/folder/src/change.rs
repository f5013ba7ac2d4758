//! Changes of attributes and of directories. They run with the caller's credentials, so that the
//! kernel checks all of its rules. This module checks the rules that the kernel does not know,
//! beforehand.

use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Timespec, Timestamps, Uid};
use smallvec::{SmallVec, smallvec};
use tree::{
    Attributes, Caller, Changed, Kind, Linked, NodeId, Permissions, Removed, RemovedKind, Renamed,
    SetAttributes, SetTime, Time, TreeError,
};

use crate::base::{Base, Done};
use crate::node::Node;
use crate::{checked, failed, locate};

/// Attributes to set.
pub(crate) struct Wishes {
    pub(crate) set: SetAttributes,
    /// Whether the caller may set the times, whatever the kernel thinks of the caller.
    pub(crate) checked: bool,
}

/// Sets attributes.
pub(crate) fn set_attributes(
    base: &Arc<Base>,
    caller: &Caller,
    id: &NodeId,
    set: &SetAttributes,
    guard: Option<Time>,
) -> Done<Changed> {
    let node = locate::find(base, id)?;
    let before = base.attributes(&node)?;
    if guard.is_some_and(|guard| guard != before.ctime) {
        return Err(TreeError::NotSync);
    }
    if set.is_empty() {
        return Ok((Changed { before: None, after: before }, smallvec![]));
    }
    apply(base, caller, &node, &before, set)?;
    Ok((base.changed(&node, before.ctime)?, smallvec![node]))
}

/// Sets attributes of a file, whose attributes are `file`, if the caller may set all of them.
pub(crate) fn apply(
    base: &Base,
    caller: &Caller,
    node: &Node,
    file: &Attributes,
    set: &SetAttributes,
) -> Result<(), TreeError> {
    let who = base.permit.who(caller);
    let is_owner = who.uid == 0 || who.uid == file.uid;
    let is_timed = |time| matches!(time, SetTime::To(_));
    if !is_owner {
        let for_owners = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if for_owners || is_timed(set.atime) || is_timed(set.mtime) {
            return Err(TreeError::NotOwner);
        }
        base.permit.check_write(caller, node, file)?;
    } else if who.uid != 0 {
        let gives_away = set.uid.is_some_and(|uid| uid != who.uid);
        let joins = set.gid.is_some_and(|gid| gid != file.gid && !who.is_in(gid));
        if gives_away || joins {
            return Err(TreeError::NotOwner);
        }
    }
    apply_wishes(base, caller, node, &Wishes { set: *set, checked: !is_owner })
}

/// Sets attributes. Changes that may fail for want of space come first.
pub(crate) fn apply_wishes(
    base: &Base,
    caller: &Caller,
    node: &Node,
    wishes: &Wishes,
) -> Result<(), TreeError> {
    let set = &wishes.set;
    let writer = set.size.is_some().then(|| node.writer(&base.descriptors)).transpose()?;
    let acting = base.permit.act(caller)?;
    if let (Some(size), Some(writer)) = (set.size, writer) {
        if i64::try_from(size).is_err() {
            return Err(TreeError::FileTooLarge);
        }
        rustix::fs::ftruncate(&*writer, size).map_err(failed)?;
        node.wrote();
    }
    if set.uid.is_some() || set.gid.is_some() {
        // 2³²−1 means no change.
        let number = |id: u32| if id == u32::MAX { Err(TreeError::Invalid) } else { Ok(id) };
        let uid = set.uid.map(number).transpose()?.map(Uid::from_raw);
        let gid = set.gid.map(number).transpose()?.map(Gid::from_raw);
        rustix::fs::chownat(node.path(), "", uid, gid, AtFlags::EMPTY_PATH).map_err(failed)?;
    }
    if let Some(mode) = set.mode {
        node.set_mode(&base.descriptors, mode)?;
    }
    let times = timestamps(set);
    if (set.atime, set.mtime) != (SetTime::Keep, SetTime::Keep) {
        if wishes.checked {
            drop(acting);
        }
        rustix::fs::utimensat(node.path(), "", &times, AtFlags::EMPTY_PATH).map_err(failed)?;
    }
    Ok(())
}

/// Removes a name.
pub(crate) fn remove(
    base: &Arc<Base>,
    caller: &Caller,
    directory: &NodeId,
    name: &[u8],
    kind: RemovedKind,
) -> Done<Removed> {
    let (directory, name) = (locate::find(base, directory)?, checked(name)?);
    let before = base.directory(caller, &directory, Permissions::EXECUTE)?.ctime;
    let (node, stat) = locate::child(base, &directory, name, false)?;
    let is_directory = node.kind == Kind::Directory;
    let flags = match kind {
        RemovedKind::File if is_directory => return Err(TreeError::IsDirectory),
        RemovedKind::Directory if !is_directory => return Err(TreeError::NotDirectory),
        _ if is_directory => AtFlags::REMOVEDIR,
        _ => AtFlags::empty(),
    };
    let acting = base.permit.act(caller)?;
    rustix::fs::unlinkat(directory.path(), name, flags).map_err(not_empty)?;
    drop(acting);
    lost_name(base, &node, stat.ctime());
    let removed = Removed { node: node.id, directory: base.changed(&directory, before)? };
    Ok((removed, smallvec![directory]))
}

/// Moves a name.
pub(crate) fn rename(
    base: &Arc<Base>,
    caller: &Caller,
    from: (&NodeId, &[u8]),
    to: (&NodeId, &[u8]),
) -> Done<Renamed> {
    let (source, name) = (locate::find(base, from.0)?, checked(from.1)?);
    let before = base.directory(caller, &source, Permissions::EXECUTE)?.ctime;
    let (node, stat) = locate::child(base, &source, name, false)?;
    let (target, new_name) = (locate::find(base, to.0)?, checked(to.1)?);
    let target_before = base.directory(caller, &target, Permissions::EXECUTE)?.ctime;
    let replaced = match locate::child(base, &target, new_name, false) {
        Ok((replaced, stat)) => Some((replaced, stat)),
        Err(TreeError::NoEntry) => None,
        Err(error) => return Err(error),
    };
    let acting = base.permit.act(caller)?;
    let renamed = rustix::fs::renameat(source.path(), name, target.path(), new_name);
    drop(acting);
    renamed.map_err(not_empty).map_err(|error| match &replaced {
        // Linux returns this for a directory that contains the moved file.
        Some((replaced, _)) if error == TreeError::NotEmpty && replaced.kind == Kind::Directory => {
            if node.kind == Kind::Directory { error } else { TreeError::IsDirectory }
        }
        _ => error,
    })?;
    let replaced = replaced.filter(|(replaced, _)| replaced.id != node.id);
    if let Some((replaced, stat)) = &replaced {
        lost_name(base, replaced, stat.ctime());
    }
    base.changes.made(&node.id, stat.ctime(), node.stat()?.ctime());
    base.locator.saw(&stat, &target.id, new_name);
    let renamed = Renamed {
        replaced: replaced.map(|(replaced, _)| replaced.id),
        from: base.changed(&source, before)?,
        to: base.changed(&target, target_before)?,
    };
    let mut changed: SmallVec<[Arc<Node>; 2]> = smallvec![target];
    if source.id != changed[0].id {
        changed.push(source);
    }
    Ok((renamed, changed))
}

/// Adds a name.
pub(crate) fn link(
    base: &Arc<Base>,
    caller: &Caller,
    node: &NodeId,
    directory: &NodeId,
    name: &[u8],
) -> Done<Linked> {
    let (node, directory, name) = (locate::find(base, node)?, locate::find(base, directory)?, checked(name)?);
    let before = base.directory(caller, &directory, Permissions::EXECUTE)?.ctime;
    let stat = node.stat()?;
    let acting = base.permit.act(caller)?;
    let numbers = base.descriptors.numbers();
    rustix::fs::linkat(numbers, node.number(), directory.path(), name, AtFlags::SYMLINK_FOLLOW).map_err(
        |error| match failed(error) {
            TreeError::NotOwner if node.kind == Kind::Directory => TreeError::IsDirectory,
            error => error,
        },
    )?;
    drop(acting);
    base.locator.saw(&stat, &directory.id, name);
    let linked = Linked {
        attributes: base.changed(&node, stat.ctime())?.after,
        directory: base.changed(&directory, before)?,
    };
    Ok((linked, smallvec![directory]))
}

/// Closes a file that has lost its last name.
fn lost_name(base: &Base, node: &Node, before: Time) {
    match node.stat() {
        Ok(stat) => base.changes.made(&node.id, before, stat.ctime()),
        Err(_) => {
            base.cache.remove(&node.id);
            base.locator.lost(&node.id);
        }
    }
}

/// Errors of removing and replacing directories: some file systems report EEXIST for a directory
/// with entries, and all report EBUSY for a mount point.
fn not_empty(errno: rustix::io::Errno) -> TreeError {
    match errno {
        rustix::io::Errno::EXIST => TreeError::NotEmpty,
        rustix::io::Errno::BUSY => TreeError::Access,
        _ => failed(errno),
    }
}

/// Times as utimensat(2) takes them.
fn timestamps(set: &SetAttributes) -> Timestamps {
    let one = |time: SetTime| match time {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        SetTime::To(time) => Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) },
    };
    Timestamps { last_access: one(set.atime), last_modification: one(set.mtime) }
}
