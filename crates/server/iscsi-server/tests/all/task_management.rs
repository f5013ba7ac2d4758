//! Sessions of two connections. Task management functions that are sent at once, while commands
//! sent before them are on their way over the other connection (RFC 7143 §4.2.3.3, §11.5.1). The
//! order of ORDERED commands among both.

use std::time::{Duration, Instant};

use crate::support::{Client, PATIENCE, address, read10, server, write10};
use iscsi::keys::Offer;
use iscsi::pdu::{
    Bhs, DataOut, LogoutReason, LogoutRequest, Lun, NopOut, Opcode, ScsiCommand, TaskAttribute,
    TaskManagementFunction as Function, TaskManagementRequest, TaskManagementResult,
};

/// A session of two connections, and the number that its next command has.
fn two(server: &iscsi_server::Server) -> (Client, Client) {
    two_by(server, |_| ())
}

/// [`two`] by another offer.
fn two_by(server: &iscsi_server::Server, change: impl FnOnce(&mut Offer)) -> (Client, Client) {
    let mut config = Client::config(1);
    change(&mut config.offer);
    let mut first = Client::login(address(server), config);
    first.acknowledges = true;
    first.settle(0);
    let established = first.session.clone().expect("logged in");
    let mut config = Client::config(1);
    (config.tsih, config.cid) = (established.tsih, 1);
    config.session = Some(established.params);
    config.cmd_sn = first.cmd_sn;
    let mut second = Client::login(address(server), config);
    second.acknowledges = true;
    (first, second)
}

/// A write of block 0, with its data, that is not sent yet.
fn late_write(client: &mut Client) -> ScsiCommand {
    let mut write = client.command(0, &write10(0, 1));
    write.set_write(true);
    write.edtl.set(512);
    write
}

/// A read of block 0 that is not sent yet.
fn late_read(client: &mut Client, lun: u16) -> ScsiCommand {
    let mut read = client.command(lun, &read10(0, 1));
    read.set_read(true);
    read.edtl.set(512);
    read
}

fn ordered(mut command: ScsiCommand) -> ScsiCommand {
    command.flags = command.flags & !7 | TaskAttribute::Ordered.code();
    command
}

/// Sends a write without its data; returns the Data-Out that the target asks for.
fn begin_write(client: &mut Client, write: ScsiCommand) -> DataOut {
    client.send(write.into(), &[]);
    let r2t = client.receive().expect("an R2T");
    assert_eq!(r2t.bhs.opcode(), Some(Opcode::ReadyToTransfer), "{}", r2t.bhs);
    let tag = r2t.bhs.as_ready_to_transfer().ttt.get();
    let mut data = DataOut::new(write.itt.get(), tag, write.lun, 0, 0);
    data.set_final(true);
    data
}

/// Sends a function at once, with the number of the next command.
fn send(client: &mut Client, function: Function, referenced: Option<&ScsiCommand>) {
    let mut request = TaskManagementRequest::new(client.tag(), function, Lun::ZERO);
    request.as_bhs_mut().set_immediate(true);
    request.cmd_sn.set(client.cmd_sn);
    if let Some(task) = referenced {
        request.referenced_task_tag = task.itt;
        request.ref_cmd_sn = task.cmd_sn;
    }
    client.send(request.into(), &[]);
}

fn result(client: &mut Client) -> Option<TaskManagementResult> {
    let pdu = client.receive().expect("an answer");
    assert_eq!(pdu.bhs.opcode(), Some(Opcode::TaskManagementResponse), "{}", pdu.bhs);
    pdu.bhs.as_task_management_response().result()
}

fn is_quiet(client: &Client) -> bool {
    client.stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout can be set");
    let quiet = client.stream.peek(&mut [0]).is_err();
    client.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    quiet
}

/// The next ping of the target.
fn ping(client: &mut Client) -> Bhs {
    loop {
        let pdu = client.receive().expect("a ping");
        if pdu.bhs.opcode() == Some(Opcode::NopIn) {
            return pdu.bhs;
        }
    }
}

/// Answers a ping, and acknowledges what `client` says that it has got.
fn answer(client: &mut Client, ping: &Bhs) {
    let mut answer = NopOut::answer(ping.as_nop_in().ttt.get(), Lun::ZERO);
    answer.as_bhs_mut().set_immediate(true);
    answer.cmd_sn.set(client.cmd_sn);
    client.send(answer.into(), &[]);
}

