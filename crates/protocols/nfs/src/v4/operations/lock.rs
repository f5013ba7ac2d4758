//! Byte-range locks (RFC 8881 §18.10 to §18.12).

use rpc::{xdr_struct, xdr_union};

use super::open::StateOwner;
use crate::v4::{ClientId, LockType, OutcomeOr, OwnerId, Stateid, Status};

/// The result of LOCK and LOCKT: a lock in conflict comes with DENIED.
pub type LockOutcome<'a, T> = OutcomeOr<T, LockDenied<'a>, { Status::Denied as u32 }>;

xdr_struct! {
    /// `LOCK4args`.
    #[derive(Copy)]
    pub struct Lock<'a> {
        /// READ or WRITE, and whether the client waits.
        pub kind: LockType,
        /// The client held the lock before the server restarted.
        pub reclaim: bool,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; all ones is up to the end of the file, wherever it is.
        pub length: u64,
        /// The lock owner.
        pub locker: Locker<'a>,
    }

    /// `open_to_lock_owner4`.
    #[derive(Copy)]
    pub struct NewLockOwner<'a> {
        /// Ignored since 4.1.
        pub open_seqid: u32,
        /// The open.
        pub open: Stateid,
        /// Ignored since 4.1.
        pub lock_seqid: u32,
        /// The owner of the locks.
        pub owner: StateOwner<'a>,
    }

    /// `exist_lock_owner4`.
    #[derive(Copy)]
    pub struct OldLockOwner {
        /// The owner's locks.
        pub locks: Stateid,
        /// Ignored since 4.1.
        pub seqid: u32,
    }

    /// `LOCK4denied`: a lock in conflict.
    #[derive(Copy)]
    pub struct LockDenied<'a> {
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; all ones is up to the end of the file.
        pub length: u64,
        /// READ or WRITE.
        pub kind: LockType,
        /// The owner that holds the lock.
        pub owner: StateOwner<'a>,
    }

    /// `LOCKT4args`.
    #[derive(Copy)]
    pub struct LockT<'a> {
        /// READ or WRITE.
        pub kind: LockType,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; all ones is up to the end of the file.
        pub length: u64,
        /// The owner that asks.
        pub owner: StateOwner<'a>,
    }

    /// `LOCKU4args`.
    #[derive(Copy)]
    pub struct LockU {
        /// READ or WRITE.
        pub kind: LockType,
        /// Ignored since 4.1.
        pub seqid: u32,
        /// The owner's locks.
        pub locks: Stateid,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; all ones is up to the end of the file.
        pub length: u64,
    }
}

xdr_union! {
    /// `locker4`.
    #[derive(Copy)]
    pub enum Locker<'a> {
        /// The owner has locks of this open already.
        Old(OldLockOwner) = 0,
        /// The owner's first lock of this open.
        New(NewLockOwner<'a>) = 1,
    }
}

/// A lock without an owner that a client could know, such as one of a local process.
impl Default for LockDenied<'_> {
    fn default() -> Self {
        let owner = StateOwner { client: ClientId(0), owner: OwnerId::EMPTY };
        LockDenied { offset: 0, length: u64::MAX, kind: LockType::Write, owner }
    }
}
