//! Copies by token and EXTENDED COPY(LID4), as an initiator requests them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::Execution;
use scsi::{AdditionalSense, SenseKey, Status};

use super::medium::Watched;
use super::{Initiator, cdb10, disk, disk_of, options};
use crate::unit::{DiskOptions, DiskUnit, Registry};
use backing::{FileOptions, FileStore, MemoryStore};

fn cdb(code: u8, action: u8, list_at: usize, list_id: u32, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, action);
    cdb[list_at..list_at + 4].copy_from_slice(&list_id.to_be_bytes());
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

fn descriptors(ranges: &[(u64, u32)]) -> Vec<u8> {
    let one = |(lba, blocks): &(u64, u32)| [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat();
    ranges.iter().flat_map(one).collect()
}

fn populate_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = descriptors(ranges);
    let mut list = vec![0; 16];
    list[..2].copy_from_slice(&(14 + descriptors.len() as u16).to_be_bytes());
    list[14..16].copy_from_slice(&(descriptors.len() as u16).to_be_bytes());
    list.extend(descriptors);
    list
}

fn populate(of: &Initiator, list_id: u32, ranges: &[(u64, u32)]) -> super::Ran {
    let list = populate_list(ranges);
    of.run_out(&cdb(0x83, 0x10, 6, list_id, list.len()), &list)
}

fn information(of: &Initiator, list_id: u32) -> Vec<u8> {
    of.run(&cdb(0x84, 0x07, 2, list_id, 2048)).good()
}

fn token(of: &Initiator, ranges: &[(u64, u32)]) -> Vec<u8> {
    populate(of, 7, ranges).good();
    let data = information(of, 7);
    assert_eq!((data[4], data[5]), (0x10, 0x01));
    data[38..550].to_vec()
}

/// The CDB and the list of a WRITE USING TOKEN.
fn write_list(token: &[u8], flags: u8, offset: u64, ranges: &[(u64, u32)]) -> ([u8; 16], Vec<u8>) {
    let descriptors = descriptors(ranges);
    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&(534 + descriptors.len() as u16).to_be_bytes());
    list[2] = flags;
    list[8..16].copy_from_slice(&offset.to_be_bytes());
    list[16..528].copy_from_slice(token);
    list[534..536].copy_from_slice(&(descriptors.len() as u16).to_be_bytes());
    list.extend(descriptors);
    (cdb(0x83, 0x11, 6, 9, list.len()), list)
}

fn write(of: &Initiator, token: &[u8], flags: u8, offset: u64, ranges: &[(u64, u32)]) -> super::Ran {
    let (cdb, list) = write_list(token, flags, offset, ranges);
    of.run_out(&cdb, &list)
}

/// Blocks of 512 bytes, each with its number in every byte.
fn pattern(first: u8, blocks: u8) -> Vec<u8> {
    (first..first + blocks).flat_map(|n| [n; 512]).collect()
}

/// Two units of one daemon.
fn two(second: DiskOptions) -> (Initiator, Initiator) {
    let registry = Registry::new();
    let unit = |options: DiskOptions| {
        let store = Arc::new(MemoryStore::new(4 << 20, true).unwrap());
        DiskUnit::new(store, options, &registry).unwrap()
    };
    (Initiator::new(&unit(options()), 1), Initiator::new(&unit(second.with_identity("second")), 1))
}

#[test]
fn what_a_token_represents_is_written_to_another_unit() {
    let (one, two) = two(options());
    one.write(100, &pattern(1, 8)).good();
    let token = token(&one, &[(100, 4), (106, 2)]);
    write(&two, &token, 0, 0, &[(10, 2), (20, 4)]).good();
    assert_eq!(two.read(10, 2).good(), pattern(1, 2));
    assert_eq!(two.read(20, 4).good(), [pattern(3, 2), pattern(7, 2)].concat());
    let status = information(&two, 9);
    assert_eq!((status[4], status[5], status[15], status[23]), (0x11, 0x01, 0xf1, 6));
    // From an offset, and less than the token has.
    write(&two, &token, 0, 3, &[(40, 1)]).good();
    assert_eq!(two.read(40, 1).good(), pattern(4, 1));
}

