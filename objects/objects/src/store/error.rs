//! Errors of a store.

use backing::StoreError;

use super::Id;

/// The reason for which a store could not do a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such object, partition or collection, or it is of another kind than the
    /// operation needs.
    #[error("there is no object {:#x} in partition {:#x}", .0.object, .0.partition)]
    NotFound(Id),
    #[error("there is an object {:#x} in partition {:#x} already", .0.object, .0.partition)]
    Exists(Id),
    /// A partition with objects, or a collection with members, which is only removed if that is
    /// asked for.
    #[error("object {:#x} in partition {:#x} is not empty", .0.object, .0.partition)]
    NotEmpty(Id),
    /// An id that nothing can have: less than [`super::FIRST_ID`].
    #[error("{0:#x} cannot be an identifier")]
    BadId(u64),
    #[error("no identifiers are left")]
    NoIds,
    /// The range begins past the end of the object, or the object would become longer than
    /// [`super::MAX_LENGTH`].
    #[error("the range does not fit the object")]
    OutOfRange,
    #[error("the object would become too long")]
    TooLong,
    /// The attribute's value is longer than [`super::MAX_VALUE`].
    #[error("the attribute's value is too long")]
    ValueTooLong,
    /// The change has more steps than [`super::MAX_STEPS`], or steps that do not go together.
    #[error("the change cannot be done as one")]
    BadChange,
    /// The change was asked to end early, and has done nothing: see [`super::Stop`].
    #[error("the change was stopped")]
    Stopped,
    /// The partition is a snapshot: its contents do not change.
    #[error("partition {0:#x} is a snapshot")]
    Snapshot(u64),
    /// The partition is no clone or snapshot, or its source is gone, even if another partition has
    /// the source's id by now.
    #[error("partition {0:#x} has no source")]
    NoSource(u64),
    #[error("no space is left")]
    NoSpace,
    /// The metadata on the medium contradicts itself. A check reports more.
    #[error("the metadata of object {:#x} in partition {:#x} is damaged", .0.object, .0.partition)]
    Damaged(Id),
    /// The store is of a later layout than this version knows.
    #[error("the store has layout {0}, which a later version has made")]
    Layout(u64),
    #[error("out of buffers")]
    NoMemory,
    #[error("the store is read-only")]
    ReadOnly,
    /// The medium failed, with its errno. After a failed commit every later one fails too, until
    /// the store is opened anew.
    #[error("input/output error (errno {0})")]
    Io(i32),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSpace => Self::NoSpace,
            StoreError::ReadOnly => Self::ReadOnly,
            StoreError::NoMemory => Self::NoMemory,
            StoreError::OutOfRange | StoreError::Unsupported | StoreError::Unknown | StoreError::Fenced => {
                Self::Io(libc::EIO)
            }
            StoreError::Io(errno) => Self::Io(errno),
        }
    }
}
