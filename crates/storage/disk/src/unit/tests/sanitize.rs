//! SANITIZE.

use std::io;
use std::sync::atomic::Ordering;

use backing::StoreError;
use runtime::Pooled;
use scsi::AdditionalSense as A;

use super::medium::Watched;
use super::*;
use crate::unit::{FilePersist, Persist};

fn overwrite(count: u8, pattern: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![count, 0];
    list.extend((pattern.len() as u16).to_be_bytes());
    list.extend(pattern);
    let [high, low] = (list.len() as u16).to_be_bytes();
    (vec![0x48, 1, 0, 0, 0, 0, 0, high, low, 0], list)
}

#[test]
fn overwrite_leaves_the_pattern_in_every_block() {
    let it = pair();
    it.write(0, &[1; 512]).good();
    let (cdb, list) = overwrite(1, &[0xaa; 512]);
    it.run_out(&cdb, &list).good();
    assert_eq!(it.read(0, 4096).good(), [0xaa; 4096 * 512]);
    // Short patterns are repeated within each block; two passes with INVERT end with the
    // complement.
    let (cdb, list) = overwrite(0x82, &[1, 2, 3]);
    it.run_out(&cdb, &list).good();
    let block: Vec<u8> = [!1, !2, !3].into_iter().cycle().take(512).collect();
    assert_eq!(it.read(BLOCKS as u32 - 2, 2).good(), block.repeat(2));
}

#[test]
fn each_pass_of_an_overwrite_reaches_the_medium() {
    let store = Watched::new();
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    let (cdb, list) = overwrite(3, &[1]);
    it.run_out(&cdb, &list).good();
    assert_eq!(store.syncs.load(Ordering::Relaxed), 3);
}

#[test]
fn wrong_parameter_lists_are_refused() {
    let it = pair();
    for len in (0..5).chain([517]) {
        let list = vec![1; len];
        it.run_out(&[0x48, 1, 0, 0, 0, 0, 0, (len >> 8) as u8, len as u8, 0], &list)
            .refused(A::INVALID_FIELD_IN_CDB);
    }
    let (cdb, list) = overwrite(0, &[1; 512]);
    it.run_out(&cdb, &list).refused(A::INVALID_FIELD_IN_PARAMETER_LIST);
    it.run_out(&[0x48, 2, 0, 0, 0, 0, 0, 0, 8, 0], &[0; 8]).refused(A::INVALID_FIELD_IN_CDB);
    it.run_out(&[0x48, 3, 0, 0, 0, 0, 0, 0, 8, 0], &[0; 8]).refused(A::INVALID_FIELD_IN_CDB);
    it.run(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0]).good();
}

