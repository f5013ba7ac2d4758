//! NFSv4.1 and 4.2 over TCP: sessions, files, locks, restarts, and the directories above the
//! exports.

use crate::support;
use crate::support::gated::{Gate, Gated};
use crate::support::v4::*;
use crate::support::{Served, fragment, served};
use memory_tree::{Limits, MemoryTree, Root};
use nfs::v3;
use nfs::v4::attribute::{FILEID, FSID, MODE, MOUNTED_ON_FILEID, SIZE, TIME_ACCESS, TIME_MODIFY, TYPE};
use nfs::v4::{
    Arguments, Attributes, Bitmap, Claim, Close, Commit, CopyRange, Create, CreateHow, CreateType,
    Delegation, Exclusive, Fattr, FileType, Lock, LockT, LockType, LockU, Locker, NewLockOwner, OldLockOwner,
    Open, OpenDowngrade, Outcome, OutcomeOr, Read, ReadDir, Rename, Results, SecInfoStyle, SetAttr, SetXattr,
    SetXattrOption, ShareAccess, Stable, Stateid, Status, Verifier, Write,
};
use nfs_server::config::{ClientRule, Export};
use rpc::xdr::{List, Opaque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

fn write(stateid: Stateid, offset: u64, data: &[u8]) -> Arguments<'static> {
    Arguments::Write(Write { stateid, offset, stable: Stable::Unstable, length: data.len() as u32 })
}

fn read(stateid: Stateid, offset: u64, count: u32) -> Arguments<'static> {
    Arguments::Read(Read { stateid, offset, count })
}

fn lock(
    kind: LockType,
    (offset, length): (u64, u64),
    locker: Locker<'static>,
    reclaim: bool,
) -> Arguments<'static> {
    Arguments::Lock(Lock { kind, reclaim, offset, length, locker })
}

fn first(open: Stateid, who: &'static [u8]) -> Locker<'static> {
    Locker::New(NewLockOwner { open_seqid: 0, open, lock_seqid: 0, owner: owner(who) })
}

#[test]
fn a_file_is_made_written_read_and_closed() {
    let served = served();
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let (file, stateid) = c.make(&root, "file", b"owner");
    let data: Vec<u8> = (0..200_001u32).map(|at| at as u8).collect();
    let size = Arguments::GetAttr(Bitmap::of(&[SIZE]));
    let reply = c.run(&[handle(&file), write(stateid, 7, &data), size.clone()], &data);
    let all = answers(&reply);
    let Results::Write(Outcome::Ok(written)) = &all[2] else { panic!("{all:?}") };
    assert_eq!(written.count as usize, data.len());
    let Results::GetAttr(Outcome::Ok(of)) = &all[3] else { panic!("{all:?}") };
    assert_eq!(
        of.attributes().unwrap().size,
        Some(7 + data.len() as u64),
        "what follows the data is executed"
    );
    let reply = c.run(&[handle(&file), Arguments::Commit(Commit { offset: 0, count: 0 })], &[]);
    let Some(Results::Commit(Outcome::Ok(verifier))) = answers(&reply).pop() else { panic!() };
    assert_eq!(verifier, written.verifier);
    let reply = c.run(&[handle(&file), read(stateid, 7, 1 << 20), size], &[]);
    assert_eq!(support::v4::data(&reply), data);
    let all = answers(&reply);
    assert!(matches!(&all[2], Results::Read(Outcome::Ok(read)) if read.eof), "{all:?}");
    assert!(matches!(&all[3], Results::GetAttr(Outcome::Ok(_))), "what follows the data is sent");
    let close = Arguments::Close(Close { seqid: 0, stateid });
    assert_eq!(status(&c.run(&[handle(&file), close], &[])), None);
    assert_eq!(status(&c.run(&[handle(&file), read(stateid, 0, 1)], &[])), Some(Status::BadStateid));
    served.stop();
}

#[test]
fn several_reads_of_a_compound_each_have_their_data() {
    let served = served();
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let (file, stateid) = c.make(&root, "file", b"owner");
    c.run(&[handle(&file), write(stateid, 0, b"abcdefg")], b"abcdefg");
    let reply = c.run(&[handle(&file), read(stateid, 0, 3), read(stateid, 3, 9), Arguments::GetFh(())], &[]);
    let body = support::results(&reply);
    let results = nfs::v4::Reply::<nfs::v4::Fore>::read(body).unwrap().results;
    let pieces: Vec<_> = results.map(|one| body[one.unwrap().payload].to_vec()).collect();
    assert_eq!(pieces[2..4], [b"abc".to_vec(), b"defg".to_vec()]);
    assert_eq!(status(&reply), None);
    served.stop();
}

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

fn exports(names: &[&str]) -> Served {
    let mut config = support::config();
    let rules = config.exports[0].clients.clone();
    let tree = || {
        let root = Root { mode: 0o777, uid: 0, gid: 0 };
        Arc::new(MemoryTree::new(Limits { bytes: 1 << 20, files: 100 }, root).expect("memory"))
    };
    let export =
        |name: &&str| Export { name: (*name).into(), tree: tree(), exclusive: true, clients: rules.clone() };
    config.exports = names.iter().map(export).collect();
    support::serving(config)
}

fn list(c: &mut V4, directory: &[u8]) -> Vec<(String, Attributes<'static>)> {
    let requested = Bitmap::of(&[TYPE, FSID, FILEID, MOUNTED_ON_FILEID]);
    let what = ReadDir { cookie: 0, verifier: Verifier::default(), dir_count: 0, max_count: 8192, requested };
    let reply = c.run(&[handle(directory), Arguments::ReadDir(what)], &[]);
    let all = answers(&reply);
    let Some(Results::ReadDir(Outcome::Ok(listed))) = all.last() else { panic!("{all:?}") };
    assert!(listed.eof);
    let entry = |entry: nfs::v4::readdir::Entry<'_>| {
        let of = entry.attributes.attributes().expect("attributes");
        let kept = Attributes {
            kind: of.kind,
            fsid: of.fsid,
            fileid: of.fileid,
            mounted_on_fileid: of.mounted_on_fileid,
            ..Attributes::default()
        };
        (String::from_utf8(entry.name.bytes().to_vec()).expect("text"), kept)
    };
    listed.entries.iter().map(entry).collect()
}

