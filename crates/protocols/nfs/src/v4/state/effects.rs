//! Effects that the state asks of its caller: records for stable storage, and calls to clients.

use super::back::Connection;
use super::clients::Record;
use crate::v4::{ClientId, SessionId, Stateid, Status};

/// An effect that the caller has to carry out. The first three variants are carried out in their
/// order. They are durable before any answer leaves that was given after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<F> {
    /// Keep this record, in place of one of the same owner.
    Remember(Record),
    /// Take away the record of this owner.
    Forget(Box<[u8]>),
    /// The grace period is over: keep these records and no others, in one atomic step.
    EndGrace(Vec<Record>),
    /// Call a client.
    Call(Callback<F>),
}

/// A CB_COMPOUND to send. The caller reports its outcome to [`super::ServerState::called`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback<F> {
    /// The connection that carries it.
    pub connection: Connection,
    /// The minor version.
    pub minor: u32,
    /// RPC program number of the client's callback service.
    pub program: u32,
    /// The `opaque_auth` of the call, in XDR.
    pub credential: Box<[u8]>,
    /// `csa_sessionid`.
    pub session: SessionId,
    /// `csa_slotid`.
    pub slot: u32,
    /// `csa_sequenceid`.
    pub sequence: u32,
    /// `csa_highest_slotid`.
    pub highest_slot: u32,
    /// The operation after CB_SEQUENCE.
    pub operation: CallbackOperation<F>,
}

/// The operation after CB_SEQUENCE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackOperation<F> {
    /// None.
    Probe,
    /// CB_RECALL.
    Recall {
        /// The delegation.
        stateid: Stateid,
        /// Its file.
        file: F,
    },
    /// CB_NOTIFY_LOCK.
    NotifyLock {
        /// The file.
        file: F,
        /// The client of the lock owner.
        client: ClientId,
        /// The lock owner.
        owner: Box<[u8]>,
    },
}

/// The outcome of a [`Callback`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// CB_SEQUENCE succeeded. The result of the operation after it.
    Done(Result<(), Status>),
    /// CB_SEQUENCE failed.
    Refused(Status),
    /// There was no answer in time. After the end of a connection, [`super::ServerState::closed`]
    /// is enough.
    Lost,
}
