//! Version 4: byte-range locks (RFC 8881 §9, §18.10 to §18.12, §18.38).

use nfs::v4::{
    Arguments, Close, Lock, LockT, LockType, LockU, Locker, NewLockOwner, OldLockOwner, OutcomeOr, Results,
    Stateid, Status,
};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, setup, wrong};
use crate::share::{BOTH, Four, Lab, READ, Reply4, ok4, owner, put};

const L: Area = Area::V4Locks;
/// The length of a lock up to the largest offset.
const ALL: u64 = u64::MAX;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        L,
        "lock",
        "RFC 8881 §18.10, §8.2.2",
        "LOCK returns a new stateid with the seqid 1, and the next one for the next LOCK.",
        "The client could not tell a new state from a changed one.",
        lock,
    ),
    Check::nfs(
        L,
        "conflict",
        "RFC 8881 §18.10.3, §9.1.1",
        "LOCK of a range that another owner has locked fails with DENIED, and names the lock.",
        "Two programs would write the same bytes.",
        conflict,
    ),
    Check::nfs(
        L,
        "conflict-of-clients",
        "RFC 8881 §18.10.3",
        "LOCK of a range that another client has locked fails with DENIED.",
        "Two programs would write the same bytes.",
        conflict_of_clients,
    ),
    Check::nfs(
        L,
        "read-locks-share",
        "RFC 8881 §18.10.3",
        "Two owners can have read locks of one range; a write lock is denied.",
        "Readers would wait for each other.",
        read_locks_share,
    ),
    Check::nfs(
        L,
        "ranges-beside",
        "RFC 8881 §18.10.3",
        "Locks of ranges that touch, and do not overlap, do not conflict.",
        "Programs lock single records of a file.",
        ranges_beside,
    ),
    Check::nfs(
        L,
        "to-the-end",
        "RFC 8881 §18.10.3",
        "A length of all ones locks up to the largest offset.",
        "Programs lock whole files this way.",
        to_the_end,
    ),
    Check::nfs(
        L,
        "zero-length",
        "RFC 8881 §18.10.3",
        "LOCK of 0 bytes fails with INVAL.",
        "A lock of nothing protects nothing.",
        zero_length,
    ),
    Check::nfs(
        L,
        "beyond-the-largest-offset",
        "RFC 8881 §18.10.3",
        "LOCK of a range beyond 2^64 bytes fails with INVAL.",
        "The range would begin again at 0.",
        beyond_the_largest_offset,
    ),
    Check::nfs(
        L,
        "write-lock-needs-write",
        "RFC 8881 §18.10.3, §9.1.2",
        "A write lock through an open for reading fails with OPENMODE.",
        "A reader could keep all writers away.",
        write_lock_needs_write,
    ),
    Check::nfs(
        L,
        "lockt",
        "RFC 8881 §18.11",
        "LOCKT reports the conflict with another owner, and none with the same owner.",
        "F_GETLK on clients relies on it.",
        lockt,
    ),
    Check::nfs(
        L,
        "unlock",
        "RFC 8881 §18.12",
        "LOCKU returns the next seqid, and the range is free.",
        "Programs would wait for ever.",
        unlock,
    ),
    Check::nfs(
        L,
        "unlock-splits",
        "RFC 8881 §18.12.3, §9.2",
        "LOCKU of the middle of a range frees the middle alone, or fails with LOCK_RANGE.",
        "Bytes that are still locked could be locked by others.",
        unlock_splits,
    ),
    Check::nfs(
        L,
        "upgrade",
        "RFC 8881 §9.3, §18.10.3",
        "LOCK of the owner's own range with another type changes the type, or fails with LOCK_NOTSUPP.",
        "A program with a read lock could not begin to write.",
        upgrade,
    ),
    Check::nfs(
        L,
        "old-lock-stateid",
        "RFC 8881 §8.2.2",
        "LOCKU with an earlier seqid fails with OLD_STATEID.",
        "Requests that overtook each other would go unnoticed.",
        old_lock_stateid,
    ),
    Check::nfs(
        L,
        "lock-with-a-bad-open",
        "RFC 8881 §18.10.3",
        "LOCK with the stateid of an open that is closed fails with BAD_STATEID.",
        "Locks without an open would have no end.",
        lock_with_a_bad_open,
    ),
    Check::nfs(
        L,
        "reclaim-too-late",
        "RFC 8881 §18.10.3, §18.51.3",
        "LOCK that reclaims after RECLAIM_COMPLETE fails with NO_GRACE.",
        "A client would take back what others have since.",
        reclaim_too_late,
    ),
    Check::nfs(
        L,
        "close-ends-locks",
        "RFC 8881 §18.2.3",
        "CLOSE frees the locks of the open, or fails with LOCKS_HELD.",
        "Programs that end would leave locks behind.",
        close_ends_locks,
    ),
    Check::nfs(
        L,
        "free-stateid",
        "RFC 8881 §18.38",
        "FREE_STATEID fails with LOCKS_HELD while there are locks, and succeeds without.",
        "The server would forget locks that are in use.",
        free_stateid,
    ),
];

