//! READ, WRITE, VERIFY, COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.

use scsi::AdditionalSense as A;

use super::*;

#[test]
fn what_was_written_is_read_back_and_both_end_at_once() {
    let it = pair();
    let data: Vec<u8> = (0..2048).map(|n| (n / 7) as u8).collect();
    let wrote = it.write(3, &data);
    assert!(wrote.at_once);
    assert_eq!(wrote.outcome, Outcome::wrote(2048));
    let read = it.read(3, 4);
    assert!(read.at_once);
    assert_eq!(read.outcome, Outcome::read(2048));
    assert_eq!(read.data, data);
}

#[test]
fn data_that_comes_late_and_in_chunks_is_written_whole() {
    let it = pair();
    let data: Vec<u8> = (0..4096 * 512u32).map(|n| (n / 512) as u8).collect();
    let ran = Initiator::end(it.start(&cdb10(0x2a, 0, 4096), &data, 3));
    assert!(!ran.at_once);
    assert_eq!(ran.outcome, Outcome::wrote(data.len() as u64));
    let read = it.read(0, 4096);
    assert!(!read.at_once);
    assert_eq!(read.good(), data);
    let one = Initiator::end(it.start(&cdb10(0x2a, 9, 1), &[9; 512], 1));
    assert!(!one.at_once);
    assert_eq!(it.read(9, 1).good(), [9; 512]);
}

#[test]
fn every_form_of_read_and_write_means_the_same_blocks() {
    let it = pair();
    it.run_out(&[0x0a, 0, 0, 5, 1, 0], &[6; 512]).good();
    let mut twelve = [0; 12];
    twelve[0] = 0xaa;
    twelve[5] = 6;
    twelve[9] = 1;
    it.run_out(&twelve, &[12; 512]).good();
    it.run_out(&cdb16(0x8a, 0x08, 7, 1), &[16; 512]).good();
    let all = [[6; 512], [12; 512], [16; 512]].concat();
    assert_eq!(it.run(&cdb16(0x88, 0, 5, 3)).good(), all);
    assert_eq!(it.run(&[0x08, 0, 0, 5, 3, 0]).good(), all);
    twelve[0] = 0xa8;
    assert_eq!(it.run(&twelve).good(), [12; 512]);
}

#[test]
fn ranges_beyond_the_end_are_refused_and_empty_ones_at_the_end_are_not() {
    let it = pair();
    let end = BLOCKS as u32;
    for (code, out) in [(0x28, 0), (0x2a, 512), (0x2e, 512), (0x2f, 0), (0x34, 0), (0x35, 0), (0x41, 512)] {
        for lba in [end, end + 1, 0x8000_0000, u32::MAX] {
            it.run_out(&cdb10(code, lba, 1), &vec![0; out]).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
        }
        it.run_out(&cdb10(code, end - 1, 2), &vec![0; 2 * out])
            .refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
        it.run(&cdb10(code, end + 1, 0)).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    }
    for code in [0x28, 0x2a, 0x2e, 0x2f, 0x34, 0x35] {
        it.run(&cdb10(code, end, 0)).good();
        it.run(&cdb10(code, 0, 0)).good();
    }
    for code in [0x88, 0x8a, 0x8b, 0x8e, 0x8f, 0x89, 0x93, 0x9c] {
        it.run(&cdb16(code, 0, u64::MAX, 0)).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
        it.run(&cdb16(code, 0, 1 << 63, 1)).sense();
    }
}

#[test]
fn a_write_with_too_little_data_writes_what_comes_and_not_a_byte_more() {
    let it = pair();
    for code in [0x2a, 0x2e] {
        for len in [0, 200, 511, 512, 700, 1024] {
            it.write(0, &[1; 2048]).good();
            let ran = it.run_out(&cdb10(code, 0, 3), &vec![7; len]);
            assert_eq!(ran.outcome, Outcome::wrote(1536));
            let expected = [vec![7; len], vec![1; 2048 - len]].concat();
            assert_eq!(it.read(0, 4).good(), expected, "{code:02x} {len}");
        }
    }
    let more = it.run_out(&cdb10(0x2a, 0, 1), &[9; 10000]);
    assert_eq!(more.outcome, Outcome::wrote(512));
    assert_eq!(it.read(0, 2).good()[511..513], [9, 7]);
}

