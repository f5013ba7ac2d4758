//! Callbacks: the operations of CB_COMPOUND (RFC 8881 §20, RFC 7862 §16), which the server sends on
//! a connection of the client's. [`Call`](super::Call) and the other streams take [`Back`].

use rpc::xdr::List;
use rpc::xdr_struct;

use super::table::operations;
use super::{Bitmap, Fattr, Handle, Outcome, SessionId, StateOwner, Stateid, WriteResponse};

/// Version of the program. The client chose the program's number in CREATE_SESSION.
pub const VERSION: u32 = 1;
/// The procedure CB_COMPOUND; 0 does nothing.
pub const CB_COMPOUND: u32 = 1;

/// Bits of [`RecallAny::types`] (RFC 8881 §20.6).
pub mod recall_any {
    /// Read delegations.
    pub const READ_DELEGATIONS: u32 = 0;
    /// Write delegations.
    pub const WRITE_DELEGATIONS: u32 = 1;
    /// Delegations of directories.
    pub const DIRECTORY_DELEGATIONS: u32 = 2;
}

xdr_struct! {
    /// `CB_GETATTR4args`.
    #[derive(Copy)]
    pub struct GetAttr<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// The attributes: `size` and `change` only.
        pub requested: Bitmap,
    }

    /// `CB_RECALL4args`.
    #[derive(Copy)]
    pub struct Recall<'a> {
        /// The delegation.
        pub stateid: Stateid,
        /// The file will be truncated, so that the client need not write its data.
        pub truncate: bool,
        /// The file.
        pub file: Handle<'a>,
    }

    /// `CB_RECALL_ANY4args`.
    #[derive(Copy)]
    pub struct RecallAny {
        /// Number of objects that the client may keep.
        pub keep: u32,
        /// Numbers of [`recall_any`].
        pub types: Bitmap,
    }

    /// `referring_call4`.
    #[derive(Copy)]
    pub struct ReferringCall {
        /// The slot's sequence.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
    }

    /// `referring_call_list4`: calls whose replies the client must have seen first.
    #[derive(Copy)]
    pub struct ReferringCalls<'a> {
        /// The session.
        pub session: SessionId,
        /// The calls.
        pub calls: List<'a, ReferringCall>,
    }

    /// `CB_SEQUENCE4args`.
    #[derive(Copy)]
    pub struct Sequence<'a> {
        /// The session.
        pub session: SessionId,
        /// One more than the slot's last; the same in a retry.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// The highest slot with a call outstanding.
        pub highest_slot: u32,
        /// Keep the reply for a retry.
        pub cache: bool,
        /// The client's calls that caused this callback.
        pub referring: List<'a, ReferringCalls<'a>>,
    }

    /// `CB_SEQUENCE4resok`.
    #[derive(Copy)]
    pub struct SequenceOk {
        /// The session.
        pub session: SessionId,
        /// The sequence ID of the call.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// The highest slot that the client takes.
        pub highest_slot: u32,
        /// The highest slot that the server should use.
        pub target_highest_slot: u32,
    }

    /// `CB_NOTIFY_LOCK4args`.
    #[derive(Copy)]
    pub struct NotifyLock<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// The owner that waits for the lock.
        pub owner: StateOwner<'a>,
    }

    /// `CB_OFFLOAD4args`.
    #[derive(Copy)]
    pub struct Offload<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// The stateid of [`WriteResponse::callback`].
        pub stateid: Stateid,
        /// `offload_info4`: the result, or an error and the bytes copied before it.
        pub outcome: Outcome<WriteResponse, u64>,
    }
}

operations! {
    /// CB_COMPOUND: from the server to the client.
    pub enum Back { ident u32, last [14, 15] }
    /// Operations, `nfs_cb_opnum4`.
    pub enum Operation;
    /// Arguments.
    pub enum Arguments<'a>;
    /// Results.
    pub enum Results<'a>;
    supported {
        /// Attributes of a file under a write delegation.
        3 GetAttr(GetAttr<'a>) -> Outcome<Fattr<'a>>;
        /// Recalls a delegation.
        4 Recall(Recall<'a>) -> Outcome<()>;
        /// Recalls some of many objects.
        8 RecallAny(RecallAny) -> Outcome<()>;
        /// Takes slots back; the highest that the client may use.
        10 RecallSlot(u32) -> Outcome<()>;
        /// The place in a session; first of every CB_COMPOUND.
        11 Sequence(Sequence<'a>) -> Outcome<SequenceOk>;
        /// A lock that the client waits for may be free.
        13 NotifyLock(NotifyLock<'a>) -> Outcome<()>;
        /// A copy has ended.
        15 Offload(Offload<'a>) -> Outcome<()>;
    }
    unsupported {
        /// pNFS: recalls layouts.
        5 LayoutRecall;
        /// Changes of a directory.
        6 Notify;
        /// A delegation that the client wanted.
        7 PushDeleg;
        /// A wanted object is available.
        9 RecallableObjAvail;
        /// Wants are cancelled.
        12 WantsCancelled;
        /// pNFS: changes of devices.
        14 NotifyDeviceId;
    }
}
