//! Version 3: attributes, access, and the limits that the server reports (RFC 1813 §3.3.1, §3.3.2,
//! §3.3.4, §3.3.18 to §3.3.20).

use nfs::v3::{
    Access, Arguments, Attributes, Create, CreateHow, FsInfoOk, SetAttr, SetAttributes, SetTime, Status,
    Time, access, properties,
};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable, setup};
use crate::share::{Lab, Reply3, Three, at, fh, ok3};

const A: Area = Area::V3Attributes;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        A,
        "getattr",
        "RFC 1813 §3.3.1",
        "GETATTR returns type, size and number of links of a file.",
        "stat on clients shows them.",
        getattr,
    ),
    Check::nfs(
        A,
        "fileids-differ",
        "RFC 1813 §2.6",
        "Two files of one file system have two fileids.",
        "Programs take files with one fileid for one file.",
        fileids_differ,
    ),
    Check::nfs(
        A,
        "set-mode",
        "RFC 1813 §3.3.2",
        "SETATTR of the mode sets it, and nothing else.",
        "Permissions would not hold.",
        set_mode,
    ),
    Check::nfs(
        A,
        "set-size-shorter",
        "RFC 1813 §3.3.2",
        "SETATTR of a smaller size cuts the file.",
        "truncate on clients relies on it.",
        |lab| set_size(lab, 3, b"123"),
    ),
    Check::nfs(
        A,
        "set-size-longer",
        "RFC 1813 §3.3.2",
        "SETATTR of a larger size fills the file with zeros.",
        "Other bytes would be someone else's old data.",
        |lab| set_size(lab, 8, b"12345\0\0\0"),
    ),
    Check::nfs(
        A,
        "set-times",
        "RFC 1813 §3.3.2",
        "SETATTR to a client's time sets atime and mtime to it, within time_delta.",
        "Backups and make compare these times.",
        set_times,
    ),
    Check::nfs(
        A,
        "set-server-time",
        "RFC 1813 §3.3.2",
        "SETATTR to the server's time sets mtime to now.",
        "touch on clients relies on it.",
        set_server_time,
    ),
    Check::nfs(
        A,
        "guard-that-holds",
        "RFC 1813 §3.3.2",
        "SETATTR with the file's ctime as guard succeeds.",
        "A guard that holds must not stop a change.",
        guard_that_holds,
    ),
    Check::nfs(
        A,
        "guard-that-fails",
        "RFC 1813 §3.3.2",
        "SETATTR with another ctime as guard fails with NOT_SYNC, and changes nothing.",
        "The client would overwrite what another one has changed.",
        guard_that_fails,
    ),
    Check::nfs(
        A,
        "setattr-consistency-data",
        "RFC 1813 §2.6, §3.3.2",
        "Attributes after a SETATTR are those that GETATTR returns.",
        "Clients keep their caches by these attributes.",
        setattr_consistency_data,
    ),
    Check::nfs(
        A,
        "directory-changes",
        "RFC 1813 §3.3.8, §3.3.1",
        "A new name gives the directory a later mtime.",
        "Clients find new files by it.",
        directory_changes,
    ),
    Check::nfs(
        A,
        "access-asked-only",
        "RFC 1813 §3.3.4",
        "ACCESS grants only bits that were asked for.",
        "Other bits say nothing, and a client may take them for rights.",
        access_asked_only,
    ),
    Check::nfs(
        A,
        "access-of-the-owner",
        "RFC 1813 §3.3.4",
        "ACCESS grants the owner of a file of mode 600 to read and modify it.",
        "open on clients would fail.",
        access_of_the_owner,
    ),
    Check::nfs(
        A,
        "access-of-others",
        "RFC 1813 §3.3.4",
        "ACCESS grants another user nothing on a file of mode 600.",
        "The client would let users read what is not theirs.",
        access_of_others,
    ),
    Check::nfs(
        A,
        "read-of-others",
        "RFC 1813 §4.4, §3.3.6",
        "READ of a file of mode 600 fails with ACCES for another user.",
        "Permissions would hold on clients alone.",
        |lab| denied_to_others(lab, |three, _, file| three.call_read(file, 0, 10)),
    ),
    Check::nfs(
        A,
        "write-of-others",
        "RFC 1813 §4.4, §3.3.7",
        "WRITE of a file of mode 600 fails with ACCES for another user.",
        "Permissions would hold on clients alone.",
        |lab| {
            denied_to_others(lab, |three, _, file| {
                three.call_write(file, 0, b"data", nfs::v3::Stable::FileSync)
            })
        },
    ),
    Check::nfs(
        A,
        "create-of-others",
        "RFC 1813 §3.3.8",
        "CREATE in a directory of mode 755 fails with ACCES for another user.",
        "Permissions would hold on clients alone.",
        |lab| {
            denied_to_others(lab, |three, dir, _| {
                let how = CreateHow::Guarded(SetAttributes::default());
                three.call(&Arguments::Create(Create { place: at(dir, "new"), how }))
            })
        },
    ),
    Check::nfs(
        A,
        "chmod-of-others",
        "RFC 1813 §3.3.2",
        "SETATTR of the mode fails with PERM or ACCES for another user.",
        "Any user could open every file.",
        chmod_of_others,
    ),
    Check::nfs(
        A,
        "fsstat",
        "RFC 1813 §3.3.18",
        "FSSTAT has no more available than free bytes and files, and no more free than there are.",
        "df on clients would show nonsense.",
        fsstat,
    ),
    Check::nfs(
        A,
        "fsinfo",
        "RFC 1813 §3.3.19",
        "FSINFO has sizes that fit each other, and a time_delta above 0 and below 2 seconds.",
        "Clients choose the sizes of their calls by it.",
        fsinfo,
    ),
    Check::nfs(
        A,
        "fsinfo-links",
        "RFC 1813 §3.3.19",
        "FSINFO says that there are hard and symbolic links if LINK and SYMLINK succeed.",
        "Clients do not try what the server says that it lacks.",
        fsinfo_links,
    ),
    Check::nfs(
        A,
        "largest-file",
        "RFC 1813 §3.3.19",
        "SETATTR of a size above maxfilesize fails with FBIG or INVAL.",
        "The server would promise less than it has, or break the file.",
        largest_file,
    ),
    Check::nfs(
        A,
        "pathconf",
        "RFC 1813 §3.3.20",
        "PATHCONF has a link_max of at least 1, and case_preserving as names show it.",
        "Programs on clients choose names by it.",
        pathconf,
    ),
];

