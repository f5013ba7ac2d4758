//! Messages, credentials and rpcbind: bytes worked out by hand, round trips, and the opinion of the
//! crate `onc-rpc`.

use arrayvec::ArrayVec;
use proptest::prelude::*;

use crate::auth::{AuthSys, Credential, Flavor, MAX_AUTH_BODY, OpaqueAuth};
use crate::bind::{self, Binding, Mapping};
use crate::message::{
    AcceptStat, Accepted, AuthStat, BadCall, Call, Message, RejectStat, Reply, ReplyBody, Versions,
};
use crate::record;
use crate::xdr::{Chained, Malformed, Opaque, Reader, Writer, decode, encode};

/// Big-endian bytes of words.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn written(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    match message {
        Message::Call(call) => call.write(&mut to),
        Message::Reply(reply) => reply.write(&mut to),
    }
    out
}

fn read(bytes: &[u8]) -> Result<Message<'_>, BadCall> {
    Message::read(&mut Reader::new(bytes))
}

fn sys() -> AuthSys<'static> {
    let machine = Opaque::new(b"host").unwrap();
    AuthSys { stamp: 5, machine, uid: 1000, gid: 100, gids: [4, 24].into_iter().collect() }
}

#[test]
fn a_call_with_auth_sys() {
    let mut buffer = Vec::new();
    let credential = sys().auth(&mut buffer);
    let call = Call {
        xid: 0x1234,
        program: 100_003,
        version: 3,
        procedure: 1,
        credential,
        verifier: OpaqueAuth::NONE,
    };
    let bytes = [
        words(&[0x1234, 0, 2, 100_003, 3, 1, 1, 32, 5, 4]),
        b"host".to_vec(),
        words(&[1000, 100, 2, 4, 24, 0, 0]),
    ]
    .concat();
    assert_eq!(written(&Message::Call(call)), bytes);
    assert_eq!(read(&bytes), Ok(Message::Call(call)));
    assert_eq!(call.credential.credential(), Ok(Credential::Sys(sys())));
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn all_states_of_a_reply() {
    let none = [0, 0];
    let versions = Versions { low: 2, high: 4 };
    let accepted = [
        (AcceptStat::Success(()), vec![0]),
        (AcceptStat::ProgUnavail(()), vec![1]),
        (AcceptStat::ProgMismatch(versions), vec![2, 2, 4]),
        (AcceptStat::ProcUnavail(()), vec![3]),
        (AcceptStat::GarbageArgs(()), vec![4]),
        (AcceptStat::SystemErr(()), vec![5]),
    ];
    for (stat, rest) in accepted {
        let reply = Reply::accepted(9, stat);
        assert_eq!(written(&Message::Reply(reply)), words(&[&[9, 1, 0][..], &none, &rest].concat()));
        assert_eq!(reply.is_success(), stat == AcceptStat::Success(()));
    }
    for stat in AuthStat::ALL {
        let bytes = words(&[9, 1, 1, 1, stat.code()]);
        assert_eq!(read(&bytes), Ok(Message::Reply(Reply::auth_error(9, *stat))));
        assert_eq!(written(&Message::Reply(Reply::auth_error(9, *stat))), bytes);
    }
    let body = ReplyBody::Denied(RejectStat::RpcMismatch(versions));
    assert_eq!(read(&words(&[9, 1, 1, 0, 2, 4])), Ok(Message::Reply(Reply { xid: 9, body })));
}

#[test]
fn a_call_of_another_rpc_version_is_denied_with_a_reply() {
    let bad = read(&words(&[7, 0, 3])).unwrap_err();
    let reply = bad.reply().unwrap();
    assert_eq!(written(&Message::Reply(reply)), words(&[7, 1, 1, 0, 2, 2]));
}

#[test]
fn malformed_credentials_and_verifiers_are_denied_with_a_reply() {
    let long = MAX_AUTH_BODY as u32 + 4;
    let call = |rest: &[u32]| words(&[&[7, 0, 2, 100_003, 3, 0][..], rest].concat());
    for (rest, stat) in [
        (&[1, long][..], AuthStat::BadCred),
        (&[1, 8, 0], AuthStat::BadCred),
        (&[0, 0, 0, long], AuthStat::BadVerf),
    ] {
        let reply = read(&call(rest)).unwrap_err().reply();
        assert_eq!(reply, Some(Reply::auth_error(7, stat)));
    }
    let sys = |body: &[u32]| {
        let body = words(body);
        OpaqueAuth { flavor: 1, body: Opaque::new(&body).unwrap() }.credential().map(drop)
    };
    // 17 groups, a name of 256 bytes, and a byte too many.
    assert_eq!(sys(&[0, 0, 0, 0, 17]), Err(AuthStat::BadCred));
    assert_eq!(sys(&[0, 256]), Err(AuthStat::BadCred));
    assert_eq!(sys(&[0, 0, 0, 0, 0, 0]), Err(AuthStat::BadCred));
    assert_eq!(sys(&[0, 0, 0, 0, 0]), Ok(()));
}

#[test]
fn what_is_no_message_has_no_reply() {
    let bad = read(&words(&[7, 2, 2])).unwrap_err();
    assert_eq!(bad, BadCall::Malformed(Malformed::Unknown { what: "msg_type", value: 2 }));
    assert_eq!(bad.reply(), None);
    assert!(Reply::read(&mut Reader::new(&words(&[7, 0, 2]))).is_err());
}

#[test]
fn the_longest_auth_sys_fits_a_credential() {
    let machine = [b'm'; 255];
    let gids = (0..16).collect::<ArrayVec<u32, 16>>();
    let sys = AuthSys { stamp: 1, machine: Opaque::new(&machine).unwrap(), uid: 2, gid: 3, gids };
    let mut buffer = Vec::new();
    let auth = sys.auth(&mut buffer);
    assert_eq!(auth.body.bytes().len(), 340);
    assert_eq!(auth.credential(), Ok(Credential::Sys(sys.clone())));
}

#[test]
fn the_portmapper_maps_a_program_to_a_port() {
    let mapping = Mapping { program: 100_003, version: 3, protocol: bind::TCP, port: 0 };
    let ask = bind::v2::Arguments::GetPort(mapping);
    let mut out = Vec::new();
    ask.write(&mut Writer::new(&mut out));
    assert_eq!(out, words(&[100_003, 3, 6, 0]));
    assert_eq!(ask.procedure().code(), 3);
    let chained = Chained::of([Mapping { port: 2049, ..mapping }, Mapping { port: 2049, ..mapping }]);
    let list = words(&[1, 100_003, 3, 6, 2049, 1, 100_003, 3, 6, 2049, 0]);
    assert_eq!(encode(&chained.chain()), list);
    let mut from = Reader::new(&list);
    let results = bind::v2::Results::read(bind::v2::Procedure::Dump, &mut from).unwrap();
    assert_eq!(results, bind::v2::Results::Dump(chained.chain()));
}

#[test]
fn rpcbind_maps_a_program_to_a_universal_address() {
    let text = |text: &'static str| Opaque::new(text.as_bytes()).unwrap();
    let binding = Binding {
        program: 100_003,
        version: 3,
        netid: text("tcp"),
        address: text("192.0.2.1.8.1"),
        owner: text(""),
    };
    let bytes = [
        words(&[100_003, 3, 3]),
        b"tcp\0".to_vec(),
        words(&[13]),
        b"192.0.2.1.8.1\0\0\0".to_vec(),
        words(&[0]),
    ]
    .concat();
    assert_eq!(encode(&binding), bytes);
    assert_eq!(decode(&bytes), Ok(binding));
}

#[test]
fn universal_addresses_end_in_the_two_bytes_of_the_port() {
    for (universal, address) in [
        ("192.0.2.1.8.1", "192.0.2.1:2049"),
        ("0.0.0.0.0.111", "0.0.0.0:111"),
        ("2001:db8::1.255.255", "[2001:db8::1]:65535"),
    ] {
        let address = address.parse().unwrap();
        assert_eq!(bind::universal_address(address), universal);
        assert_eq!(bind::socket_address(universal), Some(address));
    }
    for wrong in ["", "1.2", "192.0.2.1", "192.0.2.1.8.256", "192.0.2.1.8.", "192.0.2.1.8.+1", "/run/x.sock"]
    {
        assert_eq!(bind::socket_address(wrong), None, "{wrong}");
    }
}

fn auth() -> impl Strategy<Value = (u32, Vec<u8>)> {
    (any::<u32>(), prop::collection::vec(any::<u8>(), 0..=MAX_AUTH_BODY))
}

fn opaque_auth((flavor, body): &(u32, Vec<u8>)) -> OpaqueAuth<'_> {
    OpaqueAuth { flavor: *flavor, body: Opaque::new(body).unwrap() }
}