#[test]
fn blocks_of_another_length_take_the_same_bytes_and_zeros_fill_the_last() {
    let (one, two) = two(DiskOptions { block_size: 4096, ..options() });
    one.write(0, &pattern(1, 12)).good();
    two.write(3, &[9; 4096]).good();
    let token = token(&one, &[(0, 12)]);
    // 6144 bytes: one and a half blocks; a third was requested.
    write(&two, &token, 0, 0, &[(2, 3)]).good();
    assert_eq!(two.read(2, 2).good(), [pattern(1, 12), vec![0; 2048]].concat());
    let status = information(&two, 9);
    assert_eq!((status[5], status[23]), (0x03, 2));
    assert_eq!(two.read(4, 1).good(), [0; 4096]);
    write(&two, &token, 0, 2, &[(2, 1)]).refused(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
}

#[test]
fn every_kind_of_write_within_it_revokes_a_token_and_others_do_not() {
    let one = Initiator::new(&disk(options()), 1);
    one.write(8, &pattern(1, 8)).good();
    let zeros = [0; 512];
    let unmap: Vec<u8> =
        [&[0, 22, 0, 16, 0, 0, 0, 0][..], &8u64.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    let same = cdb10(0x41, 8, 1);
    for (what, ran) in [
        ("WRITE", &(|| one.write(15, &zeros)) as &dyn Fn() -> super::Ran),
        ("WRITE SAME", &|| one.run_out(&same, &zeros)),
        ("UNMAP", &|| one.run_out(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap)),
        ("WRITE AND VERIFY", &|| one.run_out(&cdb10(0x2e, 10, 1), &zeros)),
        ("ORWRITE", &|| one.run_out(&super::cdb16(0x8b, 0, 10, 1), &zeros)),
        ("FORMAT UNIT", &|| one.run(&[4, 0, 0, 0, 0, 0])),
    ] {
        let token = token(&one, &[(8, 8)]);
        one.write(7, &zeros).good();
        one.write(16, &zeros).good();
        write(&one, &token, 0, 0, &[(100, 8)]).good();
        ran().good();
        assert_eq!(
            write(&one, &token, 0, 0, &[(100, 8)]).sense().1,
            AdditionalSense::TOKEN_REVOKED,
            "{what}"
        );
    }
    // A copy by token over its own blocks: it reads its data before the write revokes the token.
    one.write(8, &pattern(1, 8)).good();
    let token = token(&one, &[(8, 8)]);
    write(&one, &token, 0, 0, &[(12, 8)]).good();
    assert_eq!(one.read(12, 8).good(), pattern(1, 8));
    write(&one, &token, 0, 0, &[(100, 8)]).refused(AdditionalSense::TOKEN_REVOKED);
}

/// The system copies between files, and would do so after the write has revoked the token.
#[test]
fn a_copy_by_token_over_its_own_blocks_is_good_on_a_file_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let mut bytes = pattern(1, 16);
    bytes.resize(1 << 20, 0);
    std::fs::write(&path, &bytes).unwrap();
    runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async {
        let store = FileStore::open(&path, &FileOptions::default()).unwrap();
        let it = Initiator::new(&disk_of(Arc::new(store), options()), 1);
        let token = token(&it, &[(0, 8)]);
        let (cdb, list) = write_list(&token, 0, 0, &[(8, 8)]);
        let elsewhere = ended(it.start(&cdb, &list, 0)).await;
        assert_eq!(elsewhere.status, Status::Good, "{:?}", elsewhere.sense);
        let (cdb, list) = write_list(&token, 0, 0, &[(4, 8)]);
        let here = ended(it.start(&cdb, &list, 0)).await;
        assert_eq!(here.status, Status::Good, "{:?}", here.sense);
    });
    let now = std::fs::read(&path).unwrap();
    assert_eq!(now[..16 * 512], [pattern(1, 4), pattern(1, 8), pattern(5, 4)].concat());
}

