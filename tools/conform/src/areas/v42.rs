//! Version 4.2 (RFC 7862 §15) and extended attributes (RFC 8276 §8). Every operation is optional:
//! NOTSUPP is no fault.

use nfs::v4::{
    Allocate, Arguments, CloneRange, Content, CopyOutcome, CopyRange, ListXattrs, OutcomeOr, Results, Seek,
    SetXattr, SetXattrOption, Stateid, Status, Text, attribute,
};
use rpc::xdr::List;

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable, wrong};
use crate::share::{BOTH, Four, Lab, READ, Reply4, name, ok4, put};

const V: Area = Area::V42;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        V,
        "operations-of-4-2-in-4-1",
        "RFC 8881 §2.7, RFC 7862 §15",
        "SEEK in a COMPOUND of minor version 1 fails with OP_ILLEGAL or NOTSUPP.",
        "A client of 4.1 could not tell what the server has.",
        operations_of_4_2_in_4_1,
    ),
    Check::nfs(
        V,
        "allocate",
        "RFC 7862 §15.1",
        "ALLOCATE makes a file longer, and keeps what is there.",
        "fallocate on clients relies on it.",
        allocate,
    ),
    Check::nfs(
        V,
        "allocate-through-a-read-open",
        "RFC 7862 §15.1.3",
        "ALLOCATE through an open for reading fails with OPENMODE.",
        "A file could be changed without a check.",
        allocate_through_a_read_open,
    ),
    Check::nfs(
        V,
        "deallocate",
        "RFC 7862 §15.4",
        "DEALLOCATE makes a range read as zeros, and keeps the size.",
        "Other bytes would be someone else's old data.",
        deallocate,
    ),
    Check::nfs(
        V,
        "seek-hole",
        "RFC 7862 §15.11",
        "SEEK for a hole in a file without one finds the end.",
        "cp on clients would lose the end of a file.",
        seek_hole,
    ),
    Check::nfs(
        V,
        "seek-data",
        "RFC 7862 §15.11",
        "SEEK for data finds it at or before its first byte, and not behind it.",
        "cp on clients would leave out data.",
        seek_data,
    ),
    Check::nfs(
        V,
        "seek-beyond-the-end",
        "RFC 7862 §15.11.3",
        "SEEK from beyond the end fails with NXIO.",
        "lseek on clients relies on it.",
        seek_beyond_the_end,
    ),
    Check::nfs(
        V,
        "copy",
        "RFC 7862 §15.2",
        "A synchronous COPY within the server copies the bytes.",
        "copy_file_range on clients relies on it.",
        copy,
    ),
    Check::nfs(
        V,
        "clone",
        "RFC 7862 §15.13",
        "CLONE makes the destination the same as the source.",
        "cp --reflink on clients relies on it.",
        clone,
    ),
    Check::nfs(
        V,
        "xattrs",
        "RFC 8276 §8.4",
        "GETXATTR returns what SETXATTR set, LISTXATTRS lists it, and REMOVEXATTR removes it.",
        "Attributes of users would be lost.",
        xattrs,
    ),
    Check::nfs(
        V,
        "xattr-create-and-replace",
        "RFC 8276 §8.4.2",
        "SETXATTR to create fails with EXIST if it is there, to replace with NOXATTR if not.",
        "setxattr on clients has these flags.",
        xattr_create_and_replace,
    ),
    Check::nfs(
        V,
        "xattr-missing",
        "RFC 8276 §8.4.1, §8.4.4",
        "GETXATTR and REMOVEXATTR of an attribute that is not there fail with NOXATTR.",
        "Programs tell a missing attribute from an empty one.",
        xattr_missing,
    ),
    Check::nfs(
        V,
        "xattr-support",
        "RFC 8276 §8.2.1",
        "The attribute xattr_support says whether SETXATTR is served.",
        "Clients do not try what the server says that it lacks.",
        xattr_support,
    ),
];

