//! RPC itself: record marks, versions, credentials and retransmissions (RFC 5531).

use nfs::v3::{self, Arguments, Create, CreateHow, Procedure, SetAttributes};
use nfs::v4;
use rpc::auth::Flavor;
use rpc::message::{AcceptStat, Accepted, AuthStat, RejectStat, ReplyBody};

use crate::check::{Area, Check};
use crate::finding::{Finding, Verdict, expect, setup, should, wrong};
use crate::lost::Lost;
use crate::share::{Conn, Lab, Three, at, auth_sys, call, compound, encoded, fh, fragment, raw_at};

const R: Area = Area::Rpc;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        R,
        "null",
        "RFC 1813 §3.3.0, RFC 8881 §16.1",
        "NULL of the NFS program succeeds without results.",
        "Clients call NULL to learn whether a server lives.",
        null,
    ),
    Check::nfs(
        R,
        "null-without-credential",
        "RFC 1813 §3.3.0, RFC 5531 §10.1",
        "NULL needs no authentication: AUTH_NONE succeeds.",
        "A monitor without an identity could not see that the server lives.",
        null_without_credential,
    ),
    Check::nfs(
        R,
        "version-of-rpc",
        "RFC 5531 §9",
        "A call of RPC version 3 is denied with RPC_MISMATCH, from 2 to 2.",
        "A client could not find out which version to use.",
        version_of_rpc,
    ),
    Check::nfs(
        R,
        "unknown-program",
        "RFC 5531 §9",
        "A call of a program that is not served is answered by PROG_UNAVAIL.",
        "A client would wait for a service that is not there.",
        unknown_program,
    ),
    Check::nfs(
        R,
        "unknown-version",
        "RFC 5531 §9",
        "A call of NFS version 99 is answered by PROG_MISMATCH with the served versions.",
        "A client could not fall back to a version that both have.",
        unknown_version,
    ),
    Check::nfs(
        R,
        "unknown-procedure",
        "RFC 5531 §9",
        "A call of procedure 99 is answered by PROC_UNAVAIL.",
        "A client could not tell a missing procedure from a failed one.",
        unknown_procedure,
    ),
    Check::nfs(
        R,
        "garbage-arguments",
        "RFC 5531 §9",
        "A GETATTR of version 3 whose handle is cut off is answered by GARBAGE_ARGS.",
        "A server that reads on would act on bytes that no client sent.",
        garbage_arguments,
    ),
    Check::nfs(
        R,
        "any-xid",
        "RFC 5531 §9",
        "A reply has the XID of its call, also 0 and ffffffffh.",
        "A client finds the call of a reply by its XID alone.",
        any_xid,
    ),
    Check::nfs(
        R,
        "many-fragments",
        "RFC 5531 §11",
        "A call in many fragments of 4 bytes is one record.",
        "Clients may cut a record as they like; libtirpc does.",
        many_fragments,
    ),
    Check::nfs(
        R,
        "byte-by-byte",
        "RFC 5531 §11",
        "A call that arrives in segments of one byte is answered.",
        "TCP may deliver a record mark in parts.",
        byte_by_byte,
    ),
    Check::nfs(
        R,
        "several-in-one-segment",
        "RFC 5531 §11, RFC 1813 §2.5",
        "Each of several calls that are sent together gets a reply.",
        "A client with many calls outstanding would wait for the rest.",
        several_in_one_segment,
    ),
    Check::nfs(
        R,
        "goes-on-after-refusals",
        "RFC 5531 §9",
        "A connection serves on after a call that was refused.",
        "One bad call would cost all outstanding ones.",
        goes_on_after_refusals,
    ),
    Check::nfs(
        R,
        "unknown-flavor",
        "RFC 5531 §8.2, §9",
        "A call with a credential of an unknown flavor is denied with AUTH_ERROR.",
        "A server that serves it does not know for whom.",
        unknown_flavor,
    ),
    Check::nfs(
        R,
        "malformed-auth-sys",
        "RFC 5531 §9, appendix A",
        "A call whose AUTH_SYS is cut off is denied with AUTH_ERROR.",
        "A server that reads on would invent the caller's identity.",
        malformed_auth_sys,
    ),
    Check::nfs(
        R,
        "remove-again",
        "RFC 1813 §4.5",
        "A REMOVE that is sent twice with one XID gets the same reply twice.",
        "After a lost reply the client would report an error for a file that it removed.",
        remove_again,
    )
    .recommended(),
    Check::nfs(
        R,
        "create-again",
        "RFC 1813 §4.5",
        "A guarded CREATE that is sent twice with one XID gets the same reply twice.",
        "After a lost reply the client would report that the new file was there before.",
        create_again,
    )
    .recommended(),
];

