//! Locks, leases, and what opens deny.

use super::{first, lock, write};
use crate::support;
use crate::support::v4::*;
use crate::support::{fragment, served};
use nfs::v3;
use nfs::v4::{
    Arguments, Close, LockT, LockType, LockU, Locker, OldLockOwner, Open, Outcome, OutcomeOr, Results,
    Stateid, Status,
};
use std::time::Duration;

#[test]
fn locks_of_two_clients_exclude_each_other() {
    let served = served();
    let (mut a, mut b) = (served.v4("a"), served.v4("b"));
    let root = a.find("/data").unwrap();
    let (file, opened) = a.make(&root, "file", b"owner");
    let (_, theirs) = b.make(&root, "file", b"owner");
    let reply = a.run(&[handle(&file), lock(LockType::Write, (10, 10), first(opened, b"lock"), false)], &[]);
    let Some(Results::Lock(OutcomeOr::Ok(held))) = answers(&reply).pop() else { panic!() };
    let ask = lock(LockType::Read, (0, 11), first(theirs, b"other"), false);
    let reply = b.run(&[handle(&file), ask.clone(), Arguments::GetFh(())], &[]);
    let all = answers(&reply);
    let Some(Results::Lock(OutcomeOr::Or(denied))) = all.last() else { panic!("{all:?}") };
    assert_eq!(
        (denied.offset, denied.length, denied.kind, denied.owner.client),
        (10, 10, LockType::Write, a.client)
    );
    assert_eq!(denied.owner.owner.bytes(), b"lock");
    let test =
        Arguments::LockT(LockT { kind: LockType::Write, offset: 19, length: 1, owner: owner(b"other") });
    assert_eq!(status(&b.run(&[handle(&file), test], &[])), Some(Status::Denied));
    let locks = Locker::Old(OldLockOwner { locks: held, seqid: 0 });
    assert_eq!(status(&a.run(&[handle(&file), lock(LockType::Write, (30, 1), locks, false)], &[])), None);
    let held = Stateid { seqid: 0, ..held };
    let unlock = LockU { kind: LockType::Write, seqid: 0, locks: held, offset: 0, length: 25 };
    assert_eq!(status(&a.run(&[handle(&file), Arguments::LockU(unlock)], &[])), None);
    assert_eq!(status(&b.run(&[handle(&file), ask], &[])), None);
    served.stop();
}

/// RFC 8881 §8.3: a write of a client that has lost its lease on the way changes nothing.
#[test]
fn a_lease_that_runs_out_in_the_middle_of_a_write_ends_it() {
    let mut config = support::config();
    config.limits.lease = Duration::from_secs(1);
    let served = support::serving(config);
    let (mut a, mut b) = (served.v4("a"), served.v4("b"));
    let root = a.find("/data").unwrap();
    let (file, opened) = a.make(&root, "file", b"owner");
    let all = lock(LockType::Write, (0, u64::MAX), first(opened, b"lock"), false);
    let reply = a.run(&[handle(&file), all.clone()], &[]);
    let Some(Results::Lock(OutcomeOr::Ok(held))) = answers(&reply).pop() else { panic!() };
    // Half of a WRITE is there, and the client says no more.
    let data = vec![1; 300_000];
    let compound = [a.slot(a.sequence + 1), handle(&file), write(held, 0, &data)];
    let (program, version) = (nfs::v4::PROGRAM, nfs::v4::VERSION);
    let call = support::call(77, program, version, nfs::v4::COMPOUND, &body(2, &compound, &data));
    let call = fragment(&call, true);
    let (begin, rest) = call.split_at(150_000);
    a.link.send(begin);
    // Another client's lock stands in its way as long as the lease lasts.
    let (_, theirs) = b.make(&root, "file", b"owner");
    let ask = lock(LockType::Write, (0, u64::MAX), first(theirs, b"lock"), false);
    let mut denied = 0;
    loop {
        match status(&b.run(&[handle(&file), ask.clone()], &[])) {
            None => break,
            Some(Status::Denied) => denied += 1,
            other => panic!("{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(denied > 0, "the lock held while the lease did");
    a.link.send(rest);
    assert_eq!(status(&a.link.reply()), Some(Status::BadSession));
    assert_eq!(b.size(&file), 0);
    // The client begins anew.
    served.v4("a").make(&root, "other", b"owner");
    served.stop();
}

#[test]
fn version_3_keeps_out_of_what_is_denied() {
    let served = served();
    let (mut c, mut third) = (served.v4("client"), served.connect());
    let root = c.find("/data").unwrap();
    let (file, made) = c.make(&root, "file", b"owner");
    c.run(&[handle(&file), Arguments::Close(Close { seqid: 0, stateid: made })], &[]);
    let Arguments::Open(how) = open("file", b"owner", None) else { panic!() };
    let denying = Arguments::Open(Open { share_deny: 3, ..how });
    assert_eq!(status(&c.run(&[handle(&root), denying], &[])), None);
    let how = v3::Read { file: support::handle(&file), offset: 0, count: 4 };
    let reply = third.call(&v3::Arguments::Read(how), &[]);
    let read = support::of(v3::Procedure::Read, &reply);
    assert!(matches!(read, v3::Results::Read(v3::Outcome::Err(v3::Status::Acces, _))), "{read:?}");
    let place = v3::DirOp { directory: support::handle(&root), name: v3::Name::new(b"file").unwrap() };
    let cut = v3::SetAttributes { size: Some(0), ..v3::SetAttributes::default() };
    let how = v3::Create { place, how: v3::CreateHow::Unchecked(cut) };
    let reply = third.call(&v3::Arguments::Create(how), &[]);
    let made = support::of(v3::Procedure::Create, &reply);
    assert!(matches!(made, v3::Results::Create(v3::Outcome::Err(v3::Status::Acces, _))), "{made:?}");
    served.stop();
}

#[test]
fn who_waits_for_a_lock_is_called_when_it_is_free() {
    let served = served();
    let (mut holder, mut waiter) = (served.v4("holder"), served.v4("waiter"));
    let root = holder.find("/data").unwrap();
    let (file, mine) = holder.make(&root, "file", b"owner");
    let reply = waiter.run(&[handle(&root), open("file", b"owner", None)], &[]);
    let Some(Results::Open(Outcome::Ok(theirs))) = answers(&reply).pop() else { panic!() };
    let reply = holder.run(&[handle(&file), lock(LockType::Write, (0, 10), first(mine, b"a"), false)], &[]);
    let Some(Results::Lock(OutcomeOr::Ok(held))) = answers(&reply).pop() else { panic!() };
    let wanted = [handle(&file), lock(LockType::WriteWait, (5, 10), first(theirs.stateid, b"b"), false)];
    assert_eq!(status(&waiter.run(&wanted, &[])), Some(Status::Denied));
    let unlock = LockU { kind: LockType::Write, seqid: 0, locks: held, offset: 0, length: 10 };
    assert_eq!(status(&holder.run(&[handle(&file), Arguments::LockU(unlock)], &[])), None);
    while !waiter.link.calls.contains(&Called::NotifyLock(b"b".to_vec())) {
        let record = waiter.link.record();
        waiter.link.called(&record);
    }
    assert_eq!(status(&waiter.run(&wanted, &[])), None);
    served.stop();
}
