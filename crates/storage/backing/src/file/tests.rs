use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use runtime::{Buf, pool};
use tempfile::TempDir;

use super::*;
use crate::health::{Kind, Place, State};
use crate::testing::{directory_on_disk, run};

/// A directory on a real file system, next to the build output.
fn on_disk() -> TempDir {
    tempfile::tempdir_in(directory_on_disk()).unwrap()
}

/// A directory on tmpfs, if the system has one.
fn on_tmpfs() -> Option<TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

fn options(size: u64, cache: CacheMode) -> FileOptions {
    FileOptions { size: Some(size), cache: Some(cache), ..FileOptions::default() }
}

/// Every engine in every cache mode that it supports.
fn each_way() -> impl Iterator<Item = (CacheMode, Engine)> {
    let modes = [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::Direct];
    let ways = modes.into_iter().flat_map(|mode| Engine::ALL.map(|(engine, _)| (mode, engine)));
    ways.filter(|(mode, engine)| engine.fits(*mode).is_ok())
}

/// A new store of 1 MiB for each cache mode and engine, on each file system of the machine.
fn each_store(test: impl Fn(FileStore, &Path)) {
    let directories = [Some(on_disk()), on_tmpfs()];
    for directory in directories.into_iter().flatten() {
        for (cache, engine) in each_way() {
            let path = directory.path().join(format!("{cache}-{engine}"));
            match FileStore::open(&path, &FileOptions { engine: Some(engine), ..options(1 << 20, cache) }) {
                Ok(store) => test(store, &path),
                Err(OpenError::NoDirect { path }) => eprintln!("SKIPPED: no O_DIRECT at {}", path.display()),
                Err(e) => panic!("{e}"),
            }
        }
    }
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| ((i / 512) as u8).wrapping_mul(31).wrapping_add(i as u8).wrapping_add(salt)).collect()
}

#[test]
fn what_was_written_is_read_back_in_every_mode() {
    each_store(|store, path| {
        run(async move {
            let block = store.block_size() as usize;
            let data = pattern(40 * block, 3);
            // With odd lengths and alignment, as a network delivers it.
            let whole: Buf = [vec![0; 5], data.clone()].concat().into();
            let chain: Chain =
                [whole.slice(5..105), whole.slice(105..9000), whole.slice(9000..)].into_iter().collect();
            store.write(3 * block as u64, chain, false).await.unwrap();
            assert_eq!(store.read(3 * block as u64, data.len()).await.unwrap().to_vec(), data);
            assert_eq!(store.read(0, 3 * block).await.unwrap().to_vec(), vec![0; 3 * block]);
            store.write(0, data[..block].to_vec().into(), true).await.unwrap();
            store.sync().await.unwrap();
            assert_eq!(store.read(0, block).await.unwrap().to_vec(), data[..block]);
        });
        assert_eq!(fs::metadata(path).unwrap().len(), 1 << 20);
    });
}

#[test]
fn transfers_longer_than_a_pool_buffer_arrive_whole() {
    let directory = on_disk();
    for (cache, engine) in each_way() {
        let path = directory.path().join(format!("{cache}-{engine}"));
        let store =
            FileStore::open(&path, &FileOptions { engine: Some(engine), ..options(8 << 20, cache) }).unwrap();
        run(async move {
            let data = pattern(3 * pool::MAX_ALLOC + 8192, 9);
            let whole: Buf = [vec![0; 3], data.clone()].concat().into();
            store.write(4096, whole.slice(3..).into(), false).await.unwrap();
            assert!(store.read(4096, data.len()).await.unwrap().to_vec() == data);
        });
    }
}