#[test]
fn exports_are_found_below_directories_that_nobody_can_change() {
    let served = exports(&["/srv/a", "/srv/b", "/data"]);
    let mut c = served.v4("client");
    let root = c.find("/").unwrap();
    let shown = list(&mut c, &root);
    assert_eq!(shown.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["data", "srv"]);
    let [data, srv] = [&shown[0].1, &shown[1].1];
    assert_ne!(data.fsid, srv.fsid, "an export is crossed into");
    assert_ne!(data.fileid, data.mounted_on_fileid);
    assert_eq!((srv.kind, srv.fileid), (Some(FileType::Directory), srv.mounted_on_fileid));
    let below = c.find("/srv").unwrap();
    assert_eq!(list(&mut c, &below).len(), 2);
    assert_eq!(c.find("/srv/c"), Err(Status::NoEnt));
    let export = c.find("/srv/b").unwrap();
    let up = c.run(&[handle(&export), Arguments::LookupP(()), Arguments::GetFh(())], &[]);
    assert!(matches!(answers(&up).last(), Some(Results::GetFh(Outcome::Ok(it))) if it.bytes() == below));
    let make = Create { kind: CreateType::Directory(()), name: name("x"), attributes: Fattr::EMPTY };
    for directory in [&root, &below] {
        let create = Arguments::Create(make);
        assert_eq!(status(&c.run(&[handle(directory), create], &[])), Some(Status::RoFs));
        assert_eq!(
            status(&c.run(&[handle(directory), Arguments::Remove(name("a"))], &[])),
            Some(Status::RoFs)
        );
        let how = Some(CreateHow::Unchecked(Fattr::EMPTY));
        assert_eq!(status(&c.run(&[handle(directory), open("f", b"o", how)], &[])), Some(Status::RoFs));
    }
    assert_eq!(status(&c.run(&[handle(&root), Arguments::LookupP(())], &[])), Some(Status::NoEnt));
    served.stop();
}

#[test]
fn an_export_named_slash_is_the_root() {
    let served = exports(&["/"]);
    let mut c = served.v4("client");
    let root = c.find("/").unwrap();
    c.make(&root, "file", b"owner");
    assert_eq!(list(&mut c, &root)[0].0, "file");
    served.stop();
}

