//! LOCK, LOCKT, LOCKU, and the owners that wait.

use LockType::{Read, ReadWait, Write, WriteWait};

use super::*;

const ALL: (u64, u64) = (0, u64::MAX);

fn open(server: &mut Server, client: Client) -> Stateid {
    server.open(client, 1, ShareAccess::Both).unwrap().stateid
}

fn denied(client: Client, owner: &[u8], kind: LockType, (offset, length): (u64, u64)) -> NotLocked {
    NotLocked::Denied(Denied { offset, length, kind, client: client.id, owner: owner.into() })
}

fn new(open: Stateid, owner: &[u8]) -> Locker<'_> {
    Locker::New { open, owner }
}

/// RFC 8881 §18.10.
#[test]
fn a_lock_is_denied_with_the_holder() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let (first, second) = (open(&mut server, one), open(&mut server, two));
    let held = server.lock(one, 1, new(first, b"a"), Write, (10, 10)).unwrap();
    let refused = denied(one, b"a", Write, (10, 10));
    assert_eq!(server.lock(two, 1, new(second, b"a"), Read, ALL), Err(refused.clone()));
    let test = |server: &mut Server, client: Client, owner: &[u8], kind| {
        let request = LockFile { file: &1, kind, offset: 0, length: 11 };
        server.state.test_lock(server.now, client.id, request, owner)
    };
    assert_eq!(test(&mut server, two, b"a", Read), Err(refused.clone()));
    assert_eq!(test(&mut server, one, b"b", Read), Err(refused));
    assert_eq!(test(&mut server, one, b"a", Write), Ok(()));
    assert!(server.lock(two, 1, new(second, b"a"), Write, (20, 1)).is_ok());
    let held = server.state.unlock(one.id, held, 10, 5).unwrap();
    assert_eq!(held.seqid, 2);
    assert!(server.lock(two, 1, new(second, b"a"), Write, (10, 5)).is_ok());
    assert_eq!(
        server.lock(two, 1, new(second, b"a"), Write, (10, 6)),
        Err(denied(one, b"a", Write, (15, 5)))
    );
}

/// RFC 8881 §9.1.2, §18.10.3: the locks of an owner are one state, whose stateid moves on.
#[test]
fn locks_of_an_owner_have_one_stateid() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let first = open(&mut server, one);
    let a = server.lock(one, 1, new(first, b"a"), Read, (0, 1)).unwrap();
    let b = server.lock(one, 1, Locker::Existing(a), Read, (5, 1)).unwrap();
    assert_eq!(b, Stateid { seqid: 2, ..a });
    assert_eq!(server.lock(one, 1, Locker::Existing(a), Read, (9, 1)), Err(Status::OldStateid.into()));
    assert_eq!(server.lock(one, 1, Locker::Existing(first), Read, (9, 1)), Err(Status::BadStateid.into()));
    assert_eq!(server.lock(two, 1, Locker::Existing(b), Read, (9, 1)), Err(Status::BadStateid.into()));
    assert_eq!(server.lock(one, 1, new(first, b"a"), Read, (9, 1)).unwrap().seqid, 3);
    assert_eq!(server.lock(one, 1, new(first, b"b"), Read, (9, 1)).unwrap().seqid, 1);
    assert_eq!(server.state.usage().locks, 2);
}

/// RFC 8881 §18.10.3, §18.10.4.
#[test]
fn a_lock_needs_a_range_a_mode_and_the_file() {
    let mut server = Server::new();
    let client = server.client(1);
    let read = server.open(client, 1, ShareAccess::Read).unwrap().stateid;
    assert_eq!(server.lock(client, 1, new(read, b"a"), Write, ALL), Err(Status::OpenMode.into()));
    assert_eq!(server.lock(client, 1, new(read, b"a"), Read, (0, 0)), Err(Status::Inval.into()));
    assert_eq!(server.lock(client, 1, new(read, b"a"), Read, (2, u64::MAX - 1)).map(|it| it.seqid), Ok(1));
    assert_eq!(server.lock(client, 1, new(read, b"a"), Read, (3, u64::MAX - 1)), Err(Status::Inval.into()));
    server.open(client, 2, ShareAccess::Read).unwrap();
    assert_eq!(server.lock(client, 2, new(read, b"a"), Read, ALL), Err(Status::BadStateid.into()));
    assert_eq!(server.lock(client, 3, new(read, b"a"), Read, ALL), Err(Status::BadStateid.into()));
}

