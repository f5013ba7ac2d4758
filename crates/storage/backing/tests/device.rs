//! Block devices, as loop devices over files: alignment, discards, growth, exclusive use, and
//! failing write-back. The tests need root and `losetup`; otherwise they print that they were
//! skipped.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use backing::spec::{CacheMode, Opened, StoreSpec};
use backing::{BlockStore, Extent, OpenError, StoreError};
use tempfile::TempDir;

mod support;
use support::run;

const MIB: u64 = 1 << 20;

/// A loop device; removed with its file.
struct Loop {
    device: PathBuf,
    file: PathBuf,
    _directory: Option<TempDir>,
}

impl Loop {
    fn new(sector: u32) -> Option<Self> {
        let directory = tempfile::tempdir_in(support::directory_on_disk()).unwrap();
        let mut device = Self::over(directory.path().join("backing"), sector)?;
        device._directory = Some(directory);
        Some(device)
    }

    fn over(file: PathBuf, sector: u32) -> Option<Self> {
        std::fs::File::create(&file).unwrap().set_len(16 * MIB).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector.to_string()])
            .arg(&file)
            .output()
            .ok()?;
        if !output.status.success() {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Some(Self { device, file, _directory: None })
    }

    fn spec(&self, options: &str) -> StoreSpec {
        let mut spec = StoreSpec::parse(self.device.to_str().unwrap()).unwrap();
        for option in options.split(',').filter(|o| !o.is_empty()) {
            let (key, value) =
                option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
            assert!(spec.set(key, value).unwrap());
        }
        spec
    }

    fn open(&self, options: &str) -> Opened {
        self.spec(options).open().unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ i as u8).collect()
}

#[test]
fn a_block_device_is_read_and_written_directly() {
    let Some(device) = Loop::new(512) else { return };
    let opened = device.open("");
    assert_eq!((opened.cache, opened.block_size, opened.store.size()), (CacheMode::Direct, 512, 16 * MIB));
    let file = device.file.clone();
    run(async move {
        let store = opened.store;
        let data = pattern(3 << 20);
        store.write(MIB, data.clone().into(), false).await.unwrap();
        assert!(store.read(MIB, data.len()).await.unwrap().to_vec() == data);
        assert_eq!(store.read(MIB + 512, 512).await.unwrap().to_vec(), data[512..1024]);
        store.sync().await.unwrap();
        assert!(std::fs::read(&file).unwrap()[MIB as usize..4 * MIB as usize] == data);
        assert_eq!(store.extent(0, 1 << 30).await.unwrap(), Extent { at: 0, len: 16 * MIB, mapped: true });
        assert_eq!(store.read(16 * MIB, 512).await.unwrap_err(), StoreError::OutOfRange);
    });
}

#[test]
fn a_discarded_range_of_a_device_gives_its_space_back_and_is_zeros() {
    let Some(device) = Loop::new(512) else { return };
    for cache in ["direct", "writeback", "writethrough"] {
        let store = device.open(&format!("cache={cache}")).store;
        assert!(store.thin(), "loop devices over files discard");
        let file = device.file.clone();
        run(async move {
            store.write(0, pattern(4 << 20).into(), false).await.unwrap();
            store.sync().await.unwrap();
            let allocated = || std::fs::metadata(&file).unwrap().blocks() * 512;
            let before = allocated();
            store.discard(MIB, 2 * MIB).await.unwrap();
            store.sync().await.unwrap();
            assert!(allocated() <= before - 2 * MIB + 65536, "{cache}: {} of {before}", allocated());
            assert!(store.read(MIB, 2 << 20).await.unwrap().to_vec().iter().all(|b| *b == 0), "{cache}");
            assert!(store.read(0, 1 << 20).await.unwrap().to_vec() == pattern(1 << 20), "{cache}");
            store.write_zeros(0, MIB, false).await.unwrap();
            assert!(store.read(0, 1 << 20).await.unwrap().to_vec().iter().all(|b| *b == 0), "{cache}");
        });
    }
}

