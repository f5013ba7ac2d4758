//! Version 4: COMPOUND, filehandles, and the current stateid (RFC 8881 §16.2).

use nfs::v4::{Arguments, Stateid, Status, attribute};

use crate::check::{Area, Check};
use crate::finding::{Finding, Verdict, expect, should};
use crate::share::{BOTH, Four, Lab, alone, get, name, ok4, open, put, read, write};

const C: Area = Area::V4Compound;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        C,
        "minor-version",
        "RFC 8881 §16.2.3, §2.7",
        "COMPOUND of minor version 99 fails with MINOR_VERS_MISMATCH, without results.",
        "A client could not fall back to a version that both have.",
        minor_version,
    ),
    Check::nfs(
        C,
        "illegal-operation",
        "RFC 8881 §18.49, §16.2.3",
        "An undefined operation fails with OP_ILLEGAL, as the result of ILLEGAL.",
        "A client could not tell a missing operation from a failed one.",
        illegal_operation,
    ),
    Check::nfs(
        C,
        "bad-xdr",
        "RFC 8881 §15.1.1.1",
        "An operation whose arguments are cut off fails with BADXDR, or the call with GARBAGE_ARGS.",
        "A server that reads on would act on bytes that no client sent.",
        bad_xdr,
    ),
    Check::nfs(
        C,
        "stops-at-the-first-error",
        "RFC 8881 §16.2.3",
        "Operations behind one that failed are not executed and have no results.",
        "Later operations rely on earlier ones.",
        stops_at_the_first_error,
    ),
    Check::nfs(
        C,
        "no-filehandle",
        "RFC 8881 §16.2.3.1.1, §15.1.2.5",
        "Operations that need the current filehandle fail with NOFILEHANDLE without one.",
        "They would act on a file that nobody named.",
        no_filehandle,
    ),
    Check::nfs(
        C,
        "nothing-saved",
        "RFC 8881 §18.27.3",
        "RESTOREFH without a saved filehandle fails with NOFILEHANDLE.",
        "Later operations would act on a file that nobody named.",
        nothing_saved,
    ),
    Check::nfs(
        C,
        "save-and-restore",
        "RFC 8881 §18.27, §18.28",
        "RESTOREFH brings back the filehandle that SAVEFH saved.",
        "RENAME and LINK use both.",
        save_and_restore,
    ),
    Check::nfs(
        C,
        "root",
        "RFC 8881 §18.21, §7.3",
        "PUTROOTFH leads to a directory.",
        "Every path of the client begins there.",
        root,
    ),
    Check::nfs(
        C,
        "above-the-root",
        "RFC 8881 §18.14.3",
        "LOOKUPP from the root fails with NOENT.",
        "A client would leave what is exported.",
        above_the_root,
    ),
    Check::nfs(
        C,
        "lookupp",
        "RFC 8881 §18.14",
        "LOOKUPP from a directory leads to its parent.",
        "getcwd on clients relies on it.",
        lookupp,
    ),
    Check::nfs(
        C,
        "lookupp-from-a-file",
        "RFC 8881 §18.14.3",
        "LOOKUPP from a file fails with NOTDIR.",
        "A file may have names in many directories.",
        lookupp_from_a_file,
    ),
    Check::nfs(
        C,
        "bad-handle",
        "RFC 8881 §18.19, §15.1.2.1",
        "PUTFH of a changed handle, or the operation behind it, fails with BADHANDLE or STALE.",
        "A client could guess its way out of the export.",
        bad_handle,
    ),
    Check::nfs(
        C,
        "current-stateid",
        "RFC 8881 §16.2.3.1.2",
        "WRITE and READ with the current stateid use that of the OPEN before.",
        "Clients open, write and close in one request.",
        current_stateid,
    ),
    Check::nfs(
        C,
        "current-stateid-without-one",
        "RFC 8881 §16.2.3.1.2, §8.2.3",
        "READ with the current stateid fails with BAD_STATEID if no operation has set it.",
        "The READ would use the state of another request.",
        current_stateid_without_one,
    ),
    Check::nfs(
        C,
        "current-stateid-is-cleared",
        "RFC 8881 §16.2.3.1.2",
        "PUTFH clears the current stateid.",
        "The READ would use the state of another file.",
        current_stateid_is_cleared,
    ),
    Check::nfs(
        C,
        "current-stateid-is-saved",
        "RFC 8881 §16.2.3.1.2",
        "SAVEFH and RESTOREFH keep the current stateid with the filehandle.",
        "Requests on two files would use the wrong state.",
        current_stateid_is_saved,
    ),
    Check::nfs(
        C,
        "secinfo-consumes",
        "RFC 8881 §18.29.3, §2.6.3.1.1.8",
        "SECINFO succeeds, and leaves no current filehandle.",
        "The client would go on with a file that it has no right security for.",
        secinfo_consumes,
    ),
    Check::nfs(
        C,
        "secinfo-no-name-consumes",
        "RFC 8881 §18.45.3",
        "SECINFO_NO_NAME succeeds, and leaves no current filehandle.",
        "The client would go on with a file that it has no right security for.",
        secinfo_no_name_consumes,
    ),
    Check::nfs(
        C,
        "operation-of-4-0",
        "RFC 8881 §13, §18.49",
        "RENEW, an operation of version 4.0, fails with NOTSUPP.",
        "A client of version 4.1 renews its lease by SEQUENCE.",
        operation_of_4_0,
    ),
];

