//! Version 3: names, files of all types and directories (RFC 1813 §3.3.3, §3.3.5, §3.3.8 to
//! §3.3.15).

use nfs::v3::{
    Arguments, Attributes, Create, CreateHow, FileType, Link, MkDir, MkNod, NodeData, Procedure, Rename,
    SetAttributes, Status, Symlink,
};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::share::{Lab, Reply3, Three, at, fh, ok3, raw_at};

const N: Area = Area::V3Names;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        N,
        "lookup",
        "RFC 1813 §3.3.3",
        "LOOKUP returns the handle of the named file, with its attributes if with any.",
        "A client would open another file.",
        lookup,
    ),
    Check::nfs(
        N,
        "lookup-missing",
        "RFC 1813 §3.3.3",
        "LOOKUP of a name that is not there fails with NOENT.",
        "Programs create a file when it is not there.",
        lookup_missing,
    ),
    Check::nfs(
        N,
        "lookup-in-a-file",
        "RFC 1813 §3.3.3",
        "LOOKUP in a file fails with NOTDIR.",
        "Programs tell a wrong path from a missing file.",
        lookup_in_a_file,
    ),
    Check::nfs(
        N,
        "create",
        "RFC 1813 §3.3.8",
        "CREATE makes an empty regular file with the mode that it was given.",
        "Others could read a file that was made for its owner alone.",
        create,
    ),
    Check::nfs(
        N,
        "create-guarded",
        "RFC 1813 §3.3.8",
        "A guarded CREATE of a name that is there fails with EXIST, and changes nothing.",
        "Lock files rely on it.",
        create_guarded,
    ),
    Check::nfs(
        N,
        "create-unchecked",
        "RFC 1813 §3.3.8",
        "An unchecked CREATE of a file that is there succeeds, and sets its size.",
        "open with O_CREAT and O_TRUNC relies on it.",
        create_unchecked,
    ),
    Check::nfs(
        N,
        "create-exclusive-again",
        "RFC 1813 §3.3.8",
        "An exclusive CREATE that is repeated with its verifier succeeds with the same file.",
        "A client whose reply was lost would think that another one made the file.",
        create_exclusive_again,
    ),
    Check::nfs(
        N,
        "create-exclusive-other",
        "RFC 1813 §3.3.8",
        "An exclusive CREATE with another verifier fails with EXIST.",
        "Two clients would both believe that they made the file.",
        create_exclusive_other,
    ),
    Check::nfs(
        N,
        "create-in-a-file",
        "RFC 1813 §3.3.8",
        "CREATE in a file fails with NOTDIR.",
        "A file is no place for names.",
        create_in_a_file,
    ),
    Check::nfs(
        N,
        "create-consistency-data",
        "RFC 1813 §2.6, §3.3.8",
        "The directory's attributes after a CREATE are those that GETATTR returns.",
        "Clients keep their caches of names by these attributes.",
        create_consistency_data,
    ),
    Check::nfs(
        N,
        "longest-name",
        "RFC 1813 §3.3.20",
        "A name of name_max bytes can be created and found.",
        "PATHCONF would promise what does not hold.",
        longest_name,
    ),
    Check::nfs(
        N,
        "name-too-long",
        "RFC 1813 §3.3.20, §3.3.8",
        "A longer name fails with NAMETOOLONG if PATHCONF has no_trunc.",
        "Two long names would become one file.",
        name_too_long,
    ),
    Check::nfs(
        N,
        "mkdir",
        "RFC 1813 §3.3.9",
        "MKDIR makes an empty directory.",
        "A tree of directories is built of it.",
        mkdir,
    ),
    Check::nfs(
        N,
        "mkdir-exists",
        "RFC 1813 §3.3.9",
        "MKDIR of a name that is there fails with EXIST.",
        "Programs use a directory as a lock.",
        mkdir_exists,
    ),
    Check::nfs(
        N,
        "mkdir-dot",
        "RFC 1813 §3.3.9",
        "MKDIR of . and .. fails with EXIST.",
        "A directory would have two entries of that name.",
        mkdir_dot,
    )
    .recommended(),
    Check::nfs(
        N,
        "symlink",
        "RFC 1813 §3.3.10, §3.3.5",
        "SYMLINK keeps its path as it is, and READLINK returns it.",
        "Links would point elsewhere.",
        symlink,
    ),
    Check::nfs(
        N,
        "readlink-of-a-file",
        "RFC 1813 §3.3.5",
        "READLINK of a regular file fails with INVAL.",
        "A client would take data for a path.",
        readlink_of_a_file,
    ),
    Check::nfs(
        N,
        "mknod-fifo",
        "RFC 1813 §3.3.11",
        "MKNOD makes a named pipe, or fails with NOTSUPP.",
        "Programs on clients talk through it.",
        mknod_fifo,
    ),
    Check::nfs(
        N,
        "mknod-regular",
        "RFC 1813 §3.3.11",
        "MKNOD of a regular file fails with BADTYPE.",
        "CREATE makes regular files.",
        mknod_regular,
    ),
    Check::nfs(
        N,
        "remove",
        "RFC 1813 §3.3.12",
        "REMOVE removes a name.",
        "The file would be there on.",
        remove,
    ),
    Check::nfs(
        N,
        "remove-missing",
        "RFC 1813 §3.3.12",
        "REMOVE of a name that is not there fails with NOENT.",
        "Programs learn that another one was faster.",
        remove_missing,
    ),
    Check::nfs(
        N,
        "rmdir",
        "RFC 1813 §3.3.13",
        "RMDIR removes an empty directory.",
        "The directory would be there on.",
        rmdir,
    ),
    Check::nfs(
        N,
        "rmdir-not-empty",
        "RFC 1813 §3.3.13",
        "RMDIR of a directory with entries fails with NOTEMPTY.",
        "The files in it would be lost.",
        rmdir_not_empty,
    ),
    Check::nfs(
        N,
        "rmdir-of-a-file",
        "RFC 1813 §3.3.13",
        "RMDIR of a file fails with NOTDIR.",
        "rmdir would delete files.",
        rmdir_of_a_file,
    ),
    Check::nfs(
        N,
        "rmdir-missing",
        "RFC 1813 §3.3.13",
        "RMDIR of a name that is not there fails with NOENT.",
        "Programs learn that another one was faster.",
        rmdir_missing,
    ),
    Check::nfs(
        N,
        "rename",
        "RFC 1813 §3.3.14",
        "RENAME moves a file to a name in another directory.",
        "The file would be lost, or have two names.",
        rename,
    ),
    Check::nfs(
        N,
        "rename-over-a-file",
        "RFC 1813 §3.3.14",
        "RENAME over a file replaces it.",
        "Editors save files in this way.",
        rename_over_a_file,
    ),
    Check::nfs(
        N,
        "rename-missing",
        "RFC 1813 §3.3.14",
        "RENAME of a name that is not there fails with NOENT.",
        "Programs learn that another one was faster.",
        rename_missing,
    ),
    Check::nfs(
        N,
        "rename-over-a-full-directory",
        "RFC 1813 §3.3.14",
        "RENAME of a directory over one with entries fails with NOTEMPTY or EXIST.",
        "The files in it would be lost.",
        rename_over_a_full_directory,
    ),
    Check::nfs(
        N,
        "rename-into-itself",
        "RFC 1813 §3.3.14",
        "RENAME of a directory into itself fails with INVAL.",
        "The directory would have no path any more.",
        rename_into_itself,
    ),
    Check::nfs(
        N,
        "rename-of-two-links",
        "RFC 1813 §3.3.14",
        "RENAME between two links of one file succeeds, and both stay.",
        "The RFC says that it performs no action.",
        rename_of_two_links,
    ),
    Check::nfs(
        N,
        "link",
        "RFC 1813 §3.3.15",
        "LINK gives a file a second name: the same fileid, and two links.",
        "Backups and mail programs count links.",
        link,
    ),
    Check::nfs(
        N,
        "link-exists",
        "RFC 1813 §3.3.15",
        "LINK to a name that is there fails with EXIST.",
        "Lock files rely on it.",
        link_exists,
    ),
    Check::nfs(
        N,
        "stale-directory",
        "RFC 1813 §2.6, §3.3.3",
        "LOOKUP in a directory that was removed fails with STALE.",
        "The client would find names in another directory.",
        stale_directory,
    ),
    Check::nfs(
        N,
        "changed-handle",
        "RFC 1813 §2.6, §3.3.1",
        "A handle with changed bits fails with BADHANDLE or STALE.",
        "A client could guess its way out of the export.",
        changed_handle,
    ),
    Check::nfs(
        N,
        "handle-of-no-kind",
        "RFC 1813 §2.6, §3.3.1",
        "A handle of 3 bytes fails with BADHANDLE or STALE.",
        "A server that trusts its length reads beyond it.",
        handle_of_no_kind,
    ),
];

