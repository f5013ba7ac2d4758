//! A verifying writer on a real file, killed at random moments. Afterwards every acknowledged write
//! is present, durable or not (the page cache outlives the process), its lock is free, and no block
//! is garbage.
//!
//! The writer is this test binary itself, started again with an environment variable. It reports
//! each write on its standard output, before it starts and after it is acknowledged. The parent
//! keeps the ledger.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use backing::engine::Engine;
use backing::ledger::{Ledger, stamp};
use backing::model::Random;
use backing::spec::{CacheMode, StoreSpec};
use backing::{BlockStore, StoreError};

mod support;
use support::run;

const BLOCK: usize = 4096;
const BLOCKS: usize = 256;
const WRITER: &str = "STAG_TEST_KILLED_WRITER";

/// Not a test of its own: the process to be killed.
#[test]
fn writer() {
    let Ok(description) = std::env::var(WRITER) else { return };
    let mut parts = description.splitn(4, ' ');
    let mut next = || parts.next().expect("an argument").to_owned();
    let (seed, first, cache, path) = (next(), next(), next(), next());
    let mut random = Random::new(seed.parse().unwrap());
    let mut generation: u64 = first.parse().unwrap();
    run(async move {
        let store = open(Path::new(&path), &cache);
        let mut out = std::io::stdout();
        let mut say = |line: String| out.write_all(line.as_bytes()).and_then(|()| out.flush()).unwrap();
        loop {
            if random.below(8) == 0 {
                store.sync().await.unwrap();
                continue;
            }
            let count = 1 + random.below(8) as usize;
            let lba = random.below((BLOCKS - count + 1) as u64);
            let durable = cache.starts_with("writethrough") || random.below(3) == 0;
            generation += 1;
            let mut bytes = vec![0; count * BLOCK];
            for (i, block) in bytes.chunks_mut(BLOCK).enumerate() {
                stamp(lba + i as u64, generation, block);
            }
            say(format!("write {lba} {count} {generation}\n"));
            store.write(lba * BLOCK as u64, bytes.into(), durable).await.unwrap();
            say("written\n".to_owned());
        }
    });
}

/// `cache` may include an engine: `writeback:mmap`.
fn open(path: &Path, cache: &str) -> std::sync::Arc<dyn BlockStore> {
    let (cache, engine) =
        cache.split_once(':').map_or((cache, None), |(cache, engine)| (cache, Some(engine)));
    let mut spec = StoreSpec::parse(path.to_str().unwrap()).unwrap();
    spec.set("size", Some(&(BLOCK * BLOCKS).to_string())).unwrap();
    spec.set("cache", Some(cache)).unwrap();
    spec.set("bs", Some("4096")).unwrap();
    if engine.is_some() {
        spec.set("engine", engine).unwrap();
    }
    spec.open().unwrap_or_else(|e| panic!("{e}")).store
}

fn start(seed: u64, first: u64, cache: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture", "--test-threads=1", "-q"])
        .env(WRITER, format!("{seed} {first} {cache} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads the writer's reports until it is killed.
fn follow(mut child: Child, ledger: &mut Ledger, life: Duration) -> usize {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The time to kill counts from the first write: the program's start time is irrelevant.
    let (mut started, mut killed) = (None, false);
    let (mut write, mut acknowledged) = (None, 0);
    for line in lines {
        // The last line may be truncated.
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["write", lba, count, generation] => {
                let (Ok(lba), Ok(count), Ok(stated)) =
                    (lba.parse(), count.parse(), generation.parse::<u64>())
                else {
                    break;
                };
                let generation = ledger.issue(lba, count);
                assert_eq!(generation, stated);
                write = Some((lba, count, generation));
            }
            ["written"] => {
                let (lba, count, generation) = write.take().expect("a write");
                ledger.acknowledge(lba, count, generation, true);
                acknowledged += 1;
            }
            _ => {}
        }
        if !killed && words[0] == "write" && started.get_or_insert_with(Instant::now).elapsed() > life {
            child.kill().unwrap();
            killed = true;
        }
    }
    assert!(killed, "the writer ended by itself");
    child.wait().unwrap();
    acknowledged
}

fn killed_again_and_again(cache: &str) {
    let directory = tempfile::tempdir_in(support::directory_on_disk()).unwrap();
    let path = directory.path().join("disk");
    let (mut ledger, mut acknowledged) = (Ledger::new(BLOCKS), 0);
    let mut random = Random::new(std::process::id().into());
    let mut generation = 0;
    for life in 0..60 {
        // A slow machine needs more runs to write as much.
        if life >= 6 && acknowledged > 50 {
            break;
        }
        let child = start(random.bits(), generation, cache, &path);
        acknowledged += follow(child, &mut ledger, Duration::from_millis(20 + random.below(150)));
        generation = ledger.newest();
        let path = path.clone();
        let mode = cache.to_owned();
        let blocks = run(async move {
            let store = open(&path, &mode);
            let mut blocks = Vec::new();
            for lba in 0..BLOCKS as u64 {
                blocks.push(store.read(lba * BLOCK as u64, BLOCK).await.unwrap().to_vec());
            }
            assert_eq!(store.read((BLOCKS * BLOCK) as u64, BLOCK).await.unwrap_err(), StoreError::OutOfRange);
            blocks
        });
        for (lba, bytes) in (0..).zip(blocks) {
            let found = ledger.check(lba, &bytes, false);
            found.unwrap_or_else(|violation| panic!("life {life} in {cache}: {violation}"));
        }
    }
    assert!(acknowledged > 50, "only {acknowledged} writes: too few to prove anything");
    assert!(fs::metadata(&path).unwrap().len() == (BLOCK * BLOCKS) as u64);
}

#[test]
fn a_killed_writer_in_write_back_mode_leaves_what_was_acknowledged() {
    killed_again_and_again("writeback");
}

#[test]
fn a_killed_writer_in_write_through_mode_leaves_what_was_acknowledged() {
    killed_again_and_again("writethrough");
}

#[test]
fn a_killed_writer_in_direct_mode_leaves_what_was_acknowledged() {
    killed_again_and_again("direct");
}

#[test]
fn a_killed_writer_leaves_what_was_acknowledged_whatever_its_engine() {
    for (engine, _) in Engine::ALL {
        let cache = if engine.fits(CacheMode::WriteBack).is_ok() { "writeback" } else { "writethrough" };
        killed_again_and_again(&format!("{cache}:{engine}"));
    }
}
