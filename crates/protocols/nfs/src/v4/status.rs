//! Errors of operations and of COMPOUND, `nfsstat4` (RFC 8881 §15.1, RFC 7862 §11.1, RFC 8276 §8).

use rpc::xdr::{Malformed, Reader, Writer, Xdr};
use rpc::xdr_enum;

use crate::v3;

/// The result of an operation, a union over its status.
pub type Outcome<T, F = ()> = v3::Outcome<T, F, Status>;

xdr_enum! {
    /// Errors, `nfsstat4` without NFS4_OK.
    pub enum Status {
        /// Not owner.
        Perm = 1,
        /// No such file or directory.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// No such device or address.
        NxIo = 6,
        /// Permission denied.
        Access = 13,
        /// The file exists.
        Exist = 17,
        /// The files are on different file systems.
        XDev = 18,
        /// Not a directory.
        NotDir = 20,
        /// A directory where none may be.
        IsDir = 21,
        /// Invalid argument.
        Inval = 22,
        /// The file would be too large.
        FBig = 27,
        /// No space is left.
        NoSpc = 28,
        /// A read-only file system.
        RoFs = 30,
        /// Too many hard links.
        MLink = 31,
        /// The name is too long.
        NameTooLong = 63,
        /// The directory is not empty.
        NotEmpty = 66,
        /// The quota is exceeded.
        DQuot = 69,
        /// The handle's file does not exist any more.
        Stale = 70,
        /// The handle is malformed.
        BadHandle = 10001,
        /// READDIR: the cookie is stale.
        BadCookie = 10003,
        /// The operation is not supported.
        NotSupp = 10004,
        /// The client's limit leaves no room for the reply.
        TooSmall = 10005,
        /// The server failed in another way.
        ServerFault = 10006,
        /// CREATE: the file type is not supported.
        BadType = 10007,
        /// Try again later.
        Delay = 10008,
        /// NVERIFY: the attributes are the same.
        Same = 10009,
        /// The lock is held by another owner.
        Denied = 10010,
        /// The lease expired.
        Expired = 10011,
        /// A lock prevents READ or WRITE.
        Locked = 10012,
        /// The server is in its grace period.
        Grace = 10013,
        /// The handle expired.
        FhExpired = 10014,
        /// Another open denies this access.
        ShareDenied = 10015,
        /// The security flavor is wrong.
        WrongSec = 10016,
        /// Another principal uses this client owner.
        ClidInUse = 10017,
        /// The server lacks resources (4.0 only).
        Resource = 10018,
        /// The file system is at another server.
        Moved = 10019,
        /// There is no current file handle.
        NoFileHandle = 10020,
        /// The minor version is not supported.
        MinorVersMismatch = 10021,
        /// The client ID is unknown.
        StaleClientId = 10022,
        /// The stateid is from before a restart.
        StaleStateid = 10023,
        /// The stateid's seqid is older than the state.
        OldStateid = 10024,
        /// The stateid is not one of this server.
        BadStateid = 10025,
        /// The seqid is out of order (4.0 only).
        BadSeqid = 10026,
        /// VERIFY: the attributes differ. READDIR: the cookie verifier does.
        NotSame = 10027,
        /// The range overlaps locks that the server cannot divide.
        LockRange = 10028,
        /// A symbolic link where none may be.
        Symlink = 10029,
        /// There is no saved file handle.
        RestoreFh = 10030,
        /// A file system with state moved (4.0 only).
        LeaseMoved = 10031,
        /// The attribute is not supported.
        AttrNotSupp = 10032,
        /// A reclaim outside of the grace period.
        NoGrace = 10033,
        /// The reclaim does not fit the server's records.
        ReclaimBad = 10034,
        /// The reclaim conflicts with other state.
        ReclaimConflict = 10035,
        /// The arguments are malformed.
        BadXdr = 10036,
        /// CLOSE: locks are held.
        LocksHeld = 10037,
        /// The open does not allow this access.
        OpenMode = 10038,
        /// The owner or group has no translation.
        BadOwner = 10039,
        /// The name has a character that is not supported.
        BadChar = 10040,
        /// The name is not supported.
        BadName = 10041,
        /// The range of a lock is not supported.
        BadRange = 10042,
        /// The lock cannot be upgraded or downgraded in one step.
        LockNotSupp = 10043,
        /// There is no such operation.
        OpIllegal = 10044,
        /// The lock would be a deadlock.
        Deadlock = 10045,
        /// The file is open.
        FileOpen = 10046,
        /// An administrator revoked the state.
        AdminRevoked = 10047,
        /// The callback path does not work.
        CbPathDown = 10048,
        /// The layout's mode is wrong.
        BadIoMode = 10049,
        /// The layout is wrong.
        BadLayout = 10050,
        /// The digest of SET_SSV or of a session is wrong.
        BadSessionDigest = 10051,
        /// There is no such session.
        BadSession = 10052,
        /// There is no such slot.
        BadSlot = 10053,
        /// RECLAIM_COMPLETE was sent before.
        CompleteAlready = 10054,
        /// The connection is not bound to the session.
        ConnNotBoundToSession = 10055,
        /// The client has asked for this delegation before.
        DelegAlreadyWanted = 10056,
        /// The backchannel has requests outstanding.
        BackChanBusy = 10057,
        /// No layout now; ask later.
        LayoutTryLater = 10058,
        /// No layout of this file.
        LayoutUnavailable = 10059,
        /// The client holds no such layout.
        NoMatchingLayout = 10060,
        /// The layout is being recalled.
        RecallConflict = 10061,
        /// The layout type is not supported.
        UnknownLayoutType = 10062,
        /// The slot's sequence ID is out of order.
        SeqMisordered = 10063,
        /// SEQUENCE is not the first operation.
        SequencePos = 10064,
        /// The request exceeds the session's limit.
        ReqTooBig = 10065,
        /// The reply exceeds the session's limit.
        RepTooBig = 10066,
        /// The reply exceeds the session's limit of cached replies.
        RepTooBigToCache = 10067,
        /// A retry of a call whose reply was not cached.
        RetryUncachedRep = 10068,
        /// The COMPOUND could not be retried safely.
        UnsafeCompound = 10069,
        /// Too many operations.
        TooManyOps = 10070,
        /// The operation needs SEQUENCE before it.
        OpNotInSession = 10071,
        /// The hash algorithm is not supported.
        HashAlgUnsupp = 10072,
        /// The client ID has state.
        ClientIdBusy = 10074,
        /// I/O to a hole of a sparse stripe.
        PnfsIoHole = 10075,
        /// The retry differs from the first call.
        SeqFalseRetry = 10076,
        /// `highest_slotid` is out of range.
        BadHighSlot = 10077,
        /// A new call on a session that survived a restart only for retries.
        DeadSession = 10078,
        /// The encryption algorithm is not supported.
        EncrAlgUnsupp = 10079,
        /// I/O without a layout.
        PnfsNoLayout = 10080,
        /// The operation must be alone in its COMPOUND.
        NotOnlyOp = 10081,
        /// The credential is not allowed here.
        WrongCred = 10082,
        /// The operation does not apply to this type of file.
        WrongType = 10083,
        /// No directory delegation.
        DirDelegUnavail = 10084,
        /// The client rejects the delegation.
        RejectDeleg = 10085,
        /// A layout must be returned first.
        ReturnConflict = 10086,
        /// The delegation or layout was revoked.
        DelegRevoked = 10087,
        /// COPY: the other server is not supported.
        PartnerNotSupp = 10088,
        /// COPY: the other server does not authorize it.
        PartnerNoAuth = 10089,
        /// The arm of the union is not supported.
        UnionNotSupp = 10090,
        /// COPY: the destination does not allow it.
        OffloadDenied = 10091,
        /// The label's format is not supported.
        WrongLfs = 10092,
        /// The label is wrong.
        BadLabel = 10093,
        /// COPY: the server does not meet the requirements.
        OffloadNoReqs = 10094,
        /// There is no such extended attribute.
        NoXattr = 10095,
        /// The extended attribute is too large.
        Xattr2Big = 10096,
    }
}