#[test]
fn a_discard_makes_holes_that_read_as_zeros() {
    each_store(|store, path| {
        let path = path.to_owned();
        run(async move {
            let data = pattern(1 << 20, 1);
            store.write(0, data.clone().into(), false).await.unwrap();
            store.sync().await.unwrap();
            let before = allocated(&path);
            assert!(store.thin(), "ext4, xfs, btrfs and tmpfs all make holes");
            store.discard(256 << 10, 512 << 10).await.unwrap();
            store.sync().await.unwrap();
            assert!(allocated(&path) <= before - (512 << 10) + 4096, "{} of {before}", allocated(&path));
            let bytes = store.read(0, 1 << 20).await.unwrap().to_vec();
            assert!(bytes[..256 << 10] == data[..256 << 10] && bytes[768 << 10..] == data[768 << 10..]);
            assert!(bytes[256 << 10..768 << 10].iter().all(|b| *b == 0));
            let extent = |at: u64, len| store.extent(at, len);
            let expect = |at: u64, len: u64, mapped| Extent { at: at << 10, len: len << 10, mapped };
            assert_eq!(extent(0, 1 << 20).await.unwrap(), expect(0, 256, true));
            assert_eq!(extent(256 << 10, 1 << 20).await.unwrap(), expect(256, 512, false));
            assert_eq!(extent(260 << 10, 8 << 10).await.unwrap(), expect(260, 8, false));
            assert_eq!(extent(768 << 10, u64::MAX - (1 << 40)).await.unwrap(), expect(768, 256, true));
            assert_eq!(extent(1 << 20, 512).await, Err(StoreError::OutOfRange));
        });
    });
}

#[test]
fn zeros_keep_their_space_unless_they_may_be_a_hole() {
    each_store(|store, path| {
        let path = path.to_owned();
        run(async move {
            store.write(0, pattern(1 << 20, 1).into(), false).await.unwrap();
            store.sync().await.unwrap();
            let before = allocated(&path);
            store.write_zeros(4096, 256 << 10, false).await.unwrap();
            store.sync().await.unwrap();
            assert_eq!(allocated(&path), before);
            assert!(store.read(4096, 256 << 10).await.unwrap().to_vec().iter().all(|b| *b == 0));
            assert!(store.read(0, 4096).await.unwrap().to_vec() == pattern(4096, 1));
            store.write_zeros(4096, 256 << 10, true).await.unwrap();
            store.sync().await.unwrap();
            assert!(allocated(&path) < before);
            assert!(store.read(4096, 256 << 10).await.unwrap().to_vec().iter().all(|b| *b == 0));
        });
    });
}

#[test]
fn a_thick_file_keeps_its_space() {
    let directory = on_disk();
    let path = directory.path().join("thick");
    let options = FileOptions { thin: Some(false), ..options(1 << 20, CacheMode::WriteBack) };
    let store = FileStore::open(&path, &options).unwrap();
    run(async move {
        store.write(0, pattern(1 << 20, 1).into(), false).await.unwrap();
        store.sync().await.unwrap();
        let before = allocated(&path);
        store.discard(0, 1 << 20).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(allocated(&path), before);
        assert_eq!(store.read(4096, 4096).await.unwrap().to_vec(), vec![0; 4096]);
        assert_eq!(store.extent(0, 1 << 20).await, Ok(Extent { at: 0, len: 1 << 20, mapped: true }));
    });
}

fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_file_is_served_once_at_a_time_but_read_by_many() {
    let directory = on_disk();
    let path = directory.path().join("disk");
    let first = FileStore::open(&path, &options(1 << 20, CacheMode::WriteBack)).unwrap();
    let read_only = FileOptions { read_only: true, ..FileOptions::default() };
    for options in [FileOptions::default(), read_only.clone()] {
        let error = FileStore::open(&path, &options).unwrap_err();
        assert!(matches!(error, OpenError::Locked { .. }), "{error}");
        assert!(error.to_string().contains("End the other one"), "{error}");
    }
    drop(first);
    let readers = [FileStore::open(&path, &read_only).unwrap(), FileStore::open(&path, &read_only).unwrap()];
    assert!(matches!(FileStore::open(&path, &FileOptions::default()), Err(OpenError::Locked { .. })));
    for reader in readers {
        assert!(!reader.writable());
        run(async move {
            assert_eq!(reader.write(0, vec![1; 512].into(), false).await, Err(StoreError::ReadOnly));
            assert_eq!(reader.discard(0, 512).await, Err(StoreError::ReadOnly));
            assert_eq!(reader.write_zeros(0, 512, true).await, Err(StoreError::ReadOnly));
            assert_eq!(reader.sync().await, Ok(()));
            assert_eq!(reader.read(0, 512).await.unwrap().to_vec(), vec![0; 512]);
        });
    }
    FileStore::open(&path, &FileOptions::default()).unwrap();
}

