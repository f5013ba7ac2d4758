//! Commands that wait while their unit is removed, replaced or changed: they reach no other unit,
//! over TCP and over iSER.

use std::io::Write;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::support::wire::Wire;
use crate::support::{CORES, Client, PATIENCE, Pdu, address, config, read10, status, unit, write10};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::pdu::{Bhs, DataOut, NopOut, Opcode, ScsiCommand, TaskAttribute};
use iscsi_server::config::{Acl, AclLun, Limiter, LunConfig, QosLimits, Rates, ServerConfig};
use iscsi_server::{Server, Unit};
use iser::Control;

/// CHECK CONDITION, ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED: an initiator does not send such a
/// command again.
const NOT_THERE: (u8, u8, u8, u8) = (2, 5, 0x25, 0);
/// CHECK CONDITION, UNIT ATTENTION, I_T NEXUS LOSS OCCURRED.
const NEXUS_LOST: (u8, u8, u8, u8) = (2, 6, 0x29, 7);
const GOOD: (u8, u8, u8, u8) = (0, 0, 0, 0);

/// A transport's client, which sends writes.
trait Initiator: Sized {
    /// Logs in as initiator 1.
    fn login(server: &Server) -> Self;
    /// A numbered command, not sent yet.
    fn command(&mut self, lun: u16, cdb: &[u8]) -> ScsiCommand;
    fn tag(&mut self) -> u32;
    fn cmd_sn(&self) -> u32;
    /// Sends a request with all of its data.
    fn send(&mut self, request: Bhs, data: &[u8]);
    fn send_bytes(&mut self, bytes: &[u8]);
    fn receive(&mut self) -> Pdu;
    fn settle(&mut self, lun: u16);
    /// Sends a write of `data`, receives the target's request for all of it, and returns the bytes
    /// that answer the request.
    fn owing(&mut self, write: ScsiCommand, data: &[u8]) -> Vec<u8>;

    /// Tag of the next SCSI Response, and its status, sense key, ASC and ASCQ.
    fn next_end(&mut self) -> (u32, (u8, u8, u8, u8)) {
        let pdu = self.receive();
        let (status, sense) = status(&pdu);
        let code = if sense.is_empty() { (0, 0, 0) } else { (sense[2] & 0xf, sense[12], sense[13]) };
        (pdu.bhs.itt(), (status, code.0, code.1, code.2))
    }

    /// Sends a write of one block, with all of its data.
    fn send_write(&mut self, lba: u32, byte: u8, attribute: TaskAttribute) -> u32 {
        let mut write = self.command(0, &write10(lba, 1));
        write.set_write(true);
        write.flags = write.flags & !7 | attribute.code();
        write.edtl.set(512);
        self.send(write.into(), &[byte; 512]);
        write.itt.get()
    }

    /// Begins a write of 64 blocks. Returns its tag, and what sends its data.
    fn start_write(&mut self, lba: u32) -> (u32, Vec<u8>) {
        let mut write = self.command(0, &write10(lba, 64));
        write.set_write(true);
        write.edtl.set(64 * 512);
        (write.itt.get(), self.owing(write, &[0xcc; 64 * 512]))
    }

    /// Returns when all that was sent before has arrived.
    fn ping(&mut self) {
        let mut ping = NopOut::ping(self.tag());
        ping.as_bhs_mut().set_immediate(true);
        ping.cmd_sn.set(self.cmd_sn());
        self.send(ping.into(), &[]);
        assert_eq!(self.receive().bhs.opcode(), Some(Opcode::NopIn));
    }
}

impl Initiator for Client {
    fn login(server: &Server) -> Self {
        Self::login(address(server), Self::config(1))
    }

    fn command(&mut self, lun: u16, cdb: &[u8]) -> ScsiCommand {
        self.command(lun, cdb)
    }

    fn tag(&mut self) -> u32 {
        self.tag()
    }

    fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    fn send(&mut self, request: Bhs, data: &[u8]) {
        self.send(request, data);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the target reads");
    }

