//! NFSv4: arguments and results of COMPOUND and CB_COMPOUND, and attributes.

use crate::input::{Input, Seed};
use nfs::v4::callback::{self, Back};
use nfs::v4::readdir::{Entry, Listing};
use nfs::v4::*;
use rpc::xdr::{Chained, List, Opaque, Reader, Writer, Xdr, decode, encode, padding};

/// Checks that a decoded item encodes to bytes that decode to the same.
fn check<'a, 'b, A: Item<'a>, B: Item<'b>>(item: &A, wire: &'b [u8]) {
    let (number, body) = wire.split_first_chunk().expect("an item has a number");
    let mut from = Reader::new(body);
    let again = B::read_of(u32::from_be_bytes(*number), &mut from).expect("a known number").expect("whole");
    from.end().expect("nothing follows");
    assert_eq!(again.payload_length(), item.payload_length());
    assert!(bytes(&again) == wire);
}

fn bytes<'a>(item: &impl Item<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    item.write_all(&mut Writer::new(&mut out));
    out
}

fn call<P: Program>(body: &[u8]) {
    let Ok(call) = Call::<P>::read(body) else { return };
    let mut refused = None;
    for one in call.operations {
        assert!(refused.is_none(), "an operation follows one that was refused");
        match one {
            Ok(Located { value, payload }) => {
                assert_eq!(payload.len() as u32, value.payload_length());
                check::<_, P::Arguments<'_>>(&value, &bytes(&value));
            }
            Err(it) => refused = Some(it),
        }
    }
    if let Some(refused) = refused {
        check::<_, P::Results<'_>>(
            &P::Results::of_refused(refused),
            &bytes(&P::Results::of_refused(refused)),
        );
    }
}

fn reply<P: Program>(body: &[u8]) {
    let Ok(reply) = Reply::<P>::read(body) else { return };
    for Located { value, payload } in reply.results.map_while(Result::ok) {
        assert_eq!(payload.len() as u32, value.payload_length());
        check::<_, P::Results<'_>>(&value, &bytes(&value));
    }
}

/// Bit 0 of byte 0: CB_COMPOUND instead of COMPOUND; then the call.
pub fn arguments(data: &[u8]) {
    let mut input = Input::new(data);
    if input.bool() { call::<Back>(input.rest()) } else { call::<Fore>(input.rest()) }
}

/// Bit 0 of byte 0: CB_COMPOUND instead of COMPOUND; then the reply. Entries of a directory are
/// also listed anew.
pub fn results(data: &[u8]) {
    let mut input = Input::new(data);
    if input.bool() {
        return reply::<Back>(input.rest());
    }
    let body = input.rest();
    reply::<Fore>(body);
    let Ok(reply) = Reply::<Fore>::read(body) else { return };
    for one in reply.results.map_while(Result::ok) {
        if let Results::ReadDir(Outcome::Ok(read)) = &one.value {
            list(read);
        }
    }
}

/// Lists the entries in replies of every limit up to the length that they need: each holds the
/// limit, and leaves no entry out.
fn list(read: &ReadDirOk<'_>) {
    let entries = read.entries.iter().count();
    let mut max_count = 0;
    loop {
        let mut out = Vec::new();
        let mut to = Writer::new(&mut out);
        let mut listing = Listing::new(&mut to, read.verifier, 0, max_count);
        let fitting = read.entries.iter().filter(|entry| listing.entry(entry)).count();
        let listed = listing.finish(true);
        let found: Outcome<ReadDirOk<'_>> = decode(&out).expect("a listing can be read");
        match found {
            Outcome::Ok(found) => {
                assert!(out.len() <= 4 + max_count as usize);
                assert_eq!(listed, Ok(fitting));
                assert!(found.entries.iter().eq(read.entries.iter().take(fitting)));
                assert_eq!(found.eof, fitting == entries);
                if found.eof {
                    return;
                }
            }
            Outcome::Err(status, ()) => assert_eq!(listed, Err(status)),
        }
        max_count += 61;
    }
}

/// `fattr4`: values that can be read are written in the same bytes, as a whole and in part.
pub fn attributes(data: &[u8]) {
    let Ok(fattr) = decode::<Fattr<'_>>(data) else { return };
    let Ok(values) = fattr.attributes() else { return };
    assert_eq!(values.set(), fattr.set());
    let wire = encode(&Fattr::of(&values));
    let again: Fattr<'_> = decode(&wire).expect("attributes can be read");
    assert_eq!(again.attributes().as_ref(), Ok(&values));
    let half = SETTABLE.and(fattr.set());
    let wire = encode(&Fattr::new(half, &values));
    let part: Fattr<'_> = decode(&wire).expect("attributes can be read");
    assert_eq!(part.attributes().map(|it| it.set()), Ok(half));
}