#[test]
fn no_file_is_made_where_another_export_is() {
    let served = exports(&["/srv", "/srv/a"]);
    let mut c = served.v4("client");
    let root = c.find("/srv").unwrap();
    let how = Exclusive { verifier: Verifier([1; 8]), attributes: Fattr::EMPTY };
    let cases = [
        (CreateHow::Unchecked(Fattr::EMPTY), Status::IsDir),
        (CreateHow::Guarded(Fattr::EMPTY), Status::Exist),
        (CreateHow::Exclusive(Verifier([1; 8])), Status::Exist),
        (CreateHow::Exclusive41(how), Status::Exist),
    ];
    for (how, expected) in cases {
        let reply = c.run(&[handle(&root), open("a", b"o", Some(how))], &[]);
        assert_eq!(status(&reply), Some(expected));
    }
    assert_eq!(list(&mut c, &root), [], "the directory below has no such name");
    served.stop();
}

#[test]
fn clients_have_the_rights_that_their_rule_says() {
    let mut config = support::config();
    config.exports[0].clients =
        vec![ClientRule { network: "192.0.2.0/24".parse().unwrap(), ..Default::default() }];
    let served = support::serving(config.clone());
    let mut c = served.v4("client");
    assert_eq!(c.find("/data"), Err(Status::Access));
    let root = c.find("/").unwrap();
    assert_eq!(list(&mut c, &root), []);
    config.exports[0].clients = vec![ClientRule::default()];
    served.nfs.apply(config.clone()).expect("the same portal");
    let root = c.find("/data").unwrap();
    c.make(&root, "there", b"o");
    config.exports[0].clients = vec![ClientRule { read_only: true, ..ClientRule::default() }];
    served.nfs.apply(config).expect("the same portal");
    for file in ["f", "there"] {
        let how = Some(CreateHow::Unchecked(Fattr::EMPTY));
        assert_eq!(status(&c.run(&[handle(&root), open(file, b"o", how)], &[])), Some(Status::RoFs));
    }
    // What would be made is there already, and can be read.
    let cut = Attributes { size: Some(0), ..Attributes::default() };
    for (set, expected) in [(Fattr::EMPTY, None), (Fattr::of(&cut), Some(Status::RoFs))] {
        let Arguments::Open(how) = open("there", b"o", Some(CreateHow::Unchecked(set))) else { panic!() };
        let reading = Arguments::Open(Open { share_access: 1, ..how });
        assert_eq!(status(&c.run(&[handle(&root), reading], &[])), expected);
    }
    served.stop();
}

#[test]
fn opens_are_made_repeated_denied_and_cut() {
    let served = served();
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let guarded = |c: &mut V4| {
        status(&c.run(&[handle(&root), open("g", b"o", Some(CreateHow::Guarded(Fattr::EMPTY)))], &[]))
    };
    assert_eq!(guarded(&mut c), None);
    assert_eq!(guarded(&mut c), Some(Status::Exist));
    let mode = Attributes { mode: Some(0o400), ..Attributes::default() };
    let mut exclusive = |verifier| {
        let how = Exclusive { verifier: Verifier([verifier; 8]), attributes: Fattr::of(&mode) };
        status(&c.run(&[handle(&root), open("e", b"o", Some(CreateHow::Exclusive41(how)))], &[]))
    };
    assert_eq!(exclusive(1), None);
    assert_eq!(exclusive(1), None, "the same attempt again");
    assert_eq!(exclusive(2), Some(Status::Exist));
    let (file, stateid) = c.make(&root, "file", b"owner");
    c.run(&[handle(&file), write(stateid, 0, b"text")], b"text");
    let mut other = served.v4("other");
    let deny = match open("file", b"o", None) {
        Arguments::Open(what) => Arguments::Open(nfs::v4::Open { share_deny: 2, ..what }),
        _ => unreachable!(),
    };
    assert_eq!(status(&other.run(&[handle(&root), deny], &[])), Some(Status::ShareDenied));
    let cut = Attributes { size: Some(0), ..Attributes::default() };
    let how = Some(CreateHow::Unchecked(Fattr::of(&cut)));
    assert_eq!(status(&other.run(&[handle(&root), open("file", b"o", how)], &[])), None);
    assert_eq!(c.size(&file), 0);
    let down = OpenDowngrade { stateid, seqid: 0, share_access: ShareAccess::Read.code(), share_deny: 0 };
    let reply =
        c.run(&[handle(&file), Arguments::OpenDowngrade(down), write(Stateid::CURRENT, 0, b"x")], b"x");
    assert!(matches!(status(&reply), Some(Status::OpenMode | Status::Inval)), "{:?}", status(&reply));
    served.stop();
}

