//! Relaxed and durable writes side by side: a power cut takes nothing durable, whatever was written
//! beside it later.

use backing::model::Random;

use crate::store::embedded::EmbeddedStore;
use crate::store::embedded::testing::{P, Rig, now, sound};
use crate::store::{BLOCK, Commit, Duplicate, FIRST_ID, Id, ObjectStore, Step};

const OBJECT: Id = Id::new(P, FIRST_ID);

fn apply(store: &EmbeddedStore, step: Step, commit: Commit) {
    now(store.apply(step.into(), commit)).unwrap();
}

fn write(store: &EmbeddedStore, at: u64, bytes: Vec<u8>, commit: Commit) {
    apply(store, Step::Write { id: OBJECT, at, data: bytes.into() }, commit);
}

fn begin(rig: &Rig) -> EmbeddedStore {
    let store = rig.open();
    apply(&store, Step::CreatePartition(P), Commit::Durable);
    apply(&store, Step::CreateUser(OBJECT), Commit::Durable);
    store
}

fn after_a_cut(rig: &Rig, store: EmbeddedStore, seed: u64) -> Vec<u8> {
    drop(store);
    rig.cut(seed);
    let store = rig.open();
    let found = now(store.read(OBJECT, 0, 1 << 20)).unwrap().to_vec();
    sound(&store);
    found
}

#[test]
fn a_relaxed_append_takes_nothing_of_the_durable_one_before_it() {
    for seed in 0..40 {
        let rig = Rig::new(1000, 256 << 10);
        let store = begin(&rig);
        apply(
            &store,
            Step::Append { id: OBJECT, data: vec![1; 300].into(), most: u64::MAX },
            Commit::Durable,
        );
        apply(&store, Step::Append { id: OBJECT, data: vec![2].into(), most: u64::MAX }, Commit::Relaxed);
        let found = after_a_cut(&rig, store, seed);
        assert!(found.starts_with(&[1; 300]), "{seed}");
    }
}

#[test]
fn a_relaxed_write_to_shared_blocks_takes_nothing_of_what_was_durable_around_it() {
    for seed in 0..40 {
        for len in [10, 100_000] {
            let rig = Rig::new(1000, 256 << 10);
            let store = begin(&rig);
            write(&store, 0, vec![1; 200_000], Commit::Durable);
            let kind = if seed % 2 == 0 { Duplicate::Snapshot } else { Duplicate::Clone };
            apply(&store, Step::Duplicate { source: P, id: P + 1, kind, made_ms: 1 }, Commit::Durable);
            write(&store, 5000, vec![2; len], Commit::Relaxed);
            let found = after_a_cut(&rig, store, seed);
            assert!(found[..5000].iter().all(|b| *b == 1), "{seed} {len}");
            assert!(found[5000 + len..].iter().all(|b| *b == 1), "{seed} {len}");
            assert_eq!(found.len(), 200_000);
        }
    }
}

#[test]
fn a_relaxed_write_over_durable_bytes_leaves_the_old_or_the_new() {
    for seed in 0..40 {
        for len in [4096, 131_072] {
            let rig = Rig::new(1000, 256 << 10);
            let store = begin(&rig);
            write(&store, 0, vec![1; 131_072], Commit::Durable);
            write(&store, 0, vec![2; 8192], Commit::Durable);
            write(&store, 0, vec![3; len], Commit::Relaxed);
            let found = after_a_cut(&rig, store, seed);
            assert!(found[..4096].iter().all(|b| [2, 3].contains(b)), "{seed} {len}");
            assert!(found[8192..].iter().all(|b| [1, 3].contains(b)), "{seed} {len}");
        }
    }
}

#[test]
fn a_relaxed_punch_takes_nothing_of_what_it_moves() {
    for seed in 0..40 {
        for length in [9000, 150_000] {
            let rig = Rig::new(1000, 256 << 10);
            let store = begin(&rig);
            let bytes: Vec<u8> = (0..length).map(|i| (i / 100) as u8 | 1).collect();
            write(&store, 0, bytes.clone(), Commit::Durable);
            apply(&store, Step::Punch { id: OBJECT, at: 100, len: 700 }, Commit::Relaxed);
            let found = after_a_cut(&rig, store, seed);
            let mut punched = bytes.clone();
            punched.drain(100..800);
            assert!(found == bytes || found == punched, "{seed} {length}");
        }
    }
}

#[test]
fn any_mixture_of_relaxed_and_durable_writes_keeps_every_durable_byte_through_a_power_cut() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let rig = Rig::new(2000, 512 << 10);
        let store = begin(&rig);
        // Each byte's value after a cut; `None` where a relaxed write left zeros possible.
        let mut model: Vec<Option<u8>> = Vec::new();
        let mut snapshots = 0;
        for _ in 0..1 + random.below(25) {
            let len = match random.below(4) {
                0 => 1 + random.below(30),
                1 => 1 + random.below(5000),
                2 => BLOCK * (1 + random.below(3)),
                _ => 1 + random.below(90_000),
            };
            let at = random.below(1 + model.len() as u64);
            let at = if random.below(2) == 0 { at / BLOCK * BLOCK } else { at };
            let byte = 1 + random.below(255) as u8;
            let durable = random.below(2) == 0;
            let commit = if durable { Commit::Durable } else { Commit::Relaxed };
            write(&store, at, vec![byte; len as usize], commit);
            let end = (at + len) as usize;
            let longer = model.len().max(end);
            model.resize(longer, None);
            model[at as usize..end].fill(durable.then_some(byte));
            match random.below(8) {
                0 => now(store.checkpoint()).unwrap(),
                1 if snapshots < 3 => {
                    snapshots += 1;
                    let id = P + snapshots;
                    let kind = Duplicate::Snapshot;
                    apply(&store, Step::Duplicate { source: P, id, kind, made_ms: 1 }, Commit::Relaxed);
                }
                _ => {}
            }
        }
        let found = after_a_cut(&rig, store, seed);
        for (at, wanted) in model.iter().enumerate() {
            if wanted.is_some() {
                assert_eq!(found.get(at).copied(), *wanted, "{seed} {at}");
            }
        }
    }
}
