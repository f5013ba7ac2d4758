//! Version 4: OPEN, share reservations and stateids (RFC 8881 §8.2, §9.7, §18.2, §18.16, §18.18,
//! §18.38, §18.48).

use nfs::v4::{
    Arguments, Attributes, Claim, Close, CreateHow, Delegation, Exclusive, Fattr, Open, OpenDowngrade,
    Stateid, Status, Verifier, attribute,
};
use rpc::xdr::{List, Xdr};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable};
use crate::share::{BOTH, Four, Lab, READ, Reply4, WRITE, name, ok4, open, owner, put, read, write};

const O: Area = Area::V4Opens;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        O,
        "stateid-begins-at-1",
        "RFC 8881 §8.2.2, §18.16",
        "OPEN makes the file the current filehandle, and its stateid has the seqid 1.",
        "The client could not tell a new state from a changed one.",
        stateid_begins_at_1,
    ),
    Check::nfs(
        O,
        "no-confirmation",
        "RFC 8881 §18.16.3",
        "OPEN of version 4.1 never asks for OPEN_CONFIRM.",
        "Version 4.1 has no such operation.",
        no_confirmation,
    ),
    Check::nfs(
        O,
        "open-again",
        "RFC 8881 §8.2.2, §9.9",
        "A second OPEN of an owner returns the same stateid with the next seqid.",
        "The client would have to close twice.",
        open_again,
    ),
    Check::nfs(
        O,
        "open-missing",
        "RFC 8881 §18.16.3",
        "OPEN without creation of a name that is not there fails with NOENT.",
        "Programs create a file when it is not there.",
        open_missing,
    ),
    Check::nfs(
        O,
        "open-of-a-directory",
        "RFC 8881 §18.16.3",
        "OPEN of a directory fails with ISDIR.",
        "A client would read the server's inner form of a directory.",
        open_of_a_directory,
    ),
    Check::nfs(
        O,
        "create-guarded",
        "RFC 8881 §18.16.3",
        "A guarded OPEN of a name that is there fails with EXIST.",
        "Lock files rely on it.",
        create_guarded,
    ),
    Check::nfs(
        O,
        "create-unchecked-truncates",
        "RFC 8881 §18.16.3",
        "An unchecked OPEN with size 0 cuts a file that is there.",
        "open with O_CREAT and O_TRUNC relies on it.",
        create_unchecked_truncates,
    ),
    Check::nfs(
        O,
        "create-exclusive",
        "RFC 8881 §18.16.3",
        "An exclusive OPEN succeeds again with its verifier, and fails with EXIST with another.",
        "Two clients would both believe that they made the file.",
        create_exclusive,
    ),
    Check::nfs(
        O,
        "no-access",
        "RFC 8881 §18.16.3",
        "OPEN that asks for no access fails with INVAL.",
        "The open would allow nothing.",
        no_access,
    ),
    Check::nfs(
        O,
        "share-denied",
        "RFC 8881 §9.7, §18.16.3",
        "OPEN of what another owner's open denies fails with SHARE_DENIED.",
        "Programs that deny others would lose data.",
        share_denied,
    ),
    Check::nfs(
        O,
        "deny-what-is-open",
        "RFC 8881 §9.7, §18.16.3",
        "OPEN that denies what another client has open fails with SHARE_DENIED.",
        "Programs that deny others would lose data.",
        deny_what_is_open,
    ),
    Check::nfs(
        O,
        "deny-ends-with-close",
        "RFC 8881 §9.7, §18.2",
        "CLOSE ends the denial.",
        "Nobody could open the file any more.",
        deny_ends_with_close,
    ),
    Check::nfs(
        O,
        "claim-fh",
        "RFC 8881 §18.16.3",
        "OPEN of the current filehandle (CLAIM_FH) opens that file.",
        "Clients of version 4.1 open again by handle.",
        claim_fh,
    ),
    Check::nfs(
        O,
        "reclaim-too-late",
        "RFC 8881 §18.51.3, §8.4.2.1",
        "OPEN that reclaims after RECLAIM_COMPLETE fails with NO_GRACE.",
        "A client would take back what others have since.",
        reclaim_too_late,
    ),
    Check::nfs(
        O,
        "downgrade",
        "RFC 8881 §18.18",
        "OPEN_DOWNGRADE to READ returns the next seqid, and WRITE fails with OPENMODE after it.",
        "A file would stay open for writing.",
        downgrade,
    ),
    Check::nfs(
        O,
        "downgrade-to-more",
        "RFC 8881 §18.18.3",
        "OPEN_DOWNGRADE to what was never opened fails with INVAL.",
        "Access would be gained without a check.",
        downgrade_to_more,
    ),
    Check::nfs(
        O,
        "old-stateid",
        "RFC 8881 §8.2.2, §15.1.5.6",
        "A stateid with an earlier seqid fails with OLD_STATEID.",
        "Requests that overtook each other would go unnoticed.",
        old_stateid,
    ),
    Check::nfs(
        O,
        "future-stateid",
        "RFC 8881 §8.2.2, §15.1.5.2",
        "A stateid with a later seqid fails with BAD_STATEID.",
        "The server never gave it away.",
        future_stateid,
    ),
    Check::nfs(
        O,
        "zero-seqid",
        "RFC 8881 §8.2.2",
        "A stateid with seqid 0 stands for the latest.",
        "Clients use it when they have requests in flight.",
        zero_seqid,
    ),
    Check::nfs(
        O,
        "bad-stateid",
        "RFC 8881 §15.1.5.2, §8.2.4",
        "A stateid that the server never gave away fails with BAD_STATEID.",
        "Another client's state could be used.",
        bad_stateid,
    ),
    Check::nfs(
        O,
        "stateid-of-another-file",
        "RFC 8881 §8.2.4, §15.1.5.2",
        "READ with the stateid of another file fails with BAD_STATEID.",
        "Access to one file would be access to all.",
        stateid_of_another_file,
    ),
    Check::nfs(
        O,
        "stateid-of-another-client",
        "RFC 8881 §8.2.4, §15.1.5.2",
        "CLOSE with the stateid of another client fails with BAD_STATEID.",
        "A client could end the state of others.",
        stateid_of_another_client,
    ),
    Check::nfs(
        O,
        "close",
        "RFC 8881 §18.2.3",
        "A stateid fails with BAD_STATEID after its CLOSE.",
        "The server would keep the file open.",
        close,
    ),
    Check::nfs(
        O,
        "close-with-zero-seqid",
        "RFC 8881 §18.2, §8.2.2",
        "CLOSE takes the latest seqid of the stateid.",
        "The client could not close what it opened twice.",
        close_with_latest,
    ),
    Check::nfs(
        O,
        "test-stateid",
        "RFC 8881 §18.48",
        "TEST_STATEID returns OK for an open, and BAD_STATEID for an unknown one.",
        "Clients find out what they have lost by it.",
        test_stateid,
    ),
    Check::nfs(
        O,
        "free-stateid-of-an-open",
        "RFC 8881 §18.38.3",
        "FREE_STATEID of an open that is not closed fails with LOCKS_HELD.",
        "The server would forget an open that is in use.",
        free_stateid_of_an_open,
    ),
    Check::nfs(
        O,
        "free-stateid-unknown",
        "RFC 8881 §18.38.3",
        "FREE_STATEID of an unknown stateid fails with BAD_STATEID.",
        "The client would believe that it freed another one.",
        free_stateid_unknown,
    ),
    Check::nfs(
        O,
        "removed-while-open",
        "RFC 8881 §18.25.4, §18.16.3",
        "A file that is removed while open can be read, if OPEN said that it is kept.",
        "Programs remove their temporary files while they use them.",
        removed_while_open,
    ),
];