#[test]
fn both_erases_deallocate_the_whole_of_a_thin_unit_and_no_other_has_them() {
    for action in [2, 3] {
        let it = pair();
        it.write(0, &[1; 4096 * 512]).good();
        let erase = [0x48, action, 0, 0, 0, 0, 0, 0, 0, 0];
        it.run(&erase).good();
        assert_eq!(it.read(0, 4096).good(), [0; 4096 * 512]);
        let data = it.run(&cdb16(0x9e, 0x12, 0, 256)).good();
        assert_eq!(data.len(), 24);
        assert_eq!(data[20] & 0xf, 1);
        let thick = Initiator::new(&disk(DiskOptions { thin: false, ..options() }), 1);
        thick.run(&erase).refused(A::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn while_it_runs_only_its_progress_is_told_and_resets_do_not_end_it() {
    let unit = disk(options());
    let it = Initiator::new(&unit, 1);
    // An atomic command holds the medium: the sanitize waits for it.
    let guard = block_on(unit.stripes.claim(0, 512));
    let (cdb, list) = overwrite(1, &[0x55; 4]);
    let mut running = it.start(&cdb, &list, 0);
    assert!(poll_once(&mut running).is_pending());
    assert!(unit.is_sanitizing());
    let busy = |ran: Ran| {
        assert!(matches!(
            ran.outcome.sense.as_ref().unwrap().key_specific,
            Some(scsi::KeySpecific::Progress(0))
        ));
        ran.fails(SenseKey::NotReady, A::SANITIZE_IN_PROGRESS);
    };
    busy(it.run(&[0; 6]));
    busy(it.read(0, 1));
    busy(it.write(0, &[0; 512]));
    busy(it.run(&[0x1b, 0, 0, 0, 1, 0]));
    busy(it.run_out(&cdb, &list));
    it.run(&[0x12, 0, 0, 0, 36, 0]).good();
    let sense = it.run(&[0x03, 0, 0, 0, 252, 0]).good();
    assert_eq!((sense[2], sense[12], sense[13]), (2, 0x04, 0x1b));
    unit.reset(device::ResetKind::TargetCold, None);
    it.run(&[0; 6]).fails(SenseKey::UnitAttention, A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    busy(it.run(&[0; 6]));
    drop(guard);
    Initiator::end(running).good();
    assert!(!unit.is_sanitizing());
    assert_eq!(it.read(7, 1).good(), [0x55; 512]);
}

#[test]
fn a_write_that_was_let_in_before_it_began_does_not_write_behind_its_back() {
    let unit = disk(options());
    let it = Initiator::new(&unit, 1);
    let mut late = it.start(&cdb10(0x2a, 0, 1), &[9; 512], 2);
    assert!(poll_once(&mut late).is_pending());
    let guard = block_on(unit.stripes.claim(0, 512));
    let (cdb, list) = overwrite(1, &[0x55; 4]);
    let mut running = it.start(&cdb, &list, 0);
    assert!(poll_once(&mut running).is_pending());
    assert!(poll_once(&mut late).is_pending());
    drop(guard);
    let (_, outcome) = match poll_once(&mut running) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("nothing is in its way"),
    };
    assert_eq!(outcome.status, Status::Good);
    assert_eq!(Initiator::end(late).outcome.status, Status::Good);
    assert_eq!(it.read(0, 1).good(), [9; 512]);
    assert_eq!(it.read(1, 1).good(), [0x55; 512]);
}

#[test]
fn a_sanitize_that_a_crash_cut_off_has_failed_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let record = Arc::new(FilePersist::new(directory.path().join("record"))) as Arc<dyn Persist>;
        disk(DiskOptions { sanitize_record: Some(record), ..options() })
    };
    for may_exit in [false, true] {
        let (mut cdb, list) = overwrite(1, &[0x55; 4]);
        cdb[1] |= if may_exit { 0x20 } else { 0 };
        {
            let unit = open();
            let it = Initiator::new(&unit, 1);
            // It begins, and waits for this claim until all ends.
            let _claim = block_on(unit.stripes.claim(0, 512));
            assert!(poll_once(&mut it.start(&cdb, &list, 0)).is_pending());
        }
        // A start changes nothing.
        for _ in 0..2 {
            let it = Initiator::fresh(&open(), 1, false);
            it.run(&[0; 6]).sense();
            it.read(0, 1).fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
            it.run(&[0; 6]).fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
        }
        let it = Initiator::new(&open(), 1);
        let exit = it.run(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0]);
        match may_exit {
            true => drop(exit.good()),
            false => {
                exit.fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
                it.run_out(&cdb, &list).good();
            }
        }
        it.read(0, 1).good();
        Initiator::new(&open(), 1).read(0, 1).good();
    }
}

#[test]
fn a_failed_sanitize_without_a_record_is_told_to_the_next_process() {
    for may_exit in [false, true] {
        let (mut cdb, list) = overwrite(1, &[0x55; 4]);
        cdb[1] |= if may_exit { 0x20 } else { 0 };
        let store = Watched::new();
        let it = Initiator::new(&disk_of(store.clone(), options()), 1);
        assert_eq!(it.unit.failed_sanitize(), None);
        store.fail(Some(StoreError::Io(5)));
        it.run_out(&cdb, &list).fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
        let told = it.unit.failed_sanitize();
        assert_eq!(told, Some(may_exit));
        store.fail(None);
        let next = Initiator::new(&disk_of(store, options()), 1);
        next.read(0, 1).good();
        next.unit.fail_sanitize(told.unwrap());
        next.read(0, 1).fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
        let exit = next.run(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0]);
        match may_exit {
            true => drop(exit.good()),
            false => exit.fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED),
        }
    }
}

#[test]
fn a_sanitize_whose_record_cannot_be_kept_does_not_begin() {
    struct Broken(io::ErrorKind);
    impl Persist for Broken {
        fn save(&self, _: Vec<u8>) -> Pooled<io::Result<()>> {
            let error = self.0.into();
            Pooled::new(async { Err(error) })
        }
        fn load(&self, _: usize) -> io::Result<Option<Vec<u8>>> {
            Ok(None)
        }
    }
    for (error, key, code) in [
        (io::ErrorKind::StorageFull, SenseKey::HardwareError, A::INTERNAL_TARGET_FAILURE),
        (io::ErrorKind::NotConnected, SenseKey::NotReady, A::TARGET_PORT_IN_UNAVAILABLE_STATE),
    ] {
        let sanitize_record = Some(Arc::new(Broken(error)) as Arc<dyn Persist>);
        let it = Initiator::new(&disk(DiskOptions { sanitize_record, ..options() }), 1);
        it.write(0, &[1; 512]).good();
        let (cdb, list) = overwrite(1, &[0x55; 4]);
        it.run_out(&cdb, &list).fails(key, code);
        assert_eq!(it.read(0, 1).good(), [1; 512]);
    }
}
