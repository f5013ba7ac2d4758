//! One store, used by several cores at once, each with its own ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use backing::ledger::{read_stamp, stamp};
use backing::model::Random;
use backing::spec::StoreSpec;
use backing::{BlockStore, MemoryStore};

mod support;

const CORES: u64 = 4;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
const TASKS: u64 = 8;
const ROUNDS: u64 = 60;

/// Each task writes its own blocks, syncs, and reads them back, on every core at once.
fn hammer(store: &Arc<dyn BlockStore>) {
    let finished = Arc::new(AtomicUsize::new(0));
    for core in 0..CORES {
        let (store, finished) = (store.clone(), finished.clone());
        std::thread::spawn(move || {
            let mut tasks = Vec::new();
            runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async {
                for task in 0..TASKS {
                    let store = store.clone();
                    tasks.push(runtime::spawn(async move { one_task(store, core * TASKS + task).await }));
                }
                for task in tasks {
                    task.await.expect("the task ended well");
                }
            });
            finished.fetch_add(1, Ordering::SeqCst);
        });
    }
    // A core that waits forever for another one's flush must not hang the test.
    let deadline = Instant::now() + Duration::from_secs(300);
    while finished.load(Ordering::SeqCst) < CORES as usize {
        assert!(Instant::now() < deadline, "a core hangs, or one of its tasks failed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn one_task(store: Arc<dyn BlockStore>, number: u64) {
    let mut random = Random::new(number);
    let tasks = CORES * TASKS;
    for round in 1..=ROUNDS {
        let lba = random.below(BLOCKS / tasks) * tasks + number;
        let at = lba * BLOCK as u64;
        let mut bytes = vec![0; BLOCK];
        stamp(lba, round, &mut bytes);
        match random.below(8) {
            0 => store.write(at, bytes.into(), true).await.unwrap(),
            1 => {
                store.discard(at, BLOCK as u64).await.unwrap();
                store.write(at, bytes.into(), false).await.unwrap();
            }
            _ => store.write(at, bytes.into(), false).await.unwrap(),
        }
        if random.below(4) == 0 {
            store.sync().await.unwrap();
        }
        let read = store.read(at, BLOCK).await.unwrap().to_vec();
        assert_eq!(read_stamp(lba, &read), Ok(round));
        assert!(store.extent(at, BLOCK as u64).await.unwrap().mapped);
    }
}

#[test]
fn cores_share_a_file_and_its_flushes() {
    let directory = tempfile::tempdir_in(support::directory_on_disk()).unwrap();
    for cache in ["writeback", "writethrough", "direct"] {
        let path = directory.path().join(cache);
        let mut spec = StoreSpec::parse(path.to_str().unwrap()).unwrap();
        for (key, value) in [("size", "1M"), ("cache", cache), ("bs", "4096")] {
            spec.set(key, Some(value)).unwrap();
        }
        match spec.open() {
            Ok(opened) => hammer(&opened.store),
            Err(e) => eprintln!("SKIPPED: {e}"),
        }
    }
}

#[test]
fn cores_share_memory_without_a_lock() {
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new(BLOCKS * BLOCK as u64, true).unwrap());
    hammer(&store);
}
