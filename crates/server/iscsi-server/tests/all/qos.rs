//! Limits of service over a whole server: commands that wait, that pass, and that are released.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::principals::copy_list;
use crate::support::{Client, PATIENCE, address, read10, server};
use iscsi::pdu::{
    Opcode, ScsiCommand, TaskAttribute, TaskManagementFunction, TaskManagementRequest, TaskManagementResult,
};
use iscsi_server::Unit;
use iscsi_server::config::{Acl, Limiter, QosLimits, Rates};

fn iops(rate: u64) -> QosLimits {
    let iops = Rates { total: Some(rate), ..Rates::default() };
    QosLimits { iops, burst: Duration::ZERO, ..QosLimits::default() }
}

/// A server whose LUN 0 has this account.
fn limited(limits: QosLimits) -> (iscsi_server::Server, Arc<Limiter>) {
    let limiter = Arc::new(Limiter::new(limits));
    let own = limiter.clone();
    (server(move |config| config.targets[0].units[0].limiter = own), limiter)
}

fn read_of(client: &mut Client, lun: u16) -> ScsiCommand {
    let mut command = client.command(lun, &read10(0, 1));
    command.set_read(true);
    command.edtl.set(512);
    command
}

fn send_read(client: &mut Client, lun: u16) -> ScsiCommand {
    let command = read_of(client, lun);
    client.send(command.into(), &[]);
    command
}

/// Sends ABORT TASK for `task`.
fn send_abort(client: &mut Client, task: &ScsiCommand) {
    let itt = client.tag();
    let mut abort = TaskManagementRequest::new(itt, TaskManagementFunction::AbortTask, task.lun);
    abort.as_bhs_mut().set_immediate(true);
    abort.referenced_task_tag.set(task.itt.get());
    abort.ref_cmd_sn.set(task.cmd_sn.get());
    abort.cmd_sn.set(client.cmd_sn);
    client.send(abort.into(), &[]);
}

/// The tag of the next command that ends.
fn next_end(client: &mut Client) -> u32 {
    let pdu = client.receive().expect("an answer");
    assert_eq!(pdu.bhs.opcode(), Some(Opcode::DataIn), "{}", pdu.bhs);
    pdu.bhs.itt()
}

fn settled(server: &iscsi_server::Server, number: u8) -> Client {
    let mut client = Client::login(address(server), Client::config(number));
    client.settle(0);
    client.settle(3);
    client
}

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn a_unit_serves_as_much_as_its_limit_says_and_holds_no_other_unit_back() {
    let (server, _) = limited(iops(100));
    let mut client = settled(&server, 1);
    let start = Instant::now();
    // All in one piece: the other unit's read comes behind the others, and not after their end.
    let reads: Vec<_> = (0..61).map(|number| read_of(&mut client, if number < 60 { 0 } else { 3 })).collect();
    let bytes: Vec<u8> = reads.iter().flat_map(|read| client.bytes((*read).into(), &[])).collect();
    client.stream.write_all(&bytes).expect("the target reads");
    let mut slow: Vec<u32> = reads.iter().map(|read| read.itt.get()).collect();
    let quick = slow.pop().expect("the last");
    let ends: Vec<u32> = (0..61).map(|_| next_end(&mut client)).collect();
    let took = start.elapsed();
    // The first goes at once, and each of the others 10 ms after the one before it.
    assert!(took >= Duration::from_millis(580) && took < PATIENCE, "{took:?}");
    let place = ends.iter().position(|itt| *itt == quick).expect("it has ended");
    assert!(place < 30, "the other unit's read came as number {place}");
    let order: Vec<u32> = ends.into_iter().filter(|itt| *itt != quick).collect();
    assert_eq!(order, slow, "they go in the order in which they came");
    let activity = server.handle().activity(PATIENCE);
    let counts = activity.targets.values().next().expect("the target's");
    // The first went at once, and the others waited 10 ms, 20 ms and so on.
    assert_eq!(counts.limit_waits, 59);
    let waited = Duration::from_nanos(counts.limit_wait_ns);
    assert!(waited >= Duration::from_millis(59 * 60 / 2 * 10 - 60) && waited < 60 * PATIENCE, "{waited:?}");
    stop(server);
}

/// A block has its turn a minute after the one before it: no waiting command is released by itself.
fn turn_a_minute(server: &iscsi_server::Server, limiter: &Limiter) {
    let bandwidth = Rates { total: Some(8), ..Rates::default() };
    limiter.set(QosLimits { bandwidth, burst: Duration::ZERO, ..QosLimits::default() });
    server.handle().limits_changed();
    // The change is a message to the connection's core. This query follows it there.
    assert!(server.core().cores(PATIENCE).iter().all(Option::is_some));
}

#[test]
fn commands_that_move_no_blocks_are_never_held_back() {
    let (server, limiter) = limited(QosLimits::default());
    let mut client = settled(&server, 1);
    turn_a_minute(&server, &limiter);
    let (first, second) = (send_read(&mut client, 0), send_read(&mut client, 0));
    assert_eq!(next_end(&mut client), first.itt.get());
    let ready = client.command(0, &[0; 6]);
    client.send(ready.into(), &[]);
    assert_eq!(client.receive().expect("an answer").bhs.itt(), ready.itt.get(), "the read still waits");
    limiter.set(QosLimits::default());
    server.handle().limits_changed();
    assert_eq!(next_end(&mut client), second.itt.get());
    stop(server);
}

