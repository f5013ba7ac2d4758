//! Arguments and results of every operation, made of arbitrary parts.

use proptest::prelude::*;
use rpc::auth::AuthSys;
use rpc::xdr::{self, Chained, List, Opaque};

use crate::v4::readdir::Entry;
use crate::v4::*;

/// The values that arguments and results are made of.
#[derive(Debug, Clone)]
pub struct Parts {
    pub handle: Vec<u8>,
    pub owner: Vec<u8>,
    pub name: Vec<u8>,
    pub text: Vec<u8>,
    pub data: Vec<u8>,
    pub stateid: Stateid,
    pub small: u32,
    pub large: u64,
    pub flag: bool,
    pub status: Status,
    pub set: Bitmap,
}

impl Parts {
    pub fn some() -> Self {
        Parts {
            handle: b"handle-one".to_vec(),
            owner: b"open id:\0\x01".to_vec(),
            name: b"name".to_vec(),
            text: b"1000".to_vec(),
            data: b"bytes".to_vec(),
            stateid: Stateid { seqid: 7, other: *b"twelve bytes" },
            small: 4096,
            large: 1 << 33,
            flag: true,
            status: Status::Delay,
            set: Bitmap::of(&[1, 3, 4, 33, 53]),
        }
    }
}

pub fn some_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=most)
}

pub fn some_bitmap() -> impl Strategy<Value = Bitmap> {
    prop::collection::vec(0..=Bitmap::BEYOND, 0..8).prop_map(|numbers| Bitmap::of(&numbers))
}

pub fn some_parts() -> impl Strategy<Value = Parts> {
    (
        (some_bytes(MAX_HANDLE), some_bytes(60), some_bytes(300), some_bytes(60), some_bytes(300)),
        (any::<(u32, [u8; 12])>(), any::<u32>(), any::<u64>(), any::<bool>()),
        (0..Status::ALL.len(), some_bitmap()),
    )
        .prop_map(|((handle, owner, name, text, data), (stateid, small, large, flag), (status, set))| {
            Parts {
                handle,
                owner,
                name,
                text,
                data,
                stateid: Stateid { seqid: stateid.0, other: stateid.1 },
                small,
                large,
                flag,
                status: Status::ALL[status],
                set,
            }
        })
}

/// Values that a sample borrows beside the parts.
pub struct Borrowed<'a> {
    pub attributes: Attributes<'a>,
    security: [CallbackSecurity<'a>; 3],
    texts: [Text<'a>; 2],
    locations: [NetLoc<'a>; 3],
    stateids: [Stateid; 2],
    outcomes: [Outcome<()>; 2],
    flavors: [SecInfo<'a>; 2],
    /// A chain of entries.
    entries: Vec<u8>,
    calls: [callback::ReferringCall; 2],
    session: SessionId,
}

impl Parts {
    fn handle(&self) -> Handle<'_> {
        Opaque::new(&self.handle).unwrap()
    }

    fn name(&self) -> Name<'_> {
        Opaque::new(&self.name).unwrap()
    }

    fn text(&self) -> Text<'_> {
        Opaque::new(&self.text).unwrap()
    }

    fn owner(&self) -> StateOwner<'_> {
        StateOwner { client: ClientId(self.large), owner: Opaque::new(&self.owner).unwrap() }
    }

    fn verifier(&self) -> Verifier {
        Verifier(self.large.to_le_bytes())
    }

    fn session(&self) -> SessionId {
        SessionId(std::array::from_fn(|at| at as u8 ^ self.small as u8))
    }

    fn time(&self) -> Time {
        Time { seconds: self.large.cast_signed(), nanoseconds: self.small }
    }

    fn length(&self) -> u32 {
        self.data.len() as u32
    }

    fn attributes(&self) -> Attributes<'_> {
        Attributes {
            kind: Some(FileType::Regular),
            size: Some(self.large),
            mode: Some(self.small),
            owner: Some(self.text()),
            mtime_set: Some(SetTime::Client(self.time())),
            ..Attributes::default()
        }
    }

    pub fn borrowed(&self) -> Borrowed<'_> {
        let gids = [self.small, 2].into_iter().collect();
        let machine = Opaque::new(b"host").unwrap();
        let attributes = self.attributes();
        let entries = Chained::of([
            Entry { cookie: 3, name: self.name(), attributes: Fattr::EMPTY },
            Entry { cookie: self.large, name: self.text(), attributes: Fattr::of(&attributes) },
        ]);
        let address = NetAddr { netid: self.text(), address: self.name() };
        Borrowed {
            attributes: self.attributes(),
            security: [
                CallbackSecurity::None(()),
                CallbackSecurity::Sys(AuthSys { stamp: self.small, machine, uid: 1, gid: 2, gids }),
                CallbackSecurity::Gss(GssHandles {
                    service: GssService::Privacy,
                    from_server: self.text(),
                    from_client: self.name(),
                }),
            ],
            texts: [self.text(), self.name()],
            locations: [NetLoc::Name(self.name()), NetLoc::Url(self.text()), NetLoc::Address(address)],
            stateids: [self.stateid, Stateid::CURRENT],
            outcomes: [Outcome::Ok(()), Outcome::Err(self.status, ())],
            flavors: [
                SecInfo::Gss(GssInfo { oid: self.text(), qop: self.small, service: GssService::Integrity }),
                SecInfo::Flavor(1),
            ],
            entries: xdr::encode(&entries.chain()),
            calls: [callback::ReferringCall { sequence: self.small, slot: 1 }; 2],
            session: self.session(),
        }
    }
}

