//! MODE SENSE and MODE SELECT, and the effects of the bits.

use std::sync::atomic::Ordering;

use scsi::AdditionalSense as A;
use scsi::mode::{CACHING, CONTROL, ModeData, select_list};

use super::medium::Watched;
use super::*;

fn sense(it: &Initiator) -> ModeData {
    ModeData::parse(&it.run(&[0x1a, 0, 0x3f, 0, 255, 0]).good(), false).unwrap()
}

/// The CDB and the list that set or clear a bit of a page's values.
fn change(it: &Initiator, page: u8, byte: usize, mask: u8, on: bool) -> ([u8; 6], Vec<u8>) {
    let mut values = sense(it).page(page, 0).unwrap().to_vec();
    values[byte] = values[byte] & !mask | if on { mask } else { 0 };
    let list = select_list(page, &values, false);
    ([0x15, 0x10, 0, 0, list.len() as u8, 0], list)
}

/// Sets or clears a bit of a page's values.
fn select(it: &Initiator, page: u8, byte: usize, mask: u8, on: bool) -> Ran {
    let (cdb, list) = change(it, page, byte, mask, on);
    it.run_out(&cdb, &list)
}

#[test]
fn swp_refuses_writes_until_it_is_cleared_and_others_learn_of_it() {
    let unit = disk(options());
    let (a, b) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
    select(&a, CONTROL, 2, 0x08, true).good();
    b.write(0, &[1; 512]).fails(SenseKey::UnitAttention, A::MODE_PARAMETERS_CHANGED);
    for it in [&a, &b] {
        it.write(0, &[1; 512]).fails(SenseKey::DataProtect, A::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
    }
    select(&a, CONTROL, 2, 0x08, false).good();
    a.write(0, &[1; 512]).good();
}

#[test]
fn d_sense_and_wce_take_effect_and_a_reset_takes_them_back() {
    let it = pair();
    assert!(!it.unit.descriptor_sense() && !it.unit.write_through());
    select(&it, CONTROL, 0, 0x04, true).good();
    select(&it, CACHING, 0, 0x04, false).good();
    assert!(it.unit.descriptor_sense() && it.unit.write_through());
    assert_eq!(sense(&it).write_cache(), Some(false));
    it.unit.reset(device::ResetKind::LogicalUnit, None);
    assert!(!it.unit.descriptor_sense() && !it.unit.write_through());
}

#[test]
fn no_write_at_work_evades_the_mode_select_that_turns_the_cache_off() {
    let store = Watched::new();
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    // One waits for its data, and one has begun to write.
    let mut late = it.start(&cdb10(0x2a, 0, 1), &[1; 512], 2);
    assert!(poll_once(&mut late).is_pending());
    let begun = block_on(it.unit.stripes.claim(1 << 20, 512));
    let (cdb, list) = change(&it, CACHING, 0, 0x04, false);
    let mut off = it.start(&cdb, &list, 0);
    assert!(poll_once(&mut off).is_pending(), "it waits for the one that has begun");
    assert_eq!(store.syncs.load(Ordering::Relaxed), 0);
    drop(begun);
    Initiator::end(off).good();
    assert_eq!(store.syncs.load(Ordering::Relaxed), 1);
    Initiator::end(late).good();
    assert_eq!(store.durable.load(Ordering::Relaxed), 1);
}

#[test]
fn a_reset_that_turns_the_cache_off_flushes_what_was_written_before() {
    for kind in [device::ResetKind::LogicalUnit, device::ResetKind::TargetCold] {
        let store = Watched::new();
        let options = DiskOptions { write_cache: false, ..options() };
        let it = Initiator::new(&disk_of(store.clone(), options), 1);
        block_on(it.unit.reset_durably(kind, None)).unwrap();
        it.run(&[0; 6]).sense();
        assert_eq!(store.syncs.load(Ordering::Relaxed), 0, "the cache was off");
        select(&it, CACHING, 0, 0x04, true).good();
        it.write(0, &[1; 512]).good();
        assert_eq!(store.durable.load(Ordering::Relaxed), 0);
        block_on(it.unit.reset_durably(kind, None)).unwrap();
        assert!(it.unit.write_through());
        assert_eq!(store.syncs.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_unit_that_makes_way_flushes_what_its_host_had_cached() {
    let store = Watched::new();
    let options = DiskOptions { write_cache: false, ..options() };
    let it = Initiator::new(&disk_of(store.clone(), options), 1);
    let counts = || (store.syncs.load(Ordering::Relaxed), store.durable.load(Ordering::Relaxed));
    block_on(it.unit.leave()).unwrap();
    assert_eq!(counts(), (0, 0), "it never had a cache");
    it.unit.stay();
    select(&it, CACHING, 0, 0x04, true).good();
    it.write(0, &[1; 512]).good();
    assert_eq!(counts(), (0, 0));
    // A write that has begun before ends before the flush.
    let begun = block_on(it.unit.stripes.claim(1 << 20, 512));
    let unit = it.unit.clone();
    let mut leaves = Box::pin(async move { unit.leave().await });
    assert!(leaves.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(counts(), (0, 0));
    drop(begun);
    block_on(leaves).unwrap();
    assert_eq!(counts(), (1, 0));
    // WCE is still one, and a write does not stay in the cache.
    assert_eq!(sense(&it).write_cache(), Some(true));
    it.write(0, &[2; 512]).good();
    assert_eq!(counts(), (1, 1));
    select(&it, CACHING, 0, 0x04, false).good();
    assert_eq!(counts(), (2, 1), "a host that turns it off now has its own flush");
    select(&it, CACHING, 0, 0x04, true).good();
    it.unit.stay();
    it.write(0, &[3; 512]).good();
    assert_eq!(counts(), (2, 1));
}

#[test]
fn a_nexus_that_may_not_write_sees_a_write_protected_medium() {
    let unit = disk(options());
    let masked = Initiator::fresh(&unit, 1, true);
    masked.run(&[0; 6]).sense();
    let writer = Initiator::new(&unit, 2);
    assert_eq!(masked.run(&[0x1a, 0, 0x3f, 0, 255, 0]).good()[2] & 0x80, 0x80);
    assert_eq!(writer.run(&[0x1a, 0, 0x3f, 0, 255, 0]).good()[2] & 0x80, 0);
}

#[test]
fn wrong_lists_change_nothing() {
    let it = pair();
    let before = sense(&it);
    it.run_out(&[0x15, 0x10, 0, 0, 2, 0], &[0; 2]).refused(A::PARAMETER_LIST_LENGTH_ERROR);
    it.run_out(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4]).refused(A::INVALID_FIELD_IN_CDB);
    it.run(&[0x15, 0x10, 0, 0, 0, 0]).good();
    assert_eq!(sense(&it).page(CONTROL, 0), before.page(CONTROL, 0));
}
