//! Version 3: READDIR and READDIRPLUS (RFC 1813 §3.3.16, §3.3.17).

use std::collections::BTreeMap;

use nfs::v3::{Arguments, ReadDir, ReadDirPlus, Status};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, wrong};
use crate::share::{Lab, Three, fh, ok3};

const L: Area = Area::V3Listing;
/// Files of the directory that is listed.
const FILES: usize = 120;
/// The most replies of one listing.
const MOST: usize = 400;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        L,
        "readdir-in-parts",
        "RFC 1813 §3.3.16",
        "READDIR in small parts returns every name once, and eof at the end.",
        "Files would be missing from copies, or be there twice.",
        |lab| readdir(lab, 512).map(|_| ()),
    ),
    Check::nfs(
        L,
        "readdir-whole",
        "RFC 1813 §3.3.16",
        "READDIR with much room returns every name once, and eof at the end.",
        "Files would be missing from copies, or be there twice.",
        |lab| readdir(lab, 32 << 10).map(|_| ()),
    ),
    Check::nfs(
        L,
        "readdirplus-in-parts",
        "RFC 1813 §3.3.17",
        "READDIRPLUS in small parts returns every name once, and eof at the end.",
        "Files would be missing from copies, or be there twice.",
        |lab| plus(lab, 1200),
    ),
    Check::nfs(
        L,
        "readdirplus-whole",
        "RFC 1813 §3.3.17",
        "READDIRPLUS with much room returns every name once, and eof at the end.",
        "Files would be missing from copies, or be there twice.",
        |lab| plus(lab, 64 << 10),
    ),
    Check::nfs(
        L,
        "count-is-a-limit",
        "RFC 1813 §3.3.16",
        "The results of READDIR have no more bytes than count.",
        "A client has no room for more.",
        count_is_a_limit,
    ),
    Check::nfs(
        L,
        "too-small",
        "RFC 1813 §3.3.16",
        "READDIR with no room for one entry fails with TOOSMALL.",
        "A client would take an empty reply for the end.",
        too_small,
    ),
    Check::nfs(
        L,
        "fileid",
        "RFC 1813 §3.3.16, §3.3.1",
        "The fileid of an entry is that of the file's attributes.",
        "Programs find hard links and loops by it.",
        fileid,
    ),
    Check::nfs(
        L,
        "readdirplus-handles",
        "RFC 1813 §3.3.17",
        "Handles and attributes of READDIRPLUS are those of the named file.",
        "A client uses them instead of a LOOKUP.",
        readdirplus_handles,
    ),
    Check::nfs(
        L,
        "readdir-of-a-file",
        "RFC 1813 §3.3.16",
        "READDIR of a file fails with NOTDIR.",
        "A client could not tell a file from an empty directory.",
        readdir_of_a_file,
    ),
    Check::nfs(
        L,
        "removal-between-parts",
        "RFC 1813 §3.3.16",
        "A cookie serves on after listed files were removed: no other file is left out.",
        "rm -r would leave files behind.",
        removal_between_parts,
    ),
];

/// A directory with [`FILES`] files.
fn full(three: &mut Three) -> Verdict<Vec<String>> {
    let dir = three.dir.clone();
    let names: Vec<String> = (0..FILES).map(|number| format!("a file with the number {number}")).collect();
    for name in &names {
        three.file(&dir, name)?;
    }
    Ok(names)
}

/// Names and fileids by READDIR, with `between` called after each part.
fn listed(
    three: &mut Three,
    count: u32,
    mut between: impl FnMut(&mut Three, &[String]) -> Verdict,
) -> Verdict<Vec<(String, u64)>> {
    let dir = three.dir.clone();
    let mut found = Vec::new();
    let (mut cookie, mut verifier) = (0, [0; 8]);
    for _ in 0..MOST {
        let list = ReadDir { directory: fh(&dir), cookie, verifier, count };
        let reply = three.call(&Arguments::ReadDir(list))?;
        let part = ok3!(reply, ReadDir);
        let mut names = Vec::new();
        for entry in part.entries.iter() {
            let name = String::from_utf8_lossy(entry.name.bytes()).into_owned();
            names.push(name.clone());
            found.push((name, entry.fileid));
            cookie = entry.cookie;
        }
        verifier = part.verifier;
        if part.eof {
            return Ok(found);
        }
        if names.is_empty() {
            return wrong("a part without entries and without eof", "an entry, or eof");
        }
        between(three, &names)?;
    }
    wrong(format!("no eof after {MOST} parts"), "eof")
}

fn every_name_once(found: impl Iterator<Item = String>, names: &[String]) -> Verdict {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in found.filter(|name| name != "." && name != "..") {
        *counts.entry(name).or_default() += 1;
    }
    let right = counts.len() == names.len() && names.iter().all(|name| counts.get(name) == Some(&1));
    expect(right, format!("{} names, each once", names.len()), || {
        let twice = counts.values().filter(|count| **count > 1).count();
        format!("{} names, {twice} of them more than once", counts.len())
    })
}

