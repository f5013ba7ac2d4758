//! Dialogs of a plain initiator with a whole server over loopback.

use std::io::Write;
use std::time::Duration;

use crate::support::{BLOCKS, Client, IQN, PATIENCE, address, read10, server, write10};
use iscsi::pdu::{
    AsyncEvent, DataOut, LogoutReason, LogoutRequest, LogoutResult, NopOut, Opcode, RESERVED_TAG,
    SnackRequest, SnackType, TaskManagementFunction, TaskManagementRequest, TaskManagementResult,
    TextRequest,
};

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn what_is_written_is_read_back_whatever_its_size() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    for blocks in [1u16, 16, 17, 128, 1000, 2048, BLOCKS as u16] {
        let data: Vec<u8> =
            (0..usize::from(blocks) * 512).map(|i| (i / 7 + usize::from(blocks)) as u8).collect();
        assert_eq!(client.write(0, &write10(0, blocks), &data).0, 0, "{blocks} blocks");
        let (status, back) = client.read(0, &read10(0, blocks), data.len() as u32);
        assert_eq!(status, 0);
        assert!(back == data, "{blocks} blocks differ");
    }
    stop(server);
}

#[test]
fn a_new_session_finds_power_on_as_its_first_unit_attention() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    let (status, sense) = client.read(0, &[0; 6], 0);
    assert_eq!((status, sense[2] & 0xf, sense[12]), (2, 6, 0x29));
    assert_eq!(client.read(0, &[0; 6], 0).0, 0);
    stop(server);
}

#[test]
fn luns_are_reported_and_absent_ones_answered() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    let (status, luns) = client.read(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256);
    assert_eq!(status, 0);
    assert_eq!(luns, [&[0, 0, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 3, 0, 0, 0, 0, 0, 0]].concat());
    let (status, inquiry) = client.read(7, &[0x12, 0, 0, 0, 36, 0], 36);
    assert_eq!((status, inquiry[0]), (0, 0x7f));
    let (status, sense) = client.read(7, &[0; 6], 0);
    assert_eq!((status, sense[12]), (2, 0x25), "LOGICAL UNIT NOT SUPPORTED");
    stop(server);
}

#[test]
fn refused_data_has_sense_data_in_the_format_that_its_unit_was_given() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    // D_SENSE of the Control mode page.
    let (status, mut modes) = client.read(0, &[0x1a, 0x08, 0x0a, 0, 64, 0], 64);
    assert_eq!(status, 0);
    modes[..4].fill(0);
    modes[4] &= 0x3f;
    modes[6] |= 0x04;
    assert_eq!(client.write(0, &[0x15, 0x10, 0, 0, modes.len() as u8, 0], &modes).0, 0);
    let mut write = client.command(0, &write10(0, 1));
    write.set_write(true);
    write.edtl.set(512);
    client.send(write.into(), &[1; 1024]);
    let (status, sense) = client.finish();
    // ABORTED COMMAND, INCORRECT AMOUNT OF DATA.
    assert_eq!((status, &sense[..]), (2, &[0x72, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0][..]));
    stop(server);
}

#[test]
fn commands_run_in_order_of_their_numbers_across_connections() {
    let server = server(|_| ());
    let mut first = Client::login(address(&server), Client::config(1));
    first.settle(0);
    let established = first.session.clone().expect("logged in");
    let mut config = Client::config(1);
    (config.tsih, config.cid) = (established.tsih, 1);
    config.session = Some(established.params);
    config.cmd_sn = first.cmd_sn;
    let mut second = Client::login(address(&server), config);

    // Number n+1 comes first, on the second connection, and has to wait for number n.
    let sn = first.cmd_sn;
    let mut later = second.command(0, &read10(0, 1));
    later.set_read(true);
    later.edtl.set(512);
    later.cmd_sn.set(sn + 1);
    second.send(later.into(), &[]);
    second.stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout can be set");
    let mut byte = [0];
    assert!(second.stream.peek(&mut byte).is_err(), "it was answered before its turn");
    second.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    assert_eq!(first.write(0, &write10(0, 1), &[0x5a; 512]).0, 0);
    assert_eq!(second.finish(), (0, vec![0x5a; 512]));
    stop(server);
}

