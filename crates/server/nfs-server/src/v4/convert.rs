//! Between the tree's types and those of NFSv4 (RFC 8881 §3.3, §15.1).

use nfs::v4::{ChangeInfo, FileType, Stable, Status, Time, Verifier};
use tree::{Changed, Kind, Stability, TreeError};

pub(super) fn time(time: tree::Time) -> Time {
    Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

pub(super) fn kind(kind: Kind) -> FileType {
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

/// A directory around a change.
pub(super) fn changed(of: &Changed) -> ChangeInfo {
    let after = of.after.change;
    match &of.before {
        Some(before) => ChangeInfo { atomic: true, before: before.change, after },
        // Not the client's last one, most likely: the client drops its cache of the directory.
        None => ChangeInfo { atomic: false, before: after.wrapping_sub(1), after },
    }
}

/// A directory that stays as it is.
pub(super) fn unchanged(change: u64) -> ChangeInfo {
    ChangeInfo { atomic: true, before: change, after: change }
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

pub(super) fn verifier(of: u64) -> Verifier {
    Verifier(of.to_be_bytes())
}

pub(super) fn status(error: TreeError) -> Status {
    match error {
        TreeError::NotOwner => Status::Perm,
        TreeError::Access => Status::Access,
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
        // Only NFSv3 asks for it.
        TreeError::NotSync => Status::ServerFault,
        TreeError::BadCookie => Status::BadCookie,
        TreeError::Unsupported => Status::NotSupp,
        TreeError::BadKind => Status::BadType,
        TreeError::NoAttribute => Status::NoXattr,
        TreeError::TooBig => Status::Xattr2Big,
        TreeError::Delay => Status::Delay,
    }
}