fn begin(lab: &Lab) -> Verdict<(Three, Vec<u8>)> {
    let three = Three::new(lab)?;
    let dir = three.dir.clone();
    Ok((three, dir))
}

fn attributes(three: &mut Three, handle: &[u8]) -> Verdict<Attributes> {
    let reply = three.call(&Arguments::GetAttr(fh(handle)))?;
    Ok(ok3!(reply, GetAttr))
}

fn remove_of(three: &mut Three, dir: &[u8], name: &str) -> Verdict<Reply3> {
    three.call(&Arguments::Remove(at(dir, name)))
}

fn rename_of(three: &mut Three, from: (&[u8], &str), to: (&[u8], &str)) -> Verdict<Reply3> {
    three.call(&Arguments::Rename(Rename { from: at(from.0, from.1), to: at(to.0, to.1) }))
}

fn create_of(three: &mut Three, dir: &[u8], name: &str, how: CreateHow) -> Verdict<Reply3> {
    three.call(&Arguments::Create(Create { place: at(dir, name), how }))
}

fn lookup(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.filled(&dir, "file", b"12345")?;
    let reply = three.call(&Arguments::Lookup(at(&dir, "file")))?;
    let found = ok3!(reply, Lookup);
    let of = attributes(&mut three, found.object.bytes())?;
    expect((of.kind, of.size) == (FileType::Regular, 5), "a file of 5 bytes", || format!("{of:?}"))?;
    let told = found.attributes.map_or(of.fileid, |told| told.fileid);
    expect(told == of.fileid, format!("fileid {}", of.fileid), || format!("fileid {told}"))
}