#[test]
fn blocks_smaller_than_a_direct_mediums_sectors_are_refused() {
    let Some(device) = Loop::new(4096) else { return };
    assert_eq!(device.open("").block_size, 4096, "the default follows the medium");
    let error = device.spec("bs=512").open().map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::SmallBlocks { sector: 4096, .. }), "{error}");
    assert!(error.to_string().contains("bs=4096"), "{error}");
    let store = device.open("bs=512,cache=writeback").store;
    run(async move {
        store.write(0, pattern(4096).into(), true).await.unwrap();
        store.write(512, vec![7; 512].into(), true).await.unwrap();
        let bytes = store.read(0, 4096).await.unwrap().to_vec();
        assert!(
            bytes[..512] == pattern(512)
                && bytes[512..1024] == [7; 512]
                && bytes[1024..] == pattern(4096)[1024..]
        );
        store.write_zeros(512, 512, false).await.unwrap();
        store.discard(1024, 512).await.unwrap();
        let bytes = store.read(0, 4096).await.unwrap().to_vec();
        assert!(bytes[..512] == pattern(512) && bytes[512..1536] == [0; 1024]);
        assert!(bytes[1536..] == pattern(4096)[1536..]);
        store.write(4096, pattern(8192).into(), false).await.unwrap();
        // Sectors, and parts of sectors at both ends.
        store.discard(4608, 7168).await.unwrap();
        let bytes = store.read(4096, 8192).await.unwrap().to_vec();
        assert!(bytes[..512] == pattern(512) && bytes[512..7680] == [0; 7168]);
        assert!(bytes[7680..] == pattern(8192)[7680..]);
    });
}

#[test]
fn a_device_is_served_once_and_may_grow() {
    let Some(device) = Loop::new(512) else { return };
    let first = device.open("");
    let error = device.spec("").open().map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Claimed { .. } | OpenError::Locked { .. }), "{error}");
    std::fs::OpenOptions::new().write(true).open(&device.file).unwrap().set_len(32 * MIB).unwrap();
    assert!(Command::new("losetup").arg("--set-capacity").arg(&device.device).status().unwrap().success());
    assert_eq!(first.store.refresh(), 32 * MIB);
    assert_eq!(first.store.size(), 32 * MIB);
    drop(first);
    let reader = device.open("ro");
    assert!(!reader.store.writable());
}

const INSIDE: &str = "STAG_TEST_SMALL_TMPFS";

#[test]
fn after_a_flush_failed_no_sync_succeeds_until_the_store_is_opened_anew() {
    if let Ok(directory) = std::env::var(INSIDE) {
        let Some(device) = Loop::over(Path::new(&directory).join("backing"), 512) else { return };
        return run(lose_writes(device));
    }
    // A device whose medium fills up: data accepted by the page cache cannot be written.
    let directory = tempfile::tempdir().unwrap();
    let script =
        format!("mount -t tmpfs -o size=2m none {} || exit 9; exec \"$@\"", directory.path().display());
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "after_a_flush_failed_no_sync_succeeds_until_the_store_is_opened_anew",
            "--nocapture",
        ])
        .env(INSIDE, directory.path())
        .output();
    let Ok(output) = output else { return eprintln!("SKIPPED: no unshare") };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare failed") || output.status.code() == Some(9) || text.contains("SKIPPED") {
        return eprintln!("SKIPPED: {}", text.trim());
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn lose_writes(device: Loop) {
    for cache in ["writeback", "writethrough"] {
        let store: Arc<dyn BlockStore> = device.open(&format!("cache={cache}")).store;
        store.write(0, vec![1; 4096].into(), true).await.unwrap();
        store.sync().await.unwrap();
        for at in 1..12 {
            // The page cache accepts each of them.
            store.write(at * MIB, vec![2; 1 << 20].into(), false).await.unwrap();
        }
        let error = store.sync().await.unwrap_err();
        assert!(matches!(error, StoreError::Io(_) | StoreError::NoSpace), "{error}");
        for _ in 0..3 {
            assert_eq!(
                store.sync().await,
                Err(error),
                "{cache}: a second flush would have been called a success"
            );
        }
        assert_eq!(store.write(0, vec![1; 4096].into(), true).await, Err(error));
        assert_eq!(store.read(0, 4096).await.unwrap().to_vec(), vec![1; 4096]);
        drop(store);
        let store = device.open(&format!("cache={cache}")).store;
        store.discard(0, 16 * MIB).await.unwrap();
        store.write(0, vec![3; 4096].into(), true).await.unwrap();
        assert_eq!(store.sync().await, Ok(()), "opened anew");
    }
}