/// Answers pings until the connection ends.
fn answer_pings(mut client: Client) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(pdu) = client.receive() {
            if pdu.bhs.opcode() == Some(Opcode::NopIn) {
                answer(&mut client, &pdu.bhs);
            }
        }
    })
}

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

const COMPLETE: Option<TaskManagementResult> = Some(TaskManagementResult::FunctionComplete);

#[test]
fn functions_wait_for_commands_on_their_way_over_another_connection() {
    for function in [Function::AbortTaskSet, Function::ClearTaskSet, Function::LogicalUnitReset] {
        let server = server(|_| ());
        let (mut first, mut second) = two(&server);
        let write = late_write(&mut first);
        send(&mut first, function, None);
        assert!(is_quiet(&first), "{function} was answered before the write had come");
        second.send(write.into(), &[0xaa; 512]);
        let pings = answer_pings(second);
        assert_eq!(result(&mut first), COMPLETE, "{function}");
        // It was over before the answer, or it ends without a status. Nothing of it happens after
        // the answer.
        let blocks = |client: &mut Client| loop {
            let (status, data) = client.read(0, &read10(0, 1), 512);
            if status == 0 {
                return data;
            }
        };
        let before = blocks(&mut first);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(blocks(&mut first), before, "{function}");
        stop(server);
        pings.join().expect("the connection ends in order");
    }
}

/// Every function that ends several tasks, while a status that was sent over the other connection
/// is not acknowledged.
#[test]
fn functions_wait_until_statuses_on_other_connections_are_acknowledged() {
    let functions = [
        Function::AbortTaskSet,
        Function::ClearTaskSet,
        Function::LogicalUnitReset,
        Function::TargetWarmReset,
    ];
    for function in functions {
        let server = server(|_| ());
        let (mut first, mut second) = two(&server);
        let mut read = first.command(0, &read10(0, 1));
        read.set_read(true);
        read.edtl.set(512);
        let unread = second.exp_stat_sn;
        second.send(read.into(), &[]);
        // It has gone out, and nobody has said that it came.
        let status = second.receive().expect("a status");
        assert_eq!(status.bhs.itt(), read.itt.get());
        second.exp_stat_sn = unread;
        send(&mut first, function, None);
        assert!(is_quiet(&first), "{function} was answered before the status was acknowledged");
        // The target asks for it. An answer that acknowledges nothing does not end the wait.
        let ping = ping(&mut second);
        answer(&mut second, &ping);
        assert!(is_quiet(&first), "{function} was answered by a ping's answer alone");
        second.exp_stat_sn = unread.wrapping_add(1);
        answer(&mut second, &ping);
        assert_eq!(result(&mut first), COMPLETE, "{function}");
        stop(server);
    }
}

#[test]
fn a_connection_that_does_not_acknowledge_is_dropped_and_answers_nothing() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let mut read = first.command(0, &read10(0, 1));
    read.set_read(true);
    read.edtl.set(512);
    second.send(read.into(), &[]);
    assert_eq!(second.receive().expect("a status").bhs.itt(), read.itt.get());
    send(&mut first, Function::LogicalUnitReset, None);
    // At ErrorRecoveryLevel 0 the session ends with it.
    while let Some(pdu) = first.receive() {
        assert_ne!(pdu.bhs.opcode(), Some(Opcode::TaskManagementResponse), "{}", pdu.bhs);
    }
    stop(server);
}

#[test]
fn a_target_reset_does_not_wait_and_what_comes_late_is_never_run() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let write = late_write(&mut first);
    // One that waits for the write is ended too, and one behind the function runs.
    let mut held = first.command(0, &write10(1, 1));
    held.set_write(true);
    held.edtl.set(512);
    first.send(held.into(), &[0xbb; 512]);
    send(&mut first, Function::TargetWarmReset, None);
    let mut answered = false;
    while !answered {
        // The held one may have run before the function: then it was answered before it.
        let pdu = first.receive().expect("an answer");
        answered = pdu.bhs.opcode() == Some(Opcode::TaskManagementResponse);
        assert!(answered || pdu.bhs.itt() == held.itt.get(), "{}", pdu.bhs);
    }
    second.send(write.into(), &[0xaa; 512]);
    assert!(is_quiet(&second), "the write was run after the reset");
    first.settle(0);
    assert_eq!(first.read(0, &read10(0, 1), 512), (0, vec![0; 512]));
    stop(server);
}

