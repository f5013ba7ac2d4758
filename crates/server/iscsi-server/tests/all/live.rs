//! A server that changes while it runs: units, targets, access and portals come and go, and
//! sessions notice the changes that concern them.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{BLOCKS, CORES, Client, IQN, address, config, read10, unit, write10};
use iscsi::pdu::Opcode;
use iscsi_server::config::{Acl, AclLun, LunConfig, Portal, ServerConfig, TargetConfig};
use iscsi_server::{Server, Unit};

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const CHECK_CONDITION: u8 = 2;

fn start() -> (Server, ServerConfig) {
    let config = config();
    (Server::start(CORES, config.clone()).expect("the server starts"), config)
}

/// Sense key, ASC and ASCQ of the next TEST UNIT READY; zeros if it is good.
fn next(client: &mut Client, lun: u16) -> (u8, u8, u8) {
    match client.read(lun, &TEST_UNIT_READY, 0) {
        (0, _) => (0, 0, 0),
        (status, sense) => {
            assert_eq!(status, CHECK_CONDITION);
            (sense[2] & 0xf, sense[12], sense[13])
        }
    }
}

fn report_luns(client: &mut Client, lun: u16) -> Vec<u16> {
    let mut cdb = [0; 12];
    cdb[0] = 0xa0;
    cdb[6..10].copy_from_slice(&4096u32.to_be_bytes());
    let (status, data) = client.read(lun, &cdb, 4096);
    assert_eq!(status, 0);
    data[8..].chunks(8).map(|lun| u16::from_be_bytes([lun[0] & 0x3f, lun[1]])).collect()
}

/// Sense key, ASC and ASCQ of TEST UNIT READY after a change of the inventory.
const LUNS_CHANGED: (u8, u8, u8) = (6, 0x3f, 0x0e);
const NO_SUCH_UNIT: (u8, u8, u8) = (5, 0x25, 0);
const POWER_ON: (u8, u8, u8) = (6, 0x29, 0);
const INQUIRY_CHANGED: (u8, u8, u8) = (6, 0x3f, 0x03);
const GOOD: (u8, u8, u8) = (0, 0, 0);

