//! Direct placement over iSER: data of long writes that RDMA Reads fetch is put into a memory
//! unit's blocks, with a CRC after it was checked. In any order of sending, and with any event in
//! between, each block is wholly the old one or wholly the new one.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::iser::pattern;
use crate::support::wire::{HEAD, Wire, fpdus, payload, recut};
use crate::support::{CORES, Client, ONE, PATIENCE, address, blocks_seen, blocks_written, read10, write10};
use backing::MemoryStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::pdu::{
    Bhs, DataOut, Lun, Opcode, RESERVED_TAG, ScsiCommand, TaskManagementFunction, TaskManagementRequest,
};
use iscsi_server::config::{Limiter, LunConfig, QosLimits, Rates, ServerConfig};
use iscsi_server::{CoresConfig, Server, Unit};
use iser::Control;

/// Bytes of a long write: as many as a unit asks for at once.
const LONG: usize = 256 << 10;
const LONG_BLOCKS: u16 = (LONG / 512) as u16;
/// Each kind of unit: its LUN and its logical block, bytes.
const UNITS: [(u16, usize); 2] = [(0, 512), (4, 4096)];
const CRCS: [bool; 2] = [false, true];

/// A server with a unit of each kind, and a read-only one as LUN 5.
fn server_on(cores: CoresConfig, change: impl FnOnce(&mut ServerConfig)) -> Server {
    let unit = |name: &str, options: DiskOptions| {
        let store = Arc::new(MemoryStore::new(4 << 20, false).expect("memory"));
        let disk = DiskUnit::new(store, options.with_identity(name), &Registry::new());
        Unit::Disk(disk.expect("a disk"))
    };
    support::server_on(cores, |config| {
        let long_blocks = unit("4k", DiskOptions { block_size: 4096, ..DiskOptions::default() });
        let read_only = unit("ro", DiskOptions { read_only: true, ..DiskOptions::default() });
        for (lun, unit) in [(4, long_blocks), (5, read_only)] {
            config.targets[0].units.push(LunConfig { lun, unit, limiter: Default::default(), stages: false });
        }
        change(config);
    })
}

/// [`server_on`] the usual cores.
fn server(change: impl FnOnce(&mut ServerConfig)) -> Server {
    server_on(CORES, change)
}

fn stop(server: Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

/// Bytes of RDMA Reads placed directly in units, on all cores.
fn placed(server: &Server) -> u64 {
    let cores = server.core().cores(PATIENCE);
    cores.into_iter().map(|core| core.expect("the core answers").rdma.placed).sum()
}

/// An initiator over iSER that has taken its unit attentions.
fn wire(server: &Server, number: u8, crc: bool) -> Wire {
    let mut wire = Wire::login(address(server), number, crc);
    UNITS.iter().for_each(|(lun, _)| wire.settle(*lun));
    wire
}

/// An initiator over TCP that reads the medium.
fn other(server: &Server) -> Client {
    let mut client = Client::login(address(server), Client::config(100));
    UNITS.iter().for_each(|(lun, _)| client.settle(*lun));
    client
}

/// The bytes from `at` of a unit with blocks of `block` bytes on.
fn read(client: &mut Client, (lun, block): (u16, usize), at: usize, len: usize) -> Vec<u8> {
    let cdb = read10((at / block) as u32, (len / block) as u16);
    let (status, data) = client.read(lun, &cdb, len as u32);
    assert_eq!(status, 0);
    data
}

/// The first [`LONG`] bytes of LUN 0.
fn beginning(client: &mut Client) -> Vec<u8> {
    read(client, UNITS[0], 0, LONG)
}

fn write_cdb(block: usize, at: usize, len: usize) -> [u8; 10] {
    write10((at / block) as u32, (len / block) as u16)
}

/// Sends the requested part of `data`, of which `immediate` bytes went with the command, all in one
/// piece.
fn send_all(wire: &mut Wire, data: &[u8], immediate: usize) {
    let mut left = data.len() - immediate;
    while left > 0 {
        let bytes = wire.asked();
        left -= fpdus(&bytes).into_iter().map(|fpdu| payload(&bytes[fpdu]).len()).sum::<usize>();
        wire.send_bytes(&bytes);
    }
}

/// Begins a long write to the beginning of LUN 0, sends its data except the last bytes, which it
/// returns, and waits until some of it is on the medium.
fn half(wire: &mut Wire, other: &mut Client, new: &[u8]) -> (ScsiCommand, Vec<u8>) {
    // Neither at the end of a block nor at that of an FPDU.
    begun(wire, other, new, |bytes| bytes.len() - 100_001)
}

/// The same, with the last FPDU still to come: data sent meanwhile is not in the middle of one.
fn whole_fpdus(wire: &mut Wire, other: &mut Client, new: &[u8]) -> (ScsiCommand, Vec<u8>) {
    begun(wire, other, new, |bytes| fpdus(bytes).last().map_or(0, |last| last.start))
}

fn begun(
    wire: &mut Wire,
    other: &mut Client,
    new: &[u8],
    until: impl FnOnce(&[u8]) -> usize,
) -> (ScsiCommand, Vec<u8>) {
    let command = wire.write(0, &write10(0, LONG_BLOCKS), new, 0);
    let mut bytes = wire.asked();
    let rest = bytes.split_off(until(&bytes));
    wire.send_bytes(&bytes);
    let began = Instant::now();
    while blocks_seen(&beginning(other), new) == 0 {
        assert!(began.elapsed() < PATIENCE, "nothing lands");
        std::thread::sleep(Duration::from_millis(2));
    }
    (command, rest)
}

/// Numbers below a bound that look random.
fn random() -> impl FnMut(usize) -> usize {
    let mut seed = 1u64;
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    }
}

