//! Full media, failing media, damaged metadata: typed errors, nothing half done, and nothing
//! invented.

use backing::StoreError;
use backing::faulty::{Action, Operations, Rule};

use crate::store::embedded::testing::{P, Rig, apply, describe, now, object, sound};
use crate::store::{BLOCK, Change, Commit, Duplicate, Error, FIRST_ID, Id, ObjectStore, Scope, Step};

const EIO: StoreError = StoreError::Io(libc::EIO);

fn create(n: u64, blocks: u64) -> Change {
    let mut change = Change::of(Step::CreateUser(object(n)));
    change.push(Step::Write { id: object(n), at: 0, data: vec![7; (blocks * BLOCK) as usize].into() });
    change.set_attribute(object(n), 1, 1, b"name");
    change
}

#[test]
fn a_full_arena_refuses_a_change_as_a_whole_and_takes_it_once_something_is_removed() {
    let (_, store) = Rig::begun(100);
    for n in 0..9 {
        apply(&store, create(n, 10)).unwrap();
    }
    let before = describe(&store);
    assert_eq!(apply(&store, create(9, 20)), Err(Error::NoSpace));
    assert_eq!(describe(&store), before);
    apply(&store, Step::RemoveUser(object(3))).unwrap();
    apply(&store, create(9, 20)).unwrap();
    assert_eq!(store.root().used, 100 * BLOCK);
    assert_eq!(now(store.read(object(9), 0, 1 << 20)).unwrap().to_vec(), vec![7; 20 << 12]);
    sound(&store);
}

#[test]
fn a_medium_without_room_for_the_arena_s_data_refuses_a_change_as_a_whole() {
    let (rig, store) = Rig::begun(1000);
    let before = describe(&store);
    rig.arena_faults.limit_space(Some(5 * BLOCK));
    assert_eq!(apply(&store, create(1, 6)), Err(Error::NoSpace));
    assert_eq!(describe(&store), before);
    rig.arena_faults.clear();
    apply(&store, create(1, 6)).unwrap();
}

#[test]
fn space_that_was_given_up_reads_as_zeros_before_it_is_used_again() {
    let (_, store) = Rig::begun(16);
    for round in 0..20 {
        apply(&store, create(round, 10)).unwrap();
        apply(&store, Step::RemoveUser(object(round))).unwrap();
        // One byte of each block: the rest of the sector and of the block shows no old data.
        let id = object(1000 + round);
        apply(&store, Step::CreateUser(id)).unwrap();
        for block in 0..6 {
            let step = Step::Write { id, at: block * BLOCK + 100, data: vec![1].into() };
            now(store.apply(step.into(), Commit::Relaxed)).unwrap();
        }
        let found = now(store.read(id, 0, 1 << 20)).unwrap().to_vec();
        let ones = found.iter().enumerate().filter(|(_, byte)| **byte != 0);
        assert!(ones.clone().all(|(at, byte)| at as u64 % BLOCK == 100 && *byte == 1));
        assert_eq!(ones.count(), 6);
        apply(&store, Step::RemoveUser(id)).unwrap();
    }
}

#[test]
fn a_reader_keeps_what_it_reads_from_being_used_again() {
    let (_, store) = Rig::begun(16);
    apply(&store, create(1, 12)).unwrap();
    let hold = store.hold();
    apply(&store, Step::RemoveUser(object(1))).unwrap();
    assert_eq!(apply(&store, create(2, 12)), Err(Error::NoSpace));
    drop(hold);
    apply(&store, create(2, 12)).unwrap();
}

#[test]
fn a_journal_that_fails_ends_all_changes_and_leaves_what_was_acknowledged() {
    // Behind a change that is not durable a frame goes to the medium by a flush, else by itself.
    for (operations, behind) in
        [(Operations::WRITE, false), (Operations::WRITE, true), (Operations::SYNC, true)]
    {
        let (rig, store) = Rig::begun(1000);
        apply(&store, create(1, 1)).unwrap();
        let before = describe(&store);
        if behind {
            now(store.apply(create(4, 1), Commit::Relaxed)).unwrap();
        }
        rig.journal_faults.add(Rule::new(operations, Action::Fail(EIO)).times(1));
        assert_eq!(apply(&store, create(2, 1)), Err(Error::Io(libc::EIO)));
        assert_eq!(apply(&store, create(3, 1)), Err(Error::Io(libc::EIO)), "not even when it works again");
        now(store.read(object(1), 0, 10)).unwrap();
        drop(store);
        rig.cut(1);
        rig.journal_faults.clear();
        let store = rig.open();
        for not_acknowledged in [object(2), object(4)] {
            if store.object(not_acknowledged).is_ok() {
                apply(&store, Step::RemoveUser(not_acknowledged)).unwrap();
            }
        }
        assert_eq!(describe(&store), before);
    }
}