/// RFC 8881 §18.16.4: the client compares what was set with what it asked for.
#[test]
fn an_exclusive_open_tells_where_its_verifier_is_kept() {
    let (exported, state) = (tempfile::tempdir().expect("room"), tempfile::tempdir().expect("room"));
    let options = folder::Options::new(state.path());
    let folder = folder::Folder::open(exported.path(), &options).expect("a directory");
    let in_times = Bitmap::of(&[TIME_ACCESS, TIME_MODIFY]);
    let cases: [(Arc<dyn tree::Tree>, Bitmap); 2] =
        [(Arc::new(folder), in_times), (support::memory(), Bitmap::EMPTY)];
    for (files, expected) in cases {
        let served = support::serving(support::exporting(files));
        let mut c = served.v4("client");
        let root = c.find("/data").unwrap();
        let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
        let how = Exclusive { verifier: Verifier([1; 8]), attributes: Fattr::of(&mode) };
        let make = open("e", b"o", Some(CreateHow::Exclusive41(how)));
        for _ in 0..2 {
            let reply = c.run(&[handle(&root), make.clone()], &[]);
            let Some(Results::Open(Outcome::Ok(opened))) = answers(&reply).pop() else { panic!() };
            assert_eq!(opened.attributes_set, expected.with(MODE));
        }
        served.stop();
    }
}

#[test]
fn names_are_moved_linked_and_removed() {
    let served = served();
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let (file, _) = c.make(&root, "one", b"owner");
    let both = |last: Arguments<'static>, saved: &[u8], current: &[u8], c: &mut V4| {
        status(&c.run(&[handle(saved), Arguments::SaveFh(()), handle(current), last], &[]))
    };
    assert_eq!(both(Arguments::Link(name("two")), &file, &root, &mut c), None);
    let rename = Rename { from: name("one"), to: name("three") };
    assert_eq!(both(Arguments::Rename(rename), &root, &root, &mut c), None);
    assert_eq!(c.find("/data/one"), Err(Status::NoEnt));
    assert_eq!(c.find("/data/three").unwrap(), file);
    assert_eq!(status(&c.run(&[handle(&root), Arguments::Remove(name("three"))], &[])), None);
    assert_eq!(c.find("/data/two").unwrap(), file);
    for (bad, why) in
        [("", Status::Inval), (".", Status::BadName), ("..", Status::BadName), ("a/b", Status::BadChar)]
    {
        assert_eq!(status(&c.run(&[handle(&root), Arguments::Lookup(name(bad))], &[])), Some(why), "{bad:?}");
    }
    assert_eq!(status(&c.run(&[handle(&root), Arguments::Link(name("x"))], &[])), Some(Status::NoFileHandle));
    served.stop();
}

#[test]
fn attributes_are_compared_and_set() {
    let served = served();
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let (file, _) = c.make(&root, "file", b"owner");
    let size = |size| Attributes { size: Some(size), ..Attributes::default() };
    let set = |of| Arguments::SetAttr(SetAttr { stateid: Stateid::ANONYMOUS, attributes: Fattr::of(of) });
    assert_eq!(status(&c.run(&[handle(&file), set(&size(5))], &[])), None);
    assert_eq!(c.size(&file), 5);
    let five = size(5);
    let six = size(6);
    let all = [
        (Arguments::Verify(Fattr::of(&five)), None),
        (Arguments::Verify(Fattr::of(&six)), Some(Status::NotSame)),
        (Arguments::NVerify(Fattr::of(&five)), Some(Status::Same)),
        (Arguments::NVerify(Fattr::of(&six)), None),
    ];
    for (one, expected) in all {
        assert_eq!(status(&c.run(&[handle(&file), one], &[])), expected);
    }
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

/// OPEN of a name for reading.
fn reading(file: &str) -> Arguments<'_> {
    let Arguments::Open(how) = open(file, b"reader", None) else { panic!() };
    Arguments::Open(Open { share_access: 1, ..how })
}

