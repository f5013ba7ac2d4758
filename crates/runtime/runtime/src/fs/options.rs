//! Options for opening a file.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::net::check;

/// Options of [`crate::File::open`]. The default opens an existing file for reading and writing,
/// through the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// For reading only.
    pub read_only: bool,
    /// Past the page cache (O_DIRECT): addresses, lengths and offsets have to be multiples of the
    /// sector size.
    pub direct: bool,
    /// Every write is on the medium when it ends (O_DSYNC).
    pub dsync: bool,
    /// Create the file if it is not there.
    pub create: bool,
    /// With `create`: fail with `AlreadyExists` if it exists.
    pub create_new: bool,
    /// A file that is created is for this user only: mode 0600 instead of 0644.
    pub private: bool,
    /// Cut an existing file to nothing.
    pub truncate: bool,
    /// With `create` or `create_new`: extend a shorter file to this length, sparsely. Bytes.
    pub size: Option<u64>,
    /// Exclusive use of a block device: no other process can open it this way at the same time
    /// (O_EXCL); no effect on files.
    pub exclusive: bool,
}

impl OpenOptions {
    /// Of open(2).
    pub(super) fn flags(&self) -> libc::c_int {
        let mut flags = libc::O_CLOEXEC | if self.read_only { libc::O_RDONLY } else { libc::O_RDWR };
        for (wanted, flag) in [
            (self.direct, libc::O_DIRECT),
            (self.dsync, libc::O_DSYNC),
            (self.create || self.create_new, libc::O_CREAT),
            (self.create_new || self.exclusive, libc::O_EXCL),
            (self.truncate, libc::O_TRUNC),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        if self.exclusive && self.create && !self.create_new {
            // With O_CREAT, O_EXCL would mean that the file must be new.
            flags &= !libc::O_CREAT;
        }
        flags
    }

    pub(super) fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = self.flags();
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mode = if self.private { 0o600 } else { 0o644 };
        // SAFETY: the path is a C string that outlives the call; the descriptor returned is ours
        // alone.
        unsafe { Ok(OwnedFd::from_raw_fd(check(libc::open(path.as_ptr(), flags, mode))?)) }
    }
}