    fn receive(&mut self) -> Pdu {
        self.receive().expect("an answer")
    }

    fn settle(&mut self, lun: u16) {
        self.settle(lun);
    }

    fn owing(&mut self, write: ScsiCommand, data: &[u8]) -> Vec<u8> {
        self.send(write.into(), &[]);
        let r2t = self.receive().expect("an R2T");
        assert_eq!(r2t.bhs.opcode(), Some(Opcode::ReadyToTransfer));
        let ttt = r2t.bhs.as_ready_to_transfer().ttt.get();
        let mut out = DataOut::new(write.itt.get(), ttt, write.lun, 0, 0);
        out.set_final(true);
        self.bytes(out.into(), data)
    }
}

impl Initiator for Wire {
    fn login(server: &Server) -> Self {
        Self::login(address(server), 1, true)
    }

    fn command(&mut self, lun: u16, cdb: &[u8]) -> ScsiCommand {
        self.command(lun, cdb)
    }

    fn tag(&mut self) -> u32 {
        self.tag()
    }

    fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    fn send(&mut self, request: Bhs, data: &[u8]) {
        self.send(Control::default(), request, data);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.send_bytes(bytes);
    }

    fn receive(&mut self) -> Pdu {
        let message = self.receive().expect("an answer");
        Pdu { bhs: message.bhs, data: message.data }
    }

    fn settle(&mut self, lun: u16) {
        self.settle(lun);
    }

    fn owing(&mut self, write: ScsiCommand, data: &[u8]) -> Vec<u8> {
        let from = self.expose(data, 0);
        self.send(Control { read: None, write: Some(from) }, write.into(), &[]);
        self.asked()
    }
}

fn start<I: Initiator>(change: impl FnOnce(&mut ServerConfig)) -> (Server, ServerConfig, I) {
    let mut config = config();
    change(&mut config);
    let server = Server::start(CORES, config.clone()).expect("the server starts");
    let mut client = I::login(&server);
    client.settle(0);
    client.settle(3);
    (server, config, client)
}

