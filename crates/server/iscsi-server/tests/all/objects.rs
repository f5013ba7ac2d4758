//! Commands of an object-based storage device that wait for each other's data: they never deadlock,
//! and end when they are aborted.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Client, ONE, Pdu, address, server_on};
use iscsi::pdu::{DataOut, Opcode, TaskManagementFunction, TaskManagementRequest, TaskManagementResult};
use iscsi_server::{Server, Unit};
use objects::store::ObjectStore;
use objects::store::embedded::EmbeddedStore;
use objects::unit::{OsdOptions, OsdUnit};
use osd::{Command as Osd, Id};

const ID: Id = Id::new(0x1_0000, 0x1_0000);
const PIECE: usize = 1 << 20;

/// A server of one core with an OSD under LUN 0, that has [`ID`], and its store.
fn start() -> (Server, Arc<EmbeddedStore>) {
    let store = Arc::new(EmbeddedStore::in_memory(1 << 30).expect("memory"));
    let unit = OsdUnit::new(store.clone(), OsdOptions::default()).expect("an OSD");
    let server = server_on(ONE, |config| {
        config.targets[0].units.truncate(1);
        config.targets[0].units[0].unit = Unit::Objects(unit);
    });
    let mut client = login(&server, 1);
    for create in [
        Osd::CreatePartition { requested: ID.partition },
        Osd::Create { partition: ID.partition, requested: ID.object, count: 1 },
    ] {
        send(&mut client, create, 0);
        let answer = client.receive().expect("an answer");
        assert_eq!(support::status(&answer).0, 0, "{:?}", answer.data);
    }
    (server, store)
}

fn login(server: &Server, number: u8) -> Client {
    let mut client = Client::login(address(server), Client::config(number));
    client.settle(0);
    client
}

/// Sends a command with `expected` bytes of data-out, and none of the data. Returns its tag.
fn send(client: &mut Client, command: Osd, expected: usize) -> u32 {
    let cdb = osd::Cdb::new(command).encode().expect("a command of OSD-2");
    let (bytes, itt) = client.long_command(0, &cdb, expected);
    client.stream.write_all(&bytes).expect("the target reads");
    itt
}

/// Sends the data that an R2T requests.
fn answer(client: &mut Client, r2t: &Pdu, byte: u8) {
    assert_eq!(r2t.bhs.opcode(), Some(Opcode::ReadyToTransfer), "{}", r2t.bhs);
    let r2t = *r2t.bhs.as_ready_to_transfer();
    let (start, len) = (r2t.buffer_offset.get() as usize, r2t.desired_length.get() as usize);
    let data = vec![byte; len.min(65536)];
    for (sn, at) in (0..).zip((0..len).step_by(65536)) {
        let piece = (len - at).min(65536);
        let mut out = DataOut::new(r2t.itt.get(), r2t.ttt.get(), r2t.lun, sn, (start + at) as u32);
        out.set_final(at + piece == len);
        client.send(out.into(), &data[..piece]);
    }
}

/// Sends the requested data until `commands` have ended well.
fn serve(client: &mut Client, commands: usize, byte: u8) {
    let mut ended = 0;
    while ended < commands {
        let pdu = client.receive().expect("an answer");
        match pdu.bhs.opcode() {
            Some(Opcode::ReadyToTransfer) => answer(client, &pdu, byte),
            _ => {
                assert_eq!(support::status(&pdu).0, 0, "{:?}", pdu.data);
                ended += 1;
            }
        }
    }
}

fn length(store: &EmbeddedStore) -> u64 {
    store.object(ID).expect("it is there").length
}

