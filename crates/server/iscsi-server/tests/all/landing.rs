//! Direct placement of long writes: their data is received straight into a memory unit's blocks.
//! With any event in between, each block is wholly the old one or wholly the new one.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Client, PATIENCE, address, blocks_seen, blocks_written, read10, server, write10};
use backing::MemoryStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::keys::DigestChoice;
use iscsi::login::initiator::Config;
use iscsi::pdu::{Bhs, DataOut, Lun, Opcode, RESERVED_TAG, TaskManagementFunction, TaskManagementRequest};
use iscsi_server::config::LunConfig;
use iscsi_server::{Server, TcpCounters, Unit};

/// Bytes of a long write, no longer than FirstBurstLength.
const LONG: usize = 256 << 10;
const LONG_BLOCKS: u16 = (LONG / 512) as u16;
/// Most bytes that may have come with a header, and are copied.
const WITH_HEADER: u64 = 64 << 10;

/// Counts of bytes received over TCP, of all cores.
fn counters(server: &Server) -> TcpCounters {
    let cores = server.core().cores(PATIENCE);
    cores.into_iter().map(|core| core.expect("the core answers").tcp).fold(
        TcpCounters::default(),
        |sum, tcp| TcpCounters { received: sum.received + tcp.received, landed: sum.landed + tcp.landed },
    )
}

fn login(server: &Server, number: u8, change: impl FnOnce(&mut Config)) -> Client {
    let mut config = Client::config(number);
    change(&mut config);
    let mut client = Client::login(address(server), config);
    client.settle(0);
    client
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) + (i >> 9) * 7 + salt) as u8).collect()
}

/// A write whose data goes with it, as it is sent.
fn write_with_data(client: &mut Client, lba: u32, data: &[u8]) -> Vec<u8> {
    let mut command = client.command(0, &write10(lba, (data.len() / 512) as u16));
    command.set_write(true);
    command.edtl.set(data.len() as u32);
    client.bytes(command.into(), data)
}

fn send(client: &mut Client, bytes: &[u8]) {
    client.stream.write_all(bytes).expect("the target reads");
}

fn good(client: &mut Client) {
    let (status, sense) = client.finish();
    assert_eq!(status, 0, "{sense:02x?}");
}

fn read(client: &mut Client, lba: u32, blocks: u16) -> Vec<u8> {
    let (status, data) = client.read(0, &read10(lba, blocks), u32::from(blocks) * 512);
    assert_eq!(status, 0);
    data
}