fn body(code: u8, low: u32, high: u32, verifier: OpaqueAuth<'_>) -> ReplyBody<'_> {
    let versions = Versions { low, high };
    let stat = match code % 8 {
        0 => AcceptStat::Success(()),
        1 => AcceptStat::ProgUnavail(()),
        2 => AcceptStat::ProgMismatch(versions),
        3 => AcceptStat::ProcUnavail(()),
        4 => AcceptStat::GarbageArgs(()),
        5 => AcceptStat::SystemErr(()),
        6 => return ReplyBody::Denied(RejectStat::RpcMismatch(versions)),
        _ => {
            return ReplyBody::Denied(RejectStat::AuthError(
                AuthStat::ALL[low as usize % AuthStat::ALL.len()],
            ));
        }
    };
    ReplyBody::Accepted(Accepted { verifier, stat })
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        numbers in any::<[u32; 6]>(), code in any::<u8>(), first in auth(), second in auth(),
    ) {
        let [xid, program, version, procedure, low, high] = numbers;
        let (credential, verifier) = (opaque_auth(&first), opaque_auth(&second));
        let call = Message::Call(Call { xid, program, version, procedure, credential, verifier });
        assert_eq!(read(&written(&call)), Ok(call));
        let reply = Message::Reply(Reply { xid, body: body(code, low, high, verifier) });
        assert_eq!(read(&written(&reply)), Ok(reply));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        head in prop::collection::vec(0u32..4, 0..12), rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let bytes = [words(&head), rest].concat();
        if let Ok(message) = read(&bytes) {
            // All but padding, whose value is not kept.
            assert_eq!(read(&written(&message)), Ok(message));
        }
        for procedure in bind::v2::Procedure::ALL {
            let _ = bind::v2::Arguments::read(*procedure, &mut Reader::new(&bytes));
            let _ = bind::v2::Results::read(*procedure, &mut Reader::new(&bytes));
        }
        for procedure in bind::v4::Procedure::ALL {
            let _ = bind::v4::Arguments::read(*procedure, &mut Reader::new(&bytes));
            let _ = bind::v4::Results::read(*procedure, &mut Reader::new(&bytes));
        }
    }
}

