//! Two daemons in one process, each with its own initiators: one owns a unit, and the other
//! forwards to it. Initiators cannot tell.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{self, BLOCKS, Client, ONE, address, read10, server_on, write10};
use backing::MemoryStore;
use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use device::{NexusId, PortGroups};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::pdu::{
    Lun, Opcode, TaskManagementFunction as Function, TaskManagementRequest, TaskManagementResult,
};
use iscsi_server::{Server, Unit};
use peer_link::{Limits, Secret};
use peer_units::{Begun, GroupUnit, Host, HostConfig, Life, OwnerAt, Peers, PeersConfig};
use runtime::{Config, Cores, ListenOptions, TcpListener};

const UNIT: u32 = 5;
const GOOD: u8 = 0;
const CHECK: u8 = 2;
const CONFLICT: u8 = 0x18;

/// Two daemons, and the medium of the unit.
struct Pair {
    owner: Server,
    gateway: Server,
    /// The peer link's end at the owner.
    host: Cores,
    peers: Arc<Peers>,
    faults: Faults,
}

fn pair() -> Pair {
    let faults = Faults::new();
    let memory = Arc::new(MemoryStore::new(BLOCKS as u64 * 512, false).expect("memory"));
    let store = Arc::new(FaultyStore::new(memory, faults.clone()));
    let disk =
        DiskUnit::new(store, DiskOptions::default().with_identity("a"), &Registry::new()).expect("a disk");
    let host = Cores::start(1, Config { spin_us: 0, ..Config::default() }).expect("a core");
    let (unit, core) = (disk.clone(), host.handles()[0]);
    let secret = || Secret::new(&[7; 32]).expect("32 bytes");
    let (tell, told) = std::sync::mpsc::channel();
    let started = core.run(move || async move {
        let to = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(to, ListenOptions::default()).expect("a port");
        tell.send(listener.local_addr().expect("bound")).expect("it is waited for");
        let next = AtomicU64::new(1 << 40);
        let config = HostConfig {
            gateway: 2,
            instance: 22,
            secrets: BTreeMap::from([(1, secret())]),
            versions: peer_link::VERSIONS,
            limits: Limits::default(),
            fresh: Duration::from_secs(2),
            peers: 64,
            is_member: Box::new(|gateway, instance| (gateway, instance) == (1, 11)),
            nexus_id: Box::new(move || NexusId(next.fetch_add(1, Ordering::Relaxed))),
        };
        let host = Host::new(config, core);
        host.serve_unit(UNIT, unit, Arc::new(|| Some(Box::new(()) as Begun)));
        host.listen(listener).await
    });
    started.expect("the core runs");
    let at = OwnerAt { instance: 22, address: told.recv().expect("the host listens") };
    let peers = Peers::new(PeersConfig {
        gateway: 1,
        life: Life { instance: 11, secret: (1, secret()), versions: peer_link::VERSIONS },
        piece: 256 << 10,
        hold: Duration::from_secs(2),
        fresh: Duration::from_secs(2),
    });
    peers.set_owner(UNIT, Some(at));
    let remote = GroupUnit::new(&peers, UNIT, PortGroups::symmetric(&[1])).expect("a unit");
    let owner = server_on(ONE, |config| config.targets[0].units[0].unit = Unit::Disk(disk));
    let gateway = server_on(ONE, |config| config.targets[0].units[0].unit = Unit::Group(remote));
    Pair { owner, gateway, host, peers, faults }
}

impl Pair {
    /// An initiator of the owner, and one of the other gateway.
    fn initiators(&self) -> (Client, Client) {
        let mut own = Client::login(address(&self.owner), Client::config(1));
        own.settle(0);
        (own, self.remote(2))
    }

    fn remote(&self, number: u8) -> Client {
        let mut client = Client::login(address(&self.gateway), Client::config(number));
        // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, once.
        let (status, sense) = client.read(0, &[0; 6], 0);
        assert_eq!((status, sense[2] & 15, sense[12]), (CHECK, 6, 0x29));
        assert_eq!(client.read(0, &[0; 6], 0).0, GOOD);
        client
    }

    fn stop(self) {
        self.peers.fenced(22);
        self.gateway.stop(Duration::from_millis(100)).expect("everything is flushed");
        self.owner.stop(Duration::from_millis(100)).expect("everything is flushed");
        self.host.stop();
        self.host.join().expect("the core ends");
    }
}

fn reserve(client: &mut Client, action: u8, kind: u8, key: u8, new: u8) -> u8 {
    let mut list = [0; 24];
    (list[7], list[15]) = (key, new);
    client.write(0, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list).0
}

