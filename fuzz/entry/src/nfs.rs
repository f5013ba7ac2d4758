//! NFSv3 and MOUNT: arguments and results of every procedure, and the listing of a directory.

use crate::input::{Input, Seed};
use nfs::mount;
use nfs::v3::readdir::{EntryPlus, Listed, Listing};
use nfs::v3::{
    self, Arguments, Create, CreateHow, DirOp, Located, Outcome, Procedure, ReadDirPlusOk, ReadOk, Rename,
    Results, SetAttributes, Stable, Wcc, Write,
};
use rpc::xdr::{Chain, Chained, Opaque, Reader, Writer, padding};

/// The procedure that the first byte of an input names: one of NFS, else one of MOUNT.
fn procedure(byte: u8) -> Result<Procedure, mount::Procedure> {
    let all = Procedure::ALL.len() + mount::Procedure::ALL.len();
    let number = usize::from(byte) % all;
    Procedure::ALL.get(number).copied().ok_or_else(|| mount::Procedure::ALL[number - Procedure::ALL.len()])
}

/// Output of `write`, and the payload behind it.
fn written(payload: &[u8], write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Writer::new(&mut out));
    [&out, payload, padding(payload.len())].concat()
}

/// Byte 0: the procedure; then its arguments. Decoded arguments encode to as many bytes, and decode
/// to the same.
pub fn arguments(data: &[u8]) {
    let mut input = Input::new(data);
    let (procedure, wire) = (procedure(input.u8()), input.rest());
    match procedure {
        Ok(procedure) => {
            let Ok(Located { value, payload }) = v3::arguments(procedure, wire) else { return };
            let again = written(&wire[payload.clone()], |to| value.write(to));
            assert_eq!(again.len(), wire.len());
            assert_eq!(v3::arguments(procedure, &again), Ok(Located { value, payload }));
        }
        Err(procedure) => {
            let mut from = Reader::new(wire);
            let Ok(value) = mount::Arguments::read(procedure, &mut from) else { return };
            let again = written(&[], |to| value.write(to));
            assert_eq!(again.len(), from.position());
            assert_eq!(mount::Arguments::read(procedure, &mut Reader::new(&again)), Ok(value));
        }
    }
}

/// Byte 0: the procedure; then its results. As [`arguments`]; entries of a directory are also
/// listed anew.
pub fn results(data: &[u8]) {
    let mut input = Input::new(data);
    let (procedure, wire) = (procedure(input.u8()), input.rest());
    match procedure {
        Ok(procedure) => {
            let Ok(Located { value, payload }) = v3::results(procedure, wire) else { return };
            let again = written(&wire[payload.clone()], |to| value.write(to));
            assert_eq!(again.len(), wire.len());
            if let Results::ReadDirPlus(Outcome::Ok(read)) = &value {
                list(read);
            }
            assert_eq!(v3::results(procedure, &again), Ok(Located { value, payload }));
        }
        Err(procedure) => {
            let mut from = Reader::new(wire);
            let Ok(value) = mount::Results::read(procedure, &mut from) else { return };
            let again = written(&[], |to| value.write(to));
            assert_eq!(again.len(), from.position());
            assert_eq!(mount::Results::read(procedure, &mut Reader::new(&again)), Ok(value));
        }
    }
}

/// Lists the entries in replies of every limit up to the length that they need: each holds the
/// limit, and leaves no entry out.
fn list(read: &ReadDirPlusOk<'_>) {
    let entries = read.entries.iter().count();
    let mut max_count = 0;
    loop {
        let mut out = Vec::new();
        let mut to = Writer::new(&mut out);
        let mut listing = Listing::plus(&mut to, read.attributes, read.verifier, u32::MAX, max_count);
        let fitting = read.entries.iter().filter(|entry| listing.entry_plus(entry)).count();
        let listed = listing.finish(true);
        let found = v3::results(Procedure::ReadDirPlus, &out).expect("a listing can be read").value;
        match found {
            Results::ReadDirPlus(Outcome::Ok(found)) => {
                assert!(out.len() <= 4 + max_count as usize);
                assert_eq!(listed, Listed::Entries(fitting));
                assert!(found.entries.iter().eq(read.entries.iter().take(fitting)));
                assert_eq!(found.eof, fitting == entries);
                if found.eof {
                    return;
                }
            }
            _ => assert_eq!(listed, Listed::TooSmall),
        }
        max_count += 61;
    }
}

