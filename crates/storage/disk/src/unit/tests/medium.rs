//! Write protection, ejecting, capacity changes, caches, failing stores, resets.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Identity, ResetKind};
use scsi::AdditionalSense as A;

use super::*;
use backing::{Extent, Geometry, Io, StoreError};

/// A memory store whose size, errors and durability the test controls and inspects.
pub(super) struct Watched {
    memory: MemoryStore,
    size: AtomicU64,
    fails: Mutex<Option<StoreError>>,
    pub durable: AtomicU64,
    pub syncs: AtomicU64,
}

impl Watched {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(4 << 20, true).unwrap(),
            size: AtomicU64::new(2 << 20),
            fails: Mutex::new(None),
            durable: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    /// The result of all operations from now on.
    pub fn fail(&self, error: Option<StoreError>) {
        *self.fails.lock().unwrap() = error;
    }

    fn io<T>(&self, io: impl FnOnce() -> Io<T>) -> Io<T> {
        match *self.fails.lock().unwrap() {
            Some(error) => Io::err(error),
            None => io(),
        }
    }
}

impl BlockStore for Watched {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
    fn limit(&self, bytes: Option<u64>) {
        self.size.store(bytes.unwrap_or(2 << 20), Ordering::Relaxed);
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn writable(&self) -> bool {
        true
    }
    fn thin(&self) -> bool {
        true
    }
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.io(|| self.memory.read(at, len))
    }
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        self.durable.fetch_add(u64::from(durable), Ordering::Relaxed);
        self.io(|| self.memory.write(at, data, durable))
    }
    fn sync(&self) -> Io<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.io(|| self.memory.sync())
    }
    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.io(|| self.memory.discard(at, len))
    }
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.io(|| self.memory.write_zeros(at, len, deallocate))
    }
    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.io(|| self.memory.extent(at, len))
    }
}

/// One command of each kind that writes, with its data-out.
fn writers() -> Vec<(Vec<u8>, usize)> {
    let mut compare = cdb16(0x89, 0, 0, 0);
    compare[13] = 1;
    let mut atomic = cdb16(0x9c, 0, 0, 0);
    atomic[13] = 8;
    vec![
        (vec![0x0a, 0, 0, 0, 1, 0], 512),
        (cdb10(0x2a, 0, 1).to_vec(), 512),
        (cdb16(0x8a, 0, 0, 1).to_vec(), 512),
        (cdb10(0x2e, 0, 1).to_vec(), 512),
        (compare.to_vec(), 1024),
        (cdb16(0x8b, 0, 0, 1).to_vec(), 512),
        (cdb10(0x41, 0, 1).to_vec(), 512),
        (cdb16(0x93, 0, 0, 1).to_vec(), 512),
        (atomic.to_vec(), 4096),
        (cdb10(0x42, 0, 24).to_vec(), 24),
        (vec![0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], 0),
    ]
}

#[test]
fn a_read_only_unit_and_a_read_only_nexus_refuse_every_write() {
    let protected = Initiator::new(&disk(DiskOptions { read_only: true, ..options() }), 1);
    let masked = Initiator::fresh(&disk(options()), 1, true);
    masked.run(&[0; 6]).sense();
    for it in [protected, masked] {
        for (cdb, len) in writers() {
            it.run_out(&cdb, &vec![0; len]).fails(SenseKey::DataProtect, A::WRITE_PROTECTED);
        }
        it.read(0, 1).good();
        it.run(&[0; 6]).good();
    }
}

