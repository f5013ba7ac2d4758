//! Read delegations: given, kept back, recalled.

use super::{read, write};
use crate::support;
use crate::support::gated::{Gate, Gated};
use crate::support::v4::*;
use crate::support::{fragment, served};
use nfs::v3;
use nfs::v4::attribute::{MODE, SIZE};
use nfs::v4::{
    Arguments, Attributes, Bitmap, Claim, Close, CreateHow, Delegation, Fattr, Open, Outcome, Rename,
    Results, SetAttr, SetXattr, SetXattrOption, Stateid, Status,
};
use nfs_server::config::Export;
use rpc::xdr::Opaque;
use std::sync::Arc;

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
