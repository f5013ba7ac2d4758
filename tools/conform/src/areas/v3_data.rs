//! Version 3: READ, WRITE and COMMIT (RFC 1813 §3.3.6, §3.3.7, §3.3.21).

use nfs::v3::{Arguments, Commit, SetAttr, SetAttributes, SetTime, Stable, Status, Time};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, setup, wrong};
use crate::share::{Lab, Three, fh, ok3};

const D: Area = Area::V3Data;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        D,
        "read-what-was-written",
        "RFC 1813 §3.3.6, §3.3.7",
        "READ returns the bytes that WRITE wrote, at their offsets.",
        "A server that returns others loses data.",
        read_what_was_written,
    ),
    Check::nfs(
        D,
        "read-at-the-end",
        "RFC 1813 §3.3.6",
        "A READ that reaches the end returns the bytes up to it, and eof.",
        "A client finds the end of a growing file by eof.",
        read_at_the_end,
    ),
    Check::nfs(
        D,
        "read-beyond-the-end",
        "RFC 1813 §3.3.6",
        "A READ beyond the end succeeds with no bytes, and eof.",
        "A client would report an I/O error at the end of a file.",
        read_beyond_the_end,
    ),
    Check::nfs(
        D,
        "read-within",
        "RFC 1813 §3.3.6",
        "A READ that ends before the end of the file has no eof.",
        "A client would lose the rest of the file.",
        read_within,
    ),
    Check::nfs(
        D,
        "read-nothing",
        "RFC 1813 §3.3.6",
        "A READ of 0 bytes succeeds with no bytes.",
        "RFC 1813 lets clients probe access this way.",
        read_nothing,
    ),
    Check::nfs(
        D,
        "read-of-a-directory",
        "RFC 1813 §3.3.6",
        "READ of a directory fails with ISDIR or INVAL.",
        "A client would take the server's inner form of a directory for a file.",
        read_of_a_directory,
    ),
    Check::nfs(
        D,
        "write-of-a-directory",
        "RFC 1813 §3.3.7",
        "WRITE of a directory fails with ISDIR or INVAL.",
        "A directory that is written to is destroyed.",
        write_of_a_directory,
    ),
    Check::nfs(
        D,
        "holes-are-zero",
        "RFC 1813 §3.3.7, §3.3.6",
        "Bytes before a WRITE beyond the end are zero.",
        "Other bytes would be someone else's old data.",
        holes_are_zero,
    ),
    Check::nfs(
        D,
        "file-sync",
        "RFC 1813 §3.3.7",
        "A WRITE of FILE_SYNC is committed as FILE_SYNC.",
        "The client would drop its copy of data that is not stable.",
        |lab| committed(lab, Stable::FileSync),
    ),
    Check::nfs(
        D,
        "data-sync",
        "RFC 1813 §3.3.7",
        "A WRITE of DATA_SYNC is committed as DATA_SYNC or FILE_SYNC.",
        "The client would drop its copy of data that is not stable.",
        |lab| committed(lab, Stable::DataSync),
    ),
    Check::nfs(
        D,
        "unstable-is-seen",
        "RFC 1813 §3.3.7",
        "An UNSTABLE WRITE succeeds, and READ returns its bytes before a COMMIT.",
        "Another client would read old data after the write was answered.",
        unstable_is_seen,
    ),
    Check::nfs(
        D,
        "commit-verifier",
        "RFC 1813 §3.3.7, §3.3.21",
        "WRITE and COMMIT return one verifier while the server does not restart.",
        "The client sends all data again when the verifier changes.",
        commit_verifier,
    ),
    Check::nfs(
        D,
        "write-grows-the-file",
        "RFC 1813 §3.3.7, §3.3.1",
        "A WRITE at the end makes the file longer, and its mtime later.",
        "Other clients see changes by size and mtime.",
        write_grows_the_file,
    ),
    Check::nfs(
        D,
        "write-consistency-data",
        "RFC 1813 §2.6, §3.3.7",
        "Attributes after a WRITE are those that GETATTR returns; those before, if there are any, held before.",
        "Clients keep their caches by these attributes.",
        write_consistency_data,
    ),
    Check::nfs(
        D,
        "write-of-nothing",
        "RFC 1813 §3.3.7",
        "A WRITE of 0 bytes succeeds and writes none.",
        "RFC 1813 says that it succeeds, subject to permissions.",
        write_of_nothing,
    ),
    Check::nfs(
        D,
        "largest-write",
        "RFC 1813 §3.3.19, §3.3.7",
        "A WRITE of wtpref bytes is taken, and a READ of rtpref bytes returns them.",
        "Clients use these sizes for all data.",
        largest_write,
    ),
    Check::nfs(
        D,
        "stale-handle",
        "RFC 1813 §2.6, §3.3.6",
        "READ of a file that was removed fails with STALE.",
        "The client would read another file by an old handle.",
        stale_handle,
    ),
];

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn read_what_was_written(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let data = text(10_000);
    let file = three.filled(&dir, "file", &data)?;
    three.write(&file, 5000, b"in the middle")?;
    let reply = three.call_read(&file, 4990, 100)?;
    let _ = ok3!(reply, Read);
    let wanted = [&data[4990..5000], b"in the middle", &data[5013..5090]].concat();
    expect(reply.payload()? == wanted, "the bytes written", || "other bytes".to_owned())
}