#[test]
fn what_cannot_be_served_is_refused_with_what_to_do() {
    let directory = on_disk();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("tiny"), "x").unwrap();
    fs::write(at("small"), vec![0; 4096]).unwrap();
    let plain = FileOptions::default();
    let refusals = [
        (at("missing"), plain.clone(), ",size=1G"),
        (at("missing"), FileOptions { read_only: true, ..options(512, CacheMode::WriteBack) }, ",size=1G"),
        (at("no/directory"), options(512, CacheMode::WriteBack), "cannot be created"),
        (at("empty"), plain.clone(), "less than one block of 512"),
        (at("tiny"), plain.clone(), "1 bytes"),
        (at("small"), options(8192, CacheMode::WriteBack), "truncate -s"),
        (directory.path().to_owned(), plain.clone(), "is a directory"),
        ("/dev/null".into(), plain.clone(), "character device"),
    ];
    for (path, options, hint) in refusals {
        let message = FileStore::open(&path, &options).unwrap_err().to_string();
        assert!(message.contains(hint) && message.contains(path.to_str().unwrap()), "{message}");
    }
    assert!(!at("missing").exists(), "what could not be opened was not made");
    assert_eq!(FileStore::open(&at("empty"), &options(1024, CacheMode::WriteBack)).unwrap().size(), 1024);
}

#[test]
fn a_file_that_cannot_be_made_whole_is_not_left_behind() {
    let directory = on_disk();
    let path = directory.path().join("huge");
    // Larger than the maximum file size of ext4 or XFS.
    match FileStore::open(&path, &options(i64::MAX as u64 - 4095, CacheMode::WriteBack)) {
        Err(OpenError::System { .. }) => assert!(!path.exists()),
        Err(e) => panic!("{e}"),
        Ok(_) => eprintln!("SKIPPED: this file system has room for everything"),
    }
}

#[test]
fn growth_is_seen_and_a_file_that_shrank_is_out_of_range() {
    each_store(|store, path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        run(async move {
            store.write(0, pattern(1 << 20, 1).into(), false).await.unwrap();
            file.set_len((2 << 20) + 100).unwrap();
            assert_eq!(store.size(), 1 << 20, "not looked at yet");
            assert_eq!(store.refresh(), 2 << 20);
            assert_eq!(store.size(), 2 << 20);
            store.write((2 << 20) - 4096, pattern(4096, 2).into(), true).await.unwrap();
            store.sync().await.unwrap();

            file.set_len((512 << 10) + 100).unwrap();
            assert_eq!(store.read(512 << 10, 4096).await.unwrap_err(), StoreError::OutOfRange);
            assert_eq!(store.size(), 512 << 10, "the failed read looked");
            assert_eq!(store.read((512 << 10) - 4096, 8192).await.unwrap_err(), StoreError::OutOfRange);
            assert_eq!(store.read(1 << 20, 4096).await.unwrap_err(), StoreError::OutOfRange);
            assert!(store.read(0, 512 << 10).await.unwrap().to_vec() == pattern(512 << 10, 1));
        });
    });
}

#[test]
fn nothing_is_seen_or_changed_behind_a_limit() {
    each_store(|store, path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        run(async move {
            store.limit(Some((512 << 10) + 100));
            assert_eq!((store.size(), store.refresh()), (512 << 10, 512 << 10));
            for at in [512 << 10, (512 << 10) - 4096] {
                let written = store.write(at, pattern(8192, 1).into(), false).await;
                assert_eq!(written, Err(StoreError::OutOfRange));
                assert_eq!(store.write_zeros(at, 8192, false).await, Err(StoreError::OutOfRange));
                assert_eq!(store.discard(at, 8192).await, Err(StoreError::OutOfRange));
            }
            store.write((512 << 10) - 4096, pattern(4096, 1).into(), false).await.unwrap();
            // A file that is longer meanwhile, and shorter.
            for len in [2 << 20, 512 << 10] {
                file.set_len(len).unwrap();
                assert_eq!(store.refresh(), 512 << 10);
            }
            assert_eq!(
                store.write(512 << 10, pattern(4096, 1).into(), true).await,
                Err(StoreError::OutOfRange)
            );
            assert_eq!(file.metadata().unwrap().len(), 512 << 10);
            file.set_len(1 << 20).unwrap();
            store.limit(None);
            assert_eq!(store.size(), 1 << 20);
            store.write(512 << 10, pattern(4096, 1).into(), false).await.unwrap();
        });
    });
}

