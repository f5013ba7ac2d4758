//! Restarts, after which clients reclaim what they had, and takeovers, after which they need not.

use super::{first, lock, read, write};
use crate::support;
use crate::support::v4::*;
use crate::support::{Served, served};
use nfs::v3;
use nfs::v4::{Arguments, Claim, Delegation, DelegationType, LockType, Open, Outcome, Results, Status};

/// The server's successor, with the same trees and records.
fn restarted(served: Served) -> Served {
    let config = served.config.clone();
    served.stop();
    support::serving(config)
}

#[test]
fn what_a_client_had_open_is_reclaimed_after_a_restart() {
    let folder = std::env::temp_dir().join(format!("nfs-clients-{}", std::process::id()));
    let mut config = support::config();
    config.clients = Some(folder.clone());
    let served = support::serving(config);
    let (mut a, mut b) = (served.v4("a"), served.v4("b"));
    let root = a.find("/data").unwrap();
    let (file, opened) = a.make(&root, "file", b"owner");
    b.make(&root, "other", b"owner");
    a.run(&[handle(&file), lock(LockType::Write, (0, 10), first(opened, b"lock"), false)], &[]);
    let served = restarted(served);
    let mut stale = served.connect();
    assert_eq!(status(&stale.v4(&body(2, &[a.slot(a.sequence + 1)], &[]))), Some(Status::BadSession));
    let mut a = served.v4_again("a");
    assert_eq!(status(&a.run(&[handle(&file), read(opened, 0, 1)], &[])), Some(Status::BadStateid));
    assert_eq!(status(&a.run(&[handle(&root), open("file", b"owner", None)], &[])), Some(Status::Grace));
    let reply = a.run(&[handle(&file), reclaim(b"owner")], &[]);
    let Some(Results::Open(Outcome::Ok(again))) = answers(&reply).pop() else {
        panic!("{:?}", status(&reply))
    };
    let reply =
        a.run(&[handle(&file), lock(LockType::Write, (0, 10), first(again.stateid, b"lock"), true)], &[]);
    assert_eq!(status(&reply), None);
    assert_eq!(status(&a.run(&[Arguments::ReclaimComplete(false)], &[])), None);
    // A new client has nothing to reclaim, and does not have to wait for itself.
    let mut c = served.v4_again("c");
    assert_eq!(status(&c.run(&[handle(&file), reclaim(b"owner")], &[])), Some(Status::ReclaimBad));
    let mut b = served.v4_again("b");
    assert_eq!(status(&b.run(&[Arguments::ReclaimComplete(false)], &[])), None);
    // All are done: the period of grace is over.
    let (_, theirs) = b.make(&root, "file", b"owner");
    let reply = b.run(&[handle(&file), lock(LockType::Write, (5, 1), first(theirs, b"lock"), false)], &[]);
    assert_eq!(status(&reply), Some(Status::Denied), "it was reclaimed");
    served.stop();
    std::fs::remove_file(folder).expect("the records were kept");
}

/// RFC 8881 §10.2.1: a client that gets a delegation again trusts what it has read before.
#[test]
fn a_delegation_reclaimed_after_a_change_is_to_be_returned() {
    let folder = std::env::temp_dir().join(format!("nfs-changed-{}", std::process::id()));
    let mut config = support::config();
    config.clients = Some(folder.clone());
    for changes in [false, true] {
        let served = support::serving(config.clone());
        let mut a = served.v4("a");
        let root = a.find("/data").unwrap();
        let (file, _) = a.make(&root, "file", b"owner");
        let served = restarted(served);
        let mut a = served.v4_again("a");
        // Once it has answered a call it can be called.
        while a.link.calls.is_empty() {
            assert_eq!(status(&a.run(&[Arguments::PutRootFh(())], &[])), None);
        }
        assert_eq!(status(&a.run(&[Arguments::PutRootFh(())], &[])), None);
        if changes {
            let mut third = served.connect();
            let object = support::handle(&file);
            let how =
                v3::Write { file: object, offset: 0, count: 4, stable: v3::Stable::FileSync, length: 4 };
            let reply = third.call(&v3::Arguments::Write(how), b"data");
            assert!(support::results(&reply).starts_with(&[0; 4]));
        }
        let Arguments::Open(how) = reclaim(b"reader") else { panic!() };
        let claim = Claim::Previous(DelegationType::Read);
        let again = Arguments::Open(Open { share_access: 1, claim, ..how });
        let reply = a.run(&[handle(&file), again], &[]);
        let Some(Results::Open(Outcome::Ok(opened))) = answers(&reply).pop() else {
            panic!("{:?}", status(&reply))
        };
        let Delegation::Read(of) = &opened.delegation else { panic!("{:?}", opened.delegation) };
        assert_eq!(of.recall, changes);
        served.stop();
        std::fs::remove_file(&folder).expect("the records were kept");
    }
}

