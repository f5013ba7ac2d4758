//! What the tests of stores share.
#![allow(dead_code)] // Each test file uses a part of it.

use std::future::Future;
use std::path::PathBuf;

/// Runs a future to its end on a ring of its own.
pub fn run<F: Future>(future: F) -> F::Output {
    ring::Runtime::new(ring::Config::default()).expect("a ring").block_on(future)
}

/// Somewhere on a real file system, for temporary files: the build's own output, which tmpfs rarely holds.
pub fn directory_on_disk() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}