/// The data of a read for sending, as a socket would take it.
async fn sent(store: &FileStore, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
    let chain = store.read_to_send(at, len).await?;
    let mut bytes = vec![0; chain.len()];
    let mut done = 0;
    for buf in &chain {
        buf.try_copy_to(&mut bytes[done..done + buf.len()]).unwrap();
        done += buf.len();
    }
    Ok(bytes)
}

#[test]
fn what_is_sent_is_what_was_written_last_however_often_it_was_sent_before() {
    each_store(|store, path| {
        let path = path.to_owned();
        run(async move {
            let block = store.block_size() as usize;
            for salt in 0..3 {
                store.write(0, pattern(1 << 20, salt).into(), false).await.unwrap();
                for _ in 0..2 {
                    assert!(sent(&store, 0, 1 << 20).await.unwrap() == pattern(1 << 20, salt));
                }
                store.write(5 * block as u64, pattern(3 * block, 77).into(), false).await.unwrap();
                assert!(sent(&store, 5 * block as u64, 3 * block).await.unwrap() == pattern(3 * block, 77));
                store.discard(64 << 10, 64 << 10).await.unwrap();
                assert!(sent(&store, 64 << 10, 64 << 10).await.unwrap() == vec![0; 64 << 10]);
                store.write_zeros(128 << 10, 4096, false).await.unwrap();
                assert!(sent(&store, 128 << 10, 4096).await.unwrap() == vec![0; 4096]);
            }
            // Another program writes to the file.
            if store.cache() != CacheMode::Direct {
                let other = OpenOptions::new().write(true).open(path).unwrap();
                other.write_all_at(&[9; 4096], 8192).unwrap();
                assert_eq!(sent(&store, 8192, 4096).await.unwrap(), [9; 4096]);
            }
        });
    });
}

/// They end with out of range, and the process is not killed.
#[test]
fn reads_for_sending_survive_a_file_that_shrinks() {
    each_store(|store, path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        run(async move {
            store.write(0, pattern(1 << 20, 1).into(), false).await.unwrap();
            for _ in 0..2 {
                assert!(sent(&store, 0, 1 << 20).await.unwrap() == pattern(1 << 20, 1));
            }
            file.set_len(512 << 10).unwrap();
            // The length of a file is checked once per millisecond while its pages are sent by
            // reference.
            runtime::sleep(std::time::Duration::from_millis(3)).await;
            assert_eq!(sent(&store, 512 << 10, 4096).await.unwrap_err(), StoreError::OutOfRange);
            assert_eq!(sent(&store, (512 << 10) - 4096, 8192).await.unwrap_err(), StoreError::OutOfRange);
            assert!(sent(&store, 0, 512 << 10).await.unwrap() == pattern(512 << 10, 1));
            // No write extends the file again.
            let behind = store.write(768 << 10, pattern(4096, 3).into(), false).await;
            assert_eq!(behind.unwrap_err(), StoreError::OutOfRange);
            file.set_len(1 << 20).unwrap();
            assert_eq!(store.refresh(), 1 << 20);
            store.write(768 << 10, pattern(4096, 3).into(), false).await.unwrap();
            assert!(sent(&store, 768 << 10, 4096).await.unwrap() == pattern(4096, 3));
            assert_eq!(sent(&store, 640 << 10, 4096).await.unwrap(), vec![0; 4096]);
        });
    });
}

