//! iSER against a whole server over loopback, with the dialog of Linux's initiator: logins, data in
//! both directions, aborts, and both transports at one portal.

use std::time::{Duration, Instant};

use crate::support;
use crate::support::iser::{Client, LINUX, at, options, pattern, run};
use crate::support::{IQN, address, read10, server, write10};
use iscsi::keys::Offer;
use iscsi::pdu::{
    DataOut, Lun, NopOut, Opcode, RESERVED_TAG, TaskManagementFunction, TaskManagementRequest,
    TaskManagementResult, TextRequest,
};
use iscsi_server::config::{Crc, IserConfig, Transports};
use iser::{Control, Header, Hello, PrivateData};
use rdma::Completion;

fn stop(server: iscsi_server::Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn reads_of_every_size_are_written_to_where_the_initiator_wants_them() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        let disk = pattern(4 << 20, 1);
        for (at, part) in (0..).step_by(2048).zip(disk.chunks(1 << 20)) {
            assert_eq!(client.write(0, &write10(at, 2048), part, 0).await.status().0, 0);
        }
        for blocks in [1u16, 2, 8, 16, 17, 128, 512, 2048, 8192] {
            let lba = 8192 - u32::from(blocks);
            let (message, data) = client.read(0, &read10(lba, blocks), usize::from(blocks) * 512).await;
            assert_eq!(message.status().0, 0);
            assert!(data == disk[lba as usize * 512..], "{blocks} blocks");
        }
    });
    stop(server);
}

#[test]
fn a_read_goes_to_its_base_offset_and_nowhere_else() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        let block = pattern(512, 2);
        assert_eq!(client.write(0, &write10(5, 1), &block, 512).await.status().0, 0);
        let stag = client.sink(4096);
        let mut command = client.command(0, &read10(5, 1));
        command.set_read(true);
        // More is expected than there is.
        command.edtl.set(1024);
        client.send(Control { read: Some(at(stag, 1000)), write: None }, command.into(), &[]);
        let message = client.answer(command.itt.get()).await;
        assert_eq!(message.bhs.as_scsi_response().residual(), Some(iscsi::pdu::Residual::Underflow(512)));
        let memory = client.take(stag);
        assert!(memory[1000..1512] == block[..]);
        assert!(memory[..1000].iter().chain(&memory[1512..]).all(|byte| *byte == 0xee));
    });
    stop(server);
}

#[test]
fn writes_are_fetched_from_behind_what_came_with_the_command() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        for (seed, (blocks, immediate)) in (10..).zip([
            (1u16, 0),
            (1, 512),
            (16, 8192),
            (16, 100),
            (17, 8192),
            (64, 512),
            (2048, 8192),
            (8192, 0),
        ]) {
            let data = pattern(usize::from(blocks) * 512, seed);
            let message = client.write(0, &write10(0, blocks), &data, immediate).await;
            assert_eq!(message.status(), (0, vec![]), "{blocks} blocks, {immediate} bytes at once");
            let (_, back) = client.read(0, &read10(0, blocks), data.len()).await;
            assert!(back == data, "{blocks} blocks, {immediate} bytes at once");
        }
    });
    stop(server);
}

#[test]
fn unsolicited_data_is_taken_where_the_configuration_wants_it() {
    let server = server(|config| config.iser.unsolicited_data = true);
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        assert!(!client.session.as_ref().expect("logged in").params.initial_r2t);
        client.settle(0).await;
        let data = pattern(100 * 512, 3);
        // 8 KiB with the command, three messages more, and the rest by RDMA Read.
        let unasked = 8192 + 3 * 8192;
        let stag = client.pair.expose_source(support::iser::chain(&data)).expect("an STag");
        let mut command = client.command(0, &write10(0, 100));
        command.set_write(true);
        command.set_final(false);
        command.edtl.set(data.len() as u32);
        let write = Some(at(stag, unasked as u64));
        client.send(Control { read: None, write }, command.into(), &data[..8192]);
        for sn in 0..3 {
            let from = 8192 * (sn as usize + 1);
            let mut out = DataOut::new(command.itt.get(), RESERVED_TAG, command.lun, sn, from as u32);
            out.set_final(sn == 2);
            client.send(Control::default(), out.into(), &data[from..from + 8192]);
        }
        assert_eq!(client.answer(command.itt.get()).await.status().0, 0);
        let (_, back) = client.read(0, &read10(0, 100), data.len()).await;
        assert!(back == data);
    });
    stop(server);
}

#[test]
fn unsolicited_data_is_refused_where_it_was_not_agreed_on() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        assert!(client.session.as_ref().expect("logged in").params.initial_r2t);
        client.settle(0).await;
        let mut command = client.command(0, &write10(0, 1));
        command.set_write(true);
        command.set_final(false);
        command.edtl.set(512);
        client.send(Control::default(), command.into(), &[]);
        let (status, sense) = client.answer(command.itt.get()).await.status();
        assert_eq!((status, sense[2] & 15, sense[12], sense[13]), (2, 0x0b, 0x0c, 0x0c));
        assert!(client.is_alive().await);
    });
    stop(server);
}