impl Borrowed<'_> {
    pub fn referring(&self) -> [callback::ReferringCalls<'_>; 2] {
        let calls = List::of(&self.calls);
        [callback::ReferringCalls { session: self.session, calls }; 2]
    }
}

/// Arguments of every operation, of every arm of their unions.
pub fn arguments<'a>(parts: &'a Parts, borrowed: &'a Borrowed<'a>) -> Vec<Arguments<'a>> {
    let Parts { stateid, small, large, flag, set, .. } = *parts;
    let (name, owner, verifier, session) = (parts.name(), parts.owner(), parts.verifier(), parts.session());
    let client = ClientId(large);
    let attributes = Fattr::of(&borrowed.attributes);
    let device = Device { major: small, minor: 1 };
    let open = |create, claim| {
        Arguments::Open(Open { seqid: small, share_access: 3, share_deny: 1, owner, create, claim })
    };
    let create = |kind| Arguments::Create(Create { kind, name, attributes });
    let lock =
        |kind, locker| Arguments::Lock(Lock { kind, reclaim: flag, offset: large, length: u64::MAX, locker });
    let new = NewLockOwner { open_seqid: 0, open: stateid, lock_seqid: small, owner };
    let old = OldLockOwner { locks: stateid, seqid: small };
    let date = parts.time();
    let implementation = flag.then(|| ImplId { domain: name, name: parts.text(), date });
    let protected = ProtectedOperations { must_enforce: set, must_allow: Bitmap::EMPTY };
    let (hashes, ciphers) = (List::of(&borrowed.texts), List::EMPTY);
    let ssv = SsvParameters { operations: protected, hashes, ciphers, window: small, handles: 1 };
    let owner_id = owner.owner;
    let exchange = |protect| {
        let client = ClientOwner { verifier, owner: owner_id };
        Arguments::ExchangeId(ExchangeId { client, flags: small, protect, implementation })
    };
    let security = List::of(&borrowed.security);
    let range = Allocate { stateid, offset: large, length: 1 };
    let copy = CopyRange {
        source: stateid,
        destination: Stateid::CURRENT,
        source_offset: large,
        destination_offset: 1,
        count: 0,
        consecutive: flag,
        synchronous: !flag,
        source_servers: List::of(&borrowed.locations),
    };
    let xattr = |option| Arguments::SetXattr(SetXattr { option, name, value: parts.text() });
    let bind = |direction| Arguments::BindConnToSession(BindConnToSession { session, direction, rdma: flag });
    vec![
        Arguments::Access(small),
        Arguments::Close(Close { seqid: small, stateid }),
        Arguments::Commit(Commit { offset: large, count: small }),
        create(CreateType::Regular(())),
        create(CreateType::Directory(())),
        create(CreateType::Block(device)),
        create(CreateType::Character(device)),
        create(CreateType::Symlink(parts.text())),
        create(CreateType::Socket(())),
        create(CreateType::Fifo(())),
        create(CreateType::AttrDir(())),
        create(CreateType::NamedAttr(())),
        Arguments::DelegPurge(client),
        Arguments::DelegReturn(stateid),
        Arguments::GetAttr(set),
        Arguments::GetFh(()),
        Arguments::Link(name),
        lock(LockType::Read, Locker::New(new)),
        lock(LockType::WriteWait, Locker::Old(old)),
        Arguments::LockT(LockT { kind: LockType::Write, offset: large, length: 1, owner }),
        Arguments::LockU(LockU {
            kind: LockType::ReadWait,
            seqid: small,
            locks: stateid,
            offset: 0,
            length: large,
        }),
        Arguments::Lookup(name),
        Arguments::LookupP(()),
        Arguments::NVerify(attributes),
        open(None, Claim::Null(name)),
        open(Some(CreateHow::Unchecked(attributes)), Claim::Previous(DelegationType::Write)),
        open(
            Some(CreateHow::Guarded(attributes)),
            Claim::DelegateCur(DelegateCur { delegation: stateid, name }),
        ),
        open(Some(CreateHow::Exclusive(verifier)), Claim::DelegatePrev(name)),
        open(Some(CreateHow::Exclusive41(Exclusive { verifier, attributes })), Claim::Fh(())),
        open(None, Claim::DelegCurFh(stateid)),
        open(None, Claim::DelegPrevFh(())),
        Arguments::OpenAttr(flag),
        Arguments::OpenDowngrade(OpenDowngrade { stateid, seqid: small, share_access: 1, share_deny: 0 }),
        Arguments::PutFh(parts.handle()),
        Arguments::PutPubFh(()),
        Arguments::PutRootFh(()),
        Arguments::Read(Read { stateid, offset: large, count: small }),
        Arguments::ReadDir(ReadDir {
            cookie: large,
            verifier,
            dir_count: small,
            max_count: 9,
            requested: set,
        }),
        Arguments::ReadLink(()),
        Arguments::Remove(name),
        Arguments::Rename(Rename { from: name, to: parts.text() }),
        Arguments::RestoreFh(()),
        Arguments::SaveFh(()),
        Arguments::SecInfo(name),
        Arguments::SetAttr(SetAttr { stateid, attributes }),
        Arguments::Verify(attributes),
        Arguments::Write(Write { stateid, offset: large, stable: Stable::DataSync, length: parts.length() }),
        Arguments::BackchannelCtl(BackchannelCtl { program: small, security }),
        bind(ChannelFromClient::Fore),
        bind(ChannelFromClient::BackOrBoth),
        exchange(StateProtect::None(())),
        exchange(StateProtect::MachCred(protected)),
        exchange(StateProtect::Ssv(ssv)),
        Arguments::CreateSession(CreateSession {
            client,
            sequence: small,
            flags: 3,
            fore: channel(parts),
            back: Channel { rdma_ird: None, ..channel(parts) },
            program: 0x4000_0000,
            security,
        }),
        Arguments::DestroySession(session),
        Arguments::FreeStateid(stateid),
        Arguments::SecInfoNoName(SecInfoStyle::Parent),
        Arguments::Sequence(Sequence { session, sequence: small, slot: 1, highest_slot: 2, cache: flag }),
        Arguments::TestStateid(List::of(&borrowed.stateids)),
        Arguments::DestroyClientId(client),
        Arguments::ReclaimComplete(flag),
        Arguments::Allocate(range),
        Arguments::Copy(copy),
        Arguments::CopyNotify(CopyNotify { source: stateid, destination: borrowed.locations[2] }),
        Arguments::Deallocate(range),
        Arguments::IoAdvise(IoAdvise { stateid, offset: large, count: 0, hints: set }),
        Arguments::OffloadCancel(stateid),
        Arguments::OffloadStatus(stateid),
        Arguments::Seek(Seek { stateid, offset: large, what: Content::Hole }),
        Arguments::Clone(CloneRange {
            source: stateid,
            destination: stateid,
            source_offset: large,
            destination_offset: 1,
            count: 2,
        }),
        Arguments::GetXattr(name),
        xattr(SetXattrOption::Either),
        xattr(SetXattrOption::Replace),
        Arguments::ListXattrs(ListXattrs { cookie: large, max_count: small }),
        Arguments::RemoveXattr(name),
    ]
}

