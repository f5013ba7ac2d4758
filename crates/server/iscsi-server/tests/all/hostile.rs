//! Dialogs with peers that are slow, hostile or die at the wrong moment: their cost ends with them,
//! and the server continues to serve others.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Client, ONE, PATIENCE, address, read10, server, server_on, status, write10};
use iscsi::keys::DigestChoice;
use iscsi::login::initiator::Config;
use iscsi::pdu::{
    DataOut, Isid, Lun, Opcode, RESERVED_TAG, RejectReason, TaskAttribute, TaskManagementFunction,
    TaskManagementRequest, TextRequest,
};
use iscsi_server::CoresConfig;

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// One more connection of `first`'s session.
fn another(server: &iscsi_server::Server, first: &Client, number: u8) -> Client {
    let established = first.session.clone().expect("logged in");
    let mut config = Client::config(number);
    (config.tsih, config.cid) = (established.tsih, 1);
    config.session = Some(established.params);
    config.cmd_sn = first.cmd_sn;
    Client::login(address(server), config)
}

fn sessions_become(server: &iscsi_server::Server, count: usize) {
    let end = Instant::now() + PATIENCE;
    while server.sessions() != count {
        assert!(Instant::now() < end, "{} sessions", server.sessions());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_ordered_command_runs_when_the_data_owed_to_an_older_one_has_come() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    // Beyond the end: it fails at once, and is answered when its unsolicited data is there.
    let mut write = client.command(0, &write10(1 << 30, 1));
    write.set_write(true);
    write.set_final(false);
    write.edtl.set(512);
    client.send(write.into(), &[]);
    let mut ordered = client.command(0, &read10(0, 1));
    ordered.flags = ordered.flags & !7 | TaskAttribute::Ordered.code();
    ordered.set_read(true);
    ordered.edtl.set(512);
    client.send(ordered.into(), &[]);
    let mut data = DataOut::new(write.itt.get(), RESERVED_TAG, write.lun, 0, 0);
    data.set_final(true);
    client.send(data.into(), &[1; 512]);
    let first = client.receive().expect("an answer");
    assert_eq!(first.bhs.itt(), write.itt.get());
    assert_eq!(status(&first).0, 2);
    assert_eq!(client.finish(), (0, vec![0; 512]));
    stop(server);
}

#[test]
fn an_ordered_command_runs_when_an_older_one_that_is_owed_data_is_aborted() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let mut write = client.command(0, &write10(1 << 30, 1));
    write.set_write(true);
    write.set_final(false);
    write.edtl.set(512);
    client.send(write.into(), &[]);
    let mut ordered = client.command(0, &read10(0, 1));
    ordered.flags = ordered.flags & !7 | TaskAttribute::Ordered.code();
    ordered.set_read(true);
    ordered.edtl.set(512);
    client.send(ordered.into(), &[]);
    let itt = client.tag();
    let mut abort = TaskManagementRequest::new(itt, TaskManagementFunction::AbortTask, write.lun);
    abort.as_bhs_mut().set_immediate(true);
    abort.referenced_task_tag.set(write.itt.get());
    abort.ref_cmd_sn.set(write.cmd_sn.get());
    abort.cmd_sn.set(client.cmd_sn);
    client.send(abort.into(), &[]);
    let answers = [client.receive().expect("an answer"), client.receive().expect("an answer")];
    assert!(answers.iter().any(|pdu| pdu.bhs.opcode() == Some(Opcode::TaskManagementResponse)));
    assert!(answers.iter().any(|pdu| pdu.bhs.opcode() == Some(Opcode::DataIn)));
    stop(server);
}

#[test]
fn ordered_commands_wait_for_older_writes_and_younger_ones_for_them() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let mut write = client.command(0, &write10(0, 1));
    write.set_write(true);
    write.edtl.set(512);
    client.send(write.into(), &[]);
    let r2t = client.receive().expect("an R2T");
    let mut reads = Vec::new();
    for attribute in [TaskAttribute::Ordered, TaskAttribute::Simple, TaskAttribute::Ordered] {
        let mut read = client.command(0, &read10(0, 1));
        read.flags = read.flags & !7 | attribute.code();
        read.set_read(true);
        read.edtl.set(512);
        client.send(read.into(), &[]);
        reads.push(read.itt.get());
    }
    let mut data = DataOut::new(write.itt.get(), r2t.bhs.as_ready_to_transfer().ttt.get(), write.lun, 0, 0);
    data.set_final(true);
    client.send(data.into(), &[0x77; 512]);
    assert_eq!(status(&client.receive().expect("the write's answer")).0, 0);
    for itt in reads {
        let answer = client.receive().expect("a read's answer");
        assert_eq!((answer.bhs.itt(), answer.data), (itt, vec![0x77; 512]));
    }
    stop(server);
}