/// It is as a power cycle (RFC 7143 §11.5.1): no connection of its own session stays either.
#[test]
fn a_cold_reset_ends_the_other_connections_of_its_session() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    send(&mut first, Function::TargetColdReset, None);
    assert_eq!(result(&mut first), COMPLETE);
    assert!(first.receive().is_none());
    assert!(second.receive().is_none(), "it goes on");
    stop(server);
}

#[test]
fn a_function_is_rejected_when_a_command_sent_before_it_does_not_come() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let write = late_write(&mut first);
    let begun = Instant::now();
    send(&mut first, Function::AbortTaskSet, None);
    assert_eq!(result(&mut first), Some(TaskManagementResult::FunctionRejected));
    assert!(begun.elapsed() >= Duration::from_secs(9), "it was not waited for");
    // Nothing was promised: the session goes on as before.
    second.send(write.into(), &[0xaa; 512]);
    assert_eq!(second.finish().0, 0);
    assert_eq!(first.read(0, &read10(0, 1), 512), (0, vec![0xaa; 512]));
    stop(server);
}

#[test]
fn a_function_that_waits_ends_with_its_session() {
    let server = server(|_| ());
    let (mut first, second) = two(&server);
    let _write = late_write(&mut first);
    send(&mut first, Function::LogicalUnitReset, None);
    assert!(is_quiet(&first));
    // At ErrorRecoveryLevel 0 what is lost with a connection takes the session along.
    second.stream.shutdown(std::net::Shutdown::Both).expect("it is open");
    drop(second);
    while let Some(pdu) = first.receive() {
        assert_ne!(pdu.bhs.opcode(), Some(Opcode::TaskManagementResponse), "{}", pdu.bhs);
    }
    stop(server);
}

#[test]
fn the_abort_of_a_command_that_has_not_come_releases_those_that_wait_for_it() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let write = late_write(&mut first);
    let mut waiting = first.command(0, &read10(0, 1));
    waiting.set_read(true);
    waiting.edtl.set(512);
    first.send(waiting.into(), &[]);
    send(&mut first, Function::AbortTask, Some(&write));
    let mut opcodes: Vec<_> = (0..2).map(|_| first.receive().expect("an answer").bhs.opcode()).collect();
    opcodes.sort_unstable_by_key(|opcode| opcode.map(|opcode| opcode as u8));
    assert_eq!(opcodes, [Some(Opcode::TaskManagementResponse), Some(Opcode::DataIn)]);
    second.send(write.into(), &[0xaa; 512]);
    assert!(is_quiet(&second), "it was run after its abort");
    assert_eq!(first.read(0, &read10(0, 1), 512), (0, vec![0; 512]));
    stop(server);
}

#[test]
fn an_ordered_command_waits_for_older_ones_of_another_connection() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    first.settle(3);
    let write = late_write(&mut first);
    let data = begin_write(&mut second, write);
    let read = ordered(late_read(&mut first, 0));
    first.send(read.into(), &[]);
    let behind = late_read(&mut first, 0);
    second.send(behind.into(), &[]);
    // Another unit's commands have an order of their own.
    assert_eq!(first.read(3, &read10(0, 1), 512), (0, vec![0; 512]));
    assert!(is_quiet(&first) && is_quiet(&second), "the write has not ended");
    second.send(data.into(), &[0xaa; 512]);
    assert_eq!(second.finish().0, 0, "the write");
    assert_eq!(first.finish(), (0, vec![0xaa; 512]));
    assert_eq!(second.finish(), (0, vec![0xaa; 512]));
    stop(server);
}

#[test]
fn commands_of_another_connection_wait_for_an_older_ordered_one() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let write = ordered(late_write(&mut first));
    let data = begin_write(&mut first, write);
    let read = late_read(&mut first, 0);
    second.send(read.into(), &[]);
    let next = ordered(late_read(&mut first, 0));
    second.send(next.into(), &[]);
    assert!(is_quiet(&second), "the write has not ended");
    first.send(data.into(), &[0xaa; 512]);
    assert_eq!(first.finish().0, 0);
    for itt in [read.itt.get(), next.itt.get()] {
        let answer = second.receive().expect("an answer");
        assert_eq!((answer.bhs.itt(), answer.data), (itt, vec![0xaa; 512]));
    }
    stop(server);
}