/// Waits until half of `new` has landed at LBA 0.
fn wait_until_landed(other: &mut Client, new: &[u8], at_least: usize) -> usize {
    let began = Instant::now();
    loop {
        let written = blocks_seen(&read(other, 0, LONG_BLOCKS), new);
        if written >= at_least {
            return written;
        }
        assert!(began.elapsed() < PATIENCE, "{written} blocks have landed");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a long write to LBA 0 except its last bytes, which it returns, and waits until much of it
/// is on the medium.
fn half(writer: &mut Client, other: &mut Client, new: &[u8]) -> Vec<u8> {
    let mut bytes = write_with_data(writer, 0, new);
    // Not at the end of a block.
    let rest = bytes.split_off(bytes.len() - 100_001);
    // The header by itself, so that nothing is received with it.
    send(writer, &bytes[..48]);
    std::thread::sleep(Duration::from_millis(50));
    send(writer, &bytes[48..]);
    wait_until_landed(other, new, 128);
    rest
}

#[test]
fn immediate_and_asked_for_data_of_long_writes_lands() {
    let server = server(|_| ());
    for (number, immediate) in [(1, true), (2, false)] {
        let mut client = login(&server, number, |config| {
            config.offer.immediate_data = immediate;
            config.offer.initial_r2t = !immediate;
        });
        let before = counters(&server);
        for round in 0..8usize {
            let data = pattern(LONG, round + 100 * usize::from(number));
            match immediate {
                true => {
                    let bytes = write_with_data(&mut client, 512 * round as u32, &data);
                    send(&mut client, &bytes);
                }
                false => {
                    let mut command = client.command(0, &write10(512 * round as u32, LONG_BLOCKS));
                    command.set_write(true);
                    command.edtl.set(LONG as u32);
                    client.send(command.into(), &[]);
                    let r2t = client.receive().expect("an R2T").bhs;
                    let r2t = *r2t.as_ready_to_transfer();
                    assert_eq!(r2t.desired_length.get() as usize, LONG);
                    for (sn, at) in (0..).zip((0..LONG).step_by(LONG / 2)) {
                        let mut out = DataOut::new(r2t.itt.get(), r2t.ttt.get(), r2t.lun, sn, at as u32);
                        out.set_final(at > 0);
                        client.send(out.into(), &data[at..at + LONG / 2]);
                    }
                }
            }
            good(&mut client);
        }
        let after = counters(&server);
        assert!(after.received - before.received >= 8 * LONG as u64);
        // After the first, headers are received by themselves.
        let copied = 8 * LONG as u64 - (after.landed - before.landed);
        assert!(copied <= 2 * WITH_HEADER, "{copied} bytes did not land");
        for round in 0..8usize {
            let data = pattern(LONG, round + 100 * usize::from(number));
            assert!(read(&mut client, 512 * round as u32, LONG_BLOCKS) == data, "round {round}");
        }
    }
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn data_with_a_digest_does_not_land_and_neither_does_that_of_sessions_that_recover() {
    let server = server(|_| ());
    let digests = |config: &mut Config| config.offer.data_digest = DigestChoice::Require;
    let recovery = |config: &mut Config| config.offer.error_recovery_level = 1;
    for (number, change) in [(1, &digests as &dyn Fn(&mut Config)), (2, &recovery)] {
        let mut client = login(&server, number, |config| change(config));
        client.acknowledges = true;
        for round in 0..3 {
            let data = pattern(LONG, round);
            let bytes = write_with_data(&mut client, 0, &data);
            send(&mut client, &bytes);
            good(&mut client);
            assert!(read(&mut client, 0, LONG_BLOCKS) == data);
        }
        assert_eq!(counters(&server).landed, 0);
    }
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn bytes_with_a_wrong_digest_never_reach_the_medium() {
    let server = server(|_| ());
    let mut client = login(&server, 1, |config| config.offer.data_digest = DigestChoice::Require);
    let mut bytes = write_with_data(&mut client, 0, &pattern(LONG, 1));
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    send(&mut client, &bytes);
    let mut other = login(&server, 2, |_| ());
    std::thread::sleep(Duration::from_millis(100));
    assert!(read(&mut other, 0, LONG_BLOCKS).iter().all(|byte| *byte == 0));
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn a_write_that_is_cut_off_leaves_whole_blocks_and_the_next_session_finds_the_unit_as_it_is() {
    let server = server(|_| ());
    let mut other = login(&server, 2, |_| ());
    let (mut old, mut whole) = (vec![0; LONG], 0);
    for round in 0..4usize {
        let mut writer = login(&server, 1, |_| ());
        let new = pattern(LONG, round);
        half(&mut writer, &mut other, &new);
        match round % 2 {
            0 => writer.stream.shutdown(Shutdown::Both).expect("it is open"),
            _ => drop(writer),
        }
        std::thread::sleep(Duration::from_millis(50));
        let now = read(&mut other, 0, LONG_BLOCKS);
        whole += blocks_written(&now, &old, &new);
        old = now;
    }
    assert!(whole > 4 * 128);
    // And a whole one after all of them.
    let new = pattern(LONG, 77);
    let bytes = write_with_data(&mut other, 0, &new);
    send(&mut other, &bytes);
    good(&mut other);
    assert!(read(&mut other, 0, LONG_BLOCKS) == new);
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn after_a_reset_has_been_answered_nothing_of_a_write_lands_any_more() {
    let server = server(|_| ());
    let mut other = login(&server, 2, |_| ());
    let mut writer = login(&server, 1, |_| ());
    let new = pattern(LONG, 5);
    let rest = half(&mut writer, &mut other, &new);
    let itt = other.tag();
    let mut reset = TaskManagementRequest::new(itt, TaskManagementFunction::LogicalUnitReset, Lun::ZERO);
    let mut bhs = {
        reset.cmd_sn.set(other.cmd_sn);
        Bhs::from(reset)
    };
    bhs.set_immediate(true);
    other.send(bhs, &[]);
    let answer = other.receive().expect("an answer").bhs;
    assert_eq!(answer.opcode(), Some(Opcode::TaskManagementResponse), "{answer}");
    other.settle(0);
    let at_reset = read(&mut other, 0, LONG_BLOCKS);
    send(&mut writer, &rest);
    // The connection continues, and the command has no answer.
    writer.settle(0);
    assert!(read(&mut other, 0, LONG_BLOCKS) == at_reset, "a byte came after the reset");
    let bytes = write_with_data(&mut writer, 0, &new);
    send(&mut writer, &bytes);
    good(&mut writer);
    assert!(read(&mut writer, 0, LONG_BLOCKS) == new);
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn a_write_whose_data_does_not_come_keeps_no_atomic_command_waiting() {
    let server = server(|_| ());
    let mut other = login(&server, 2, |_| ());
    let mut writer = login(&server, 1, |_| ());
    let new = pattern(LONG, 6);
    let rest = half(&mut writer, &mut other, &new);
    // COMPARE AND WRITE of a block that has been placed, and of one that has not come.
    for (lba, old) in [(1usize, &new[512..1024]), (511, &[0; 512][..])] {
        let mut cdb = [0; 16];
        cdb[0] = 0x89;
        cdb[8..10].copy_from_slice(&(lba as u16).to_be_bytes());
        cdb[13] = 1;
        let both = [old, &[0xee; 512]].concat();
        assert_eq!(other.write(0, &cdb, &both).0, 0);
        assert_eq!(read(&mut other, lba as u32, 1), [0xee; 512]);
    }
    send(&mut writer, &rest);
    good(&mut writer);
    let now = read(&mut other, 0, LONG_BLOCKS);
    assert!(now[512..1024] == [0xee; 512], "what came after it is not undone");
    assert!(now[1024..] == new[1024..] && now[..512] == new[..512]);
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn a_unit_that_is_removed_under_a_write_is_let_go_of() {
    let mut config = None;
    let server = server(|given| {
        let store = Arc::new(MemoryStore::new(4 << 20, false).expect("memory"));
        let disk = DiskUnit::new(store, DiskOptions::default().with_identity("gone"), &Registry::new());
        let unit = Unit::Disk(disk.expect("a disk"));
        given.targets[0].units[0] = LunConfig { lun: 0, unit, limiter: Default::default(), stages: false };
        config = Some(given.clone());
    });
    let mut config = config.expect("it was shown");
    let mut other = login(&server, 2, |_| ());
    let mut writer = login(&server, 1, |_| ());
    let rest = half(&mut writer, &mut other, &pattern(LONG, 7));
    let Unit::Disk(disk) = config.targets[0].units.remove(0).unit else { panic!("a disk") };
    let weak = Arc::downgrade(&disk);
    drop(disk);
    // Another unit at its LUN: not a byte may go there.
    config.targets[0].units.push(LunConfig {
        lun: 0,
        unit: support::unit("new"),
        limiter: Default::default(),
        stages: false,
    });
    server.handle().apply(config).expect("nothing can fail");
    other.settle(0);
    send(&mut writer, &rest);
    // The old unit ends the command; the connection continues in any case.
    writer.settle(0);
    assert!(read(&mut other, 0, LONG_BLOCKS).iter().all(|byte| *byte == 0), "the other unit is untouched");
    let began = Instant::now();
    while weak.strong_count() > 0 {
        assert!(began.elapsed() < PATIENCE, "the unit is still held");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn however_the_stream_is_cut_what_is_written_is_what_was_sent() {
    let server = server(|_| ());
    let mut client = login(&server, 1, |config| config.offer.header_digest = DigestChoice::Allow);
    let mut seed = 1u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..60 {
        let blocks = [40, 64, 129, 300, 512][random(5)];
        let lba = random(7000) as u32;
        let data = pattern(blocks * 512, round);
        // A short write and a read around it, all in one stream.
        let mut bytes = write_with_data(&mut client, lba, &data);
        let short = pattern(2048, round + 1);
        bytes.extend(write_with_data(&mut client, 8000, &short));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let len = [1, 47, 48, 100, 512, 1000, 4096, 16_384, 65_536, 200_000][random(10)].min(rest.len());
            send(&mut client, &rest[..len]);
            rest = &rest[len..];
            if random(3) == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        good(&mut client);
        good(&mut client);
        assert!(read(&mut client, lba, blocks as u16) == data, "round {round}: {blocks} blocks at {lba}");
        assert!(read(&mut client, 8000, 4) == short);
    }
    assert!(counters(&server).landed > 1 << 20);
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn data_that_breaks_the_rules_does_not_land() {
    let server = server(|_| ());
    let mut client = login(&server, 1, |config| config.offer.immediate_data = false);
    let start = |client: &mut Client, is_final: bool| {
        let mut command = client.command(0, &write10(0, LONG_BLOCKS));
        command.set_write(true);
        command.set_final(is_final);
        command.edtl.set(LONG as u32);
        let itt = command.itt.get();
        client.send(command.into(), &[]);
        itt
    };
    // A wrong offset, a wrong number, more than may come unsolicited.
    for (offset, data_sn, len) in [(512, 0, LONG - 512), (0, 1, LONG), (0, 0, LONG)] {
        let itt = start(&mut client, false);
        let len = if (offset, data_sn) == (0, 0) { LONG / 2 } else { len };
        let mut out = DataOut::new(itt, RESERVED_TAG, Lun::ZERO, data_sn, offset);
        let right = (offset, data_sn) == (0, 0);
        out.set_final(!right);
        client.send(out.into(), &vec![9; len]);
        if right {
            // The second half of it comes at the wrong place.
            let mut out = DataOut::new(itt, RESERVED_TAG, Lun::ZERO, 1, 0);
            out.set_final(true);
            client.send(out.into(), &vec![8; LONG / 2]);
        }
        assert_eq!(client.finish().0, 2, "ABORTED COMMAND");
    }
    let mut other = login(&server, 2, |_| ());
    let now = read(&mut other, 0, LONG_BLOCKS);
    assert!(now.iter().all(|byte| matches!(byte, 0 | 9)), "only what came in its turn");
    assert!(now[LONG / 2..].iter().all(|byte| *byte == 0));
    server.stop(Duration::ZERO).expect("it stops");
}

#[test]
fn a_write_that_is_refused_leaves_the_medium_alone_however_long_its_data_is() {
    let server = server(|_| ());
    let mut client = login(&server, 1, |_| ());
    let mut other = login(&server, 2, |_| ());
    // Beyond the end.
    let bytes = write_with_data(&mut client, 8192 - 1, &pattern(LONG, 1));
    send(&mut client, &bytes);
    assert_eq!(client.finish().0, 2);
    assert_eq!(read(&mut other, 8191, 1), [0; 512]);
    // Reserved for another.
    assert_eq!(other.read(0, &[0x16, 0, 0, 0, 0, 0], 0).0, 0);
    let bytes = write_with_data(&mut client, 0, &pattern(LONG, 1));
    send(&mut client, &bytes);
    assert_eq!(client.finish().0, 0x18, "RESERVATION CONFLICT");
    assert!(read(&mut other, 0, LONG_BLOCKS).iter().all(|byte| *byte == 0));
    assert_eq!(counters(&server).landed, 0);
    server.stop(Duration::ZERO).expect("it stops");
}