/// The result of an operation whose error `CODE` has a value of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeOr<T, D, const CODE: u32> {
    /// OK.
    Ok(T),
    /// The error `CODE`.
    Or(D),
    /// Another error. `CODE` itself is written with the value's default.
    Err(Status),
}

impl<'a, T: Xdr<'a>, D: Xdr<'a> + Default, const CODE: u32> Xdr<'a> for OutcomeOr<T, D, CODE> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut ahead = *from;
        match ahead.u32()? {
            0 => {
                *from = ahead;
                T::read(from).map(OutcomeOr::Ok)
            }
            code if code == CODE => {
                *from = ahead;
                D::read(from).map(OutcomeOr::Or)
            }
            _ => Status::read(from).map(OutcomeOr::Err),
        }
    }

    fn write(&self, to: &mut Writer<'_>) {
        match self {
            OutcomeOr::Ok(value) => {
                to.u32(0);
                value.write(to);
            }
            OutcomeOr::Or(value) => {
                to.u32(CODE);
                value.write(to);
            }
            OutcomeOr::Err(status) => {
                status.write(to);
                if status.code() == CODE {
                    D::default().write(to);
                }
            }
        }
    }
}

/// A result of an operation.
pub(super) trait Fallible {
    /// The operation failed, and its results have no more to say than `status`.
    fn failed(status: Status) -> Self;

    /// The error, if it is one.
    fn error(&self) -> Option<Status>;
}

impl<T, F: Default> Fallible for Outcome<T, F> {
    fn failed(status: Status) -> Self {
        Outcome::Err(status, F::default())
    }

    fn error(&self) -> Option<Status> {
        match self {
            Outcome::Ok(_) => None,
            Outcome::Err(status, _) => Some(*status),
        }
    }
}

impl<T, D, const CODE: u32> Fallible for OutcomeOr<T, D, CODE> {
    fn failed(status: Status) -> Self {
        OutcomeOr::Err(status)
    }

    fn error(&self) -> Option<Status> {
        match self {
            OutcomeOr::Ok(_) => None,
            OutcomeOr::Or(_) => Status::from_code(CODE),
            OutcomeOr::Err(status) => Some(*status),
        }
    }
}