/// Our message as a record, with `body` behind it.
fn as_record(message: &Message<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let begun = record::begin(&mut to);
    to.raw(&written(message));
    to.raw(body);
    record::end(&mut to, begun, 0).unwrap();
    out
}

#[test]
fn onc_rpc_writes_and_reads_the_same_calls() {
    use onc_rpc::auth::{AuthFlavor, AuthUnixParams};
    use onc_rpc::{CallBody, MessageType, RpcMessage};
    let params = AuthUnixParams::new(5, &b"host"[..], 1000, 100, [4, 24]);
    let credentials = AuthFlavor::AuthUnix(params);
    let body = CallBody::new(100_003, 3, 7, credentials, AuthFlavor::AuthNone(None), &b"args"[..]);
    let theirs = RpcMessage::new(0xfeed, MessageType::Call(body));
    let mut buffer = Vec::new();
    let credential = sys().auth(&mut buffer);
    let ours = Call {
        xid: 0xfeed,
        program: 100_003,
        version: 3,
        procedure: 7,
        credential,
        verifier: OpaqueAuth::NONE,
    };
    let ours = as_record(&Message::Call(ours), b"args");
    assert_eq!(theirs.serialise().unwrap(), ours);
    assert_eq!(RpcMessage::try_from(&ours[..]).unwrap(), theirs);
}

#[test]
fn onc_rpc_writes_and_reads_the_same_replies() {
    use onc_rpc::auth::AuthFlavor;
    use onc_rpc::{AcceptedReply, AcceptedStatus, AuthError, MessageType, RejectedReply, RpcMessage};
    let versions = Versions { low: 3, high: 4 };
    let accepted = [
        (AcceptStat::Success(()), AcceptedStatus::Success(&b"done"[..])),
        (AcceptStat::ProgUnavail(()), AcceptedStatus::ProgramUnavailable),
        (AcceptStat::ProgMismatch(versions), AcceptedStatus::ProgramMismatch { low: 3, high: 4 }),
        (AcceptStat::ProcUnavail(()), AcceptedStatus::ProcedureUnavailable),
        (AcceptStat::GarbageArgs(()), AcceptedStatus::GarbageArgs),
        (AcceptStat::SystemErr(()), AcceptedStatus::SystemError),
    ];
    let verifier = OpaqueAuth { flavor: Flavor::Short.code(), body: Opaque::new(b"abcd").unwrap() };
    let mut pairs = Vec::new();
    for (stat, theirs) in accepted {
        let verifier_of_theirs = AuthFlavor::AuthShort(&b"abcd"[..]);
        pairs.push((
            ReplyBody::Accepted(Accepted { verifier, stat }),
            onc_rpc::ReplyBody::Accepted(AcceptedReply::new(verifier_of_theirs, theirs)),
        ));
    }
    let denied = [
        (RejectStat::RpcMismatch(versions), RejectedReply::RpcVersionMismatch { low: 3, high: 4 }),
        (RejectStat::AuthError(AuthStat::BadCred), RejectedReply::AuthError(AuthError::BadCredentials)),
        (RejectStat::AuthError(AuthStat::TooWeak), RejectedReply::AuthError(AuthError::TooWeak)),
        (RejectStat::AuthError(AuthStat::Failed), RejectedReply::AuthError(AuthError::Failed)),
    ];
    for (stat, theirs) in denied {
        pairs.push((ReplyBody::Denied(stat), onc_rpc::ReplyBody::Denied(theirs)));
    }
    for (body, theirs) in pairs {
        let reply = Reply { xid: 77, body };
        let results: &[u8] = if reply.is_success() { b"done" } else { b"" };
        let ours = as_record(&Message::Reply(reply), results);
        let theirs = RpcMessage::new(77, MessageType::Reply(theirs));
        assert_eq!(theirs.serialise().unwrap(), ours, "{reply:?}");
        assert_eq!(RpcMessage::try_from(&ours[..]).unwrap(), theirs, "{reply:?}");
    }
}
