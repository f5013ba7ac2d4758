//! A full medium, and a process with a limit of file size: the error keeps its meaning, old data
//! stays, and freed space can be used again.
//!
//! The tests start this binary again with little space: in a mount namespace with a small tmpfs,
//! and under a limit of file size.

use std::path::Path;
use std::process::{Command, Stdio};

use backing::spec::StoreSpec;
use backing::{BlockStore, StoreError};

mod support;
use support::run;

const INSIDE: &str = "STAG_TEST_LITTLE_ROOM";
const PIECE: usize = 64 << 10;

fn open(path: &Path, size: &str) -> std::sync::Arc<dyn BlockStore> {
    let mut spec = StoreSpec::parse(path.to_str().unwrap()).unwrap();
    spec.set("size", Some(size)).unwrap();
    spec.open().unwrap_or_else(|e| panic!("{e}")).store
}

/// Runs `test` of this binary again by `script`, a shell script that ends by running `"$@"`.
/// Returns whether it ran.
fn again(test: &str, directory: &Path, script: &str) -> bool {
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, directory)
        .stdin(Stdio::null())
        .output();
    let Ok(output) = status else { return false };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("NO ROOM TO TEST") || text.contains("unshare failed") {
        return false;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

#[test]
fn a_full_medium_says_so_and_keeps_what_it_has() {
    if let Ok(directory) = std::env::var(INSIDE) {
        return run(fill_up(Path::new(&directory).join("disk")));
    }
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=1m none {} || {{ echo NO ROOM TO TEST; exit 1; }}; exec \"$@\"",
        directory.path().display()
    );
    if !again("a_full_medium_says_so_and_keeps_what_it_has", directory.path(), &script) {
        eprintln!("SKIPPED: no tmpfs of our own can be mounted here (user namespaces are closed)");
    }
}

async fn fill_up(path: std::path::PathBuf) {
    let store = open(&path, "4M");
    let (mut at, end) = (0, store.size());
    let error = loop {
        assert!(at < end, "a tmpfs of 1 MiB held 4 MiB");
        let data = vec![(at / PIECE as u64) as u8 + 1; PIECE];
        match store.write(at, data.into(), at % 3 == 0).await {
            Ok(()) => at += PIECE as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error, StoreError::NoSpace);
    assert!(at >= 512 << 10, "it was full at {at}");
    assert_eq!(store.sync().await, Ok(()), "what was acknowledged can be synced");
    for piece in 0..at / PIECE as u64 {
        let bytes = store.read(piece * PIECE as u64, PIECE).await.unwrap().to_vec();
        assert!(bytes.iter().all(|b| *b == piece as u8 + 1));
    }
    assert_eq!(store.write_zeros(2 << 20, 1 << 20, false).await, Err(StoreError::NoSpace));
    store.discard(0, 4 * PIECE as u64).await.unwrap();
    store.write(at, vec![7; PIECE].into(), true).await.unwrap();
    assert_eq!(store.sync().await, Ok(()));
}

#[test]
fn a_write_beyond_the_largest_file_is_out_of_range() {
    if let Ok(directory) = std::env::var(INSIDE) {
        return run(async move {
            let store = open(&Path::new(&directory).join("disk"), "4M");
            store.write(0, vec![1; 4096].into(), true).await.unwrap();
            assert_eq!(store.write(2 << 20, vec![1; 4096].into(), false).await, Err(StoreError::OutOfRange));
            assert_eq!(store.write(0, vec![2; 4096].into(), true).await, Ok(()));
        });
    }
    let directory = tempfile::tempdir().unwrap();
    drop(open(&directory.path().join("disk"), "4M"));
    // In blocks of 512 bytes. The signal that comes with the limit would end the process.
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$@\"";
    if !again("a_write_beyond_the_largest_file_is_out_of_range", directory.path(), script) {
        eprintln!("SKIPPED: user namespaces are closed");
    }
}