#[test]
fn reads_for_sending_leave_holes_as_they_are() {
    each_store(|store, path| {
        run(async move {
            for _ in 0..3 {
                assert!(sent(&store, 0, 1 << 20).await.unwrap() == vec![0; 1 << 20]);
            }
        });
        assert_eq!(allocated(path), 0, "a hole was filled by looking at it");
    });
}

/// A store whose reads for sending are slices of a mapping, on a file of 4 MiB. The second half of
/// the file is a hole.
fn half_a_file(directory: &TempDir) -> Option<FileStore> {
    let path = directory.path().join("disk");
    fs::write(&path, pattern(2 << 20, 5)).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(4 << 20).unwrap();
    let options = FileOptions { engine: Some(Engine::Sendpage), ..options(4 << 20, CacheMode::WriteBack) };
    match FileStore::open(&path, &options) {
        Err(OpenError::NoMapping { .. }) => None,
        other => Some(other.unwrap()),
    }
}

#[test]
fn one_cached_read_makes_all_pages_around_it_known_except_holes() {
    for directory in [Some(on_disk()), on_tmpfs()].into_iter().flatten() {
        let Some(store) = half_a_file(&directory) else { continue };
        run(async move {
            let inner = &store.inner;
            let mapped = inner.mapped.as_ref().unwrap();
            let known = |at, len| mapped.slice(&inner.data, at, len).is_some();
            assert!(!known(0, 4096));
            assert!(sent(&store, 1 << 20, 4096).await.unwrap() == pattern(2 << 20, 5)[1 << 20..][..4096]);
            assert!(known(0, 2 << 20), "it was written a moment ago, and all of it is in the page cache");
            assert!(!known(2 << 20, 4096) && !known((2 << 20) - 4096, 8192));
            if inner.in_memory {
                for _ in 0..2 {
                    assert_eq!(sent(&store, 3 << 20, 4096).await.unwrap(), [0; 4096]);
                    assert!(!known(3 << 20, 4096), "what is a hole must not be touched");
                }
                store.write(3 << 20, pattern(4096, 6).into(), false).await.unwrap();
                assert!(known(3 << 20, 4096) && !known((3 << 20) + 4096, 4096));
            }
            mapped.forget(4096, 4096);
            assert!(known(0, 4096) && !known(4096, 4096) && known(8192, 4096));
        });
    }
}

/// All queries together take only a part of the time.
#[test]
fn a_window_is_queried_at_most_once_a_second() {
    let Some(directory) = on_tmpfs() else { return };
    let Some(store) = half_a_file(&directory) else { return };
    let mapped = store.inner.mapped.as_ref().unwrap();
    let found = Seen::AtOnce { written: false };
    let known = |at| mapped.slice(&store.inner.data, at, 4096).is_some();
    run(async {
        mapped.saw(0, 4096, found);
        assert!(known(0) && known(1 << 20));
        mapped.forget(0, 2 << 20);
        mapped.saw(4096, 4096, found);
        // Unless a second started in between.
        if !known(0) {
            assert!(known(4096), "what was read itself is known in any case");
        }
    });
}

#[test]
fn pages_that_had_to_be_fetched_say_nothing_of_those_around_them() {
    let directory = on_disk();
    let Some(store) = half_a_file(&directory) else { return };
    let mapped = store.inner.mapped.as_ref().unwrap();
    run(async {
        mapped.saw(8192, 4096, Seen::Waited { written: false });
        let known = |at| mapped.slice(&store.inner.data, at, 4096).is_some();
        assert!(known(8192) && !known(4096) && !known(12288));
    });
}

#[test]
fn syncs_that_come_together_share_flushes() {
    let directory = on_disk();
    let store =
        FileStore::open(&directory.path().join("disk"), &options(1 << 20, CacheMode::WriteBack)).unwrap();
    run(async move {
        store.sync().await.unwrap();
        assert!(matches!(store.sync(), Io::Ready(_)), "nothing was written since");
        store.write(0, vec![1; 512].into(), true).await.unwrap();
        assert!(matches!(store.sync(), Io::Ready(_)), "the write was durable by itself");
        store.write(0, vec![2; 512].into(), false).await.unwrap();
        assert!(matches!(store.sync(), Io::Running(_)));
        store.discard(0, 4096).await.unwrap();
        let mut syncs = [store.sync(), store.sync(), store.sync()];
        for sync in &mut syncs {
            sync.await.unwrap();
        }
        assert!(matches!(store.sync(), Io::Ready(Some(Ok(())))));
    });
}