fn accepted(conn: &mut Conn, number: (u32, u32, u32), arguments: &[u8], wanted: &str) -> Verdict {
    let answer = conn.call(number, arguments)?;
    expect(answer.told() == wanted, wanted, || answer.told())
}

fn null(lab: &Lab) -> Verdict {
    let answer = lab.connect()?.call(lab.program(), &[])?;
    let body = answer.body()?;
    expect(body.is_empty(), "no results", || format!("{} bytes of results", body.len()))
}

fn null_without_credential(lab: &Lab) -> Verdict {
    let mut conn = lab.connect()?;
    let xid = conn.next_xid();
    let answer = conn.exchange(&call(xid, lab.program(), 0, &[], &[]))?;
    expect(answer.body().is_ok(), "SUCCESS", || answer.told())
}

fn version_of_rpc(lab: &Lab) -> Verdict {
    let mut conn = lab.connect()?;
    let mut bytes = conn.usual(lab.program(), &[]);
    if let Some(version) = bytes.get_mut(8..12) {
        version.copy_from_slice(&3_u32.to_be_bytes());
    }
    let answer = conn.exchange(&bytes)?;
    match answer.outcome() {
        Some(ReplyBody::Denied(RejectStat::RpcMismatch(of))) if of.low <= 2 && of.high == 2 => Ok(()),
        _ => wrong(answer.told(), "RPC_MISMATCH from 2 to 2"),
    }
}

fn unknown_program(lab: &Lab) -> Verdict {
    accepted(&mut lab.connect()?, (0x3fff_fff0, 1, 0), &[], "PROG_UNAVAIL")
}

fn unknown_version(lab: &Lab) -> Verdict {
    let (program, version, _) = lab.program();
    let answer = lab.connect()?.call((program, 99, 0), &[])?;
    match answer.outcome() {
        Some(ReplyBody::Accepted(Accepted { stat: AcceptStat::ProgMismatch(of), .. }))
            if (of.low..=of.high).contains(&version) && of.high < 99 =>
        {
            Ok(())
        }
        _ => wrong(answer.told(), format!("PROG_MISMATCH with a range that has {version}")),
    }
}

fn unknown_procedure(lab: &Lab) -> Verdict {
    let (program, version, _) = lab.program();
    accepted(&mut lab.connect()?, (program, version, 99), &[], "PROC_UNAVAIL")
}

fn garbage_arguments(lab: &Lab) -> Verdict {
    lab.three.clone()?;
    // The length of a handle, and half of it.
    let arguments = [&32_u32.to_be_bytes()[..], &[7; 16]].concat();
    let number = (v3::PROGRAM, v3::VERSION, Procedure::GetAttr.code());
    accepted(&mut lab.connect()?, number, &arguments, "GARBAGE_ARGS")
}

fn any_xid(lab: &Lab) -> Verdict {
    let mut conn = lab.connect()?;
    for xid in [0, u32::MAX, 0x8000_0000] {
        conn.exchange(&call(xid, lab.program(), 1, &auth_sys(lab.ids()), &[]))?.body()?;
    }
    Ok(())
}

fn many_fragments(lab: &Lab) -> Verdict {
    let mut conn = lab.records()?;
    let bytes = conn.usual(lab.program(), &[]);
    let count = bytes.len().div_ceil(4);
    let cut: Vec<u8> =
        bytes.chunks(4).enumerate().flat_map(|(number, part)| fragment(part, number + 1 == count)).collect();
    conn.send(&cut)?;
    conn.receive()?.body().map(|_| ())
}

fn byte_by_byte(lab: &Lab) -> Verdict {
    let mut conn = lab.records()?;
    let bytes = conn.usual(lab.program(), &[]);
    for byte in fragment(&bytes, true) {
        conn.send(&[byte])?;
    }
    conn.receive()?.body().map(|_| ())
}