/// The response to a task management function.
fn manage(client: &mut Client, function: Function, task: Option<(u32, u32)>) -> Option<TaskManagementResult> {
    ask(client, function, task);
    let pdu = client.receive_answer();
    assert_eq!(pdu.bhs.opcode(), Some(Opcode::TaskManagementResponse), "{}", pdu.bhs);
    pdu.bhs.as_task_management_response().result()
}

fn ask(client: &mut Client, function: Function, task: Option<(u32, u32)>) {
    let mut request = TaskManagementRequest::new(client.tag(), function, Lun::ZERO);
    request.as_bhs_mut().set_immediate(true);
    request.cmd_sn.set(client.cmd_sn);
    if let Some((itt, cmd_sn)) = task {
        request.referenced_task_tag.set(itt);
        request.ref_cmd_sn.set(cmd_sn);
    }
    client.send(request.into(), &[]);
}

/// Sends a write of one block with its data, and does not wait. Its tag and CmdSN.
fn begin_write(client: &mut Client, lba: u32, byte: u8) -> (u32, u32) {
    let mut write = client.command(0, &write10(lba, 1));
    write.set_write(true);
    write.edtl.set(512);
    let task = (write.itt.get(), write.cmd_sn.get());
    client.send(write.into(), &[byte; 512]);
    task
}

fn wait_until(happened: impl Fn() -> bool) {
    for _ in 0..2000 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not happen");
}

#[test]
fn data_of_any_length_is_the_owners() {
    let pair = pair();
    let (mut own, mut remote) = pair.initiators();
    for (lba, blocks) in [(0, 1), (8, 8), (64, 128), (512, 2048)] {
        let data: Vec<u8> = (0..blocks * 512).map(|at| (at / 512 + at) as u8 ^ lba as u8).collect();
        assert_eq!(remote.write(0, &write10(lba, blocks as u16), &data).0, GOOD);
        for client in [&mut own, &mut remote] {
            let (status, read) = client.read(0, &read10(lba, blocks as u16), data.len() as u32);
            assert!(status == GOOD && read == data, "{blocks} blocks at {lba}");
        }
    }
    // The same unit by its names: VPD page 83h, and READ CAPACITY.
    for (cdb, len) in [(&[0x12, 1, 0x83, 0, 255, 0][..], 255), (&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)] {
        assert_eq!(own.read(0, cdb, len), remote.read(0, cdb, len));
    }
    // A unit of the gateway's own is served beside it.
    remote.settle(3);
    assert_eq!(remote.read(3, &read10(0, 1), 512), (GOOD, vec![0; 512]));
    pair.stop();
}

#[test]
fn reservations_and_unit_attentions_hold_through_both_gateways() {
    let pair = pair();
    let (mut own, mut remote) = pair.initiators();
    assert_eq!(reserve(&mut remote, 0, 0, 0, 7), GOOD);
    assert_eq!(reserve(&mut remote, 1, 5, 7, 0), GOOD);
    assert_eq!(own.write(0, &write10(0, 1), &[1; 512]).0, CONFLICT);
    assert_eq!(remote.write(0, &write10(0, 1), &[2; 512]).0, GOOD);
    let (_, keys) = own.read(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64);
    assert_eq!((keys[7], keys[15]), (8, 7));
    assert_eq!(reserve(&mut own, 0, 0, 0, 9), GOOD);
    assert_eq!(reserve(&mut own, 4, 5, 9, 7), GOOD);
    let (status, sense) = remote.write(0, &write10(0, 1), &[3; 512]);
    assert_eq!((status, &sense[12..14]), (CHECK, &[0x2a, 5][..]));
    assert_eq!(remote.write(0, &write10(0, 1), &[3; 512]).0, CONFLICT);
    assert_eq!(own.read(0, &read10(0, 1), 512), (GOOD, vec![2; 512]));
    pair.stop();
}

#[test]
fn preempt_and_abort_waits_for_a_write_of_the_other_gateway() {
    let pair = pair();
    let (mut own, mut remote) = pair.initiators();
    assert_eq!(reserve(&mut remote, 0, 0, 0, 7), GOOD);
    assert_eq!(reserve(&mut remote, 1, 5, 7, 0), GOOD);
    assert_eq!(reserve(&mut own, 0, 0, 0, 9), GOOD);
    let rule = pair.faults.add(Rule::new(Operations::WRITE, Action::Delay(u64::MAX..u64::MAX)));
    begin_write(&mut remote, 0, 5);
    wait_until(|| pair.faults.waiting() == 1);
    pair.faults.remove(rule);
    let faults = pair.faults.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let released = std::time::Instant::now();
        faults.release();
        released
    });
    assert_eq!(reserve(&mut own, 5, 5, 9, 7), GOOD);
    let answered = std::time::Instant::now();
    assert!(answered >= release.join().expect("it ends"), "before the write has ended");
    // The write is not answered: its initiator learns of it by a unit attention.
    let (status, sense) = remote.read(0, &[0; 6], 0);
    assert_eq!((status, &sense[12..14]), (CHECK, &[0x2a, 5][..]));
    assert_eq!(remote.write(0, &write10(0, 1), &[3; 512]).0, CONFLICT);
    pair.stop();
}

