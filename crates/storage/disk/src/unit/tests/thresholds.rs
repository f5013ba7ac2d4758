//! Soft thresholds: a thin unit's reported resources, and its warnings.

use std::sync::Arc;

use scsi::{AdditionalSense, SenseKey};

use super::{DiskOptions, Initiator, disk_of, options};
use crate::unit::Thresholds;
use backing::MemoryStore;

fn unit(thresholds: Thresholds) -> Initiator {
    let store = Arc::new(MemoryStore::with_quota(64 << 20, 8 << 20).unwrap());
    Initiator::new(&disk_of(store, DiskOptions { thresholds, ..options() }), 1)
}

/// Checks the medium, as the unit does every second.
fn look(of: &Initiator) -> bool {
    of.unit.check_thresholds(of.unit.store().resources())
}

fn warned(of: &Initiator) -> bool {
    let ran = of.run(&[0; 6]);
    if ran.outcome.sense.is_some() {
        ran.fails(SenseKey::UnitAttention, AdditionalSense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED);
        return true;
    }
    false
}

#[test]
fn used_and_available_are_told_in_threshold_sets() {
    let one = unit(Thresholds::default());
    one.write(0, &vec![1; (2 << 20) + 512]).good();
    let page = one.run(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 255, 0]).good();
    assert_eq!(page[4..16], [0, 1, 3, 8, 0, 0, 0, 5, 1, 0, 0, 0]);
    assert_eq!(page[16..28], [0, 2, 3, 8, 0, 0, 0, 3, 1, 0, 0, 0]);
    let vpd = one.run(&[0x12, 1, 0xb2, 0, 255, 0]).good();
    assert_eq!(vpd[4], 11, "2^11 blocks of 512 bytes are a mebibyte");
}

#[test]
fn a_threshold_warns_every_nexus_once_until_it_is_left_again() {
    let one = unit(Thresholds { available: Some(2 << 20), used: None });
    let two = Initiator::new(&one.unit, 2);
    one.write(0, &vec![1; 5 << 20]).good();
    assert!(look(&one) && !warned(&one));
    one.write(5 << 11, &vec![1; 1 << 20]).good();
    assert!(look(&one) && look(&one));
    assert!(warned(&one) && warned(&two) && !warned(&one));
    let unmap: Vec<u8> =
        [&[0, 22, 0, 16, 0, 0, 0, 0][..], &0u64.to_be_bytes(), &[0, 0, 0x10, 0, 0, 0, 0, 0]].concat();
    one.run_out(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap).good();
    assert!(look(&one) && !warned(&one));
    one.write(0, &vec![1; 2 << 20]).good();
    assert!(look(&one) && warned(&one));
}

#[test]
fn what_exceeds_the_quota_is_refused_as_space_allocation_failed() {
    let one = unit(Thresholds { available: None, used: Some(8 << 20) });
    one.write(0, &vec![1; 8 << 20]).good();
    one.write(9 << 11, &[1; 512])
        .fails(SenseKey::DataProtect, AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT);
    one.write(0, &[2; 4096]).good();
    assert!(look(&one) && warned(&one));
}

#[test]
fn nobody_is_asked_without_a_threshold_or_without_anybody_to_warn() {
    let one = unit(Thresholds::default());
    assert!(!look(&one));
    let two = unit(Thresholds { available: None, used: Some(1 << 20) });
    assert!(look(&two));
    device::LogicalUnit::detach(&*two.unit, two.nexus.nexus.id);
    assert!(!look(&two));
}