fn text<const MAX: usize>(text: &str) -> Opaque<'_, MAX> {
    Opaque::new(text.as_bytes()).expect("a seed's text is short")
}

fn place(name: &str) -> DirOp<'_> {
    DirOp { directory: text("handle"), name: text(name) }
}

fn attributes() -> v3::Attributes {
    let time = v3::Time { seconds: 1, nanoseconds: 2 };
    v3::Attributes {
        kind: v3::FileType::Regular,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        size: 5,
        used: 4096,
        device: v3::Device::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

/// A call of each form.
pub fn arguments_seeds() -> Vec<(&'static str, Seed)> {
    let set = SetAttributes { mode: Some(0o644), size: Some(0), ..SetAttributes::default() };
    let write = Write { file: text("handle"), offset: 4096, count: 5, stable: Stable::Unstable, length: 5 };
    let seed = |value: &Arguments<'_>, payload: &[u8]| {
        let number = value.procedure().code() as u8;
        Seed::new().bytes([number]).bytes(written(payload, |to| value.write(to)))
    };
    let create = Create { place: place("new"), how: CreateHow::Guarded(set) };
    let exclusive = Create { place: place("new"), how: CreateHow::Exclusive(*b"verifier") };
    let link = v3::Symlink { place: place("link"), attributes: set, path: text("../target") };
    let mnt = Procedure::ALL.len() as u8 + mount::Procedure::Mnt.code() as u8;
    vec![
        ("lookup", seed(&Arguments::Lookup(place("name")), &[])),
        ("write", seed(&Arguments::Write(write), b"bytes")),
        ("create", seed(&Arguments::Create(create), &[])),
        ("exclusive", seed(&Arguments::Create(exclusive), &[])),
        ("symlink", seed(&Arguments::Symlink(link), &[])),
        ("rename", seed(&Arguments::Rename(Rename { from: place("a"), to: place("b") }), &[])),
        (
            "mnt",
            Seed::new()
                .bytes([mnt])
                .bytes(written(&[], |to| mount::Arguments::Mnt(text("/export")).write(to))),
        ),
    ]
}

/// Results of each form.
pub fn results_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |value: &Results<'_>, payload: &[u8]| {
        let number = value.procedure().code() as u8;
        Seed::new().bytes([number]).bytes(written(payload, |to| value.write(to)))
    };
    let wcc = Wcc { before: None, after: Some(attributes()) };
    let entry = |name, cookie| EntryPlus {
        fileid: 7,
        name: text(name),
        cookie,
        attributes: Some(attributes()),
        handle: Some(text("handle")),
    };
    let entries = Chained::of([entry(".", 1), entry("..", 2), entry("file", 3)]);
    let listed = ReadDirPlusOk {
        attributes: Some(attributes()),
        verifier: [0; 8],
        entries: entries.chain(),
        eof: true,
    };
    let read = ReadOk { attributes: Some(attributes()), count: 5, eof: true, length: 5 };
    let groups = Chained::of([mount::Group { name: text("host") }]);
    let exports = Chained::of([
        mount::Export { directory: text("/a"), groups: groups.chain() },
        mount::Export { directory: text("/b"), groups: Chain::EMPTY },
    ]);
    let export = Procedure::ALL.len() as u8 + mount::Procedure::Export.code() as u8;
    vec![
        ("getattr", seed(&Results::GetAttr(Outcome::Ok(attributes())), &[])),
        ("read", seed(&Results::Read(Outcome::Ok(read)), b"bytes")),
        ("remove", seed(&Results::Remove(Outcome::Err(v3::Status::NoEnt, wcc)), &[])),
        ("readdirplus", seed(&Results::ReadDirPlus(Outcome::Ok(listed)), &[])),
        (
            "exports",
            Seed::new()
                .bytes([export])
                .bytes(written(&[], |to| mount::Results::Export(exports.chain()).write(to))),
        ),
    ]
}
