//! The grace period: the clients that may reclaim, and its end.

use ShareAccess::{Read, Write};

use super::*;

const RECLAIM: Claim = Claim::Reclaim { delegation: false };
const NONE: ShareDeny = ShareDeny::None;

fn restarted(names: &[u8]) -> Server {
    Server::with(limits(), names.iter().map(|it| record(*it)).collect())
}

fn complete(server: &mut Server, client: Client) -> Result<(), Status> {
    server.state.reclaim_complete(server.now, client.id, false)
}

#[test]
fn a_server_without_records_has_no_grace_period() {
    let mut server = Server::new();
    assert!(!server.state.in_grace());
    let client = server.client(1);
    assert_eq!(server.open_as(client, b"o", 1, (Read, NONE), RECLAIM), Err(Status::NoGrace));
}

/// RFC 8881 §8.4.2.1, §18.51.
#[test]
fn clients_reclaim_and_then_the_period_ends_early() {
    let mut server = restarted(&[1, 2]);
    let (one, two, stranger) = (server.mount(1), server.mount(2), server.mount(3));
    assert_eq!(server.open(one, 1, Read), Err(Status::Grace));
    assert_eq!(server.io(one, 1, Stateid::ANONYMOUS, Read), Err(Status::Grace));
    let opened = server.open_as(one, b"o", 1, (Write, NONE), RECLAIM).unwrap().stateid;
    assert_eq!(server.io(one, 1, opened, Write), Ok(()));
    assert_eq!(server.open_as(stranger, b"o", 1, (Read, NONE), RECLAIM), Err(Status::ReclaimBad));
    complete(&mut server, one).unwrap();
    assert_eq!(complete(&mut server, one), Err(Status::CompleteAlready));
    assert_eq!(server.open_as(one, b"o", 2, (Read, NONE), RECLAIM), Err(Status::NoGrace));
    assert_eq!(server.open(one, 2, Read), Err(Status::Grace));
    complete(&mut server, stranger).unwrap();
    server.hand_over();
    assert!(server.state.in_grace());
    assert_eq!(server.effects(), []);
    complete(&mut server, two).unwrap();
    assert!(!server.state.in_grace());
    // Two reclaimed nothing, so its record goes in the same step.
    assert_eq!(server.effects(), [Effect::EndGrace(vec![record(1)])]);
    assert!(server.open(two, 2, Read).is_ok());
    assert_eq!(server.effects()[0], Effect::Remember(record(2)));
}

/// RFC 8881 §8.4.3: after the period, a client that was away must not reclaim.
#[test]
fn the_period_ends_after_a_lease_time() {
    let mut server = restarted(&[1, 2]);
    let one = server.mount(1);
    server.open_as(one, b"o", 1, (Write, NONE), RECLAIM).unwrap();
    server.pass(LEASE - SECOND, &[one]);
    assert!(server.state.in_grace());
    server.pass(SECOND, &[one]);
    assert!(!server.state.in_grace());
    assert_eq!(server.effects().last(), Some(&Effect::EndGrace(vec![record(1)])));
    let two = server.mount(2);
    assert_eq!(server.open_as(two, b"o", 1, (Write, NONE), RECLAIM), Err(Status::NoGrace));
}

/// RFC 8881 §18.51.3.
#[test]
fn a_new_client_says_that_it_reclaims_nothing_before_it_opens() {
    let mut server = Server::new();
    let client = server.mount(1);
    assert_eq!(server.open(client, 1, Read), Err(Status::Grace));
    assert_eq!(server.state.reclaim_complete(server.now, client.id, true), Ok(()));
    assert_eq!(server.open(client, 1, Read), Err(Status::Grace));
    complete(&mut server, client).unwrap();
    assert!(server.open(client, 1, Read).is_ok());
}

/// The verifier of its record is another one: its opens ended with it.
#[test]
fn a_client_that_restarted_too_reclaims_nothing() {
    let mut server = restarted(&[1]);
    let client = server.mount_as(1, 2);
    assert!(!server.state.in_grace());
    assert_eq!(server.effects(), [Effect::EndGrace(vec![])]);
    assert_eq!(server.open_as(client, b"o", 1, (Read, NONE), RECLAIM), Err(Status::NoGrace));
}

/// A client's right to reclaim does not pass to another host that claims its name.
#[test]
fn a_name_that_another_host_claims_ends_no_clients_reclaim() {
    let mut server = restarted(&[1]);
    let claim = |server: &mut Server| server.state.exchange_id(server.now, ELSEWHERE, &owner(&[1], 2), 0);
    assert_eq!(claim(&mut server), Err(Status::ClidInUse));
    server.hand_over();
    assert_eq!(claim(&mut server), Err(Status::ClidInUse));
    let one = server.mount(1);
    server.open_as(one, b"o", 1, (Write, NONE), RECLAIM).unwrap();
    let mut server = restarted(&[1]);
    server.pass(LEASE, &[]);
    assert!(claim(&mut server).is_ok());
}