#[test]
fn appends_that_together_want_more_than_there_is_room_for_do_not_wait_in_a_circle() {
    // The server may request a quarter of the core's pool of 64 MiB: this number of pieces.
    const FULL: usize = 16;
    let (server, store) = start();
    let (mut many, mut one) = (login(&server, 2), login(&server, 3));
    let append = Osd::Append { id: ID, len: 2 * PIECE as u64 };
    for _ in 0..=FULL {
        send(&mut many, append, 2 * PIECE);
    }
    // The server requests as many pieces as there is room for.
    let mut asked = Vec::new();
    while asked.len() < FULL {
        asked.push(many.receive().expect("an R2T"));
    }
    let tags: HashSet<u32> = asked.iter().map(|r2t| r2t.bhs.itt()).collect();
    assert_eq!(tags.len(), FULL, "the first R2T of each");
    // Another connection's first piece is requested besides: a connection that returned its own
    // part would not get it again.
    send(&mut one, append, 2 * PIECE);
    let first = one.receive().expect("an R2T");
    answer(&mut one, &first, 2);
    let other = std::thread::spawn(move || serve(&mut one, 1, 2));
    asked.iter().for_each(|r2t| answer(&mut many, r2t, 1));
    serve(&mut many, FULL + 1, 1);
    other.join().expect("it ends too");
    assert_eq!(length(&store), ((FULL + 2) * 2 * PIECE) as u64);
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// An APPEND whose first piece is written and whose rest is not sent: it holds the object's end.
fn stalled(server: &Server, store: &EmbeddedStore) -> Client {
    let mut client = login(server, 2);
    send(&mut client, Osd::Append { id: ID, len: 2 * PIECE as u64 }, 2 * PIECE);
    let mut brought = 0;
    while brought < PIECE {
        let r2t = client.receive().expect("an R2T");
        brought += r2t.bhs.as_ready_to_transfer().desired_length.get() as usize;
        answer(&mut client, &r2t, 1);
    }
    let deadline = Instant::now() + support::PATIENCE;
    while length(store) < PIECE as u64 {
        assert!(Instant::now() < deadline, "the first piece is not written");
        std::thread::sleep(Duration::from_millis(1));
    }
    client
}

/// An APPEND whose data is there, and that waits for another APPEND's end.
fn waiting(server: &Server) -> (Client, u32) {
    let mut client = login(server, 3);
    let itt = send(&mut client, Osd::Append { id: ID, len: 100 }, 100);
    let r2t = client.receive().expect("an R2T");
    answer(&mut client, &r2t, 3);
    (client, itt)
}

#[test]
fn a_command_that_waits_for_anothers_transfer_ends_when_it_is_aborted() {
    let (server, store) = start();
    let mut slow = stalled(&server, &store);
    let (mut client, itt) = waiting(&server);
    let lun = iscsi::pdu::Lun::ZERO;
    let mut abort = TaskManagementRequest::new(client.tag(), TaskManagementFunction::AbortTask, lun);
    abort.as_bhs_mut().set_immediate(true);
    abort.referenced_task_tag.set(itt);
    abort.ref_cmd_sn.set(client.cmd_sn.wrapping_sub(1));
    abort.cmd_sn.set(client.cmd_sn);
    client.send(abort.into(), &[]);
    // The abort ends without the other command, which takes as long as its initiator likes.
    let ended = client.receive().expect("an answer");
    let result = ended.bhs.as_task_management_response().result();
    assert_eq!(result, Some(TaskManagementResult::FunctionComplete));
    serve(&mut slow, 1, 1);
    assert_eq!(length(&store), 2 * PIECE as u64, "nothing of what was aborted is done");
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn a_command_that_waits_for_anothers_transfer_ends_with_its_connection() {
    let (server, store) = start();
    let slow = stalled(&server, &store);
    let (client, _) = waiting(&server);
    // Time for its data to arrive.
    std::thread::sleep(Duration::from_millis(50));
    client.stream.shutdown(std::net::Shutdown::Both).expect("a socket");
    let deadline = Instant::now() + support::PATIENCE;
    while server.sessions() > 1 {
        assert!(Instant::now() < deadline, "its connection waits for it");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(slow);
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// Runs PERFORM TASK MANAGEMENT FUNCTION, and returns its SERVICE RESPONSE.
fn function(client: &mut Client, function: u8, tag: u64) -> u8 {
    let cdb = osd::Cdb::new(Osd::PerformTmf { allocation: 8, function, tag }).encode().expect("a command");
    let (mut bytes, _) = client.long_command(0, &cdb, 0);
    // It reads 8 bytes.
    bytes[1] |= 0x40;
    bytes[20..24].copy_from_slice(&8u32.to_be_bytes());
    client.stream.write_all(&bytes).expect("the target reads");
    let (status, data) = client.finish();
    assert_eq!((status, data.len()), (0, 8), "{data:?}");
    data[4]
}

/// A WRITE that waits for its data.
fn unfinished(client: &mut Client) -> u64 {
    let itt = send(client, Osd::Write(ID, osd::cdb::ObjectRange { start: 0, len: 100 }), 100);
    let r2t = client.receive().expect("an R2T");
    assert_eq!(r2t.bhs.opcode(), Some(Opcode::ReadyToTransfer), "{}", r2t.bhs);
    itt.into()
}

/// The sense key and the additional sense code of the unit attention that is pending.
fn attention(client: &mut Client) -> [u8; 3] {
    let (status, sense) = client.read(0, &[0; 6], 0);
    assert_eq!((status, sense.first()), (2, Some(&0x72)));
    [sense[1], sense[2], sense[3]]
}

#[test]
fn task_management_inside_a_command_finds_the_tasks_of_its_session_and_ends_them() {
    const COMPLETE: u8 = 0;
    const SUCCEEDED: u8 = 5;
    const ABORT_TASK: u8 = 0x01;
    const ABORT_TASK_SET: u8 = 0x02;
    const CLEAR_TASK_SET: u8 = 0x04;
    const I_T_NEXUS_RESET: u8 = 0x10;
    const QUERY_TASK: u8 = 0x80;
    const QUERY_TASK_SET: u8 = 0x81;
    let (server, store) = start();
    let (mut client, mut other) = (login(&server, 2), login(&server, 3));
    assert_eq!(function(&mut client, QUERY_TASK_SET, 0), COMPLETE, "only the command itself");
    let [first, second, third] = [(); 3].map(|()| unfinished(&mut client));
    for tag in [first, second, third] {
        assert_eq!(function(&mut client, QUERY_TASK, tag), SUCCEEDED);
    }
    assert_eq!(function(&mut client, QUERY_TASK, 0x7FFF_1234), COMPLETE);
    // No tag of iSCSI's, though its low half is one.
    assert_eq!(function(&mut client, QUERY_TASK, first | 1 << 32), COMPLETE);
    assert_eq!(function(&mut client, QUERY_TASK_SET, 0), SUCCEEDED);
    // Tags of another session are unknown to this one.
    assert_eq!(function(&mut other, QUERY_TASK_SET, 0), COMPLETE);
    assert_eq!(function(&mut other, ABORT_TASK_SET, 0), COMPLETE);
    assert_eq!(function(&mut client, ABORT_TASK, first), COMPLETE);
    assert_eq!(function(&mut client, QUERY_TASK, first), COMPLETE);
    assert_eq!(function(&mut client, QUERY_TASK, second), SUCCEEDED);
    assert_eq!(function(&mut client, ABORT_TASK_SET, 0), COMPLETE);
    assert_eq!(function(&mut client, QUERY_TASK_SET, 0), COMPLETE);
    unfinished(&mut client);
    assert_eq!(function(&mut client, I_T_NEXUS_RESET, 0), COMPLETE);
    assert_eq!(attention(&mut client), [6, 0x29, 0x07]);
    assert_eq!(function(&mut client, QUERY_TASK_SET, 0), COMPLETE);
    unfinished(&mut client);
    assert_eq!(function(&mut other, CLEAR_TASK_SET, 0), COMPLETE);
    assert_eq!(attention(&mut client), [6, 0x2F, 0x00], "another has cleared them");
    assert_eq!(function(&mut client, QUERY_TASK_SET, 0), COMPLETE);
    assert_eq!(length(&store), 0);
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