/// A file that is open twice: by owners `o` and `p`.
struct Two<'l> {
    four: Four<'l>,
    file: Vec<u8>,
    o: Stateid,
    p: Stateid,
}

fn begin(lab: &Lab) -> Verdict<Two<'_>> {
    let mut four = Four::new(lab)?;
    let (file, o) = four.opened("file", "o", BOTH, 0)?;
    let (_, p) = four.opened("file", "p", BOTH, 0)?;
    Ok(Two { four, file, o, p })
}

fn first(kind: LockType, offset: u64, length: u64, open: Stateid, who: &str) -> Arguments<'_> {
    let new = NewLockOwner { open_seqid: 0, open, lock_seqid: 0, owner: owner(who) };
    Arguments::Lock(Lock { kind, reclaim: false, offset, length, locker: Locker::New(new) })
}

fn next(kind: LockType, offset: u64, length: u64, locks: Stateid) -> Arguments<'static> {
    let old = OldLockOwner { locks, seqid: 0 };
    Arguments::Lock(Lock { kind, reclaim: false, offset, length, locker: Locker::Old(old) })
}

fn free(offset: u64, length: u64, locks: Stateid) -> Arguments<'static> {
    Arguments::LockU(LockU { kind: LockType::Write, seqid: 0, locks, offset, length })
}

/// The stateid of a LOCK that succeeded.
fn locked(reply: &Reply4) -> Verdict<Stateid> {
    match reply.results()?.last() {
        Some(Results::Lock(OutcomeOr::Ok(stateid))) => Ok(*stateid),
        _ => reply.refused(),
    }
}

/// Offset, length, type and owner of the lock that denied a LOCK or LOCKT.
type Denier = (u64, u64, LockType, Vec<u8>);

fn denied(reply: &Reply4) -> Verdict<Denier> {
    match reply.results()?.last() {
        Some(Results::Lock(OutcomeOr::Or(by)) | Results::LockT(OutcomeOr::Or(by))) => {
            Ok((by.offset, by.length, by.kind, by.owner.owner.bytes().to_vec()))
        }
        _ => wrong(reply.told(), "Denied, with the lock that denies"),
    }
}

impl Two<'_> {
    fn run(&mut self, operation: Arguments<'_>) -> Verdict<Reply4> {
        self.four.run(&[put(&self.file), operation])
    }

    /// Owner `o` locks a range for writing.
    fn held(&mut self, offset: u64, length: u64) -> Verdict<Stateid> {
        let o = self.o;
        let reply = self.run(first(LockType::Write, offset, length, o, "lo"));
        setup(reply.and_then(|reply| locked(&reply)), "to a lock")
    }

    /// Checks that another owner could lock the range for writing (`whether`), or could not.
    fn expect_free(&mut self, offset: u64, length: u64, whether: bool) -> Verdict {
        let test = LockT { kind: LockType::Write, offset, length, owner: owner("lp") };
        let reply = self.run(Arguments::LockT(test))?;
        if whether { reply.good() } else { denied(&reply).map(|_| ()) }
    }
}

fn lock(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let o = two.o;
    let one = locked(&two.run(first(LockType::Write, 0, 10, o, "lo"))?)?;
    let other = locked(&two.run(next(LockType::Write, 20, 10, one))?)?;
    let right = one.seqid == 1 && other.seqid == 2 && one.other == other.other && one.other != two.o.other;
    expect(right, "a stateid of its own with seqids 1 and 2", || format!("{one:?}, {other:?}"))
}

fn conflict(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    two.held(100, 50)?;
    let p = two.p;
    let by = denied(&two.run(first(LockType::Write, 149, 10, p, "lp"))?)?;
    let wanted: Denier = (100, 50, LockType::Write, b"lo".to_vec());
    expect(by == wanted, format!("{wanted:?}"), || format!("{by:?}"))
}

fn conflict_of_clients(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    two.held(0, 10)?;
    let mut other = two.four.second()?;
    let (file, open) = other.opened("file", "o", BOTH, 0)?;
    denied(&other.run(&[put(&file), first(LockType::Read, 5, 1, open, "lo")])?).map(|_| ())
}

