//! Helpers of the stores' tests.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Polls a future that completes without external events.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..100_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
    panic!("it waits for something");
}

/// Runs a future to its end on its own ring.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    runtime::Runtime::new(runtime::Config::default()).expect("a ring").block_on(future)
}

/// A directory on a real file system, for temporary files: the build output, which is rarely on
/// tmpfs.
pub(crate) fn directory_on_disk() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.parent().expect("in a directory").to_owned()
}