fn begin(lab: &Lab) -> Verdict<(Three, Vec<u8>, Vec<u8>)> {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", b"12345")?;
    Ok((three, dir, file))
}

fn attributes(three: &mut Three, handle: &[u8]) -> Verdict<Attributes> {
    let reply = three.call(&Arguments::GetAttr(fh(handle)))?;
    Ok(ok3!(reply, GetAttr))
}

fn set(three: &mut Three, file: &[u8], attributes: SetAttributes, guard: Option<Time>) -> Verdict<Reply3> {
    three.call(&Arguments::SetAttr(SetAttr { object: fh(file), attributes, guard }))
}

fn getattr(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let of = attributes(&mut three, &file)?;
    let seen = (of.kind, of.size, of.links);
    expect(seen == (nfs::v3::FileType::Regular, 5, 1), "a regular file of 5 bytes, 1 link", || {
        format!("{seen:?}")
    })
}

fn fileids_differ(lab: &Lab) -> Verdict {
    let (mut three, dir, file) = begin(lab)?;
    let other = three.file(&dir, "other")?;
    let (one, two) = (attributes(&mut three, &file)?, attributes(&mut three, &other)?);
    expect((one.fsid, one.fileid) != (two.fsid, two.fileid), "two fileids", || {
        format!("twice {}", one.fileid)
    })
}

fn set_mode(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let mode = Some(0o604);
    set(&mut three, &file, SetAttributes { mode, ..SetAttributes::default() }, None)?.good()?;
    let of = attributes(&mut three, &file)?;
    expect((of.mode & 0o7777, of.size) == (0o604, 5), "mode 604, 5 bytes", || {
        format!("mode {:o}, {} bytes", of.mode, of.size)
    })
}

fn set_size(lab: &Lab, size: u64, content: &[u8]) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let size = Some(size);
    set(&mut three, &file, SetAttributes { size, ..SetAttributes::default() }, None)?.good()?;
    three.expect_content(&file, content)
}

fn set_times(lab: &Lab) -> Verdict {
    let (mut three, dir, file) = begin(lab)?;
    let delta = info(&mut three, &dir)?.time_delta;
    let (atime, mtime) = (
        Time { seconds: 981_173_106, nanoseconds: 5 },
        Time { seconds: 1_234_567_890, nanoseconds: 999_999_999 },
    );
    let (one, other) = (SetTime::Client(atime), SetTime::Client(mtime));
    let both = SetAttributes { atime: one, mtime: other, ..SetAttributes::default() };
    set(&mut three, &file, both, None)?.good()?;
    let of = attributes(&mut three, &file)?;
    let nanoseconds = |time: Time| u128::from(time.seconds) * 1_000_000_000 + u128::from(time.nanoseconds);
    let near = |seen, wanted| nanoseconds(seen).abs_diff(nanoseconds(wanted)) <= nanoseconds(delta);
    expect(near(of.atime, atime) && near(of.mtime, mtime), format!("{atime:?} and {mtime:?}"), || {
        format!("{:?} and {:?}, time_delta {delta:?}", of.atime, of.mtime)
    })
}