#[test]
fn a_read_sends_at_most_the_expected_length_and_reports_the_rest() {
    let it = pair();
    it.write(0, &[1; 1024]).good();
    for (room, put) in [(0, 0), (200, 512), (512, 512), (1024, 1024), (u64::MAX, 1024)] {
        let mover = TestMover { data_out: vec![], data_in: vec![], pending: 0, lost: false };
        let ran = Initiator::end(it.unit.execute(it.command(&cdb10(0x28, 0, 2), 0, room), mover));
        assert_eq!(ran.outcome, Outcome::read(1024));
        assert_eq!(ran.data.len(), put);
    }
}

#[test]
fn transfers_beyond_the_maximum_are_refused() {
    let options = DiskOptions { block_size: 4096, ..options() };
    let it = Initiator::new(&disk_of(Arc::new(MemoryStore::new(128 << 20, true).unwrap()), options), 1);
    let most = super::super::limits::MAX_TRANSFER_BYTES as u32 / 4096;
    it.run(&cdb16(0x8f, 0, 0, most)).good();
    it.run(&cdb16(0x8f, 0, 0, most + 1)).refused(A::INVALID_FIELD_IN_CDB);
    it.run(&cdb16(0x88, 0, 0, most + 1)).refused(A::INVALID_FIELD_IN_CDB);
}

#[test]
fn verify_compares_with_blocks_with_one_block_or_with_nothing() {
    let it = pair();
    it.write(0, &[5; 2048]).good();
    let verify = |check: u8, blocks| {
        let mut cdb = cdb10(0x2f, 0, blocks);
        cdb[1] = check << 1;
        cdb
    };
    it.run(&verify(0, 4)).good();
    it.run_out(&verify(1, 4), &[5; 2048]).good();
    it.run_out(&verify(3, 4), &[5; 512]).good();
    let mut wrong = vec![5; 2048];
    wrong[2000] = 6;
    it.run_out(&verify(1, 4), &wrong).fails(SenseKey::Miscompare, A::MISCOMPARE_DURING_VERIFY_OPERATION);
    it.run_out(&verify(3, 4), &wrong[1536..])
        .fails(SenseKey::Miscompare, A::MISCOMPARE_DURING_VERIFY_OPERATION);
    it.run_out(&verify(2, 4), &wrong).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&verify(1, 4), &[5; 512]).refused(A::new(0x0e, 0x03));
}

#[test]
fn write_and_verify_writes_and_compares() {
    let it = pair();
    for check in [0, 2] {
        let mut cdb = cdb10(0x2e, 8, 2);
        cdb[1] = check;
        let ran = it.run_out(&cdb, &[check + 1; 1024]);
        assert_eq!(ran.outcome, Outcome::wrote(1024));
        assert_eq!(it.read(8, 2).good(), [check + 1; 1024]);
    }
}

fn compare_and_write(lba: u64, blocks: u8) -> [u8; 16] {
    let mut cdb = cdb16(0x89, 0, lba, 0);
    cdb[13] = blocks;
    cdb
}