#[test]
fn both_encodings_of_a_lun_share_one_order() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let mut write = ordered(late_write(&mut first));
    write.lun = Lun::flat(0).expect("a small number");
    let data = begin_write(&mut first, write);
    let reads = [late_read(&mut first, 0), late_read(&mut first, 0)];
    first.send(reads[0].into(), &[]);
    second.send(reads[1].into(), &[]);
    assert!(is_quiet(&first) && is_quiet(&second), "the write has not ended");
    first.send(data.into(), &[0xaa; 512]);
    assert_eq!(first.finish().0, 0, "the write");
    assert_eq!(first.finish(), (0, vec![0xaa; 512]));
    assert_eq!(second.finish(), (0, vec![0xaa; 512]));
    stop(server);
}

#[test]
fn the_abort_of_an_ordered_command_releases_those_of_another_connection() {
    let server = server(|_| ());
    let (mut first, mut second) = two(&server);
    let write = ordered(late_write(&mut first));
    begin_write(&mut first, write);
    let read = late_read(&mut first, 0);
    second.send(read.into(), &[]);
    assert!(is_quiet(&second), "the write has not ended");
    send(&mut first, Function::AbortTask, Some(&write));
    assert_eq!(result(&mut first), COMPLETE);
    assert_eq!(second.finish(), (0, vec![0; 512]));
    stop(server);
}

/// Its number is also that of the next command, so no turn comes for it.
#[test]
fn an_immediate_command_that_waits_for_its_order_runs_after_a_reassignment() {
    let server = server(|_| ());
    let (mut first, mut second) = two_by(&server, |offer| offer.error_recovery_level = 2);
    let write = ordered(late_write(&mut first));
    let data = begin_write(&mut second, write);
    let mut read = late_read(&mut first, 0);
    read.as_bhs_mut().set_immediate(true);
    first.cmd_sn = read.cmd_sn.get();
    first.send(read.into(), &[]);
    let mut ping = NopOut::ping(first.tag());
    ping.cmd_sn.set(first.cmd_sn);
    first.send(ping.into(), &[]);
    // The read came before it.
    while first.receive().expect("an answer").bhs.itt() != ping.itt.get() {}
    let mut logout = LogoutRequest::new(first.tag(), LogoutReason::RemoveForRecovery, 0);
    logout.as_bhs_mut().set_immediate(true);
    logout.cmd_sn.set(first.cmd_sn);
    second.send(logout.into(), &[]);
    assert_eq!(second.receive_answer().bhs.as_logout_response().response, 0);
    second.cmd_sn = first.cmd_sn;
    send(&mut second, Function::TaskReassign, Some(&read));
    let answer = second.receive_answer();
    assert_eq!(answer.bhs.as_task_management_response().result(), COMPLETE);
    second.send(data.into(), &[0xaa; 512]);
    assert_eq!(second.finish().0, 0, "the write");
    assert_eq!(second.finish(), (0, vec![0xaa; 512]));
    stop(server);
}

/// Both have one CID. The write ends when the time for its reassignment is over.
#[test]
fn a_connection_is_told_when_an_ordered_command_of_its_predecessor_has_ended() {
    let server = server(|_| ());
    let (mut first, _second) = two_by(&server, |offer| {
        (offer.error_recovery_level, offer.default_time2retain_s) = (2, 0);
    });
    let write = ordered(late_write(&mut first));
    begin_write(&mut first, write);
    let established = first.session.clone().expect("logged in");
    let mut config = Client::config(1);
    (config.tsih, config.session) = (established.tsih, Some(established.params));
    config.cmd_sn = first.cmd_sn;
    let mut successor = Client::login(address(&server), config);
    successor.acknowledges = true;
    let read = late_read(&mut first, 0);
    successor.send(read.into(), &[]);
    // Its data, or the unit attention that reports the end of the write.
    assert!(matches!(successor.finish().0, 0 | 2));
    stop(server);
}