fn set_server_time(lab: &Lab) -> Verdict {
    let (mut three, dir, file) = begin(lab)?;
    let old = SetTime::Client(Time { seconds: 1000, nanoseconds: 0 });
    let now = SetTime::Server(());
    for mtime in [old, now] {
        set(&mut three, &file, SetAttributes { mtime, ..SetAttributes::default() }, None)?.good()?;
    }
    // A file that is made later has the same clock.
    let before = attributes(&mut three, &dir)?.mtime;
    let seen = attributes(&mut three, &file)?.mtime;
    expect(seen >= before, format!("at least {before:?}"), || format!("{seen:?}"))
}

fn guard_that_holds(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let guard = Some(three.attributes(&file)?.ctime);
    let mode = Some(0o600);
    set(&mut three, &file, SetAttributes { mode, ..SetAttributes::default() }, guard)?.good()
}

fn guard_that_fails(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let before = three.attributes(&file)?;
    let guard = Some(Time { seconds: before.ctime.seconds.wrapping_sub(10), ..before.ctime });
    let size = Some(0);
    set(&mut three, &file, SetAttributes { size, ..SetAttributes::default() }, guard)?
        .fails(&[Status::NotSync])?;
    three.expect_content(&file, b"12345")
}

fn setattr_consistency_data(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let mode = Some(0o611);
    let reply = set(&mut three, &file, SetAttributes { mode, ..SetAttributes::default() }, None)?;
    let told = ok3!(reply, SetAttr).after;
    let of = attributes(&mut three, &file)?;
    match told {
        Some(told) => expect(
            (told.fileid, told.mode, told.ctime, told.mtime) == (of.fileid, of.mode, of.ctime, of.mtime),
            format!("{of:?}"),
            || format!("{told:?}"),
        ),
        None => crate::finding::should(false, "attributes after the SETATTR", || "none".to_owned()),
    }
}

fn directory_changes(lab: &Lab) -> Verdict {
    let (mut three, dir, _) = begin(lab)?;
    // Clocks are coarse: after an old time every change shows.
    let old = Time { seconds: 1000, nanoseconds: 0 };
    let mtime = SetAttributes { mtime: SetTime::Client(old), ..SetAttributes::default() };
    let aged = set(&mut three, &dir, mtime, None);
    setup(aged.and_then(|reply| reply.good()), "to a directory with an old mtime")?;
    let how = CreateHow::Guarded(SetAttributes::default());
    three.call(&Arguments::Create(Create { place: at(&dir, "new"), how }))?.good()?;
    let after = attributes(&mut three, &dir)?;
    expect(after.mtime > old, format!("an mtime after {old:?}"), || format!("{:?}", after.mtime))
}

fn granted(three: &mut Three, file: &[u8], asked: u32) -> Verdict<u32> {
    let reply = three.call(&Arguments::Access(Access { object: fh(file), access: asked }))?;
    Ok(ok3!(reply, Access).access)
}

fn access_asked_only(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let seen = granted(&mut three, &file, access::READ)?;
    expect(seen & !access::READ == 0, "no bit but READ", || format!("bits {seen:#x}"))
}

/// A file of mode 600, and another user's connection. Not applicable where the server takes both
/// users for one.
fn private(lab: &Lab) -> Verdict<(Three, Three, Vec<u8>)> {
    let (mut three, dir, file) = begin(lab)?;
    let mode = Some(0o600);
    let made = set(&mut three, &file, SetAttributes { mode, ..SetAttributes::default() }, None);
    setup(made.and_then(|reply| reply.good()), "to a private file")?;
    let owner = three.attributes(&file)?.uid;
    // The owner of a file that the other user creates shows the user ID to which the server maps
    // it.
    let open = three.folder(&dir, "open")?;
    let mode = Some(0o777);
    let made = set(&mut three, &open, SetAttributes { mode, ..SetAttributes::default() }, None);
    setup(made.and_then(|reply| reply.good()), "to a directory for all")?;
    let mut other = three.other(lab)?;
    let theirs = other.file(&open, "theirs")?;
    match other.attributes(&theirs)?.uid {
        0 => not_applicable("the server takes every user for root"),
        uid if uid == owner => not_applicable("the server takes all users for one"),
        _ => Ok((three, other, file)),
    }
}

fn access_of_the_owner(lab: &Lab) -> Verdict {
    let (mut three, _, file) = begin(lab)?;
    let asked = access::READ | access::MODIFY | access::EXTEND;
    let seen = granted(&mut three, &file, asked)?;
    expect(seen == asked, format!("bits {asked:#x}"), || format!("bits {seen:#x}"))
}

