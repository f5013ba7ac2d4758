//! Version 4: names and attributes (RFC 8881 §5, §18.4, §18.7, §18.9, §18.13, §18.15, §18.23 to
//! §18.26, §18.30, §18.31).

use std::collections::BTreeMap;

use nfs::v4::{
    Arguments, Attributes, Bitmap, Create, CreateType, Fattr, FileType, ReadDir, Rename, SetAttr, Stateid,
    Status, Text, Verifier, attribute,
};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable, wrong};
use crate::share::{BOTH, Four, Lab, get, name, ok4, put};

const N: Area = Area::V4Names;
/// Files of the directory that is listed.
const FILES: usize = 60;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        N,
        "lookup-missing",
        "RFC 8881 §18.13",
        "LOOKUP of a name that is not there fails with NOENT.",
        "Programs create a file when it is not there.",
        lookup_missing,
    ),
    Check::nfs(
        N,
        "lookup-in-a-file",
        "RFC 8881 §18.13",
        "LOOKUP in a file fails with NOTDIR.",
        "Programs tell a wrong path from a missing file.",
        lookup_in_a_file,
    ),
    Check::nfs(
        N,
        "lookup-in-a-link",
        "RFC 8881 §18.13.3",
        "LOOKUP in a symbolic link fails with SYMLINK.",
        "The client learns by it that it has to follow the link.",
        lookup_in_a_link,
    ),
    Check::nfs(
        N,
        "lookup-empty-name",
        "RFC 8881 §18.13.3",
        "LOOKUP of a name without bytes fails with INVAL.",
        "No file has such a name.",
        lookup_empty_name,
    ),
    Check::nfs(
        N,
        "name-too-long",
        "RFC 8881 §18.13, §5.8.2.18",
        "LOOKUP of a name longer than maxname fails with NAMETOOLONG.",
        "Two long names would become one file.",
        name_too_long,
    ),
    Check::nfs(
        N,
        "create-directory",
        "RFC 8881 §18.4",
        "CREATE of a directory makes it the current filehandle, with the mode that it was given.",
        "A tree of directories is built of it.",
        create_directory,
    ),
    Check::nfs(
        N,
        "create-exists",
        "RFC 8881 §18.4.3",
        "CREATE of a name that is there fails with EXIST.",
        "Programs use a directory as a lock.",
        create_exists,
    ),
    Check::nfs(
        N,
        "create-regular",
        "RFC 8881 §18.4.3",
        "CREATE of a regular file fails with BADTYPE.",
        "OPEN makes regular files.",
        create_regular,
    ),
    Check::nfs(
        N,
        "symlink",
        "RFC 8881 §18.4, §18.24",
        "CREATE of a symbolic link keeps its text, and READLINK returns it.",
        "Links would point elsewhere.",
        symlink,
    ),
    Check::nfs(
        N,
        "readlink-of-a-file",
        "RFC 8881 §18.24.3",
        "READLINK of a file fails with WRONG_TYPE or INVAL.",
        "A client would take data for a path.",
        readlink_of_a_file,
    ),
    Check::nfs(
        N,
        "change-info",
        "RFC 8881 §18.25, §5.8.1.4",
        "REMOVE returns the directory's change attribute, which differs from that before.",
        "Clients keep their caches of names by it.",
        change_info,
    ),
    Check::nfs(
        N,
        "remove-missing",
        "RFC 8881 §18.25",
        "REMOVE of a name that is not there fails with NOENT.",
        "Programs learn that another one was faster.",
        remove_missing,
    ),
    Check::nfs(
        N,
        "remove-full-directory",
        "RFC 8881 §18.25.3",
        "REMOVE of a directory with entries fails with NOTEMPTY.",
        "The files in it would be lost.",
        remove_full_directory,
    ),
    Check::nfs(
        N,
        "rename",
        "RFC 8881 §18.26",
        "RENAME moves a name from the saved to the current directory.",
        "The file would be lost, or have two names.",
        rename,
    ),
    Check::nfs(
        N,
        "link",
        "RFC 8881 §18.9",
        "LINK gives the saved file a second name, and numlinks is 2.",
        "Backups and mail programs count links.",
        link,
    ),
    Check::nfs(
        N,
        "readdir-in-parts",
        "RFC 8881 §18.23",
        "READDIR in small parts returns every name once, without . and ..",
        "Files would be missing from copies, or be there twice.",
        readdir_in_parts,
    ),
    Check::nfs(
        N,
        "readdir-reserved-cookies",
        "RFC 8881 §18.23.3",
        "READDIR returns no cookie of 0, 1 or 2, and fails with BAD_COOKIE for 1 and 2.",
        "Clients use these cookies for . and ..",
        readdir_reserved_cookies,
    ),
    Check::nfs(
        N,
        "supported-attributes",
        "RFC 8881 §5.6, §5.8.1",
        "The supported attributes have every required one, and GETATTR returns each of these.",
        "Clients of version 4 cannot work without them.",
        supported_attributes,
    ),
    Check::nfs(
        N,
        "unsupported-attributes",
        "RFC 8881 §5, §18.7.3",
        "GETATTR leaves out what is not supported, and SETATTR of it fails with ATTRNOTSUPP.",
        "A client would take other bytes for the attribute.",
        unsupported_attributes,
    ),
    Check::nfs(
        N,
        "getattr-write-only",
        "RFC 8881 §5.5, §18.7.3",
        "GETATTR of an attribute that can only be set fails with INVAL.",
        "It has no value that could be returned.",
        getattr_write_only,
    ),
    Check::nfs(
        N,
        "setattr-read-only",
        "RFC 8881 §5.5, §18.30.3",
        "SETATTR of an attribute that can only be read fails with INVAL.",
        "It has no value that could be set.",
        setattr_read_only,
    ),
    Check::nfs(
        N,
        "setattr-mode",
        "RFC 8881 §18.30",
        "SETATTR of the mode sets it, says so, and changes the change attribute.",
        "Permissions would not hold.",
        setattr_mode,
    ),
    Check::nfs(
        N,
        "verify",
        "RFC 8881 §18.31",
        "VERIFY passes for the same attributes, and fails with NOT_SAME for others.",
        "Clients make a request depend on a file's state by it.",
        verify,
    ),
    Check::nfs(
        N,
        "nverify",
        "RFC 8881 §18.15",
        "NVERIFY fails with SAME for the same attributes, and passes for others.",
        "Clients check their caches by it.",
        nverify,
    ),
    Check::nfs(
        N,
        "filehandle-attribute",
        "RFC 8881 §5.8.1.13",
        "The attribute filehandle is that of GETFH.",
        "READDIR returns handles in this attribute.",
        filehandle_attribute,
    ),
    Check::nfs(
        N,
        "access",
        "RFC 8881 §18.1",
        "ACCESS of the owner grants what its mode allows, and no bit that was not asked for.",
        "open on clients would fail.",
        access,
    ),
    Check::nfs(
        N,
        "mknod-socket",
        "RFC 8881 §18.4",
        "CREATE makes a socket with its type, or fails with BADTYPE or PERM.",
        "Programs on clients talk through it.",
        mknod_socket,
    ),
];