/// The stateid of an OPEN that succeeded.
fn stateid(reply: &Reply4) -> Verdict<Stateid> {
    Ok(ok4!(reply, Open).stateid)
}

fn begin(lab: &Lab) -> Verdict<(Four<'_>, Vec<u8>)> {
    let four = Four::new(lab)?;
    let dir = four.dir.clone();
    Ok((four, dir))
}

fn stateid_begins_at_1(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let how = Some(CreateHow::Unchecked(Fattr::EMPTY));
    let operations = [put(&dir), open("file", "o", BOTH, 0, how), crate::share::get(&[attribute::TYPE])];
    let reply = four.run(&operations)?;
    let seqid = stateid(&reply)?.seqid;
    let kind = ok4!(reply, GetAttr).attributes().ok().and_then(|of| of.kind);
    expect(seqid == 1 && kind == Some(nfs::v4::FileType::Regular), "seqid 1, and a regular file", || {
        format!("seqid {seqid}, {kind:?}")
    })
}

fn no_confirmation(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let how = Some(CreateHow::Unchecked(Fattr::EMPTY));
    let reply = four.run(&[put(&dir), open("file", "o", BOTH, 0, how)])?;
    let opened = ok4!(reply, Open);
    let confirm = opened.flags & nfs::v4::flags::open_result::CONFIRM != 0;
    let delegated = matches!(opened.delegation, Delegation::Read(_) | Delegation::Write(_));
    expect(!confirm && !delegated, "no confirmation, and no delegation, which was not wanted", || {
        format!("flags {:#x}, {:?}", opened.flags, opened.delegation)
    })
}