fn minor_version(lab: &Lab) -> Verdict {
    lab.four.clone()?;
    let reply = alone(&mut lab.connect()?, 99, &[Arguments::PutRootFh(())])?;
    reply.fails(&[Status::MinorVersMismatch])?;
    let count = reply.results()?.len();
    expect(count == 0, "no results", || format!("{count} results"))
}

fn illegal_operation(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    for number in [0_u32, 2, 20_000] {
        let reply = four.run_raw(1, &number.to_be_bytes())?;
        reply.fails_at(1, &[Status::OpIllegal])?;
        let last = reply.results()?.last().map_or(0, |last| last.operation());
        expect(last == nfs::v4::ILLEGAL, "the result of ILLEGAL (10044)", || format!("that of {last}"))?;
    }
    Ok(())
}

fn bad_xdr(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    // PUTFH: the length of a handle, and half of it.
    let operation = [&22_u32.to_be_bytes()[..], &32_u32.to_be_bytes(), &[7; 16]].concat();
    match four.run_raw(1, &operation) {
        // A server may decode all operations before it executes the first one.
        Err(Finding::Wrong { seen, .. }) if seen == "GARBAGE_ARGS" => Ok(()),
        reply => reply?.fails(&[Status::BadXdr]),
    }
}

fn stops_at_the_first_error(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    four.opened("file", "o", BOTH, 0)?;
    let operations =
        [put(&dir), Arguments::Lookup(name("missing")), put(&dir), Arguments::Remove(name("file"))];
    four.run(&operations)?.fails_at(2, &[Status::NoEnt])?;
    four.run(&[put(&dir), Arguments::Lookup(name("file"))])?.good()
}

fn no_filehandle(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let operations = [
        get(&[attribute::TYPE]),
        Arguments::GetFh(()),
        Arguments::Lookup(name("file")),
        Arguments::Access(1),
        Arguments::SaveFh(()),
        read(Stateid::ANONYMOUS, 0, 1),
        Arguments::ReadLink(()),
        Arguments::Remove(name("file")),
    ];
    for operation in operations {
        four.run(&[operation])?.fails_at(1, &[Status::NoFileHandle])?;
    }
    Ok(())
}

fn nothing_saved(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let reply = four.run(&[Arguments::PutRootFh(()), Arguments::RestoreFh(())])?;
    // RESTOREFH is the error of version 4.0.
    reply.fails_at(2, &[Status::NoFileHandle, Status::RestoreFh])?;
    should(reply.error() == Some(Status::NoFileHandle), "NoFileHandle", || reply.told())
}

fn save_and_restore(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    let operations = [
        put(&dir),
        Arguments::SaveFh(()),
        Arguments::PutRootFh(()),
        Arguments::RestoreFh(()),
        Arguments::GetFh(()),
    ];
    let reply = four.run(&operations)?;
    let found = ok4!(reply, GetFh);
    expect(found.bytes() == dir, "the handle that was saved", || format!("{:02x?}", found.bytes()))
}