/// RFC 8881 §9.1, §18.10.
#[test]
fn locks_are_reclaimed_with_the_opens() {
    let mut server = restarted(&[1, 2]);
    let (one, two) = (server.mount(1), server.mount(2));
    let lock = |server: &mut Server, client: Client, open: Stateid, reclaim| {
        let request = LockFile { file: &1, kind: LockType::Write, offset: 0, length: 10 };
        server.state.lock(server.now, client.id, request, Locker::New { open, owner: b"a" }, reclaim)
    };
    let first = server.open_as(one, b"o", 1, (Write, NONE), RECLAIM).unwrap().stateid;
    let second = server.open_as(two, b"o", 1, (Write, NONE), RECLAIM).unwrap().stateid;
    assert_eq!(lock(&mut server, one, first, false), Err(Status::Grace.into()));
    assert!(lock(&mut server, one, first, true).is_ok());
    assert_eq!(lock(&mut server, two, second, true), Err(Status::ReclaimConflict.into()));
    let request = LockFile { file: &1, kind: LockType::Write, offset: 90, length: 10 };
    assert_eq!(server.state.test_lock(server.now, two.id, request, b"a"), Err(Status::Grace.into()));
    complete(&mut server, one).unwrap();
    complete(&mut server, two).unwrap();
    assert_eq!(lock(&mut server, one, first, true), Err(Status::NoGrace.into()));
    assert!(matches!(lock(&mut server, two, second, false), Err(NotLocked::Denied(_))));
}

/// RFC 8881 §9.7, §15.1.9.
#[test]
fn a_reclaim_that_conflicts_is_refused() {
    let mut server = restarted(&[1, 2]);
    let (one, two) = (server.mount(1), server.mount(2));
    server.open_as(one, b"o", 1, (Write, NONE), RECLAIM).unwrap();
    let conflict = server.open_as(two, b"o", 1, (Read, ShareDeny::Write), RECLAIM);
    assert_eq!(conflict, Err(Status::ReclaimConflict));
}

/// RFC 8881 §10.2.1: a reclaimed delegation of a client that cannot be called is to be returned.
#[test]
fn a_read_delegation_is_reclaimed() {
    let mut server = restarted(&[1]);
    let client = server.mount(1);
    let claim = Claim::Reclaim { delegation: true };
    let opened = server.open_as(client, b"o", 1, (Read, NONE), claim).unwrap();
    let delegation = opened.delegation.unwrap();
    assert!(delegation.recall);
    assert_eq!(server.calls(), []);
    server.state.return_delegation(client.id, delegation.stateid).unwrap();
    server.run(client);
    let probe = server.calls().pop().unwrap();
    server.answer(&probe, Outcome::Done(Ok(())));
    assert!(!server.open_as(client, b"o", 2, (Read, NONE), claim).unwrap().delegation.unwrap().recall);
}

#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let mut server = restarted(&[1]);
    let client = server.mount(1);
    server.state.destroy_session(client.connection, client.session, None).unwrap();
    server.state.destroy_client(server.now, HOST, client.id).unwrap();
    assert!(!server.state.in_grace());
}

/// RFC 8881 §8.4.3: a client whose delegation was revoked must not reclaim it after a restart.
#[test]
fn a_revoked_delegation_is_not_reclaimed() {
    let mut server = Server::new();
    let (one, two) = (server.client(1), server.client(2));
    server.open(one, 1, Read).unwrap().delegation.unwrap();
    assert_eq!(server.open(two, 1, Write), Err(Status::Delay));
    server.effects();
    server.pass(LEASE, &[one, two]);
    let revoked = Record { revoked: true, ..record(1) };
    assert!(server.effects().contains(&Effect::Remember(revoked.clone())));
    let mut server = Server::with(limits(), vec![revoked]);
    let one = server.mount(1);
    let opened = server.open_as(one, b"o", 1, (Read, NONE), Claim::Reclaim { delegation: true }).unwrap();
    assert_eq!(opened.delegation, Err(WhyNoDelegation::Resource(false)));
}

#[test]
fn state_that_is_cut_short_is_not_loaded() {
    let mut server = restarted(&[1, 2]);
    let one = server.mount(1);
    let opened = server.open_as(one, b"o", 1, (Write, NONE), RECLAIM).unwrap().stateid;
    let request = LockFile { file: &1, kind: LockType::Write, offset: 0, length: 10 };
    let locker = Locker::New { open: opened, owner: b"a" };
    server.state.lock(server.now, one.id, request, locker, true).unwrap();
    let saved = server.state.save(|it| it.to_be_bytes().to_vec());
    let load =
        |saved: &[u8]| ServerState::load(saved, limits(), |it| Some(u64::from_be_bytes(it.try_into().ok()?)));
    assert!(load(&saved).is_ok());
    for end in 0..saved.len() {
        assert!(load(&saved[..end]).is_err(), "cut at byte {end}");
    }
    // Any byte may be wrong: an error or another state, but no panic.
    for at in 0..saved.len() {
        let mut wrong = saved.clone();
        wrong[at] ^= 0xff;
        if let Ok(mut state) = load(&wrong) {
            state.tick(server.now + 2 * LEASE);
        }
    }
}
