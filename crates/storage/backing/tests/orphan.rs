//! A file that is removed, replaced or moved away under its store. Its data is lost when it is
//! closed, so no write may be reported as durable.

use std::fs;
use std::path::Path;

use backing::engine::Engine;
use backing::health::Kind;
use backing::{BlockStore, FileOptions, FileStore, StoreError};
use tempfile::TempDir;

mod support;
use support::run;

fn directory() -> TempDir {
    tempfile::tempdir_in(support::directory_on_disk()).unwrap()
}

fn open(path: &Path, engine: Engine) -> FileStore {
    let options = FileOptions { size: Some(1 << 20), engine: Some(engine), ..FileOptions::default() };
    FileStore::open(path, &options).unwrap()
}

fn replaced(store: &FileStore) -> bool {
    store
        .health()
        .unwrap()
        .look()
        .problems
        .iter()
        .any(|problem| matches!(problem.kind, Kind::Replaced | Kind::Unusable))
}

/// The results of a plain write, a durable one, a flush, and a flush with nothing dirty.
fn tried(store: FileStore) -> [Result<(), StoreError>; 4] {
    run(async move {
        let write = |durable| store.write(0, vec![7; 4096].into(), durable);
        [write(false).await, write(true).await, store.sync().await, store.sync().await]
    })
}

const LOST: Result<(), StoreError> = Err(StoreError::Io(libc::EIO));

#[test]
fn nothing_is_durable_in_a_file_that_was_removed_or_replaced() {
    let directory = directory();
    for (engine, _) in Engine::ALL {
        for how in ["removed", "replaced"] {
            let path = directory.path().join(format!("{engine}-{how}"));
            let store = open(&path, engine);
            if how == "removed" {
                fs::remove_file(&path).unwrap();
            } else {
                let other = directory.path().join("other");
                fs::write(&other, vec![0; 1 << 20]).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            assert!(!replaced(&store));
            assert_eq!(tried(store), [Ok(()), LOST, LOST, LOST], "{engine} {how}");
        }
    }
}

#[test]
fn a_flush_with_nothing_to_do_is_refused_too() {
    let directory = directory();
    let path = directory.path().join("disk");
    let store = open(&path, Engine::Uring);
    run(async move {
        store.sync().await.unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(store.sync().await, LOST);
        assert!(replaced(&store));
    });
}

#[test]
fn a_file_that_was_moved_away_is_whole_and_told_until_it_is_back() {
    let directory = directory();
    let (path, away) = (directory.path().join("disk"), directory.path().join("away"));
    let store = open(&path, Engine::Uring);
    store.inspect();
    assert!(!replaced(&store));
    fs::rename(&path, &away).unwrap();
    store.inspect();
    assert!(replaced(&store));
    fs::rename(&away, &path).unwrap();
    store.inspect();
    assert!(!replaced(&store));
    fs::remove_file(&path).unwrap();
    store.inspect();
    assert!(store.health().unwrap().look().refuses_flushes);
    assert_eq!(tried(store), [Ok(()), LOST, LOST, LOST]);
}