#[test]
fn a_failed_flush_of_before_refuses_what_is_to_be_durable_and_nothing_else() {
    let (rig, store) = Rig::begun(1000);
    rig.health.flush_failed(libc::EIO, None);
    assert_eq!(apply(&store, create(1, 1)), Err(Error::Io(libc::EIO)));
    assert_eq!(now(store.sync(Scope::All)), Err(Error::Io(libc::EIO)));
    now(store.apply(create(2, 1), Commit::Relaxed)).unwrap();
    now(store.read(object(2), 0, 10)).unwrap();
    now(store.checkpoint()).unwrap();
    drop(store);
    let store = rig.open();
    assert_eq!(now(store.sync(Scope::All)), Err(Error::Io(libc::EIO)), "it can be opened all the same");
    rig.health.acknowledge().unwrap();
    apply(&store, create(1, 1)).unwrap();
    now(store.sync(Scope::All)).unwrap();
}

#[test]
fn a_journal_that_fails_makes_the_unit_unusable() {
    let rig = Rig::new(1000, 256 << 10);
    let store = rig.open();
    rig.journal_faults.add(Rule::new(Operations::SYNC.or(Operations::WRITE), Action::Fail(EIO)).times(1));
    apply(&store, Step::CreatePartition(P)).unwrap_err();
    assert_eq!(rig.health.look().problems[0].kind, backing::health::Kind::Unusable);
}

#[test]
fn a_checkpoint_that_finds_no_room_is_tried_again_and_nothing_is_lost() {
    let (rig, store) = Rig::begun(1000);
    rig.disk.limit(Some(rig.disk.len_now()));
    let (mut created, mut failed) = (0, 0);
    for n in 0..2000 {
        let mut change = Change::of(Step::CreateUser(object(n)));
        change.set_attribute(object(n), 1, 1, &[n as u8; 400]);
        match apply(&store, change) {
            Ok(()) => created += 1,
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                failed += 1;
            }
        }
        if failed == 3 {
            rig.disk.limit(None);
        }
    }
    assert!(failed >= 3, "it never ran out of room");
    let there = (0..2000).filter(|n| store.object(object(*n)).is_ok()).count();
    // An object whose creation reported a failed checkpoint may be there.
    assert!((created..=created + failed).contains(&there), "{created} {failed} {there}");
    now(store.checkpoint()).unwrap();
    sound(&store);
    drop(store);
    rig.cut(3);
    assert_eq!(rig.open().partition(P).unwrap().objects, there as u64);
}

#[test]
fn a_medium_without_room_for_metadata_fails_changes_and_keeps_nothing_from_readers() {
    for power_cut in [true, false] {
        let rig = Rig { cache_bytes: 0, ..Rig::new(1000, 256 << 10) };
        let store = rig.open();
        apply(&store, Step::CreatePartition(P)).unwrap();
        (0..300).for_each(|n| apply(&store, create(n, 1)).unwrap());
        now(store.checkpoint()).unwrap();
        rig.disk.fill(true);
        let (mut there, mut failed, mut next) = (Vec::from_iter(0..300), 0, 300);
        while failed < 4 {
            let mut change = Change::of(Step::CreateUser(object(next)));
            change.set_attribute(object(next), 1, 1, &[next as u8; 400]);
            match apply(&store, change) {
                Ok(()) => there.push(next),
                Err(error) => {
                    assert_eq!(error, Error::NoSpace);
                    failed += 1;
                    describe(&store);
                }
            }
            next += 1;
        }
        assert!(next > 310, "nothing was taken");
        if power_cut {
            drop(store);
            rig.cut(5);
            rig.disk.fill(false);
        } else {
            rig.disk.fill(false);
            now(store.checkpoint()).unwrap();
            let before = describe(&store);
            drop(store);
            rig.cut(6);
            assert_eq!(describe(&rig.open()), before);
        }
        let store = rig.open();
        assert!(there.iter().all(|n| store.object(object(*n)).is_ok()));
        sound(&store);
        apply(&store, create(next, 1)).unwrap();
    }
}