#[test]
fn a_login_as_the_same_port_reinstates_the_session() {
    let server = server(|_| ());
    let mut old = Client::login(address(&server), Client::config(1));
    old.settle(0);
    let mut new = Client::login(address(&server), Client::config(1));
    while old.receive().is_some() {}
    new.settle(0);
    assert_eq!(server.sessions(), 1);
    stop(server);
}

#[test]
fn an_aborted_write_ends_and_its_tag_is_free_again() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    let mut write = client.command(0, &write10(0, 64));
    write.set_write(true);
    write.edtl.set(64 * 512);
    client.send(write.into(), &[]);
    let r2t = client.receive().expect("an R2T");
    assert_eq!(r2t.bhs.opcode(), Some(Opcode::ReadyToTransfer));

    for (expected, times) in
        [(TaskManagementResult::FunctionComplete, 1), (TaskManagementResult::TaskDoesNotExist, 2)]
    {
        let itt = client.tag();
        let mut abort = TaskManagementRequest::new(itt, TaskManagementFunction::AbortTask, write.lun);
        abort.as_bhs_mut().set_immediate(true);
        abort.referenced_task_tag.set(write.itt.get());
        abort.ref_cmd_sn.set(write.cmd_sn.get());
        abort.cmd_sn.set(client.cmd_sn);
        client.send(abort.into(), &[]);
        let answer = client.receive().expect("an answer");
        assert_eq!(answer.bhs.as_task_management_response().result(), Some(expected), "time {times}");
    }
    // Data in flight is dropped.
    let mut late = DataOut::new(write.itt.get(), r2t.bhs.as_ready_to_transfer().ttt.get(), write.lun, 0, 0);
    late.set_final(true);
    client.send(late.into(), &[0xee; 64 * 512]);
    assert_eq!(client.read(0, &read10(0, 1), 512), (0, vec![0; 512]));
    stop(server);
}

#[test]
fn a_function_that_ends_many_tasks_spares_those_that_were_sent_after_it() {
    for function in [
        TaskManagementFunction::AbortTaskSet,
        TaskManagementFunction::ClearTaskSet,
        TaskManagementFunction::LogicalUnitReset,
        TaskManagementFunction::TargetWarmReset,
    ] {
        let server = server(|_| ());
        let mut client = Client::login(address(&server), Client::config(1));
        client.settle(0);
        let mut request = TaskManagementRequest::new(client.tag(), function, iscsi::pdu::Lun::ZERO);
        request.as_bhs_mut().set_immediate(true);
        request.cmd_sn.set(client.cmd_sn);
        let mut write = client.command(0, &write10(0, 64));
        write.set_write(true);
        write.edtl.set(64 * 512);
        // Both come in one piece, so that the write runs before the function.
        let both = [&request.as_bhs().bytes()[..], &write.as_bhs().bytes()[..]].concat();
        client.stream.write_all(&both).expect("the target reads");
        let mut opcodes: Vec<_> = (0..2).map(|_| client.receive().expect("an answer").bhs.opcode()).collect();
        opcodes.sort_unstable_by_key(|opcode| opcode.map(|opcode| opcode as u8));
        assert_eq!(opcodes[0], Some(Opcode::TaskManagementResponse), "{function}");
        if opcodes[1] == Some(Opcode::ReadyToTransfer) {
            // The write is still there, and can be aborted.
            let mut abort = TaskManagementRequest::new(
                client.tag(),
                TaskManagementFunction::AbortTask,
                iscsi::pdu::Lun::ZERO,
            );
            abort.as_bhs_mut().set_immediate(true);
            abort.referenced_task_tag.set(write.itt.get());
            abort.ref_cmd_sn.set(write.cmd_sn.get());
            abort.cmd_sn.set(client.cmd_sn);
            client.send(abort.into(), &[]);
            let answer = client.receive().expect("an answer");
            let result = answer.bhs.as_task_management_response().result();
            assert_eq!(result, Some(TaskManagementResult::FunctionComplete), "{function}");
        } else {
            // A reset came first, and its unit attention was the answer.
            assert_eq!(opcodes[1], Some(Opcode::ScsiResponse), "{function}");
        }
        stop(server);
    }
}

