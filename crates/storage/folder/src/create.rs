//! Creation of files. An exclusive create is recognized again by its verifier, which is kept in the
//! seconds of atime and mtime, as all servers do (RFC 1813 §3.3.8).

use std::os::fd::AsFd;
use std::sync::Arc;

use runtime::File;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use smallvec::smallvec;
use tree::{
    Attributes, Caller, Created, Device, Kind, New, NewFile, NodeId, Permissions, SetAttributes, SetTime,
    Time, TreeError,
};

use crate::base::{Base, Done};
use crate::change::{self, Wishes};
use crate::node::Node;
use crate::stat::Stat;
use crate::{checked, failed, locate};

/// Attempts of one create while other processes create and remove the name.
const ATTEMPTS: usize = 8;

/// The file to create: [`New`] for another thread.
pub(crate) enum Wanted {
    File(NewFile),
    Directory(SetAttributes),
    Symlink(Vec<u8>, SetAttributes),
    Special(Kind, Device, SetAttributes),
}

impl From<New<'_>> for Wanted {
    fn from(new: New<'_>) -> Self {
        match new {
            New::File(file) => Self::File(file),
            New::Directory(set) => Self::Directory(set),
            New::Symlink(path, set) => Self::Symlink(path.to_vec(), set),
            New::Special(kind, device, set) => Self::Special(kind, device, set),
        }
    }
}

/// Makes a file.
pub(crate) fn create(
    base: &Arc<Base>,
    caller: &Caller,
    directory: &NodeId,
    name: &[u8],
    wanted: &Wanted,
) -> Done<Created> {
    let (directory, name) = (locate::find(base, directory)?, checked(name)?);
    let before = base.directory(caller, &directory, Permissions::EXECUTE)?.ctime;
    let (node, stat, new) = match wanted {
        Wanted::File(file) => regular(base, caller, &directory, name, file)?,
        Wanted::Directory(set) => {
            let mode = mode_of(set, 0o755);
            other(base, caller, &directory, name, (set, Some(mode)), AtFlags::REMOVEDIR, || {
                rustix::fs::mkdirat(directory.path(), name, Mode::from_raw_mode(mode))
            })?
        }
        Wanted::Symlink(path, set) => {
            other(base, caller, &directory, name, (set, None), AtFlags::empty(), || {
                rustix::fs::symlinkat(path.as_slice(), directory.path(), name)
            })?
        }
        Wanted::Special(kind, device, set) => {
            let mode = mode_of(set, 0o644);
            let kind = match kind {
                Kind::Block => FileType::BlockDevice,
                Kind::Character => FileType::CharacterDevice,
                Kind::Socket => FileType::Socket,
                Kind::Fifo => FileType::Fifo,
                _ => return Err(TreeError::BadKind),
            };
            let device = rustix::fs::makedev(device.major, device.minor);
            other(base, caller, &directory, name, (set, Some(mode)), AtFlags::empty(), || {
                rustix::fs::mknodat(directory.path(), name, kind, Mode::from_raw_mode(mode), device)
            })?
        }
    };
    let created = Created {
        node: node.id,
        attributes: base.shown(&node, &stat),
        directory: base.changed(&directory, before)?,
        new,
    };
    Ok((created, if new { smallvec![directory] } else { smallvec![] }))
}

fn mode_of(set: &SetAttributes, without: u32) -> u32 {
    set.mode.unwrap_or(without) & 0o7777
}