#[test]
fn readers_who_come_one_after_another_do_not_keep_what_was_given_up_for_ever() {
    let (_, store) = Rig::begun(16);
    apply(&store, create(1, 12)).unwrap();
    let mut reader = store.hold();
    apply(&store, Step::RemoveUser(object(1))).unwrap();
    for _ in 0..3 {
        now(store.checkpoint()).unwrap();
        let next = store.hold();
        drop(std::mem::replace(&mut reader, next));
    }
    apply(&store, create(2, 12)).unwrap();
    drop(reader);
}

#[test]
fn a_duplicate_that_fails_after_its_content_was_copied_leaves_nothing_behind() {
    let (rig, store) = Rig::begun(100);
    (0..5).for_each(|n| apply(&store, create(n, 3)).unwrap());
    let clone = Step::Duplicate { source: P, id: P + 1, kind: Duplicate::Clone, made_ms: 1 };
    let mut change = Change::of(clone.clone());
    change.set_attribute(Id::partition(P + 1), 1, 1, &vec![1; crate::store::MAX_VALUE + 1]);
    let before = describe(&store);
    assert_eq!(apply(&store, change), Err(Error::ValueTooLong));
    assert_eq!(describe(&store), before);
    now(store.checkpoint()).unwrap();
    sound(&store);
    // And so does one of which the copy itself is cut off.
    rig.journal_faults.add(Rule::new(Operations::WRITE, Action::Fail(EIO)).times(1));
    assert_eq!(apply(&store, clone), Err(Error::Io(libc::EIO)));
    drop(store);
    rig.journal_faults.clear();
    let store = rig.open();
    now(store.checkpoint()).unwrap();
    assert_eq!(describe(&store), before);
    sound(&store);
}

#[test]
fn a_failing_arena_fails_reads_and_writes_with_its_error() {
    let (rig, store) = Rig::begun(1000);
    apply(&store, create(1, 40)).unwrap();
    let before = describe(&store);
    let rule = rig.arena_faults.add(Rule::new(Operations::ALL, Action::Fail(EIO)));
    assert_eq!(now(store.read(object(1), 0, 10)).unwrap_err(), Error::Io(libc::EIO));
    assert_eq!(apply(&store, create(2, 40)), Err(Error::Io(libc::EIO)));
    rig.arena_faults.remove(rule);
    assert_eq!(describe(&store), before);
    apply(&store, create(2, 40)).unwrap();
}

#[test]
fn damaged_metadata_is_an_error_that_a_check_tells_of_and_repairs() {
    let (mut refused, mut repaired, mut harmless) = (0, 0, 0);
    for seed in 0..60u64 {
        let (rig, store) = Rig::begun(1000);
        for n in 0..50 {
            apply(&store, create(n, 1)).unwrap();
        }
        now(store.checkpoint()).unwrap();
        drop(store);
        // Of one of the records: each has the attribute's value in it.
        rig.disk.damage(|bytes| {
            let found: Vec<usize> =
                bytes.windows(4).enumerate().filter(|(_, w)| *w == b"name").map(|(at, _)| at).collect();
            let at = found[seed as usize * 7 % found.len()];
            // Two bits: one would be turned back.
            bytes[at - (seed as usize % 60)] ^= 0x41;
        });
        let Ok(store) = rig.try_open() else {
            refused += 1;
            continue;
        };
        let report = now(store.check(0, false)).unwrap();
        if report.wrong == 0 {
            // It was a page that nothing names any more.
            harmless += 1;
            continue;
        }
        assert!(matches!(apply(&store, create(100, 1)), Err(Error::Damaged(_))));
        let report = now(store.check(0, true)).unwrap();
        assert!(report.repaired > 0);
        sound(&store);
        apply(&store, create(100, 1)).unwrap();
        assert!(store.partition(P).unwrap().objects >= 50);
        repaired += 1;
    }
    assert!(repaired > 0, "{refused} {repaired} {harmless}");
}