fn lookup_missing(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.call(&Arguments::Lookup(at(&dir, "missing")))?.fails(&[Status::NoEnt])
}

fn lookup_in_a_file(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.file(&dir, "file")?;
    three.call(&Arguments::Lookup(at(&file, "name")))?.fails(&[Status::NotDir])
}

fn create(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let how = CreateHow::Guarded(SetAttributes { mode: Some(0o640), ..SetAttributes::default() });
    create_of(&mut three, &dir, "file", how)?.good()?;
    let file = three.handle_of(&dir, "file")?;
    let of = attributes(&mut three, &file)?;
    let seen = (of.kind, of.size, of.mode & 0o7777, of.links);
    expect(seen == (FileType::Regular, 0, 0o640, 1), "an empty file, mode 640, 1 link", || {
        format!("{:?}, {} bytes, mode {:o}, {} links", of.kind, of.size, of.mode, of.links)
    })
}

fn create_guarded(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.filled(&dir, "file", b"12345")?;
    let how = CreateHow::Guarded(SetAttributes { size: Some(0), ..SetAttributes::default() });
    create_of(&mut three, &dir, "file", how)?.fails(&[Status::Exist])?;
    three.expect_content(&file, b"12345")
}

fn create_unchecked(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.filled(&dir, "file", b"12345")?;
    let how = CreateHow::Unchecked(SetAttributes { size: Some(0), ..SetAttributes::default() });
    create_of(&mut three, &dir, "file", how)?.good()?;
    three.expect_content(&file, b"")
}