#[test]
fn what_rdma_reads_bring_of_long_writes_is_placed_and_is_what_was_sent() {
    let server = server(|_| ());
    let mut other = other(&server);
    for (number, crc) in (1..).zip(CRCS) {
        let mut wire = wire(&server, number, crc);
        for (lun, block) in UNITS {
            let before = placed(&server);
            for round in 0..8 {
                let data = pattern(LONG, u32::from(number) * 100 + round);
                let at = LONG * round as usize;
                let command = wire.write(lun, &write_cdb(block, at, LONG), &data, 0);
                send_all(&mut wire, &data, 0);
                wire.good(&command);
                assert!(read(&mut other, (lun, block), at, LONG) == data, "round {round}");
            }
            let placed = placed(&server) - before;
            assert!(placed >= 6 * LONG as u64, "{placed} bytes were placed, CRC {crc}, blocks of {block}");
        }
    }
    stop(server);
}

#[test]
fn however_fpdus_and_the_stream_are_cut_what_is_written_is_what_was_sent_and_nothing_around_it() {
    let server = server(|_| ());
    let mut other = other(&server);
    let mut random = random();
    for (number, crc) in (1..).zip(CRCS) {
        let mut wire = wire(&server, number, crc);
        let before = placed(&server);
        for round in 0..60 {
            let (lun, block) = UNITS[random(2)];
            let len = [32_768, 40_960, 65_536, 131_072, LONG][random(5)] + block * random(3);
            let at = block * (1 + random((4 << 20) / block - len / block - 2));
            let immediate = [0, 0, 100, 512, 5000, 8192][random(6)];
            let data = pattern(len, 1000 * u32::from(number) + round);
            let around = |other: &mut Client| {
                (read(other, (lun, block), at - block, block), read(other, (lun, block), at + len, block))
            };
            let untouched = around(&mut other);
            let command = wire.write(lun, &write_cdb(block, at, len), &data, immediate);
            let lens = [&[65_519][..], &[65_024], &[20_001], &[16_384, 16_896], &[40_000, 1, 511], &[1460]];
            let lens = lens[random(6)];
            let mut turn = 0;
            let bytes = recut(&wire.asked(), crc, || {
                turn += 1;
                lens[turn % lens.len()]
            });
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let len = [1, 15, 16, 100, 512, 1000, 4096, 16_384, 65_536, 200_000][random(10)];
                let (now, later) = rest.split_at(len.min(rest.len()));
                wire.send_bytes(now);
                rest = later;
                if random(3) == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
            wire.good(&command);
            let what = format!("round {round}: {len} bytes, {immediate} of them at once, to {at}, {lens:?}");
            assert!(read(&mut other, (lun, block), at, len) == data, "{what}");
            assert!(around(&mut other) == untouched, "{what}");
        }
        assert!(placed(&server) - before > 1 << 20, "CRC {crc}");
    }
    stop(server);
}

