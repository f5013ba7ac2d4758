//! Between the tree's types and those of NFSv3 (RFC 1813 §2.5, §2.6).

use nfs::v3::{self, FileType, PreAttributes, SetAttributes, SetTime, Stable, Status, Wcc};
use tree::{Attributes, Before, Changed, Kind, Stability, TreeError};

use crate::model::Exported;

/// `nfstime3` has 32 bits of seconds: earlier and later times become its ends.
pub(super) fn time(time: tree::Time) -> v3::Time {
    match u32::try_from(time.seconds) {
        Ok(seconds) => v3::Time { seconds, nanoseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => v3::Time { seconds: 0, nanoseconds: 0 },
        Err(_) => v3::Time { seconds: u32::MAX, nanoseconds: 999_999_999 },
    }
}

pub(super) fn tree_time(time: v3::Time) -> tree::Time {
    tree::Time { seconds: time.seconds.into(), nanoseconds: time.nanoseconds }
}

fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Regular => FileType::Regular,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Block => FileType::Block,
        Kind::Character => FileType::Character,
        Kind::Socket => FileType::Socket,
        Kind::Fifo => FileType::Fifo,
    }
}

pub(super) fn attributes(export: &Exported, of: &Attributes) -> v3::Attributes {
    v3::Attributes {
        kind: kind(of.kind),
        mode: of.mode & 0o7777,
        links: of.links,
        uid: of.uid,
        gid: of.gid,
        size: of.size,
        used: of.used,
        device: v3::Device { major: of.device.major, minor: of.device.minor },
        fsid: export.id.0.wrapping_add(of.fsid),
        fileid: of.fileid,
        atime: time(of.atime),
        mtime: time(of.mtime),
        ctime: time(of.ctime),
    }
}

/// The status of what an NFSv4 client is in the way of (RFC 1813 §2.6).
pub(super) fn denied(status: nfs::v4::Status) -> Status {
    if status == nfs::v4::Status::Delay { Status::Jukebox } else { Status::Acces }
}

fn before(of: &Before) -> PreAttributes {
    PreAttributes { size: of.size, mtime: time(of.mtime), ctime: time(of.ctime) }
}

pub(super) fn changed(export: &Exported, of: &Changed) -> Wcc {
    Wcc { before: of.before.as_ref().map(before), after: Some(attributes(export, &of.after)) }
}

/// `None` if a time has 10⁹ nanoseconds or more.
pub(super) fn set(of: &SetAttributes) -> Option<tree::SetAttributes> {
    let time = |of: SetTime| match of {
        SetTime::Keep(()) => Some(tree::SetTime::Keep),
        SetTime::Server(()) => Some(tree::SetTime::Now),
        SetTime::Client(time) if time.nanoseconds < 1_000_000_000 => Some(tree::SetTime::To(tree_time(time))),
        SetTime::Client(_) => None,
    };
    Some(tree::SetAttributes {
        mode: of.mode.map(|mode| mode & 0o7777),
        uid: of.uid,
        gid: of.gid,
        size: of.size,
        atime: time(of.atime)?,
        mtime: time(of.mtime)?,
    })
}

pub(super) fn stability(of: Stable) -> Stability {
    match of {
        Stable::Unstable => Stability::Unstable,
        Stable::DataSync => Stability::Data,
        Stable::FileSync => Stability::File,
    }
}

pub(super) fn stable(of: Stability) -> Stable {
    match of {
        Stability::Unstable => Stable::Unstable,
        Stability::Data => Stable::DataSync,
        Stability::File => Stable::FileSync,
    }
}

pub(super) fn status(error: TreeError) -> Status {
    match error {
        TreeError::NotOwner => Status::Perm,
        TreeError::Access => Status::Acces,
        TreeError::NoEntry => Status::NoEnt,
        TreeError::Io(_) => Status::Io,
        TreeError::Exists => Status::Exist,
        TreeError::CrossDevice => Status::XDev,
        TreeError::NotDirectory => Status::NotDir,
        TreeError::IsDirectory => Status::IsDir,
        TreeError::Invalid => Status::Inval,
        TreeError::FileTooLarge => Status::FBig,
        TreeError::NoSpace => Status::NoSpc,
        TreeError::Quota => Status::DQuot,
        TreeError::ReadOnly => Status::RoFs,
        TreeError::TooManyLinks => Status::MLink,
        TreeError::NameTooLong => Status::NameTooLong,
        TreeError::NotEmpty => Status::NotEmpty,
        TreeError::Stale => Status::Stale,
        TreeError::NotSync => Status::NotSync,
        TreeError::BadCookie => Status::BadCookie,
        TreeError::Unsupported => Status::NotSupp,
        TreeError::BadKind => Status::BadType,
        // NFSv3 has no extended attributes.
        TreeError::NoAttribute | TreeError::TooBig => Status::ServerFault,
        TreeError::Delay => Status::Jukebox,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_32_bits_become_the_ends() {
        let of = |seconds| time(tree::Time { seconds, nanoseconds: 5 });
        assert_eq!(of(-1), v3::Time { seconds: 0, nanoseconds: 0 });
        assert_eq!(of(7), v3::Time { seconds: 7, nanoseconds: 5 });
        assert_eq!(of(1 << 32).seconds, u32::MAX);
    }

    #[test]
    fn a_time_with_too_many_nanoseconds_is_refused() {
        let at = |nanoseconds| SetAttributes {
            mtime: SetTime::Client(v3::Time { seconds: 1, nanoseconds }),
            ..SetAttributes::default()
        };
        assert!(set(&at(999_999_999)).is_some());
        assert!(set(&at(1_000_000_000)).is_none());
    }
}