/// RFC 8881 §9.1.2: a stateid of locks is good for READ and WRITE as its open.
#[test]
fn a_stateid_of_locks_has_the_mode_of_its_open() {
    let mut server = Server::new();
    let client = server.client(1);
    let read = server.open(client, 1, ShareAccess::Read).unwrap().stateid;
    let locks = server.lock(client, 1, new(read, b"a"), Read, ALL).unwrap();
    assert_eq!(server.io(client, 1, locks, ShareAccess::Read), Ok(()));
    assert_eq!(server.io(client, 1, locks, ShareAccess::Write), Err(Status::OpenMode));
    server.open(client, 1, ShareAccess::Write).unwrap();
    assert_eq!(server.io(client, 1, locks, ShareAccess::Write), Ok(()));
}

/// RFC 8881 §18.2.3 lets a server release the locks; §18.38.
#[test]
fn close_releases_locks_and_free_stateid_does_not() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let (first, second) = (open(&mut server, one), open(&mut server, two));
    let locks = server.lock(one, 1, new(first, b"a"), Write, ALL).unwrap();
    assert_eq!(server.state.free_stateid(one.id, locks), Err(Status::LocksHeld));
    let empty = server.state.unlock(one.id, locks, 0, u64::MAX).unwrap();
    assert_eq!(server.state.free_stateid(one.id, empty), Ok(()));
    assert_eq!(server.state.test_stateid(one.id, empty), Err(Status::BadStateid));
    let locks = server.lock(one, 1, new(first, b"a"), Write, ALL).unwrap();
    server.state.close(one.id, first).unwrap();
    assert_eq!(server.state.test_stateid(one.id, locks), Err(Status::BadStateid));
    assert!(server.lock(two, 1, new(second, b"a"), Write, ALL).is_ok());
}

/// RFC 8881 §9.6, §20.11.
#[test]
fn a_waiting_owner_is_called_when_it_may_ask_again() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let (first, second) = (open(&mut server, one), open(&mut server, two));
    let held = server.lock(one, 1, new(first, b"a"), Write, (0, 20)).unwrap();
    assert!(server.lock(two, 1, new(second, b"w"), WriteWait, (0, 10)).is_err());
    assert!(server.lock(two, 1, new(second, b"r"), ReadWait, (10, 10)).is_err());
    assert!(server.lock(two, 1, new(second, b"x"), Read, (10, 10)).is_err());
    assert_eq!(server.state.usage().waiting, 2);
    server.hand_over();
    let held = server.state.unlock(one.id, held, 0, 9).unwrap();
    assert_eq!(server.calls(), []);
    let held = server.state.unlock(one.id, held, 9, 1).unwrap();
    let calls = server.calls();
    let notify =
        |owner: &[u8]| CallbackOperation::NotifyLock { file: 1, client: two.id, owner: owner.into() };
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].session, &calls[0].operation), (two.session, &notify(b"w")));
    // A lock that becomes a READ lock lets readers in.
    server.lock(one, 1, Locker::Existing(held), Read, (10, 10)).unwrap();
    assert_eq!(server.calls().pop().unwrap().operation, notify(b"r"));
    assert_eq!(server.state.usage().waiting, 0);
    assert!(server.lock(two, 1, new(second, b"w"), Write, (0, 10)).is_ok());
    assert!(server.lock(two, 1, new(second, b"r"), Read, (10, 10)).is_ok());
}