fn root(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let reply = four.run(&[Arguments::PutRootFh(()), get(&[attribute::TYPE])])?;
    let kind = ok4!(reply, GetAttr).attributes().ok().and_then(|of| of.kind);
    expect(kind == Some(nfs::v4::FileType::Directory), "a directory", || format!("{kind:?}"))
}

fn above_the_root(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    four.run(&[Arguments::PutRootFh(()), Arguments::LookupP(())])?.fails_at(2, &[Status::NoEnt])
}

fn lookupp(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    let below = four.folder(&dir, "d")?;
    let wanted = four.attribute(&dir, attribute::FILEID, |of| of.fileid)?;
    let reply = four.run(&[put(&below), Arguments::LookupP(()), get(&[attribute::FILEID])])?;
    let seen = ok4!(reply, GetAttr).attributes().ok().and_then(|of| of.fileid);
    expect(seen == Some(wanted), format!("fileid {wanted}"), || format!("{seen:?}"))
}

fn lookupp_from_a_file(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, _) = four.opened("file", "o", BOTH, 0)?;
    four.run(&[put(&file), Arguments::LookupP(())])?.fails_at(2, &[Status::NotDir])
}

fn bad_handle(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let mut changed = four.dir.clone();
    changed.iter_mut().for_each(|byte| *byte ^= 0x5a);
    for handle in [&changed[..], &[1, 2, 3]] {
        four.run(&[put(handle), get(&[attribute::TYPE])])?.fails(&[Status::BadHandle, Status::Stale])?;
    }
    Ok(())
}

fn current_stateid(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    let how = nfs::v4::CreateHow::Unchecked(nfs::v4::Fattr::EMPTY);
    let current = Stateid::CURRENT;
    let operations = [
        put(&dir),
        open("file", "o", BOTH, 0, Some(how)),
        write(current, 0, 5),
        read(current, 0, 10),
        Arguments::Close(nfs::v4::Close { seqid: 0, stateid: current }),
    ];
    let reply = four.run_with(&operations, b"12345")?;
    let _ = ok4!(reply, Close);
    expect(reply.data()? == b"12345", "the 5 bytes that were written", || "other bytes".to_owned())
}

fn current_stateid_without_one(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    four.run(&[put(&file), read(Stateid::CURRENT, 0, 5)])?.fails_at(2, &[Status::BadStateid])
}

fn current_stateid_is_cleared(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (dir, (file, _)) = (four.dir.clone(), four.filled("file", b"12345")?);
    let operations = [put(&dir), open("file", "o", BOTH, 0, None), put(&file), read(Stateid::CURRENT, 0, 5)];
    four.run(&operations)?.fails_at(4, &[Status::BadStateid])
}

fn current_stateid_is_saved(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    four.filled("file", b"12345")?;
    let operations = [
        put(&dir),
        open("file", "o", BOTH, 0, None),
        Arguments::SaveFh(()),
        Arguments::PutRootFh(()),
        Arguments::RestoreFh(()),
        read(Stateid::CURRENT, 0, 5),
    ];
    let reply = four.run(&operations)?;
    let _ = ok4!(reply, Read);
    expect(reply.data()? == b"12345", "the file's 5 bytes", || "other bytes".to_owned())
}

fn secinfo_consumes(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    four.opened("file", "o", BOTH, 0)?;
    let operations = [put(&dir), Arguments::SecInfo(name("file")), Arguments::GetFh(())];
    four.run(&operations)?.fails_at(3, &[Status::NoFileHandle])
}

fn secinfo_no_name_consumes(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let dir = four.dir.clone();
    let ask = Arguments::SecInfoNoName(nfs::v4::SecInfoStyle::CurrentFh);
    four.run(&[put(&dir), ask, Arguments::GetFh(())])?.fails_at(3, &[Status::NoFileHandle])
}

fn operation_of_4_0(lab: &Lab) -> Verdict {
    let mut four = Four::client(lab, "first")?;
    let renew = [&30_u32.to_be_bytes()[..], &four.client.0.to_be_bytes()].concat();
    four.run_raw(1, &renew)?.fails(&[Status::NotSupp])
}
