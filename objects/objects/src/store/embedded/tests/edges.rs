//! Rare turns: a waiter while another writes, parts that are too large, damage that comes later,
//! bytes beyond an end.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use backing::faulty::{Action, Operations, Rule};

use crate::store::embedded::journal::{self, Log, Turn};
use crate::store::embedded::record::{ROOT, USER, key};
use crate::store::embedded::testing::{Disk, P, Rig, apply, describe, now, object, sound};
use crate::store::{
    BLOCK, Change, CollectionType, Commit, Duplicate, Error, FIRST_ID, Id, ObjectStore, Step, Stop,
};

fn write(n: u64, at: u64, bytes: Vec<u8>) -> Step {
    Step::Write { id: object(n), at, data: bytes.into() }
}

fn create(n: u64, bytes: Vec<u8>) -> Change {
    let mut change = Change::of(Step::CreateUser(object(n)));
    change.push(write(n, 0, bytes));
    change
}

#[test]
fn who_asks_for_a_checkpoint_waits_for_the_one_who_writes_the_journal() {
    let rig = Rig::new(100, 256 << 10);
    let store = rig.open();
    let (journal, mut log) = (&store.inner.journal, Log::default());
    let mut cx = Context::from_waker(Waker::noop());
    log.appended = 1;
    journal::put(&mut log.pending, &key(USER, 1, 1, 0), Some(b"value"));
    assert!(matches!(
        log.turn(&mut cx, journal, 1, Commit::Relaxed, false, || ()),
        Poll::Ready(Turn::Lead { .. })
    ));
    log.rotate = true;
    assert!(
        log.turn(&mut cx, journal, 0, Commit::Relaxed, false, || ()).is_pending(),
        "or it asks again for ever"
    );
    log.end_lead(Some(Ok(())));
    let mut frozen = false;
    let turn = log.turn(&mut cx, journal, 0, Commit::Relaxed, false, || frozen = true);
    assert!(matches!(turn, Poll::Ready(Turn::Over(Ok(())))) && frozen);
}

#[test]
fn a_snapshot_of_large_attributes_fits_into_a_small_journal() {
    let (_, store) = Rig::begun(100);
    apply(&store, Step::CreateUser(object(0))).unwrap();
    for number in 0..20 {
        let mut change = Change::new();
        change.set_attribute(object(0), 1, number, &[number as u8; 65_000]);
        apply(&store, change).unwrap();
    }
    apply(&store, Step::Duplicate { source: P, id: P + 1, kind: Duplicate::Snapshot, made_ms: 1 }).unwrap();
    let mut value = Vec::new();
    for number in 0..20 {
        let copy = Id::new(P + 1, FIRST_ID);
        value.clear();
        assert!(store.attribute(copy, 1, number, &mut value).unwrap());
        assert!(value == [number as u8; 65_000], "{number}");
    }
    sound(&store);
}

#[test]
fn what_a_repair_gives_up_is_zeros_before_it_is_used_again() {
    let (_, store) = Rig::begun(16);
    apply(&store, create(1, vec![7; 12 * BLOCK as usize])).unwrap();
    let home = store.inner.directory().partition(P).unwrap().home;
    let bad: Arc<[u8]> = vec![9; 50].into();
    store.inner.layers.write().active.insert(key(USER, home, object(1).object, 0), Some(bad));
    let hold = store.hold();
    assert!(now(store.check(0, true)).unwrap().repaired > 0);
    assert_eq!(
        apply(&store, create(2, vec![1; 12 * BLOCK as usize])),
        Err(Error::NoSpace),
        "it is read still"
    );
    drop(hold);
    apply(&store, Step::CreateUser(object(3))).unwrap();
    for block in 0..14 {
        apply(&store, write(3, block * BLOCK + 100, vec![1])).unwrap();
    }
    let found = now(store.read(object(3), 0, 1 << 20)).unwrap().to_vec();
    assert!(found.iter().all(|b| *b < 2), "bytes of the object that was lost");
    sound(&store);
}

#[test]
fn a_check_passes_over_a_removed_partition_that_is_half_emptied() {
    let (_, store) = Rig::begun(16);
    let mut change = Change::of(Step::CreateCollection(object(1000), CollectionType::LINKED));
    for n in 0..600 {
        change.push(Step::CreateUser(object(n)));
    }
    change.push(Step::Join { object: object(0), collection: object(1000).object, number: 1 });
    apply(&store, change).unwrap();
    apply(&store, Step::RemovePartition { id: P, contents: true }).unwrap();
    // The objects go first: of a membership, both halves are left.
    assert!(now(store.inner.empty_some()).unwrap());
    sound(&store);
    while now(store.inner.empty_some()).unwrap() {}
    sound(&store);
}

