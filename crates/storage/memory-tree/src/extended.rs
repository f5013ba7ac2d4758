//! The operations on extended attributes.

use tree::{Caller, Changed, NodeId, Permissions, TreeError};

use crate::node::{Body, Node, STICKY, extended_cost};
use crate::state::{State, now, permit};

/// Longest name, bytes: Linux's 255 include `user.`.
const NAME: usize = 250;
/// Longest value, bytes.
const VALUE: usize = 64 << 10;
/// Bytes charged for all attributes of a file, at most.
const ALL: u64 = 256 << 10;

/// The permission of the file's data (xattr(7)).
fn permit_read(caller: &Caller, node: &Node) -> Result<(), TreeError> {
    if caller.may_read_data(&node.attributes()) { Ok(()) } else { Err(TreeError::Access) }
}

pub(crate) fn get(state: &State, caller: &Caller, node: &NodeId, name: &[u8]) -> Result<Vec<u8>, TreeError> {
    let node = state.lock(node)?;
    permit_read(caller, &node)?;
    let value = node.extended.as_ref().and_then(|all| all.get(name));
    value.map(|value| value.to_vec()).ok_or(TreeError::NoAttribute)
}

pub(crate) fn list(state: &State, caller: &Caller, node: &NodeId) -> Result<Vec<Vec<u8>>, TreeError> {
    let node = state.lock(node)?;
    permit_read(caller, &node)?;
    Ok(node.extended.iter().flat_map(|all| all.keys()).map(|name| name.to_vec()).collect())
}

pub(crate) fn set(
    state: &State,
    caller: &Caller,
    node: &NodeId,
    name: &[u8],
    value: Option<&[u8]>,
    create: Option<bool>,
) -> Result<Changed, TreeError> {
    let mut node = state.lock(node)?;
    match &node.body {
        Body::Regular(_) if caller.may_write_data(&node.attributes()) => {}
        Body::Directory(_) => {
            permit(caller, &node, Permissions::WRITE)?;
            if node.mode & STICKY != 0 && caller.uid != 0 && caller.uid != node.uid {
                return Err(TreeError::NotOwner);
            }
        }
        Body::Regular(_) => return Err(TreeError::Access),
        // Links and devices have none (xattr(7)).
        _ => return Err(TreeError::NotOwner),
    }
    if name.is_empty() || name.contains(&0) {
        return Err(TreeError::Invalid);
    }
    if name.len() > NAME {
        return Err(TreeError::NameTooLong);
    }
    if value.is_some_and(|value| value.len() > VALUE) {
        return Err(TreeError::TooBig);
    }
    let old = node.extended.as_ref().and_then(|all| all.get(name)).map(|value| extended_cost(name, value));
    match (old, value, create) {
        (Some(_), Some(_), Some(true)) => return Err(TreeError::Exists),
        (None, Some(_), Some(false)) | (None, None, _) => return Err(TreeError::NoAttribute),
        _ => {}
    }
    let before = node.before();
    let cost = node.cost();
    let new = value.map_or(0, |value| extended_cost(name, value));
    let all: u64 = node.extended.iter().flat_map(|all| all.iter()).map(|(n, v)| extended_cost(n, v)).sum();
    if all - old.unwrap_or(0) + new > ALL {
        return Err(TreeError::NoSpace);
    }
    state.reserve(new)?;
    let extended = node.extended.get_or_insert_default();
    match value {
        Some(value) => drop(extended.insert(name.into(), value.into())),
        None => drop(extended.remove(name)),
    }
    if extended.is_empty() {
        node.extended = None;
    }
    // The bytes reserved above are part of the file's cost now.
    state.recount(cost + new, node.cost());
    node.touch(now());
    Ok(node.changed(before))
}
