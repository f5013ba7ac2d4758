//! The operations that look up and change names: lookup, create, remove, rename, link, listing.
//!
//! An operation on several nodes first looks names up, locks all nodes, and begins again if a name
//! has come to refer to another node meanwhile.

use std::sync::PoisonError;

use smallvec::SmallVec;
use tree::{
    Caller, Changed, Created, Device, DirEntry, DirRoom, Entries, Found, Kind, Linked, New, NewFile, NodeId,
    Permissions, Removed, RemovedKind, Renamed, SetAttributes, TreeError,
};

use crate::attributes;
use crate::data::Data;
use crate::directory::{Child, Directory, Key, entry_cost};
use crate::node::{Body, NODE_COST, Node, SETGID};
use crate::state::{
    FILE_SIZE, LINKS, NAME, State, check_name, entries, entries_mut, now, permit, permit_change,
    permit_removal,
};

/// Longest path of a symbolic link, bytes.
const PATH: usize = 4095;

pub(crate) fn lookup(
    state: &State,
    caller: &Caller,
    directory: &NodeId,
    name: &[u8],
) -> Result<Found, TreeError> {
    loop {
        let at = state.key(directory)?;
        let node = state.table.lock(at)?;
        let entries = entries(&node)?;
        let attributes = node.attributes();
        if !caller.permissions(&attributes).contains(Permissions::EXECUTE) {
            return Err(TreeError::Access);
        }
        let key = match name {
            b"." => at,
            b".." => entries.parent,
            _ if name.len() > NAME => return Err(TreeError::NameTooLong),
            _ => entries.get(name).ok_or(TreeError::NoEntry)?.key,
        };
        drop(node);
        // It may have been removed since: then the name is looked up again.
        if let Ok(found) = state.table.lock(key) {
            let (node, found) = (state.id(key), found.attributes());
            return Ok(Found { node, attributes: found, directory: attributes });
        }
    }
}

/// The node that `name` refers to, if the caller may change the directory.
fn peek(state: &State, caller: &Caller, directory: Key, name: &[u8]) -> Result<Option<Child>, TreeError> {
    let node = state.table.lock(directory)?;
    permit_change(caller, &node)?;
    Ok(entries(&node)?.get(name))
}

/// Whether `name` still refers to `child`.
fn is_still(directory: &Node, name: &[u8], child: Option<Child>) -> Result<bool, TreeError> {
    Ok(entries(directory)?.get(name) == child)
}

pub(crate) fn create(
    state: &State,
    caller: &Caller,
    directory: &NodeId,
    name: &[u8],
    new: New<'_>,
) -> Result<Created, TreeError> {
    check_name(name)?;
    let at = state.key(directory)?;
    loop {
        let parent = state.table.lock(at)?;
        let here = entries(&parent)?;
        permit(caller, &parent, Permissions::EXECUTE)?;
        if let Some(child) = here.get(name) {
            let same = parent.unchanged();
            drop(parent);
            match open(state, caller, child.key, &new, same) {
                Err(TreeError::Stale) => continue,
                result => return result,
            }
        }
        permit(caller, &parent, Permissions::WRITE)?;
        let node = make(state, caller, &parent, at, &new)?;
        drop(parent);
        let cost = node.cost() + entry_cost(name);
        let is_directory = node.is_directory();
        let made = node.attributes();
        if !state.files.take(1) {
            return Err(TreeError::NoSpace);
        }
        state.reserve(cost).inspect_err(|_| state.files.give(1))?;
        let key = state.table.insert(Box::new(node)).inspect_err(|_| {
            state.files.give(1);
            state.bytes.give(cost);
        })?;
        // No name refers to it yet, so no other thread can lock it.
        let entered = state.table.lock(at).and_then(|mut parent| {
            let before = parent.before();
            let here = entries_mut(&mut parent)?;
            if here.get(name).is_some() {
                return Ok(None);
            }
            here.set(name, Child { key, is_directory });
            parent.links += u32::from(is_directory);
            parent.touch_data(now());
            Ok(Some(parent.changed(before)))
        });
        if let Ok(Some(directory)) = entered {
            return Ok(Created { node: state.id(key), attributes: made, directory, new: true });
        }
        state.bytes.give(entry_cost(name));
        if let Ok(node) = state.table.lock(key) {
            state.discard(key, state.table.remove(key, node));
        }
        entered?;
    }
}

/// Finishes a create whose name exists.
fn open(
    state: &State,
    caller: &Caller,
    key: Key,
    new: &New<'_>,
    directory: Changed,
) -> Result<Created, TreeError> {
    let mut node = state.table.lock(key)?;
    match new {
        New::File(NewFile::Unchecked(set)) if node.kind() == Kind::Regular => {
            let only = SetAttributes { size: set.size, ..SetAttributes::default() };
            attributes::apply(state, caller, key, &mut node, &only)?;
        }
        New::File(NewFile::Exclusive { verifier, .. }) if node.exclusive == Some(*verifier) => {}
        _ => return Err(TreeError::Exists),
    }
    Ok(Created { node: state.id(key), attributes: node.attributes(), directory, new: false })
}