#[test]
fn thousands_of_commands_behind_an_ordered_one_end_one_after_the_other() {
    const BEHIND: usize = 4000;
    let server = server(|config| config.limits.queue_depth = 16_384);
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let mut write = client.command(0, &write10(0, 1));
    write.flags = write.flags & !7 | TaskAttribute::Ordered.code();
    write.set_write(true);
    write.edtl.set(512);
    client.send(write.into(), &[]);
    let r2t = client.receive().expect("an R2T");
    let mut bytes = Vec::new();
    let behind: Vec<u32> = (0..BEHIND)
        .map(|_| {
            let ready = client.command(0, &[0; 6]);
            bytes.extend(client.bytes(ready.into(), &[]));
            ready.itt.get()
        })
        .collect();
    client.stream.write_all(&bytes).expect("the target reads");
    let mut data = DataOut::new(write.itt.get(), r2t.bhs.as_ready_to_transfer().ttt.get(), write.lun, 0, 0);
    data.set_final(true);
    client.send(data.into(), &[0x77; 512]);
    assert_eq!(status(&client.receive().expect("the write's answer")).0, 0);
    for itt in behind {
        let answer = client.receive().expect("an answer");
        assert_eq!((answer.bhs.itt(), status(&answer).0), (itt, 0));
    }
    stop(server);
}

#[test]
fn what_is_sent_after_a_reset_is_not_swallowed_by_it() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    for function in [
        TaskManagementFunction::LogicalUnitReset,
        TaskManagementFunction::AbortTaskSet,
        TaskManagementFunction::ClearTaskSet,
        TaskManagementFunction::TargetWarmReset,
    ] {
        let itt = client.tag();
        let mut reset = TaskManagementRequest::new(itt, function, Lun::ZERO);
        reset.as_bhs_mut().set_immediate(true);
        reset.cmd_sn.set(client.cmd_sn);
        // A write that has to wait for its data: it is in hand when the function is done.
        let mut write = client.command(0, &write10(0, 1));
        write.set_write(true);
        write.edtl.set(512);
        let bytes = [client.bytes(reset.into(), &[]), client.bytes(write.into(), &[])].concat();
        client.stream.write_all(&bytes).expect("the target reads");
        let mut done = 0;
        while done < 2 {
            let pdu = client.receive().expect("an answer");
            match pdu.bhs.opcode() {
                Some(Opcode::ReadyToTransfer) => {
                    let ttt = pdu.bhs.as_ready_to_transfer().ttt.get();
                    let mut data = DataOut::new(write.itt.get(), ttt, write.lun, 0, 0);
                    data.set_final(true);
                    client.send(data.into(), &[1; 512]);
                }
                _ => done += 1,
            }
        }
        client.settle(0);
    }
    stop(server);
}

#[test]
fn a_flood_of_task_management_is_refused_before_it_costs_much() {
    let server = server(|config| config.limits.queue_depth = 8);
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        let itt = client.tag();
        let mut reset = TaskManagementRequest::new(itt, TaskManagementFunction::LogicalUnitReset, Lun::ZERO);
        reset.as_bhs_mut().set_immediate(true);
        reset.cmd_sn.set(client.cmd_sn);
        bytes.extend(client.bytes(reset.into(), &[]));
    }
    client.stream.write_all(&bytes).expect("the target reads");
    let mut refused = 0;
    for _ in 0..200 {
        let answer = client.receive().expect("an answer to each");
        refused += usize::from(answer.bhs.opcode() == Some(Opcode::Reject));
    }
    assert!(refused > 0, "200 resets at once");
    client.settle(0);
    stop(server);
}

#[test]
fn a_connection_that_dies_without_a_logout_takes_its_session_along() {
    let server = server(|_| ());
    let mut first = Client::login(address(&server), Client::config(1));
    first.settle(0);
    let second = another(&server, &first, 1);
    assert_eq!(server.sessions(), 1);
    drop(second);
    let next = first.receive().map(|pdu| pdu.bhs.to_string());
    assert_eq!(next, None, "ErrorRecoveryLevel 0 has no connection recovery");
    sessions_become(&server, 0);
    stop(server);
}

