//! UNMAP, WRITE SAME, GET LBA STATUS.

use std::sync::atomic::{AtomicU64, Ordering};

use backing::{Extent, Geometry, Io};
use scsi::AdditionalSense as A;
use scsi::data::lba_status::{self, LbaStatus, Provisioning};
use scsi::data::unmap::{UnmapRange, emit};

use super::*;

fn unmap(it: &Initiator, ranges: &[(u64, u32)]) -> Ran {
    let ranges: Vec<_> = ranges.iter().map(|&(lba, blocks)| UnmapRange { lba, blocks }).collect();
    let list = emit(&ranges);
    it.run_out(&cdb10(0x42, 0, list.len() as u16), &list)
}

fn status(it: &Initiator, lba: u64, allocation: u32) -> Vec<LbaStatus> {
    lba_status::parse(&it.run(&cdb16(0x9e, 0x12, lba, allocation)).good()).unwrap()
}

fn run(lba: u64, blocks: u32, mapped: bool) -> LbaStatus {
    let provisioning = if mapped { Provisioning::Mapped } else { Provisioning::Deallocated };
    LbaStatus { lba, blocks, provisioning }
}

#[test]
fn unmapped_blocks_read_as_zeros_and_are_reported_deallocated() {
    let it = pair();
    let all = BLOCKS as u32;
    assert_eq!(status(&it, 0, 1000), [run(0, all, false)]);
    it.write(0, &[1; 64 * 512]).good();
    assert_eq!(status(&it, 0, 1000), [run(0, 64, true), run(64, all - 64, false)]);
    unmap(&it, &[(8, 8), (32, 8), (40, 3)]).good();
    let zeros = it.read(8, 8).good();
    assert_eq!(zeros, [0; 8 * 512]);
    assert_eq!(it.read(40, 4).good(), [[0; 3 * 512].as_slice(), &[1; 512]].concat());
    let runs = status(&it, 0, 1000);
    // A page with some zeroed blocks stays mapped.
    let expected = [
        run(0, 8, true),
        run(8, 8, false),
        run(16, 16, true),
        run(32, 8, false),
        run(40, 24, true),
        run(64, all - 64, false),
    ];
    assert_eq!(runs, expected);
    assert_eq!(status(&it, 0, 24), expected[..1]);
    assert_eq!(status(&it, 10, 40), [run(10, 6, false), run(16, 16, true)]);
    it.run(&cdb16(0x9e, 0x12, BLOCKS, 24)).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
}

/// A store that tells of one block at a time, and counts how often it is asked.
struct Terse(MemoryStore, AtomicU64);

impl BlockStore for Terse {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn writable(&self) -> bool {
        true
    }
    fn thin(&self) -> bool {
        true
    }
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.0.read(at, len)
    }
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        self.0.write(at, data, durable)
    }
    fn sync(&self) -> Io<()> {
        self.0.sync()
    }
    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.0.discard(at, len)
    }
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.0.write_zeros(at, len, deallocate)
    }
    fn extent(&self, at: u64, _: u64) -> Io<Extent> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.extent(at, 512)
    }
}

#[test]
fn a_store_that_tells_of_little_at_a_time_is_not_asked_for_all() {
    let memory = MemoryStore::new(BLOCKS * 512, true).unwrap();
    let store = Arc::new(Terse(memory, AtomicU64::default()));
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    assert_eq!(status(&it, 8, 1000), [run(8, 1024, false)]);
    assert_eq!(store.1.load(Ordering::Relaxed), 1024);
    assert_eq!(status(&it, BLOCKS - 2, 1000), [run(BLOCKS - 2, 2, false)]);
}

#[test]
fn an_unmap_that_is_wrong_anywhere_touches_nothing() {
    let it = pair();
    it.write(0, &[1; 8 * 512]).good();
    unmap(&it, &[(0, 8), (BLOCKS - 1, 2)]).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    unmap(&it, &vec![(0, 1); 257]).refused(A::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(it.read(0, 8).good(), [1; 8 * 512]);
    unmap(&it, &[]).good();
    unmap(&it, &[(BLOCKS, 0)]).good();
    it.run(&cdb10(0x42, 0, 0)).good();
    it.run_out(&cdb10(0x42, 0, 7), &[0; 7]).refused(A::PARAMETER_LIST_LENGTH_ERROR);
    let mut anchor = cdb10(0x42, 0, 8);
    anchor[1] = 1;
    it.run_out(&anchor, &[0; 8]).refused(A::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_thick_unit_has_no_unmap_and_calls_everything_mapped() {
    let it = Initiator::new(&disk(DiskOptions { thin: false, ..options() }), 1);
    unmap(&it, &[(0, 8)]).refused(A::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(status(&it, 0, 1000), [run(0, BLOCKS as u32, true)]);
    it.run_out(&cdb16(0x93, 0x08, 0, 1), &[0; 512]).refused(A::INVALID_FIELD_IN_CDB);
}

#[test]
fn write_same_repeats_its_block() {
    let it = pair();
    let block: Vec<u8> = (0..512).map(|n| n as u8 | 1).collect();
    it.run_out(&cdb10(0x41, 2, 3), &block).good();
    assert_eq!(it.read(2, 3).good(), block.repeat(3));
    assert_eq!(it.read(5, 1).good(), [0; 512]);
    // Up to the end of the medium.
    it.run_out(&cdb16(0x93, 0, BLOCKS - 2, 0), &block).good();
    assert_eq!(it.read(BLOCKS as u32 - 2, 2).good(), block.repeat(2));
    for len in [0, 256, 1024] {
        it.run_out(&cdb16(0x93, 0, 0, 1), &vec![0; len]).refused(A::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn write_same_with_unmap_deallocates_zeros_and_writes_the_rest() {
    let it = pair();
    it.write(0, &[1; 64 * 512]).good();
    it.run_out(&cdb16(0x93, 0x08, 0, 16), &[0; 512]).good();
    // NDOB: zeros without data-out.
    it.run(&cdb16(0x93, 0x09, 16, 16)).good();
    it.run_out(&cdb16(0x93, 0x08, 32, 8), &[7; 512]).good();
    assert_eq!(it.read(0, 32).good(), [0; 32 * 512]);
    assert_eq!(it.read(32, 8).good(), [7; 8 * 512]);
    let runs = status(&it, 0, 1000);
    assert_eq!(runs[..2], [run(0, 32, false), run(32, 32, true)]);
    it.run_out(&cdb16(0x93, 0x10, 0, 1), &[0; 512]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&cdb16(0x93, 0x18, 0, 1), &[0; 512]).refused(A::INVALID_FIELD_IN_CDB);
}

#[test]
fn write_same_is_bounded() {
    let store = MemoryStore::new((32 << 20) + (1 << 20), true).unwrap();
    let it = Initiator::new(&disk_of(Arc::new(store), options()), 1);
    let most = 1u32 << 16;
    it.run_out(&cdb16(0x93, 0x08, 0, most), &[0; 512]).good();
    it.run_out(&cdb16(0x93, 0x08, 0, most + 1), &[0; 512]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&cdb16(0x93, 0x08, 0, 0), &[0; 512]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&cdb16(0x93, 0x08, 2048, 0), &[0; 512]).good();
}
