//! Sessions and their slots, COMPOUNDs, and calls that the server does not do.

use super::{read, write};
use crate::support;
use crate::support::v4::*;
use crate::support::{fragment, served};
use nfs::v4::{Arguments, CopyRange, Create, CreateType, Fattr, SecInfoStyle, Status};
use rpc::xdr::List;
use std::net::Ipv4Addr;

#[test]
fn a_slots_reply_is_kept_and_its_order_is() {
    let served = served();
    let mut c = served.v4("client");
    c.cache = true;
    let root = c.find("/data").unwrap();
    let make = |kind| Arguments::Create(Create { kind, name: name("dir"), attributes: Fattr::EMPTY });
    let once = [c.slot(c.sequence + 1), handle(&root), make(CreateType::Directory(()))];
    let once = body(2, &once, &[]);
    let first = c.link.v4(&once);
    assert_eq!(status(&first), None);
    let again = c.link.v4(&once);
    assert_eq!(support::results(&again), support::results(&first), "not EXIST");
    // Over another connection too.
    let mut other = served.connect();
    assert_eq!(support::results(&other.v4(&once)), support::results(&first));
    let false_retry = body(2, &[c.slot(c.sequence + 1), Arguments::PutRootFh(())], &[]);
    assert_eq!(status(&c.link.v4(&false_retry)), Some(Status::SeqFalseRetry));
    let far = body(2, &[c.slot(c.sequence + 3), Arguments::PutRootFh(())], &[]);
    assert_eq!(status(&c.link.v4(&far)), Some(Status::SeqMisordered));
    // Without the wish to keep the reply, a retry gets RETRY_UNCACHED_REP.
    c.sequence += 1;
    c.cache = false;
    c.run(&[Arguments::PutRootFh(()), Arguments::GetFh(())], &[]);
    let retry = body(2, &[c.slot(c.sequence), Arguments::PutRootFh(()), Arguments::GetFh(())], &[]);
    assert_eq!(status(&c.link.v4(&retry)), Some(Status::RetryUncachedRep));
    served.stop();
}

/// RFC 8881 §18.35.4, case 3: the name is in use. It would take the client's opens and locks.
#[test]
fn a_name_that_another_host_claims_is_in_use() {
    let served = served();
    let mut held = served.v4("a");
    let mut other = served.connect_from(Ipv4Addr::new(127, 0, 0, 2));
    let reply = other.v4(&body(1, &[exchange("a", 2)], &[]));
    assert_eq!(status(&reply), Some(Status::ClidInUse));
    assert_eq!(status(&held.run(&[Arguments::PutRootFh(())], &[])), None);
    let mut again = served.connect();
    let reply = again.v4(&body(1, &[exchange("a", 2)], &[]));
    assert_eq!(status(&reply), None, "its own host may have restarted");
    served.stop();
}

#[test]
fn what_is_not_done_is_not_supported() {
    let served = served();
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let (file, stateid) = c.make(&root, "file", b"owner");
    let elsewhere = [nfs::v4::NetLoc::Name(name("elsewhere"))];
    let copy = Arguments::Copy(CopyRange {
        source: stateid,
        destination: stateid,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: true,
        source_servers: List::of(&elsewhere),
    });
    let reply = c.run(&[handle(&file), Arguments::SaveFh(()), copy], &[]);
    assert_eq!(status(&reply), Some(Status::NotSupp));
    assert_eq!(status(&c.run(&[handle(&file), Arguments::OpenAttr(false)], &[])), Some(Status::NotSupp));
    let style = Arguments::SecInfoNoName(SecInfoStyle::CurrentFh);
    let reply = c.run(&[handle(&file), style, Arguments::GetFh(())], &[]);
    assert_eq!(status(&reply), Some(Status::NoFileHandle), "SECINFO takes the current file away");
    served.stop();
}

