//! COMPOUND and CB_COMPOUND in both directions.

use proptest::prelude::*;
use rpc::xdr::{Opaque, Writer, padding};

use super::samples::{self, Parts, some_parts};
use crate::v4::callback::{self, Back};
use crate::v4::*;

const TAG: &[u8] = b"tag";

fn tag() -> Text<'static> {
    Opaque::new(TAG).unwrap()
}

/// A call with these operations, whose payload is `data`.
fn call<P: Program>(minor: u32, ident: P::Ident, data: &[u8], all: &[P::Arguments<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    CallWriter::<P>::new(&mut Writer::new(&mut out), tag(), minor, ident);
    let count_at = out.len() - 4;
    for one in all {
        one.write_all(&mut Writer::new(&mut out));
        put_payload(&mut out, one.payload_length(), data);
    }
    out[count_at..count_at + 4].copy_from_slice(&(all.len() as u32).to_be_bytes());
    out
}

fn put_payload(out: &mut Vec<u8>, length: u32, data: &[u8]) {
    if length > 0 {
        out.extend_from_slice(data);
        out.extend_from_slice(padding(data.len()));
    }
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
}

/// The call of minor version 2 whose operations are these bytes.
fn call_of(count: u32, operations: &[u8]) -> Vec<u8> {
    [&words(&[0, 2, count]), operations].concat()
}

fn refused_of(body: &[u8]) -> (usize, Option<Refused>) {
    let call: Call<'_> = Call::read(body).unwrap();
    let all: Vec<_> = call.operations.collect();
    let done = all.iter().filter(|one| one.is_ok()).count();
    (done, all.into_iter().find_map(Result::err))
}

fn check_arguments<P: Program>(ident: P::Ident, parts: &Parts, all: &[P::Arguments<'_>])
where
    P::Ident: PartialEq + Copy + std::fmt::Debug,
    for<'x> P::Arguments<'x>: std::fmt::Debug,
{
    let wire = call::<P>(2, ident, &parts.data, all);
    let read = Call::<P>::read(&wire).unwrap();
    assert_eq!((read.tag, read.minor, read.ident), (tag(), 2, ident));
    assert_eq!(read.operations.left() as usize, all.len());
    let mut operations = read.operations;
    for one in all {
        let found = operations.next().unwrap().unwrap();
        // Equality of the types would need one lifetime; the form on the wire has all there is.
        assert_eq!(bytes_of(&found.value), bytes_of(one), "{one:?}");
        assert_eq!(format!("{:?}", found.value), format!("{one:?}"));
        let expected = if one.payload_length() == 0 { &[][..] } else { &parts.data };
        assert_eq!(&wire[found.payload], expected);
    }
    assert!(operations.next().is_none());
    assert_eq!(operations.position(), wire.len());
}

fn bytes_of<'a>(item: &impl Item<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    item.write_all(&mut Writer::new(&mut out));
    out
}

fn check_results<P: Program>(parts: &Parts, all: &[P::Results<'_>])
where
    for<'x> P::Results<'x>: std::fmt::Debug,
{
    // The payload is put into the buffer at the place that the writer says.
    let mut wire = Vec::new();
    let mut to = Writer::new(&mut wire);
    let mut reply = ReplyWriter::<P>::new(&mut to, tag());
    let mut cuts = Vec::new();
    for one in all {
        reply.push(one);
        if one.payload_length() > 0 {
            cuts.push(reply.position());
        }
    }
    for cut in cuts.into_iter().rev() {
        let mut rest = wire.split_off(cut);
        put_payload(&mut wire, parts.data.len() as u32, &parts.data);
        wire.append(&mut rest);
    }
    let read = Reply::<P>::read(&wire).unwrap();
    assert_eq!(read.tag, tag());
    assert_eq!(read.outcome, all.last().unwrap().status().map_or(Outcome::Ok(()), |it| Outcome::Err(it, ())));
    let mut results = read.results;
    for one in all {
        let found = results.next().unwrap().unwrap();
        assert_eq!(bytes_of(&found.value), bytes_of(one), "{one:?}");
        let expected = if one.payload_length() == 0 { &[][..] } else { &parts.data };
        assert_eq!(&wire[found.payload], expected);
    }
    assert!(results.next().is_none());
}

fn check_all(parts: &Parts) {
    let borrowed = parts.borrowed();
    let referring = borrowed.referring();
    check_arguments::<Fore>((), parts, &samples::arguments(parts, &borrowed));
    check_arguments::<Back>(77, parts, &samples::callbacks(parts, &referring));
    check_results::<Fore>(parts, &samples::results(parts, &borrowed));
    check_results::<Back>(parts, &samples::callback_results(parts, &borrowed));
}

#[test]
fn the_samples_have_every_operation() {
    let parts = Parts::some();
    let borrowed = parts.borrowed();
    let referring = borrowed.referring();
    let arguments = samples::arguments(&parts, &borrowed);
    for operation in Operation::ALL.iter().filter(|it| it.is_supported()) {
        assert!(arguments.iter().any(|one| one.operation() == *operation), "{operation:?}");
    }
    let callbacks = samples::callbacks(&parts, &referring);
    for operation in callback::Operation::ALL.iter().filter(|it| it.is_supported()) {
        assert!(callbacks.iter().any(|one| one.operation() == *operation), "{operation:?}");
    }
    check_all(&parts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_operation_is_read_as_it_was_written(parts in some_parts()) {
        check_all(&parts);
    }
}

/// RFC 8881 §16.2.3, §18.46, §18.16, §18.7, byte by byte: a client's COMPOUND to open a file.
#[test]
fn a_compound_is_tag_minor_version_count_and_operations() {
    let wire = [
        &words(&[3])[..],
        b"tag\0",
        // Minor version 1, 4 operations; SEQUENCE.
        &words(&[1, 4, 53]),
        b"0123456789abcdef",
        &words(&[9, 2, 5, 1]),
        // PUTFH.
        &words(&[22, 6]),
        b"handle\0\0",
        // OPEN: seqid, access with WANT_NO_DELEG, deny, client ID, owner.
        &words(&[18, 0, 0x401, 0, 0, 7, 5]),
        b"owner\0\0\0",
        // OPEN4_NOCREATE, CLAIM_NULL.
        &words(&[0, 0, 4]),
        b"file",
        // GETATTR: change, size, mode.
        &words(&[9, 2, 0x18, 0x2]),
    ]
    .concat();
    let owner = StateOwner { client: ClientId(7), owner: Opaque::new(b"owner").unwrap() };
    let all = [
        Arguments::Sequence(Sequence {
            session: SessionId(*b"0123456789abcdef"),
            sequence: 9,
            slot: 2,
            highest_slot: 5,
            cache: true,
        }),
        Arguments::PutFh(Opaque::new(b"handle").unwrap()),
        Arguments::Open(Open {
            seqid: 0,
            share_access: ShareAccess::Read.code() | flags::want::NO_DELEG,
            share_deny: ShareDeny::None.code(),
            owner,
            create: None,
            claim: Claim::Null(Opaque::new(b"file").unwrap()),
        }),
        Arguments::GetAttr(Bitmap::of(&[attribute::CHANGE, attribute::SIZE, attribute::MODE])),
    ];
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let mut writer: CallWriter<'_, '_> = CallWriter::new(&mut to, tag(), 1, ());
    all.iter().for_each(|one| writer.push(one));
    assert_eq!(out, wire);
    let read: Call<'_> = Call::read(&wire).unwrap();
    let found: Result<Vec<_>, _> = read.operations.map(|one| one.map(|it| it.value)).collect();
    assert_eq!(found.unwrap(), all);
}

/// RFC 8881 §16.2.4, §18.22: the payload of READ between results.
#[test]
fn a_reply_is_status_tag_count_and_results() {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let mut reply: ReplyWriter<'_, '_> = ReplyWriter::new(&mut to, tag());
    reply.push(&Results::Read(Outcome::Ok(ReadOk { eof: true, length: 5 })));
    let payload_at = reply.position();
    reply.push(&Results::SetAttr(Outcome::Err(Status::Perm, Bitmap::EMPTY)));
    let wire = [&out[..payload_at], b"bytes\0\0\0", &out[payload_at..]].concat();
    let expected = [
        &words(&[1, 3])[..],
        b"tag\0",
        &words(&[2]),
        &words(&[25, 0, 1, 5]),
        b"bytes\0\0\0",
        &words(&[34, 1, 0]),
    ]
    .concat();
    assert_eq!(wire, expected);
    let read: Reply<'_> = Reply::read(&wire).unwrap();
    assert_eq!(read.outcome, Outcome::Err(Status::Perm, ()));
    let found: Vec<_> = read.results.map(Result::unwrap).collect();
    assert_eq!(found[0].value, Results::Read(Outcome::Ok(ReadOk { eof: true, length: 5 })));
    assert_eq!(&wire[found[0].payload.clone()], b"bytes");
    assert_eq!(found[1].value.error(), Some(Status::Perm));
}

#[test]
fn an_unknown_number_is_op_illegal_and_an_unsupported_one_notsupp() {
    let illegal = |status| Some(Refused { operation: ILLEGAL, status });
    for number in [0, 2, 76, ILLEGAL, u32::MAX] {
        let body = call_of(2, &words(&[24, number]));
        assert_eq!(refused_of(&body), (1, illegal(Status::OpIllegal)), "{number}");
    }
    for operation in Operation::ALL.iter().filter(|it| !it.is_supported()) {
        let refused = Refused { operation: operation.code(), status: Status::NotSupp };
        assert_eq!(refused_of(&call_of(1, &words(&[operation.code()]))), (0, Some(refused)));
    }
    // ALLOCATE is of version 2.
    let allocate = words(&[59, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(refused_of(&[&words(&[0, 1, 1]), &allocate[..]].concat()), (0, illegal(Status::OpIllegal)));
    assert_eq!(refused_of(&call_of(1, &allocate)), (1, None));
}

#[test]
fn a_malformed_operation_is_badxdr_and_the_last_one() {
    let refused = |operation| Some(Refused { operation, status: Status::BadXdr });
    // A boolean of 2; then PUTROOTFH, which is not reached.
    assert_eq!(refused_of(&call_of(3, &words(&[24, 58, 2, 24]))), (1, refused(58)));
    // The count says more than there is.
    assert_eq!(refused_of(&call_of(u32::MAX, &words(&[24, 24]))), (2, refused(ILLEGAL)));
    // A WRITE without its data.
    let write = words(&[38, 0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(refused_of(&call_of(1, &write)), (0, refused(38)));
    // Its head can be read before the data has arrived.
    let body = call_of(1, &write);
    let mut operations = Call::<Fore>::read(&body).unwrap().operations;
    let head = operations.head().unwrap().unwrap();
    assert_eq!((head.payload(), operations.position()), (5, body.len()));
    assert!(operations.payload(head.payload()).is_err());
}

#[test]
fn operations_behind_a_payload_can_lie_elsewhere() {
    let head = words(&[38, 0, 0, 0, 0, 0, 0, 0, 5]);
    let (body, rest) = (call_of(2, &head), words(&[24]));
    let mut operations = Call::<Fore>::read(&body).unwrap().operations;
    assert_eq!(operations.head().unwrap().unwrap().payload(), 5);
    operations.resume(&rest);
    assert_eq!(operations.next().unwrap().unwrap().value, Arguments::PutRootFh(()));
    assert!(operations.next().is_none());
}

#[test]
fn a_result_that_was_too_long_is_replaced() {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let mut reply: ReplyWriter<'_, '_> = ReplyWriter::new(&mut to, tag());
    reply.push(&Results::PutRootFh(Outcome::Ok(())));
    reply.in_place(Operation::ReadLink.code(), |to| {
        to.u32(0);
        to.u32(0);
        Ok(())
    });
    reply.pop();
    reply.push(&Results::failed(Operation::ReadLink, Status::RepTooBig));
    let expected = [&words(&[10066, 3])[..], b"tag\0", &words(&[2, 24, 0, 27, 10066])].concat();
    assert_eq!(out, expected);
}

#[test]
fn another_minor_version_is_answered_without_results() {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    ReplyWriter::<Fore>::new(&mut to, tag()).fail(Status::MinorVersMismatch);
    assert_eq!(out, [&words(&[10021, 3])[..], b"tag\0", &words(&[0])].concat());
}

#[test]
fn an_error_of_lock_is_whole_even_if_nobody_is_named() {
    let mut out = Vec::new();
    Results::failed(Operation::Lock, Status::Denied).write_all(&mut Writer::new(&mut out));
    // DENIED, offset, length, WRITE, client ID, owner.
    assert_eq!(out, words(&[12, 10010, 0, 0, u32::MAX, u32::MAX, 2, 0, 0, 0]));
}

#[test]
fn facts_of_operations_are_those_of_the_rfc() {
    assert!(Operation::Lookup.needs_current() && !Operation::PutRootFh.needs_current());
    assert!(!Operation::Sequence.needs_current() && Operation::SecInfoNoName.needs_current());
    assert!(Operation::Rename.needs_saved() && !Operation::Lookup.needs_saved());
    assert!(Operation::ExchangeId.is_sessionless() && !Operation::Sequence.is_sessionless());
    assert!(Operation::SetXattr.changes() && !Operation::Read.changes());
}