fn access_of_others(lab: &Lab) -> Verdict {
    let (_, mut other, file) = private(lab)?;
    let seen = granted(&mut other, &file, access::READ | access::MODIFY | access::EXTEND)?;
    expect(seen == 0, "no bits", || format!("bits {seen:#x}"))
}

/// Checks that the server denies another user the call `does`, in the check's directory or on a
/// file of mode 600.
fn denied_to_others(lab: &Lab, does: fn(&mut Three, dir: &[u8], file: &[u8]) -> Verdict<Reply3>) -> Verdict {
    let (three, mut other, file) = private(lab)?;
    does(&mut other, &three.dir, &file)?.fails(&[Status::Acces])
}

fn chmod_of_others(lab: &Lab) -> Verdict {
    let (_, mut other, file) = private(lab)?;
    let mode = Some(0o666);
    set(&mut other, &file, SetAttributes { mode, ..SetAttributes::default() }, None)?
        .fails(&[Status::Perm, Status::Acces])
}

fn fsstat(lab: &Lab) -> Verdict {
    let (mut three, dir, _) = begin(lab)?;
    let reply = three.call(&Arguments::FsStat(fh(&dir)))?;
    let of = ok3!(reply, FsStat);
    let bytes = (of.total_bytes, of.free_bytes, of.available_bytes);
    let files = (of.total_files, of.free_files, of.available_files);
    let ordered = |(total, free, available): (u64, u64, u64)| available <= free && free <= total;
    expect(ordered(bytes) && ordered(files), "total, free and available in this order", || {
        format!("bytes {bytes:?}, files {files:?}")
    })
}

fn info(three: &mut Three, dir: &[u8]) -> Verdict<FsInfoOk> {
    let reply = three.call(&Arguments::FsInfo(fh(dir)))?;
    Ok(ok3!(reply, FsInfo))
}

fn fsinfo(lab: &Lab) -> Verdict {
    let (mut three, dir, _) = begin(lab)?;
    let of = info(&mut three, &dir)?;
    let fits = |most: u32, preferred: u32| preferred > 0 && preferred <= most;
    expect(
        fits(of.read_max, of.read_preferred)
            && fits(of.write_max, of.write_preferred)
            && of.dir_preferred > 0,
        "preferred sizes from 1 to the maximum",
        || format!("{of:?}"),
    )?;
    let delta = of.time_delta;
    let right = delta.seconds < 2 && (delta.seconds, delta.nanoseconds) != (0, 0);
    expect(right && of.max_file_size > 0, "a time_delta, and a maxfilesize", || format!("{of:?}"))
}

fn fsinfo_links(lab: &Lab) -> Verdict {
    let (mut three, dir, file) = begin(lab)?;
    let told = info(&mut three, &dir)?.properties;
    let link = nfs::v3::Link { file: fh(&file), link: at(&dir, "link") };
    let hard = three.call(&Arguments::Link(link))?;
    let symbolic = three.call(&Arguments::Symlink(nfs::v3::Symlink {
        place: at(&dir, "symlink"),
        attributes: SetAttributes::default(),
        path: nfs::v3::Path::new(b"path").unwrap_or(nfs::v3::Path::EMPTY),
    }))?;
    for (reply, bit) in [(hard, properties::LINK), (symbolic, properties::SYMLINK)] {
        expect((told & bit != 0) == reply.error().is_none(), "properties as the calls show", || {
            format!("properties {told:#x}, {}", reply.told())
        })?;
    }
    Ok(())
}

fn largest_file(lab: &Lab) -> Verdict {
    let (mut three, dir, file) = begin(lab)?;
    let Some(size) = info(&mut three, &dir)?.max_file_size.checked_add(1) else {
        return not_applicable("every size of 64 bits is allowed");
    };
    set(&mut three, &file, SetAttributes { size: Some(size), ..SetAttributes::default() }, None)?
        .fails(&[Status::FBig, Status::Inval])
}

fn pathconf(lab: &Lab) -> Verdict {
    let (mut three, dir, _) = begin(lab)?;
    let reply = three.call(&Arguments::PathConf(fh(&dir)))?;
    let of = ok3!(reply, PathConf);
    expect(of.max_links >= 1, "a link_max of at least 1", || format!("{}", of.max_links))?;
    three.file(&dir, "CaSe")?;
    let same = three.call(&Arguments::Lookup(at(&dir, "case")))?;
    expect(same.error().is_none() == of.case_insensitive, "case_insensitive as LOOKUP shows it", || {
        format!("case_insensitive {}, {}", of.case_insensitive, same.told())
    })
}