/// A client, if the server has version 4.2.
fn begin(lab: &Lab) -> Verdict<Four<'_>> {
    let four = Four::new(lab)?;
    if four.minor < 2 { not_applicable("the server has no version 4.2") } else { Ok(four) }
}

/// Ends the check if the server lacks the operation.
fn served(reply: Reply4, operation: &str) -> Verdict<Reply4> {
    match reply.error() {
        Some(Status::NotSupp | Status::UnionNotSupp) => {
            not_applicable(format!("the server has no {operation}"))
        }
        _ => Ok(reply),
    }
}

fn seek_of(stateid: Stateid, offset: u64, what: Content) -> Arguments<'static> {
    Arguments::Seek(Seek { stateid, offset, what })
}

fn operations_of_4_2_in_4_1(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    four.minor = 1;
    let reply = four.run(&[put(&file), seek_of(stateid, 0, Content::Data)]);
    four.minor = 2;
    reply?.fails(&[Status::OpIllegal, Status::NotSupp])
}

fn allocate(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    let what = Arguments::Allocate(Allocate { stateid, offset: 3, length: 5 });
    served(four.run(&[put(&file), what])?, "ALLOCATE")?.good()?;
    four.expect_content(&file, b"12345\0\0\0")
}

fn allocate_through_a_read_open(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.opened("file", "o", READ, 0)?;
    let what = Arguments::Allocate(Allocate { stateid, offset: 0, length: 5 });
    served(four.run(&[put(&file), what])?, "ALLOCATE")?.fails_at(2, &[Status::OpenMode])
}

fn deallocate(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.filled("file", b"123456789")?;
    let what = Arguments::Deallocate(Allocate { stateid, offset: 3, length: 4 });
    served(four.run(&[put(&file), what])?, "DEALLOCATE")?.good()?;
    four.expect_content(&file, b"123\0\0\0\089")
}

fn seek_hole(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    let reply = served(four.run(&[put(&file), seek_of(stateid, 0, Content::Hole)])?, "SEEK")?;
    let of = ok4!(reply, Seek);
    expect(of.offset == 5, "offset 5, the end", || format!("{of:?}"))
}

fn seek_data(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.opened("file", "o", BOTH, 0)?;
    let at = 1 << 20;
    let written = four.run_with(&[put(&file), crate::share::write(stateid, at, 4)], b"data");
    crate::finding::setup(written.and_then(|reply| reply.good()), "to written data")?;
    let reply = served(four.run(&[put(&file), seek_of(stateid, 0, Content::Data)])?, "SEEK")?;
    let of = ok4!(reply, Seek);
    expect(of.offset <= at && !of.eof, format!("an offset up to {at}"), || format!("{of:?}"))?;
    let reply = four.run(&[put(&file), seek_of(stateid, at + 1, Content::Data)])?;
    let of = ok4!(reply, Seek);
    expect(of.offset == at + 1, format!("offset {}, which is data", at + 1), || format!("{of:?}"))
}

fn seek_beyond_the_end(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    let reply = four.run(&[put(&file), seek_of(stateid, 100, Content::Data)])?;
    served(reply, "SEEK")?.fails_at(2, &[Status::NxIo])
}

/// The operations that name a source, then a destination.
fn from_to<'a>(source: &'a [u8], destination: &'a [u8], what: Arguments<'a>) -> [Arguments<'a>; 4] {
    [put(source), Arguments::SaveFh(()), put(destination), what]
}