#[test]
fn a_unit_reset_is_told_to_all_sessions() {
    let server = server(|_| ());
    let mut one = Client::login(address(&server), Client::config(1));
    let mut two = Client::login(address(&server), Client::config(2));
    one.settle(0);
    two.settle(0);
    let mut reset = TaskManagementRequest::new(
        one.tag(),
        TaskManagementFunction::LogicalUnitReset,
        iscsi::pdu::Lun::ZERO,
    );
    reset.as_bhs_mut().set_immediate(true);
    reset.cmd_sn.set(one.cmd_sn);
    one.send(reset.into(), &[]);
    let answer = one.receive().expect("an answer");
    assert_eq!(
        answer.bhs.as_task_management_response().result(),
        Some(TaskManagementResult::FunctionComplete)
    );
    let (status, sense) = two.read(0, &[0; 6], 0);
    assert_eq!((status, sense[2] & 0xf, sense[12], sense[13]), (2, 6, 0x29, 0x03));
    stop(server);
}

#[test]
fn a_cold_reset_ends_the_sessions() {
    let server = server(|_| ());
    let mut one = Client::login(address(&server), Client::config(1));
    let mut two = Client::login(address(&server), Client::config(2));
    let itt = one.tag();
    let mut reset =
        TaskManagementRequest::new(itt, TaskManagementFunction::TargetColdReset, iscsi::pdu::Lun::ZERO);
    reset.as_bhs_mut().set_immediate(true);
    reset.cmd_sn.set(one.cmd_sn);
    one.send(reset.into(), &[]);
    assert_eq!(one.receive().expect("an answer").bhs.opcode(), Some(Opcode::TaskManagementResponse));
    assert!(one.receive().is_none());
    assert!(two.receive().is_none());
    stop(server);
}

#[test]
fn pings_texts_and_logouts_are_answered() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    let mut ping = NopOut::ping(client.tag());
    ping.as_bhs_mut().set_immediate(true);
    ping.cmd_sn.set(client.cmd_sn);
    client.send(ping.into(), b"are you there");
    assert_eq!(client.receive().expect("an answer").data, b"are you there");

    let mut text = TextRequest::new(client.tag(), RESERVED_TAG);
    text.cmd_sn.set(client.cmd_sn);
    client.cmd_sn += 1;
    client.send(text.into(), b"SendTargets=\0MaxRecvDataSegmentLength=4096\0");
    let answer = client.receive().expect("an answer").data;
    let expected = format!("TargetName={IQN}\0TargetAddress={},1\0", address(&server));
    assert!(answer.starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&answer));
    client.settle(0);
    let mut read = client.command(0, &read10(0, 32));
    read.set_read(true);
    read.edtl.set(32 * 512);
    client.send(read.into(), &[]);
    assert_eq!(client.receive().expect("data").data.len(), 4096, "the new MaxRecvDataSegmentLength holds");
    for _ in 0..3 {
        client.receive().expect("data");
    }

    let mut logout = LogoutRequest::new(client.tag(), LogoutReason::CloseSession, 0);
    logout.cmd_sn.set(client.cmd_sn);
    client.send(logout.into(), &[]);
    assert_eq!(client.receive().expect("an answer").bhs.opcode(), Some(Opcode::LogoutResponse));
    assert!(client.receive().is_none());
    stop(server);
}

/// A logout and behind it, in the same segment, a read that should not be there.
fn log_out_and_read(client: &mut Client, reason: LogoutReason, cid: u16) -> (u32, u32) {
    let mut logout = LogoutRequest::new(client.tag(), reason, cid);
    logout.as_bhs_mut().set_immediate(true);
    logout.cmd_sn.set(client.cmd_sn);
    let mut late = client.command(0, &read10(0, 1));
    late.set_read(true);
    late.edtl.set(512);
    let bytes = [client.bytes(logout.into(), &[]), client.bytes(late.into(), &[])].concat();
    client.stream.write_all(&bytes).expect("the target reads");
    (logout.itt.get(), late.itt.get())
}

