//! A whole disk on a memory store: any CDBs with any data from three nexuses, whatever room they
//! have. A refused command leaves the medium as it was; the reports on a command are consistent; no
//! command waits for ever.

use crate::input::{Input, Seed};
use crate::served::{MAX_OUT, Mover, block_on, execute, nexus};
use backing::MemoryStore;
use device::{Cdb, LogicalUnit, ResetKind};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use scsi::cdb::build::{self, Flags};
use scsi::{SenseKey, Status};
use std::sync::Arc;

const BLOCKS: u64 = 64;

fn medium(unit: &DiskUnit) -> Vec<u8> {
    let len = unit.store().size();
    let read = block_on(unit.store().read(0, len as usize));
    read.expect("a memory store reads").to_vec()
}

/// A byte of options; then steps: which nexus and how, the CDB as a chunk, room, and data-out as a
/// chunk or a repeated byte.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let bits = input.u8();
    let block_size = if bits & 1 != 0 { 4096 } else { 512 };
    let options = DiskOptions {
        block_size,
        physical_block_exponent: bits >> 1 & 3,
        read_only: bits & 0x48 == 0x48,
        removable: bits & 0x10 != 0,
        thin: bits & 0x20 != 0,
        write_cache: bits & 0x80 != 0,
        ..DiskOptions::default()
    };
    let store = MemoryStore::new(BLOCKS * u64::from(block_size), bits & 0x20 != 0).expect("a little memory");
    let unit = DiskUnit::new(Arc::new(store), options.with_identity("fuzz"), &Registry::new())
        .expect("good options");
    let nexuses = [nexus(1, false), nexus(2, false), nexus(3, bits & 8 != 0)];
    for nexus in &nexuses {
        unit.attach(nexus);
        while nexus.take_attention().is_some() {}
    }
    let trace = std::env::var_os("FUZZ_TRACE").is_some();
    for _ in 0..32 {
        if input.is_empty() {
            return;
        }
        let how = input.u8();
        let nexus = &nexuses[usize::from(how & 3) % nexuses.len()];
        if how & 0xf0 == 0xf0 {
            match how & 0x0c {
                0 => unit.reset(ResetKind::LogicalUnit, Some(nexus.nexus.id)),
                4 => unit.reset(ResetKind::TargetCold, None),
                _ => {
                    unit.detach(nexus.nexus.id);
                    unit.attach(nexus);
                }
            }
            continue;
        }
        let Some(cdb) = Cdb::new(input.chunk()) else { return };
        let room = usize::from(input.u16()) << (how >> 4 & 3);
        let data_out = if how & 4 != 0 {
            let (byte, len) = (input.u8(), usize::from(input.u16()));
            vec![byte; len.min(MAX_OUT)]
        } else {
            input.chunk().to_vec()
        };
        let (lost, pending) = (how & 8 != 0 && how & 0x40 != 0, if how & 8 != 0 { 3 } else { 0 });
        let before = medium(&unit);
        let mover = Mover { data_out, room, pending, lost, ..Mover::default() };
        let Some((outcome, _)) = execute(&unit, nexus, cdb.clone(), mover) else { continue };
        if trace {
            let sense = outcome.sense.as_ref().map(|sense| (sense.key, sense.additional));
            eprintln!("{:02x?} of {}: {:?} {sense:?}", cdb.bytes(), nexus.nexus.id.0, outcome.status);
        }
        let key = outcome.sense.as_ref().map(|sense| sense.key);
        let refused = outcome.status == Status::ReservationConflict
            || matches!(
                key,
                Some(SenseKey::IllegalRequest | SenseKey::UnitAttention | SenseKey::DataProtect)
            );
        if refused {
            assert!(
                medium(&unit) == before,
                "refused, but the medium changed: {:02x?} {outcome:?}",
                cdb.bytes()
            );
        }
    }
}

