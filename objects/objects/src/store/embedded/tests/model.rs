//! The same changes to this store and to the one in memory leave the same, crash or not.

use proptest::prelude::*;

use crate::oracle::Oracle;
use crate::store::embedded::testing::{Raw, Rig, change, describe, now, sound};
use crate::store::{Commit, Duplicate, Error, FIRST_ID, Id, List, ObjectStore, Step};

const BLOCKS: u64 = 4000;
/// Small, so that checkpoints come by themselves.
const JOURNAL: usize = 512 << 10;

fn raw() -> impl Strategy<Value = Raw> {
    (any::<u8>(), any::<u8>(), any::<u32>(), any::<u32>())
}

fn changes(most: usize) -> impl Strategy<Value = Vec<Vec<Raw>>> {
    let one = prop_oneof![3 => prop::collection::vec(raw(), 1..2), 1 => prop::collection::vec(raw(), 1..5)];
    prop::collection::vec(one, 1..most)
}

fn begin(store: &dyn ObjectStore) {
    for p in 0..2 {
        now(store.apply(Step::CreatePartition(FIRST_ID + p).into(), Commit::Durable)).unwrap();
    }
    for o in 0..3 {
        let id = Id::new(FIRST_ID, FIRST_ID + o);
        now(store.apply(Step::CreateUser(id).into(), Commit::Durable)).unwrap();
    }
}