fn begin(lab: &Lab) -> Verdict<(Four<'_>, Vec<u8>)> {
    let four = Four::new(lab)?;
    let dir = four.dir.clone();
    Ok((four, dir))
}

fn create_of<'a>(kind: CreateType<'a>, file: &'a str, attributes: Fattr<'a>) -> Arguments<'a> {
    Arguments::Create(Create { kind, name: name(file), attributes })
}

fn lookup_missing(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.run(&[put(&dir), Arguments::Lookup(name("missing"))])?.fails_at(2, &[Status::NoEnt])
}

fn lookup_in_a_file(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    four.run(&[put(&file), Arguments::Lookup(name("name"))])?.fails_at(2, &[Status::NotDir])
}

fn link_to(four: &mut Four<'_>, dir: &[u8]) -> Verdict<Vec<u8>> {
    let text = Text::new(b"some/../where not there").unwrap_or(Text::EMPTY);
    let make = create_of(CreateType::Symlink(text), "link", Fattr::EMPTY);
    let reply = four.run(&[put(dir), make, Arguments::GetFh(())])?;
    Ok(ok4!(reply, GetFh).bytes().to_vec())
}

fn lookup_in_a_link(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let link = crate::finding::setup(link_to(&mut four, &dir), "to a link")?;
    four.run(&[put(&link), Arguments::Lookup(name("name"))])?.fails_at(2, &[Status::Symlink])
}