#[test]
fn what_comes_unasked_does_not_move_what_is_fetched_behind_it() {
    let server = server(|config| config.iser.unsolicited_data = true);
    let mut other = other(&server);
    for (number, crc) in (1..).zip(CRCS) {
        let mut config = Client::config(number);
        config.offer.initial_r2t = false;
        let mut wire = Wire::login_as(address(&server), config, crc);
        UNITS.iter().for_each(|(lun, _)| wire.settle(*lun));
        for (lun, block) in UNITS {
            let before = placed(&server);
            // One that ends with a block, and one in the middle of it.
            for last in [8192, 1111] {
                let data = pattern(LONG, 10 + last as u32);
                let unasked = 3 * 8192 + last;
                let mut command = wire.command(lun, &write_cdb(block, 0, LONG));
                command.set_write(true);
                command.set_final(false);
                command.edtl.set(LONG as u32);
                let write = Some(wire.expose(&data, unasked));
                wire.send(Control { read: None, write }, command.into(), &data[..8192]);
                for (sn, from) in (0..).zip((8192..unasked).step_by(8192)) {
                    let to = (from + 8192).min(unasked);
                    let mut out = DataOut::new(command.itt.get(), RESERVED_TAG, command.lun, sn, from as u32);
                    out.set_final(to == unasked);
                    wire.send(Control::default(), out.into(), &data[from..to]);
                }
                send_all(&mut wire, &data, unasked);
                wire.good(&command);
                assert!(read(&mut other, (lun, block), 0, LONG) == data, "{last}, CRC {crc}");
            }
            assert!(placed(&server) - before > LONG as u64, "CRC {crc}, blocks of {block}");
        }
    }
    stop(server);
}

#[test]
fn an_fpdu_with_a_wrong_crc_never_reaches_the_medium() {
    let server = server(|_| ());
    let mut other = other(&server);
    // The wrong byte in the payload's beginning, its middle, and in the CRC itself; in the second
    // FPDU and in the last.
    for (round, (which, at)) in
        [(1, HEAD), (1, 30_000), (1, usize::MAX), (4, 30_000), (4, usize::MAX)].into_iter().enumerate()
    {
        let old = beginning(&mut other);
        let mut wire = wire(&server, 1, true);
        let new = pattern(LONG, round as u32);
        wire.write(0, &write10(0, LONG_BLOCKS), &new, 0);
        let mut bytes = wire.asked();
        let all = fpdus(&bytes);
        let before: usize = all[..which].iter().map(|fpdu| payload(&bytes[fpdu.clone()]).len()).sum();
        let wrong = all[which].clone();
        bytes[wrong.start + at.min(wrong.len() - 1)] ^= 0x10;
        wire.send_bytes(&bytes);
        // The connection ends with a Terminate message that names the reason.
        assert!(wire.receive().is_none());
        drop(wire);
        sessions_become(&server, 1);
        let now = beginning(&mut other);
        blocks_written(&now, &old, &new);
        let from = before.next_multiple_of(512);
        assert!(now[from..] == old[from..], "round {round}: a byte of it, or of what follows it, is there");
    }
    stop(server);
}