/// Without room for the records clients are served, and the records are written as soon as there is
/// room.
#[test]
fn records_that_cannot_be_written_are_written_later() {
    let folder = std::env::temp_dir().join(format!("nfs-no-room-{}", std::process::id()));
    let mut config = support::config();
    config.clients = Some(folder.join("clients"));
    let served = support::serving(config);
    let mut a = served.v4("a");
    let root = a.find("/data").unwrap();
    let (file, _) = a.make(&root, "file", b"owner");
    std::fs::create_dir(&folder).expect("a new folder");
    let begun = std::time::Instant::now();
    while !folder.join("clients").exists() {
        assert!(begun.elapsed().as_secs() < 60, "the records are not written");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let served = restarted(served);
    let mut a = served.v4_again("a");
    assert_eq!(status(&a.run(&[handle(&file), reclaim(b"owner")], &[])), None);
    served.stop();
    std::fs::remove_dir_all(folder).expect("the records are there");
}

#[test]
fn without_records_nothing_is_reclaimed() {
    let served = served();
    let mut a = served.v4("a");
    let root = a.find("/data").unwrap();
    let (file, _) = a.make(&root, "file", b"owner");
    let served = restarted(served);
    let mut a = served.v4_again("a");
    assert_eq!(status(&a.run(&[handle(&file), reclaim(b"owner")], &[])), Some(Status::NoGrace));
    served.stop();
}

/// The successor of a server whose clients are gone.
fn taken_over(served: Served) -> Served {
    let begin = std::time::Instant::now();
    while !served.nfs.clients(support::PATIENCE).is_empty() {
        assert!(begin.elapsed() < support::PATIENCE, "its clients are gone");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let (carried, config) = (served.nfs.hand_over(), served.config.clone());
    served.stop();
    support::succeeding(config, &carried)
}

#[test]
fn a_successor_knows_clients_files_and_replies() {
    let served = served();
    let (mut c, mut third) = (served.v4("client"), served.connect());
    let root = c.find("/data").unwrap();
    let (file, mine) = c.make(&root, "file", b"owner");
    let reply = c.run(&[handle(&file), lock(LockType::Write, (0, 10), first(mine, b"a"), false)], &[]);
    assert_eq!(status(&reply), None);
    c.cache = true;
    let made = c.run(&[handle(&root), Arguments::Remove(name("missing"))], &[]);
    let place = v3::DirOp { directory: support::handle(&root), name: v3::Name::new(b"third").unwrap() };
    let how = v3::CreateHow::Guarded(v3::SetAttributes::default());
    let create = v3::Arguments::Create(v3::Create { place, how });
    let created = third.call(&create, &[]);
    drop((c.link.stream.shutdown(std::net::Shutdown::Both), third.stream.shutdown(std::net::Shutdown::Both)));
    let served = taken_over(served);
    // The session goes on over another connection, and the lock is there.
    c.link = served.connect();
    let again = body(2, &[c.slot(c.sequence), handle(&root), Arguments::Remove(name("missing"))], &[]);
    assert_eq!(support::results(&c.link.v4(&again)), support::results(&made), "a retry has its reply");
    let data = [handle(&file), write(mine, 0, b"data")];
    assert_eq!(status(&c.run(&data, b"data")), None, "there is no grace period");
    let mut other = served.v4("other");
    let (_, theirs) = other.make(&root, "file", b"owner");
    let wanted = [handle(&file), lock(LockType::Write, (5, 10), first(theirs, b"b"), false)];
    assert_eq!(status(&other.run(&wanted, &[])), Some(Status::Denied));
    // A call of version 3 that comes again is not executed again: the file would exist.
    let mut third = served.connect();
    assert_eq!(third.call(&create, &[]), created);
    served.stop();
}

/// A takeover waits until all trees are closed, while clients wait for it.
#[test]
fn a_call_to_a_client_that_is_gone_keeps_no_tree_open() {
    let tree = support::memory();
    let watched = std::sync::Arc::downgrade(&tree);
    let served = support::serving(support::exporting(tree));
    let mut c = served.v4("client");
    assert!(c.find("/data").is_ok());
    assert_eq!(c.link.calls, [Called::Probe]);
    drop(c.link.stream.shutdown(std::net::Shutdown::Both));
    let begin = std::time::Instant::now();
    while !served.nfs.clients(support::PATIENCE).is_empty() {
        assert!(begin.elapsed() < support::PATIENCE, "its client is gone");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let support::Served { server, nfs: _, config } = served;
    drop(config);
    server.handle().let_go();
    // Shorter than the time that a client has to answer, which was waited for.
    let begin = std::time::Instant::now();
    while watched.strong_count() > 0 {
        assert!(begin.elapsed() < std::time::Duration::from_secs(6), "the tree is open");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    server.stop(std::time::Duration::from_millis(100)).expect("everything is durable");
}

/// The records of clients go on over a takeover: those of before and those that the successor adds.
#[test]
fn clients_of_both_sides_of_a_takeover_reclaim_after_a_restart() {
    let records = std::env::temp_dir().join(format!("nfs-takeover-{}", std::process::id()));
    let mut config = support::config();
    config.clients = Some(records.clone());
    let served = support::serving(config);
    let mut before = served.v4("before");
    let root = before.find("/data").unwrap();
    let (first_file, _) = before.make(&root, "first", b"owner");
    drop(before.link.stream.shutdown(std::net::Shutdown::Both));
    let served = taken_over(served);
    let mut after = served.v4("after");
    let (second_file, _) = after.make(&root, "second", b"owner");
    let served = restarted(served);
    for (client, file) in [("before", &first_file), ("after", &second_file)] {
        let mut again = served.v4_again(client);
        assert_eq!(status(&again.run(&[handle(file), reclaim(b"owner")], &[])), None, "{client}");
    }
    served.stop();
    std::fs::remove_file(records).expect("the records were kept");
}
