//! The attributes that `stag cp --preserve` keeps: modification time, mode, and where permitted
//! owner and group. By them, `--resume` recognizes a file that is already copied.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nfs_client::{Attributes, Client, Error, FileType, Handle, SetAttributes, Status, Time, Url};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::copy::{CopyError, RemoteError};

/// Type of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    Other,
}

/// A file, as far as a copy is concerned.
#[derive(Clone, Copy)]
pub struct About {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits: 07777.
    pub mode: u32,
    bytes: u64,
    changed: Time,
    /// `None` if the server reports no number.
    owner: Option<u32>,
    group: Option<u32>,
}

impl From<&std::fs::Metadata> for About {
    fn from(of: &std::fs::Metadata) -> Self {
        let kind = match of.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        let nanoseconds = u32::try_from(of.mtime_nsec()).unwrap_or(0);
        Self {
            kind,
            mode: of.mode() & 0o7777,
            bytes: of.size(),
            changed: Time { seconds: of.mtime(), nanoseconds },
            owner: Some(of.uid()),
            group: Some(of.gid()),
        }
    }
}

impl From<&Attributes> for About {
    fn from(of: &Attributes) -> Self {
        let kind = match of.kind {
            FileType::Regular => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        };
        Self {
            kind,
            mode: of.mode,
            bytes: of.size,
            changed: of.mtime,
            owner: of.owner.parse().ok(),
            group: of.group.parse().ok(),
        }
    }
}

impl About {
    /// Whether `copy` has the attributes of a complete copy of this file made with `--preserve`.
    pub fn is_copied_as(&self, copy: &Self) -> bool {
        let (own, other) = (self.changed, copy.changed);
        // Each file system stores times with its own resolution, ns.
        let steps = [1, 100, 1000, 1_000_000, 1_000_000_000];
        let rounded = |step| other.nanoseconds == own.nanoseconds - own.nanoseconds % step;
        self.kind == copy.kind
            && self.bytes == copy.bytes
            && own.seconds == other.seconds
            && steps.into_iter().any(rounded)
    }
}

/// A new file or directory.
pub enum Made {
    /// Of this machine.
    Local(PathBuf),
    /// Of a server.
    Remote { client: Client, url: Url, handle: Handle },
}

impl Made {
    /// Sets its time, mode, owner and group to those of `of`. Leaves an owner or group that this
    /// user may not set.
    ///
    /// # Errors
    /// The file's attributes cannot be set.
    pub async fn keep(&self, of: &About) -> Result<(), CopyError> {
        match self {
            Self::Local(path) => {
                local(path, of).map_err(|error| CopyError::Io { place: path.display().to_string(), error })
            }
            Self::Remote { client, url, handle } => remote(client, handle, of).await.map_err(|error| {
                CopyError::Remote { place: url.to_string(), error: RemoteError::File(error) }
            }),
        }
    }
}

fn local(path: &std::path::Path, of: &About) -> io::Result<()> {
    use std::os::unix::fs::{PermissionsExt, lchown};
    let denied = |changed: io::Result<()>| match changed {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        changed => changed.map(|()| true),
    };
    if !denied(lchown(path, of.owner, of.group))? {
        denied(lchown(path, None, of.group))?;
    }
    // After chown, which clears the set-user-ID bit. A symbolic link has no mode.
    if of.kind != Kind::Symlink {
        std::fs::set_permissions(path, PermissionsExt::from_mode(safe(of.mode, path.metadata()?.uid(), of)))?;
    }
    let changed = Timespec { tv_sec: of.changed.seconds, tv_nsec: of.changed.nanoseconds.into() };
    let times =
        Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: changed };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The mode, without set-user-ID and set-group-ID if the copy has another owner. Otherwise a
/// program would run as a user who is not its owner's.
fn safe(mode: u32, owner: u32, of: &About) -> u32 {
    if of.owner == Some(owner) { mode } else { mode & 0o1777 }
}

async fn remote(client: &Client, handle: &Handle, of: &About) -> Result<(), Error> {
    let bits = if of.owner.is_some() { 0o7777 } else { 0o1777 };
    let mode = (of.kind != Kind::Symlink).then_some(of.mode & bits);
    let group = of.group.map(Into::into);
    let all =
        SetAttributes { mode, mtime: Some(of.changed), owner: of.owner.map(Into::into), group, size: None };
    let without = SetAttributes { mode: mode.map(|mode| mode & 0o1777), owner: None, ..all };
    for set in [all, without] {
        match client.set_attributes(handle, &set).await {
            Err(Error::Status(Status::Perm | Status::Access | Status::BadOwner)) => {}
            done => return done,
        }
    }
    client.set_attributes(handle, &SetAttributes { group: None, ..without }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(bytes: u64, seconds: i64, nanoseconds: u32) -> About {
        let changed = Time { seconds, nanoseconds };
        About { kind: Kind::File, mode: 0o644, bytes, changed, owner: Some(1), group: Some(1) }
    }

    #[test]
    fn a_copy_is_known_by_its_size_and_time() {
        let of = about(10, 5, 123_456_789);
        for nanoseconds in [123_456_789, 123_456_700, 123_456_000, 123_000_000, 0] {
            assert!(of.is_copied_as(&about(10, 5, nanoseconds)), "{nanoseconds}");
        }
        for other in [about(11, 5, 123_456_789), about(10, 6, 123_456_789), about(10, 5, 123_456_788)] {
            assert!(!of.is_copied_as(&other));
        }
        assert!(!of.is_copied_as(&About { kind: Kind::Symlink, ..of }));
    }

    #[test]
    fn set_user_id_is_kept_for_the_same_owner_only() {
        let of = about(1, 1, 1);
        assert_eq!((safe(0o4755, 1, &of), safe(0o4755, 2, &of)), (0o4755, 0o755));
    }
}
