//! Names are claims: access of an initiator that uses the name and ISID of another, with and
//! without a credential of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{BLOCKS, CORES, Client, IQN, address, config, read10, server, write10};
use backing::MemoryStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::chap::{Credential, Hash, Secret};
use iscsi::login::initiator::{Chap as Proof, Config};
use iscsi_server::config::{Acl, AclLun, Auth, Chap, LunConfig, ServerConfig, TargetConfig};
use iscsi_server::{Server, Unit};

const OPEN: &str = "iqn.2026-01.org.example:open";
const REFUSED: &str = "authorization failure";

fn credential(name: &str, secret: &str) -> Credential {
    Credential { name: name.into(), secret: Secret::new(secret) }
}

fn chap(users: &[(&str, &str)]) -> Auth {
    Auth::Chap(Chap {
        users: users.iter().map(|(name, secret)| credential(name, secret)).collect(),
        mutual: None,
        hashes: vec![Hash::Md5],
    })
}

const ALICE: (&str, &str) = ("alice", "a secret of alice");
const BOB: (&str, &str) = ("bob", "a secret of bob's");

/// Initiator 1, which authenticates as `user`.
fn proving(user: (&str, &str)) -> Config {
    let chap = Proof { credential: credential(user.0, user.1), target: None, hashes: vec![] };
    Config { skip_security: false, chap: Some(chap), ..Client::config(1) }
}

fn entry(initiator: &str) -> Acl {
    Acl { initiator: initiator.into(), auth: None, user: None, luns: None, limits: Default::default() }
}

/// A server with one target that admits alice and bob.
fn shared(change: impl FnOnce(&mut ServerConfig)) -> Server {
    server(|config| {
        config.targets[0].auth = chap(&[ALICE, BOB]);
        change(config);
    })
}

fn settled(server: &Server, config: Config) -> Client {
    let mut client = Client::login(address(server), config);
    client.settle(0);
    client
}

#[track_caller]
fn is_refused(server: &Server, config: Config) {
    let refused = Client::connect(address(server)).log_in(config).expect_err("it gets in");
    assert!(refused.to_lowercase().contains(REFUSED), "{refused}");
}

/// A further connection of the session of `of`.
fn joining(of: &Client, cid: u16, user: (&str, &str)) -> Config {
    let established = of.session.clone().expect("logged in");
    Config {
        tsih: established.tsih,
        cid,
        session: Some(established.params),
        cmd_sn: of.cmd_sn,
        ..proving(user)
    }
}

/// PERSISTENT RESERVE OUT with the two keys.
fn reserve_out(client: &mut Client, action: u8, kind: u8, key: u64, action_key: u64) -> u8 {
    let list = [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0; 8]].concat();
    client.write(0, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list).0
}

/// Registers, and reserves for itself alone.
fn reserve(client: &mut Client) {
    assert_eq!(reserve_out(client, 6, 0, 0, 5), 0, "REGISTER");
    assert_eq!(reserve_out(client, 1, 3, 5, 0), 0, "RESERVE, exclusive access");
}

/// Two units that copy among each other, with their NAA designators.
fn two_units() -> [(Unit, Vec<u8>); 2] {
    let registry = Registry::new();
    ["secret", "own"].map(|name| {
        let store = Arc::new(MemoryStore::new(BLOCKS as u64 * 512, false).expect("memory"));
        let options = DiskOptions::default().with_identity(name);
        let naa = options.identity.naa.clone();
        (Unit::Disk(DiskUnit::new(store, options, &registry).expect("a disk")), naa)
    })
}