#[test]
fn compounds_that_break_the_rules_are_told_so() {
    let served = served();
    let mut c = served.v4("client");
    let mut alone = |minor, all: &[Arguments<'_>]| status(&c.link.v4(&body(minor, all, &[])));
    assert_eq!(alone(0, &[Arguments::PutRootFh(())]), Some(Status::MinorVersMismatch));
    assert_eq!(alone(3, &[]), Some(Status::MinorVersMismatch));
    assert_eq!(alone(1, &[]), None);
    assert_eq!(alone(1, &[Arguments::PutRootFh(())]), Some(Status::OpNotInSession));
    let destroy = Arguments::DestroyClientId(nfs::v4::ClientId(1));
    assert_eq!(alone(1, &[destroy.clone(), destroy.clone()]), Some(Status::NotOnlyOp));
    assert_eq!(alone(1, &[destroy]), Some(Status::StaleClientId));
    let many = vec![Arguments::PutRootFh(()); 10_000];
    assert_eq!(alone(1, &many), Some(Status::OpNotInSession));
    let all = [&[c.slot(c.sequence + 1)], &many[..]].concat();
    assert_eq!(status(&c.link.v4(&body(1, &all, &[]))), Some(Status::TooManyOps));
    // The slot is as it was.
    let second = c.slot(c.sequence + 1);
    assert_eq!(status(&c.run(&[second], &[])), Some(Status::SequencePos));
    // Operations that are cut short end the compound, not the connection.
    let mut cut = body(1, &[c.slot(c.sequence + 1), Arguments::PutRootFh(())], &[]);
    c.sequence += 1;
    let len = cut.len();
    cut[len - 4..].copy_from_slice(&9999u32.to_be_bytes());
    assert_eq!(status(&c.link.v4(&cut)), Some(Status::OpIllegal));
    // A message that is no COMPOUND at all is no call.
    let garbage = support::call(99, nfs::v4::PROGRAM, 4, 1, &[0xff; 3]);
    c.link.send(&fragment(&garbage, true));
    let reply = c.link.reply();
    assert_eq!(reply[reply.len() - 4..], 4u32.to_be_bytes(), "GARBAGE_ARGS");
    served.stop();
}

#[test]
fn a_reply_that_would_be_too_long_changes_nothing() {
    let served = served();
    let mut c = served.v4("client");
    c.cache = true;
    let root = c.find("/data").unwrap();
    let (file, stateid) = c.make(&root, "file", b"owner");
    let data = vec![7; 8000];
    c.run(&[handle(&file), write(stateid, 0, &data)], &data);
    let reply = c.run(&[handle(&file), read(stateid, 0, 8000)], &[]);
    assert_eq!(status(&reply), Some(Status::RepTooBigToCache));
    let reply = c.run(&[handle(&file), read(stateid, 0, 3900)], &[]);
    assert_eq!(support::v4::data(&reply), data[..3900]);
    let again = body(2, &[c.slot(c.sequence), handle(&file), read(stateid, 0, 3900)], &[]);
    assert_eq!(support::results(&c.link.v4(&again)), support::results(&reply));
    let reads = [handle(&file), read(stateid, 0, 3900), Arguments::SaveFh(()), handle(&root)];
    let last = [Arguments::Remove(name("file"))];
    assert_eq!(status(&c.run(&[&reads[..], &last].concat(), &[])), Some(Status::RepTooBigToCache));
    assert_eq!(c.find("/data/file").unwrap(), file);
    served.stop();
}

#[test]
fn answers_that_nobody_waits_for_are_ignored() {
    let served = served();
    let mut c = served.v4("client");
    for xid in 0..1000 {
        let mut bytes = Vec::new();
        let mut to = rpc::xdr::Writer::new(&mut bytes);
        rpc::message::Reply::accepted(xid, rpc::message::AcceptStat::Success(())).write(&mut to);
        c.link.send(&fragment(&bytes, true));
    }
    assert!(c.find("/data").is_ok());
    served.stop();
}