/// Checks that all bytes that differ between two objects lie within the reported differences.
fn differences_are_told(store: &dyn ObjectStore) {
    let mut partitions = Vec::new();
    store.list(List::Partitions, 0, 100, &mut partitions).unwrap();
    let origins = partitions.iter().filter_map(|p| Some((*p, store.partition(*p).unwrap().origin?.source)));
    for (p, source) in origins.filter(|(_, source)| partitions.contains(source)) {
        let mut users = Vec::new();
        store.list(List::Users(p), 0, 100, &mut users).unwrap();
        for o in users {
            let ids = [Id::new(p, o), Id::new(source, o)];
            let Ok(info) = store.object(ids[1]) else { continue };
            if info.kind != crate::store::Kind::User {
                continue;
            }
            let longest = info.length.max(store.object(ids[0]).unwrap().length).min(64 << 10);
            let [one, other] = ids.map(|id| now(store.read(id, 0, longest as usize)).unwrap().to_vec());
            let mut told = Vec::new();
            store.differences(ids, 0, u64::MAX, 10_000, &mut told).unwrap();
            for at in 0..longest {
                let same = one.get(at as usize) == other.get(at as usize);
                assert!(same || told.iter().any(|d| d.at <= at && at < d.at + d.len), "{at} of {o:x}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_leave_what_the_model_has(changes in changes(60), reopen in any::<u64>()) {
        let rig = Rig::new(BLOCKS, JOURNAL);
        let mut store = rig.open();
        let model = Oracle::new(u64::MAX / 2);
        begin(&store);
        begin(&model);
        for (at, raw) in changes.iter().enumerate() {
            let commit = if raw.len() % 2 == 0 { Commit::Durable } else { Commit::Relaxed };
            let found = now(store.apply(change(raw), commit));
            let wanted = now(model.apply(change(raw), commit));
            // If a change has several faults, a store may report any of them.
            let kind = |e| matches!(e, Error::NoSpace | Error::Io(_) | Error::Damaged(_) | Error::NoMemory);
            prop_assert_eq!(found.map_err(kind), wanted.map_err(kind), "{:?}", change(raw));
            match (reopen >> (at % 60)) & 7 {
                // A kill of the process: nothing is lost.
                0 => {
                    drop(store);
                    store = rig.open();
                }
                1 => now(store.checkpoint()).unwrap(),
                _ => {}
            }
            if at % 7 == 0 {
                prop_assert_eq!(describe(&store), describe(&model));
            }
        }
        prop_assert_eq!(describe(&store), describe(&model));
        differences_are_told(&store);
        let report = now(store.check(0, false)).unwrap();
        prop_assert!(report.wrong == 0, "{:?}", report);
    }

    #[test]
    fn a_power_cut_leaves_all_that_was_durable_and_changes_as_a_whole(
        changes in changes(40),
        seed in any::<u64>(),
        cut in 0..40usize,
    ) {
        let rig = Rig::new(BLOCKS, JOURNAL);
        let store = rig.open();
        let model = Oracle::new(u64::MAX / 2);
        begin(&store);
        begin(&model);
        // States that a cut may leave: the one after the last durable change, or after any later
        // one.
        let mut possible = vec![describe(&model)];
        for (at, raw) in changes.iter().enumerate() {
            let durable = at == 0 || (seed >> (at % 60)) & 3 == 0;
            let commit = if durable { Commit::Durable } else { Commit::Relaxed };
            let change = change(raw);
            // Data that is only relaxed may be torn: it is not compared here.
            let writes = change.steps.iter().any(|s| matches!(s,
                Step::Write { .. } | Step::Append { .. } | Step::Punch { .. } | Step::Clear { .. } | Step::SetLength { .. }));
            let commit = if writes { Commit::Durable } else { commit };
            let failed = now(store.apply(change.clone(), commit)).is_err();
            prop_assert_eq!(failed, now(model.apply(change, commit)).is_err());
            if commit == Commit::Durable && !failed {
                possible.clear();
            }
            possible.push(describe(&model));
            if (seed >> (at % 59)) & 15 == 3 {
                now(store.checkpoint()).unwrap();
            }
            if at == cut {
                break;
            }
        }
        drop(store);
        rig.cut(seed);
        let store = rig.open();
        let found = describe(&store);
        prop_assert!(possible.contains(&found), "{found}\nis none of\n{}", possible.join("\n"));
        let report = now(store.check(0, false)).unwrap();
        prop_assert!(report.wrong == 0, "{:?}", report);
        // And it goes on.
        begin_again(&store);
    }
}

fn begin_again(store: &dyn ObjectStore) {
    let id = store.reserve_ids(0, 1).unwrap();
    now(store.apply(Step::CreatePartition(id).into(), Commit::Durable)).unwrap();
    let object = Id::new(id, store.reserve_ids(id, 1).unwrap());
    let mut change = crate::store::Change::new();
    change.push(Step::CreateUser(object));
    change.push(Step::SetLength { id: object, length: 1 << 18 });
    now(store.apply(change, Commit::Durable)).unwrap();
    assert!(now(store.read(object, 0, 1 << 18)).unwrap().to_vec().iter().all(|b| *b == 0));
}

#[test]
fn a_snapshot_of_many_objects_survives_a_small_journal_and_its_source() {
    let rig = Rig::new(BLOCKS, 256 << 10);
    let store = rig.open();
    begin(&store);
    for o in 0..1000 {
        let id = Id::new(FIRST_ID + 1, FIRST_ID + o);
        let mut change = crate::store::Change::new();
        change.push(Step::CreateUser(id));
        change.push(Step::Write { id, at: 0, data: vec![o as u8 | 1; 5000].into() });
        change.set_attribute(id, 1, 1, &[1; 100]);
        now(store.apply(change, Commit::Relaxed)).unwrap();
    }
    let used = store.root().used;
    let snapshot = FIRST_ID + 7;
    let step = Step::Duplicate { source: FIRST_ID + 1, id: snapshot, kind: Duplicate::Snapshot, made_ms: 9 };
    now(store.apply(step.into(), Commit::Durable)).unwrap();
    assert_eq!(store.root().used, used, "data is shared");
    now(store.apply(Step::RemovePartition { id: FIRST_ID + 1, contents: true }.into(), Commit::Durable))
        .unwrap();
    for _ in 0..3 {
        now(store.checkpoint()).unwrap();
    }
    assert_eq!(store.partition(snapshot).unwrap().objects, 1000);
    drop(store);
    rig.cut(5);
    let store = rig.open();
    for o in 0..1000 {
        let id = Id::new(snapshot, FIRST_ID + o);
        assert_eq!(now(store.read(id, 0, 9999)).unwrap().to_vec(), vec![o as u8 | 1; 5000]);
    }
    now(store.apply(Step::RemovePartition { id: snapshot, contents: true }.into(), Commit::Durable)).unwrap();
    for _ in 0..3 {
        now(store.checkpoint()).unwrap();
    }
    assert_eq!(store.root().used, 0, "nobody uses it any more");
    sound(&store);
}