#[test]
fn responses_invalidate_the_commands_stag_only_for_initiators_that_permit_it() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        assert!(client.reply.remote_invalidation);
        client.settle(0).await;
        let (command, stag) = client.start_read(0, &read10(0, 8), 4096);
        assert_eq!(client.answer(command.itt.get()).await.invalidated, Some(stag));
        let (command, stag) = client.start_write(0, &write10(0, 8), &[7; 4096], 0);
        assert_eq!(client.answer(command.itt.get()).await.invalidated, Some(stag));
        // A command that fails before it touches its memory, too.
        let (command, stag) = client.start_read(0, &read10(1 << 30, 8), 4096);
        let message = client.answer(command.itt.get()).await;
        assert_eq!((message.status().0, message.invalidated), (2, Some(stag)));
        // Nothing is invalidated for a command that has named nothing.
        let command = client.command(0, &[0; 6]);
        client.send(Control::default(), command.into(), &[]);
        assert_eq!(client.answer(command.itt.get()).await.invalidated, None);

        let plain = PrivateData::new(false);
        let mut client =
            Client::login_as(address(&server), support::Client::config(2), plain, &options()).await;
        assert!(!client.reply.remote_invalidation);
        client.settle(0).await;
        let (message, data) = client.read(0, &read10(0, 8), 4096).await;
        assert_eq!((message.status().0, message.invalidated, data), (0, None, vec![7; 4096]));
    });
    stop(server);
}

#[test]
fn a_hello_is_answered_and_its_read_depth_kept() {
    let server = server(|_| ());
    run(async {
        let mut config = support::Client::config(1);
        config.offer.iser_hello_required = true;
        let mut client = Client::login_as(address(&server), config, LINUX, &options()).await;
        client.send_raw(&Hello::new(1).encode());
        let reply = match client.pair.next().await {
            Ok(Completion::Received { message, .. }) => Header::decode(&message.to_vec()),
            other => panic!("{other:?}"),
        };
        let Ok(Header::HelloReply(reply)) = reply else { panic!("{reply:?}") };
        assert!(!reply.rejected && reply.ord == 1);
        client.settle(0).await;
        let data = pattern(4 << 20, 4);
        assert_eq!(client.write(0, &write10(0, 8192), &data, 0).await.status().0, 0);
        let (_, back) = client.read(0, &read10(0, 8192), data.len()).await;
        assert!(back == data);
    });
    stop(server);
}

#[test]
fn crcs_small_fpdus_and_markers_carry_the_same() {
    for markers in [false, true] {
        carries_the_same(IserConfig { crc: Crc::Require, max_fpdu: 1460, markers, ..IserConfig::default() });
    }
}

fn carries_the_same(iser: IserConfig) {
    let server = server(|config| config.iser = iser);
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        assert!(client.pair.has_crc());
        client.settle(0).await;
        let data = pattern(300 * 512, 5);
        assert_eq!(client.write(0, &write10(0, 300), &data, 8192).await.status().0, 0);
        let (_, back) = client.read(0, &read10(0, 300), data.len()).await;
        assert!(back == data);
    });
    stop(server);
}

#[test]
fn pings_and_sense_data_fit_the_smallest_receive_buffer_in_use() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        let itt = client.tag();
        let mut ping = NopOut::ping(itt);
        ping.cmd_sn.set(client.cmd_sn);
        client.send(Control::default(), ping.into(), &pattern(1000, 6));
        let pong = client.answer(itt).await;
        assert_eq!((pong.bhs.opcode(), pong.data), (Some(Opcode::NopIn), pattern(1000, 6)[..128].to_vec()));
        let (message, _) = client.read(0, &read10(1 << 30, 8), 4096).await;
        let (status, sense) = message.status();
        assert!(status == 2 && sense.len() <= 126, "{}", sense.len());
    });
    stop(server);
}

#[test]
fn a_discovery_session_over_rdma_learns_the_targets() {
    let server = server(|_| ());
    run(async {
        let mut config = support::Client::config(1);
        config.target = None;
        config.offer = Offer::discovery();
        let mut client = Client::login_as(address(&server), config, LINUX, &options()).await;
        let itt = client.tag();
        let mut request = TextRequest::new(itt, RESERVED_TAG);
        request.cmd_sn.set(client.cmd_sn);
        client.send(Control::default(), request.into(), b"SendTargets=All\0");
        let answer = String::from_utf8(client.answer(itt).await.data).expect("text");
        assert!(answer.contains(&format!("TargetName={IQN}\0TargetAddress=127.0.0.1:")), "{answer:?}");
    });
    stop(server);
}

#[test]
fn one_portal_takes_both_transports_unless_it_is_told_not_to() {
    for (transports, tcp, iser) in
        [(Transports::All, true, true), (Transports::Tcp, true, false), (Transports::Iser, false, true)]
    {
        let server = server(|config| config.portals[0].transports = transports);
        let over_tcp = support::Client::connect(address(&server)).log_in_if_taken();
        assert_eq!(over_tcp, tcp, "{transports:?}");
        let over_iser = run(async {
            match Client::connect(address(&server), LINUX, &options()).await {
                Ok(mut client) => client.log_in(support::Client::config(2)).await.is_ok(),
                Err(_) => false,
            }
        });
        assert_eq!(over_iser, iser, "{transports:?}");
        stop(server);
    }
}

