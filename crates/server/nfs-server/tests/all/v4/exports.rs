//! Exports, their clients, and the directories above them.

use crate::support;
use crate::support::Served;
use crate::support::v4::*;
use memory_tree::{Limits, MemoryTree, Root};
use nfs::v4::attribute::{FILEID, FSID, MOUNTED_ON_FILEID, TYPE};
use nfs::v4::{
    Arguments, Attributes, Bitmap, Create, CreateHow, CreateType, Exclusive, Fattr, FileType, Open, Outcome,
    ReadDir, Results, Status, Verifier,
};
use nfs_server::config::{ClientRule, Export};
use std::sync::Arc;

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
    // The file that they would make is there already, and can be read.
    let cut = Attributes { size: Some(0), ..Attributes::default() };
    for (set, expected) in [(Fattr::EMPTY, None), (Fattr::of(&cut), Some(Status::RoFs))] {
        let Arguments::Open(how) = open("there", b"o", Some(CreateHow::Unchecked(set))) else { panic!() };
        let reading = Arguments::Open(Open { share_access: 1, ..how });
        assert_eq!(status(&c.run(&[handle(&root), reading], &[])), expected);
    }
    served.stop();
}
