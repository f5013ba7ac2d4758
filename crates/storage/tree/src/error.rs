//! [`TreeError`]: error of an operation on a tree.

use std::io;

/// Error of an operation. Each has its own status in NFSv3 (`nfsstat3`, RFC 1813 §2.6) and NFSv4
/// (`nfsstat4`, RFC 8881 §15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// Only the owner or the super-user may do this.
    #[error("only the owner may do this")]
    NotOwner,
    /// The mode does not permit it.
    #[error("permission denied")]
    Access,
    /// There is no such name.
    #[error("no such file or directory")]
    NoEntry,
    /// The medium failed, with this errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Io(i32),
    /// The name exists.
    #[error("the name exists")]
    Exists,
    /// Both ends must be in one file system.
    #[error("a link or a move across file systems")]
    CrossDevice,
    /// Not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// A directory, where none may be.
    #[error("is a directory")]
    IsDirectory,
    /// A value that is not allowed.
    #[error("invalid argument")]
    Invalid,
    /// The file would be larger than files may be.
    #[error("the file would be too large")]
    FileTooLarge,
    /// No space is left.
    #[error("no space is left")]
    NoSpace,
    /// The owner's quota is exhausted.
    #[error("the quota is exhausted")]
    Quota,
    /// The tree is read-only.
    #[error("the tree is read-only")]
    ReadOnly,
    /// The file has as many links as it may have.
    #[error("too many links")]
    TooManyLinks,
    /// The name is longer than names may be.
    #[error("the name is too long")]
    NameTooLong,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The file does not exist any more.
    #[error("the file does not exist any more")]
    Stale,
    /// The file has changed since the client saw it: its ctime differs.
    #[error("the file has changed since")]
    NotSync,
    /// The directory has no such position.
    #[error("the directory has no such position")]
    BadCookie,
    /// The tree cannot do this.
    #[error("not supported")]
    Unsupported,
    /// The tree has no files of this kind.
    #[error("files of this kind are not supported")]
    BadKind,
    /// The file has no such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// The value is longer than the caller allows.
    #[error("the value is too long")]
    TooBig,
    /// Not now: ask again later.
    #[error("try again later")]
    Delay,
}

impl TreeError {
    /// The error for an errno of the system. 0 and negative numbers become EIO.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM => Self::NotOwner,
            libc::EACCES => Self::Access,
            libc::ENOENT => Self::NoEntry,
            libc::EEXIST => Self::Exists,
            libc::EXDEV => Self::CrossDevice,
            libc::ENOTDIR => Self::NotDirectory,
            libc::EISDIR => Self::IsDirectory,
            libc::EINVAL => Self::Invalid,
            libc::EFBIG => Self::FileTooLarge,
            libc::ENOSPC => Self::NoSpace,
            libc::EDQUOT => Self::Quota,
            libc::EROFS => Self::ReadOnly,
            libc::EMLINK => Self::TooManyLinks,
            libc::ENAMETOOLONG => Self::NameTooLong,
            libc::ENOTEMPTY => Self::NotEmpty,
            libc::ESTALE => Self::Stale,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            libc::ENODATA => Self::NoAttribute,
            libc::E2BIG | libc::ERANGE => Self::TooBig,
            libc::ENOMEM | libc::ENOBUFS | libc::EMFILE | libc::ENFILE | libc::EAGAIN => Self::Delay,
            errno if errno > 0 => Self::Io(errno),
            _ => Self::Io(libc::EIO),
        }
    }
}

impl From<io::Error> for TreeError {
    fn from(error: io::Error) -> Self {
        Self::from_errno(error.raw_os_error().unwrap_or(0))
    }
}