/// A node that no name refers to yet.
fn make(state: &State, caller: &Caller, parent: &Node, at: Key, new: &New<'_>) -> Result<Node, TreeError> {
    let (body, set, mode) = match *new {
        New::File(how) => {
            let (NewFile::Unchecked(set)
            | NewFile::Guarded(set)
            | NewFile::Exclusive { attributes: set, .. }) = how;
            let size = set.size.unwrap_or(0);
            if size > FILE_SIZE {
                return Err(TreeError::FileTooLarge);
            }
            (Body::Regular(Data::zeros(size)), set, 0o600)
        }
        New::Directory(set) => (Body::Directory(Box::new(Directory::new(at))), set, 0o700),
        New::Symlink(path, set) => match path.len() {
            0 => return Err(TreeError::Invalid),
            len if len > PATH => return Err(TreeError::NameTooLong),
            _ => (Body::Symlink(path.into()), SetAttributes { mode: None, ..set }, 0o777),
        },
        New::Special(kind, device, set) => match kind {
            Kind::Block | Kind::Character if caller.uid != 0 => return Err(TreeError::NotOwner),
            Kind::Block | Kind::Character => (Body::Special(kind, device), set, 0o600),
            Kind::Socket | Kind::Fifo => (Body::Special(kind, Device::default()), set, 0o600),
            _ => return Err(TreeError::BadKind),
        },
    };
    let is_directory = matches!(body, Body::Directory(_));
    let inherits = parent.mode & SETGID != 0;
    let gid = if inherits { parent.gid } else { caller.gid };
    let time = now();
    let mut node = Node {
        fileid: state.new_fileid(),
        mode: set.mode.unwrap_or(mode) & 0o7777,
        uid: caller.uid,
        gid,
        links: if is_directory { 2 } else { 1 },
        change: 1,
        atime: time,
        mtime: time,
        ctime: time,
        created: time,
        read_on: 0,
        exclusive: None,
        extended: None,
        body,
    };
    attributes::own_new(caller, &mut node, &set)?;
    if inherits && is_directory {
        node.mode |= SETGID;
    }
    if let New::File(NewFile::Exclusive { verifier, .. }) = new {
        node.exclusive = Some(*verifier);
    }
    debug_assert!(node.cost() >= NODE_COST);
    Ok(node)
}

pub(crate) fn remove(
    state: &State,
    caller: &Caller,
    directory: &NodeId,
    name: &[u8],
    kind: RemovedKind,
) -> Result<Removed, TreeError> {
    check_name(name)?;
    let at = state.key(directory)?;
    loop {
        let child = peek(state, caller, at, name)?.ok_or(TreeError::NoEntry)?;
        let mut nodes = match state.table.lock_all([at, child.key]) {
            Ok(nodes) => nodes,
            // One of them is gone: the directory, as the next attempt finds out, or the child.
            Err(_) => continue,
        };
        if !is_still(nodes.get(at), name, Some(child))? {
            continue;
        }
        let owner = nodes.get(child.key).uid;
        permit_removal(caller, nodes.get(at), owner)?;
        match kind {
            RemovedKind::File if child.is_directory => return Err(TreeError::IsDirectory),
            RemovedKind::Directory if !child.is_directory => return Err(TreeError::NotDirectory),
            _ => {}
        }
        if let Body::Directory(entries) = &nodes.get(child.key).body
            && !entries.is_empty()
        {
            return Err(TreeError::NotEmpty);
        }
        let time = now();
        let parent = nodes.get(at);
        let before = parent.before();
        entries_mut(parent)?.remove(name);
        parent.links -= u32::from(child.is_directory);
        parent.touch_data(time);
        let directory = parent.changed(before);
        let gone = unlink(nodes.get(child.key), time).then(|| nodes.take(child.key)).flatten();
        let gone = gone.and_then(|node| state.table.remove(child.key, node));
        drop(nodes);
        state.bytes.give(entry_cost(name));
        state.discard(child.key, gone);
        return Ok(Removed { node: state.id(child.key), directory });
    }
}

/// Removes one link of a file. Returns whether it was the last.
fn unlink(node: &mut Node, time: tree::Time) -> bool {
    node.links = if node.is_directory() { 0 } else { node.links.saturating_sub(1) };
    node.touch(time);
    node.links == 0
}

