//! The operations of COMPOUND (RFC 8881 §18, RFC 7862 §15, RFC 8276 §8): one table.

use rpc::xdr::List;

use super::table::operations;
use super::{Bitmap, ClientId, Fattr, Handle, Name, Outcome, SessionId, Stateid, Text};

mod file;
mod lock;
mod names;
mod offload;
mod open;
mod session;
mod xattr;

pub use file::{AccessOk, Commit, Read, ReadOk, SetAttr, Stable, Write, WriteOk};
pub use lock::{Lock, LockDenied, LockOutcome, LockT, LockU, Locker, NewLockOwner, OldLockOwner};
pub use names::{
    ChangeInfo, Create, CreateOk, CreateType, GssInfo, GssService, ReadDir, ReadDirOk, Rename, Renamed,
    SecInfo, SecInfoStyle,
};
pub use offload::{
    Allocate, CloneRange, Content, CopyNotify, CopyNotifyOk, CopyOk, CopyOutcome, CopyRange,
    CopyRequirements, IoAdvise, NetAddr, NetLoc, OffloadStatusOk, Seek, SeekOk, WriteResponse,
};
pub use open::{
    Claim, Close, CreateHow, DelegateCur, Delegation, Exclusive, ModifiedLimit, Open, OpenDowngrade, OpenOk,
    ReadDelegation, SpaceLimit, StateOwner, WhyNoDelegation, WriteDelegation,
};
pub use session::{
    BackchannelCtl, BindConnToSession, BindConnToSessionOk, CallbackSecurity, Channel, CreateSession,
    CreateSessionOk, ExchangeId, ExchangeIdOk, GssHandles, ImplId, ProtectedOperations, Sequence, SequenceOk,
    ServerOwner, SsvInfo, SsvParameters, StateProtect, StateProtected,
};
pub use xattr::{ListXattrs, ListXattrsOk, SetXattr, SetXattrOption};