fn channel(parts: &Parts) -> Channel {
    Channel {
        header_padding: 0,
        max_request: 1_049_620,
        max_response: 1_049_480,
        max_response_cached: parts.small,
        max_operations: 8,
        max_requests: 64,
        rdma_ird: Some(16),
    }
}

/// Results of every operation: OK, of every arm of its unions, and an error.
pub fn results<'a>(parts: &'a Parts, borrowed: &'a Borrowed<'a>) -> Vec<Results<'a>> {
    let Parts { stateid, small, large, flag, set, status, .. } = *parts;
    let (name, verifier, session) = (parts.name(), parts.verifier(), parts.session());
    let change = ChangeInfo { atomic: flag, before: large, after: 1 };
    let done = Outcome::Ok(());
    let info = Outcome::Ok(change);
    let denied = LockDenied { offset: large, length: 1, kind: LockType::Read, owner: parts.owner() };
    let permissions = Ace { kind: 0, flag: small, mask: 1, who: parts.text() };
    let open = |delegation| {
        let flags = flags::open_result::LOCKTYPE_POSIX;
        Results::Open(Outcome::Ok(OpenOk {
            stateid,
            directory: change,
            flags,
            attributes_set: set,
            delegation,
        }))
    };
    let limited =
        |space_limit| Delegation::Write(WriteDelegation { stateid, recall: flag, space_limit, permissions });
    let blocks = ModifiedLimit { blocks: small, block_size: 512 };
    let operations = ProtectedOperations { must_enforce: Bitmap::EMPTY, must_allow: set };
    let handles = List::of(&borrowed.texts);
    let ssv = SsvInfo { operations, hash: 0, cipher: 1, length: 32, window: small, handles };
    let exchanged = |protect| {
        Results::ExchangeId(Outcome::Ok(ExchangeIdOk {
            client: ClientId(large),
            sequence: small,
            flags: flags::exchange_id::USE_NON_PNFS,
            protect,
            server: ServerOwner { minor: large, major: parts.owner().owner },
            scope: parts.owner().owner,
            implementation: None,
        }))
    };
    let flavors = Outcome::Ok(List::of(&borrowed.flavors));
    let response = WriteResponse {
        callback: flag.then_some(stateid),
        count: large,
        committed: Stable::FileSync,
        verifier,
    };
    let requirements = CopyRequirements { consecutive: flag, synchronous: !flag };
    let offload = |complete| Results::OffloadStatus(Outcome::Ok(OffloadStatusOk { count: large, complete }));
    let entries = xdr::decode(&borrowed.entries).unwrap();
    let wrote = WriteOk { count: small, committed: Stable::Unstable, verifier };
    let mut all = vec![
        Results::Access(Outcome::Ok(AccessOk { supported: 63, access: small })),
        Results::Close(Outcome::Ok(stateid)),
        Results::Commit(Outcome::Ok(verifier)),
        Results::Create(Outcome::Ok(CreateOk { directory: change, attributes_set: set })),
        Results::DelegPurge(done),
        Results::DelegReturn(done),
        Results::GetAttr(Outcome::Ok(Fattr::of(&borrowed.attributes))),
        Results::GetFh(Outcome::Ok(parts.handle())),
        Results::Link(info),
        Results::Lock(OutcomeOr::Ok(stateid)),
        Results::Lock(OutcomeOr::Or(denied)),
        Results::LockT(OutcomeOr::Ok(())),
        Results::LockT(OutcomeOr::Or(denied)),
        Results::LockU(Outcome::Ok(stateid)),
        Results::Lookup(done),
        Results::LookupP(done),
        Results::NVerify(done),
        open(Delegation::None(())),
        open(Delegation::Read(ReadDelegation { stateid, recall: flag, permissions })),
        open(limited(SpaceLimit::Size(large))),
        open(limited(SpaceLimit::Blocks(blocks))),
        open(Delegation::NoneExt(WhyNoDelegation::NotWanted(()))),
        open(Delegation::NoneExt(WhyNoDelegation::Contention(flag))),
        open(Delegation::NoneExt(WhyNoDelegation::Resource(flag))),
        open(Delegation::NoneExt(WhyNoDelegation::IsDir(()))),
        Results::OpenAttr(done),
        Results::OpenDowngrade(Outcome::Ok(stateid)),
        Results::PutFh(done),
        Results::PutPubFh(done),
        Results::PutRootFh(done),
        Results::Read(Outcome::Ok(ReadOk { eof: flag, length: parts.length() })),
        Results::ReadDir(Outcome::Ok(ReadDirOk { verifier, entries, eof: flag })),
        Results::ReadLink(Outcome::Ok(parts.text())),
        Results::Remove(info),
        Results::Rename(Outcome::Ok(Renamed { from: change, to: ChangeInfo::default() })),
        Results::RestoreFh(done),
        Results::SaveFh(done),
        Results::SecInfo(flavors),
        Results::SetAttr(Outcome::Ok(set)),
        Results::SetAttr(Outcome::Err(status, set)),
        Results::Verify(done),
        Results::Write(Outcome::Ok(wrote)),
        Results::BackchannelCtl(done),
        Results::BindConnToSession(Outcome::Ok(BindConnToSessionOk {
            session,
            direction: ChannelFromServer::Both,
            rdma: flag,
        })),
        exchanged(StateProtected::None(())),
        exchanged(StateProtected::MachCred(operations)),
        exchanged(StateProtected::Ssv(ssv)),
        Results::CreateSession(Outcome::Ok(CreateSessionOk {
            session,
            sequence: small,
            flags: 2,
            fore: channel(parts),
            back: channel(parts),
        })),
        Results::DestroySession(done),
        Results::FreeStateid(done),
        Results::SecInfoNoName(flavors),
        Results::Sequence(Outcome::Ok(SequenceOk {
            session,
            sequence: small,
            slot: 1,
            highest_slot: 63,
            target_highest_slot: 63,
            status_flags: flags::sequence_status::LEASE_MOVED,
        })),
        Results::TestStateid(Outcome::Ok(List::of(&borrowed.outcomes))),
        Results::DestroyClientId(done),
        Results::ReclaimComplete(done),
        Results::Allocate(done),
        Results::Copy(OutcomeOr::Ok(CopyOk { response, requirements })),
        Results::Copy(OutcomeOr::Or(requirements)),
        Results::CopyNotify(Outcome::Ok(CopyNotifyOk {
            lease_time: parts.time(),
            stateid,
            source_servers: List::of(&borrowed.locations),
        })),
        Results::Deallocate(done),
        Results::IoAdvise(Outcome::Ok(set)),
        Results::OffloadCancel(done),
        offload(None),
        offload(Some(Outcome::Ok(()))),
        offload(Some(Outcome::Err(status, ()))),
        Results::Seek(Outcome::Ok(SeekOk { eof: flag, offset: large })),
        Results::Clone(done),
        Results::GetXattr(Outcome::Ok(parts.text())),
        Results::SetXattr(info),
        Results::ListXattrs(Outcome::Ok(ListXattrsOk {
            cookie: large,
            names: List::of(&borrowed.texts),
            eof: flag,
        })),
        Results::RemoveXattr(Outcome::Ok(ChangeInfo { after: name.bytes().len() as u64, ..change })),
    ];
    // An error that is no arm of LOCK or COPY.
    all.extend(Operation::ALL.iter().map(|operation| Results::failed(*operation, Status::Stale)));
    all.push(Results::Refused(Refused { operation: ILLEGAL, status: Status::OpIllegal }));
    all
}