#[test]
fn a_log_reads_the_same_whichever_way_each_of_its_writes_went() {
    let directory = on_disk();
    let path = directory.path().join("log");
    let options =
        FileOptions { log: true, engine: Some(Engine::Inline), ..options(1 << 20, CacheMode::WriteBack) };
    let store = FileStore::open(&path, &options).unwrap();
    run(async move {
        let mut expected = vec![0; 1 << 17];
        let mut at = 0;
        for n in 0..64 {
            // Some aligned for direct I/O, some not; lengths that share pages with their
            // neighbours.
            let (len, durable, aligned) = (512 * (1 + n % 5), n % 3 != 0, n % 7 != 0);
            let bytes = pattern(len, n as u8);
            expected[at..at + len].copy_from_slice(&bytes);
            let data: Chain = if aligned {
                let mut buf = pool::alloc(len).unwrap();
                buf.copy_from_slice(&bytes);
                buf.freeze().into()
            } else {
                Chain::from(Buf::from([vec![0; 3], bytes].concat()).slice(3..))
            };
            let clean = store.inner.group.settled().is_some();
            let past = store.inner.past_cache.as_ref().is_some_and(|past| past.takes(at as u64, &data));
            assert!(!past || aligned);
            store.write(at as u64, data, durable).await.unwrap();
            if durable && past && clean {
                assert!(store.inner.group.settled().is_some(), "there is nothing to flush after it");
            }
            let mut seen = vec![0; at + len];
            store.read(0, at + len).await.unwrap().copy_to_slice(&mut seen);
            assert!(seen == expected[..at + len], "after write {n}");
            at += len;
            if n % 11 == 10 {
                store.sync().await.unwrap();
            }
        }
        assert!(fs::read(&path).unwrap()[..at] == expected[..at], "as other programs see it");
    });
}

#[test]
fn an_idle_core_itself_waits_for_durable_writes_and_flushes_of_a_log() {
    let directory = on_disk();
    let path = directory.path().join("log");
    let options =
        FileOptions { log: true, engine: Some(Engine::Inline), ..options(1 << 20, CacheMode::WriteBack) };
    let store = FileStore::open(&path, &options).unwrap();
    run(async move {
        let frame = |byte| {
            let mut buf = pool::alloc(4096).unwrap();
            buf.fill(byte);
            Chain::from(buf.freeze())
        };
        store.sync().await.unwrap();
        // Earlier calls may have been slow here.
        store.inner.alone.forget();
        let takes = store.inner.past_cache.as_ref().is_some_and(|past| past.takes(0, &frame(0)));
        let at_once = store.write(0, frame(1), true);
        assert_eq!(matches!(at_once, Io::Ready(Some(Ok(())))), takes);
        at_once.await.unwrap();
        store.inner.alone.forget();
        let other = runtime::spawn(async {});
        let waits = store.write(4096, frame(2), true);
        assert!(matches!(waits, Io::Running(_)), "somebody else needs the core");
        waits.await.unwrap();
        other.await.unwrap();
        assert_eq!(fs::read(&path).unwrap()[..8192], [[1; 4096], [2; 4096]].concat());
        assert!(store.inner.group.settled().is_some());
    });
}

#[test]
fn data_lies_where_other_programs_expect_it() {
    let directory = on_disk();
    let path = directory.path().join("disk");
    let store = FileStore::open(&path, &options(1 << 20, CacheMode::Direct)).unwrap();
    run(async move {
        store.write(8192, pattern(4096, 5).into(), true).await.unwrap();
        let mut bytes = vec![0; 4096];
        fs::File::open(&path).unwrap().read_exact_at(&mut bytes, 8192).unwrap();
        assert_eq!(bytes, pattern(4096, 5));
    });
}

