//! Commands that wait while their unit is removed, replaced or changed: they reach no other unit.

#[allow(dead_code, reason = "not every test uses all of it")]
mod support;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::pdu::{DataOut, Opcode, ScsiCommand, TaskAttribute};
use iscsi_server::config::{Acl, AclLun, Limiter, LunConfig, QosLimits, Rates, ServerConfig};
use iscsi_server::{Server, Unit};
use support::{CORES, Client, PATIENCE, address, config, read10, status, unit, write10};

/// CHECK CONDITION, ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED: an initiator does not send such a
/// command again.
const NOT_THERE: (u8, u8, u8, u8) = (2, 5, 0x25, 0);
/// CHECK CONDITION, UNIT ATTENTION, I_T NEXUS LOSS OCCURRED.
const NEXUS_LOST: (u8, u8, u8, u8) = (2, 6, 0x29, 7);
const GOOD: (u8, u8, u8, u8) = (0, 0, 0, 0);

fn start(change: impl FnOnce(&mut ServerConfig)) -> (Server, ServerConfig, Client) {
    let mut config = config();
    change(&mut config);
    let server = Server::start(CORES, config.clone()).expect("the server starts");
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    client.settle(3);
    (server, config, client)
}

fn stop(server: Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// Tag of the next SCSI Response, and its status, sense key, ASC and ASCQ.
fn next_end(client: &mut Client) -> (u32, (u8, u8, u8, u8)) {
    let pdu = client.receive().expect("an answer");
    assert_eq!(pdu.bhs.opcode(), Some(Opcode::ScsiResponse), "{}", pdu.bhs);
    let (status, sense) = status(&pdu);
    let code = if sense.is_empty() { (0, 0, 0) } else { (sense[2] & 0xf, sense[12], sense[13]) };
    (pdu.bhs.itt(), (status, code.0, code.1, code.2))
}

/// Sends a write of one block, with all of its data.
fn send_write(client: &mut Client, lba: u32, byte: u8, attribute: TaskAttribute) -> u32 {
    let mut write = client.command(0, &write10(lba, 1));
    write.set_write(true);
    write.flags = write.flags & !7 | attribute.code();
    write.edtl.set(512);
    client.send(write.into(), &[byte; 512]);
    write.itt.get()
}

/// Sends a write of 64 blocks and gets the R2T for its data.
fn start_write(client: &mut Client, lba: u32) -> (ScsiCommand, DataOut) {
    let mut write = client.command(0, &write10(lba, 64));
    write.set_write(true);
    write.edtl.set(64 * 512);
    client.send(write.into(), &[]);
    let r2t = client.receive().expect("an R2T");
    assert_eq!(r2t.bhs.opcode(), Some(Opcode::ReadyToTransfer));
    let mut out = DataOut::new(write.itt.get(), r2t.bhs.as_ready_to_transfer().ttt.get(), write.lun, 0, 0);
    out.set_final(true);
    (write, out)
}

/// Serves another unit under LUN 0, and the old one under LUN 9.
fn replace(server: &Server, config: &mut ServerConfig) {
    let new = LunConfig { lun: 0, unit: unit("new"), limiter: Default::default() };
    let old = std::mem::replace(&mut config.targets[0].units[0], new);
    config.targets[0].units.push(LunConfig { lun: 9, limiter: Default::default(), ..old });
    server.handle().apply(config.clone()).expect("nothing in it can fail");
}

/// Whether blocks 0 to 127 of a unit have their first content.
fn is_untouched(client: &mut Client, lun: u16) -> bool {
    client.settle(lun);
    client.read(lun, &read10(0, 128), 128 * 512) == (0, vec![0; 128 * 512])
}

#[test]
fn ordered_writes_end_when_their_unit_is_replaced_and_reach_no_unit() {
    let (server, mut config, mut client) = start(|_| ());
    let (first, data) = start_write(&mut client, 0);
    let waiting: Vec<u32> =
        (8..16).map(|lba| send_write(&mut client, lba, 0xaa, TaskAttribute::Ordered)).collect();
    // The writes have arrived when this read is answered.
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    replace(&server, &mut config);
    for itt in waiting {
        assert_eq!(next_end(&mut client), (itt, NOT_THERE));
    }
    assert!(is_untouched(&mut client, 0), "a write reached the new unit");
    // Data still missing for the old unit makes no command of the new one wait.
    let ordered = send_write(&mut client, 127, 0xbb, TaskAttribute::Ordered);
    assert_eq!(next_end(&mut client), (ordered, GOOD));
    client.send(data.into(), &[0xcc; 64 * 512]);
    assert_eq!(next_end(&mut client), (first.itt.get(), NOT_THERE));
    assert!(is_untouched(&mut client, 9), "a write reached the old unit after it was replaced");
    let (status, now) = client.read(0, &read10(0, 128), 128 * 512);
    assert!(status == 0 && now[..127 * 512] == [0; 127 * 512] && now[127 * 512..] == [0xbb; 512]);
    stop(server);
}

/// A block has its turn a minute after the one before it.
fn turn_a_minute() -> Arc<Limiter> {
    let bandwidth = Rates { total: Some(8), ..Rates::default() };
    Arc::new(Limiter::new(QosLimits { bandwidth, burst: Duration::ZERO, ..QosLimits::default() }))
}

#[test]
fn writes_that_wait_for_a_limit_end_when_their_unit_is_replaced() {
    let (server, mut config, mut client) = start(|config| {
        config.targets[0].units[0].limiter = turn_a_minute();
    });
    let first = send_write(&mut client, 127, 0xaa, TaskAttribute::Simple);
    assert_eq!(next_end(&mut client), (first, GOOD));
    let mut waiting: Vec<u32> =
        (0..8).map(|lba| send_write(&mut client, lba, 0xaa, TaskAttribute::Simple)).collect();
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    replace(&server, &mut config);
    while !waiting.is_empty() {
        let (itt, end) = next_end(&mut client);
        assert_eq!(end, NOT_THERE);
        waiting.retain(|one| *one != itt);
    }
    assert!(is_untouched(&mut client, 0), "a write reached the new unit");
    stop(server);
}

#[test]
fn reads_that_wait_for_room_never_bring_another_units_data() {
    const LEN: usize = 1 << 20;
    let (server, mut config, mut client) = start(|config| {
        let full = LunConfig { lun: 5, unit: unit("full"), limiter: Default::default() };
        config.targets[0].units.push(full);
    });
    client.settle(5);
    assert_eq!(client.write(5, &write10(0, 2048), &vec![0xee; LEN]).0, 0);
    let reads: Vec<u32> = (0..64)
        .map(|_| {
            let mut read = client.command(0, &read10(0, 2048));
            read.set_read(true);
            read.edtl.set(LEN as u32);
            client.send(read.into(), &[]);
            read.itt.get()
        })
        .collect();
    // No client reads: most of the reads wait.
    std::thread::sleep(Duration::from_millis(300));
    config.targets[0].units[0].unit = config.targets[0].units[2].unit.clone();
    server.handle().apply(config.clone()).expect("nothing in it can fail");
    let (mut good, mut ended) = (0, 0);
    while good + ended < reads.len() {
        let pdu = client.receive().expect("an answer");
        match pdu.bhs.opcode() {
            Some(Opcode::DataIn) => {
                assert!(pdu.data.iter().all(|byte| *byte == 0), "the new unit's data");
                good += usize::from(pdu.bhs.as_data_in().has_status());
            }
            _ => {
                let (status, sense) = status(&pdu);
                assert_eq!((status, sense[2] & 0xf, sense[12], sense[13]), NOT_THERE);
                ended += 1;
            }
        }
    }
    assert!(good > 0 && ended > 0, "{good} brought data and {ended} ended");
    stop(server);
}

#[test]
fn a_command_ahead_of_its_turn_ends_when_its_unit_is_replaced() {
    let (server, mut config, mut client) = start(|_| ());
    let first = client.command(3, &[0; 6]);
    let ahead = send_write(&mut client, 0, 0xaa, TaskAttribute::Simple);
    let mut ping = iscsi::pdu::NopOut::ping(client.tag());
    ping.as_bhs_mut().set_immediate(true);
    ping.cmd_sn.set(client.cmd_sn);
    client.send(ping.into(), &[]);
    assert_eq!(client.receive().expect("a NOP-In").bhs.opcode(), Some(Opcode::NopIn));
    replace(&server, &mut config);
    client.send(first.into(), &[]);
    assert_eq!(next_end(&mut client).0, first.itt.get());
    assert_eq!(next_end(&mut client), (ahead, NOT_THERE));
    assert!(is_untouched(&mut client, 0), "the write reached the new unit");
    stop(server);
}

#[test]
fn writes_that_wait_end_when_the_right_to_write_is_taken_away() {
    let (server, mut config, mut client) = start(|_| ());
    let (first, data) = start_write(&mut client, 0);
    let waiting: Vec<u32> =
        (8..16).map(|lba| send_write(&mut client, lba, 0xaa, TaskAttribute::Ordered)).collect();
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    let lun = |seen_as, read_only| AclLun { seen_as, unit: seen_as, read_only };
    config.targets[0].acls = Some(vec![Acl {
        initiator: "*".into(),
        user: None,
        auth: None,
        luns: Some(vec![lun(0, true), lun(3, false)]),
        limits: Default::default(),
    }]);
    server.handle().apply(config).expect("nothing in it can fail");
    for itt in waiting {
        assert_eq!(next_end(&mut client), (itt, NEXUS_LOST));
    }
    client.send(data.into(), &[0xcc; 64 * 512]);
    assert_eq!(next_end(&mut client), (first.itt.get(), NEXUS_LOST));
    assert!(is_untouched(&mut client, 0), "a write came through");
    stop(server);
}

#[test]
fn writes_that_wait_are_to_be_sent_again_where_only_names_have_changed() {
    let (server, mut config, mut client) = start(|_| ());
    let (first, data) = start_write(&mut client, 0);
    let waiting = send_write(&mut client, 8, 0xaa, TaskAttribute::Ordered);
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    let Unit::Disk(old) = &config.targets[0].units[0].unit else { panic!("a disk") };
    let options = DiskOptions::default().with_identity("renamed");
    let renamed = DiskUnit::new(old.store().clone(), options, &Registry::new()).expect("a disk");
    config.targets[0].units[0].unit = Unit::Disk(renamed);
    server.handle().apply(config).expect("nothing in it can fail");
    assert_eq!(next_end(&mut client), (waiting, NEXUS_LOST));
    client.send(data.into(), &[0xcc; 64 * 512]);
    assert_eq!(next_end(&mut client), (first.itt.get(), NEXUS_LOST));
    stop(server);
}

#[test]
fn a_change_elsewhere_lets_waiting_commands_be() {
    let (server, mut config, mut client) = start(|_| ());
    let (first, data) = start_write(&mut client, 0);
    let waiting: Vec<u32> =
        (64..72).map(|lba| send_write(&mut client, lba, 0xaa, TaskAttribute::Ordered)).collect();
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    let gone = config.targets[0].units.remove(1);
    let weak = disk(&gone.unit);
    drop(gone);
    server.handle().apply(config).expect("nothing in it can fail");
    is_let_go(&weak);
    client.send(data.into(), &[0xcc; 64 * 512]);
    // The change is told to one of those that have not begun; the first of the next is as good as
    // any.
    assert_eq!(next_end(&mut client), (first.itt.get(), GOOD));
    for itt in waiting {
        let (ended, (status, key, ..)) = next_end(&mut client);
        assert_eq!(ended, itt);
        assert!(status == 0 || (status, key) == (2, 6), "status {status}, key {key}");
    }
    stop(server);
}

#[test]
fn a_removed_unit_is_let_go_though_the_data_of_a_write_never_comes() {
    let (server, mut config, mut client) = start(|_| ());
    let _write = start_write(&mut client, 0);
    let gone = config.targets[0].units.remove(0);
    let weak = disk(&gone.unit);
    drop(gone);
    server.handle().apply(config).expect("nothing in it can fail");
    is_let_go(&weak);
    stop(server);
}

fn disk(unit: &Unit) -> Weak<DiskUnit> {
    match unit {
        Unit::Disk(disk) => Arc::downgrade(disk),
        Unit::Objects(_) => panic!("a disk"),
    }
}

fn is_let_go(unit: &Weak<DiskUnit>) {
    let begun = Instant::now();
    while unit.strong_count() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the unit is still held");
        std::thread::sleep(Duration::from_millis(5));
    }
}