/// Arguments of every callback.
pub fn callbacks<'a>(
    parts: &'a Parts,
    referring: &'a [callback::ReferringCalls<'a>],
) -> Vec<callback::Arguments<'a>> {
    use callback::{Arguments, GetAttr, NotifyLock, Offload, Recall, RecallAny, Sequence};
    let Parts { stateid, small, large, flag, set, status, .. } = *parts;
    let file = parts.handle();
    let response = WriteResponse {
        callback: None,
        count: large,
        committed: Stable::DataSync,
        verifier: parts.verifier(),
    };
    vec![
        Arguments::GetAttr(GetAttr { file, requested: set }),
        Arguments::Recall(Recall { stateid, truncate: flag, file }),
        Arguments::RecallAny(RecallAny { keep: small, types: set }),
        Arguments::RecallSlot(small),
        Arguments::Sequence(Sequence {
            session: parts.session(),
            sequence: small,
            slot: 0,
            highest_slot: 1,
            cache: flag,
            referring: List::of(referring),
        }),
        Arguments::NotifyLock(NotifyLock { file, owner: parts.owner() }),
        Arguments::Offload(Offload { file, stateid, outcome: Outcome::Ok(response) }),
        Arguments::Offload(Offload { file, stateid, outcome: Outcome::Err(status, large) }),
    ]
}

/// Results of every callback.
pub fn callback_results<'a>(parts: &'a Parts, borrowed: &'a Borrowed<'a>) -> Vec<callback::Results<'a>> {
    use callback::{Operation, Results, SequenceOk};
    let done = Outcome::Ok(());
    let mut all = vec![
        Results::GetAttr(Outcome::Ok(Fattr::of(&borrowed.attributes))),
        Results::Recall(done),
        Results::RecallAny(done),
        Results::RecallSlot(done),
        Results::Sequence(Outcome::Ok(SequenceOk {
            session: parts.session(),
            sequence: parts.small,
            slot: 0,
            highest_slot: 15,
            target_highest_slot: 15,
        })),
        Results::NotifyLock(done),
        Results::Offload(done),
    ];
    all.extend(Operation::ALL.iter().map(|operation| Results::failed(*operation, parts.status)));
    all
}
