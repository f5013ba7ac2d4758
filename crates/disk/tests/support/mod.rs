//! What the tests of stores share.
#![allow(dead_code)] // Each test file uses a part of it.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future to its end.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Somewhere on a real file system, for temporary files: the build's own output, which tmpfs rarely holds.
pub fn directory_on_disk() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}
