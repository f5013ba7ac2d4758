//! Version 4: READ, WRITE and COMMIT (RFC 8881 §18.3, §18.22, §18.32).

use nfs::v4::{Arguments, Attributes, Commit, Fattr, SetAttr, Stable, Stateid, Status, Write, attribute};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect};
use crate::share::{BOTH, Four, Lab, READ, WRITE, ok4, put, read, write};

const D: Area = Area::V4Data;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        D,
        "read-what-was-written",
        "RFC 8881 §18.22, §18.32",
        "READ returns the bytes that WRITE wrote, and eof at the end.",
        "A server that returns others loses data.",
        read_what_was_written,
    ),
    Check::nfs(
        D,
        "read-beyond-the-end",
        "RFC 8881 §18.22.3",
        "READ beyond the end succeeds with no bytes, and eof.",
        "A client would report an I/O error at the end of a file.",
        read_beyond_the_end,
    ),
    Check::nfs(
        D,
        "read-of-a-directory",
        "RFC 8881 §18.22.3",
        "READ of a directory fails with ISDIR.",
        "A client would take the server's inner form of a directory for a file.",
        read_of_a_directory,
    ),
    Check::nfs(
        D,
        "anonymous-stateid",
        "RFC 8881 §8.2.3, §9.1.4.2",
        "READ and WRITE with the anonymous stateid succeed where no open denies them.",
        "Clients that do not open a file use it.",
        anonymous_stateid,
    ),
    Check::nfs(
        D,
        "bypass-stateid",
        "RFC 8881 §8.2.3",
        "READ with the stateid of all ones succeeds.",
        "Backup programs read with it past locks.",
        bypass_stateid,
    ),
    Check::nfs(
        D,
        "anonymous-stateid-denied",
        "RFC 8881 §8.2.3, §9.7",
        "WRITE with the anonymous stateid fails with LOCKED or SHARE_DENIED where an open denies it.",
        "Programs that deny others would lose data.",
        anonymous_stateid_denied,
    ),
    Check::nfs(
        D,
        "write-through-a-read-open",
        "RFC 8881 §18.32.3, §9.1.2",
        "WRITE through an open for reading fails with OPENMODE.",
        "A file could be changed without a check.",
        write_through_a_read_open,
    ),
    Check::nfs(
        D,
        "read-through-a-write-open",
        "RFC 8881 §18.22.3, §9.1.2",
        "READ through an open for writing succeeds, or fails with OPENMODE.",
        "Clients read the rest of a block before they write it.",
        read_through_a_write_open,
    ),
    Check::nfs(
        D,
        "commit-verifier",
        "RFC 8881 §18.3, §18.32",
        "WRITE and COMMIT return one verifier while the server does not restart.",
        "The client sends all data again when the verifier changes.",
        commit_verifier,
    ),
    Check::nfs(
        D,
        "file-sync",
        "RFC 8881 §18.32.3",
        "A WRITE of FILE_SYNC4 is committed as FILE_SYNC4.",
        "The client would drop its copy of data that is not stable.",
        file_sync,
    ),
    Check::nfs(
        D,
        "write-changes-change",
        "RFC 8881 §5.8.1.4, §18.32",
        "A WRITE changes the size and the change attribute.",
        "Other clients would keep old data in their caches.",
        write_changes_change,
    ),
    Check::nfs(
        D,
        "set-size",
        "RFC 8881 §18.30.3",
        "SETATTR of the size with an open's stateid cuts the file, or fills it with zeros.",
        "Other bytes would be someone else's old data.",
        set_size,
    ),
    Check::nfs(
        D,
        "set-size-through-a-read-open",
        "RFC 8881 §18.30.3",
        "SETATTR of the size through an open for reading fails with OPENMODE.",
        "A file could be changed without a check.",
        set_size_through_a_read_open,
    ),
];

fn read_what_was_written(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.filled("file", b"some text")?;
    let reply = four.run(&[put(&file), read(stateid, 5, 100)])?;
    let eof = ok4!(reply, Read).eof;
    expect(reply.data()? == b"text" && eof, "the 4 bytes from the fifth on, and eof", || {
        format!("{} bytes, eof {eof}", reply.data().map_or(0, |data| data.len()))
    })
}