#[test]
fn a_member_that_goes_does_not_count_for_a_collection_that_got_the_id_meanwhile() {
    let (rig, store) = Rig::begun(100);
    let collection = object(100);
    let create = || Step::CreateCollection(collection, CollectionType::LINKED);
    let join = |n| Step::Join { object: object(n), collection: collection.object, number: 1 };
    let mut change = Change::of(create());
    for n in 1..4 {
        change.push(Step::CreateUser(object(n)));
    }
    change.push(join(1));
    apply(&store, change).unwrap();
    // The removal has been through its steps, and waits for the arena.
    rig.arena_faults.add(Rule::new(Operations::WRITE, Action::Delay(u64::MAX..u64::MAX)));
    let mut change = Change::of(Step::RemoveUser(object(1)));
    change.push(write(3, 0, vec![1; 100]));
    let mut removal = pin!(store.apply(change, Commit::Durable));
    assert!(removal.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(rig.arena_faults.waiting(), 1);
    for step in [Step::RemoveCollection { id: collection, members: true }, create(), join(2)] {
        apply(&store, step).unwrap();
    }
    rig.arena_faults.clear();
    now(removal).unwrap();
    assert_eq!(store.object(collection).unwrap().members, 1);
    sound(&store);
    apply(&store, Step::RemoveUser(object(2))).unwrap();
    assert_eq!(store.object(collection).unwrap().members, 0);
    sound(&store);
}

#[test]
fn a_store_made_anew_shows_nothing_of_an_old_arena() {
    let (mut rig, store) = Rig::begun(16);
    apply(&store, create(1, vec![7; 16 * BLOCK as usize])).unwrap();
    drop(store);
    rig.disk = Disk::default();
    let store = rig.open();
    apply(&store, Step::CreatePartition(P)).unwrap();
    apply(&store, Step::CreateUser(object(1))).unwrap();
    for block in 0..16 {
        apply(&store, write(1, block * BLOCK + 100, vec![1])).unwrap();
    }
    let found = now(store.read(object(1), 0, 1 << 20)).unwrap().to_vec();
    assert!(found.iter().all(|b| *b < 2));
}

#[test]
fn a_root_record_that_cannot_be_read_is_repaired() {
    let (rig, store) = Rig::begun(16);
    for number in 0..3 {
        let mut change = Change::new();
        change.set_attribute(Id::ROOT, 1, number, &[5; 3000]);
        apply(&store, change).unwrap();
    }
    store.inner.layers.write().active.insert(key(ROOT, 0, 0, 0), Some(vec![9; 50].into()));
    now(store.checkpoint()).unwrap();
    drop(store);
    let store = rig.open();
    assert!(matches!(apply(&store, Step::CreateUser(object(1))), Err(Error::Damaged(_))));
    let report = now(store.check(0, true)).unwrap();
    assert!(report.repaired > 0 && report.repaired == report.wrong, "{report:?}");
    sound(&store);
    apply(&store, Step::CreateUser(object(1))).unwrap();
    let mut value = Vec::new();
    assert!(store.attribute(Id::ROOT, 1, 2, &mut value).unwrap());
}

#[test]
fn an_object_that_grows_shows_zeros_where_a_failed_write_left_something() {
    for how in 0..3 {
        let (_, store) = Rig::begun(1000);
        apply(&store, create(1, vec![1; 100])).unwrap();
        let mut change = Change::of(write(1, 100, vec![7; 200]));
        for number in 0..10 {
            change.set_attribute(object(1), 1, number, &[1; 60_000]);
        }
        assert_eq!(apply(&store, change), Err(Error::BadChange));
        let step = match how {
            0 => Step::SetLength { id: object(1), length: 10_000 },
            1 => Step::Clear { id: object(1), at: 400, len: 9600 },
            _ => write(1, 9999, vec![0]),
        };
        apply(&store, step).unwrap();
        let found = now(store.read(object(1), 0, 20_000)).unwrap().to_vec();
        assert_eq!(found.len(), 10_000);
        assert!(found[..100].iter().all(|b| *b == 1) && found[100..].iter().all(|b| *b == 0), "{how}");
    }
}

#[test]
fn a_change_that_writes_and_punches_or_copies_keeps_both_apart() {
    let (_, store) = Rig::begun(1000);
    let bytes: Vec<u8> = (0..9000).map(|i| (i % 251) as u8).collect();
    let mut change = create(1, bytes.clone());
    change.push(Step::Punch { id: object(1), at: 100, len: 50 });
    apply(&store, change).unwrap();
    let mut punched = bytes.clone();
    punched.drain(100..150);
    assert_eq!(now(store.read(object(1), 0, 9999)).unwrap().to_vec(), punched);

    let mut change = create(2, bytes.clone());
    change.push(Step::Copy { from: object(2), to: object(3), attributes: false });
    change.push(write(2, 10, vec![255; 20]));
    apply(&store, change).unwrap();
    assert_eq!(now(store.read(object(3), 0, 9999)).unwrap().to_vec(), bytes);
    sound(&store);
}

#[test]
fn a_punch_or_a_snapshot_that_is_stopped_leaves_everything_as_it_was() {
    let (_, store) = Rig::begun(4000);
    let bytes: Vec<u8> = (0..2_000_000).map(|i| (i % 251) as u8).collect();
    apply(&store, create(1, bytes)).unwrap();
    let before = describe(&store);
    for step in [
        Step::Punch { id: object(1), at: 100, len: 50 },
        Step::Duplicate { source: P, id: P + 1, kind: Duplicate::Snapshot, made_ms: 1 },
    ] {
        let stop = Stop::default();
        let change = Change { stop: Some(stop.clone()), ..Change::of(step) };
        let mut stopped = pin!(store.apply(change, Commit::Durable));
        // Others have their turn after each piece.
        assert!(stopped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        stop.ask();
        assert_eq!(now(stopped), Err(Error::Stopped));
        assert_eq!(describe(&store), before);
        sound(&store);
    }
    apply(&store, Step::Punch { id: object(1), at: 100, len: 50 }).unwrap();
    assert_eq!(store.object(object(1)).unwrap().length, 2_000_000 - 50);
    sound(&store);
}

#[test]
fn a_change_that_is_done_needs_no_buffer_of_the_pool() {
    let config = runtime::Config { pool_bytes: 1 << 20, ..runtime::Config::default() };
    runtime::Runtime::new(config).unwrap().block_on(async {
        let rig = Rig::new(100, 256 << 10);
        let store = rig.open();
        let mut taken = Vec::new();
        for len in [runtime::pool::MAX_ALLOC, 4096, 2048, 1024, 512] {
            taken.extend(std::iter::from_fn(|| runtime::pool::alloc(len)));
        }
        assert!(runtime::pool::alloc(512).is_none());
        store.apply(Step::CreatePartition(P).into(), Commit::Durable).await.unwrap();
    });
}

#[test]
fn duplicates_know_their_source_from_another_of_its_id_whatever_was_closed_cut_or_formatted_between() {
    let rig = Rig::new(1000, 256 << 10);
    let mut store = rig.open();
    let duplicate = |id| Step::Duplicate { source: P, id, kind: Duplicate::Snapshot, made_ms: 1 };
    let (refresh, restore) = (|id| Step::Refresh { id, made_ms: 2 }, |id| Step::Restore { id });
    let remove = || Step::RemovePartition { id: P, contents: true };
    apply(&store, Step::CreatePartition(P)).unwrap();
    for round in 0..6u64 {
        apply(&store, create(round, vec![round as u8; 10])).unwrap();
        let snapshot = P + 10 + round;
        apply(&store, duplicate(snapshot)).unwrap();
        apply(&store, restore(snapshot)).unwrap();
        apply(&store, refresh(snapshot)).unwrap();
        let generation = store.partition(P).unwrap().generation;
        assert_eq!(store.partition(snapshot).unwrap().origin.unwrap().generation, generation);
        apply(&store, remove()).unwrap();
        assert_eq!(apply(&store, restore(snapshot)), Err(Error::NoSource(snapshot)));
        // The highest generation may be one that only an origin names by now.
        match round % 3 {
            0 => {}
            1 => {
                drop(store);
                store = rig.open();
            }
            _ => {
                drop(store);
                rig.cut(round);
                store = rig.open();
            }
        }
        apply(&store, Step::CreatePartition(P)).unwrap();
        let before = describe(&store);
        for round in 0..=round {
            let snapshot = P + 10 + round;
            assert_eq!(apply(&store, restore(snapshot)), Err(Error::NoSource(snapshot)));
            assert_eq!(apply(&store, refresh(snapshot)), Err(Error::NoSource(snapshot)));
        }
        assert_eq!(describe(&store), before);
    }
    sound(&store);
    apply(&store, Step::Format).unwrap();
    apply(&store, Step::CreatePartition(P)).unwrap();
    apply(&store, duplicate(P + 10)).unwrap();
    drop(store);
    apply(&rig.open(), restore(P + 10)).unwrap();
}

#[test]
fn what_a_cut_has_left_behind_a_gap_is_not_found_by_a_later_life_that_fills_the_gap() {
    let user = |n| Change::of(Step::CreateUser(object(n)));
    let mut filled = 0;
    for seed in 0..64 {
        let rig = Rig::new(100, 256 << 10);
        apply(&rig.open(), Step::CreatePartition(P)).unwrap();
        // The first frame of a life is lost, and those behind it are not: in one of some cuts.
        let store = rig.open();
        for n in 1..4 {
            now(store.apply(user(n), Commit::Relaxed)).unwrap();
        }
        drop(store);
        rig.cut(seed);
        let store = rig.open();
        filled += u64::from(store.object(object(1)).is_err());
        // As long as the one that is lost.
        apply(&store, user(9)).unwrap();
        let before = describe(&store);
        drop(store);
        assert_eq!(describe(&rig.open()), before, "seed {seed}");
    }
    assert!(filled > 0, "no cut took the first frame");
}