#[test]
fn what_one_transport_writes_the_other_reads() {
    let server = server(|_| ());
    let data = pattern(64 << 10, 7);
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(3).await;
        assert_eq!(client.write(3, &write10(40, 128), &data, 8192).await.status().0, 0);
    });
    let mut client = support::Client::login(address(&server), support::Client::config(2));
    client.settle(3);
    assert!(client.read(3, &read10(40, 128), data.len() as u32) == (0, data));
    stop(server);
}

#[test]
fn a_session_over_rdma_has_one_connection() {
    let server = server(|_| ());
    run(async {
        let client = Client::login(address(&server), 1).await;
        let established = client.session.clone().expect("logged in");
        assert_eq!(established.params.max_connections, 1);
        let mut config = support::Client::config(1);
        (config.tsih, config.cid) = (established.tsih, 1);
        config.session = Some(established.params);
        let mut second =
            Client::connect(address(&server), LINUX, &options()).await.expect("the portal takes iSER");
        let refused = second.log_in(config).await.expect_err("no second connection");
        assert!(refused.contains("Too many connections"), "{refused}");
    });
    stop(server);
}

#[test]
fn a_session_is_reinstated_at_once_though_its_old_connection_is_idle() {
    let server = server(|_| ());
    run(async {
        let mut old = Client::login(address(&server), 1).await;
        old.settle(0).await;
        let begun = std::time::Instant::now();
        let mut new = Client::login(address(&server), 1).await;
        // Not only after a time limit of the target's.
        assert!(begun.elapsed() < support::PATIENCE, "{:?}", begun.elapsed());
        new.settle(0).await;
        assert!(old.receive().await.is_none());
        assert!(new.is_alive().await);
    });
    stop(server);
}

#[test]
fn an_aborted_writes_reads_are_over_when_the_abort_is_answered() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        assert_eq!(client.write(0, &write10(0, 2048), &pattern(1 << 20, 8), 0).await.status().0, 0);
        for round in 0..20 {
            // The target cannot have the data before this end listens again, which it does only
            // after both are sent.
            let data = pattern(1 << 20, 100 + round);
            let (write, stag) = client.start_write(0, &write10(0, 2048), &data, 0);
            if round % 2 == 1 {
                runtime::sleep(Duration::from_millis(3)).await;
            }
            let itt = client.tag();
            let mut abort = TaskManagementRequest::new(
                itt,
                TaskManagementFunction::AbortTask,
                Lun::new(0).expect("a small number"),
            );
            abort.referenced_task_tag.set(write.itt.get());
            abort.ref_cmd_sn.set(write.cmd_sn.get());
            abort.cmd_sn.set(client.cmd_sn);
            client.send(Control::default(), abort.into(), &[]);
            let answered = client.answer(itt).await;
            let result = answered.bhs.as_task_management_response().result();
            // The write may have ended already: then its response has come before.
            if result != Some(TaskManagementResult::FunctionComplete) {
                assert_eq!(client.answer(write.itt.get()).await.status().0, 0);
            }
            // From here on the memory is gone: reading it would cost the connection.
            client.pair.withdraw(stag).expect("it is exposed");
            assert!(client.is_alive().await, "round {round}");
        }
        client.settle(0).await;
        let (message, _) = client.read(0, &read10(0, 2048), 1 << 20).await;
        assert_eq!(message.status().0, 0);
    });
    stop(server);
}

#[test]
fn a_logout_is_answered_before_the_connection_ends_and_the_initiator_may_close_it_first() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        let itt = client.tag();
        let mut logout = iscsi::pdu::LogoutRequest::new(itt, iscsi::pdu::LogoutReason::CloseSession, 0);
        logout.cmd_sn.set(client.cmd_sn);
        let before = Instant::now();
        client.send(Control::default(), logout.into(), &[]);
        assert_eq!(client.answer(itt).await.bhs.opcode(), Some(Opcode::LogoutResponse));
        assert!(client.receive().await.is_none());
        assert!(before.elapsed() >= Duration::from_millis(500), "the target closed it at once");
    });
    while server.sessions() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(server);
}

#[test]
fn a_silent_initiator_is_pinged_and_lives_while_it_answers() {
    let server = server(|config| {
        config.limits.nop_interval = Duration::from_secs(1);
        config.limits.nop_timeout = Duration::from_secs(3);
    });
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        for _ in 0..2 {
            let ping = client.receive().await.expect("a ping");
            let nop = ping.bhs.as_nop_in();
            assert_ne!(nop.ttt.get(), RESERVED_TAG);
            let mut answer = NopOut::answer(nop.ttt.get(), nop.lun);
            answer.cmd_sn.set(client.cmd_sn);
            client.send(Control::default(), answer.into(), &[]);
        }
        // From here on it does not answer.
        assert_eq!(client.receive().await.expect("a ping").bhs.opcode(), Some(Opcode::NopIn));
        assert!(client.receive().await.is_none());
    });
    stop(server);
}