#[test]
fn a_unit_that_is_added_is_told_of_and_one_that_is_removed_is_not_there_any_more() {
    let (server, mut config) = start();
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    client.settle(3);
    assert_eq!(next(&mut client, 5), NO_SUCH_UNIT);
    config.targets[0].units.push(LunConfig {
        lun: 5,
        unit: unit("c"),
        limiter: Default::default(),
        stages: false,
    });
    let applied = server.handle().apply(config.clone()).unwrap();
    assert_eq!((applied.changed, applied.leaving.len()), (1, 0));
    assert_eq!(next(&mut client, 0), LUNS_CHANGED);
    assert_eq!(next(&mut client, 0), GOOD);
    assert_eq!(report_luns(&mut client, 0), [0, 3, 5]);
    assert_eq!(next(&mut client, 3), GOOD, "REPORT LUNS has told it for every unit");
    assert_eq!(next(&mut client, 5), POWER_ON);
    assert_eq!(client.write(5, &write10(0, 1), &[7; 512]).0, 0);

    let removed = config.targets[0].units.remove(1);
    let Unit::Disk(disk) = removed.unit else { panic!("a disk") };
    let weak = Arc::downgrade(&disk);
    drop(disk);
    server.handle().apply(config.clone()).unwrap();
    assert_eq!(next(&mut client, 3), NO_SUCH_UNIT);
    assert_eq!(report_luns(&mut client, 5), [0, 5]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while weak.strong_count() > 0 {
        assert!(Instant::now() < deadline, "the unit is still held");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The same LUN for another unit.
    config.targets[0].units[1].unit = unit("d");
    server.handle().apply(config.clone()).unwrap();
    let heard = [next(&mut client, 5), next(&mut client, 5), next(&mut client, 5)];
    assert_eq!(heard, [POWER_ON, INQUIRY_CHANGED, LUNS_CHANGED]);
    assert_eq!(client.read(5, &read10(0, 1), 512), (0, vec![0; 512]), "the new one's blocks");
    // Nothing is changed, and no session hears of it.
    let applied = server.handle().apply(config).unwrap();
    assert_eq!((applied.changed, applied.leaving.len()), (0, 0));
    assert_eq!((next(&mut client, 0), next(&mut client, 0)), (LUNS_CHANGED, GOOD));
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_session_that_may_not_stay_is_asked_to_go_and_others_notice_nothing() {
    let (server, mut config) = start();
    let mut leaving = Client::login(address(&server), Client::config(1));
    let mut staying = Client::login(address(&server), Client::config(2));
    leaving.settle(0);
    staying.settle(0);
    let acl = Acl {
        initiator: Client::config(2).initiator,
        auth: None,
        user: None,
        luns: None,
        limits: Default::default(),
    };
    config.targets[0].acls = Some(vec![acl]);
    let applied = server.handle().apply(config.clone()).unwrap();
    assert_eq!((applied.changed, applied.leaving.len()), (0, 1));
    assert!(server.handle().has_session(applied.leaving[0]));
    let pdu = leaving.receive().expect("an Async Message");
    assert_eq!(pdu.bhs.opcode(), Some(Opcode::AsyncMessage));
    assert_eq!(pdu.bhs.bytes()[36], 1, "AsyncEvent: the target requests logout");
    assert_eq!(next(&mut leaving, 0), GOOD, "it may end what it is at");
    while leaving.receive().is_some() {}
    assert!(!Client::connect(address(&server)).log_in_if_taken(), "and does not come back");
    assert_eq!(next(&mut staying, 0), GOOD);
    // Its target is removed.
    config.targets =
        vec![TargetConfig { name: "iqn.2026-01.org.example:other".into(), ..config.targets[0].clone() }];
    let applied = server.handle().apply(config).unwrap();
    assert_eq!(applied.leaving.len(), 1);
    while staying.receive().is_some() {}
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn what_an_initiator_sees_of_a_target_can_change() {
    let (server, mut config) = start();
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let sees = |luns: &[(u16, u16, bool)]| {
        let lun = |&(seen_as, unit, read_only): &(u16, u16, bool)| AclLun { seen_as, unit, read_only };
        let luns = Some(luns.iter().map(lun).collect());
        Some(vec![Acl { initiator: "*".into(), auth: None, user: None, luns, limits: Default::default() }])
    };
    config.targets[0].acls = sees(&[(0, 0, true), (9, 3, false)]);
    server.handle().apply(config.clone()).unwrap();
    client.settle(0);
    assert_eq!(report_luns(&mut client, 0), [0, 9]);
    let (status, sense) = client.write(0, &write10(0, 1), &[1; 512]);
    assert_eq!((status, sense[2] & 0xf), (CHECK_CONDITION, 7), "DATA PROTECT");
    config.targets[0].acls = sees(&[(0, 0, false)]);
    server.handle().apply(config).unwrap();
    client.settle(0);
    assert_eq!(client.write(0, &write10(0, 1), &[1; 512]).0, 0);
    assert_eq!(next(&mut client, 9), NO_SUCH_UNIT);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn portals_come_and_go_and_the_connections_of_one_that_went_stay() {
    let (server, mut config) = start();
    let first = address(&server);
    let mut client = Client::login(first, Client::config(1));
    client.settle(0);
    let other = Portal { listen: "[::1]:0".parse().unwrap(), ..config.portals[0] };
    config.portals.push(other);
    server.handle().apply(config.clone()).unwrap();
    let second = server.portals()[1].address;
    assert_eq!(server.portals()[0].address, first);
    Client::login(second, Client::config(2)).settle(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut wrong = config.clone();
    wrong.targets[0].alias = "changed".into();
    wrong.portals.push(Portal { listen: taken.local_addr().unwrap(), ..config.portals[0] });
    assert!(server.handle().apply(wrong).is_err());
    assert_eq!(server.handle().targets()[0].alias, "test", "whole or not at all");
    config.portals.remove(0);
    server.handle().apply(config).unwrap();
    assert_eq!(server.portals().len(), 1);
    let deadline = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(first).is_ok() {
        assert!(Instant::now() < deadline, "it listens still");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(next(&mut client, 0), GOOD);
    Client::login(second, Client::config(3)).settle(0);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn changes_under_load_lose_no_command_and_no_login() {
    let (server, mut config) = start();
    let to = address(&server);
    let handle = server.handle();
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let done = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let clients: Vec<_> = (1..5u8)
        .map(|number| {
            let (ended, done) = (ended.clone(), done.clone());
            std::thread::spawn(move || {
                let mut rounds = 0u32;
                while rounds == 0 || !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut client = Client::login(to, Client::config(number));
                    for i in 0..50u32 {
                        let lba = (rounds * 50 + i) % BLOCKS as u32;
                        let block = [number ^ i as u8; 512];
                        // Unit attentions report the changes.
                        while client.write(0, &write10(lba, 1), &block).0 != 0 {}
                        let (status, _) = client.read(7, &read10(0, 1), 512);
                        assert!(status == 0 || status == CHECK_CONDITION);
                    }
                    rounds += 1;
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            })
        })
        .collect();
    let (mut changes, deadline) = (0, Instant::now() + Duration::from_secs(60));
    // As long as the clients take to do something meanwhile.
    while changes < 200 || done.load(std::sync::atomic::Ordering::Relaxed) < 4 {
        assert!(Instant::now() < deadline, "{changes} changes, and no rounds");
        changes += 1;
        config.targets[0].units.push(LunConfig {
            lun: 7,
            unit: unit("seven"),
            limiter: Default::default(),
            stages: false,
        });
        handle.apply(config.clone()).unwrap();
        config.targets[0].units.pop();
        handle.apply(config.clone()).unwrap();
    }
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(handle.targets()[0].name, IQN);
    server.stop(Duration::ZERO).unwrap();
}

/// The command window of a session keeps its depth, so its new connections have room for as many
/// commands.
#[test]
fn a_connection_that_joins_under_a_lower_queue_depth_takes_what_its_window_lets_in() {
    const COMMANDS: usize = 40;
    let (server, mut config) = start();
    let mut first = Client::login(address(&server), Client::config(1));
    first.settle(0);
    config.limits.queue_depth = 1;
    server.handle().apply(config).unwrap();
    let established = first.session.clone().expect("logged in");
    let mut joining = Client::config(1);
    (joining.tsih, joining.cid, joining.cmd_sn) = (established.tsih, 1, first.cmd_sn);
    joining.session = Some(established.params);
    let mut second = Client::login(address(&server), joining);
    for _ in 0..COMMANDS {
        let mut write = second.command(0, &write10(0, 1));
        write.set_write(true);
        write.edtl.set(512);
        second.send(write.into(), &[]);
    }
    for _ in 0..COMMANDS {
        let pdu = second.receive().expect("an answer");
        assert_eq!(pdu.bhs.opcode(), Some(Opcode::ReadyToTransfer), "{}", pdu.bhs);
    }
    server.stop(Duration::ZERO).unwrap();
}