fn lookup_empty_name(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.run(&[put(&dir), Arguments::Lookup(name(""))])?.fails_at(2, &[Status::Inval])
}

fn name_too_long(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let most = four.attribute(&dir, attribute::MAXNAME, |of| of.max_name)?;
    let long = "n".repeat(most.min(4096) as usize + 1);
    four.run(&[put(&dir), Arguments::Lookup(name(&long))])?.fails_at(2, &[Status::NameTooLong])
}

fn create_directory(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let attributes = Attributes { mode: Some(0o750), ..Attributes::default() };
    let make = create_of(CreateType::Directory(()), "d", Fattr::of(&attributes));
    let reply = four.run(&[put(&dir), make, get(&[attribute::TYPE, attribute::MODE])])?;
    let of = ok4!(reply, GetAttr).attributes().unwrap_or_default();
    let seen = (of.kind, of.mode.map(|mode| mode & 0o777));
    expect(seen == (Some(FileType::Directory), Some(0o750)), "a directory of mode 750", || {
        format!("{seen:?}")
    })
}

fn create_exists(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.opened("name", "o", BOTH, 0)?;
    let make = create_of(CreateType::Directory(()), "name", Fattr::EMPTY);
    four.run(&[put(&dir), make])?.fails_at(2, &[Status::Exist])
}

fn create_regular(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let make = create_of(CreateType::Regular(()), "file", Fattr::EMPTY);
    four.run(&[put(&dir), make])?.fails_at(2, &[Status::BadType])
}

fn symlink(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let link = link_to(&mut four, &dir)?;
    let reply = four.run(&[put(&link), Arguments::ReadLink(())])?;
    let text = ok4!(reply, ReadLink);
    expect(text.bytes() == b"some/../where not there", "the text as it was", || {
        String::from_utf8_lossy(text.bytes()).into_owned()
    })
}

fn readlink_of_a_file(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    four.run(&[put(&file), Arguments::ReadLink(())])?.fails_at(2, &[Status::WrongType, Status::Inval])
}

fn change_info(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.folder(&dir, "d")?;
    let before = four.attribute(&dir, attribute::CHANGE, |of| of.change)?;
    let reply = four.run(&[put(&dir), Arguments::Remove(name("d"))])?;
    let told = ok4!(reply, Remove);
    let after = four.attribute(&dir, attribute::CHANGE, |of| of.change)?;
    expect(after != before, "another change attribute", || format!("twice {after}"))?;
    expect(
        told.after == after && (!told.atomic || told.before == before),
        format!("{before} to {after}"),
        || format!("{} to {}, atomic {}", told.before, told.after, told.atomic),
    )
}

fn remove_missing(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.run(&[put(&dir), Arguments::Remove(name("missing"))])?.fails_at(2, &[Status::NoEnt])
}

fn remove_full_directory(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let below = four.folder(&dir, "d")?;
    four.folder(&below, "inner")?;
    four.run(&[put(&dir), Arguments::Remove(name("d"))])?.fails_at(2, &[Status::NotEmpty])
}

fn rename(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let below = four.folder(&dir, "d")?;
    four.opened("old", "o", BOTH, 0)?;
    let rename = Arguments::Rename(Rename { from: name("old"), to: name("new") });
    four.run(&[put(&dir), Arguments::SaveFh(()), put(&below), rename])?.good()?;
    four.run(&[put(&dir), Arguments::Lookup(name("old"))])?.fails_at(2, &[Status::NoEnt])?;
    four.run(&[put(&below), Arguments::Lookup(name("new"))])?.good()
}