#[test]
fn both_connections_of_a_session_may_die_at_once() {
    let server = server(|_| ());
    for round in 0..20 {
        let mut first = Client::login(address(&server), Client::config(1));
        first.settle(0);
        let second = another(&server, &first, 1);
        let (a, b) = (std::thread::spawn(move || drop(first)), std::thread::spawn(move || drop(second)));
        a.join().and(b.join()).expect("dropped");
        if round % 2 == 0 {
            sessions_become(&server, 0);
        }
    }
    sessions_become(&server, 0);
    stop(server);
}

#[test]
fn many_logins_as_one_port_leave_one_session() {
    let server = server(|_| ());
    let to = address(&server);
    let all: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = Client::connect(to);
                client.log_in(Client::config(1)).map(|()| client)
            })
        })
        .collect();
    let clients: Vec<_> = all.into_iter().map(|one| one.join().expect("it ends")).collect();
    for client in &clients {
        assert!(client.is_ok(), "{:?}", client.as_ref().err());
    }
    sessions_become(&server, 1);
    drop(clients);
    sessions_become(&server, 0);
    stop(server);
}

#[test]
fn a_peer_that_does_not_read_is_dropped_with_all_that_waits_for_it() {
    let server = server(|config| {
        config.limits.send_high_water = 64 << 20;
        config.limits.nop_interval = Duration::from_secs(2);
        config.limits.nop_timeout = Duration::from_secs(1);
    });
    let mut deaf = Client::login(address(&server), Client::config(1));
    deaf.settle(0);
    let mut bytes = Vec::new();
    for _ in 0..64 {
        let mut read = deaf.command(0, &read10(0, 2048));
        read.set_read(true);
        read.edtl.set(1 << 20);
        bytes.extend(deaf.bytes(read.into(), &[]));
    }
    deaf.stream.write_all(&bytes).expect("the target reads");
    let mut other = Client::login(address(&server), Client::config(2));
    // The pings and the last words take some nine seconds.
    let end = Instant::now() + Duration::from_secs(60);
    while server.sessions() != 1 {
        assert!(Instant::now() < end, "{} sessions", server.sessions());
        other.settle(0);
        std::thread::sleep(Duration::from_millis(50));
    }
    other.settle(0);
    let (mut all, mut piece) = (0, vec![0; 1 << 20]);
    while let Ok(n @ 1..) = deaf.stream.read(&mut piece) {
        all += n;
    }
    assert!(all < 40 << 20, "{all} bytes waited for a peer that was given up");
    stop(server);
}

#[test]
fn a_peer_that_answers_no_ping_is_dropped() {
    let server = server(|config| {
        config.limits.nop_interval = Duration::from_millis(200);
        config.limits.nop_timeout = Duration::from_millis(400);
    });
    let mut dead = Client::login(address(&server), Client::config(1));
    let began = Instant::now();
    let ping = dead.receive().expect("a ping");
    assert_eq!(ping.bhs.opcode(), Some(Opcode::NopIn));
    assert!(dead.receive().is_none(), "it was pinged again");
    assert!(began.elapsed() < PATIENCE);
    sessions_become(&server, 0);
    let cores = server.core().cores(PATIENCE);
    assert_eq!(cores.iter().flatten().map(|core| core.pings).sum::<u64>(), 1);
    stop(server);
}

#[test]
fn a_peer_that_owes_data_is_dropped_before_most_of_many_that_are_silent() {
    let silent = 4 * iscsi_server::PINGS_PER_SECOND as usize;
    let server = server_on(ONE, |config| {
        config.limits.nop_interval = Duration::from_secs(1);
        config.limits.nop_timeout = Duration::from_secs(1);
    });
    let login = |number: usize| {
        let isid = Isid([0x80, 0, (number >> 8) as u8, number as u8, 0, 0]);
        Client::login(address(&server), Config { isid, ..Client::config(1) })
    };
    let all: Vec<Client> = (0..silent).map(login).collect();
    let mut owing = login(silent);
    owing.settle(0);
    let mut write = owing.command(0, &write10(0, 128));
    write.set_write(true);
    write.edtl.set(64 << 10);
    owing.send(write.into(), &[]);
    let heard: Vec<_> = std::iter::from_fn(|| owing.receive()).map(|pdu| pdu.bhs.opcode()).collect();
    assert!(
        heard.contains(&Some(Opcode::ReadyToTransfer)) && heard.contains(&Some(Opcode::NopIn)),
        "{heard:?}"
    );
    // The pings of the others take four seconds, and this connection was the last to fall silent.
    assert!(server.sessions() > 1, "all others were dropped before");
    sessions_become(&server, 0);
    let cores = server.core().cores(PATIENCE);
    assert_eq!(cores.iter().flatten().map(|core| core.pings).sum::<u64>(), silent as u64 + 1);
    drop(all);
    stop(server);
}