#[test]
fn a_session_goes_on_after_a_logout_that_fails_whatever_was_sent_behind_it() {
    let server = server(|_| ());
    let mut config = Client::config(1);
    config.offer.error_recovery_level = 0;
    let mut client = Client::login(address(&server), config);
    client.settle(0);
    // There is no recovery of connections at this level.
    let (logout, late) = log_out_and_read(&mut client, LogoutReason::RemoveForRecovery, 0);
    let (mut refused, mut rejected) = (false, false);
    while !(refused && rejected) {
        let pdu = client.receive().expect("an answer");
        match pdu.bhs.opcode() {
            Some(Opcode::LogoutResponse) => {
                assert_eq!(pdu.bhs.itt(), logout);
                assert_eq!(pdu.bhs.as_logout_response().response, LogoutResult::RecoveryNotSupported.code());
                refused = true;
            }
            Some(Opcode::Reject) => {
                assert_eq!(pdu.data[16..20], late.to_be_bytes(), "the header of the read");
                rejected = true;
            }
            _ => panic!("{}", pdu.bhs),
        }
    }
    assert_eq!(client.read(0, &read10(0, 1), 512).0, 0);
    stop(server);
}

#[test]
fn what_is_sent_behind_a_connections_logout_holds_up_no_other_connection() {
    let server = server(|_| ());
    let mut first = Client::login(address(&server), Client::config(1));
    first.settle(0);
    let established = first.session.clone().expect("logged in");
    let mut config = Client::config(1);
    (config.tsih, config.cid) = (established.tsih, 1);
    config.session = Some(established.params);
    config.cmd_sn = first.cmd_sn;
    let mut second = Client::login(address(&server), config);
    log_out_and_read(&mut first, LogoutReason::CloseConnection, 0);
    while first.receive().is_some() {}
    second.cmd_sn = first.cmd_sn;
    assert_eq!(second.read(0, &read10(0, 1), 512).0, 0);
    stop(server);
}

#[test]
fn garbage_and_silence_end_their_own_connection_only() {
    // Long enough for the logins before it.
    let server = server(|config| config.limits.login_timeout = Duration::from_secs(3));
    let mut silent = Client::connect(address(&server));
    let mut good = Client::login(address(&server), Client::config(1));
    let mut liar = Client::login(address(&server), Client::config(2));
    good.settle(0);
    let mut garbage = Client::connect(address(&server));
    garbage.stream.write_all(&[0xff; 4096]).expect("the target reads");
    assert!(garbage.receive().is_none());
    assert!(silent.receive().is_none(), "the login timed out");
    let mut command = liar.command(0, &read10(0, 1));
    command.as_bhs_mut().set_data_segment_len(0xff_ffff);
    liar.stream.write_all(command.as_bhs().bytes()).expect("the target reads");
    assert!(liar.receive().is_none(), "a data segment beyond MaxRecvDataSegmentLength");
    good.settle(0);
    stop(server);
}

#[test]
fn stopping_asks_the_initiators_to_log_out() {
    let server = server(|_| ());
    let mut client = Client::login(address(&server), Client::config(1));
    let stopping = std::thread::spawn(move || stop(server));
    let message = client.receive().expect("an Async Message");
    assert_eq!(message.bhs.opcode(), Some(Opcode::AsyncMessage));
    let dropped = client.receive().expect("a notice");
    assert_eq!(dropped.bhs.as_async_message().event_code(), Some(AsyncEvent::DropSession));
    assert!(client.receive().is_none());
    stopping.join().expect("it stopped");
}

/// Logs in with the CID of a connection that `old`'s session has.
fn replace(server: &iscsi_server::Server, old: &Client, number: u8) -> Result<Client, String> {
    let established = old.session.clone().expect("logged in");
    let mut config = Client::config(number);
    (config.tsih, config.session) = (established.tsih, Some(established.params));
    config.cmd_sn = old.cmd_sn;
    let mut new = Client::connect(address(server));
    new.log_in(config)?;
    Ok(new)
}