fn link(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, _) = four.opened("one", "o", BOTH, 0)?;
    let operations = [put(&file), Arguments::SaveFh(()), put(&dir), Arguments::Link(name("two"))];
    let reply = four.run(&operations)?;
    if reply.error() == Some(Status::NotSupp) {
        return not_applicable("the server has no hard links");
    }
    reply.good()?;
    let links = four.attribute(&file, attribute::NUMLINKS, |of| of.links)?;
    expect(links == 2, "2 links", || format!("{links} links"))
}

fn readdir(cookie: u64, verifier: Verifier, max_count: u32) -> Arguments<'static> {
    let requested = Bitmap::of(&[attribute::FILEID]);
    Arguments::ReadDir(ReadDir { cookie, verifier, dir_count: max_count, max_count, requested })
}

fn readdir_in_parts(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    for number in 0..FILES {
        four.folder(&dir, &format!("a directory with the number {number}"))?;
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let (mut cookie, mut verifier) = (0, Verifier::default());
    for _ in 0..4 * FILES {
        let reply = four.run(&[put(&dir), readdir(cookie, verifier, 800)])?;
        let part = ok4!(reply, ReadDir);
        for entry in part.entries.iter() {
            *counts.entry(String::from_utf8_lossy(entry.name.bytes()).into_owned()).or_default() += 1;
            cookie = entry.cookie;
        }
        verifier = part.verifier;
        if part.eof {
            let right = counts.len() == FILES && counts.values().all(|count| *count == 1);
            return expect(right, format!("{FILES} names, each once"), || {
                let twice = counts.values().filter(|count| **count > 1).count();
                format!("{} names, {twice} of them more than once", counts.len())
            });
        }
    }
    wrong("no end of the directory", "eof")
}

fn readdir_reserved_cookies(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.folder(&dir, "d")?;
    let reply = four.run(&[put(&dir), readdir(0, Verifier::default(), 4096)])?;
    let cookies: Vec<u64> = ok4!(reply, ReadDir).entries.iter().map(|entry| entry.cookie).collect();
    expect(cookies.iter().all(|cookie| *cookie > 2), "cookies above 2", || format!("{cookies:?}"))?;
    for cookie in [1, 2] {
        let reply = four.run(&[put(&dir), readdir(cookie, Verifier::default(), 4096)])?;
        reply.fails_at(2, &[Status::BadCookie])?;
    }
    Ok(())
}

/// The required attributes of RFC 8881 §5.6 that can be read.
const REQUIRED: [u32; 13] = [
    attribute::SUPPORTED_ATTRS,
    attribute::TYPE,
    attribute::FH_EXPIRE_TYPE,
    attribute::CHANGE,
    attribute::SIZE,
    attribute::LINK_SUPPORT,
    attribute::SYMLINK_SUPPORT,
    attribute::NAMED_ATTR,
    attribute::FSID,
    attribute::UNIQUE_HANDLES,
    attribute::LEASE_TIME,
    attribute::FILEHANDLE,
    attribute::SUPPATTR_EXCLCREAT,
];

fn supported_attributes(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let supported = four.attribute(&dir, attribute::SUPPORTED_ATTRS, |of| of.supported_attrs)?;
    let required = Bitmap::of(&REQUIRED);
    let missing = required.minus(supported);
    expect(missing.is_empty(), "every required attribute", || format!("without {missing:?}"))?;
    let reply = four.run(&[put(&dir), get(&REQUIRED)])?;
    let returned = ok4!(reply, GetAttr).set();
    expect(returned == required, format!("{required:?}"), || format!("{returned:?}"))
}

fn unsupported_attributes(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let supported = four.attribute(&dir, attribute::SUPPORTED_ATTRS, |of| of.supported_attrs)?;
    if supported.contains(attribute::ARCHIVE) {
        return not_applicable("the server has the attribute archive, by which this is tested");
    }
    let reply = four.run(&[put(&dir), get(&[attribute::TYPE, attribute::ARCHIVE])])?;
    let returned = ok4!(reply, GetAttr).set();
    expect(returned == Bitmap::of(&[attribute::TYPE]), "the type alone", || format!("{returned:?}"))?;
    let attributes = Attributes { archive: Some(true), ..Attributes::default() };
    let set = SetAttr { stateid: Stateid::ANONYMOUS, attributes: Fattr::of(&attributes) };
    four.run(&[put(&dir), Arguments::SetAttr(set)])?.fails_at(2, &[Status::AttrNotSupp])
}

fn getattr_write_only(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.run(&[put(&dir), get(&[attribute::TIME_MODIFY_SET])])?.fails_at(2, &[Status::Inval])
}

fn setattr_read_only(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let attributes = Attributes { fileid: Some(1), ..Attributes::default() };
    let set = SetAttr { stateid: Stateid::ANONYMOUS, attributes: Fattr::of(&attributes) };
    four.run(&[put(&dir), Arguments::SetAttr(set)])?.fails_at(2, &[Status::Inval])
}

fn setattr_mode(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    let before = four.attribute(&file, attribute::CHANGE, |of| of.change)?;
    let attributes = Attributes { mode: Some(0o604), ..Attributes::default() };
    let set = SetAttr { stateid: Stateid::ANONYMOUS, attributes: Fattr::of(&attributes) };
    let reply = four.run(&[put(&file), Arguments::SetAttr(set)])?;
    let told = ok4!(reply, SetAttr);
    expect(told.contains(attribute::MODE), "mode among those set", || format!("{told:?}"))?;
    let mode = four.attribute(&file, attribute::MODE, |of| of.mode)?;
    let after = four.attribute(&file, attribute::CHANGE, |of| of.change)?;
    expect(mode & 0o777 == 0o604 && after != before, "mode 604 and another change attribute", || {
        format!("mode {mode:o}, change {before} and {after}")
    })
}

fn sized(size: u64) -> Attributes<'static> {
    Attributes { size: Some(size), ..Attributes::default() }
}

