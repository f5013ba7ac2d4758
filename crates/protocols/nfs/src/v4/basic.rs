//! Identities of clients, sessions and state, and the small enumerations of OPEN and LOCK (RFC 8881
//! §3.3).

use rpc::xdr::Opaque;
use rpc::{xdr_enum, xdr_newtype, xdr_struct};

use super::MAX_OPAQUE;

xdr_newtype! {
    /// `clientid4`: the server's name for a client (RFC 8881 §2.4).
    pub struct ClientId(u64);

    /// `sessionid4` (RFC 8881 §2.10).
    pub struct SessionId([u8; 16]);

    /// `verifier4`: the peer's, compared for equality only.
    #[derive(Default)]
    pub struct Verifier([u8; 8]);
}

/// `co_ownerid` and `owner` of an open or of locks: the client's name for itself, or for one of its
/// processes.
pub type OwnerId<'a> = Opaque<'a, MAX_OPAQUE>;

xdr_struct! {
    /// `stateid4`: an open, a set of locks, or a delegation (RFC 8881 §8.2).
    #[derive(Copy, Default, Hash, PartialOrd, Ord)]
    pub struct Stateid {
        /// Counts the changes of the state; wraps from 2³² − 1 to 1. A client sends 0 for the
        /// latest.
        pub seqid: u32,
        /// The server's name for the state.
        pub other: [u8; 12],
    }

    /// `client_owner4`: the identity that a client claims (RFC 8881 §2.4).
    #[derive(Copy, Hash)]
    pub struct ClientOwner<'a> {
        /// Differs after each restart of the client.
        pub verifier: Verifier,
        /// Does not change.
        pub owner: OwnerId<'a>,
    }
}

/// Special stateids (RFC 8881 §8.2.3).
impl Stateid {
    /// READ, WRITE and SETATTR without an open file.
    pub const ANONYMOUS: Self = Stateid { seqid: 0, other: [0; 12] };
    /// READ that passes over locks; in all else as [`Self::ANONYMOUS`].
    pub const BYPASS: Self = Stateid { seqid: u32::MAX, other: [0xff; 12] };
    /// The stateid of an earlier operation of the same COMPOUND.
    pub const CURRENT: Self = Stateid { seqid: 1, other: [0; 12] };
    /// Never a state. CLOSE returns it.
    pub const INVALID: Self = Stateid { seqid: u32::MAX, other: [0; 12] };

    /// `other` is reserved: all zeros or all ones. Such a stateid is one of the special ones, or
    /// BAD_STATEID.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

xdr_enum! {
    /// `OPEN4_SHARE_ACCESS_*` (RFC 8881 §18.16): a set of two bits. See [`ShareAccess::of`].
    pub enum ShareAccess {
        /// READ.
        Read = 1,
        /// WRITE.
        Write = 2,
        /// BOTH.
        Both = 3,
    }

    /// `OPEN4_SHARE_DENY_*` (RFC 8881 §18.16): a set of two bits.
    pub enum ShareDeny {
        /// NONE.
        None = 0,
        /// READ.
        Read = 1,
        /// WRITE.
        Write = 2,
        /// BOTH.
        Both = 3,
    }

    /// `open_claim_type4`: the file that an OPEN opens, and the right to open it (RFC 8881 §18.16).
    pub enum ClaimType {
        /// A name in the current directory.
        Null = 0,
        /// The current file, which was open before the server restarted.
        Previous = 1,
        /// A name, under a delegation that the client holds.
        DelegateCur = 2,
        /// A name, under a delegation from before the client restarted.
        DelegatePrev = 3,
        /// The current file.
        Fh = 4,
        /// The current file, under a delegation that the client holds.
        DelegCurFh = 5,
        /// The current file, under a delegation from before the client restarted.
        DelegPrevFh = 6,
    }

    /// `open_delegation_type4` (RFC 8881 §18.16).
    pub enum DelegationType {
        /// NONE.
        None = 0,
        /// READ.
        Read = 1,
        /// WRITE.
        Write = 2,
        /// NONE, with a reason.
        NoneExt = 3,
    }

    /// `nfs_lock_type4` (RFC 8881 §18.10).
    pub enum LockType {
        /// READ.
        Read = 1,
        /// WRITE.
        Write = 2,
        /// READ; the client waits for it and asks again.
        ReadWait = 3,
        /// WRITE; the client waits for it and asks again.
        WriteWait = 4,
    }

    /// `channel_dir_from_client4`: channels that a client requests for a connection (RFC 8881
    /// §18.34).
    pub enum ChannelFromClient {
        /// The fore channel.
        Fore = 1,
        /// The backchannel.
        Back = 2,
        /// The fore channel, or both.
        ForeOrBoth = 3,
        /// The backchannel, or both.
        BackOrBoth = 7,
    }

    /// `channel_dir_from_server4`: channels to which a connection was bound (RFC 8881 §18.34).
    pub enum ChannelFromServer {
        /// The fore channel.
        Fore = 1,
        /// The backchannel.
        Back = 2,
        /// Both.
        Both = 3,
    }
}

impl ShareAccess {
    /// The access in `share_access`, whose upper bits are [`flags::want`](super::flags::want). None
    /// if it names no access.
    pub fn of(share_access: u32) -> Option<Self> {
        Self::from_code(share_access & 0xff)
    }

    /// Contains READ.
    pub fn reads(self) -> bool {
        self.code() & 1 != 0
    }

    /// Contains WRITE.
    pub fn writes(self) -> bool {
        self.code() & 2 != 0
    }
}

impl ShareDeny {
    /// Denies what `access` asks for.
    pub fn denies(self, access: ShareAccess) -> bool {
        self.code() & access.code() != 0
    }
}

impl LockType {
    /// READ or WRITE, without the wait.
    pub fn without_wait(self) -> Self {
        match self {
            LockType::Read | LockType::ReadWait => LockType::Read,
            LockType::Write | LockType::WriteWait => LockType::Write,
        }
    }
}