#[test]
fn a_login_with_the_cid_of_a_sessions_only_connection_takes_its_place() {
    for (connections, level) in [(1, 0), (1, 1), (4, 0), (4, 1)] {
        let server = server(|_| ());
        let mut config = Client::config(1);
        (config.offer.max_connections, config.offer.error_recovery_level) = (connections, level);
        let mut old = Client::login(address(&server), config);
        old.settle(0);
        assert_eq!(old.write(0, &write10(7, 1), &[7; 512]).0, 0);
        // A running write waits for its data, and ends without an answer (RFC 7143 §6.3.4).
        let mut write = old.command(0, &write10(0, 1));
        write.set_write(true);
        write.edtl.set(512);
        old.send(write.into(), &[]);
        let r2t = old.receive().expect("an R2T");
        assert_eq!(r2t.bhs.opcode(), Some(iscsi::pdu::Opcode::ReadyToTransfer));
        let mut new = replace(&server, &old, 1).expect("its place is taken");
        while old.receive().is_some() {}
        // The lost connection's tasks were cleared, which a unit attention reports; the numbers of
        // the session continue.
        assert_eq!(new.cmd_sn, old.cmd_sn);
        new.settle(0);
        assert_eq!(new.read(0, &read10(7, 1), 512), (0, vec![7; 512]));
        assert_eq!(server.sessions(), 1);
        let again = replace(&server, &new, 1).expect("and once more");
        assert_eq!(server.sessions(), 1);
        drop(again);
        let end = std::time::Instant::now() + PATIENCE;
        while server.sessions() > 0 {
            assert!(std::time::Instant::now() < end, "the session ends with its last connection");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(replace(&server, &new, 1).is_err(), "there is nothing to take the place of");
        server.stop(Duration::from_millis(100)).expect("everything is flushed");
    }
}

#[test]
fn another_connection_of_a_session_that_may_have_one_is_refused_and_disturbs_nothing() {
    let server = server(|_| ());
    let mut config = Client::config(1);
    config.offer.max_connections = 1;
    let mut only = Client::login(address(&server), config);
    only.settle(0);
    let established = only.session.clone().expect("logged in");
    let mut more = Client::config(1);
    (more.tsih, more.cid, more.session) = (established.tsih, 1, Some(established.params.clone()));
    let refused = Client::connect(address(&server)).log_in(more).expect_err("one too many");
    assert!(refused.to_lowercase().contains("too many"), "{refused}");
    let mut stranger = Client::config(2);
    (stranger.tsih, stranger.session) = (established.tsih, Some(established.params));
    assert!(Client::connect(address(&server)).log_in(stranger).is_err(), "it is not its session");
    assert_eq!(only.read(0, &read10(0, 1), 512).0, 0);
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn what_recovery_had_to_do_is_counted_by_session_and_stays_in_the_sum_of_all() {
    let server = server(|_| ());
    let activity = || server.handle().activity(PATIENCE);
    let mut config = Client::config(1);
    config.offer.error_recovery_level = 1;
    let mut client = Client::login(address(&server), config);
    let tsih = client.session.as_ref().expect("logged in").tsih;
    client.settle(0);
    assert_eq!(client.read(0, &read10(0, 8), 4096).0, 0);
    let read = client.command(0, &read10(0, 8)).itt.get() - 1;
    client.cmd_sn -= 1;
    for (begin, rejected) in [(0, false), (40, true)] {
        let snack = SnackRequest::new(SnackType::DataR2t, read, RESERVED_TAG, begin, 1);
        client.send(snack.into(), &[]);
        let answer = client.receive().expect("an answer");
        assert_eq!(answer.bhs.opcode() == Some(Opcode::Reject), rejected);
    }
    let expected =
        iscsi_server::Recovered { snacks: 2, rejected_snacks: 1, resent_pdus: 1, ..Default::default() };
    let told = activity();
    assert_eq!((told.session_recoveries.get(&tsih), told.recoveries), (Some(&expected), expected));
    drop(client);
    while server.sessions() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let told = activity();
    assert_eq!((told.session_recoveries.get(&tsih), told.recoveries), (None, expected));
    stop(server);
}