/// A READ of a file of 1000 bytes: how many bytes, and eof.
fn read_of_thousand(lab: &Lab, offset: u64, count: u32, wanted: (usize, bool)) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", &text(1000))?;
    let reply = three.call_read(&file, offset, count)?;
    let read = ok3!(reply, Read);
    let got = (reply.payload()?.len(), read.eof);
    let right = got == wanted && read.count as usize == wanted.0;
    expect(right, format!("{} bytes, eof {}", wanted.0, wanted.1), || {
        format!("count {}, {} bytes, eof {}", read.count, got.0, got.1)
    })
}

fn read_at_the_end(lab: &Lab) -> Verdict {
    read_of_thousand(lab, 900, 200, (100, true))
}

fn read_beyond_the_end(lab: &Lab) -> Verdict {
    read_of_thousand(lab, 5000, 200, (0, true))
}

fn read_within(lab: &Lab) -> Verdict {
    read_of_thousand(lab, 100, 200, (200, false))
}

fn read_nothing(lab: &Lab) -> Verdict {
    read_of_thousand(lab, 100, 0, (0, false))
}

fn read_of_a_directory(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    three.call_read(&dir, 0, 100)?.fails(&[Status::IsDir, Status::Inval])
}

fn write_of_a_directory(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    three.call_write(&dir, 0, b"data", Stable::FileSync)?.fails(&[Status::IsDir, Status::Inval])
}

fn holes_are_zero(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", b"start")?;
    three.write(&file, 9000, b"end")?;
    let content = [&b"start"[..], &[0; 8995], b"end"].concat();
    three.expect_content(&file, &content)
}

fn committed(lab: &Lab, stable: Stable) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.file(&dir, "file")?;
    let reply = three.call_write(&file, 0, b"data", stable)?;
    let committed = ok3!(reply, Write).committed;
    expect(committed >= stable, format!("{stable:?} or more"), || format!("{committed:?}"))
}

fn unstable_is_seen(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.file(&dir, "file")?;
    let data = text(20_000);
    let reply = three.call_write(&file, 0, &data, Stable::Unstable)?;
    let count = ok3!(reply, Write).count as usize;
    let written = data.get(..count).filter(|written| !written.is_empty());
    let Some(written) = written else { return wrong(format!("{count} bytes"), "1 to 20000 bytes") };
    three.expect_content(&file, written)
}