#[test]
fn writes_for_more_than_the_pool_holds_take_turns() {
    let server = server_on(CoresConfig { pool_bytes: 8 << 20, ..ONE }, |_| ());
    let mut other = Client::login(address(&server), Client::config(2));
    other.settle(3);
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let mut writes = std::collections::HashMap::new();
    for _ in 0..32 {
        let mut write = client.command(0, &write10(0, 2048));
        write.set_write(true);
        write.edtl.set(1 << 20);
        client.send(write.into(), &[]);
        writes.insert(write.itt.get(), write.lun);
    }
    // Sends all but the last byte of the requested data: it fills buffers, and ends no command.
    let mut open = Vec::new();
    while client.stream.peek(&mut [0]).is_ok_and(|n| n > 0) {
        // The first may take its time; after it, silence means that there is no room for more.
        client.stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout can be set");
        let pdu = client.receive().expect("an R2T");
        let r2t = *pdu.bhs.as_ready_to_transfer();
        let (start, len) = (r2t.buffer_offset.get(), r2t.desired_length.get());
        for (sn, at) in (0..).zip((start..start + len).step_by(262_144)) {
            let end = (at + 262_144).min(start + len);
            let last = end == start + len;
            let mut out = DataOut::new(r2t.itt.get(), r2t.ttt.get(), r2t.lun, sn, at);
            out.set_final(last);
            let data = vec![r2t.itt.get() as u8; (end - at) as usize];
            match last {
                true => open.push((out, data)),
                false => client.send(out.into(), &data),
            }
        }
    }
    client.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    assert!(!open.is_empty() && open.len() < 32, "{} R2Ts", open.len());
    // Another initiator is not kept from its own, large ones too.
    assert_eq!(other.write(3, &write10(0, 2048), &vec![9; 1 << 20]).0, 0);
    for (out, data) in open {
        client.send(out.into(), &data);
    }
    while !writes.is_empty() {
        let pdu = client.receive().expect("an R2T or an answer");
        if pdu.bhs.opcode() != Some(Opcode::ReadyToTransfer) {
            assert_eq!(status(&pdu).0, 0);
            writes.remove(&pdu.bhs.itt());
            continue;
        }
        let r2t = *pdu.bhs.as_ready_to_transfer();
        let (start, len) = (r2t.buffer_offset.get(), r2t.desired_length.get());
        for (sn, at) in (0..).zip((start..start + len).step_by(262_144)) {
            let end = (at + 262_144).min(start + len);
            let mut out = DataOut::new(r2t.itt.get(), r2t.ttt.get(), r2t.lun, sn, at);
            out.set_final(end == start + len);
            client.send(out.into(), &vec![1; (end - at) as usize]);
        }
    }
    stop(server);
}

#[test]
fn a_text_that_asks_for_targets_again_and_again_is_rejected() {
    let server = server(|_| ());
    let mut config = Client::config(1);
    config.target = None;
    let mut client = Client::login(address(&server), config);
    let mut text = TextRequest::new(client.tag(), RESERVED_TAG);
    text.cmd_sn.set(client.cmd_sn);
    client.cmd_sn += 1;
    client.send(text.into(), "SendTargets=All\0".repeat(500).as_bytes());
    let answer = client.receive().expect("an answer");
    assert_eq!(answer.bhs.opcode(), Some(Opcode::Reject));
    assert_eq!(answer.bhs.as_reject().reason_code(), Some(RejectReason::ProtocolError));
    // A discovery session runs no commands.
    let inquiry = client.command(0, &[0x12, 0, 0, 0, 36, 0]);
    client.send(inquiry.into(), &[]);
    assert_eq!(client.receive().expect("an answer").bhs.opcode(), Some(Opcode::Reject));
    stop(server);
}

#[test]
fn data_in_crumbs_is_written_whole() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let data: Vec<u8> = (0..16384u32).map(|i| (i / 3) as u8).collect();
    let mut write = client.command(0, &write10(0, 32));
    write.set_write(true);
    write.set_final(false);
    write.edtl.set(data.len() as u32);
    client.send(write.into(), &[]);
    for (sn, piece) in (0..).zip(data.chunks(12)) {
        let mut out = DataOut::new(write.itt.get(), RESERVED_TAG, write.lun, sn, sn * 12);
        out.set_final((sn as usize + 1) * 12 >= data.len());
        client.send(out.into(), piece);
    }
    assert_eq!(status(&client.receive().expect("an answer")).0, 0);
    assert!(client.read(0, &read10(0, 32), 16384) == (0, data));
    stop(server);
}