#[test]
fn an_engine_rejects_unsupported_cache_modes_and_picks_a_supported_one() {
    let directory = on_disk();
    let path = directory.path().join("disk");
    let open = |cache, engine| {
        FileStore::open(&path, &FileOptions { size: Some(1 << 20), cache, engine, ..FileOptions::default() })
    };
    for (cache, engine, hint) in [
        (CacheMode::Direct, Engine::Inline, "engine=fixed"),
        (CacheMode::Direct, Engine::Mmap, "engine=fixed"),
        (CacheMode::WriteBack, Engine::Sync, "cache=writethrough"),
        (CacheMode::Direct, Engine::Sync, "cache=writethrough"),
    ] {
        let message = open(Some(cache), Some(engine)).unwrap_err().to_string();
        assert!(message.contains(hint), "{message}");
        assert!(!path.exists(), "nothing was made");
    }
    for (cache, engine, works_as) in [
        (None, Some(Engine::Sync), (CacheMode::WriteThrough, Engine::Sync)),
        (None, Some(Engine::Threads), (CacheMode::WriteBack, Engine::Threads)),
        (None, None, (CacheMode::WriteBack, Engine::default_for(CacheMode::WriteBack))),
        (Some(CacheMode::Direct), None, (CacheMode::Direct, Engine::default_for(CacheMode::Direct))),
    ] {
        let store = open(cache, engine).unwrap();
        assert_eq!((store.cache(), store.engine()), works_as);
    }
}

#[test]
fn many_operations_at_once_on_several_cores_all_arrive() {
    each_store(|store, _| {
        const BLOCK: usize = 4096;
        let cores = runtime::Cores::start(2, runtime::Config::default()).unwrap();
        let store = std::sync::Arc::new(store);
        let (sender, results) = std::sync::mpsc::channel();
        for (number, core) in cores.handles().iter().enumerate() {
            let (store, sender) = (store.clone(), sender.clone());
            core.run(move || async move {
                let work = move |block: usize| {
                    let store = store.clone();
                    async move {
                        let (at, data) = ((block * BLOCK) as u64, pattern(BLOCK, block as u8));
                        for round in 0..4 {
                            store.write(at, data.clone().into(), round == 3).await.unwrap();
                            assert!(store.read(at, BLOCK).await.unwrap().to_vec() == data);
                        }
                    }
                };
                let running: Vec<_> = (0..64).map(|i| runtime::spawn(work(2 * i + number))).collect();
                for work in running {
                    work.await.unwrap();
                }
                sender.send(()).unwrap();
            })
            .unwrap();
        }
        for _ in 0..2 {
            results.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        }
        cores.stop();
        cores.join().unwrap();
    });
}

#[test]
fn the_system_copies_between_files_of_its_cache_and_says_where_it_cannot() {
    each_store(|store, path| {
        run(async move {
            let data = pattern(256 << 10, 5);
            store.write(4096, data.clone().into(), false).await.unwrap();
            let Some(file) = store.file() else {
                assert_eq!(store.cache(), CacheMode::Direct, "{}", path.display());
                return;
            };
            // Seen before, so that the mapping must forget it.
            assert!(store.read_to_send(512 << 10, 4096).await.unwrap().to_vec() == [0; 4096]);
            match store.copy_from(file, 4096, 512 << 10, 256 << 10).await {
                Ok(()) => {}
                Err(StoreError::Unsupported) => return eprintln!("SKIPPED: no copies at {}", path.display()),
                Err(error) => panic!("{}: {error}", path.display()),
            }
            assert!(store.read(512 << 10, 256 << 10).await.unwrap().to_vec() == data);
            assert!(store.read_to_send(512 << 10, 4096).await.unwrap().to_vec() == data[..4096]);
            // Overlapping ranges are rejected without any effect.
            let file = store.file().unwrap();
            assert_eq!(store.copy_from(file, 4096, 8192, 64 << 10).await, Err(StoreError::Unsupported));
            let file = store.file().unwrap();
            assert_eq!(store.copy_from(file, 1 << 20, 0, 4096).await, Err(StoreError::OutOfRange));
        });
    });
}

