//! OPEN, its delegations, and the ends of opens (RFC 8881 §18.2, §18.16, §18.18).

use rpc::{xdr_struct, xdr_union};

use super::names::ChangeInfo;
use crate::v4::{Ace, Bitmap, ClientId, DelegationType, Fattr, Name, OwnerId, Stateid, Verifier};

xdr_struct! {
    /// `state_owner4`: an owner of opens or locks.
    #[derive(Copy)]
    pub struct StateOwner<'a> {
        /// Ignored since 4.1: the session says it.
        pub client: ClientId,
        /// The client's name for one of its processes.
        pub owner: OwnerId<'a>,
    }

    /// `OPEN4args`.
    #[derive(Copy)]
    pub struct Open<'a> {
        /// Ignored since 4.1.
        pub seqid: u32,
        /// [`ShareAccess`](crate::v4::ShareAccess), and bits of
        /// [`want`](crate::v4::flags::want).
        pub share_access: u32,
        /// [`ShareDeny`](crate::v4::ShareDeny).
        pub share_deny: u32,
        /// The open owner.
        pub owner: StateOwner<'a>,
        /// `openflag4`: how to create the file, if at all.
        pub create: Option<CreateHow<'a>>,
        /// The file to open, and the right to open it.
        pub claim: Claim<'a>,
    }

    /// `creatverfattr`.
    #[derive(Copy)]
    pub struct Exclusive<'a> {
        /// Tells a repeated call from another file of this name.
        pub verifier: Verifier,
        /// The new file's attributes.
        pub attributes: Fattr<'a>,
    }

    /// `open_claim_delegate_cur4`.
    #[derive(Copy)]
    pub struct DelegateCur<'a> {
        /// The delegation.
        pub delegation: Stateid,
        /// The file.
        pub name: Name<'a>,
    }

    /// `OPEN4resok`.
    #[derive(Copy)]
    pub struct OpenOk<'a> {
        /// The open.
        pub stateid: Stateid,
        /// The directory's change.
        pub directory: ChangeInfo,
        /// Bits of [`open_result`](crate::v4::flags::open_result).
        pub flags: u32,
        /// The attributes that were set.
        pub attributes_set: Bitmap,
        /// The delegation, if any.
        pub delegation: Delegation<'a>,
    }

    /// `open_read_delegation4`.
    #[derive(Copy)]
    pub struct ReadDelegation<'a> {
        /// The delegation.
        pub stateid: Stateid,
        /// Reclaimed, and recalled at once.
        pub recall: bool,
        /// Users who may read without an ACCESS.
        pub permissions: Ace<'a>,
    }

    /// `open_write_delegation4`.
    #[derive(Copy)]
    pub struct WriteDelegation<'a> {
        /// The delegation.
        pub stateid: Stateid,
        /// Reclaimed, and recalled at once.
        pub recall: bool,
        /// Limit up to which the client may let the file grow without a WRITE.
        pub space_limit: SpaceLimit,
        /// Users who may open without an ACCESS.
        pub permissions: Ace<'a>,
    }

    /// `nfs_modified_limit4`.
    #[derive(Copy)]
    pub struct ModifiedLimit {
        /// Blocks.
        pub blocks: u32,
        /// Bytes of a block.
        pub block_size: u32,
    }

    /// `CLOSE4args`.
    #[derive(Copy)]
    pub struct Close {
        /// Ignored since 4.1.
        pub seqid: u32,
        /// The open.
        pub stateid: Stateid,
    }

    /// `OPEN_DOWNGRADE4args`.
    #[derive(Copy)]
    pub struct OpenDowngrade {
        /// The open.
        pub stateid: Stateid,
        /// Ignored since 4.1.
        pub seqid: u32,
        /// The access that stays.
        pub share_access: u32,
        /// The denial that stays.
        pub share_deny: u32,
    }
}

xdr_union! {
    /// `createhow4`.
    #[derive(Copy)]
    pub enum CreateHow<'a> {
        /// An existing file is no error.
        Unchecked(Fattr<'a>) = 0,
        /// An existing file is an error.
        Guarded(Fattr<'a>) = 1,
        /// An existing file is an error unless it was created with this verifier. Obsolete since
        /// 4.1.
        Exclusive(Verifier) = 2,
        /// EXCLUSIVE4_1: the same, with attributes.
        Exclusive41(Exclusive<'a>) = 3,
    }

    /// `open_claim4`; [`ClaimType`](crate::v4::ClaimType) is its number.
    #[derive(Copy)]
    pub enum Claim<'a> {
        /// A name in the current directory.
        Null(Name<'a>) = 0,
        /// The current file, which was open before the server restarted.
        Previous(DelegationType) = 1,
        /// A name, under a delegation that the client holds.
        DelegateCur(DelegateCur<'a>) = 2,
        /// A name, under a delegation from before the client restarted.
        DelegatePrev(Name<'a>) = 3,
        /// The current file.
        Fh(()) = 4,
        /// The current file, under a delegation that the client holds.
        DelegCurFh(Stateid) = 5,
        /// The current file, under a delegation from before the client restarted.
        DelegPrevFh(()) = 6,
    }

    /// `nfs_space_limit4`.
    #[derive(Copy)]
    pub enum SpaceLimit {
        /// The file's size, bytes.
        Size(u64) = 1,
        /// Blocks.
        Blocks(ModifiedLimit) = 2,
    }

    /// `open_delegation4`; [`DelegationType`] is its number.
    #[derive(Copy)]
    pub enum Delegation<'a> {
        /// NONE.
        None(()) = 0,
        /// READ.
        Read(ReadDelegation<'a>) = 1,
        /// WRITE.
        Write(WriteDelegation<'a>) = 2,
        /// NONE, with a reason: the client stated its wish.
        NoneExt(WhyNoDelegation) = 3,
    }

    /// `open_none_delegation4`.
    #[derive(Copy)]
    pub enum WhyNoDelegation {
        /// The client asked for none.
        NotWanted(()) = 0,
        /// Other clients use the file. The server will push a delegation when they do not.
        Contention(bool) = 1,
        /// The server lacks resources. It will signal when it does not.
        Resource(bool) = 2,
        /// No delegation of this type of file.
        NotSuppFtype(()) = 3,
        /// No write delegation of this type of file.
        WriteDelegNotSuppFtype(()) = 4,
        /// A read delegation is not upgraded.
        NotSuppUpgrade(()) = 5,
        /// A write delegation is not downgraded.
        NotSuppDowngrade(()) = 6,
        /// The client cancelled its wish.
        Cancelled(()) = 7,
        /// The file is a directory.
        IsDir(()) = 8,
    }
}