/// A read delegation of a file below `root`: its stateid and that of the open. The server gives one
/// as soon as it knows that the client can be called.
fn delegated(c: &mut V4, root: &[u8], file: &str) -> (Stateid, Stateid) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < support::PATIENCE {
        let reply = c.run(&[handle(root), reading(file)], &[]);
        let Some(Results::Open(Outcome::Ok(opened))) = answers(&reply).pop() else { panic!() };
        if let Delegation::Read(of) = opened.delegation {
            return (of.stateid, opened.stateid);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("no delegation");
}

/// Repeats a request until its status is not DELAY.
fn until_done(c: &mut V4, all: &[Arguments<'_>], data: &[u8]) -> Option<Status> {
    loop {
        match status(&c.run(all, data)) {
            Some(Status::Delay) => std::thread::sleep(std::time::Duration::from_millis(5)),
            other => return other,
        }
    }
}

#[test]
fn a_delegation_is_given_recalled_and_returned() {
    let served = served();
    let (mut reader, mut writer) = (served.v4("reader"), served.v4("writer"));
    let root = reader.find("/data").unwrap();
    let (file, made) = writer.make(&root, "file", b"owner");
    let close = Arguments::Close(Close { seqid: 0, stateid: made });
    assert_eq!(status(&writer.run(&[handle(&file), close], &[])), None);
    let (delegation, _) = delegated(&mut reader, &root, "file");
    assert_eq!(status(&reader.run(&[handle(&file), read(delegation, 0, 1)], &[])), None);
    let for_writing = [handle(&root), open("file", b"owner", None)];
    assert_eq!(status(&writer.run(&for_writing, &[])), Some(Status::Delay));
    // The call comes over the reader's connection.
    while !reader.link.calls.contains(&Called::Recall(delegation, file.clone())) {
        let record = reader.link.record();
        reader.link.called(&record);
    }
    assert_eq!(status(&writer.run(&for_writing, &[])), Some(Status::Delay), "it is not returned yet");
    // An open that the client granted by itself under the delegation goes to the server first.
    let claim = Claim::DelegCurFh(delegation);
    let own = Open { seqid: 0, share_access: 1, share_deny: 0, owner: owner(b"own"), create: None, claim };
    assert_eq!(status(&reader.run(&[handle(&file), Arguments::Open(own)], &[])), None);
    let back = [handle(&file), Arguments::DelegReturn(delegation)];
    assert_eq!(status(&reader.run(&back, &[])), None);
    assert_eq!(status(&reader.run(&back, &[])), Some(Status::BadStateid));
    assert_eq!(until_done(&mut writer, &for_writing, &[]), None);
    served.stop();
}

#[test]
fn changes_without_an_open_wait_for_delegations() {
    let served = served();
    let (mut reader, mut other) = (served.v4("reader"), served.v4("other"));
    let mut third = served.connect();
    let root = other.find("/data").unwrap();
    let (file, made) = other.make(&root, "file", b"owner");
    other.run(&[handle(&file), Arguments::Close(Close { seqid: 0, stateid: made })], &[]);
    let (delegation, _) = delegated(&mut reader, &root, "file");
    let private = Attributes { mode: Some(0o600), ..Attributes::default() };
    let mode = Fattr::new(Bitmap::of(&[MODE]), &private);
    let set = Arguments::SetAttr(SetAttr { stateid: Stateid::ANONYMOUS, attributes: mode });
    let renamed = Arguments::Rename(Rename { from: name("file"), to: name("new") });
    let changes = [
        vec![handle(&file), set],
        vec![handle(&file), Arguments::SaveFh(()), handle(&root), Arguments::Link(name("second"))],
        vec![handle(&root), Arguments::SaveFh(()), renamed],
        vec![handle(&root), Arguments::Remove(name("file"))],
        vec![handle(&file), write(Stateid::ANONYMOUS, 0, b"data")],
    ];
    for all in &changes {
        assert_eq!(status(&other.run(all, b"data")), Some(Status::Delay), "{all:?}");
    }
    // Version 3 gets JUKEBOX, too.
    let object = support::handle(&file);
    let how = v3::Write { file: object, offset: 0, count: 4, stable: v3::Stable::Unstable, length: 4 };
    let reply = third.call(&v3::Arguments::Write(how), b"data");
    let written = support::of(v3::Procedure::Write, &reply);
    assert!(matches!(written, v3::Results::Write(v3::Outcome::Err(v3::Status::Jukebox, _))), "{written:?}");
    let place = v3::DirOp { directory: support::handle(&root), name: v3::Name::new(b"file").unwrap() };
    let reply = third.call(&v3::Arguments::Remove(place), &[]);
    let removed = support::of(v3::Procedure::Remove, &reply);
    assert!(matches!(removed, v3::Results::Remove(v3::Outcome::Err(v3::Status::Jukebox, _))), "{removed:?}");
    assert_eq!(status(&reader.run(&[handle(&file), Arguments::DelegReturn(delegation)], &[])), None);
    for all in &changes[..3] {
        assert_eq!(until_done(&mut other, all, &[]), None, "{all:?}");
    }
    served.stop();
}

/// The delegation that a client gets with an open of a file of `root` for reading, if any. The file
/// is closed afterwards.
fn delegation_of(c: &mut V4, root: &[u8], name: &'static str, file: &[u8]) -> Option<Stateid> {
    let reply = c.run(&[handle(root), reading(name)], &[]);
    let Some(Results::Open(Outcome::Ok(opened))) = answers(&reply).pop() else { panic!() };
    let close = Arguments::Close(Close { seqid: 0, stateid: opened.stateid });
    assert_eq!(status(&c.run(&[handle(file), close], &[])), None);
    match opened.delegation {
        Delegation::Read(of) => Some(of.stateid),
        _ => None,
    }
}

/// RFC 8881 §10.4: an OPEN between the look for delegations and the end of the change gets none.
#[test]
fn what_is_being_changed_is_not_delegated() {
    let gate = Arc::new(Gate::default());
    let gated = Gated { tree: support::memory(), gate: gate.clone() };
    let served = support::serving(support::exporting(Arc::new(gated)));
    let (mut reader, mut other) = (served.v4("reader"), served.v4("other"));
    let mut third = served.connect();
    let root = other.find("/data").unwrap();
    let (file, made) = other.make(&root, "file", b"owner");
    other.run(&[handle(&file), Arguments::Close(Close { seqid: 0, stateid: made })], &[]);
    // The reader can be called.
    let (delegation, opened) = delegated(&mut reader, &root, "file");
    let close = Arguments::Close(Close { seqid: 0, stateid: opened });
    let back = Arguments::DelegReturn(delegation);
    assert_eq!(status(&reader.run(&[handle(&file), close, back], &[])), None);
    let private = Attributes { mode: Some(0o600), ..Attributes::default() };
    let cut = Attributes { size: Some(0), ..Attributes::default() };
    let set = |attributes| Arguments::SetAttr(SetAttr { stateid: Stateid::ANONYMOUS, attributes });
    let xattr = Arguments::SetXattr(SetXattr {
        option: SetXattrOption::Either,
        name: name("name"),
        value: Opaque::new(b"value").unwrap(),
    });
    let save = || [handle(&root), Arguments::SaveFh(())];
    let moved =
        |from, to| [&save()[..], &[Arguments::Rename(Rename { from: name(from), to: name(to) })]].concat();
    let changes = [
        vec![handle(&file), set(Fattr::new(Bitmap::of(&[MODE]), &private))],
        vec![handle(&file), set(Fattr::new(Bitmap::of(&[SIZE]), &cut))],
        vec![handle(&file), write(Stateid::ANONYMOUS, 0, b"data")],
        vec![handle(&file), xattr],
        vec![handle(&file), Arguments::SaveFh(()), handle(&root), Arguments::Link(name("second"))],
        moved("second", "third"),
        vec![handle(&root), Arguments::Remove(name("third"))],
    ];
    let object = support::handle(&file);
    let how = v3::Write { file: object, offset: 0, count: 4, stable: v3::Stable::Unstable, length: 4 };
    let mode = v3::SetAttributes { mode: Some(0o644), ..v3::SetAttributes::default() };
    let place =
        |at: &'static [u8]| v3::DirOp { directory: support::handle(&root), name: v3::Name::new(at).unwrap() };
    let older = [
        v3::Arguments::Write(how),
        v3::Arguments::SetAttr(v3::SetAttr { object, attributes: mode, guard: None }),
        v3::Arguments::Link(v3::Link { file: object, link: place(b"second") }),
        v3::Arguments::Rename(v3::Rename { from: place(b"second"), to: place(b"third") }),
        v3::Arguments::Remove(place(b"third")),
    ];
    // Another file may take a name before it is removed or renamed.
    let by_name = |at| (5..=6).contains(&at) || at >= changes.len() + 3;
    let (another, made) = other.make(&root, "another", b"owner");
    other.run(&[handle(&another), Arguments::Close(Close { seqid: 0, stateid: made })], &[]);
    // While some file is held the server looks more closely. With the reader's own open of another
    // file, and without any.
    let (_, held) = other.make(&root, "held", b"owner");
    for round in 0..2 {
        if round == 1 {
            let found = other.find("/data/held").unwrap();
            other.run(&[handle(&found), Arguments::Close(Close { seqid: 0, stateid: held })], &[]);
        }
        for at in 0..changes.len() + older.len() {
            gate.close();
            match changes.get(at) {
                Some(all) => other.begin(all, b"data"),
                None => {
                    third.xid += 1;
                    let data: &[u8] = if at == changes.len() { b"data" } else { &[] };
                    let call = support::nfs3(third.xid, &older[at - changes.len()], data);
                    third.send(&fragment(&call, true));
                }
            }
            gate.reached();
            assert_eq!(delegation_of(&mut reader, &root, "file", &file), None, "change {at}");
            let other_one = delegation_of(&mut reader, &root, "another", &another);
            assert_eq!(other_one.is_none(), by_name(at), "change {at}");
            gate.open();
            match changes.get(at) {
                Some(_) => assert_eq!(status(&other.link.reply()), None, "change {at}"),
                None => assert!(support::results(&third.reply()).starts_with(&[0; 4]), "change {at}"),
            }
            // The change has ended when its reply comes.
            let delegation = delegation_of(&mut reader, &root, "file", &file).expect("nothing changes it");
            for (file, delegation) in [(&file, Some(delegation)), (&another, other_one)] {
                let Some(delegation) = delegation else { continue };
                let back = Arguments::DelegReturn(delegation);
                assert_eq!(status(&reader.run(&[handle(file), back], &[])), None);
            }
        }
    }
    served.stop();
}

/// A program of the host that changes a file recalls no delegation.
#[test]
fn only_files_of_exclusive_exports_are_delegated() {
    let mut config = support::config();
    let own = config.exports[0].clone();
    let shared = Export { name: "/shared".into(), tree: support::memory(), exclusive: false, ..own };
    config.exports.push(shared);
    let served = support::serving(config);
    let (mut reader, mut maker) = (served.v4("reader"), served.v4("maker"));
    let mut made = |export| {
        let root = maker.find(export).unwrap();
        let (file, made) = maker.make(&root, "file", b"owner");
        maker.run(&[handle(&file), Arguments::Close(Close { seqid: 0, stateid: made })], &[]);
        (root, file)
    };
    let ((own, _), (shared, file)) = (made("/data"), made("/shared"));
    // The reader can be called.
    delegated(&mut reader, &own, "file");
    assert_eq!(delegation_of(&mut reader, &shared, "file", &file), None);
    served.stop();
}

/// An OPEN that answers DELAY has made no file: the client's next try would find it there.
#[test]
fn what_is_being_made_is_not_delegated() {
    let gate = Arc::new(Gate::default());
    let gated = Gated { tree: support::memory(), gate: gate.clone() };
    let served = support::serving(support::exporting(Arc::new(gated)));
    let (mut reader, mut maker) = (served.v4("reader"), served.v4("maker"));
    let root = maker.find("/data").unwrap();
    let (file, made) = maker.make(&root, "file", b"owner");
    maker.run(&[handle(&file), Arguments::Close(Close { seqid: 0, stateid: made })], &[]);
    // The reader can be called.
    delegated(&mut reader, &root, "file");
    gate.close();
    let how = Some(CreateHow::Guarded(Fattr::EMPTY));
    maker.begin(&[handle(&root), open("new", b"owner", how)], &[]);
    gate.reached();
    let new = reader.find("/data/new").unwrap();
    assert_eq!(delegation_of(&mut reader, &root, "new", &new), None);
    gate.open();
    assert_eq!(status(&maker.link.reply()), None);
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
