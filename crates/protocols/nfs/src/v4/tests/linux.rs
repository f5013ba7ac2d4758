//! Messages that a client and a server of Linux 6.1 sent to each other over minor versions 2 and 1.
//! They cover mounts, files, locks, ranges, extended attributes, and the recall of a delegation.

use rpc::xdr::{Writer, encode, padding};

use crate::v4::callback::Back;
use crate::v4::*;

/// The operations of a call, which is written in the same bytes.
fn check_call<P: Program>(wire: &[u8]) -> Vec<u32> {
    let call = Call::<P>::read(wire).unwrap();
    let mut out = Vec::new();
    let mut numbers = Vec::new();
    for one in call.operations {
        let Located { value, payload } = one.unwrap();
        let start = out.len();
        value.write_all(&mut Writer::new(&mut out));
        out.extend_from_slice(&wire[payload.clone()]);
        out.extend_from_slice(padding(payload.len()));
        numbers.push(u32::from_be_bytes(*out[start..].first_chunk().unwrap()));
    }
    let mut head = Vec::new();
    let mut to = Writer::new(&mut head);
    CallWriter::<P>::new(&mut to, call.tag, call.minor, call.ident);
    to.replace_u32(to.position() - 4, numbers.len() as u32);
    assert!([head, out].concat() == wire, "a call of {numbers:?} is written in other bytes");
    numbers
}

/// The operations of a reply and their errors. The reply is written in the same bytes, but for the
/// words of zeros that the server leaves at the end of the set of attributes that were set.
fn check_reply<P: Program>(wire: &[u8]) -> Vec<(u32, Option<Status>)> {
    let reply = Reply::<P>::read(wire).unwrap();
    let mut out = Vec::new();
    let mut found = Vec::new();
    for one in reply.results {
        let Located { value, payload } = one.unwrap();
        let start = out.len();
        value.write_all(&mut Writer::new(&mut out));
        out.extend_from_slice(&wire[payload.clone()]);
        out.extend_from_slice(padding(payload.len()));
        found.push((u32::from_be_bytes(*out[start..].first_chunk().unwrap()), value.status()));
    }
    let head = [encode(&reply.outcome), encode(&reply.tag), encode(&(found.len() as u32))].concat();
    let out = [head, out].concat();
    if out != wire {
        let setting = [Operation::SetAttr, Operation::Open, Operation::Create].map(Operation::code);
        assert!(
            found.iter().any(|it| setting.contains(&it.0)),
            "a reply of {found:?} is written in other bytes"
        );
        assert!(out.len() < wire.len());
        assert_eq!(check_reply::<P>(&out), found);
    }
    found
}

/// The records, and their kinds: `call`, `reply`, `callback` or `callback-reply`.
fn records() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let lines = include_str!("../linux.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(kind, digits)| (kind, crate::from_hex(digits)))
}

#[test]
fn what_linux_sends_is_read_and_written_in_the_same_bytes() {
    let (mut numbers, mut errors, mut callbacks) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, wire) in records() {
        match kind {
            "call" => numbers.extend(check_call::<Fore>(&wire)),
            "reply" => errors.extend(check_reply::<Fore>(&wire).into_iter().filter_map(|it| it.1)),
            "callback" => callbacks.extend(check_call::<Back>(&wire)),
            _ => assert!(check_reply::<Back>(&wire).iter().all(|it| it.1.is_none())),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    let rest = [31, 32, 34, 38, 42, 43, 44, 45, 52, 53, 57, 58, 59, 60, 62, 69, 73, 74, 75];
    let expected =
        [&[3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 18, 22, 24, 25, 26, 27, 28, 29][..], &rest].concat();
    assert_eq!(numbers, expected);
    assert_eq!(errors, [Status::NxIo, Status::Exist, Status::Grace, Status::NoEnt]);
    assert_eq!(callbacks, [callback::Operation::Sequence, callback::Operation::Recall].map(|it| it.code()));
}

#[test]
fn every_attribute_that_linux_sends_has_a_field() {
    let (mut asked, mut seen) = (Bitmap::EMPTY, Bitmap::EMPTY);
    for (kind, wire) in records() {
        if kind == "call" {
            for one in Call::<Fore>::read(&wire).unwrap().operations {
                match one.unwrap().value {
                    Arguments::GetAttr(set) => asked = asked.or(set),
                    Arguments::ReadDir(read) => asked = asked.or(read.requested),
                    Arguments::SetAttr(set) => seen = seen.or(set.attributes.attributes().unwrap().set()),
                    _ => {}
                }
            }
        } else if kind == "reply" {
            for one in Reply::<Fore>::read(&wire).unwrap().results {
                match one.unwrap().value {
                    Results::GetAttr(Outcome::Ok(fattr)) => {
                        seen = seen.or(fattr.attributes().unwrap().set());
                    }
                    Results::ReadDir(Outcome::Ok(read)) => {
                        assert!(read.entries.iter().all(|it| it.attributes.attributes().is_ok()));
                    }
                    _ => {}
                }
            }
        }
    }
    assert_eq!(asked.minus(Attributes::KNOWN), Bitmap::EMPTY);
    use attribute::*;
    let some = [SUPPORTED_ATTRS, LEASE_TIME, MAXREAD, TIME_MODIFY_SET, SUPPATTR_EXCLCREAT, XATTR_SUPPORT];
    assert_eq!(Bitmap::of(&some).minus(seen), Bitmap::EMPTY);
}