fn stop(server: Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// Serves another unit under LUN 0, and the old one under LUN 9.
fn replace(server: &Server, config: &mut ServerConfig) {
    let new = LunConfig { lun: 0, unit: unit("new"), limiter: Default::default(), stages: false };
    let old = std::mem::replace(&mut config.targets[0].units[0], new);
    config.targets[0].units.push(LunConfig { lun: 9, limiter: Default::default(), ..old });
    server.handle().apply(config.clone()).expect("nothing in it can fail");
}

/// Blocks 0 to 127 of a unit, as another initiator reads them.
fn content(server: &Server, lun: u16) -> Vec<u8> {
    let mut client = Client::login(address(server), Client::config(2));
    client.settle(lun);
    let (status, content) = client.read(lun, &read10(0, 128), 128 * 512);
    assert_eq!(status, 0);
    content
}

/// Whether blocks 0 to 127 of a unit have their first content.
fn is_untouched(server: &Server, lun: u16) -> bool {
    content(server, lun) == [0; 128 * 512]
}

#[test]
fn ordered_writes_end_when_their_unit_is_replaced_and_reach_no_unit() {
    ordered_writes::<Client>();
    ordered_writes::<Wire>();
}

fn ordered_writes<I: Initiator>() {
    let (server, mut config, mut client) = start::<I>(|_| ());
    let (first, data) = client.start_write(0);
    let waiting: Vec<u32> = (8..16).map(|lba| client.send_write(lba, 0xaa, TaskAttribute::Ordered)).collect();
    client.ping();
    replace(&server, &mut config);
    for itt in waiting {
        assert_eq!(client.next_end(), (itt, NOT_THERE));
    }
    assert!(is_untouched(&server, 0), "a write reached the new unit");
    // Data still missing for the old unit makes no command of the new one wait.
    client.settle(0);
    let ordered = client.send_write(127, 0xbb, TaskAttribute::Ordered);
    assert_eq!(client.next_end(), (ordered, GOOD));
    client.send_bytes(&data);
    assert_eq!(client.next_end(), (first, NOT_THERE));
    assert!(is_untouched(&server, 9), "a write reached the old unit after it was replaced");
    let now = content(&server, 0);
    assert!(now[..127 * 512] == [0; 127 * 512] && now[127 * 512..] == [0xbb; 512]);
    stop(server);
}

/// Its session may have several connections, which would all wait.
#[test]
fn an_ordered_write_of_a_replaced_unit_delays_no_command_of_the_new_one() {
    let (server, mut config, mut client) = start::<Client>(|_| ());
    let mut write = client.command(0, &write10(0, 64));
    write.set_write(true);
    write.flags = write.flags & !7 | TaskAttribute::Ordered.code();
    write.edtl.set(64 * 512);
    let data = client.owing(write, &[0xcc; 64 * 512]);
    replace(&server, &mut config);
    // Its data is still missing.
    client.settle(0);
    client.send_bytes(&data);
    assert_eq!(client.next_end(), (write.itt.get(), NOT_THERE));
    assert!(is_untouched(&server, 0) && is_untouched(&server, 9), "the write reached a unit");
    stop(server);
}

/// A block has its turn a minute after the one before it.
fn turn_a_minute() -> Arc<Limiter> {
    let bandwidth = Rates { total: Some(8), ..Rates::default() };
    Arc::new(Limiter::new(QosLimits { bandwidth, burst: Duration::ZERO, ..QosLimits::default() }))
}

#[test]
fn writes_that_wait_for_a_limit_end_when_their_unit_is_replaced() {
    limited_writes::<Client>();
    limited_writes::<Wire>();
}

fn limited_writes<I: Initiator>() {
    let (server, mut config, mut client) = start::<I>(|config| {
        config.targets[0].units[0].limiter = turn_a_minute();
    });
    let first = client.send_write(127, 0xaa, TaskAttribute::Simple);
    assert_eq!(client.next_end(), (first, GOOD));
    let mut waiting: Vec<u32> =
        (0..8).map(|lba| client.send_write(lba, 0xaa, TaskAttribute::Simple)).collect();
    client.ping();
    replace(&server, &mut config);
    while !waiting.is_empty() {
        let (itt, end) = client.next_end();
        assert_eq!(end, NOT_THERE);
        waiting.retain(|one| *one != itt);
    }
    assert!(is_untouched(&server, 0), "a write reached the new unit");
    stop(server);
}

#[test]
fn reads_that_wait_for_room_never_bring_another_units_data() {
    const LEN: usize = 1 << 20;
    let (server, mut config, mut client) = start::<Client>(|config| {
        let full = LunConfig { lun: 5, unit: unit("full"), limiter: Default::default(), stages: false };
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
    let (mut good, mut ended, mut told, mut brought) = (0, 0, None, Vec::new());
    while good + ended < reads.len() {
        let pdu = client.receive().expect("an answer");
        let itt = pdu.bhs.itt();
        if pdu.bhs.opcode() == Some(Opcode::DataIn) {
            if pdu.data.iter().any(|byte| *byte != 0) {
                brought.push(itt);
            }
            good += usize::from(pdu.bhs.as_data_in().has_status());
            continue;
        }
        let (status, sense) = status(&pdu);
        match (status, sense[2] & 0xf, sense[12], sense[13]) {
            NOT_THERE => {}
            // A machine that is slow had not read all of them before: they are for the new unit,
            // which tells first that it is another one.
            (2, 6, 0x29, 0) | (2, 6, 0x3f, 3) => told = Some(itt),
            other => panic!("{other:?}"),
        }
        ended += 1;
    }
    let after = |itt: &u32| told.is_some_and(|told| *itt > told);
    assert!(brought.iter().all(after), "reads of the old unit brought the new one's data");
    assert!(good > 0 && ended > 0, "{good} brought data and {ended} ended");
    stop(server);
}

#[test]
fn a_command_ahead_of_its_turn_ends_when_its_unit_is_replaced() {
    a_command_ahead::<Client>();
    a_command_ahead::<Wire>();
}

fn a_command_ahead<I: Initiator>() {
    let (server, mut config, mut client) = start::<I>(|_| ());
    let first = client.command(3, &[0; 6]);
    let ahead = client.send_write(0, 0xaa, TaskAttribute::Simple);
    client.ping();
    replace(&server, &mut config);
    client.send(first.into(), &[]);
    assert_eq!(client.next_end().0, first.itt.get());
    assert_eq!(client.next_end(), (ahead, NOT_THERE));
    assert!(is_untouched(&server, 0), "the write reached the new unit");
    stop(server);
}

#[test]
fn writes_that_wait_end_when_the_right_to_write_is_taken_away() {
    writes_without_the_right::<Client>();
    writes_without_the_right::<Wire>();
}

fn writes_without_the_right<I: Initiator>() {
    let (server, mut config, mut client) = start::<I>(|_| ());
    let (first, data) = client.start_write(0);
    let waiting: Vec<u32> = (8..16).map(|lba| client.send_write(lba, 0xaa, TaskAttribute::Ordered)).collect();
    client.ping();
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
        assert_eq!(client.next_end(), (itt, NEXUS_LOST));
    }
    client.send_bytes(&data);
    assert_eq!(client.next_end(), (first, NEXUS_LOST));
    assert!(is_untouched(&server, 0), "a write came through");
    stop(server);
}

#[test]
fn writes_that_wait_are_to_be_sent_again_where_only_names_have_changed() {
    let (server, mut config, mut client) = start::<Client>(|_| ());
    let (first, data) = client.start_write(0);
    let waiting = client.send_write(8, 0xaa, TaskAttribute::Ordered);
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    let Unit::Disk(old) = &config.targets[0].units[0].unit else { panic!("a disk") };
    let options = DiskOptions::default().with_identity("renamed");
    let renamed = DiskUnit::new(old.store().clone(), options, &Registry::new()).expect("a disk");
    config.targets[0].units[0].unit = Unit::Disk(renamed);
    server.handle().apply(config).expect("nothing in it can fail");
    assert_eq!(client.next_end(), (waiting, NEXUS_LOST));
    client.send_bytes(&data);
    assert_eq!(client.next_end(), (first, NEXUS_LOST));
    stop(server);
}

#[test]
fn a_change_elsewhere_lets_waiting_commands_be() {
    let (server, mut config, mut client) = start::<Client>(|_| ());
    let (first, data) = client.start_write(0);
    let waiting: Vec<u32> =
        (64..72).map(|lba| client.send_write(lba, 0xaa, TaskAttribute::Ordered)).collect();
    assert_eq!(client.read(3, &read10(0, 1), 512).0, 0);
    let gone = config.targets[0].units.remove(1);
    let weak = disk(&gone.unit);
    drop(gone);
    server.handle().apply(config).expect("nothing in it can fail");
    is_let_go(&weak);
    client.send_bytes(&data);
    // The change is told to one of those that have not begun; the first of the next is as good as
    // any.
    assert_eq!(client.next_end(), (first, GOOD));
    for itt in waiting {
        let (ended, (status, key, ..)) = client.next_end();
        assert_eq!(ended, itt);
        assert!(status == 0 || (status, key) == (2, 6), "status {status}, key {key}");
    }
    stop(server);
}

#[test]
fn a_removed_unit_is_let_go_though_the_data_of_a_write_never_comes() {
    a_write_without_data::<Client>();
    a_write_without_data::<Wire>();
}

fn a_write_without_data<I: Initiator>() {
    let (server, mut config, mut client) = start::<I>(|_| ());
    let _write = client.start_write(0);
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
        _ => panic!("a disk"),
    }
}

fn is_let_go(unit: &Weak<DiskUnit>) {
    let begun = Instant::now();
    while unit.strong_count() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the unit is still held");
        std::thread::sleep(Duration::from_millis(5));
    }
}