fn read_beyond_the_end(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    let reply = four.run(&[put(&file), read(stateid, 5000, 10)])?;
    let of = ok4!(reply, Read);
    expect(of.eof && of.length == 0, "no bytes, and eof", || format!("{of:?}"))
}

fn read_of_a_directory(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    four.run(&[put(&dir), read(Stateid::ANONYMOUS, 0, 10)])?.fails_at(2, &[Status::IsDir])
}

fn anonymous_stateid(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    four.run_with(&[put(&file), write(Stateid::ANONYMOUS, 5, 3)], b"678")?.good()?;
    four.expect_content(&file, b"12345678")
}

fn bypass_stateid(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    let reply = four.run(&[put(&file), read(Stateid::BYPASS, 0, 10)])?;
    let _ = ok4!(reply, Read);
    expect(reply.data()? == b"12345", "the file's 5 bytes", || "other bytes".to_owned())
}

fn anonymous_stateid_denied(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 2)?;
    let reply = four.run_with(&[put(&file), write(Stateid::ANONYMOUS, 0, 4)], b"data")?;
    reply.fails_at(2, &[Status::Locked, Status::ShareDenied])
}

fn write_through_a_read_open(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.opened("file", "o", READ, 0)?;
    four.run_with(&[put(&file), write(stateid, 0, 4)], b"data")?.fails_at(2, &[Status::OpenMode])
}

fn read_through_a_write_open(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.opened("file", "o", WRITE, 0)?;
    let reply = four.run(&[put(&file), read(stateid, 0, 4)])?;
    match reply.error() {
        None => reply.good(),
        Some(_) => reply.fails_at(2, &[Status::OpenMode]),
    }
}

fn commit_verifier(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.opened("file", "o", BOTH, 0)?;
    let stable = Stable::Unstable;
    let unstable = Arguments::Write(Write { stateid, offset: 0, stable, length: 4 });
    let reply = four.run_with(&[put(&file), unstable], b"data")?;
    let written = ok4!(reply, Write).verifier;
    let reply = four.run(&[put(&file), Arguments::Commit(Commit { offset: 0, count: 0 })])?;
    let committed = ok4!(reply, Commit);
    expect(written == committed, "one verifier", || format!("{written:?} and {committed:?}"))
}

fn file_sync(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.opened("file", "o", BOTH, 0)?;
    let reply = four.run_with(&[put(&file), write(stateid, 0, 4)], b"data")?;
    let of = ok4!(reply, Write);
    expect(of.committed == Stable::FileSync && of.count == 4, "4 bytes, FileSync", || format!("{of:?}"))
}

fn write_changes_change(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    let before = four.attribute(&file, attribute::CHANGE, |of| of.change)?;
    four.run_with(&[put(&file), write(stateid, 5, 4)], b"6789")?.good()?;
    let after = four.attribute(&file, attribute::CHANGE, |of| of.change)?;
    let size = four.attribute(&file, attribute::SIZE, |of| of.size)?;
    expect(after != before && size == 9, "9 bytes and another change attribute", || {
        format!("{size} bytes, change {before} and {after}")
    })
}

fn set_size(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    for (size, content) in [(3, &b"123"[..]), (8, b"123\0\0\0\0\0")] {
        let attributes = Attributes { size: Some(size), ..Attributes::default() };
        let set = SetAttr { stateid, attributes: Fattr::of(&attributes) };
        four.run(&[put(&file), Arguments::SetAttr(set)])?.good()?;
        four.expect_content(&file, content)?;
    }
    Ok(())
}

fn set_size_through_a_read_open(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, stateid) = four.opened("file", "o", READ, 0)?;
    let attributes = Attributes { size: Some(3), ..Attributes::default() };
    let set = SetAttr { stateid, attributes: Fattr::of(&attributes) };
    four.run(&[put(&file), Arguments::SetAttr(set)])?.fails_at(2, &[Status::OpenMode])
}