fn read_locks_share(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let (o, p) = (two.o, two.p);
    two.run(first(LockType::Read, 0, 10, o, "lo"))?.good()?;
    let shared = locked(&two.run(first(LockType::Read, 0, 10, p, "lp"))?)?;
    denied(&two.run(next(LockType::Write, 0, 10, shared))?).map(|_| ())
}

fn ranges_beside(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    two.held(100, 50)?;
    let p = two.p;
    let below = locked(&two.run(first(LockType::Write, 90, 10, p, "lp"))?)?;
    two.run(next(LockType::Write, 150, 10, below))?.good()
}

fn to_the_end(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    two.held(100, ALL)?;
    two.expect_free(1 << 62, 1, false)?;
    two.expect_free(0, 100, true)
}

fn zero_length(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let o = two.o;
    two.run(first(LockType::Write, 0, 0, o, "lo"))?.fails_at(2, &[Status::Inval])
}

fn beyond_the_largest_offset(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let o = two.o;
    two.run(first(LockType::Write, u64::MAX - 5, 10, o, "lo"))?.fails_at(2, &[Status::Inval])
}

fn write_lock_needs_write(lab: &Lab) -> Verdict {
    let mut four = Four::new(lab)?;
    let (file, open) = four.opened("file", "o", READ, 0)?;
    four.run(&[put(&file), first(LockType::Write, 0, 10, open, "lo")])?.fails_at(2, &[Status::OpenMode])
}

fn lockt(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    two.held(100, 50)?;
    two.expect_free(120, 1, false)?;
    let own = LockT { kind: LockType::Write, offset: 120, length: 1, owner: owner("lo") };
    two.run(Arguments::LockT(own))?.good()
}

fn unlock(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let held = two.held(0, 10)?;
    let reply = two.run(free(0, 10, held))?;
    let after = ok4!(reply, LockU);
    expect(after.other == held.other && after.seqid == held.seqid + 1, "the next seqid", || {
        format!("{after:?} after {held:?}")
    })?;
    two.expect_free(0, 10, true)
}

fn unlock_splits(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let held = two.held(0, 100)?;
    let reply = two.run(free(40, 20, held))?;
    if reply.error() == Some(Status::LockRange) {
        return Ok(());
    }
    reply.good()?;
    two.expect_free(40, 20, true)?;
    two.expect_free(39, 1, false)?;
    two.expect_free(60, 1, false)
}

fn upgrade(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let o = two.o;
    let reply = two.run(first(LockType::Read, 0, 10, o, "lo"));
    let held = setup(reply.and_then(|reply| locked(&reply)), "to a lock")?;
    let reply = two.run(next(LockType::Write, 0, 10, held))?;
    if reply.error() == Some(Status::LockNotSupp) {
        return Ok(());
    }
    locked(&reply)?;
    let test = LockT { kind: LockType::Read, offset: 0, length: 10, owner: owner("lp") };
    let by = denied(&two.run(Arguments::LockT(test))?)?;
    expect(by.2 == LockType::Write, "a write lock", || format!("{by:?}"))
}

fn old_lock_stateid(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let old = two.held(0, 10)?;
    setup(two.run(next(LockType::Write, 20, 10, old)).and_then(|reply| locked(&reply)), "to two locks")?;
    two.run(free(0, 10, old))?.fails_at(2, &[Status::OldStateid])
}

fn close_of(stateid: Stateid) -> Arguments<'static> {
    Arguments::Close(Close { seqid: 0, stateid })
}

fn lock_with_a_bad_open(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let o = two.o;
    setup(two.run(close_of(o)).and_then(|reply| reply.good()), "to a closed file")?;
    two.run(first(LockType::Write, 0, 10, o, "lo"))?.fails_at(2, &[Status::BadStateid])
}

fn reclaim_too_late(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let new = NewLockOwner { open_seqid: 0, open: two.o, lock_seqid: 0, owner: owner("lo") };
    let (kind, locker) = (LockType::Write, Locker::New(new));
    let lock = Lock { kind, reclaim: true, offset: 0, length: 10, locker };
    two.run(Arguments::Lock(lock))?.fails_at(2, &[Status::NoGrace])
}

fn close_ends_locks(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    two.held(0, 10)?;
    let o = two.o;
    let reply = two.run(close_of(o))?;
    if reply.error() == Some(Status::LocksHeld) {
        return Ok(());
    }
    reply.good()?;
    two.expect_free(0, 10, true)
}

fn free_stateid(lab: &Lab) -> Verdict {
    let mut two = begin(lab)?;
    let held = two.held(0, 10)?;
    two.four.run(&[Arguments::FreeStateid(held)])?.fails_at(1, &[Status::LocksHeld])?;
    let reply = two.run(free(0, 10, held))?;
    let after = ok4!(reply, LockU);
    two.four.run(&[Arguments::FreeStateid(after)])?.good()
}