fn commit_verifier(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.file(&dir, "file")?;
    let mut seen = Vec::new();
    for stable in [Stable::Unstable, Stable::FileSync] {
        let reply = three.call_write(&file, 0, b"data", stable)?;
        seen.push(ok3!(reply, Write).verifier);
    }
    let reply = three.call(&Arguments::Commit(Commit { file: fh(&file), offset: 0, count: 0 }))?;
    seen.push(ok3!(reply, Commit).verifier);
    expect(seen.iter().all(|one| Some(one) == seen.first()), "one verifier", || format!("{seen:02x?}"))
}

fn write_grows_the_file(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", &text(100))?;
    // Clocks are coarse: after an old time every change shows.
    let old = Time { seconds: 1000, nanoseconds: 0 };
    let attributes = SetAttributes { mtime: SetTime::Client(old), ..SetAttributes::default() };
    let aged = three.call(&Arguments::SetAttr(SetAttr { object: fh(&file), attributes, guard: None }));
    setup(aged.and_then(|reply| reply.good()), "to a file with an old mtime")?;
    let reply = three.call_write(&file, 100, &text(50), Stable::FileSync)?;
    reply.good()?;
    let reply = three.call(&Arguments::GetAttr(fh(&file)))?;
    let after = ok3!(reply, GetAttr);
    expect(after.size == 150 && after.mtime > old, "150 bytes and a later mtime", || {
        format!("{} bytes, mtime {:?} after {old:?}", after.size, after.mtime)
    })
}

fn write_consistency_data(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", &text(100))?;
    let before = three.attributes(&file)?;
    let reply = three.call_write(&file, 100, &text(50), Stable::FileSync)?;
    let wcc = ok3!(reply, Write).file;
    let after = three.attributes(&file)?;
    if let Some(told) = wcc.before {
        expect(told.size == before.size && told.mtime == before.mtime, format!("{before:?} before"), || {
            format!("{told:?}")
        })?;
    }
    match wcc.after {
        Some(told) => expect(
            (told.size, told.mtime, told.ctime, told.fileid)
                == (after.size, after.mtime, after.ctime, after.fileid),
            format!("{after:?}"),
            || format!("{told:?}"),
        ),
        None => crate::finding::should(false, "attributes after the WRITE", || "none".to_owned()),
    }
}

fn write_of_nothing(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", b"12345")?;
    let reply = three.call_write(&file, 2, b"", Stable::FileSync)?;
    let count = ok3!(reply, Write).count;
    expect(count == 0, "0 bytes", || format!("{count} bytes"))?;
    three.expect_content(&file, b"12345")
}

fn largest_write(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.file(&dir, "file")?;
    let reply = three.call(&Arguments::FsInfo(fh(&file)))?;
    let info = ok3!(reply, FsInfo);
    let sizes = format!("rtpref {}, wtpref {}", info.read_preferred, info.write_preferred);
    let usable = |size: u32, most: u32| size > 0 && size <= most;
    expect(
        usable(info.read_preferred, info.read_max) && usable(info.write_preferred, info.write_max),
        "preferred sizes from 1 byte to the maximum",
        || sizes.clone(),
    )?;
    // This connection takes records of up to 4 MiB.
    let size = info.write_preferred.min(info.read_preferred).min(2 << 20) as usize;
    let data = text(size);
    let reply = three.call_write(&file, 0, &data, Stable::FileSync)?;
    let count = ok3!(reply, Write).count as usize;
    expect(count > 0 && count <= size, format!("1 to {size} bytes"), || format!("{count} bytes"))?;
    let reply = three.call_read(&file, 0, size as u32)?;
    let _ = ok3!(reply, Read);
    let back = reply.payload()?;
    expect(!back.is_empty() && data.starts_with(back), "the bytes written", || {
        format!("{} bytes, others", back.len())
    })
}

fn stale_handle(lab: &Lab) -> Verdict {
    let mut three = Three::new(lab)?;
    let dir = three.dir.clone();
    let file = three.filled(&dir, "file", b"data")?;
    three.call(&Arguments::Remove(crate::share::at(&dir, "file")))?.good()?;
    three.call_read(&file, 0, 10)?.fails(&[Status::Stale])
}