fn open_again(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (_, first) = four.opened("file", "o", READ, 0)?;
    let second = stateid(&four.run(&[put(&dir), open("file", "o", WRITE, 0, None)])?)?;
    expect(second.other == first.other && second.seqid == first.seqid + 1, "the next seqid", || {
        format!("{second:?} after {first:?}")
    })
}

fn open_missing(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.run(&[put(&dir), open("missing", "o", READ, 0, None)])?.fails_at(2, &[Status::NoEnt])
}

fn open_of_a_directory(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.folder(&dir, "d")?;
    four.run(&[put(&dir), open("d", "o", READ, 0, None)])?.fails_at(2, &[Status::IsDir])
}

fn create_guarded(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.opened("file", "o", READ, 0)?;
    let how = Some(CreateHow::Guarded(Fattr::EMPTY));
    four.run(&[put(&dir), open("file", "o", READ, 0, how)])?.fails_at(2, &[Status::Exist])
}

fn create_unchecked_truncates(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    let attributes = Attributes { size: Some(0), ..Attributes::default() };
    let how = Some(CreateHow::Unchecked(Fattr::of(&attributes)));
    four.run(&[put(&dir), open("file", "o", BOTH, 0, how)])?.good()?;
    let size = four.attribute(&file, attribute::SIZE, |of| of.size)?;
    expect(size == 0, "0 bytes", || format!("{size} bytes"))
}

fn create_exclusive(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let with = |verifier: &[u8; 8]| {
        let attributes = Fattr::EMPTY;
        CreateHow::Exclusive41(Exclusive { verifier: Verifier(*verifier), attributes })
    };
    for _ in 0..2 {
        four.run(&[put(&dir), open("file", "o", BOTH, 0, Some(with(b"verifier")))])?.good()?;
    }
    let other = Some(with(b"another1"));
    four.run(&[put(&dir), open("file", "o", BOTH, 0, other)])?.fails_at(2, &[Status::Exist])
}

fn no_access(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.opened("file", "o", READ, 0)?;
    four.run(&[put(&dir), open("file", "p", 0, 0, None)])?.fails_at(2, &[Status::Inval])
}

fn share_denied(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.opened("file", "o", BOTH, 2)?;
    four.run(&[put(&dir), open("file", "p", WRITE, 0, None)])?.fails_at(2, &[Status::ShareDenied])?;
    four.run(&[put(&dir), open("file", "p", READ, 0, None)])?.good()
}

