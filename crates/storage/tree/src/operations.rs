//! Arguments and results of a [`Tree`](crate::Tree)'s operations.

use runtime::Chain;

use crate::{Attributes, Changed, Device, Kind, NodeId, Permissions, SetAttributes, Time};

/// A file that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub node: NodeId,
    /// Its attributes.
    pub attributes: Attributes,
    /// The directory's.
    pub directory: Attributes,
}

/// A caller's permissions for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The granted ones of the requested permissions.
    pub permissions: Permissions,
    /// The file's attributes.
    pub attributes: Attributes,
}

/// Target of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The path, as it was given to the link. The client resolves it, not the server.
    pub path: Vec<u8>,
    /// The link's.
    pub attributes: Attributes,
}

/// Data that was read.
pub struct Read {
    /// The bytes: fewer than requested at the end of the file, or where the tree prefers so. They
    /// may be the medium's own memory, which shows later writes: only to be sent.
    pub data: Chain,
    /// Whether they reach the end of the file.
    pub eof: bool,
    /// The file's, not older than the data.
    pub attributes: Attributes,
}

/// Time by which written data has to be on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// At the next commit.
    Unstable,
    /// Before the answer, with the metadata needed to read it.
    Data,
    /// Before the answer, with all attributes.
    File,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes: at least one, if any were given.
    pub len: usize,
    /// Durability of the bytes: at least the requested one.
    pub stability: Stability,
    /// See [`Committed::verifier`].
    pub verifier: u64,
    /// The file.
    pub file: Changed,
}

/// Result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Changes whenever written data that was not committed may be lost: at a restart, and after a
    /// failed flush. A client compares it with that of its writes, and sends them again.
    pub verifier: u64,
    /// The file.
    pub file: Changed,
}

/// Conditions for creating a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewFile {
    /// A regular file of that name may exist. Then only its size is set, if it is among these. If
    /// the name is another type of file, the result is
    /// [`TreeError::Exists`](crate::TreeError::Exists).
    Unchecked(SetAttributes),
    /// No file of that name may exist.
    Guarded(SetAttributes),
    /// No file of that name may exist, unless the same client has just made it. The tree keeps the
    /// verifier with the file, over a restart too, until its attributes are set.
    Exclusive {
        /// Names the attempt.
        verifier: [u8; 8],
        /// To set as soon as the file exists (NFSv4's EXCLUSIVE4_1).
        attributes: SetAttributes,
    },
}

/// The file to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New<'a> {
    /// A regular file.
    File(NewFile),
    /// A directory.
    Directory(SetAttributes),
    /// A symbolic link to this path.
    Symlink(&'a [u8], SetAttributes),
    /// A device, a socket or a named pipe.
    Special(Kind, Device, SetAttributes),
}

/// A file that was made, or existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The file.
    pub node: NodeId,
    /// Its attributes.
    pub attributes: Attributes,
    /// The directory.
    pub directory: Changed,
    /// Whether it was made now.
    pub new: bool,
}

/// Types of file that [`Tree::remove`](crate::Tree::remove) may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
    /// Either.
    Any,
}

/// A name that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The file that the name referred to.
    pub node: NodeId,
    /// The directory.
    pub directory: Changed,
}

/// A name that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The file that had the new name before, if it lost that name.
    pub replaced: Option<NodeId>,
    /// The directory it came from.
    pub from: Changed,
    /// The directory it went to.
    pub to: Changed,
}

/// A name that was added to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linked {
    /// The file.
    pub attributes: Attributes,
    /// The directory.
    pub directory: Changed,
}

/// Size limits of one answer to a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirRoom {
    /// Bytes in all.
    pub bytes: usize,
    /// Bytes that an entry takes beside its name. The name is padded to a multiple of 4.
    pub each: usize,
    /// Bytes of file ids, names and cookies in all, where an entry takes 20 beside its padded name
    /// (NFS's `dircount`).
    pub names: usize,
    /// Whether entries have [`DirEntry::node`].
    pub nodes: bool,
}

impl DirRoom {
    /// Takes the room of an entry. False, and nothing taken, if there is none.
    pub fn take(&mut self, name: &[u8]) -> bool {
        let padded = name.len().next_multiple_of(4);
        let left = (self.bytes.checked_sub(self.each + padded), self.names.checked_sub(20 + padded));
        let (Some(bytes), Some(names)) = left else { return false };
        (self.bytes, self.names) = (bytes, names);
        true
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Position in the listing behind this entry. Above 2, valid for as long as the entry exists,
    /// whatever entries are added or removed around it.
    pub cookie: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// [`Attributes::fileid`] of the file.
    pub fileid: u64,
    /// The file, if it was asked for and still exists.
    pub node: Option<(NodeId, Attributes)>,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// At least one, unless the directory ends here or [`DirRoom`] holds none. Without `.` and
    /// `..`.
    pub entries: Vec<DirEntry>,
    /// Whether the directory ends behind them.
    pub eof: bool,
    /// The directory's.
    pub attributes: Attributes,
    /// [`Attributes::fileid`] of the directory's parent: for `..`.
    pub parent: u64,
}

/// The space of a file system, as a caller may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that are free for the caller.
    pub available: u64,
    /// Files that there may be.
    pub files: u64,
    /// Files that may still be made.
    pub files_free: u64,
}

/// Limits and capabilities of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Largest file, bytes.
    pub file_size: u64,
    /// Longest name, bytes.
    pub name: u32,
    /// Most hard links of a file.
    pub links: u32,
    /// Smallest difference of two times that it keeps.
    pub time: Time,
    /// Whether it has extended attributes.
    pub extended_attributes: bool,
}

/// Bytes that a [`Tree::seek`](crate::Tree::seek) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Bytes that may have been written.
    Data,
    /// Bytes that the medium does not store. The end of a file is a hole.
    Hole,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_by_padded_names_and_by_dircount() {
        let mut room = DirRoom { bytes: 60, each: 20, names: 1000, nodes: false };
        assert!(room.take(b"12345"), "28 of 60");
        assert!(room.take(b"12345678901"), "32 of 32");
        assert_eq!(room.bytes, 0);
        assert!(!room.take(b""));
        let mut room = DirRoom { bytes: 1000, each: 20, names: 47, nodes: false };
        assert!(room.take(b"123"));
        assert!(!room.take(b"1"), "24 of 23");
        assert_eq!((room.bytes, room.names), (976, 23));
    }
}