#[test]
fn compare_and_write_writes_only_over_what_it_was_told_is_there() {
    let it = pair();
    let old_new = [[0; 512], [1; 512]].concat();
    it.run_out(&compare_and_write(4, 1), &old_new).good();
    assert_eq!(it.read(4, 1).good(), [1; 512]);
    let ran = it.run_out(&compare_and_write(4, 1), &old_new);
    assert_eq!(ran.outcome.sense.as_ref().unwrap().information, Some(0));
    ran.fails(SenseKey::Miscompare, A::MISCOMPARE_DURING_VERIFY_OPERATION);
    let mut almost = [[1; 512], [2; 512]].concat();
    almost[300] = 9;
    let ran = it.run_out(&compare_and_write(4, 1), &almost);
    assert_eq!(ran.outcome.sense.as_ref().unwrap().information, Some(300));
    assert_eq!(it.read(4, 1).good(), [1; 512]);
    it.run(&compare_and_write(4, 0)).good();
    for len in [512, 1023, 2048] {
        it.run_out(&compare_and_write(4, 1), &vec![1; len]).refused(A::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn orwrite_sets_bits() {
    let it = pair();
    it.write(1, &[0x0f; 1024]).good();
    it.run_out(&cdb16(0x8b, 0, 1, 2), &[0xa0; 1024]).good();
    assert_eq!(it.read(1, 2).good(), [0xaf; 1024]);
}

#[test]
fn write_atomic_is_bounded_takes_whole_physical_blocks_and_no_boundary() {
    let it = pair();
    let atomic_at = |lba: u64, blocks: u16, boundary: u16| {
        let mut cdb = cdb16(0x9c, 0, lba, 0);
        cdb[10..12].copy_from_slice(&boundary.to_be_bytes());
        cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
        cdb
    };
    let atomic = |blocks, boundary| atomic_at(0, blocks, boundary);
    it.run_out(&atomic(8, 0), &[3; 4096]).good();
    assert_eq!(it.read(0, 9).good()[4095..4097], [3, 0]);
    it.run_out(&atomic(8, 2), &[3; 4096]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&atomic(4, 0), &[3; 2048]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&atomic_at(4, 8, 0), &[3; 4096]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&atomic_at(16, 8, 0), &[3; 4096]).good();
    let it = Initiator::new(&disk_of(Arc::new(MemoryStore::new(8 << 20, true).unwrap()), options()), 1);
    it.run_out(&atomic(4104, 0), &vec![3; 4104 * 512]).refused(A::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_command_waits_for_another_that_changes_its_blocks_and_no_other_does() {
    let it = pair();
    it.write(15, &[9; 512]).good();
    let guard = block_on(it.unit.stripes.claim(10 * 512, 10 * 512));
    let mut within = it.start(&cdb10(0x2a, 15, 1), &[1; 512], 0);
    let mut read = it.start(&cdb10(0x28, 15, 1), &[], 0);
    assert!(it.write(20, &[2; 512]).at_once, "it shares 4 KiB with the claim, and no sector");
    assert!(poll_once(&mut within).is_pending());
    assert!(poll_once(&mut read).is_pending());
    assert!(it.read(9, 1).at_once && it.read(20, 8).at_once);
    drop(guard);
    assert!(poll_once(&mut read).is_pending(), "the write came first");
    assert!(poll_once(&mut within).is_ready());
    assert_eq!(Initiator::end(read).good(), [1; 512]);
    assert_eq!(it.read(15, 1).good(), [1; 512]);
    assert!(it.write(15, &[3; 512]).at_once);
}

#[test]
fn counters_that_many_increment_by_compare_and_write_lose_nothing() {
    let unit = disk(options());
    let threads: Vec<_> = (1..=4)
        .map(|id| {
            let unit = unit.clone();
            std::thread::spawn(move || {
                let it = Initiator::new(&unit, id);
                let mut done = 0;
                while done < 200 {
                    let old = it.read(0, 1).good();
                    let mut new = old.clone();
                    let n = u64::from_be_bytes(old[..8].try_into().unwrap()) + 1;
                    new[..8].copy_from_slice(&n.to_be_bytes());
                    let ran = it.run_out(&compare_and_write(0, 1), &[old, new].concat());
                    done += u64::from(ran.outcome.status == Status::Good);
                    // Writes beside the counter share its 4 KiB but none of its blocks.
                    it.write(1, &[id as u8; 512]).good();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let it = Initiator::new(&unit, 9);
    assert_eq!(it.read(0, 1).good()[..8], 800u64.to_be_bytes());
}

#[test]
fn a_lost_command_ends() {
    let it = pair();
    for cdb in [&cdb10(0x2a, 0, 1)[..], &cdb10(0x2a, 0, 4096), &cdb10(0x28, 0, 4096), &cdb16(0x8b, 0, 0, 1)] {
        let mover = TestMover { data_out: vec![], data_in: vec![], pending: 0, lost: true };
        Initiator::end(it.unit.execute(it.command(cdb, 64 << 20, 64 << 20), mover));
    }
    assert!(it.write(0, &[1; 512]).at_once);
}