#[test]
fn any_garbage_in_the_database_or_the_journal_is_an_error_or_harmless_but_no_panic() {
    let (rig, store) = Rig::begun(1000);
    for n in 0..50 {
        apply(&store, create(n, 1)).unwrap();
    }
    drop(store);
    let mut random = backing::model::Random::new(1);
    for _ in 0..60 {
        rig.disk.damage(|bytes| {
            for _ in 0..4 {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        });
        if let Ok(store) = rig.try_open() {
            for n in 0..50 {
                let _ = now(store.read(object(n), 0, 100));
                let _ = apply(&store, Step::RemoveUser(object(n)));
            }
            let _ = now(store.check(0, true));
        }
    }
}

#[test]
fn a_change_that_no_journal_can_hold_is_refused() {
    let (_, store) = Rig::begun(1000);
    apply(&store, Step::CreateUser(object(0))).unwrap();
    let mut change = Change::new();
    for number in 0..10 {
        change.set_attribute(object(0), 1, number, &[1; 60_000]);
    }
    assert_eq!(apply(&store, change), Err(Error::BadChange));
    let mut change = Change::of(Step::CreateUser(object(1)));
    change.set_attribute(object(1), 1, 1, &vec![1; 0xffff]);
    assert_eq!(apply(&store, change), Err(Error::ValueTooLong));
    assert_eq!(store.object(object(1)), Err(Error::NotFound(object(1))));
}

#[test]
fn access_times_are_seen_at_once_and_reach_the_medium_with_a_sync() {
    let (rig, store) = Rig::begun(1000);
    apply(&store, create(1, 1)).unwrap();
    let times = crate::store::TimesUpdate { data_accessed: Some(77), ..Default::default() };
    for id in [object(1), Id::partition(P), Id::ROOT, object(99)] {
        store.touch(id, times);
    }
    assert_eq!(store.times(object(1)).unwrap().data_accessed, 77);
    now(store.sync(crate::store::Scope::All)).unwrap();
    drop(store);
    rig.cut(1);
    let store = rig.open();
    for id in [object(1), Id::partition(P), Id::ROOT] {
        assert_eq!(store.times(id).unwrap().data_accessed, 77, "{id:?}");
    }
    assert!(store.times(object(99)).is_err());
}

#[test]
fn what_is_above_the_highest_id_is_known_to_be_new_without_a_look_at_the_medium() {
    let mut rig = Rig::new(1000, 256 << 10);
    rig.cache_bytes = 0;
    let store = rig.open();
    apply(&store, Step::CreatePartition(P)).unwrap();
    // More than one page of the database has.
    for n in (4..300).chain([1, 2, 500]) {
        apply(&store, create(n, 0)).unwrap();
    }
    // An initiator's own choice, from which nothing is counted on.
    let last = Id::new(P + 1, u64::MAX);
    apply(&store, Step::CreatePartition(P + 1)).unwrap();
    apply(&store, Step::CreateCollection(last, crate::store::CollectionType::LINKED)).unwrap();
    now(store.checkpoint()).unwrap();
    drop(store);
    let store = rig.open();
    let reads = rig.disk.reads();
    let first = store.reserve_ids(P, 3).unwrap();
    assert_eq!(first, FIRST_ID + 501);
    assert!(store.object(Id::new(P, first)).is_err());
    for id in first..first + 3 {
        apply(&store, Step::CreateUser(Id::new(P, id))).unwrap();
    }
    assert_eq!(rig.disk.reads(), reads);
    // Below it everything is looked up, and existing objects are found.
    assert_eq!(apply(&store, Step::CreateUser(object(500))), Err(Error::Exists(object(500))));
    assert!(rig.disk.reads() > reads);
    apply(&store, create(3, 1)).unwrap();
    assert_eq!(apply(&store, Step::CreateUser(object(3))), Err(Error::Exists(object(3))));
    assert_eq!(apply(&store, Step::CreateUser(last)), Err(Error::Exists(last)));
    let other = Id::new(P + 1, store.reserve_ids(P + 1, 1).unwrap());
    assert_eq!(other.object, FIRST_ID);
    apply(&store, Step::CreateUser(other)).unwrap();
    // A copy of a partition knows its highest as well.
    let step = Step::Duplicate { source: P, id: P + 2, kind: crate::store::Duplicate::Clone, made_ms: 1 };
    apply(&store, step).unwrap();
    let copy = Id::new(P + 2, object(500).object);
    assert_eq!(apply(&store, Step::CreateUser(copy)), Err(Error::Exists(copy)));
}

#[test]
fn many_noted_times_are_written_without_being_asked_for_but_never_waited_for() {
    let (rig, store) = Rig::begun(1000);
    apply(&store, create(1, 1)).unwrap();
    let times = crate::store::TimesUpdate { data_accessed: Some(77), ..Default::default() };
    for n in 1..=4096 {
        store.touch(object(n), times);
    }
    assert!(store.inner.has_many_touched());
    let held = now(store.inner.lock_all());
    assert!(!now(store.inner.drain_touched()).unwrap());
    drop(held);
    for _ in 0..64 {
        assert!(now(store.inner.drain_touched()).unwrap());
    }
    assert!(!store.inner.has_many_touched());
    drop(store);
    assert_eq!(rig.open().times(object(1)).unwrap().data_accessed, 77);
}