fn sessions_become(server: &Server, count: usize) {
    let began = Instant::now();
    while server.sessions() != count {
        assert!(began.elapsed() < PATIENCE, "{} sessions", server.sessions());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_session_that_ends_while_its_reads_are_under_way_leaves_whole_blocks_and_gets_nothing_more() {
    let server = server(|_| ());
    let mut other = other(&server);
    let mut old = vec![0; LONG];
    for (number, crc) in (1..).zip(CRCS) {
        for round in 0..6 {
            let mut wire = wire(&server, number, crc);
            let new = pattern(LONG, 10 * u32::from(number) + round);
            let (_, rest) = half(&mut wire, &mut other, &new);
            match round % 3 {
                0 => wire.socket.shutdown(Shutdown::Both).expect("it is open"),
                1 => drop(wire),
                _ => {
                    // A new session takes its place: no data of the old one comes after its login.
                    let mut next = self::wire(&server, number, crc);
                    let now = beginning(&mut other);
                    // The old connection may be closed already.
                    let _ = std::io::Write::write_all(&mut wire.socket, &rest);
                    next.settle(0);
                    assert!(beginning(&mut other) == now, "a byte came after the login");
                }
            }
            sessions_become(&server, 1);
            let now = beginning(&mut other);
            blocks_written(&now, &old, &new);
            old = now;
        }
        // And a whole one after all of them.
        let mut wire = wire(&server, number, crc);
        let new = pattern(LONG, 77 + u32::from(number));
        let command = wire.write(0, &write10(0, LONG_BLOCKS), &new, 0);
        send_all(&mut wire, &new, 0);
        wire.good(&command);
        old = beginning(&mut other);
        assert!(old == new);
    }
    stop(server);
}

#[test]
fn nothing_lands_of_what_comes_after_an_abort_or_a_reset() {
    // All on one core, so that data sent before a login is handled before it.
    let server = server_on(ONE, |_| ());
    let mut other = other(&server);
    for (number, (crc, reset)) in (1..).zip(CRCS.into_iter().flat_map(|crc| [(crc, false), (crc, true)])) {
        let mut wire = wire(&server, number, crc);
        let old = beginning(&mut other);
        let new = pattern(LONG, u32::from(number));
        let (command, rest) = match reset {
            true => half(&mut wire, &mut other, &new),
            false => whole_fpdus(&mut wire, &mut other, &new),
        };
        let function = match reset {
            true => TaskManagementFunction::LogicalUnitReset,
            false => TaskManagementFunction::AbortTask,
        };
        let (itt, cmd_sn) = if reset { (other.tag(), other.cmd_sn) } else { (wire.tag(), wire.cmd_sn) };
        let mut request = TaskManagementRequest::new(itt, function, Lun::ZERO);
        request.cmd_sn.set(cmd_sn);
        if !reset {
            request.referenced_task_tag.set(command.itt.get());
            request.ref_cmd_sn.set(command.cmd_sn.get());
        }
        let mut bhs = Bhs::from(request);
        bhs.set_immediate(true);
        match reset {
            true => other.send(bhs, &[]),
            false => wire.send(Control::default(), bhs, &[]),
        }
        let mut looking = Client::login(address(&server), Client::config(50 + number));
        looking.settle(0);
        let at_abort = beginning(&mut looking);
        assert!(blocks_written(&at_abort, &old, &new) < usize::from(LONG_BLOCKS));
        wire.send_bytes(&rest);
        // The answer comes when the reads have ended, and the connection continues.
        let answer = match reset {
            true => other.receive().expect("an answer").bhs,
            false => wire.answer(itt).bhs,
        };
        assert_eq!(answer.opcode(), Some(Opcode::TaskManagementResponse), "{answer}");
        looking.settle(0);
        assert!(beginning(&mut looking) == at_abort, "a byte came after the abort, CRC {crc}");
        other.settle(0);
        wire.settle(0);
        let command = wire.write(0, &write10(0, LONG_BLOCKS), &new, 0);
        send_all(&mut wire, &new, 0);
        wire.good(&command);
        assert!(beginning(&mut other) == new);
    }
    stop(server);
}

/// COMPARE AND WRITE of one block; gives its status.
fn compare_and_write(client: &mut Client, lba: u32, old: &[u8], new: &[u8]) -> u8 {
    let mut cdb = [0; 16];
    cdb[0] = 0x89;
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    cdb[13] = 1;
    client.write(0, &cdb, &[old, new].concat()).0
}

#[test]
fn a_write_whose_data_does_not_come_keeps_no_atomic_command_waiting() {
    let server = server(|_| ());
    let mut other = other(&server);
    for (number, crc) in (1..).zip(CRCS) {
        let mut wire = wire(&server, number, crc);
        let new = pattern(LONG, u32::from(number));
        let (command, rest) = half(&mut wire, &mut other, &new);
        let now = beginning(&mut other);
        let first = now.chunks(512).zip(new.chunks(512)).skip(1).position(|(now, new)| now == new);
        let landed = 1 + first.expect("something has landed");
        // One of a block that has been placed, and one of a block that has not come.
        for lba in [landed, 511] {
            let block = lba * 512..(lba + 1) * 512;
            assert_eq!(compare_and_write(&mut other, lba as u32, &now[block.clone()], &[0xee; 512]), 0);
            assert_eq!(beginning(&mut other)[block], [0xee; 512]);
        }
        wire.send_bytes(&rest);
        wire.good(&command);
        let now = beginning(&mut other);
        for (lba, (now, new)) in now.chunks(512).zip(new.chunks(512)).enumerate() {
            match lba == landed {
                true => assert!(now == [0xee; 512], "what came after it is not undone"),
                false => assert!(now == new, "block {lba}"),
            }
        }
    }
    stop(server);
}

#[test]
fn what_may_not_land_just_then_goes_the_long_way() {
    let server = server(|_| ());
    for (number, crc) in (1..).zip(CRCS) {
        let mut wire = wire(&server, number, crc);
        let mut looking = other(&server);
        let (over, count) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (server, over, count) = (&server, &over, &count);
            // Atomic commands all the time, of a block that the writes leave alone.
            scope.spawn(move || {
                let mut client = Client::login(address(server), Client::config(60 + number));
                client.settle(0);
                let mut now = read(&mut client, UNITS[0], 8191 * 512, 512);
                while !over.load(Ordering::Relaxed) {
                    let next = pattern(512, 7 + u32::from(now[0]));
                    assert_eq!(compare_and_write(&mut client, 8191, &now, &next), 0);
                    now = next;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            for round in 0..100u32 {
                let data = pattern(LONG, 300 + round);
                let command = wire.write(0, &write10(0, LONG_BLOCKS), &data, 0);
                send_all(&mut wire, &data, 0);
                wire.good(&command);
                assert!(beginning(&mut looking) == data, "round {round}, CRC {crc}");
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(count.into_inner() > 0);
    }
    stop(server);
}

#[test]
fn writes_that_do_not_land_come_between_those_that_do() {
    let server = server(|_| ());
    let mut other = other(&server);
    for (number, crc) in (1..).zip(CRCS) {
        let mut wire = wire(&server, number, crc);
        for round in 0..40u32 {
            // WRITE AND VERIFY is not placed directly, and requests no more than this at once.
            let lens = [LONG, 64 << 10, LONG];
            let datas = [0, 1, 2].map(|n: usize| pattern(lens[n], 900 + 3 * round + n as u32));
            let old = read(&mut other, UNITS[0], 2 * LONG, LONG);
            let mut begin = |n: usize| {
                let mut cdb = write_cdb(512, n * LONG, lens[n]);
                cdb[0] = if n == 1 { 0x2e } else { 0x2a };
                (wire.write(0, &cdb, &datas[n], 0), wire.asked())
            };
            let [(first, one), (second, two), (third, mut three)] = [begin(0), begin(1), begin(2)];
            // Two at once, so that much of the second is there when the first is taken in, and of
            // the third a part that ends in the middle of a block.
            let rest = three.split_off(HEAD + 50_001 + 997 * round as usize);
            wire.send_bytes(&[one, two].concat());
            wire.good(&first);
            wire.good(&second);
            wire.send_bytes(&three);
            std::thread::sleep(Duration::from_millis(20));
            blocks_written(&read(&mut other, UNITS[0], 2 * LONG, LONG), &old, &datas[2]);
            wire.send_bytes(&rest);
            wire.good(&third);
            for (at, data) in (0..).step_by(LONG).zip(&datas) {
                assert!(read(&mut other, UNITS[0], at, data.len()) == *data, "round {round}, CRC {crc}");
            }
        }
    }
    stop(server);
}

#[test]
fn a_unit_that_is_removed_under_a_write_is_let_go_of() {
    for crc in CRCS {
        let mut config = None;
        let server = server(|given| {
            let store = Arc::new(MemoryStore::new(4 << 20, false).expect("memory"));
            let disk = DiskUnit::new(store, DiskOptions::default().with_identity("gone"), &Registry::new());
            let unit = Unit::Disk(disk.expect("a disk"));
            given.targets[0].units[0] =
                LunConfig { lun: 0, unit, limiter: Default::default(), stages: false };
            config = Some(given.clone());
        });
        let mut config = config.expect("it was shown");
        let mut other = other(&server);
        let mut wire = wire(&server, 1, crc);
        let (_, rest) = half(&mut wire, &mut other, &pattern(LONG, 7));
        let Unit::Disk(disk) = config.targets[0].units.remove(0).unit else { panic!("a disk") };
        let weak = Arc::downgrade(&disk);
        drop(disk);
        // Another unit at its LUN: not a byte may go there.
        let unit = support::unit("new");
        config.targets[0].units.push(LunConfig { lun: 0, unit, limiter: Default::default(), stages: false });
        server.handle().apply(config).expect("nothing can fail");
        other.settle(0);
        wire.send_bytes(&rest);
        // The old unit ends the command, if it was not aborted; the connection continues.
        wire.settle(0);
        assert!(beginning(&mut other).iter().all(|byte| *byte == 0), "the other unit is untouched");
        let began = Instant::now();
        while weak.strong_count() > 0 {
            assert!(began.elapsed() < PATIENCE, "the unit is still held");
            std::thread::sleep(Duration::from_millis(5));
        }
        stop(server);
    }
}

#[test]
fn a_write_that_is_refused_leaves_the_medium_alone_and_nothing_is_fetched_for_it() {
    let server = server(|_| ());
    let mut other = other(&server);
    for (number, crc) in (1..).zip(CRCS) {
        let mut wire = Wire::login(address(&server), number, crc);
        let data = pattern(LONG, 1);
        let refused = |wire: &mut Wire, lun, lba| {
            let command = wire.write(lun, &write10(lba, LONG_BLOCKS), &data, 0);
            let (status, sense) = wire.answer(command.itt.get()).status();
            assert!(!wire.is_asked());
            (status, sense.get(2).map_or(0, |key| key & 15))
        };
        assert_eq!(refused(&mut wire, 0, 0), (2, 6), "a unit attention");
        wire.settle(0);
        wire.settle(5);
        assert_eq!(refused(&mut wire, 0, 8192 - 1), (2, 5), "beyond the end");
        assert_eq!(refused(&mut wire, 5, 0), (2, 7), "write protected");
        assert_eq!(other.read(0, &[0x16, 0, 0, 0, 0, 0], 0).0, 0);
        assert_eq!(refused(&mut wire, 0, 0), (0x18, 0), "reserved for another");
        assert_eq!(other.read(0, &[0x17, 0, 0, 0, 0, 0], 0).0, 0);
        assert!(read(&mut other, UNITS[0], 0, LONG).iter().all(|byte| *byte == 0));
        assert_eq!(read(&mut other, UNITS[0], 8191 * 512, 512), [0; 512]);
    }
    assert_eq!(placed(&server), 0);
    stop(server);
}

#[test]
fn what_a_limit_holds_back_is_not_fetched() {
    let limiter = Arc::new(Limiter::new(QosLimits::default()));
    let own = limiter.clone();
    let server = server(move |config| config.targets[0].units[0].limiter = own);
    let mut wire = wire(&server, 1, false);
    let set = |limits| {
        limiter.set(limits);
        server.handle().limits_changed();
        // The change is a message to the connection's core. This query follows it there.
        assert!(server.core().cores(PATIENCE).iter().all(Option::is_some));
    };
    // At 8 B/s, a long write exhausts its limit for hours.
    let bandwidth = Rates { total: Some(8), ..Rates::default() };
    set(QosLimits { bandwidth, burst: Duration::ZERO, ..QosLimits::default() });
    let datas = [pattern(LONG, 1), pattern(LONG, 2)];
    let commands = [0, 1].map(|n: usize| wire.write(0, &write10(512 * n as u32, LONG_BLOCKS), &datas[n], 0));
    send_all(&mut wire, &datas[0], 0);
    wire.good(&commands[0]);
    let before = placed(&server);
    wire.ping();
    assert!(!wire.is_asked(), "the second has its turn later");
    assert_eq!(placed(&server), before);
    set(QosLimits::default());
    send_all(&mut wire, &datas[1], 0);
    wire.good(&commands[1]);
    let mut other = other(&server);
    assert!(read(&mut other, UNITS[0], 0, 2 * LONG) == datas.concat());
    assert!(placed(&server) > before);
    stop(server);
}
