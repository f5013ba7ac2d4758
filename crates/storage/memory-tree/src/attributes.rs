//! The operations on attributes, and their permission checks.

use tree::{
    Attributes, Caller, Changed, Granted, NodeId, Permissions, SetAttributes, SetTime, Target, Time,
    TreeError,
};

use crate::directory::Key;
use crate::node::{Body, Node, SETGID, SETUID};
use crate::state::{FILE_SIZE, State, now};

pub(crate) fn get(state: &State, node: &NodeId) -> Result<Attributes, TreeError> {
    Ok(state.lock(node)?.attributes())
}

pub(crate) fn set(
    state: &State,
    caller: &Caller,
    node: &NodeId,
    set: &SetAttributes,
    guard: Option<Time>,
) -> Result<Changed, TreeError> {
    let key = state.key(node)?;
    let mut node = state.table.lock(key)?;
    if guard.is_some_and(|ctime| ctime != node.ctime) {
        return Err(TreeError::NotSync);
    }
    let before = node.before();
    apply(state, caller, key, &mut node, set)?;
    Ok(node.changed(before))
}

pub(crate) fn access(
    state: &State,
    caller: &Caller,
    node: &NodeId,
    wanted: Permissions,
) -> Result<Granted, TreeError> {
    let attributes = get(state, node)?;
    Ok(Granted { permissions: caller.permissions(&attributes).and(wanted), attributes })
}

pub(crate) fn read_link(state: &State, node: &NodeId) -> Result<Target, TreeError> {
    let mut node = state.lock(node)?;
    let Body::Symlink(path) = &node.body else { return Err(TreeError::Invalid) };
    let path = path.to_vec();
    state.note_read(&mut node);
    Ok(Target { path, attributes: node.attributes() })
}

/// Sets attributes, all or none.
pub(crate) fn apply(
    state: &State,
    caller: &Caller,
    key: Key,
    node: &mut Node,
    set: &SetAttributes,
) -> Result<(), TreeError> {
    if set.is_empty() {
        return Ok(());
    }
    check(caller, node, set)?;
    let owner = (node.uid, node.gid);
    node.uid = set.uid.unwrap_or(node.uid);
    node.gid = set.gid.unwrap_or(node.gid);
    if let Some(mode) = set.mode {
        node.mode = mode & 0o7777;
        drop_foreign_group(caller, node);
    } else if owner != (node.uid, node.gid) && !node.is_directory() {
        drop_privileges(node);
    }
    let now = node.touch(now());
    if let Some(size) = set.size
        && let Body::Regular(data) = &mut node.body
        && data.size() != size
    {
        let cost = data.cost();
        data.set_size(&state.arena, key.slot, size);
        state.recount(cost, data.cost());
        node.mtime = now;
        if caller.uid != 0 && set.mode.is_none() {
            drop_privileges(node);
        }
    }
    set_times(node, set, now);
    node.exclusive = None;
    Ok(())
}

fn set_times(node: &mut Node, set: &SetAttributes, now: Time) {
    for (time, set) in [(&mut node.atime, set.atime), (&mut node.mtime, set.mtime)] {
        match set {
            SetTime::Keep => {}
            SetTime::Now => *time = now,
            SetTime::To(to) => *time = to,
        }
    }
}

/// Whether a caller may set all of them.
fn check(caller: &Caller, node: &Node, set: &SetAttributes) -> Result<(), TreeError> {
    let file = node.attributes();
    let root = caller.uid == 0;
    let owner = root || caller.uid == node.uid;
    let other_user = set.uid.is_some_and(|uid| uid != node.uid);
    let foreign_group = set.gid.is_some_and(|gid| gid != node.gid && !caller.is_in(gid));
    if !root && (other_user || foreign_group) {
        return Err(TreeError::NotOwner);
    }
    let only_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let times = [set.atime, set.mtime];
    if !owner && (only_owner || times.iter().any(|time| matches!(time, SetTime::To(_)))) {
        return Err(TreeError::NotOwner);
    }
    if !owner && times.contains(&SetTime::Now) && !caller.permissions(&file).contains(Permissions::WRITE) {
        return Err(TreeError::Access);
    }
    match (set.size, &node.body) {
        (None, _) => Ok(()),
        (_, Body::Directory(_)) => Err(TreeError::IsDirectory),
        (_, Body::Regular(_)) if !caller.may_write_data(&file) => Err(TreeError::Access),
        (Some(size), Body::Regular(_)) if size > FILE_SIZE => Err(TreeError::FileTooLarge),
        (_, Body::Regular(_)) => Ok(()),
        _ => Err(TreeError::Invalid),
    }
}

/// Gives a new file, which has its mode, the rest of its attributes.
pub(crate) fn own_new(caller: &Caller, node: &mut Node, set: &SetAttributes) -> Result<(), TreeError> {
    let root = caller.uid == 0;
    let other_user = set.uid.is_some_and(|uid| uid != caller.uid);
    let foreign_group = set.gid.is_some_and(|gid| gid != node.gid && !caller.is_in(gid));
    if !root && (other_user || foreign_group) {
        return Err(TreeError::NotOwner);
    }
    node.uid = set.uid.unwrap_or(node.uid);
    node.gid = set.gid.unwrap_or(node.gid);
    drop_foreign_group(caller, node);
    let now = node.ctime;
    set_times(node, set, now);
    Ok(())
}

/// Clears set-group-ID unless the caller is in the file's group or is the super-user (chmod(2)).
fn drop_foreign_group(caller: &Caller, node: &mut Node) {
    if caller.uid != 0 && !caller.is_in(node.gid) {
        node.mode &= !SETGID;
    }
}

/// Clears set-user-ID and set-group-ID of a file whose owner or content changes. Without execution
/// by the group, set-group-ID has another meaning, and stays.
pub(crate) fn drop_privileges(node: &mut Node) {
    node.mode &= !SETUID;
    if node.mode & 0o010 != 0 {
        node.mode &= !SETGID;
    }
}