fn text<const MAX: usize>(text: &str) -> Opaque<'_, MAX> {
    Opaque::new(text.as_bytes()).expect("a seed's text is short")
}

const STATEID: Stateid = Stateid { seqid: 1, other: *b"twelve bytes" };
const SESSION: SessionId = SessionId(*b"sixteen bytes...");

fn owner() -> StateOwner<'static> {
    StateOwner { client: ClientId(7), owner: text("owner") }
}

fn some_attributes() -> Attributes<'static> {
    Attributes {
        kind: Some(FileType::Regular),
        change: Some(1),
        size: Some(5),
        fsid: Some(Fsid { major: 1, minor: 2 }),
        fileid: Some(3),
        mode: Some(0o644),
        owner: Some(text("1000")),
        mtime: Some(Time { seconds: 1, nanoseconds: 2 }),
        mtime_set: Some(SetTime::Server(())),
        suppattr_exclcreat: Some(SETTABLE),
        ..Attributes::default()
    }
}

fn call_seed<P: Program>(back: bool, ident: P::Ident, all: &[(P::Arguments<'_>, &[u8])]) -> Seed {
    let mut out = Vec::new();
    CallWriter::<P>::new(&mut Writer::new(&mut out), text("tag"), 2, ident);
    let count_at = out.len() - 4;
    for (one, payload) in all {
        one.write_all(&mut Writer::new(&mut out));
        out.extend_from_slice(payload);
        out.extend_from_slice(padding(payload.len()));
    }
    Writer::new(&mut out).replace_u32(count_at, all.len() as u32);
    Seed::new().bytes([back.into()]).bytes(out)
}

/// Calls as clients send them.
pub fn arguments_seeds() -> Vec<(&'static str, Seed)> {
    let fore = |all: &[Arguments<'_>]| {
        let sequence = Sequence { session: SESSION, sequence: 1, slot: 0, highest_slot: 0, cache: true };
        let all = [&[Arguments::Sequence(sequence), Arguments::PutFh(text("handle"))], all].concat();
        let all: Vec<_> = all.into_iter().map(|one| (one, &[][..])).collect();
        call_seed::<Fore>(false, (), &all)
    };
    let values = some_attributes();
    let attributes = Fattr::of(&values);
    let verifier = Verifier(*b"verifier");
    let channel = Channel { max_request: 1 << 20, max_operations: 8, max_requests: 64, ..Channel::default() };
    let security = [CallbackSecurity::None(())];
    let client = ClientOwner { verifier, owner: text("client") };
    let exchange = ExchangeId { client, flags: 1, protect: StateProtect::None(()), implementation: None };
    let session = CreateSession {
        client: ClientId(7),
        sequence: 1,
        flags: 2,
        fore: channel,
        back: channel,
        program: 0x4000_0000,
        security: List::of(&security),
    };
    let open = |create, claim| {
        Arguments::Open(Open { seqid: 0, share_access: 1, share_deny: 0, owner: owner(), create, claim })
    };
    let exclusive = CreateHow::Exclusive41(Exclusive { verifier, attributes });
    let new = NewLockOwner { open_seqid: 0, open: STATEID, lock_seqid: 0, owner: owner() };
    let write = Write { stateid: STATEID, offset: 4096, stable: Stable::Unstable, length: 5 };
    let copy = CopyRange {
        source: STATEID,
        destination: STATEID,
        source_offset: 0,
        destination_offset: 0,
        count: 4096,
        consecutive: true,
        synchronous: false,
        source_servers: List::EMPTY,
    };
    let get = Arguments::GetAttr(Attributes::KNOWN);
    let calls = [callback::ReferringCall { sequence: 1, slot: 0 }];
    let referring = [callback::ReferringCalls { session: SESSION, calls: List::of(&calls) }];
    let cb_sequence = callback::Sequence {
        session: SESSION,
        sequence: 1,
        slot: 0,
        highest_slot: 0,
        cache: false,
        referring: List::of(&referring),
    };
    let recall = callback::Recall { stateid: STATEID, truncate: false, file: text("handle") };
    vec![
        ("exchange-id", call_seed::<Fore>(false, (), &[(Arguments::ExchangeId(exchange), &[])])),
        ("create-session", call_seed::<Fore>(false, (), &[(Arguments::CreateSession(session), &[])])),
        ("open", fore(&[open(None, Claim::Null(text("name"))), Arguments::GetFh(()), get.clone()])),
        ("create", fore(&[open(Some(exclusive), Claim::Null(text("new"))), get.clone()])),
        (
            "lock",
            fore(&[Arguments::Lock(Lock {
                kind: LockType::Write,
                reclaim: false,
                offset: 0,
                length: u64::MAX,
                locker: Locker::New(new),
            })]),
        ),
        ("write", call_seed::<Fore>(false, (), &[(Arguments::Write(write), b"bytes"), (get, &[])])),
        ("setattr", fore(&[Arguments::SetAttr(SetAttr { stateid: STATEID, attributes })])),
        ("copy", fore(&[Arguments::SaveFh(()), Arguments::Copy(copy)])),
        ("test-stateid", fore(&[Arguments::TestStateid(List::of(&[STATEID, Stateid::CURRENT]))])),
        (
            "recall",
            call_seed::<Back>(
                true,
                1,
                &[
                    (callback::Arguments::Sequence(cb_sequence), &[]),
                    (callback::Arguments::Recall(recall), &[]),
                ],
            ),
        ),
    ]
}

/// Replies as servers send them.
pub fn results_seeds() -> Vec<(&'static str, Seed)> {
    let fore = |all: &[Results<'_>], payload: &[u8]| {
        let mut out = Vec::new();
        let mut to = Writer::new(&mut out);
        let mut reply = ReplyWriter::<Fore>::new(&mut to, text("tag"));
        all.iter().for_each(|one| reply.push(one));
        Seed::new().bytes([0]).bytes(out).bytes(payload).bytes(padding(payload.len()))
    };
    let values = some_attributes();
    let attributes = Fattr::of(&values);
    let entry = |name, cookie| Entry { cookie, name: text(name), attributes };
    let entries = Chained::of([entry("a", 3), entry("file", 4)]);
    let listed = ReadDirOk { verifier: Verifier([0; 8]), entries: entries.chain(), eof: true };
    let permissions = Ace::NONE;
    let read = ReadDelegation { stateid: STATEID, recall: false, permissions };
    let open = OpenOk {
        stateid: STATEID,
        directory: ChangeInfo::default(),
        flags: 4,
        attributes_set: Bitmap::EMPTY,
        delegation: Delegation::Read(read),
    };
    let denied = LockDenied { owner: owner(), ..LockDenied::default() };
    let outcomes = [Outcome::Ok(()), Outcome::Err(Status::BadStateid, ())];
    let names = [text("a"), text("bc")];
    let xattrs = ListXattrsOk { cookie: 2, names: List::of(&names), eof: true };
    let mut back = vec![1];
    let mut to = Writer::new(&mut back);
    let mut reply = ReplyWriter::<Back>::new(&mut to, text(""));
    reply.push(&callback::Results::GetAttr(Outcome::Ok(attributes)));
    reply.push(&callback::Results::Recall(Outcome::Err(Status::Delay, ())));
    vec![
        ("getattr", fore(&[Results::PutFh(Outcome::Ok(())), Results::GetAttr(Outcome::Ok(attributes))], &[])),
        ("read", fore(&[Results::Read(Outcome::Ok(ReadOk { eof: true, length: 5 }))], b"bytes")),
        ("readdir", fore(&[Results::ReadDir(Outcome::Ok(listed))], &[])),
        ("open", fore(&[Results::Open(Outcome::Ok(open)), Results::GetFh(Outcome::Ok(text("handle")))], &[])),
        ("denied", fore(&[Results::Lock(OutcomeOr::Or(denied))], &[])),
        ("stateids", fore(&[Results::TestStateid(Outcome::Ok(List::of(&outcomes)))], &[])),
        ("xattrs", fore(&[Results::ListXattrs(Outcome::Ok(xattrs))], &[])),
        ("notsupp", fore(&[Results::failed(Operation::LayoutGet, Status::NotSupp)], &[])),
        ("callback", Seed::new().bytes(back)),
    ]
}

/// Attributes of each form.
pub fn attributes_seeds() -> Vec<(&'static str, Seed)> {
    let values = some_attributes();
    let names = [text("a"), text("b")];
    let locations = [FsLocation { servers: List::of(&names), root: List::EMPTY }];
    let moved = Attributes {
        rdattr_error: Some(Outcome::Err(Status::Moved, ())),
        fs_locations: Some(FsLocations { root: List::of(&names), locations: List::of(&locations) }),
        filehandle: Some(text("handle")),
        ..Attributes::default()
    };
    let limits = Attributes {
        supported_attrs: Some(Attributes::KNOWN),
        fs_layout_types: Some(List::of(&[1, 5])),
        change_attr_type: Some(ChangeAttrType::TimeMetadata),
        mode_umask: Some(ModeUmask { mode: 0o666, umask: 0o22 }),
        xattr_support: Some(true),
        ..Attributes::default()
    };
    let seed = |values: &Attributes<'_>| Seed::new().bytes(encode(&Fattr::of(values)));
    let mut unknown = Vec::new();
    Bitmap::of(&[3, Bitmap::BEYOND]).write(&mut Writer::new(&mut unknown));
    vec![
        ("file", seed(&values)),
        ("moved", seed(&moved)),
        ("limits", seed(&limits)),
        ("unknown", Seed::new().bytes(unknown).bytes([0; 4])),
    ]
}