fn create_exclusive_again(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let mut found = Vec::new();
    for _ in 0..2 {
        create_of(&mut three, &dir, "file", CreateHow::Exclusive(*b"verifier"))?.good()?;
        let file = three.handle_of(&dir, "file")?;
        found.push(attributes(&mut three, &file)?.fileid);
    }
    expect(found.first() == found.last(), "the same file", || format!("files {found:?}"))
}

fn create_exclusive_other(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    create_of(&mut three, &dir, "file", CreateHow::Exclusive(*b"verifier"))?.good()?;
    create_of(&mut three, &dir, "file", CreateHow::Exclusive(*b"another1"))?.fails(&[Status::Exist])
}

fn create_in_a_file(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.file(&dir, "file")?;
    create_of(&mut three, &file, "name", CreateHow::Guarded(SetAttributes::default()))?
        .fails(&[Status::NotDir])
}

fn create_consistency_data(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let how = CreateHow::Guarded(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
    let reply = create_of(&mut three, &dir, "file", how)?;
    let told = ok3!(reply, Create).directory.after;
    let of = attributes(&mut three, &dir)?;
    let Some(told) = told else {
        return should(false, "attributes after the CREATE", || "none".to_owned());
    };
    expect((told.fileid, told.mtime, told.size) == (of.fileid, of.mtime, of.size), format!("{of:?}"), || {
        format!("{told:?}")
    })
}

/// The longest name, bytes, and whether a longer one is an error.
fn limits(three: &mut Three, dir: &[u8]) -> Verdict<(usize, bool)> {
    let reply = three.call(&Arguments::PathConf(fh(dir)))?;
    let of = ok3!(reply, PathConf);
    Ok((of.max_name as usize, of.no_truncation))
}

fn longest_name(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let (longest, _) = limits(&mut three, &dir)?;
    expect(longest >= 14, "at least 14 bytes, as POSIX has it", || format!("{longest} bytes"))?;
    let name = vec![b'n'; longest.min(4096)];
    let none = rpc::xdr::encode(&CreateHow::Guarded(SetAttributes::default()));
    three.raw(Procedure::Create, &[raw_at(&dir, &name), none].concat())?.good()?;
    three.raw(Procedure::Lookup, &raw_at(&dir, &name))?.good()
}

fn name_too_long(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let (longest, refuses) = limits(&mut three, &dir)?;
    if !refuses {
        return not_applicable("PATHCONF says that long names are cut");
    }
    let name = vec![b'n'; longest.min(4096) + 1];
    let none = rpc::xdr::encode(&CreateHow::Guarded(SetAttributes::default()));
    three.raw(Procedure::Create, &[raw_at(&dir, &name), none].concat())?.fails(&[Status::NameTooLong])?;
    three.raw(Procedure::Lookup, &raw_at(&dir, &name))?.fails(&[Status::NameTooLong])
}

fn mkdir(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let attributes = SetAttributes { mode: Some(0o750), ..SetAttributes::default() };
    three.call(&Arguments::MkDir(MkDir { place: at(&dir, "d"), attributes }))?.good()?;
    let made = three.handle_of(&dir, "d")?;
    let of = self::attributes(&mut three, &made)?;
    expect((of.kind, of.mode & 0o777) == (FileType::Directory, 0o750), "a directory of mode 750", || {
        format!("{:?} of mode {:o}", of.kind, of.mode)
    })
}

fn mkdir_exists(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.file(&dir, "name")?;
    let attributes = SetAttributes::default();
    three.call(&Arguments::MkDir(MkDir { place: at(&dir, "name"), attributes }))?.fails(&[Status::Exist])
}

fn mkdir_dot(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    for name in [".", ".."] {
        let attributes = SetAttributes::default();
        let reply = three.call(&Arguments::MkDir(MkDir { place: at(&dir, name), attributes }))?;
        reply.fails(&[Status::Exist])?;
    }
    Ok(())
}

fn symlink(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let path = b"/some/../where//\xff\xfe not there";
    let make = Symlink {
        place: at(&dir, "link"),
        attributes: SetAttributes::default(),
        path: nfs::v3::Path::new(path).unwrap_or(nfs::v3::Path::EMPTY),
    };
    three.call(&Arguments::Symlink(make))?.good()?;
    let link = three.handle_of(&dir, "link")?;
    let kind = attributes(&mut three, &link)?.kind;
    expect(kind == FileType::Symlink, "a symbolic link", || format!("{kind:?}"))?;
    let reply = three.call(&Arguments::ReadLink(fh(&link)))?;
    let found = ok3!(reply, ReadLink);
    let told = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    expect(found.path.bytes() == path, told(path), || told(found.path.bytes()))
}

fn readlink_of_a_file(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.file(&dir, "file")?;
    three.call(&Arguments::ReadLink(fh(&file)))?.fails(&[Status::Inval])
}

fn mknod_fifo(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let what = NodeData::Fifo(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
    let reply = three.call(&Arguments::MkNod(MkNod { place: at(&dir, "fifo"), what }))?;
    if reply.error() == Some(Status::NotSupp) {
        return not_applicable("the server has no MKNOD");
    }
    reply.good()?;
    let fifo = three.handle_of(&dir, "fifo")?;
    let kind = attributes(&mut three, &fifo)?.kind;
    expect(kind == FileType::Fifo, "a named pipe", || format!("{kind:?}"))
}

fn mknod_regular(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let what = NodeData::Regular(());
    let reply = three.call(&Arguments::MkNod(MkNod { place: at(&dir, "file"), what }))?;
    if reply.error() == Some(Status::NotSupp) {
        return not_applicable("the server has no MKNOD");
    }
    reply.fails(&[Status::BadType])
}

fn remove(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.file(&dir, "file")?;
    remove_of(&mut three, &dir, "file")?.good()?;
    three.expect_name(&dir, "file", false)
}

fn remove_missing(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    remove_of(&mut three, &dir, "missing")?.fails(&[Status::NoEnt])
}

fn rmdir_of(three: &mut Three, dir: &[u8], name: &str) -> Verdict<Reply3> {
    three.call(&Arguments::RmDir(at(dir, name)))
}

fn rmdir(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.folder(&dir, "d")?;
    rmdir_of(&mut three, &dir, "d")?.good()?;
    three.expect_name(&dir, "d", false)
}

fn rmdir_not_empty(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let below = three.folder(&dir, "d")?;
    three.file(&below, "file")?;
    rmdir_of(&mut three, &dir, "d")?.fails(&[Status::NotEmpty])?;
    three.expect_name(&below, "file", true)
}

fn rmdir_of_a_file(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.file(&dir, "file")?;
    rmdir_of(&mut three, &dir, "file")?.fails(&[Status::NotDir])
}

fn rmdir_missing(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    rmdir_of(&mut three, &dir, "missing")?.fails(&[Status::NoEnt])
}

fn rename(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let below = three.folder(&dir, "d")?;
    let file = three.filled(&dir, "old", b"12345")?;
    rename_of(&mut three, (&dir, "old"), (&below, "new"))?.good()?;
    three.expect_name(&dir, "old", false)?;
    let found = three.call(&Arguments::Lookup(at(&below, "new")))?;
    let found = ok3!(found, Lookup).object.bytes().to_vec();
    let (one, other) = (attributes(&mut three, &file)?.fileid, attributes(&mut three, &found)?.fileid);
    expect(one == other, "the file under its new name", || format!("file {other}, not {one}"))
}

fn rename_over_a_file(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.filled(&dir, "old", b"new content")?;
    three.filled(&dir, "name", b"old content, longer")?;
    rename_of(&mut three, (&dir, "old"), (&dir, "name"))?.good()?;
    three.expect_name(&dir, "old", false)?;
    let found = three.handle_of(&dir, "name")?;
    three.expect_content(&found, b"new content")
}

fn rename_missing(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    rename_of(&mut three, (&dir, "missing"), (&dir, "name"))?.fails(&[Status::NoEnt])
}

fn rename_over_a_full_directory(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    three.folder(&dir, "empty")?;
    let full = three.folder(&dir, "full")?;
    three.file(&full, "file")?;
    rename_of(&mut three, (&dir, "empty"), (&dir, "full"))?.fails(&[Status::NotEmpty, Status::Exist])?;
    three.expect_name(&full, "file", true)
}

fn rename_into_itself(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let below = three.folder(&dir, "d")?;
    rename_of(&mut three, (&dir, "d"), (&below, "inner"))?.fails(&[Status::Inval])
}

fn link_of(three: &mut Three, file: &[u8], dir: &[u8], name: &str) -> Verdict<Reply3> {
    three.call(&Arguments::Link(Link { file: fh(file), link: at(dir, name) }))
}

/// Makes a link, or reports that the server does not support links.
fn linked(three: &mut Three, file: &[u8], dir: &[u8], name: &str) -> Verdict {
    let reply = link_of(three, file, dir, name)?;
    match reply.error() {
        Some(Status::NotSupp) => not_applicable("the server has no hard links"),
        _ => reply.good(),
    }
}

fn rename_of_two_links(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.file(&dir, "one")?;
    crate::finding::setup(linked(&mut three, &file, &dir, "two"), "to two links")?;
    rename_of(&mut three, (&dir, "one"), (&dir, "two"))?.good()?;
    three.expect_name(&dir, "one", true)?;
    three.expect_name(&dir, "two", true)
}

fn link(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.file(&dir, "one")?;
    linked(&mut three, &file, &dir, "two")?;
    let other = three.handle_of(&dir, "two")?;
    let (one, two) = (attributes(&mut three, &file)?, attributes(&mut three, &other)?);
    expect(one.fileid == two.fileid && two.links == 2, "one file with 2 links", || {
        format!("files {} and {}, {} links", one.fileid, two.fileid, two.links)
    })?;
    remove_of(&mut three, &dir, "one")?.good()?;
    let links = attributes(&mut three, &file)?.links;
    expect(links == 1, "1 link after the other was removed", || format!("{links} links"))
}

fn link_exists(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let file = three.file(&dir, "one")?;
    three.file(&dir, "two")?;
    let reply = link_of(&mut three, &file, &dir, "two")?;
    match reply.error() {
        Some(Status::NotSupp) => not_applicable("the server has no hard links"),
        _ => reply.fails(&[Status::Exist]),
    }
}

fn stale_directory(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let below = three.folder(&dir, "d")?;
    rmdir_of(&mut three, &dir, "d")?.good()?;
    three.call(&Arguments::Lookup(at(&below, "name")))?.fails(&[Status::Stale])
}

fn changed_handle(lab: &Lab) -> Verdict {
    let (mut three, dir) = begin(lab)?;
    let mut file = three.file(&dir, "file")?;
    for byte in &mut file {
        *byte ^= 0x5a;
    }
    three.call(&Arguments::GetAttr(fh(&file)))?.fails(&[Status::BadHandle, Status::Stale])
}

fn handle_of_no_kind(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let reply = three.call(&Arguments::GetAttr(fh(&[1, 2, 3])))?;
    match reply.error() {
        Some(_) => reply.fails(&[Status::BadHandle, Status::Stale]),
        None => wrong(reply.told(), "BadHandle or Stale"),
    }
}