#[test]
fn an_ejected_medium_is_not_there_until_it_is_loaded() {
    let it = Initiator::new(&disk(DiskOptions { removable: true, ..options() }), 1);
    let start_stop = |bits: u8| it.run(&[0x1b, 0, 0, 0, bits, 0]);
    let prevent = |bits: u8| it.run(&[0x1e, 0, 0, 0, bits, 0]).good();
    start_stop(0x00).good();
    it.run(&[0; 6]).good();
    start_stop(0x12).good();
    it.run(&[0; 6]).good();
    prevent(1);
    start_stop(0x02).refused(A::MEDIUM_REMOVAL_PREVENTED);
    let other = Initiator::new(&it.unit, 2);
    other.run(&[0x1b, 0, 0, 0, 2, 0]).refused(A::MEDIUM_REMOVAL_PREVENTED);
    prevent(0);
    start_stop(0x02).good();
    for (cdb, len) in writers() {
        it.run_out(&cdb, &vec![0; len]).fails(SenseKey::NotReady, A::MEDIUM_NOT_PRESENT_TRAY_OPEN);
    }
    for cdb in [&[0; 6][..], &cdb10(0x28, 0, 1), &cdb10(0x35, 0, 1), &cdb10(0x25, 0, 0), &cdb10(0x34, 0, 1)] {
        it.run(cdb).fails(SenseKey::NotReady, A::MEDIUM_NOT_PRESENT_TRAY_OPEN);
    }
    prevent(1);
    start_stop(0x03).refused(A::MEDIUM_REMOVAL_PREVENTED);
    it.unit.reset(ResetKind::LogicalUnit, None);
    it.run(&[0; 6]).fails(SenseKey::UnitAttention, A::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
    start_stop(0x03).good();
    it.run(&[0; 6]).good();
}

#[test]
fn who_leaves_prevents_no_more() {
    let it = Initiator::new(&disk(DiskOptions { removable: true, ..options() }), 1);
    it.run(&[0x1e, 0, 0, 0, 1, 0]).good();
    it.unit.detach(NexusId(1));
    let other = Initiator::new(&it.unit, 2);
    other.run(&[0x1b, 0, 0, 0, 2, 0]).good();
    other.run(&[0x1b, 0, 0, 0, 3, 0]).good();
}

#[test]
fn a_medium_that_grows_is_told_to_everybody_once() {
    let store = Watched::new();
    let unit = disk_of(store.clone(), options());
    let (a, b) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
    a.read(4096, 1).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    store.size.store(3 << 20, Ordering::Relaxed);
    assert_eq!(a.run(&cdb10(0x25, 0, 0)).good()[..4], [0, 0, 0x17, 0xff]);
    for it in [&a, &b] {
        it.run(&[0; 6]).fails(SenseKey::UnitAttention, A::CAPACITY_DATA_HAS_CHANGED);
        it.run(&[0; 6]).good();
        it.read(4096, 1).good();
    }
}

#[test]
fn no_command_changes_what_lies_behind_a_limit() {
    let store = Watched::new();
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    let begun = block_on(it.unit.stripes.claim((2 << 20) - 512, 512));
    let unit = it.unit.clone();
    let mut limited = Box::pin(async move { unit.limit(1 << 20).await });
    assert!(limited.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    it.write(4095, &[1; 512]).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    drop(begun);
    block_on(limited);
    it.run(&[0; 6]).fails(SenseKey::UnitAttention, A::CAPACITY_DATA_HAS_CHANGED);
    it.read(2048, 1).refused(A::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    it.read(2047, 1).good();
}

#[test]
fn what_a_store_fails_at_becomes_sense_data() {
    let store = Watched::new();
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    let fail = |error| *store.fails.lock().unwrap() = Some(error);
    fail(StoreError::Io(5));
    let ran = it.read(7, 1);
    assert_eq!(ran.outcome.sense.as_ref().unwrap().information, Some(7));
    ran.fails(SenseKey::MediumError, A::UNRECOVERED_READ_ERROR);
    it.write(7, &[0; 512]).fails(SenseKey::MediumError, A::WRITE_ERROR);
    it.run(&cdb10(0x35, 0, 0)).fails(SenseKey::MediumError, A::WRITE_ERROR);
    fail(StoreError::NoSpace);
    it.write(7, &[0; 512]).fails(SenseKey::DataProtect, A::SPACE_ALLOCATION_FAILED_WRITE_PROTECT);
    it.run_out(&cdb10(0x41, 0, 8), &[1; 512])
        .fails(SenseKey::DataProtect, A::SPACE_ALLOCATION_FAILED_WRITE_PROTECT);
    fail(StoreError::NoMemory);
    it.read(0, 1).fails(SenseKey::AbortedCommand, A::INSUFFICIENT_RESOURCES);
    // Another path may reach the medium, and initiators change the path for these only.
    for error in [StoreError::Unknown, StoreError::Fenced] {
        fail(error);
        it.read(0, 1).fails(SenseKey::NotReady, A::TARGET_PORT_IN_UNAVAILABLE_STATE);
        it.write(7, &[0; 512]).fails(SenseKey::NotReady, A::TARGET_PORT_IN_UNAVAILABLE_STATE);
        it.run(&cdb10(0x35, 0, 0)).fails(SenseKey::NotReady, A::TARGET_PORT_IN_UNAVAILABLE_STATE);
    }
    *store.fails.lock().unwrap() = None;
    it.write(7, &[1; 512]).good();
}

#[test]
fn fua_and_write_through_reach_the_medium_and_write_back_does_not() {
    for write_cache in [true, false] {
        let store = Watched::new();
        let it = Initiator::new(&disk_of(store.clone(), DiskOptions { write_cache, ..options() }), 1);
        it.write(0, &[1; 512]).good();
        assert_eq!(store.durable.load(Ordering::Relaxed), u64::from(!write_cache));
        let mut fua = cdb10(0x2a, 0, 1);
        fua[1] = 0x08;
        it.run_out(&fua, &[1; 512]).good();
        assert_eq!(store.durable.load(Ordering::Relaxed), 1 + u64::from(!write_cache));
        it.run_out(&cdb16(0x93, 0x08, 0, 8), &[0; 512]).good();
        assert_eq!(store.syncs.load(Ordering::Relaxed), u64::from(!write_cache));
        it.run(&cdb10(0x35, 0, 0)).good();
        assert_eq!(store.syncs.load(Ordering::Relaxed), 1 + u64::from(!write_cache));
    }
}

#[test]
fn a_successor_takes_turns_with_the_unit_before_it() {
    let before = disk(options());
    let now = Initiator::new(&before.successor(options(), &Registry::new()).unwrap(), 1);
    // As a COMPARE AND WRITE that still runs there.
    let held = block_on(before.stripes.claim(0, 512));
    let mut write = now.start(&cdb10(0x2a, 0, 1), &[9; 512], 0);
    assert!(poll_once(&mut write).is_pending());
    drop(held);
    Initiator::end(write).good();
    assert_eq!(Initiator::new(&before, 2).read(0, 1).good(), [9; 512]);
}

#[test]
fn a_successor_of_a_unit_whose_sanitize_failed_is_no_way_around_that() {
    let store = Watched::new();
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    *store.fails.lock().unwrap() = Some(StoreError::Io(5));
    it.run(&[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0]).fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
    *store.fails.lock().unwrap() = None;
    let now = Initiator::fresh(&it.unit.successor(options(), &Registry::new()).unwrap(), 1, false).settled();
    for cdb in [vec![0; 6], cdb10(0x28, 0, 1).to_vec(), vec![0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0]] {
        now.run(&cdb).fails(SenseKey::MediumError, A::SANITIZE_COMMAND_FAILED);
    }
}

#[test]
fn a_read_with_fua_brings_the_cache_to_the_medium_first() {
    for write_cache in [true, false] {
        let store = Watched::new();
        let it = Initiator::new(&disk_of(store.clone(), DiskOptions { write_cache, ..options() }), 1);
        it.write(0, &[1; 512]).good();
        it.read(0, 1).good();
        assert_eq!(store.syncs.load(Ordering::Relaxed), 0);
        let mut fua = cdb10(0x28, 0, 1);
        fua[1] = 0x08;
        assert_eq!(it.run(&fua).good(), [1; 512]);
        assert_eq!(store.syncs.load(Ordering::Relaxed), u64::from(write_cache));
    }
}

#[test]
fn each_reset_has_its_unit_attention() {
    let it = pair();
    for (kind, additional) in [
        (ResetKind::LogicalUnit, A::BUS_DEVICE_RESET_FUNCTION_OCCURRED),
        (ResetKind::TargetWarm, A::SCSI_BUS_RESET_OCCURRED),
        (ResetKind::TargetCold, A::POWER_ON_RESET_OR_BUS_DEVICE_RESET),
    ] {
        it.unit.reset(kind, Some(NexusId(1)));
        it.read(0, 1).fails(SenseKey::UnitAttention, additional);
        it.read(0, 1).good();
    }
}

#[test]
fn units_that_cannot_be_are_refused() {
    let store = |size| Arc::new(MemoryStore::new(size, true).unwrap());
    let registry = Registry::new();
    assert!(DiskUnit::new(store(100), options(), &registry).is_err());
    let odd = DiskOptions { block_size: 520, ..options() };
    assert!(DiskUnit::new(store(1 << 20), odd, &registry).is_err());
    let long = DiskOptions {
        identity: Identity { vendor: "ninechars".into(), ..Identity::of("Disk") },
        ..options()
    };
    assert!(DiskUnit::new(store(1 << 20), long, &registry).is_err());
}