#[test]
fn an_aborted_task_touches_the_owners_medium_no_more() {
    let pair = pair();
    let (_, mut remote) = pair.initiators();
    pair.faults.add(Rule::new(Operations::WRITE, Action::Delay(u64::MAX..u64::MAX)));
    let task = begin_write(&mut remote, 0, 5);
    wait_until(|| pair.faults.waiting() == 1);
    ask(&mut remote, Function::AbortTask, Some(task));
    remote.stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout can be set");
    assert!(remote.stream.peek(&mut [0]).is_err(), "the medium has the write still");
    remote.stream.set_read_timeout(Some(support::PATIENCE)).expect("a timeout can be set");
    pair.faults.clear();
    let pdu = remote.receive_answer();
    let result = pdu.bhs.as_task_management_response().result();
    assert_eq!(result, Some(TaskManagementResult::FunctionComplete));
    // And one that is waiting for data.
    let mut write = remote.command(0, &write10(0, 128));
    write.set_write(true);
    write.edtl.set(128 * 512);
    let task = (write.itt.get(), write.cmd_sn.get());
    remote.send(write.into(), &[]);
    assert_eq!(remote.receive_answer().bhs.opcode(), Some(Opcode::ReadyToTransfer));
    assert_eq!(manage(&mut remote, Function::AbortTask, Some(task)), result);
    pair.stop();
}

#[test]
fn a_reset_through_either_gateway_is_told_to_initiators_of_both() {
    let pair = pair();
    let (mut own, mut remote) = pair.initiators();
    let complete = Some(TaskManagementResult::FunctionComplete);
    assert_eq!(manage(&mut remote, Function::LogicalUnitReset, None), complete);
    for _ in 0..2 {
        for client in [&mut own, &mut remote] {
            let (status, sense) = client.read(0, &[0; 6], 0);
            assert_eq!((status, &sense[12..14]), (CHECK, &[0x29, 3][..]));
            assert_eq!(client.read(0, &[0; 6], 0).0, GOOD);
        }
        assert_eq!(manage(&mut own, Function::LogicalUnitReset, None), complete);
    }
    for client in [&mut own, &mut remote] {
        client.settle(0);
    }
    // CLEAR TASK SET waits for the write of the other gateway, and tells its initiator.
    pair.faults.add(Rule::new(Operations::WRITE, Action::Delay(u64::MAX..u64::MAX)));
    begin_write(&mut remote, 0, 5);
    wait_until(|| pair.faults.waiting() == 1);
    let faults = pair.faults.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        faults.clear();
    });
    assert_eq!(manage(&mut own, Function::ClearTaskSet, None), complete);
    assert!(release.is_finished() || pair.faults.waiting() == 0);
    release.join().expect("it ends");
    let (status, sense) = remote.read(0, &[0; 6], 0);
    assert_eq!((status, &sense[12..14]), (CHECK, &[0x2f, 0][..]));
    pair.stop();
}

#[test]
fn an_owner_that_vanishes_leaves_no_command_without_an_end() {
    let pair = pair();
    let (_, mut remote) = pair.initiators();
    pair.faults.add(Rule::new(Operations::ALL, Action::Delay(u64::MAX..u64::MAX)));
    begin_write(&mut remote, 0, 5);
    wait_until(|| pair.faults.waiting() == 1);
    pair.peers.fenced(22);
    // It may have been executed: ABORTED COMMAND.
    let (status, sense) = remote.finish();
    assert_eq!((status, sense[2] & 15), (CHECK, 0x0b));
    // What comes while there is no owner waits, and is BUSY then.
    let began = std::time::Instant::now();
    assert_eq!(remote.read(0, &read10(0, 1), 512).0, 8);
    assert!(began.elapsed() >= Duration::from_secs(2));
    pair.faults.clear();
    pair.stop();
}

#[test]
fn a_command_waits_until_its_initiator_is_known_to_be_there() {
    let pair = pair();
    let (mut own, mut far) = pair.initiators();
    // A write that the gateway gets long after the last answer of its initiator.
    std::thread::sleep(Duration::from_millis(2_500));
    begin_write(&mut far, 9, 0x99);
    let ping = far.receive().expect("a ping");
    assert_eq!(ping.bhs.opcode(), Some(Opcode::NopIn));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(own.read(0, &read10(9, 1), 512), (GOOD, vec![0; 512]));
    far.pong(&ping);
    assert_eq!(support::status(&far.receive_answer()).0, GOOD);
    assert_eq!(own.read(0, &read10(9, 1), 512), (GOOD, vec![0x99; 512]));
    pair.stop();
}