/// The parameters of an EXTENDED COPY of the first block of one unit to the first of another.
pub fn copy_list(from: &[u8], to: &[u8]) -> Vec<u8> {
    let cscd = |naa: &[u8]| {
        let mut cscd = [&[0xe4, 0, 0, 0, 1, 3, 0, naa.len() as u8][..], naa].concat();
        cscd.resize(32, 0);
        cscd
    };
    let segment = [&[2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 16]].concat();
    let head = [1, 0x10, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    [&head[..], &cscd(from), &cscd(to), &segment].concat()
}

/// That copy: its status, sense key and additional sense.
fn copy(client: &mut Client, from: &[u8], to: &[u8]) -> (u8, Option<(u8, u8, u8)>) {
    let list = copy_list(from, to);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    let (status, sense) = client.write(0, &cdb, &list);
    (status, (status == 2).then(|| (sense[2] & 15, sense[12], sense[13])))
}

/// COPY ABORTED, COPY TARGET DEVICE NOT REACHABLE.
const UNREACHABLE: (u8, Option<(u8, u8, u8)>) = (2, Some((0x0a, 0x0d, 0x02)));

/// A server with a target for alice, whose unit is the first, and a second target with the other
/// unit.
fn two_targets(second: Auth) -> (Server, [Vec<u8>; 2]) {
    let [(unit, secret), (other, own)] = two_units();
    let lun = |unit| vec![LunConfig { lun: 0, unit, limiter: Default::default(), stages: false }];
    let base = config();
    let first = TargetConfig { auth: chap(&[ALICE]), units: lun(unit), ..base.targets[0].clone() };
    let second =
        TargetConfig { name: OPEN.into(), auth: second, units: lun(other), ..base.targets[0].clone() };
    let config = ServerConfig { targets: vec![first, second], ..base };
    (Server::start(CORES, config).expect("the server starts"), [secret, own])
}

fn to_the_other(config: Config) -> Config {
    Config { target: Some(OPEN.into()), ..config }
}

#[test]
fn a_copy_does_not_reach_the_unit_of_a_victim_whose_name_is_claimed() {
    let eve = chap(&[("alice", "another secret")]);
    for (what, second, attacker) in [
        ("no proof at all", Auth::None, Client::config(1)),
        ("a user of the same name", eve, proving(("alice", "another secret"))),
    ] {
        let (server, [secret, own]) = two_targets(second);
        let mut victim = settled(&server, proving(ALICE));
        assert_eq!(victim.write(0, &write10(0, 1), &[0xaa; 512]).0, 0);
        reserve(&mut victim);
        let mut attacker = settled(&server, to_the_other(attacker));
        assert_eq!(copy(&mut attacker, &secret, &own), UNREACHABLE, "{what} reads");
        assert_eq!(copy(&mut attacker, &own, &secret), UNREACHABLE, "{what} writes");
        assert_eq!(attacker.read(0, &read10(0, 1), 512), (0, vec![0; 512]), "{what}");
        assert_eq!(victim.read(0, &read10(0, 1), 512), (0, vec![0xaa; 512]), "{what}");
        assert_eq!(copy(&mut attacker, &own, &own).0, 0, "its own unit it reaches");
        server.stop(Duration::ZERO).expect("everything is flushed");
    }
}

#[test]
fn a_copy_reaches_what_the_same_user_sees_in_another_session() {
    let (server, [secret, own]) = two_targets(chap(&[ALICE]));
    let mut there = settled(&server, proving(ALICE));
    assert_eq!(there.write(0, &write10(0, 1), &[0xaa; 512]).0, 0);
    let mut here = settled(&server, to_the_other(proving(ALICE)));
    assert_eq!(copy(&mut here, &secret, &own), (0, None));
    assert_eq!(here.read(0, &read10(0, 1), 512), (0, vec![0xaa; 512]));
    // Another initiator of the same user reaches its own sessions' units only.
    let other = Config { initiator: Client::config(2).initiator, ..to_the_other(proving(ALICE)) };
    let mut other = settled(&server, other);
    assert_eq!(copy(&mut other, &secret, &own), UNREACHABLE);
    drop(there);
    while server.sessions() > 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(copy(&mut here, &secret, &own), UNREACHABLE, "the other session is over");
    server.stop(Duration::ZERO).expect("everything is flushed");
}

#[test]
fn another_user_does_not_end_a_session_by_reinstating_it() {
    let server = shared(|_| ());
    let mut alice = settled(&server, proving(ALICE));
    reserve(&mut alice);
    is_refused(&server, proving(BOB));
    assert_eq!(alice.write(0, &write10(0, 1), &[1; 512]).0, 0, "her session goes on");
    // Another ISID is another nexus, which her reservation keeps out.
    let mut bob = proving(BOB);
    bob.isid.0[5] = 9;
    let mut bob = Client::login(address(&server), bob);
    while bob.read(0, &[0; 6], 0).0 == 2 {}
    assert_eq!(bob.write(0, &write10(0, 1), &[2; 512]).0, 0x18, "RESERVATION CONFLICT");
    let mut again = settled(&server, proving(ALICE));
    while alice.receive().is_some() {}
    assert_eq!(again.read(0, &read10(0, 1), 512), (0, vec![1; 512]), "she reinstates it herself");
    server.stop(Duration::ZERO).expect("everything is flushed");
}

#[test]
fn another_user_does_not_join_a_session_or_replace_its_connection() {
    for level in [0, 2] {
        let server = shared(|_| ());
        let mut config = proving(ALICE);
        (config.offer.max_connections, config.offer.error_recovery_level) = (4, level);
        let mut alice = settled(&server, config);
        is_refused(&server, joining(&alice, 1, BOB));
        is_refused(&server, joining(&alice, 0, BOB));
        alice.settle(0);
        let mut second = Client::login(address(&server), joining(&alice, 1, ALICE));
        assert_eq!(second.read(0, &read10(0, 1), 512).0, 0, "she joins it herself");
        server.stop(Duration::ZERO).expect("everything is flushed");
    }
}

#[test]
fn an_entry_with_a_user_admits_that_user_only() {
    let name = Client::config(1).initiator;
    let server = shared(|config| {
        let masked = vec![AclLun { seen_as: 0, unit: 3, read_only: false }];
        let alices = Acl { user: Some("alice".into()), luns: Some(masked), ..entry(&name) };
        config.targets[0].acls = Some(vec![alices, entry("*")]);
    });
    let attempt = |config| Client::connect(address(&server)).log_in(config);
    let refused = attempt(proving(BOB)).expect_err("bob gets alice's units");
    let wrong = attempt(proving(("alice", "not what is hers"))).expect_err("a wrong secret");
    assert_eq!(refused, wrong, "the answer tells nothing of the entry");
    settled(&server, proving(ALICE));
    settled(&server, Config { initiator: Client::config(2).initiator, ..proving(BOB) });
    server.stop(Duration::ZERO).expect("everything is flushed");
}

#[test]
fn registrations_stay_with_the_user_who_made_them() {
    let server = shared(|_| ());
    let mut alice = settled(&server, proving(ALICE));
    reserve(&mut alice);
    drop(alice);
    while server.sessions() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    is_refused(&server, proving(BOB));
    let mut alice = settled(&server, proving(ALICE));
    assert_eq!(alice.write(0, &write10(0, 1), &[1; 512]).0, 0, "it is her reservation still");
    assert_eq!(reserve_out(&mut alice, 6, 0, 0, 0), 0, "REGISTER with no key");
    drop(alice);
    while server.sessions() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    settled(&server, proving(BOB));
    server.stop(Duration::ZERO).expect("everything is flushed");
}

#[test]
fn a_user_who_would_not_be_let_in_any_more_keeps_nothing() {
    let mut config = config();
    config.targets[0].auth = chap(&[ALICE, BOB]);
    let server = Server::start(CORES, config.clone()).expect("the server starts");
    let mut old = settled(&server, proving(ALICE));
    reserve(&mut old);
    // Alice's secret has leaked. It is replaced while someone who knows the old one has her nexus.
    let renewed = ("alice", "a new secret of hers");
    config.targets[0].auth = chap(&[renewed, BOB]);
    server.handle().apply(config.clone()).expect("it is applied");
    let mut new = settled(&server, proving(renewed));
    while old.receive().is_some() {}
    assert_eq!(new.write(0, &write10(0, 1), &[1; 512]).0, 0);
    is_refused(&server, proving(BOB));
    config.targets[0].auth = Auth::None;
    server.handle().apply(config).expect("it is applied");
    settled(&server, Client::config(1));
    while new.receive().is_some() {}
    server.stop(Duration::ZERO).expect("everything is flushed");
}

#[test]
fn a_session_whose_name_becomes_another_users_is_asked_to_go() {
    let mut config = config();
    config.targets[0].auth = chap(&[ALICE, BOB]);
    let server = Server::start(CORES, config.clone()).expect("the server starts");
    let mut bob = settled(&server, proving(BOB));
    assert_eq!(server.handle().sessions()[0].user.as_deref(), Some("bob"));
    let alices = Acl { user: Some("alice".into()), ..entry(&Client::config(1).initiator) };
    config.targets[0].acls = Some(vec![alices]);
    let applied = server.handle().apply(config).expect("it is applied");
    assert_eq!(applied.leaving.len(), 1);
    while bob.receive().is_some() {}
    settled(&server, proving(ALICE));
    server.stop(Duration::ZERO).expect("everything is flushed");
}

#[test]
fn session_handles_do_not_count_up() {
    let server = server(|_| ());
    let clients: Vec<Client> =
        (1..6).map(|number| Client::login(address(&server), Client::config(number))).collect();
    let handles: Vec<u16> = clients.iter().map(|c| c.session.as_ref().expect("logged in").tsih).collect();
    assert!(!handles.contains(&0), "{handles:?}");
    assert!(!handles.windows(2).all(|two| two[1] == two[0] + 1), "{handles:?}");
    assert_eq!(server.handle().sessions().iter().filter(|s| s.target.as_deref() == Some(IQN)).count(), 5);
    server.stop(Duration::ZERO).expect("everything is flushed");
}