pub(crate) fn rename(
    state: &State,
    caller: &Caller,
    from: (&NodeId, &[u8]),
    to: (&NodeId, &[u8]),
) -> Result<Renamed, TreeError> {
    let (old, new) = (from.1, to.1);
    check_name(old)?;
    check_name(new)?;
    let (from, to) = (state.key(from.0)?, state.key(to.0)?);
    loop {
        let moved = peek(state, caller, from, old)?.ok_or(TreeError::NoEntry)?;
        let replaced = peek(state, caller, to, new)?;
        let leaves = from != to && moved.is_directory;
        let _moves = leaves.then(|| state.moves.lock().unwrap_or_else(PoisonError::into_inner));
        if leaves {
            refuse_own_subtree(state, moved.key, to)?;
        }
        let keys: SmallVec<[Key; 4]> =
            [from, to, moved.key].into_iter().chain(replaced.map(|child| child.key)).collect();
        let Ok(mut nodes) = state.table.lock_all(keys) else { continue };
        if !is_still(nodes.get(from), old, Some(moved))? || !is_still(nodes.get(to), new, replaced)? {
            continue;
        }
        if replaced == Some(moved) {
            let [from, to] = [from, to].map(|key| nodes.get(key).unchanged());
            return Ok(Renamed { replaced: None, from, to });
        }
        let owner = nodes.get(moved.key).uid;
        permit_removal(caller, nodes.get(from), owner)?;
        if leaves {
            // Its `..` changes.
            permit(caller, nodes.get(moved.key), Permissions::WRITE)?;
        }
        if let Some(child) = replaced {
            let owner = nodes.get(child.key).uid;
            permit_removal(caller, nodes.get(to), owner)?;
            match (moved.is_directory, child.is_directory) {
                (true, false) => return Err(TreeError::NotDirectory),
                (false, true) => return Err(TreeError::IsDirectory),
                (true, true) if !entries(nodes.get(child.key))?.is_empty() => {
                    return Err(TreeError::NotEmpty);
                }
                _ => {}
            }
        } else {
            state.reserve(entry_cost(new))?;
        }
        let time = now();
        let before = [from, to].map(|key| nodes.get(key).before());
        entries_mut(nodes.get(from))?.remove(old);
        entries_mut(nodes.get(to))?.set(new, moved);
        if moved.is_directory {
            nodes.get(from).links -= 1;
            nodes.get(to).links += u32::from(replaced.is_none());
            entries_mut(nodes.get(moved.key))?.parent = to;
        }
        nodes.get(from).touch_data(time);
        if from != to {
            nodes.get(to).touch_data(time);
        }
        nodes.get(moved.key).touch(time);
        let [from, to] =
            [(from, before[0]), (to, before[1])].map(|(key, before)| nodes.get(key).changed(before));
        let gone = replaced.and_then(|child| {
            let last = unlink(nodes.get(child.key), time);
            let node = if last { nodes.take(child.key) } else { None }?;
            Some((child.key, state.table.remove(child.key, node)))
        });
        drop(nodes);
        state.bytes.give(entry_cost(old));
        if let Some((key, node)) = gone {
            state.discard(key, node);
        }
        return Ok(Renamed { replaced: replaced.map(|child| state.id(child.key)), from, to });
    }
}

/// # Errors
/// [`TreeError::Invalid`] if `moved` is `to` or a directory above it. The caller holds the lock on
/// moves of directories.
fn refuse_own_subtree(state: &State, moved: Key, to: Key) -> Result<(), TreeError> {
    let mut at = to;
    loop {
        if at == moved {
            return Err(TreeError::Invalid);
        }
        if at == state.root() {
            return Ok(());
        }
        at = entries(&*state.table.lock(at)?)?.parent;
    }
}

pub(crate) fn link(
    state: &State,
    caller: &Caller,
    node: &NodeId,
    directory: &NodeId,
    name: &[u8],
) -> Result<Linked, TreeError> {
    check_name(name)?;
    let (key, at) = (state.key(node)?, state.key(directory)?);
    let mut nodes = state.table.lock_all([key, at])?;
    permit_change(caller, nodes.get(at))?;
    if entries(nodes.get(at))?.get(name).is_some() {
        return Err(TreeError::Exists);
    }
    let file = nodes.get(key);
    if file.is_directory() {
        return Err(TreeError::IsDirectory);
    }
    if file.links >= LINKS {
        return Err(TreeError::TooManyLinks);
    }
    state.reserve(entry_cost(name))?;
    let time = now();
    let file = nodes.get(key);
    file.links += 1;
    file.touch(time);
    let attributes = file.attributes();
    let parent = nodes.get(at);
    let before = parent.before();
    entries_mut(parent)?.set(name, Child { key, is_directory: false });
    parent.touch_data(time);
    Ok(Linked { attributes, directory: parent.changed(before) })
}

pub(crate) fn read_dir(
    state: &State,
    caller: &Caller,
    directory: &NodeId,
    cookie: u64,
    mut room: DirRoom,
) -> Result<Entries, TreeError> {
    let mut node = state.lock(directory)?;
    entries(&node)?;
    permit(caller, &node, Permissions::READ)?;
    state.note_read(&mut node);
    let here = entries(&node)?;
    let mut listed = Vec::new();
    let mut keys = Vec::new();
    let mut eof = true;
    for (cookie, name, child) in here.behind(cookie) {
        if !room.take(name) {
            eof = false;
            break;
        }
        listed.push(DirEntry { cookie, name: name.to_vec(), fileid: child.key.fileid, node: None });
        if room.nodes {
            keys.push(child.key);
        }
    }
    let parent = here.parent.fileid;
    let attributes = node.attributes();
    drop(node);
    for (entry, key) in listed.iter_mut().zip(keys) {
        entry.node = state.table.lock(key).ok().map(|node| (state.id(key), node.attributes()));
    }
    Ok(Entries { entries: listed, eof, attributes, parent })
}
