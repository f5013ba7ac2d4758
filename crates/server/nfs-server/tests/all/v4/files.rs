//! Files: their data, names, attributes and opens.

use super::{read, write};
use crate::support;
use crate::support::served;
use crate::support::v4::*;
use nfs::v4::attribute::{MODE, SIZE, TIME_ACCESS, TIME_MODIFY};
use nfs::v4::{
    Arguments, Attributes, Bitmap, Close, Commit, CreateHow, Exclusive, Fattr, OpenDowngrade, Outcome,
    Rename, Results, SetAttr, ShareAccess, Stateid, Status, Verifier,
};
use std::sync::Arc;

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
