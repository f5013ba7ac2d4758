//! Arguments and results of the operations on files.

use super::locks::Denied;
use super::opens::Share;
use crate::v4::{LockType, Stateid, Status, WhyNoDelegation};

/// The right by which a client opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// NULL and FH: a new open.
    New,
    /// PREVIOUS: the client had it open before the server's restart.
    Reclaim {
        /// It held a read delegation.
        delegation: bool,
    },
    /// DELEGATE_CUR and DELEG_CUR_FH: the client holds this delegation of the file.
    Delegated(Stateid),
}

/// The arguments of OPEN that concern state.
#[derive(Debug, Clone, Copy)]
pub struct OpenFile<'a, F> {
    /// The file, which exists.
    pub file: &'a F,
    /// The open owner. Its client is that of the session.
    pub owner: &'a [u8],
    /// The access that the client requests, and the access to deny to others.
    pub share: Share,
    /// The right by which the client opens.
    pub claim: Claim,
    /// Bits of [`flags::want`](crate::v4::flags::want).
    pub want: u32,
    /// A change of the file is in progress that was admitted before, or may be made without
    /// [`check_change`](super::ServerState::check_change): no delegation is given.
    pub changing: bool,
    /// The file was made for this open, after [`has_room`](super::ServerState::has_room): there is
    /// room for it, even if opens of other requests in progress have taken it meanwhile.
    pub made: bool,
}

/// A read delegation that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delegated {
    /// Its stateid.
    pub stateid: Stateid,
    /// The client has to return it at once.
    pub recall: bool,
}

/// The results of OPEN that concern state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The open.
    pub stateid: Stateid,
    /// A read delegation, or why there is none.
    pub delegation: Result<Delegated, WhyNoDelegation>,
}

/// The arguments of LOCK and LOCKT that concern state.
#[derive(Debug, Clone, Copy)]
pub struct LockFile<'a, F> {
    /// The file.
    pub file: &'a F,
    /// READ or WRITE, and whether the client waits.
    pub kind: LockType,
    /// First byte.
    pub offset: u64,
    /// Length, bytes. All ones is to the end of the file.
    pub length: u64,
}

/// Reasons for which LOCK or LOCKT is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotLocked {
    /// DENIED: another owner holds this lock.
    Denied(Denied),
    /// Another error.
    Status(Status),
}

impl From<Status> for NotLocked {
    fn from(status: Status) -> Self {
        NotLocked::Status(status)
    }
}

/// The amount of state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Clients, confirmed or not.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Bytes of cached replies.
    pub replies: u64,
    /// Bytes that the sessions reserve for cached replies.
    pub reserved: u64,
    /// Files with state.
    pub files: usize,
    /// Opens.
    pub opens: usize,
    /// Lock owners and files with locks.
    pub locks: usize,
    /// Waiting locks.
    pub waiting: usize,
    /// Delegations, revoked ones too.
    pub delegations: usize,
}
