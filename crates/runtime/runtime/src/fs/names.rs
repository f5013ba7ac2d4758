//! Files by their names: opened, renamed, removed, and made durable. Stores use these calls instead
//! of `std::fs`, so that a simulated world can have files of its own.
//!
//! All of them are system calls that may block. Errors are those of the call.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use super::OpenOptions;
use super::file::open_fd;
use crate::net::check;
use crate::sim;

/// Opens `path`. The size of the options is not looked at.
pub fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
    open_fd(path, options).map(File::from)
}

/// What is known of the file at `path`.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    match sim::files::path(path) {
        Some(there) => fs::metadata(there?),
        None => fs::metadata(path),
    }
}

/// [`metadata`], without following a symbolic link at `path`.
pub fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    match sim::files::path(path) {
        Some(there) => fs::metadata(there?),
        None => fs::symlink_metadata(path),
    }
}

/// Renames a file, in place of another one.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    sim::files::rename(from, to).unwrap_or_else(|| fs::rename(from, to))
}

/// Removes a file.
pub fn remove(path: &Path) -> io::Result<()> {
    sim::files::remove(path).unwrap_or_else(|| fs::remove_file(path))
}

/// Writes `bytes` at the start of a file.
pub fn write(file: &File, bytes: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let piece =
            [libc::iovec { iov_base: bytes[at..].as_ptr().cast_mut().cast(), iov_len: bytes.len() - at }];
        // SAFETY: the piece names bytes that are borrowed, and they are only read.
        match unsafe { sim::files::write(file.as_raw_fd(), &piece, at as u64, 0) } {
            Some(written) => at += written?,
            None => return std::os::unix::fs::FileExt::write_all_at(file, bytes, 0),
        }
    }
    Ok(())
}

/// Makes a file and its length durable.
pub fn sync(file: &File) -> io::Result<()> {
    sim::files::sync(file.as_raw_fd()).unwrap_or_else(|| file.sync_all())
}

/// Makes the names in a directory durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    sim::files::sync_directory(path).unwrap_or_else(|| File::open(path)?.sync_all())
}

/// Bytes that users can still write to the file system of `path`.
pub fn room(path: &Path) -> io::Result<u64> {
    if let Some(room) = sim::files::room(path) {
        return room;
    }
    let path = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))?;
    // SAFETY: plain numbers, for which zeros are valid and which the call writes; the path outlives
    // it.
    let system = unsafe {
        let mut system: libc::statvfs64 = std::mem::zeroed();
        check(libc::statvfs64(path.as_ptr(), &raw mut system))?;
        system
    };
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Whether the file system keeps its files only in memory.
pub fn is_in_memory(file: impl AsFd) -> bool {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: plain numbers, for which zeros are valid and which the call writes.
    let system = unsafe {
        let mut system: libc::statfs64 = std::mem::zeroed();
        check(libc::fstatfs64(fd, &raw mut system)).map(|_| system)
    };
    // TMPFS_MAGIC and RAMFS_MAGIC.
    system.is_ok_and(|system| [0x0102_1994, 0x8584_58f6].contains(&system.f_type)) && !sim::files::has(fd)
}