/// The outcome of a command that may wait for the ring.
async fn ended(execution: Execution<super::TestMover>) -> device::Outcome {
    match execution {
        Execution::Done(_, outcome) => outcome,
        Execution::Running(future) => future.await.1,
    }
}

#[test]
fn tokens_that_are_wrong_deleted_or_nobody_s_say_so() {
    let (one, two) = two(options());
    let token = token(&one, &[(0, 8)]);
    write(&two, &token, 2, 0, &[(0, 8)]).good();
    write(&two, &token, 0, 0, &[(0, 8)]).refused(AdditionalSense::TOKEN_DELETED);
    let mut other = token.clone();
    other[8] ^= 1;
    write(&two, &other, 0, 0, &[(0, 8)]).refused(AdditionalSense::TOKEN_UNKNOWN);
    let mut other = token.clone();
    other[500] ^= 1;
    write(&two, &other, 0, 0, &[(0, 8)]).refused(AdditionalSense::TOKEN_CORRUPT);
    let mut other = token.clone();
    other[26] ^= 1;
    write(&two, &other, 0, 0, &[(0, 8)]).refused(AdditionalSense::TOKEN_UNKNOWN);
    write(&two, &[0; 512], 0, 0, &[(0, 8)]).refused(AdditionalSense::INVALID_TOKEN_LENGTH);
    populate(&one, 1, &[(u64::MAX, 8)]).refused(AdditionalSense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    one.run(&cdb(0x84, 0x07, 2, 99, 512)).refused(AdditionalSense::INVALID_FIELD_IN_CDB);
    // Another nexus gets no information about it.
    let third = Initiator::new(&one.unit, 3);
    third.run(&cdb(0x84, 0x07, 2, 7, 2048)).refused(AdditionalSense::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_zero_token_deallocates_what_is_thin() {
    let one = Initiator::new(&disk(options()), 1);
    one.write(0, &[5; 8192]).good();
    let mut zero = vec![0; 512];
    zero[..8].copy_from_slice(&[0xff, 0xff, 0, 1, 0, 0, 1, 0xf8]);
    write(&one, &zero, 0, 0, &[(0, 8)]).good();
    assert_eq!(one.read(0, 8).good(), [0; 4096]);
    let status = one.run(&super::cdb16(0x9e, 0x12, 0, 0)).outcome;
    assert!(status.sense.is_none());
}

#[test]
fn holes_stay_holes_in_a_copy() {
    let (one, two) = two(options());
    two.write(0, &vec![1; 64 << 10]).good();
    let token = token(&one, &[(0, 128)]);
    write(&two, &token, 0, 0, &[(0, 128)]).good();
    assert_eq!(two.read(0, 128).good(), vec![0; 64 << 10]);
    let mut cdb = super::cdb16(0x9e, 0, 0, 0);
    cdb[1] = 0x12;
    cdb[10..14].copy_from_slice(&24u32.to_be_bytes());
    let status = two.run(&cdb).good();
    assert_eq!(status[20], 1, "deallocated");
}

#[test]
fn without_a_write_cache_holes_are_on_the_medium_before_the_status() {
    for write_cache in [true, false] {
        let store = Watched::new();
        let it = Initiator::new(&disk_of(store.clone(), DiskOptions { write_cache, ..options() }), 1);
        it.write(64, &[1; 8 * 512]).good();
        let token = token(&it, &[(0, 8)]);
        write(&it, &token, 0, 0, &[(64, 8)]).good();
        assert_eq!(it.read(64, 8).good(), [0; 8 * 512]);
        assert_eq!(store.syncs.load(Ordering::Relaxed), u64::from(!write_cache));
    }
}

#[test]
fn a_write_protected_or_reserved_unit_takes_no_copy() {
    let (one, two) = two(DiskOptions { read_only: true, ..options() });
    let token = token(&one, &[(0, 8)]);
    write(&two, &token, 0, 0, &[(0, 8)]).fails(SenseKey::DataProtect, AdditionalSense::WRITE_PROTECTED);
    let other = Initiator::new(&one.unit, 2);
    other.run(&[0x16, 0, 0, 0, 0, 0]).good();
    let ran = write(&one, &token, 0, 0, &[(100, 8)]);
    assert_eq!(ran.outcome.status, scsi::Status::ReservationConflict);
}

#[test]
fn tokens_of_a_nexus_are_bounded() {
    let one = Initiator::new(&disk(options()), 1);
    for _ in 0..scsi::copy::Tokens::MAX_OF_NEXUS {
        populate(&one, 1, &[(0, 1)]).good();
    }
    populate(&one, 1, &[(0, 1)]).refused(AdditionalSense::INSUFFICIENT_RESOURCES);
    one.write(0, &[1; 512]).good();
    populate(&one, 1, &[(0, 1)]).good();
}

#[test]
fn extended_copy_lid4_copies_and_tells_by_its_long_identifier() {
    let (one, two) = two(options());
    one.write(5, &pattern(1, 8)).good();
    let cscd = |of: &Initiator| {
        let naa = &of.unit.options().identity.naa;
        let mut d = vec![0xe4, 0, 0, 0, 1, 3, 0, naa.len() as u8];
        d.extend(naa);
        d.resize(32, 0);
        d
    };
    let mut list = vec![0; 48];
    (list[0], list[3], list[16], list[43], list[45]) = (1, 0x20, 0xff, 64, 28);
    list[20..24].copy_from_slice(&0xdead_beefu32.to_be_bytes());
    list.extend([cscd(&one), cscd(&two)].concat());
    list.extend([2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 8]);
    list.extend(5u64.to_be_bytes());
    list.extend(30u64.to_be_bytes());
    let copy = |list: &[u8]| one.run_out(&cdb(0x83, 1, 2, 0, list.len()), list);
    copy(&list).good();
    assert_eq!(two.read(30, 8).good(), pattern(1, 8));
    let status = one.run(&cdb(0x84, 5, 2, 0xdead_beef, 64)).good();
    assert_eq!((status[4], status[5], status[15], status[25]), (1, 1, 0, 1));
    assert_eq!(status[16..24], 4096u64.to_be_bytes());
    one.run(&cdb(0x83, 0x1c, 2, 0xdead_beef, 0)).refused(AdditionalSense::INVALID_FIELD_IN_CDB);
    // A segment beyond the end fails, and its sense data is held.
    list[48 + 64 + 20 + 4] = 0xff;
    assert_eq!(copy(&list).sense().0, SenseKey::CopyAborted);
    let status = one.run(&cdb(0x84, 5, 2, 0xdead_beef, 64)).good();
    assert_eq!((status[5], status[12]), (2, 2));
}

#[test]
fn a_token_is_no_way_to_a_unit_that_its_bearer_does_not_see() {
    let (one, two) = two(options());
    one.write(0, &pattern(1, 8)).good();
    let token = token(&one, &[(0, 8)]);
    let bearer = Initiator::new(&two.unit, 3);
    write(&bearer, &token, 0, 0, &[(0, 8)]).refused(AdditionalSense::TOKEN_UNKNOWN);
    let also = Initiator::new(&one.unit, 3);
    write(&bearer, &token, 0, 0, &[(0, 8)]).good();
    assert_eq!(two.read(0, 8).good(), pattern(1, 8));
    // A session that may not read here must not write the data elsewhere either.
    let mut list = [0u64.to_be_bytes(), 5u64.to_be_bytes()].concat();
    list.extend([0; 8]);
    one.run_out(&[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &list).good();
    list.rotate_left(8);
    list[8..16].fill(0);
    one.run_out(&[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], &list).good();
    write(&bearer, &token, 0, 0, &[(0, 8)])
        .fails(SenseKey::CopyAborted, AdditionalSense::THIRD_PARTY_DEVICE_FAILURE);
    drop(also);
}
