//! Trees of files: a folder of the host.
//!
//! A [`Folder`] serves the files below a directory as a [`tree::Tree`]. Its method depends on the
//! process's privileges, which it finds out when it is opened:
//!
//! | | as root | as an ordinary user |
//! |---|---|---|
//! | a file is known by | the file system's handle | inode and birth; a table says where it lies |
//! | calls are made as | the caller | the process's own user |
//!
//! The first row also depends on the file system, which may have no handles (overlayfs), and on
//! Landlock, which cannot locate a file that was opened by its handle. In both cases the table is
//! used, though each caller acts as itself. Ids of the one kind mean nothing to the other.
//!
//! No name of a client leads out of the folder: names are single components, resolved below the
//! descriptor of a directory (openat2(2), RESOLVE_BENEATH), and no link is followed. Ids are sealed
//! with a key of the folder, so that none can be guessed. Other file systems that are mounted
//! inside are not entered.
//!
//! Changes by other processes are visible, with these limits. A file that is moved out of the
//! folder keeps its id; a directory is refused then, once it is not open any more. An ordinary user
//! finds a file that was moved to another directory only when a client looks it up there: until
//! then its id is stale.
//!
//! The table knows one name of a file, the one seen last. If that is removed while the file has
//! others and is not open, its id is stale until the next lookup. On file systems without a time of
//! birth the table may take a new file for a removed one of the same inode number.
#![forbid(unsafe_code)]

mod base;
mod cache;
mod change;
mod create;
mod data;
mod durable;
mod extended;
mod flush;
mod folder;
mod group;
mod ids;
mod listing;
mod locate;
mod locator;
mod metadata;
mod names;
mod node;
mod open;
mod permit;
mod seal;
mod stat;
mod table;

pub use folder::Folder;
pub use open::{OpenError, Options};

use tree::TreeError;

/// The error of a system call.
fn failed(errno: rustix::io::Errno) -> TreeError {
    TreeError::from_errno(errno.raw_os_error())
}

/// The error of opening a file for writing. A file that is being executed cannot be written now.
fn open_failed(error: TreeError) -> TreeError {
    if error == TreeError::Io(libc::ETXTBSY) { TreeError::Delay } else { error }
}

/// A name that a client may give to [`Folder`]'s operations, other than a lookup of `.` or `..`.
fn checked(name: &[u8]) -> Result<&[u8], TreeError> {
    match name {
        b"" | b"." | b".." => Err(TreeError::Invalid),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(TreeError::Invalid),
        _ if name.len() > 255 => Err(TreeError::NameTooLong),
        _ => Ok(name),
    }
}
