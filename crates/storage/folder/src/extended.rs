//! Extended attributes of the name space `user.`.

use std::sync::Arc;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use smallvec::smallvec;
use tree::{Caller, Changed, Kind, NodeId, TreeError};

use crate::base::{Base, Done};
use crate::node::Node;
use crate::{failed, locate};

const SPACE: &[u8] = b"user.";
/// Longest value and longest list of names, bytes (XATTR_SIZE_MAX, XATTR_LIST_MAX).
const MOST: usize = 64 << 10;

/// The file, and the whole name of its attribute.
fn find(base: &Base, id: &NodeId, name: &[u8]) -> Result<(Arc<Node>, Vec<u8>), TreeError> {
    let node = locate::find(base, id)?;
    if !base.limits.extended_attributes {
        return Err(TreeError::Unsupported);
    }
    // The same rule as setxattr(2).
    if !matches!(node.kind, Kind::Regular | Kind::Directory) {
        return Err(TreeError::NotOwner);
    }
    if name.len() + SPACE.len() > 255 {
        return Err(TreeError::NameTooLong);
    }
    Ok((node, [SPACE, name].concat()))
}

/// Errors of getxattr(2) and similar calls.
fn refused(errno: Errno) -> TreeError {
    match errno {
        // The mode does not permit it: for these attributes EPERM has no other meaning.
        Errno::PERM => TreeError::Access,
        _ => failed(errno),
    }
}

/// Reads one.
pub(crate) fn get(base: &Arc<Base>, caller: &Caller, id: &NodeId, name: &[u8]) -> Result<Vec<u8>, TreeError> {
    let (node, name) = find(base, id, name)?;
    let mut value = vec![0; MOST];
    let acting = base.permit.act(caller)?;
    let len = rustix::fs::getxattr(node.in_proc(), name, &mut value[..]).map_err(refused)?;
    drop(acting);
    value.truncate(len);
    Ok(value)
}

/// Sets or removes one.
pub(crate) fn set(
    base: &Arc<Base>,
    caller: &Caller,
    id: &NodeId,
    name: &[u8],
    value: Option<&[u8]>,
    create: Option<bool>,
) -> Done<Changed> {
    let (node, name) = find(base, id, name)?;
    let before = node.stat()?.ctime();
    let flags = match create {
        None => XattrFlags::empty(),
        Some(true) => XattrFlags::CREATE,
        Some(false) => XattrFlags::REPLACE,
    };
    let acting = base.permit.act(caller)?;
    match value {
        Some(value) => rustix::fs::setxattr(node.in_proc(), name, value, flags),
        None => rustix::fs::removexattr(node.in_proc(), name),
    }
    .map_err(refused)?;
    drop(acting);
    Ok((base.changed(&node, before)?, smallvec![node]))
}

/// The names of all.
pub(crate) fn list(base: &Arc<Base>, caller: &Caller, id: &NodeId) -> Result<Vec<Vec<u8>>, TreeError> {
    let (node, _) = find(base, id, b"")?;
    base.permit.check_read(caller, &node, &base.attributes(&node)?)?;
    let mut names = vec![0; MOST];
    let len = rustix::fs::listxattr(node.in_proc(), &mut names[..]).map_err(refused)?;
    let mut names: Vec<Vec<u8>> = names[..len]
        .split(|byte| *byte == 0)
        .filter_map(|name| name.strip_prefix(SPACE))
        .map(<[u8]>::to_vec)
        .collect();
    names.sort_unstable();
    Ok(names)
}