operations! {
    /// COMPOUND: from the client to the server.
    pub enum Fore { ident (), last [58, 75] }
    /// Operations, `nfs_opnum4`.
    pub enum Operation;
    /// Arguments.
    pub enum Arguments<'a> { payload Arguments::Write(write) => write.length };
    /// Results.
    pub enum Results<'a> { payload Results::Read(Outcome::Ok(read)) => read.length };
    supported {
        /// The caller's rights: bits of [`access`](super::flags::access).
        3 Access(u32) -> Outcome<AccessOk>;
        /// Ends an open.
        4 Close(Close) -> Outcome<Stateid>;
        /// Makes written data stable.
        5 Commit(Commit) -> Outcome<super::Verifier>;
        /// Creates an object that is no regular file.
        6 Create(Create<'a>) -> Outcome<CreateOk>;
        /// Drops delegations that wait for a restarted client.
        7 DelegPurge(ClientId) -> Outcome<()>;
        /// Returns a delegation.
        8 DelegReturn(Stateid) -> Outcome<()>;
        /// The current file's attributes.
        9 GetAttr(Bitmap) -> Outcome<Fattr<'a>>;
        /// The current file's handle.
        10 GetFh(()) -> Outcome<Handle<'a>>;
        /// Makes a hard link of the saved file in the current directory.
        11 Link(Name<'a>) -> Outcome<ChangeInfo>;
        /// Locks.
        12 Lock(Lock<'a>) -> LockOutcome<'a, Stateid>;
        /// Whether a lock would conflict.
        13 LockT(LockT<'a>) -> LockOutcome<'a, ()>;
        /// Unlocks.
        14 LockU(LockU) -> Outcome<Stateid>;
        /// Makes the file of a name the current one.
        15 Lookup(Name<'a>) -> Outcome<()>;
        /// Makes the parent the current file.
        16 LookupP(()) -> Outcome<()>;
        /// Stops with SAME if the attributes are these.
        17 NVerify(Fattr<'a>) -> Outcome<()>;
        /// Opens or creates a regular file.
        18 Open(Open<'a>) -> Outcome<OpenOk<'a>>;
        /// Makes the directory of named attributes the current file; true creates it.
        19 OpenAttr(bool) -> Outcome<()>;
        /// Gives up a part of an open's access.
        21 OpenDowngrade(OpenDowngrade) -> Outcome<Stateid>;
        /// Sets the current file.
        22 PutFh(Handle<'a>) -> Outcome<()>;
        /// Makes the public file the current one.
        23 PutPubFh(()) -> Outcome<()>;
        /// Makes the root the current file.
        24 PutRootFh(()) -> Outcome<()>;
        /// Reads data. The results' payload follows them.
        25 Read(Read) -> Outcome<ReadOk>;
        /// A directory's entries.
        26 ReadDir(ReadDir) -> Outcome<ReadDirOk<'a>>;
        /// A symbolic link's path.
        27 ReadLink(()) -> Outcome<Text<'a>>;
        /// Removes a name.
        28 Remove(Name<'a>) -> Outcome<ChangeInfo>;
        /// Renames.
        29 Rename(Rename<'a>) -> Outcome<Renamed>;
        /// Makes the saved file the current one.
        31 RestoreFh(()) -> Outcome<()>;
        /// Saves the current file.
        32 SaveFh(()) -> Outcome<()>;
        /// The security flavors of a name.
        33 SecInfo(Name<'a>) -> Outcome<List<'a, SecInfo<'a>>>;
        /// Changes attributes; the result says which.
        34 SetAttr(SetAttr<'a>) -> Outcome<Bitmap, Bitmap>;
        /// Stops with NOT_SAME unless the attributes are these.
        37 Verify(Fattr<'a>) -> Outcome<()>;
        /// Writes data. The arguments' payload follows them.
        38 Write(Write) -> Outcome<WriteOk>;
        /// Changes how the server calls back.
        40 BackchannelCtl(BackchannelCtl<'a>) -> Outcome<()>;
        /// Adds this connection to a session.
        41 BindConnToSession(BindConnToSession) -> Outcome<BindConnToSessionOk>;
        /// Makes a client ID.
        42 ExchangeId(ExchangeId<'a>) -> Outcome<ExchangeIdOk<'a>>;
        /// Makes a session.
        43 CreateSession(CreateSession<'a>) -> Outcome<CreateSessionOk>;
        /// Ends a session.
        44 DestroySession(SessionId) -> Outcome<()>;
        /// Ends a state that was revoked, or an owner's locks.
        45 FreeStateid(Stateid) -> Outcome<()>;
        /// The security flavors of the current file or its parent.
        52 SecInfoNoName(SecInfoStyle) -> Outcome<List<'a, SecInfo<'a>>>;
        /// The place in a session; first of every COMPOUND but a few.
        53 Sequence(Sequence) -> Outcome<SequenceOk>;
        /// Whether stateids are valid.
        55 TestStateid(List<'a, Stateid>) -> Outcome<List<'a, Outcome<()>>>;
        /// Ends a client ID.
        57 DestroyClientId(ClientId) -> Outcome<()>;
        /// The client has no more to reclaim; true means of the current file system only.
        58 ReclaimComplete(bool) -> Outcome<()>;
        /// Reserves space.
        59 Allocate(Allocate) -> Outcome<()>;
        /// Copies a range.
        60 Copy(CopyRange<'a>) -> CopyOutcome;
        /// Lets another server read the current file.
        61 CopyNotify(CopyNotify<'a>) -> Outcome<CopyNotifyOk<'a>>;
        /// Makes a hole.
        62 Deallocate(Allocate) -> Outcome<()>;
        /// Says how a range will be used.
        63 IoAdvise(IoAdvise) -> Outcome<Bitmap>;
        /// Ends a copy.
        66 OffloadCancel(Stateid) -> Outcome<()>;
        /// Progress of a copy.
        67 OffloadStatus(Stateid) -> Outcome<OffloadStatusOk>;
        /// Finds data or a hole.
        69 Seek(Seek) -> Outcome<SeekOk>;
        /// Makes a range share the blocks of another one.
        71 Clone(CloneRange) -> Outcome<()>;
        /// An extended attribute's value.
        72 GetXattr(Name<'a>) -> Outcome<Text<'a>>;
        /// Sets an extended attribute.
        73 SetXattr(SetXattr<'a>) -> Outcome<ChangeInfo>;
        /// Names of extended attributes.
        74 ListXattrs(ListXattrs) -> Outcome<ListXattrsOk<'a>>;
        /// Removes an extended attribute.
        75 RemoveXattr(Name<'a>) -> Outcome<ChangeInfo>;
    }
    unsupported {
        /// 4.0 only.
        20 OpenConfirm;
        /// 4.0 only.
        30 Renew;
        /// 4.0 only.
        35 SetClientId;
        /// 4.0 only.
        36 SetClientIdConfirm;
        /// 4.0 only.
        39 ReleaseLockOwner;
        /// A delegation of a directory.
        46 GetDirDelegation;
        /// pNFS: a device's address.
        47 GetDeviceInfo;
        /// pNFS: the devices.
        48 GetDeviceList;
        /// pNFS: makes writes through a layout visible.
        49 LayoutCommit;
        /// pNFS: where a file's data are.
        50 LayoutGet;
        /// pNFS: returns a layout.
        51 LayoutReturn;
        /// Sets the secret of SP4_SSV.
        54 SetSsv;
        /// Asks for a delegation.
        56 WantDelegation;
        /// pNFS: errors of a data server.
        64 LayoutError;
        /// pNFS: statistics of a layout.
        65 LayoutStats;
        /// Reads data and holes.
        68 ReadPlus;
        /// Writes a pattern.
        70 WriteSame;
    }
}

impl Operation {
    /// The operation can come without SEQUENCE before it, and is then the only one (RFC 8881
    /// §2.10.2.2).
    pub fn is_sessionless(self) -> bool {
        matches!(
            self,
            Operation::BindConnToSession
                | Operation::ExchangeId
                | Operation::CreateSession
                | Operation::DestroySession
                | Operation::DestroyClientId
        )
    }

    /// The operation fails with NOFILEHANDLE unless there is a current file. So does
    /// RECLAIM_COMPLETE of one file system.
    pub fn needs_current(self) -> bool {
        self.is_supported()
            && !self.is_sessionless()
            && !matches!(
                self,
                Operation::DelegPurge
                    | Operation::PutFh
                    | Operation::PutPubFh
                    | Operation::PutRootFh
                    | Operation::RestoreFh
                    | Operation::BackchannelCtl
                    | Operation::FreeStateid
                    | Operation::Sequence
                    | Operation::TestStateid
                    | Operation::ReclaimComplete
            )
    }

    /// The operation uses the saved file: NOFILEHANDLE without one, and RESTOREFH of RESTOREFH.
    /// COPY from another server does not.
    pub fn needs_saved(self) -> bool {
        matches!(
            self,
            Operation::Link | Operation::Rename | Operation::RestoreFh | Operation::Copy | Operation::Clone
        )
    }

    /// The operation changes files or state, so that it must not be done twice, and that its reply
    /// must fit before it is done.
    pub fn changes(self) -> bool {
        matches!(
            self,
            Operation::Close
                | Operation::Create
                | Operation::DelegPurge
                | Operation::DelegReturn
                | Operation::Link
                | Operation::Lock
                | Operation::LockU
                | Operation::Open
                | Operation::OpenAttr
                | Operation::OpenDowngrade
                | Operation::Remove
                | Operation::Rename
                | Operation::SetAttr
                | Operation::Write
                | Operation::BackchannelCtl
                | Operation::BindConnToSession
                | Operation::ExchangeId
                | Operation::CreateSession
                | Operation::DestroySession
                | Operation::FreeStateid
                | Operation::DestroyClientId
                | Operation::ReclaimComplete
                | Operation::Allocate
                | Operation::Copy
                | Operation::CopyNotify
                | Operation::Deallocate
                | Operation::OffloadCancel
                | Operation::Clone
                | Operation::SetXattr
                | Operation::RemoveXattr
        )
    }
}
