//! Leases, and the courtesy shown to clients whose lease expired.

use ShareAccess::{Read, Write};

use super::*;

/// RFC 8881 §8.3, §8.4.3: the server may keep the state of an expired client.
#[test]
fn an_expired_client_keeps_what_nothing_conflicts_with() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let opened = server.open(one, 1, Write).unwrap().stateid;
    server.pass(3 * LEASE, &[two]);
    assert!(server.open(two, 1, Write).is_ok());
    server.run(one);
    assert_eq!(server.io(one, 1, opened, Write), Ok(()));
}

#[test]
fn an_expired_client_yields_to_a_share_reservation() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    server.open_as(one, b"o", 1, (Read, ShareDeny::Write), Claim::New).unwrap();
    server.effects();
    server.pass(LEASE, &[two]);
    assert_eq!(server.open(two, 1, Write), Err(Status::ShareDenied));
    server.pass(SECOND, &[two]);
    let opened = server.open(two, 1, Write).unwrap().stateid;
    assert_eq!(server.io(two, 1, opened, Write), Ok(()));
    // The record goes before the answer: the client must not reclaim after a restart.
    assert_eq!(server.effects()[0], Effect::Forget([1].into()));
    let gone = server.sequence(1, request(one.session, 1, 1));
    assert_eq!(gone, Err(Status::BadSession));
}

#[test]
fn an_expired_client_yields_to_a_lock() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let first = server.open(one, 1, Write).unwrap().stateid;
    let second = server.open(two, 1, Write).unwrap().stateid;
    let all = (0, u64::MAX);
    server.lock(one, 1, Locker::New { open: first, owner: b"a" }, LockType::Write, all).unwrap();
    server.pass(LEASE + SECOND, &[two]);
    let locker = Locker::New { open: second, owner: b"a" };
    assert!(server.lock(two, 1, locker, LockType::Write, all).is_ok());
    assert_eq!(server.state.usage().clients, 1);
}

#[test]
fn an_expired_client_does_not_delay_a_recall() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    server.open(one, 1, Read).unwrap().delegation.unwrap();
    server.pass(LEASE + SECOND, &[two]);
    assert!(server.open(two, 1, Write).is_ok());
    assert_eq!(server.state.usage().delegations, 0);
}

/// A live client in the way decides: the expired one beside it keeps its state.
#[test]
fn an_expired_client_is_not_removed_in_vain() {
    let mut server = Server::new();
    let (one, two, three) = (server.client(1), server.client(2), server.client(3));
    for client in [one, two] {
        server.open_as(client, b"o", 1, (Read, ShareDeny::Write), Claim::New).unwrap();
    }
    server.pass(LEASE + SECOND, &[two, three]);
    assert_eq!(server.open(three, 1, Write), Err(Status::ShareDenied));
    assert_eq!(server.state.usage().opens, 2);
}

#[test]
fn an_expired_client_without_state_is_removed() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    let opened = server.open(one, 1, Read).unwrap();
    server.state.return_delegation(one.id, opened.delegation.unwrap().stateid).unwrap();
    server.state.close(one.id, opened.stateid).unwrap();
    server.state.exchange_id(server.now, ROOT, &owner(b"unconfirmed", 1), 0).unwrap();
    server.effects();
    server.pass(LEASE, &[two]);
    assert_eq!(server.state.usage().clients, 3);
    server.pass(SECOND, &[two]);
    assert_eq!(server.state.usage().clients, 1);
    assert_eq!(server.effects(), [Effect::Forget([1].into())]);
}

#[test]
fn courtesy_ends() {
    let mut server = Server::with(Limits { courtesy: 3 * LEASE, ..limits() }, Vec::new());
    let client = server.client(1);
    server.open(client, 1, Write).unwrap();
    server.pass(4 * LEASE, &[]);
    assert_eq!(server.state.usage().opens, 1);
    server.pass(SECOND, &[]);
    assert_eq!(server.state.usage(), Usage::default());
}

/// A request that runs for longer than a lease time keeps the lease.
#[test]
fn a_client_does_not_expire_while_its_request_runs() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    server.open_as(one, b"o", 1, (Read, ShareDeny::Write), Claim::New).unwrap();
    let Ok(Sequenced::Run(running)) = server.sequence(1, request(one.session, 1, 1)) else {
        panic!("it does not run")
    };
    server.pass(2 * LEASE, &[two]);
    assert_eq!(server.open(two, 1, Write), Err(Status::ShareDenied));
    server.state.finish(server.now, running, &[]);
    assert_eq!(server.open(two, 1, Write), Err(Status::ShareDenied));
    server.pass(LEASE + SECOND, &[two]);
    assert!(server.open(two, 1, Write).is_ok());
}
