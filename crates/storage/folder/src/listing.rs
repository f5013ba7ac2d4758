//! Listings of directories. Cookies are the file system's own (getdents64(2)'s d_off).

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{RawDir, SeekFrom};
use tree::{Attributes, Caller, DirEntry, DirRoom, Entries, NodeId, Permissions, TreeError};

use crate::base::Base;
use crate::node::Node;
use crate::stat::Stat;
use crate::{failed, locate};

/// Bytes of entries that are read at a time.
const LEAST: usize = 4 << 10;
const MOST: usize = 64 << 10;
/// A short name, bytes.
const SHORT: usize = 16;

/// Lists a directory behind `cookie`.
pub(crate) fn read_dir(
    base: &Arc<Base>,
    caller: &Caller,
    directory: &NodeId,
    cookie: u64,
    mut room: DirRoom,
) -> Result<Entries, TreeError> {
    let node = locate::find(base, directory)?;
    base.directory(caller, &node, Permissions::READ)?;
    let open = node.open_directory()?;
    if cookie != 0 {
        if i64::try_from(cookie).is_err() {
            return Err(TreeError::BadCookie);
        }
        rustix::fs::seek(&open, SeekFrom::Start(cookie)).map_err(|error| match error {
            rustix::io::Errno::INVAL => TreeError::BadCookie,
            _ => failed(error),
        })?;
    }
    let mut bytes = Vec::with_capacity(room.bytes.clamp(LEAST, MOST));
    let mut raw = RawDir::new(&open, bytes.spare_capacity_mut());
    let mut entries = Vec::with_capacity(room.bytes.min(MOST) / (room.each + SHORT));
    let mut eof = true;
    while let Some(entry) = raw.next() {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if !room.take(name) {
            eof = false;
            break;
        }
        let file = room.nodes.then(|| about(base, &node, open.as_fd(), entry.file_name())).flatten();
        let fileid = file.as_ref().map_or(entry.ino(), |(_, file)| file.fileid);
        let (cookie, name) = (entry.next_entry_cookie(), name.to_vec());
        entries.push(DirEntry { cookie, name, fileid, node: file });
    }
    let (attributes, parent) = (base.attributes(&node)?, locate::parent_number(base, &node)?);
    Ok(Entries { entries, eof, attributes, parent })
}

/// An entry's file, if it is still there and not mounted over.
fn about(
    base: &Base,
    directory: &Node,
    open: std::os::fd::BorrowedFd<'_>,
    name: &std::ffi::CStr,
) -> Option<(NodeId, Attributes)> {
    let stat = Stat::at(open, name).ok()?;
    if stat.is_mount() {
        return None;
    }
    match base.locator.id(open, name, &stat) {
        Ok(id) => {
            base.locator.saw(&stat, &directory.id, name.to_bytes());
            let mut attributes = stat.attributes(base.locator.root.0);
            base.changes.show(&id, &mut attributes);
            Some((id, attributes))
        }
        // Both at once, from an open file.
        Err(_) => {
            let (node, stat) = locate::child(base, directory, name.to_bytes(), false).ok()?;
            Some((node.id, base.shown(&node, &stat)))
        }
    }
}