fn deny_what_is_open(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.opened("file", "o", READ, 0)?;
    let mut other = four.second()?;
    other.run(&[put(&dir), open("file", "o", READ, 1, None)])?.fails_at(2, &[Status::ShareDenied])
}

fn close_of(stateid: Stateid) -> Arguments<'static> {
    Arguments::Close(Close { seqid: 0, stateid })
}

fn deny_ends_with_close(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, stateid) = four.opened("file", "o", BOTH, 3)?;
    four.run(&[put(&file), close_of(stateid)])?.good()?;
    four.run(&[put(&dir), open("file", "p", BOTH, 0, None)])?.good()
}

fn open_of(claim: Claim<'static>, who: &'static str) -> Arguments<'static> {
    let (share_access, share_deny, create) = (READ, 0, None);
    Arguments::Open(Open { seqid: 0, share_access, share_deny, owner: owner(who), create, claim })
}

fn claim_fh(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.filled("file", b"12345")?;
    let opened = stateid(&four.run(&[put(&file), open_of(Claim::Fh(()), "p")])?)?;
    let reply = four.run(&[put(&file), read(opened, 0, 10)])?;
    let _ = ok4!(reply, Read);
    expect(reply.data()? == b"12345", "the file's 5 bytes", || "other bytes".to_owned())
}

fn reclaim_too_late(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, _) = four.opened("file", "o", READ, 0)?;
    let claim = Claim::Previous(nfs::v4::DelegationType::None);
    four.run(&[put(&file), open_of(claim, "p")])?.fails_at(2, &[Status::NoGrace])
}

fn downgrade_of(stateid: Stateid, share_access: u32) -> Arguments<'static> {
    Arguments::OpenDowngrade(OpenDowngrade { stateid, seqid: 0, share_access, share_deny: 0 })
}

fn downgrade(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.opened("file", "o", READ, 0)?;
    let reply = four.run(&[put(&dir), open("file", "o", BOTH, 0, None), Arguments::GetFh(())])?;
    let opened = crate::finding::setup(stateid(&reply), "to two opens")?;
    let file = ok4!(reply, GetFh).bytes().to_vec();
    let reply = four.run(&[put(&file), downgrade_of(opened, 1)])?;
    let less = ok4!(reply, OpenDowngrade);
    expect(less.other == opened.other && less.seqid == opened.seqid + 1, "the next seqid", || {
        format!("{less:?} after {opened:?}")
    })?;
    four.run_with(&[put(&file), write(less, 0, 4)], b"data")?.fails_at(2, &[Status::OpenMode])
}

fn downgrade_to_more(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, stateid) = four.opened("file", "o", READ, 0)?;
    four.run(&[put(&file), downgrade_of(stateid, 3)])?.fails_at(2, &[Status::Inval])
}

/// A stateid whose seqid is 2.
fn second_stateid(four: &mut Four<'_>, dir: &[u8]) -> Verdict<(Vec<u8>, Stateid)> {
    let (file, _) = four.filled("file", b"12345")?;
    let again = four.run(&[put(dir), open("file", "o", BOTH, 0, None)]);
    let opened = again.and_then(|reply| stateid(&reply));
    Ok((file, crate::finding::setup(opened, "to a second OPEN")?))
}

fn old_stateid(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, latest) = second_stateid(&mut four, &dir)?;
    let old = Stateid { seqid: latest.seqid - 1, ..latest };
    four.run(&[put(&file), read(old, 0, 5)])?.fails_at(2, &[Status::OldStateid])
}

fn future_stateid(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, latest) = second_stateid(&mut four, &dir)?;
    let future = Stateid { seqid: latest.seqid + 1, ..latest };
    four.run(&[put(&file), read(future, 0, 5)])?.fails_at(2, &[Status::BadStateid])
}