#[test]
fn a_command_that_waits_is_aborted_at_once_and_gives_its_turn_away() {
    let (server, limiter) = limited(QosLimits::default());
    let mut client = settled(&server, 1);
    turn_a_minute(&server, &limiter);
    let first = send_read(&mut client, 0);
    assert_eq!(next_end(&mut client), first.itt.get());
    let waiting = send_read(&mut client, 0);
    send_abort(&mut client, &waiting);
    let answer = client.receive().expect("an answer");
    assert_eq!(answer.bhs.opcode(), Some(Opcode::TaskManagementResponse), "{}", answer.bhs);
    let result = answer.bhs.as_task_management_response().result();
    assert_eq!(result, Some(TaskManagementResult::FunctionComplete));
    stop(server);
}

#[test]
fn commands_behind_an_ordered_one_run_when_it_is_aborted_while_it_waits_for_a_limit() {
    let (server, limiter) = limited(QosLimits::default());
    let mut client = settled(&server, 1);
    turn_a_minute(&server, &limiter);
    let first = send_read(&mut client, 0);
    assert_eq!(next_end(&mut client), first.itt.get());
    let mut ordered = read_of(&mut client, 0);
    ordered.flags = ordered.flags & !7 | TaskAttribute::Ordered.code();
    client.send(ordered.into(), &[]);
    let ready = client.command(0, &[0; 6]);
    client.send(ready.into(), &[]);
    send_abort(&mut client, &ordered);
    let mut opcodes: Vec<_> = (0..2).map(|_| client.receive().expect("an answer").bhs.opcode()).collect();
    opcodes.sort_unstable_by_key(|opcode| opcode.map(|opcode| opcode as u8));
    assert_eq!(opcodes, [Some(Opcode::ScsiResponse), Some(Opcode::TaskManagementResponse)]);
    stop(server);
}

#[test]
fn a_copy_waits_for_the_limit_of_what_it_moves() {
    let limiter = Arc::new(Limiter::default());
    let (own, mut naa) = (limiter.clone(), Vec::new());
    let server = server(|config| {
        let first = &mut config.targets[0].units[0];
        first.limiter = own;
        if let Unit::Disk(disk) = &first.unit {
            naa = disk.options().identity.naa.clone();
        }
    });
    let mut client = settled(&server, 1);
    turn_a_minute(&server, &limiter);
    let list = copy_list(&naa, &naa);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    let mut copy = client.command(0, &cdb);
    copy.set_write(true);
    copy.edtl.set(list.len() as u32);
    client.send(copy.into(), &list);
    let ready = client.command(0, &[0; 6]);
    client.send(ready.into(), &[]);
    assert_eq!(client.receive().expect("an answer").bhs.itt(), ready.itt.get(), "its block waits");
    limiter.set(QosLimits::default());
    server.handle().limits_changed();
    assert_eq!(client.finish().0, 0);
    stop(server);
}

#[test]
fn limits_that_are_lifted_let_everything_go_that_waits() {
    let (server, limiter) = limited(iops(1));
    let mut client = settled(&server, 1);
    let start = Instant::now();
    let sent: Vec<u32> = (0..60).map(|_| send_read(&mut client, 0).itt.get()).collect();
    assert_eq!(next_end(&mut client), sent[0]);
    limiter.set(QosLimits::default());
    server.handle().limits_changed();
    let mut rest: Vec<u32> = (1..60).map(|_| next_end(&mut client)).collect();
    // A command that arrives now runs at once, before those that waited are called.
    rest.sort_unstable();
    assert_eq!(rest, sent[1..]);
    assert!(start.elapsed() < Duration::from_secs(50), "they waited for turns that nobody gives any more");
    stop(server);
}

#[test]
fn an_initiators_sessions_share_its_limit_and_leave_others_theirs() {
    let entry = |initiator: &str, limits| Acl {
        initiator: initiator.into(),
        auth: None,
        user: None,
        luns: None,
        limits,
    };
    let server = server(|config| {
        let slow = entry("iqn.2026-01.org.example:client1", iops(50));
        let rest = entry("*", QosLimits::default());
        config.targets[0].acls = Some(vec![slow, rest]);
    });
    let mut one = settled(&server, 1);
    let mut two = {
        let mut config = Client::config(1);
        config.isid.0[5] = 9;
        Client::login(address(&server), config)
    };
    two.settle(0);
    two.settle(3);
    let mut other = settled(&server, 2);
    let start = Instant::now();
    for lun in [0, 3].into_iter().cycle().take(20) {
        send_read(&mut one, lun);
        send_read(&mut two, lun);
    }
    // The least of some times: commands under a limit of 50 a second take the full time each time.
    let mut free = Duration::MAX;
    for _ in 0..10 {
        let begun = Instant::now();
        for _ in 0..20 {
            send_read(&mut other, 0);
        }
        for _ in 0..20 {
            next_end(&mut other);
        }
        free = free.min(begun.elapsed());
        if free < Duration::from_millis(350) {
            break;
        }
    }
    for _ in 0..20 {
        next_end(&mut one);
        next_end(&mut two);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(770) && took < PATIENCE, "{took:?} for both");
    assert!(free < Duration::from_millis(350), "the other waited for {free:?}");
    stop(server);
}
