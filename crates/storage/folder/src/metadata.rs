//! Lookups, and other operations that only read metadata.

use tree::{Caller, Found, Granted, Kind, Permissions, Space, Target, TreeError};

use crate::base::Base;
use crate::node::Node;
use crate::{checked, failed, locate};

/// Looks up a name. With `cached`, `Delay` if the system would have to read.
pub(crate) fn lookup(
    base: &Base,
    caller: &Caller,
    directory: &Node,
    name: &[u8],
    cached: bool,
) -> Result<Found, TreeError> {
    let above = base.directory_in_batch(caller, directory, Permissions::EXECUTE)?;
    let (node, attributes) = match name {
        b"." => (directory.id, above),
        b".." => {
            let (node, stat) = locate::parent(base, directory)?;
            (node.id, base.shown(&node, &stat))
        }
        _ => {
            let (node, stat) = locate::child(base, directory, checked(name)?, cached)?;
            (node.id, base.shown_in_batch(&node, &stat))
        }
    };
    Ok(Found { node, attributes, directory: above })
}

/// The caller's permissions for a file.
pub(crate) fn access(
    base: &Base,
    caller: &Caller,
    node: &Node,
    wanted: Permissions,
) -> Result<Granted, TreeError> {
    let attributes = base.attributes(node)?;
    let permissions = base.permit.granted(caller, node, &attributes, wanted)?;
    Ok(Granted { permissions, attributes })
}

/// Reads a symbolic link.
pub(crate) fn read_link(base: &Base, node: &Node) -> Result<Target, TreeError> {
    if node.kind != Kind::Symlink {
        return Err(TreeError::Invalid);
    }
    let path = rustix::fs::readlinkat(node.path(), "", Vec::new()).map_err(failed)?.into_bytes();
    Ok(Target { path, attributes: base.attributes(node)? })
}

/// The space of a file's file system.
pub(crate) fn space(base: &Base, caller: &Caller, node: &Node) -> Result<Space, TreeError> {
    let space = rustix::fs::fstatvfs(node.path()).map_err(failed)?;
    let available = if base.permit.who(caller).uid == 0 { space.f_bfree } else { space.f_bavail };
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok(Space {
        bytes: bytes(space.f_blocks),
        free: bytes(space.f_bfree),
        available: bytes(available),
        files: space.f_files,
        files_free: space.f_favail,
    })
}