#[test]
fn a_waiting_lock_is_forgotten_after_a_lease_time() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let (first, second) = (open(&mut server, one), open(&mut server, two));
    server.lock(one, 1, new(first, b"a"), Write, ALL).unwrap();
    assert!(server.lock(two, 1, new(second, b"w"), WriteWait, ALL).is_err());
    server.pass(LEASE + 2 * SECOND, &[one, two]);
    assert_eq!(server.state.usage().waiting, 0);
    assert_eq!(server.state.usage().locks, 1);
}

#[test]
fn ranges_of_a_client_are_bounded() {
    let mut server = Server::with(Limits { ranges: 8, ..limits() }, Vec::new());
    let client = server.client(1);
    let first = open(&mut server, client);
    let locks = (0..).map_while(|at| server.lock(client, 1, new(first, b"a"), Read, (10 * at, 5)).ok());
    let locks = locks.last().unwrap();
    assert_eq!(server.lock(client, 1, new(first, b"a"), Read, (1000, 5)), Err(Status::Delay.into()));
    let mut latest = Stateid { seqid: 0, ..locks };
    for at in 0.. {
        match server.state.unlock(client.id, latest, 10 * at + 2, 1) {
            Ok(stateid) => latest = stateid,
            Err(status) => {
                assert_eq!(status, Status::Delay);
                break;
            }
        }
    }
    assert!(server.state.unlock(client.id, latest, 0, u64::MAX).is_ok());
}

#[test]
fn a_waiting_owner_is_called_when_the_holder_closes_or_is_gone() {
    for gone in [false, true] {
        let mut server = Server::new();
        let (one, two) = (server.client(1), server.client(2));
        let (first, second) = (open(&mut server, one), open(&mut server, two));
        server.lock(one, 1, new(first, b"a"), Write, ALL).unwrap();
        assert!(server.lock(two, 1, new(second, b"w"), WriteWait, ALL).is_err());
        if gone {
            let again = server.mount_as(1, 2);
            assert_ne!(again.id, one.id);
        } else {
            server.state.close(one.id, first).unwrap();
        }
        assert_eq!(server.calls().len(), 1);
        assert_eq!(server.state.usage().waiting, 0);
        assert!(server.lock(two, 1, new(second, b"w"), Write, ALL).is_ok());
    }
}

#[test]
fn opens_and_ranges_of_all_clients_are_bounded() {
    let mut server = Server::with(Limits { all_opens: 2, all_ranges: 6, ..limits() }, Vec::new());
    let (one, two) = (server.client(1), server.client(2));
    let (first, second) = (open(&mut server, one), open(&mut server, two));
    assert_eq!(server.open(two, 2, ShareAccess::Read), Err(Status::Delay));
    server.lock(one, 1, new(first, b"a"), Read, (0, 1)).unwrap();
    server.lock(two, 1, new(second, b"a"), Read, (0, 1)).unwrap();
    assert_eq!(server.lock(two, 1, new(second, b"a"), Read, (5, 1)), Err(Status::Delay.into()));
    server.state.close(one.id, first).unwrap();
    assert!(server.open(two, 2, ShareAccess::Read).is_ok());
    assert!(server.lock(two, 1, new(second, b"a"), Read, (5, 1)).is_ok());
}

/// Calls beyond the slots of the backchannel wait for an answer.
#[test]
fn waiting_owners_are_called_as_slots_allow() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let (first, second) = (open(&mut server, one), open(&mut server, two));
    let held = server.lock(one, 1, new(first, b"a"), Write, ALL).unwrap();
    for owner in 0..5u8 {
        assert!(server.lock(two, 1, new(second, &[owner]), WriteWait, ALL).is_err());
    }
    server.state.unlock(one.id, held, 0, u64::MAX).unwrap();
    let mut calls = server.calls();
    assert_eq!((calls.len(), server.state.usage().waiting), (2, 3));
    server.hand_over();
    for left in [2, 1, 0, 0, 0] {
        let call = calls.remove(0);
        server.answer(&call, Outcome::Done(Ok(())));
        calls.extend(server.calls());
        assert_eq!(server.state.usage().waiting, left);
    }
    assert_eq!(calls, []);
}