/// The problems in a store's health: kind, latest errno and latest block.
fn problems(store: &FileStore) -> Vec<(Kind, i32, Option<u64>)> {
    let found = store.health().unwrap().look().problems;
    found.into_iter().map(|problem| (problem.kind, problem.fault.errno, problem.fault.lba)).collect()
}

#[test]
fn every_engine_reports_a_write_that_the_system_refuses() {
    for (cache, engine) in each_way().filter(|(cache, _)| *cache != CacheMode::Direct) {
        let file = rustix::fs::memfd_create("medium", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        let file = fs::File::from(file);
        file.set_len(1 << 20).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let options = FileOptions { cache: Some(cache), engine: Some(engine), ..FileOptions::default() };
        let store = FileStore::open(Path::new(&path), &options).unwrap();
        if rustix::fs::fcntl_add_seals(
            &file,
            rustix::fs::SealFlags::FUTURE_WRITE | rustix::fs::SealFlags::SHRINK,
        )
        .is_err()
        {
            eprintln!("SKIPPED: this system cannot seal files");
            return;
        }
        run(async move {
            assert_eq!(store.health().unwrap().look().state, State::Ok);
            for durable in [false, true] {
                let written = store.write(8192, pattern(4096, 1).into(), durable).await;
                assert_eq!(written, Err(StoreError::ReadOnly), "{cache} {engine}");
            }
            assert_eq!(problems(&store), [(Kind::Write, libc::EPERM, Some(16))], "{cache} {engine}");
            assert_eq!(store.health().unwrap().look().problems[0].count, 2);
            assert_eq!(store.discard(0, 4096).await, Err(StoreError::ReadOnly));
        });
    }
}

#[test]
fn a_file_that_shrank_is_reported_until_it_has_its_size_again() {
    each_store(|store, path| {
        let path = path.to_owned();
        run(async move {
            store.write(0, pattern(1 << 20, 1).into(), false).await.unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_len(512 << 10).unwrap();
            assert_eq!(store.read(768 << 10, 4096).await.err(), Some(StoreError::OutOfRange));
            let lba = (768 << 10) / u64::from(store.block_size());
            assert_eq!(problems(&store), [(Kind::Shrunk, 0, Some(lba))]);
            OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
            store.refresh();
            assert_eq!(problems(&store), []);
        });
    });
}

#[test]
fn after_a_failed_flush_every_mode_refuses_flushes_until_acknowledged() {
    each_store(|store, path| {
        let mark = path.with_extension("flush-failed");
        let marks = vec![Place { file: mark.clone(), make_folder: false }];
        let path = path.to_owned();
        run(async move {
            store.health().unwrap().keep_at(marks.clone());
            store.write(0, pattern(4096, 1).into(), false).await.unwrap();
            let failed = store.inner.flush_failed(std::io::Error::from_raw_os_error(libc::EIO)).await;
            assert_eq!(failed, StoreError::Io(libc::EIO));
            assert!(mark.exists(), "before anybody is answered");
            let (cache, engine) = (store.cache(), store.engine());
            for _ in 0..2 {
                assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)));
            }
            assert_eq!(problems(&store), [(Kind::Flush, libc::EIO, None)]);
            drop(store);

            let options = FileOptions { cache: Some(cache), engine: Some(engine), ..FileOptions::default() };
            let store = FileStore::open(&path, &options).unwrap();
            store.health().unwrap().keep_at(marks.clone());
            assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)), "{cache} {engine}");
            store.health().unwrap().acknowledge().unwrap();
            assert_eq!(store.sync().await, Ok(()));
            assert!(!mark.exists());
        });
    });
}

#[test]
fn a_durable_write_that_fails_by_itself_counts_as_a_failed_flush() {
    let directory = on_disk();
    let store =
        FileStore::open(&directory.path().join("a"), &options(1 << 20, CacheMode::WriteBack)).unwrap();
    let error = |errno| std::io::Error::from_raw_os_error(errno);
    store.inner.durable_write_fault(&error(libc::ENOSPC), 0);
    run(async move {
        assert_eq!(store.sync().await, Ok(()), "nothing of others is lost for want of room");
        store.inner.durable_write_fault(&error(libc::EIO), 0);
        assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)));
    });
}