/// A connection at ErrorRecoveryLevel 1.
fn recovering(server: &iscsi_server::Server, number: u8) -> Client {
    let mut config = Client::config(number);
    config.offer.error_recovery_level = 1;
    Client::login(address(server), config)
}

#[test]
fn sessions_that_acknowledge_nothing_take_no_more_than_their_part_of_the_pool() {
    const READ: u32 = 128 << 10;
    const HOSTILE: u8 = 40;
    let server = server_on(ONE, |_| ());
    let limit = server.core().cores(PATIENCE)[0].expect("it answers").pool.limit;
    assert!(HOSTILE as usize * (4 << 20) > 2 * limit, "they ask for far more than there is");
    let kept = || server.core().cores(PATIENCE)[0].expect("it answers").kept;
    let over = Arc::new(AtomicBool::new(false));
    // Each reads all answers and acknowledges none: its ExpStatSN stays 0.
    let hostile: Vec<_> = (0..HOSTILE)
        .map(|number| {
            let mut client = recovering(&server, number + 2);
            let over = over.clone();
            std::thread::spawn(move || {
                client.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
                for at in 0..32 {
                    let mut read = client.command(0, &read10(at * READ / 512 % 8192, (READ / 512) as u16));
                    read.set_read(true);
                    read.edtl.set(READ);
                    client.send(read.into(), &[]);
                }
                let mut bytes = 0;
                let mut piece = vec![0; 1 << 16];
                while !over.load(Ordering::Relaxed) {
                    bytes += match client.stream.read(&mut piece) {
                        Ok(0) => break,
                        Ok(n) => n,
                        Err(_) => 0,
                    };
                }
                bytes
            })
        })
        .collect();
    let mut good = recovering(&server, 1);
    good.acknowledges = true;
    good.settle(3);
    let (mut rounds, mut most) = (0, 0);
    let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < Duration::from_secs(5) || rounds <= 10 {
        let data = vec![rounds as u8; 256 << 10];
        let at = Instant::now();
        assert_eq!(good.write(3, &write10(0, 512), &data).0, 0);
        let (status, back) = good.read(3, &read10(0, 512), 256 << 10);
        assert!((status, &back) == (0, &data), "round {rounds}: status {status:02x}");
        slowest = slowest.max(at.elapsed());
        most = most.max(kept());
        rounds += 1;
    }
    over.store(true, Ordering::Relaxed);
    let got: usize = hostile.into_iter().map(|thread| thread.join().expect("it ends")).sum();
    assert!(most > limit / 8, "they were kept for: {most}");
    assert!(
        most <= limit / 2 + (2 << 20),
        "{most} of {limit} bytes are kept for those that acknowledge nothing"
    );
    // They ask for as long as this lasts: an initiator that waited for them would wait for ever.
    assert!(slowest < PATIENCE / 2, "a write and a read took {slowest:?}");
    assert!(got > most, "they got {got} bytes");
    stop(server);
}

#[test]
fn initiators_that_read_nothing_leave_room_for_others() {
    let server = server_on(CoresConfig { pool_bytes: 16 << 20, ..ONE }, |config| {
        config.limits.send_high_water = 64 << 20;
        config.limits.nop_interval = Duration::ZERO;
    });
    let login = |number| {
        let mut config = Client::config(number);
        // Data with a digest is copied to the pool.
        config.offer.data_digest = DigestChoice::Require;
        let mut client = Client::login(address(&server), config);
        client.settle(0);
        client
    };
    let mut other = login(100);
    let deaf: Vec<Client> = (0..8)
        .map(|number| {
            let mut client = login(number);
            let mut bytes = Vec::new();
            for _ in 0..48 {
                let mut read = client.command(0, &read10(0, 1024));
                read.set_read(true);
                read.edtl.set(512 << 10);
                bytes.extend(client.bytes(read.into(), &[]));
            }
            client.stream.write_all(&bytes).expect("the target reads");
            client
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    for round in 0..20 {
        assert_eq!(other.write(0, &write10(0, 2048), &vec![round; 1 << 20]).0, 0);
        let (status, data) = other.read(0, &read10(0, 2048), 1 << 20);
        assert!(status == 0 && data.len() == 1 << 20, "round {round}: {status}, {} bytes", data.len());
    }
    assert!(began.elapsed() < 2 * PATIENCE, "{:?}", began.elapsed());
    // A client that reads after all gets everything that it asked for.
    for mut client in deaf.into_iter().take(2) {
        for read in 0..48 {
            let (status, data) = client.finish();
            assert!(status == 0 && data.len() == 512 << 10, "read {read}: {status}, {} bytes", data.len());
        }
    }
    stop(server);
}