/// Makes a regular file, or finds one.
fn regular(
    base: &Arc<Base>,
    caller: &Caller,
    directory: &Node,
    name: &[u8],
    file: &NewFile,
) -> Result<(Arc<Node>, Stat, bool), TreeError> {
    let (set, mode) = match file {
        NewFile::Unchecked(set) | NewFile::Guarded(set) => (*set, mode_of(set, 0o644)),
        NewFile::Exclusive { verifier, attributes } => {
            let (atime, mtime) = times_of(verifier);
            let times = SetAttributes { atime: SetTime::To(atime), mtime: SetTime::To(mtime), ..*attributes };
            (times, mode_of(attributes, 0o600))
        }
    };
    for _ in 0..ATTEMPTS {
        let acting = base.permit.act(caller)?;
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY
            | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(directory.path(), name, flags, Mode::from_raw_mode(mode), resolve);
        drop(acting);
        match opened {
            Ok(opened) => {
                let undo = || rustix::fs::unlinkat(directory.path(), name, AtFlags::empty());
                let (node, _) = found(base, directory, name, undo)?;
                let own = Stat::of(opened.as_fd())?;
                if own.is_gone() || !node.is(&own) {
                    // Another process has removed or replaced it already.
                    continue;
                }
                node.keep_writer(File::from_fd(opened)?);
                let stat = finish(base, caller, directory, (&node, own), &set, Some(mode), undo)?;
                return Ok((node, stat, true));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        let (node, stat) = match locate::child(base, directory, name, false) {
            Err(TreeError::NoEntry) => continue,
            other => other?,
        };
        let there = base.shown(&node, &stat);
        match file {
            NewFile::Unchecked(set) if there.kind == Kind::Regular => {
                if set.size.is_some() {
                    let size = SetAttributes { size: set.size, ..SetAttributes::default() };
                    let failures = base.durability.failures();
                    change::apply(base, caller, &node, &there, &size)?;
                    flush(base, &node, failures)?;
                }
                return Ok((Arc::clone(&node), node.stat()?, false));
            }
            NewFile::Exclusive { verifier, .. } if is_of(&there, verifier) => return Ok((node, stat, false)),
            _ => return Err(TreeError::Exists),
        }
    }
    Err(TreeError::Delay)
}

/// The file that was made by this name. If it cannot be opened, for want of a descriptor for
/// example, it is removed again: the client's next try would find it.
fn found(
    base: &Base,
    directory: &Node,
    name: &[u8],
    undo: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<(Arc<Node>, Stat), TreeError> {
    locate::child(base, directory, name, false).inspect_err(|_| {
        let _ = undo();
    })
}

/// Creates a file that is not a regular one. It is removed with the flags `removal`.
fn other(
    base: &Arc<Base>,
    caller: &Caller,
    directory: &Node,
    name: &[u8],
    (set, mode): (&SetAttributes, Option<u32>),
    removal: AtFlags,
    make: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<(Arc<Node>, Stat, bool), TreeError> {
    let acting = base.permit.act(caller)?;
    make().map_err(failed)?;
    drop(acting);
    let undo = || rustix::fs::unlinkat(directory.path(), name, removal);
    let (node, stat) = found(base, directory, name, undo)?;
    let stat = finish(base, caller, directory, (&node, stat), set, mode, undo)?;
    Ok((node, stat, true))
}

/// Gives a new file its attributes, which are those of `stat` yet, or removes it again.
fn finish(
    base: &Arc<Base>,
    caller: &Caller,
    directory: &Node,
    (node, stat): (&Arc<Node>, Stat),
    set: &SetAttributes,
    mode: Option<u32>,
    undo: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<Stat, TreeError> {
    let try_it = || {
        let failures = base.durability.failures();
        let mut attributes = base.shown(node, &stat);
        let set = wishes_of(base, caller, &attributes, set);
        if !set.is_empty() {
            change::apply_wishes(base, caller, node, &Wishes { set, checked: true })?;
            // A change of the owner takes set-user-ID and set-group-ID away.
            attributes = base.shown(node, &node.stat()?);
        }
        let missing = mode.filter(|mode| mode & !attributes.mode != 0);
        if let Some(mode) = missing {
            let acting = base.permit.act(caller)?;
            base.permit.restore_mode(&base.descriptors, directory, node, mode, attributes.mode)?;
            drop(acting);
        }
        if set.is_empty() && missing.is_none() {
            return Ok(stat);
        }
        if node.kind == Kind::Regular {
            flush(base, node, failures)?;
        }
        node.stat()
    };
    try_it().inspect_err(|_: &TreeError| {
        let _ = undo();
        base.cache.remove(&node.id);
    })
}

/// Makes changes of a file durable, unless the folder is asynchronous. They began when `failures`
/// flushes of the folder had failed. Blocks.
fn flush(base: &Base, node: &Node, failures: u64) -> Result<(), TreeError> {
    if base.durability.is_asynchronous() {
        return Ok(());
    }
    base.durability.flush(&base.descriptors, node, true)?;
    base.durability.check(node, failures)
}

/// The attributes of `set` that remain to be set for a new file. Its owner and group are the
/// caller's. Others are left out for callers who may not give files away.
fn wishes_of(base: &Base, caller: &Caller, file: &Attributes, set: &SetAttributes) -> SetAttributes {
    let caller = base.permit.who(caller);
    let may_give = caller.uid == 0;
    let may_have = |gid: &u32| may_give || caller.is_in(*gid);
    SetAttributes {
        mode: None,
        uid: set.uid.filter(|uid| may_give && *uid != file.uid),
        gid: set.gid.filter(|gid| may_have(gid) && *gid != file.gid),
        size: set.size.filter(|size| *size != file.size),
        ..*set
    }
}

/// The times that keep a verifier. Seconds are positive, and fit everywhere.
fn times_of(verifier: &[u8; 8]) -> (Time, Time) {
    let seconds = |bytes: &[u8]| {
        let word = bytes.iter().fold(0, |word, byte| word << 8 | i64::from(*byte));
        Time { seconds: word & 0x7fff_ffff, nanoseconds: 0 }
    };
    (seconds(&verifier[..4]), seconds(&verifier[4..]))
}

/// Whether the exclusive create with this verifier has made a file.
fn is_of(file: &Attributes, verifier: &[u8; 8]) -> bool {
    file.kind == Kind::Regular && (file.atime, file.mtime) == times_of(verifier)
}
