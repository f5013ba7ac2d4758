//! A store on files and one in memory, with the thread that writes checkpoints, as they are served.

use std::cell::Cell;
use std::rc::Rc;

use backing::health::{Kind, State};

use crate::store::embedded::layers::MANY_PASSED;
use crate::store::embedded::{EmbeddedStore, Options};
use crate::store::{BLOCK, Change, Commit, FIRST_ID, Id, List, ObjectStore, Scope, Step};

const P: u64 = FIRST_ID;

fn object(partition: u64, n: u64) -> Id {
    Id::new(partition, FIRST_ID + n)
}

/// Runs a test on stores of `blocks` blocks: on files, and in memory.
fn with_store<F: Future<Output = ()>>(blocks: u64, test: impl Fn(Rc<EmbeddedStore>) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        capacity: Some(blocks * BLOCK),
        create: true,
        journal_bytes: 8 << 20,
        ..Options::default()
    };
    runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async {
        test(Rc::new(EmbeddedStore::open(dir.path(), &options).unwrap())).await;
        test(Rc::new(EmbeddedStore::in_memory(blocks * BLOCK).unwrap())).await;
    });
}

async fn apply(store: &EmbeddedStore, change: impl Into<Change>) {
    store.apply(change.into(), Commit::Relaxed).await.unwrap();
}

#[test]
fn the_space_of_a_partition_that_was_removed_is_there_for_whoever_comes_next() {
    with_store(1024, |store| async move {
        for partition in [P, P + 1] {
            apply(&store, Step::CreatePartition(partition)).await;
            apply(&store, Step::CreateUser(object(partition, 0))).await;
        }
        // The extents, which hold the space, are emptied last: they are many, and have keys of
        // their own.
        for n in 0..40 {
            let data = vec![1; 20 * BLOCK as usize].into();
            apply(&store, Step::Write { id: object(P, 0), at: n * 21 * BLOCK, data }).await;
        }
        for page in 0..60 {
            let mut change = Change::new();
            for number in 0..1000 {
                change.set_attribute(object(P, 0), page, number, &[1; 600]);
            }
            apply(&store, change).await;
        }
        apply(&store, Step::RemovePartition { id: P, contents: true }).await;
        let data = vec![2; 700 * BLOCK as usize].into();
        apply(&store, Step::Write { id: object(P + 1, 0), at: 0, data }).await;
    });
}

#[test]
fn deletions_that_lists_meet_again_and_again_bring_a_checkpoint_about() {
    const OBJECTS: u64 = 2000;
    with_store(1024, |store| async move {
        apply(&store, Step::CreatePartition(P)).await;
        let all = |step: fn(Id) -> Step, upto| {
            let mut change = Change::new();
            for n in 0..upto {
                change.push(step(object(P, n)));
            }
            change
        };
        apply(&store, all(Step::CreateUser, OBJECTS)).await;
        store.checkpoint().await.unwrap();
        apply(&store, all(Step::RemoveUser, OBJECTS - 1)).await;
        let list = || {
            let mut ids = Vec::new();
            assert!(!store.list(List::Users(P), 0, 10, &mut ids).unwrap());
            assert_eq!(ids, [object(P, OBJECTS - 1).object]);
        };
        let checkpoints = || store.inner.log().checkpoints;
        let before = checkpoints();
        for _ in 0..MANY_PASSED / (OBJECTS - 1) {
            list();
        }
        assert_eq!(checkpoints(), before, "too few to be worth it");
        list();
        // The checkpoint comes although no change is made, and no task waits for it.
        for _ in 0..1000 {
            if checkpoints() > before {
                break;
            }
            runtime::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(checkpoints() > before);
        for _ in 0..2 * MANY_PASSED / OBJECTS {
            list();
        }
        assert!(!store.inner.layers.is_untidy(), "what was deleted is still met");
    });
}

#[test]
fn a_check_leaves_its_core_to_others() {
    with_store(1024, |store| async move {
        apply(&store, Step::CreatePartition(P)).await;
        for some in 0..10 {
            let mut change = Change::new();
            for n in 0..1000 {
                change.push(Step::CreateUser(object(P, some * 1000 + n)));
            }
            apply(&store, change).await;
        }
        let (turns, over) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(false)));
        let other = runtime::spawn({
            let (turns, over) = (turns.clone(), over.clone());
            async move {
                while !over.get() {
                    turns.set(turns.get() + 1);
                    runtime::yield_now().await;
                }
            }
        });
        // A core that was not running meanwhile finds a check at its end: then the next one shows
        // it.
        for _ in 0..50 {
            let report = store.check(0, true).await.unwrap();
            assert_eq!((report.objects, report.wrong), (10_000, 0));
            if turns.get() > 20 {
                break;
            }
        }
        over.set(true);
        other.await.unwrap();
        assert!(turns.get() > 20, "{} turns while 10,000 objects were checked 50 times", turns.get());
    });
}

#[test]
fn a_file_of_a_store_that_was_moved_is_told_and_one_removed_ends_durability() {
    for file in ["arena", "journal", "metadata.redb"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, away) = (dir.path().join(file), dir.path().join("away"));
        let options = Options {
            capacity: Some(1024 * BLOCK),
            create: true,
            journal_bytes: 8 << 20,
            ..Options::default()
        };
        runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async {
            let store = EmbeddedStore::open(dir.path(), &options).unwrap();
            let look = || {
                store.inspect();
                store.health().unwrap().look()
            };
            assert_eq!(look(), Default::default(), "{file}");
            std::fs::rename(&path, &away).unwrap();
            let moved = look();
            assert_eq!(moved.problems[0].kind, Kind::Replaced, "{file}");
            assert!(!moved.refuses_flushes, "{file}");
            store.apply(Step::CreatePartition(P).into(), Commit::Durable).await.unwrap();
            std::fs::write(&path, b"another").unwrap();
            assert_eq!(look().problems[0].kind, Kind::Replaced, "{file}");
            std::fs::rename(&away, &path).unwrap();
            assert_eq!(look(), Default::default(), "{file}");

            std::fs::remove_file(&path).unwrap();
            // Nobody has looked yet.
            let create = Step::CreateUser(object(P, 0)).into();
            store.apply(create, Commit::Durable).await.unwrap_err();
            let removed = look();
            assert_eq!(removed.problems[0].kind, Kind::Unusable, "{file}");
            assert!(removed.refuses_flushes, "{file}");
            store.sync(Scope::All).await.unwrap_err();
            store.health().unwrap().acknowledge().unwrap();
            store.sync(Scope::All).await.unwrap_err();
            assert_eq!(look().state, State::Failed, "{file}");
        });
    }
}
