//! Helpers of the stores' tests.
#![allow(dead_code)] // Each test file uses a part of it.

use std::future::Future;
use std::path::PathBuf;

/// Runs a future to its end on its own ring.
pub fn run<F: Future>(future: F) -> F::Output {
    runtime::Runtime::new(runtime::Config::default()).expect("a ring").block_on(future)
}

/// A directory on a real file system, for temporary files: the build output, which is rarely on
/// tmpfs.
pub fn directory_on_disk() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}