fn readdir(lab: &Lab, count: u32) -> Verdict {
    let mut three = Three::new(lab)?;
    let names = full(&mut three)?;
    let found = listed(&mut three, count, |_, _| Ok(()))?;
    every_name_once(found.into_iter().map(|(name, _)| name), &names)
}

fn plus(lab: &Lab, max_count: u32) -> Verdict {
    let mut three = Three::new(lab)?;
    let names = full(&mut three)?;
    let dir = three.dir.clone();
    let mut found = Vec::new();
    let (mut cookie, mut verifier) = (0, [0; 8]);
    for _ in 0..MOST {
        let directory = fh(&dir);
        let list = ReadDirPlus { directory, cookie, verifier, dir_count: max_count, max_count };
        let reply = three.call(&Arguments::ReadDirPlus(list))?;
        if reply.error() == Some(Status::NotSupp) {
            return crate::finding::not_applicable("the server has no READDIRPLUS");
        }
        let part = ok3!(reply, ReadDirPlus);
        let before = found.len();
        for entry in part.entries.iter() {
            found.push(String::from_utf8_lossy(entry.name.bytes()).into_owned());
            cookie = entry.cookie;
        }
        verifier = part.verifier;
        if part.eof {
            return every_name_once(found.into_iter(), &names);
        }
        expect(found.len() > before, "an entry, or eof", || "neither".to_owned())?;
    }
    wrong(format!("no eof after {MOST} parts"), "eof")
}

fn count_is_a_limit(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    full(&mut three)?;
    let dir = three.dir.clone();
    for count in [512, 1000, 2048] {
        let list = ReadDir { directory: fh(&dir), cookie: 0, verifier: [0; 8], count };
        let reply = three.call(&Arguments::ReadDir(list))?;
        reply.good()?;
        // The status is not part of READDIR3resok.
        let length = reply.length() - 4;
        expect(length <= count as usize, format!("{count} bytes at most"), || format!("{length} bytes"))?;
    }
    Ok(())
}

fn too_small(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    three.file(&dir, "file")?;
    let list = ReadDir { directory: fh(&dir), cookie: 0, verifier: [0; 8], count: 16 };
    three.call(&Arguments::ReadDir(list))?.fails(&[Status::TooSmall])
}

fn fileid(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let mut wanted = Vec::new();
    for name in ["a", "b"] {
        let file = three.file(&dir, name)?;
        wanted.push((name.to_owned(), three.attributes(&file)?.fileid));
    }
    let mut found = listed(&mut three, 4096, |_, _| Ok(()))?;
    found.retain(|(name, _)| name != "." && name != "..");
    found.sort();
    expect(found == wanted, format!("{wanted:?}"), || format!("{found:?}"))
}

fn readdirplus_handles(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", b"12345")?;
    let wanted = three.attributes(&file)?;
    let directory = fh(&dir);
    let list = ReadDirPlus { directory, cookie: 0, verifier: [0; 8], dir_count: 4096, max_count: 4096 };
    let reply = three.call(&Arguments::ReadDirPlus(list))?;
    if reply.error() == Some(Status::NotSupp) {
        return crate::finding::not_applicable("the server has no READDIRPLUS");
    }
    let listed = ok3!(reply, ReadDirPlus);
    let Some(entry) = listed.entries.iter().find(|entry| entry.name.bytes() == b"file") else {
        return wrong("no entry of the file", "an entry");
    };
    if let Some(of) = entry.attributes {
        expect((of.fileid, of.size) == (wanted.fileid, 5), format!("{wanted:?}"), || format!("{of:?}"))?;
    }
    let Some(handle) = entry.handle.map(|handle| handle.bytes().to_vec()) else { return Ok(()) };
    let reply = three.call(&Arguments::GetAttr(fh(&handle)))?;
    let of = ok3!(reply, GetAttr);
    expect(of.fileid == wanted.fileid, format!("fileid {}", wanted.fileid), || {
        format!("fileid {}", of.fileid)
    })
}

fn readdir_of_a_file(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.file(&dir, "file")?;
    let list = ReadDir { directory: fh(&file), cookie: 0, verifier: [0; 8], count: 4096 };
    three.call(&Arguments::ReadDir(list))?.fails(&[Status::NotDir])
}

fn removal_between_parts(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let names = full(&mut three)?;
    let dir = three.dir.clone();
    let found = listed(&mut three, 700, |three, part| {
        for name in part.iter().filter(|name| *name != "." && *name != "..") {
            three.call(&Arguments::Remove(crate::share::at(&dir, name)))?.good()?;
        }
        Ok(())
    })?;
    every_name_once(found.into_iter().map(|(name, _)| name), &names)
}
