//! Initiators over RDMA that break the protocol, lie about their memory, flood, or vanish: their
//! connection ends, and the server continues to serve others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::iser::{Client, LINUX, at, options, pattern, run};
use crate::support::{ONE, address, read10, server, server_on, write10};
use iscsi::pdu::{Bhs, NopOut, ScsiCommand};
use iscsi_server::CoresConfig;
use iser::{Control, Hello, PrivateData, Remote};
use rdma::{Options, Stag};

/// Logs in twice, has `attack` do its worst with one of them, and sees that this one's connection
/// ends, its session with it, and the other's does not.
fn only_its_own_connection_ends(attack: impl AsyncFnOnce(&mut Client)) {
    let server = server(|_| ());
    run(async {
        let mut bystander = Client::login(address(&server), 1).await;
        bystander.settle(0).await;
        let data = pattern(1 << 20, 1);
        assert_eq!(bystander.write(0, &write10(0, 2048), &data, 8192).await.status().0, 0);
        let mut attacker = Client::login(address(&server), 2).await;
        attacker.settle(0).await;
        attack(&mut attacker).await;
        while attacker.receive().await.is_some() {}
        drop(attacker);
        sessions_become(&server, 1).await;
        let (_, back) = bystander.read(0, &read10(0, 2048), data.len()).await;
        assert!(back == data);
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

async fn sessions_become(server: &iscsi_server::Server, count: usize) {
    let end = Instant::now() + support::PATIENCE;
    while server.sessions() != count {
        assert!(Instant::now() < end, "{} sessions", server.sessions());
        runtime::sleep(Duration::from_millis(10)).await;
    }
}

fn reading(client: &mut Client, blocks: u16) -> ScsiCommand {
    let mut command = client.command(0, &read10(0, blocks));
    command.set_read(true);
    command.edtl.set(u32::from(blocks) * 512);
    command
}

fn writing(client: &mut Client, blocks: u16) -> ScsiCommand {
    let mut command = client.command(0, &write10(0, blocks));
    command.set_write(true);
    command.edtl.set(u32::from(blocks) * 512);
    command
}

const WILD: Remote = Remote { stag: 0xdead_beef, offset: 0x1000 };

#[test]
fn a_read_into_memory_that_is_not_there() {
    only_its_own_connection_ends(async |client| {
        let command = reading(client, 8);
        client.send(Control { read: Some(WILD), write: None }, command.into(), &[]);
    });
}

#[test]
fn a_write_from_memory_that_is_not_there() {
    only_its_own_connection_ends(async |client| {
        let command = writing(client, 8);
        client.send(Control { read: None, write: Some(WILD) }, command.into(), &[]);
    });
}

#[test]
fn a_read_past_the_end_of_the_memory_that_was_named() {
    only_its_own_connection_ends(async |client| {
        let stag = client.sink(2048);
        let command = reading(client, 8);
        client.send(Control { read: Some(at(stag, 0)), write: None }, command.into(), &[]);
    });
}

#[test]
fn an_offset_that_wraps_around() {
    only_its_own_connection_ends(async |client| {
        let stag = client.sink(4096);
        let command = reading(client, 8);
        client.send(Control { read: Some(at(stag, u64::MAX - 100)), write: None }, command.into(), &[]);
    });
}

#[test]
fn a_read_that_names_no_memory() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        let command = reading(&mut client, 8);
        client.send(Control::default(), command.into(), &[]);
        let answer = client.answer(command.itt.get()).await;
        let (status, sense) = answer.status();
        assert_eq!(
            (status, sense.get(2), &sense[12..14]),
            (2, Some(&0x0b), &[0x4b, 0x00][..]),
            "DATA PHASE ERROR"
        );
        let response = answer.bhs.as_scsi_response();
        assert_eq!(response.residual_count.get(), 4096, "nothing was moved");
        // The connection is unaffected.
        assert_eq!(client.read(0, &read10(0, 8), 4096).await.0.status().0, 0);
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn a_write_that_names_no_memory_and_brings_too_little() {
    only_its_own_connection_ends(async |client| {
        let command = writing(client, 8);
        client.send(Control::default(), command.into(), &[1; 512]);
    });
}

#[test]
fn a_read_of_another_connections_memory() {
    let server = server(|_| ());
    run(async {
        let mut victim = Client::login(address(&server), 1).await;
        victim.settle(0).await;
        let stag = victim.sink(4096);
        let mut attacker = Client::login(address(&server), 2).await;
        attacker.settle(0).await;
        let command = reading(&mut attacker, 8);
        attacker.send(Control { read: Some(at(stag, 0)), write: None }, command.into(), &[]);
        while attacker.receive().await.is_some() {}
        assert!(victim.is_alive().await);
        assert!(victim.take(stag).iter().all(|byte| *byte == 0xee));
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn messages_that_are_no_pdus() {
    let ping = |data_len: usize, ahs: u8| {
        let mut bhs: Bhs = NopOut::ping(7).into();
        bhs.set_data_segment_len(data_len);
        bhs.total_ahs_words = ahs;
        [&Control::default().encode()[..], bhs.bytes()].concat()
    };
    let messages: [(&str, Vec<u8>); 9] = [
        ("nothing", vec![]),
        ("a header cut short", vec![0x10; 20]),
        ("a header alone", Control::default().encode().to_vec()),
        ("an unknown opcode", vec![0xf0; 76]),
        ("a Hello that nobody asked for", Hello::new(4).encode().to_vec()),
        ("less data than said", ping(100, 0)),
        ("more data than said", [ping(4, 0), vec![0; 100]].concat()),
        ("less AHS than said", ping(0, 10)),
        ("more data than agreed on", [ping(8196, 0), vec![0; 8196]].concat()),
    ];
    for (name, message) in messages {
        println!("{name}");
        only_its_own_connection_ends(async |client| client.send_raw(&message));
    }
}

#[test]
fn a_message_longer_than_any_receive() {
    only_its_own_connection_ends(async |client| client.send_raw(&vec![0x10; 64 << 10]));
}

#[test]
fn an_opcode_of_the_target() {
    only_its_own_connection_ends(async |client| {
        let mut bhs: Bhs = NopOut::ping(7).into();
        // Too many of what is rejected one by one.
        bhs.opcode_byte = 0x21;
        for _ in 0..400 {
            client.send(Control::default(), bhs, &[]);
        }
    });
}

#[test]
fn a_flood_of_commands_beyond_the_window_costs_nobody_else() {
    let server = server(|config| config.limits.queue_depth = 8);
    run(async {
        let mut bystander = Client::login(address(&server), 1).await;
        bystander.settle(0).await;
        let wide = Options { receives: 100_000, ..options() };
        let mut attacker = Client::login_as(address(&server), support::Client::config(2), LINUX, &wide).await;
        attacker.settle(0).await;
        let stag = attacker.sink(64 << 10);
        for _ in 0..20_000 {
            let command = reading(&mut attacker, 128);
            attacker.pair.post_send(
                &[&Control { read: Some(at(stag, 0)), write: None }.encode()[..], Bhs::from(command).bytes()]
                    .concat(),
                runtime::Chain::new(),
                rdma::Flags::default(),
                None,
            );
        }
        // Its messages are beyond the window: the server ignores those that it takes, and keeps
        // nothing for them.
        let _ =
            runtime::timeout(Duration::from_secs(3), async { while attacker.receive().await.is_some() {} })
                .await;
        assert!(bystander.is_alive().await);
        let (message, _) = bystander.read(0, &read10(0, 128), 64 << 10).await;
        assert_eq!(message.status().0, 0);
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn an_initiator_that_vanishes_in_the_middle_of_transfers() {
    let server = server(|_| ());
    run(async {
        let mut bystander = Client::login(address(&server), 1).await;
        bystander.settle(3).await;
        for round in 0..10u64 {
            let mut client = Client::login(address(&server), 2).await;
            client.settle(3).await;
            for _ in 0..8 {
                client.start_write(3, &write10(0, 2048), &pattern(1 << 20, 9), 8192);
                client.start_read(3, &read10(0, 2048), 1 << 20);
            }
            // The first rounds before anything is answered, later ones in the middle of it.
            let some = async {
                for _ in 0..round {
                    client.receive().await;
                }
            };
            some.await;
            drop(client);
            sessions_become(&server, 1).await;
        }
        let (message, _) = bystander.read(3, &read10(0, 8), 4096).await;
        assert_eq!(message.status().0, 0);
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn an_initiator_that_never_answers_reads_is_given_up() {
    let server = server(|config| {
        config.limits.nop_interval = Duration::from_millis(500);
        config.limits.nop_timeout = Duration::from_millis(500);
    });
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        client.start_write(0, &write10(0, 2048), &pattern(1 << 20, 9), 0);
        // The client does not poll its connection any more.
        sessions_become(&server, 0).await;
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn initiators_that_read_nothing_leave_room_for_others() {
    const READS: usize = 48;
    const LEN: usize = 256 << 10;
    let server = server_on(CoresConfig { pool_bytes: 32 << 20, ..ONE }, |config| {
        config.limits.send_high_water = 64 << 20;
        config.limits.nop_interval = Duration::ZERO;
    });
    run(async {
        // Data with a CRC is copied to the pool.
        let options = Options { crc: rdma::Crc::Require, ..options() };
        let mut other =
            Client::login_as(address(&server), support::Client::config(100), LINUX, &options).await;
        other.settle(0).await;
        let mut deaf = Vec::new();
        for number in 0..8 {
            let config = support::Client::config(number);
            let mut client =
                Client::login_as(address(&server), config, PrivateData::new(false), &options).await;
            client.settle(0).await;
            let stag = client.sink(LEN);
            for _ in 0..READS {
                let command = reading(&mut client, (LEN / 512) as u16);
                client.send(Control { read: Some(at(stag, 0)), write: None }, command.into(), &[]);
            }
            deaf.push(client);
        }
        runtime::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        for round in 0..20 {
            let data = pattern(1 << 20, round);
            assert_eq!(other.write(0, &write10(0, 2048), &data, 8192).await.status().0, 0);
            let (message, back) = other.read(0, &read10(0, 2048), data.len()).await;
            assert!(message.status().0 == 0 && back == data, "round {round}");
        }
        assert!(began.elapsed() < 2 * support::PATIENCE, "{:?}", began.elapsed());
        // A client that reads after all gets everything that it asked for.
        for mut client in deaf.drain(..2) {
            for read in 0..READS {
                let message = client.receive().await.expect("an answer");
                assert_eq!(message.status().0, 0, "read {read}");
            }
        }
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn connections_that_begin_as_rdma_and_never_log_in() {
    let server = server(|config| config.limits.login_timeout = Duration::from_secs(3));
    let to: SocketAddr = address(&server);
    run(async {
        // Nothing after the connection request; half of one; and one with private data of the wrong
        // length.
        let silent = Client::connect(to, LINUX, &options()).await.expect("the portal takes iSER");
        let half = runtime::TcpStream::connect(to, support::PATIENCE).await.expect("the portal listens");
        let mut gather = runtime::Gather::new();
        gather.push_copy(b"MPA ID Req Fr");
        half.send(gather).await.0.expect("it takes bytes");
        let (odd, _) = rdma::connect(to, &[0x80], &options()).await.expect("the portal takes iSER");
        let begun = Instant::now();
        assert!(silent.pair.next().await.is_err());
        assert!(odd.next().await.is_err());
        assert!(half.recv_some(16).await.map_or(0, |bytes| bytes.len()) == 0);
        assert!(begun.elapsed() < support::PATIENCE, "{:?}", begun.elapsed());
        let mut honest = Client::login(to, 1).await;
        assert!(honest.is_alive().await);
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

#[test]
fn a_response_that_the_initiator_did_not_permit_to_invalidate_never_does() {
    let server = server(|_| ());
    run(async {
        let mut client = Client::login_as(
            address(&server),
            support::Client::config(1),
            PrivateData::new(false),
            &options(),
        )
        .await;
        client.settle(0).await;
        for _ in 0..50 {
            let (command, stag) = client.start_read(0, &read10(0, 8), 4096);
            assert_eq!(client.answer(command.itt.get()).await.invalidated, None::<Stag>);
            client.take(stag);
        }
    });
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