fn copy(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (one, source) = four.filled("one", b"some text")?;
    let (two, destination) = four.opened("two", "o", BOTH, 0)?;
    let what = Arguments::Copy(CopyRange {
        source,
        destination,
        source_offset: 5,
        destination_offset: 0,
        count: 4,
        consecutive: true,
        synchronous: true,
        source_servers: List::EMPTY,
    });
    let reply = served(four.run(&from_to(&one, &two, what))?, "COPY")?;
    let outcome: Option<CopyOutcome> = reply.results()?.into_iter().rev().find_map(|one| match one {
        Results::Copy(outcome) => Some(outcome),
        _ => None,
    });
    let count = match outcome {
        Some(OutcomeOr::Ok(of)) => of.response.count,
        Some(OutcomeOr::Or(_)) => return not_applicable("the server copies only asynchronously"),
        _ => return reply.refused(),
    };
    expect((1..=4).contains(&count), "1 to 4 bytes", || format!("{count} bytes"))?;
    four.expect_content(&two, b"text".get(..count as usize).unwrap_or_default())
}

fn clone(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (one, source) = four.filled("one", b"some text")?;
    let (two, destination) = four.opened("two", "o", BOTH, 0)?;
    let (source_offset, destination_offset, count) = (0, 0, 0);
    let what = CloneRange { source, destination, source_offset, destination_offset, count };
    let reply = served(four.run(&from_to(&one, &two, Arguments::Clone(what)))?, "CLONE")?;
    reply.good()?;
    four.expect_content(&two, b"some text")
}

fn set<'a>(option: SetXattrOption, of: &'a str, value: &'a [u8]) -> Arguments<'a> {
    let value = Text::new(value).unwrap_or(Text::EMPTY);
    Arguments::SetXattr(SetXattr { option, name: name(of), value })
}

fn xattrs(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    let make = set(SetXattrOption::Either, "conform", b"a value");
    served(four.run(&[put(&file), make])?, "SETXATTR")?.good()?;
    let reply = four.run(&[put(&file), Arguments::GetXattr(name("conform"))])?;
    let value = ok4!(reply, GetXattr);
    expect(value.bytes() == b"a value", "the value that was set", || format!("{:?}", value.bytes()))?;
    let list = Arguments::ListXattrs(ListXattrs { cookie: 0, max_count: 4096 });
    let reply = four.run(&[put(&file), list])?;
    let found = ok4!(reply, ListXattrs).names.iter().any(|name| name.bytes() == b"conform");
    expect(found, "the name in the list", || "a list without it".to_owned())?;
    four.run(&[put(&file), Arguments::RemoveXattr(name("conform"))])?.good()?;
    four.run(&[put(&file), Arguments::GetXattr(name("conform"))])?.fails_at(2, &[Status::NoXattr])
}

fn xattr_create_and_replace(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    let replace = set(SetXattrOption::Replace, "conform", b"1");
    let reply = served(four.run(&[put(&file), replace])?, "SETXATTR")?;
    reply.fails_at(2, &[Status::NoXattr])?;
    let create = || set(SetXattrOption::Create, "conform", b"2");
    four.run(&[put(&file), create()])?.good()?;
    four.run(&[put(&file), create()])?.fails_at(2, &[Status::Exist])
}

fn xattr_missing(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    let reply = four.run(&[put(&file), Arguments::GetXattr(name("missing"))])?;
    served(reply, "GETXATTR")?.fails_at(2, &[Status::NoXattr])?;
    four.run(&[put(&file), Arguments::RemoveXattr(name("missing"))])?.fails_at(2, &[Status::NoXattr])
}

fn xattr_support(lab: &Lab) -> Verdict {
    let mut four = begin(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    let supported = four.attribute(&file, attribute::SUPPORTED_ATTRS, |of| of.supported_attrs)?;
    let told = supported.contains(attribute::XATTR_SUPPORT)
        && four.attribute(&file, attribute::XATTR_SUPPORT, |of| of.xattr_support)?;
    let reply = four.run(&[put(&file), set(SetXattrOption::Either, "conform", b"1")])?;
    match (told, reply.error()) {
        (true, None) | (false, Some(_)) => Ok(()),
        _ => wrong(format!("xattr_support {told}, {}", reply.told()), "xattr_support as SETXATTR shows it"),
    }
}