fn verify(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    four.run(&[put(&file), Arguments::Verify(Fattr::of(&sized(5)))])?.good()?;
    four.run(&[put(&file), Arguments::Verify(Fattr::of(&sized(6)))])?.fails_at(2, &[Status::NotSame])
}

fn nverify(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    four.run(&[put(&file), Arguments::NVerify(Fattr::of(&sized(6)))])?.good()?;
    four.run(&[put(&file), Arguments::NVerify(Fattr::of(&sized(5)))])?.fails_at(2, &[Status::Same])
}

fn filehandle_attribute(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let found =
        four.attribute(&dir, attribute::FILEHANDLE, |of| of.filehandle.map(|it| it.bytes().to_vec()))?;
    expect(found == dir, "the handle of the directory", || format!("{found:02x?}"))
}

fn access(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    let (read, modify) = (0x1, 0x4);
    for asked in [read, read | modify] {
        let reply = four.run(&[put(&file), Arguments::Access(asked)])?;
        let seen = ok4!(reply, Access);
        expect(seen.access == asked && seen.supported & asked == asked, format!("bits {asked:#x}"), || {
            format!("bits {:#x} of the supported {:#x}", seen.access, seen.supported)
        })?;
    }
    Ok(())
}

fn mknod_socket(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let make = create_of(CreateType::Socket(()), "socket", Fattr::EMPTY);
    let reply = four.run(&[put(&dir), make, get(&[attribute::TYPE])])?;
    if matches!(reply.error(), Some(Status::BadType | Status::Perm)) {
        return Ok(());
    }
    let kind = ok4!(reply, GetAttr).attributes().ok().and_then(|of| of.kind);
    expect(kind == Some(FileType::Socket), "a socket", || format!("{kind:?}"))
}