fn zero_seqid(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, latest) = second_stateid(&mut four, &dir)?;
    four.run(&[put(&file), read(Stateid { seqid: 0, ..latest }, 0, 5)])?.good()
}

fn unknown(stateid: Stateid) -> Stateid {
    let mut other = stateid.other;
    other.iter_mut().for_each(|byte| *byte ^= 0x5a);
    Stateid { other, ..stateid }
}

fn bad_stateid(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    four.run(&[put(&file), read(unknown(stateid), 0, 5)])?.fails_at(2, &[Status::BadStateid])
}

fn stateid_of_another_file(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (_, stateid) = four.filled("one", b"12345")?;
    let (other, _) = four.filled("two", b"12345")?;
    four.run(&[put(&other), read(stateid, 0, 5)])?.fails_at(2, &[Status::BadStateid])
}

fn stateid_of_another_client(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, stateid) = four.opened("file", "o", BOTH, 0)?;
    let mut other = four.second()?;
    other.run(&[put(&file), close_of(stateid)])?.fails_at(2, &[Status::BadStateid])
}

fn close(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (file, stateid) = four.filled("file", b"12345")?;
    four.run(&[put(&file), close_of(stateid)])?.good()?;
    four.run(&[put(&file), read(stateid, 0, 5)])?.fails_at(2, &[Status::BadStateid])
}

fn close_with_latest(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    let (file, latest) = second_stateid(&mut four, &dir)?;
    four.run(&[put(&file), close_of(latest)])?.good()
}

fn test_stateid(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (_, stateid) = four.opened("file", "o", BOTH, 0)?;
    let mut bytes = 2_u32.to_be_bytes().to_vec();
    for one in [stateid, unknown(stateid)] {
        bytes.extend(rpc::xdr::encode(&one));
    }
    let list = List::read(&mut rpc::xdr::Reader::new(&bytes));
    let list = list.or_else(|error| crate::finding::untested(error.to_string()))?;
    let reply = four.run(&[Arguments::TestStateid(list)])?;
    let told: Vec<Option<Status>> = ok4!(reply, TestStateid)
        .iter()
        .map(|one| match one {
            nfs::v4::Outcome::Ok(()) => None,
            nfs::v4::Outcome::Err(status, ()) => Some(status),
        })
        .collect();
    expect(told == [None, Some(Status::BadStateid)], "OK and BadStateid", || format!("{told:?}"))
}

fn free_stateid_of_an_open(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (_, stateid) = four.opened("file", "o", BOTH, 0)?;
    four.run(&[Arguments::FreeStateid(stateid)])?.fails_at(1, &[Status::LocksHeld])
}

fn free_stateid_unknown(lab: &Lab) -> Verdict {
    let (mut four, _) = begin(lab)?;
    let (_, stateid) = four.opened("file", "o", BOTH, 0)?;
    four.run(&[Arguments::FreeStateid(unknown(stateid))])?.fails_at(1, &[Status::BadStateid])
}

fn removed_while_open(lab: &Lab) -> Verdict {
    let (mut four, dir) = begin(lab)?;
    four.filled("file", b"12345")?;
    let reply = four.run(&[put(&dir), open("file", "o", BOTH, 0, None), Arguments::GetFh(())])?;
    let opened = ok4!(reply, Open);
    let kept = opened.flags & nfs::v4::flags::open_result::PRESERVE_UNLINKED != 0;
    let (stateid, file) = (opened.stateid, ok4!(reply, GetFh).bytes().to_vec());
    if !kept {
        return not_applicable("OPEN does not say that removed files are kept");
    }
    four.run(&[put(&dir), Arguments::Remove(name("file"))])?.good()?;
    let reply = four.run(&[put(&file), read(stateid, 0, 10)])?;
    let _ = ok4!(reply, Read);
    expect(reply.data()? == b"12345", "the file's 5 bytes", || "other bytes".to_owned())
}