/// Every command once with the data that it needs, reservations between nexuses, and data that is
/// too short or too long.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let step = |seed: Seed, how: u8, cdb: &[u8], room: u16, out: &[u8]| {
        seed.bytes([how & !4]).chunk(cdb).bytes(room.to_be_bytes()).chunk(out)
    };
    let filled = |seed: Seed, how: u8, cdb: &[u8], byte: u8, len: u16| {
        seed.bytes([how | 4]).chunk(cdb).bytes([0, 0, byte]).bytes(len.to_be_bytes())
    };
    let start = |bits: u8| Seed::new().bytes([bits]);
    let write = |seed, lba, blocks: u16| {
        filled(seed, 0, &build::write10(lba, blocks, Flags::default()), 0x5a, 512 * blocks)
    };
    let read = |seed, lba, blocks: u16| {
        step(seed, 0, &build::read10(lba, blocks, Flags::default()), 512 * blocks, &[])
    };
    let ask = |seed, cdb: &[u8]| step(seed, 0, cdb, 4096, &[]);
    let ten = |code: u8, flags: u8, lba: u8, blocks: u8| [code, flags, 0, 0, 0, lba, 0, 0, blocks, 0];
    let identify = [
        build::inquiry(None, 255).to_vec(),
        build::inquiry(Some(0x83), 255).to_vec(),
        build::inquiry(Some(0xb0), 255).to_vec(),
        build::read_capacity10().to_vec(),
        build::read_capacity16(32).to_vec(),
        build::report_supported_opcodes(true, 4096).to_vec(),
        build::log_sense(0x0c, 0, 512).to_vec(),
        build::request_sense(true, 252).to_vec(),
    ]
    .iter()
    .fold(start(0x20), |seed, cdb| ask(seed, cdb));
    let mut compare = vec![0x5a; 512];
    compare.extend([0xa5; 512]);
    let key = |key: u8, new: u8, flags: u8| {
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (key, new, flags);
        list
    };
    let reserve = |seed, how, action: u8, kind: u8, list: [u8; 24]| {
        step(seed, how, &build::persistent_reserve_out(action, kind, 24), 0, &list)
    };
    let reserved = reserve(reserve(start(0), 0, 0, 0, key(0, 1, 0)), 0, 1, 1, key(1, 0, 0));
    let reserved = filled(reserved, 1, &build::write10(0, 1, Flags::default()), 1, 512);
    let preempted = reserve(reserve(reserved.clone(), 1, 0, 0, key(0, 2, 0)), 1, 5, 1, key(2, 1, 0));
    let unmap = scsi::data::unmap::emit(&[scsi::data::unmap::UnmapRange { lba: 1, blocks: 8 }]);
    let mode = scsi::mode::select_list(8, &[0; 18], false);
    let copy = {
        let mut list = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
        let naa = DiskOptions::default().with_identity("fuzz").identity.naa;
        let mut cscd = [0; 32];
        cscd[0] = 0xe4;
        cscd[4..8].copy_from_slice(&[1, 3, 0, naa.len() as u8]);
        cscd[8..8 + naa.len()].copy_from_slice(&naa);
        cscd[30] = 2;
        list.extend(cscd);
        list.extend([
            0x02, 2, 0, 0x18, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32,
        ]);
        list
    };
    let copy_cdb = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, copy.len() as u8, 0, 0];
    let results = [0x84, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    vec![
        ("identify", identify),
        ("write-read", read(write(start(0x80), 3, 4), 3, 4)),
        ("write-short", filled(start(0), 0, &build::write10(0, 4, Flags::FUA), 1, 1000)),
        ("read-little-room", step(start(1), 0, &build::read16(0, 2, Flags::default()), 100, &[])),
        ("out-of-range", read(write(start(0), 62, 4), 63, 2)),
        ("read-only", write(start(0x48), 0, 1)),
        ("lost", filled(start(0), 0x48, &build::write10(0, 4, Flags::FUA), 1, 2048)),
        ("waiting", filled(start(0), 8, &build::write16(0, 4, Flags::default()), 1, 2048)),
        (
            "compare-and-write",
            step(write(start(0), 1, 1), 0, &build::compare_and_write(1, 1, Flags::default()), 0, &compare),
        ),
        ("verify", filled(write(start(0), 1, 2), 0, &ten(0x2f, 2, 1, 2), 0x5a, 1024)),
        ("write-and-verify", filled(start(0), 0, &ten(0x2e, 2, 1, 2), 0x5a, 1024)),
        ("orwrite", filled(start(0), 0, &[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], 0x0f, 1024)),
        ("write-same", filled(start(0x20), 0, &build::write_same16(0, 8, false, false), 7, 512)),
        ("write-same-unmap", step(start(0x20), 0, &build::write_same16(0, 8, true, true), 0, &[])),
        ("write-atomic", filled(start(0), 0, &[0x9c, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0], 7, 4096)),
        (
            "unmap",
            ask(
                step(start(0x20), 0, &build::unmap(unmap.len() as u16), 0, &unmap),
                &build::get_lba_status(0, 1024),
            ),
        ),
        ("mode-select", step(start(0x80), 0, &build::mode_select6(false, mode.len() as u8), 0, &mode)),
        ("copy", ask(step(write(start(0), 0, 8), 0, &copy_cdb, 0, &copy), &results)),
        ("sanitize", step(start(0), 0, &[0x48, 1, 0, 0, 0, 0, 0, 0, 6, 0], 0, &[1, 0, 0, 2, 0xaa, 0x55])),
        ("sanitize-erase", read(step(start(0x20), 0, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]), 0, 1)),
        (
            "eject",
            ask(
                step(start(0x10), 0, &build::start_stop_unit(false, true), 0, &[]),
                &build::test_unit_ready(),
            ),
        ),
        ("reserved", ask(reserved, &build::persistent_reserve_in(3, 4096))),
        ("preempted", preempted),
        (
            "legacy-reserve",
            filled(ask(start(0), &[0x16, 0, 0, 0, 0, 0]), 1, &build::write10(0, 1, Flags::FUA), 1, 512),
        ),
        ("reset", ask(write(start(0), 0, 1).bytes([0xf0]), &build::test_unit_ready())),
        ("format", step(start(0), 0, &[0x04, 0x10, 0, 0, 0, 0], 0, &[0, 0, 0, 0])),
    ]
}