fn several_in_one_segment(lab: &Lab) -> Verdict {
    let mut conn = lab.records()?;
    let calls: Vec<Vec<u8>> = (0..20).map(|_| conn.usual(lab.program(), &[])).collect();
    let all: Vec<u8> = calls.iter().flat_map(|one| fragment(one, true)).collect();
    conn.send(&all)?;
    let mut wanted: Vec<_> = calls.iter().filter_map(|one| one.first_chunk().copied()).collect();
    while !wanted.is_empty() {
        let answer = conn.receive()?;
        answer.body()?;
        let xid = answer.xid().to_be_bytes();
        let Some(place) = wanted.iter().position(|one| *one == xid) else {
            return wrong(format!("XID {:08x}", answer.xid()), "the XID of a call without a reply so far");
        };
        wanted.remove(place);
    }
    Ok(())
}

fn goes_on_after_refusals(lab: &Lab) -> Verdict {
    let mut conn = lab.connect()?;
    let (program, version, _) = lab.program();
    for number in [(program, version, 99), (program, 99, 0), (0x3fff_fff0, 1, 0)] {
        conn.call(number, &[])?;
    }
    conn.call(lab.program(), &[])?.body().map(|_| ())
}

/// A call that needs an identity.
fn needing(lab: &Lab) -> ((u32, u32, u32), Vec<u8>) {
    match &lab.three {
        Ok(root) => {
            let procedure = Procedure::GetAttr.code();
            ((v3::PROGRAM, v3::VERSION, procedure), encoded(&Arguments::GetAttr(fh(root)), &[]))
        }
        Err(_) => {
            let operations = [v4::Arguments::PutRootFh(())];
            ((v4::PROGRAM, v4::VERSION, v4::COMPOUND), compound(1, &operations, &[]))
        }
    }
}

fn denied(lab: &Lab, flavor: u32, credential: &[u8], with: &[AuthStat]) -> Verdict {
    let mut conn = lab.connect()?;
    let (number, arguments) = needing(lab);
    let xid = conn.next_xid();
    let answer = conn.exchange(&call(xid, number, flavor, credential, &arguments))?;
    let Some(ReplyBody::Denied(RejectStat::AuthError(stat))) = answer.outcome() else {
        return wrong(answer.told(), "AUTH_ERROR");
    };
    should(with.contains(&stat), format!("AUTH_ERROR {:?}", with.first()), || answer.told())
}

fn unknown_flavor(lab: &Lab) -> Verdict {
    use AuthStat::{BadCred, Failed, RejectedCred, TooWeak};
    denied(lab, 77, &[], &[TooWeak, RejectedCred, BadCred, Failed])
}

fn malformed_auth_sys(lab: &Lab) -> Verdict {
    let whole = auth_sys(lab.ids());
    let half = whole.get(..whole.len() / 2 / 4 * 4).unwrap_or_default();
    denied(lab, Flavor::Sys.code(), half, &[AuthStat::BadCred])
}

/// Sends the same call twice: the statuses of the two replies. A server may drop a repeated call
/// that comes before it has quite done with the first, as NFS-Ganesha does. Clients send it again.
fn twice(three: &mut Three, procedure: Procedure, arguments: &[u8]) -> Verdict<(u32, u32)> {
    let bytes = three.conn.usual((v3::PROGRAM, v3::VERSION, procedure.code()), arguments);
    let mut status = || -> Verdict<u32> {
        let answer = three.conn.exchange(&bytes)?;
        Ok(answer.body()?.first_chunk().map_or(u32::MAX, |status| u32::from_be_bytes(*status)))
    };
    let first = status()?;
    let second = match status() {
        Err(Finding::Wrong { seen, .. }) if seen == Lost::Silent.seen() => status(),
        answered => answered,
    };
    Ok((first, second?))
}

fn both_succeed((first, second): (u32, u32)) -> Verdict {
    expect(first == 0 && second == 0, "NFS3_OK both times", || format!("status {first}, then {second}"))
}

fn remove_again(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    three.file(&dir, "file")?;
    let twice = setup(twice(&mut three, Procedure::Remove, &raw_at(&dir, b"file")), "to two replies")?;
    both_succeed(twice)
}

fn create_again(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let how = CreateHow::Guarded(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
    let arguments = encoded(&Arguments::Create(Create { place: at(&dir, "file"), how }), &[]);
    let twice = setup(twice(&mut three, Procedure::Create, &arguments), "to two replies")?;
    both_succeed(twice)
}
