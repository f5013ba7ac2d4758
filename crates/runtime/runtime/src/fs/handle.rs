//! [`FileHandle`]: a file system's identifier of a file, independent of its names.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most bytes of a handle (MAX_HANDLE_SZ).
const MOST: usize = 128;

/// `struct file_handle` of the kernel's ABI.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    len: u32,
    kind: i32,
    bytes: [u8; MOST],
}

/// A file's handle (name_to_handle_at(2)). It stays the same until the file is removed.
#[derive(Clone, Copy)]
pub struct FileHandle(Raw);

impl FileHandle {
    /// The handle of `name` in a directory; an empty name is the descriptor's file itself. A
    /// symbolic link is not followed.
    ///
    /// # Errors
    /// Those of name_to_handle_at(2): EOPNOTSUPP where the file system has no handles.
    pub fn of(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<Self> {
        let mut raw = Raw { len: MOST as u32, kind: 0, bytes: [0; MOST] };
        let mut mount = 0;
        let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
        // SAFETY: the name is a C string. The handle has as much room as its length field gives,
        // and both it and the mount's number outlive the call.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                directory.as_raw_fd(),
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                flags,
            )
        };
        if rc == 0 { Ok(Self(raw)) } else { Err(io::Error::last_os_error()) }
    }

    /// The handle of this kind with these bytes; `None` if there are more than a handle holds.
    pub fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut raw = Raw { len: bytes.len() as u32, kind, bytes: [0; MOST] };
        raw.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(raw))
    }

    /// The file system's kind of handle.
    pub fn kind(&self) -> i32 {
        self.0.kind
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes[..(self.0.len as usize).min(MOST)]
    }

    /// Opens the file with `flags` of open(2). `mount` is any descriptor of the mount.
    ///
    /// # Errors
    /// Those of open_by_handle_at(2): ESTALE if the file is gone, EPERM without
    /// CAP_DAC_READ_SEARCH.
    pub fn open(&self, mount: BorrowedFd<'_>, flags: i32) -> io::Result<OwnedFd> {
        // SAFETY: the handle has as many bytes as its length field gives, and outlives the call.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw const self.0,
                flags | libc::O_CLOEXEC,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that is ours alone.
        Ok(unsafe { OwnedFd::from_raw_fd(rc as i32) })
    }
}
