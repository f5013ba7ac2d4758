//! What the stores' tests share.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Polls a future that nothing outside has to happen for.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..100_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
    panic!("it waits for something");
}

/// Runs a future to its end on a ring of its own.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    ring::Runtime::new(ring::Config::default()).expect("a ring").block_on(future)
}

/// Somewhere on a real file system, for temporary files: the build's own output, which tmpfs rarely holds.
pub(crate) fn directory_on_disk() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.parent().expect("in a directory").to_owned()
}
