//! Threads for calls that block, pinned to no core.
//!
//! The threads that librados starts inherit the processors of the thread that connects, and a core
//! is pinned to one.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use runtime::{Completer, Foreign, timeout};

use crate::error::Error;

/// Runs `f` on a thread of its own and waits for it, at most for `limit`. After that `f` goes on,
/// and its result is dropped where it ends.
///
/// # Errors
/// It has not ended in time. `what` is its name in the message.
pub(crate) fn run<T: Send + 'static>(
    what: &'static str,
    limit: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, result) = mpsc::sync_channel(1);
    let too_late = Error::TooLate { what, seconds: limit.as_secs() };
    if !start(move || drop(sender.send(f()))) {
        return Err(Error::Call { what: format!("{what} needs a thread"), errno: libc::EAGAIN });
    }
    result.recv_timeout(limit).map_err(|_| too_late)
}

/// [`run`] for a core, which does not wait meanwhile.
///
/// # Errors
/// ETIMEDOUT after `limit`; then `f` goes on. ECANCELED if there is no thread.
pub(crate) async fn run_beside<T: Send + 'static>(
    limit: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let result = Arc::new(Mutex::new(None));
    let place = result.clone();
    let on_thread = |(): &mut (), completer: Completer| {
        // Without a thread the completer is dropped, and says so.
        start(move || {
            let value = f();
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            completer.complete(0);
        });
    };
    let error = io::Error::from_raw_os_error;
    timeout(limit, Foreign::start((), on_thread)).await.map_err(|_| error(libc::ETIMEDOUT))?;
    let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    value.ok_or_else(|| error(libc::ECANCELED))
}

/// Starts `f` on a thread of its own. Returns false if there is no thread; then `f` is dropped.
pub fn start(f: impl FnOnce() + Send + 'static) -> bool {
    let unpinned = || {
        leave_cores();
        f();
    };
    runtime::thread("ceph-call", unpinned).is_ok()
}

/// Lets this thread run on all processors that the process may have.
fn leave_cores() {
    // SAFETY: the set is plain bits and outlives the call. The kernel takes away those processors
    // that the process may not have.
    let all = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if all != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "a thread for Ceph stays on its processors");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors() -> i32 {
        // SAFETY: the set is plain bits and outlives the calls.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
            libc::CPU_COUNT(&set)
        }
    }

    #[test]
    fn a_thread_started_by_a_pinned_one_has_all_processors() {
        let all = processors();
        let seen = std::thread::spawn(move || {
            // SAFETY: the set is plain bits and outlives the calls.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
                assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
            }
            assert_eq!(processors(), 1);
            run("looking", Duration::from_secs(60), processors).unwrap()
        });
        assert_eq!(seen.join().unwrap(), all);
    }

    #[test]
    fn a_call_that_does_not_end_is_given_up_and_its_result_dropped_there() {
        let (go, wait) = mpsc::channel::<()>();
        let (told, dropped) = mpsc::channel();
        struct Tells(mpsc::Sender<()>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let late = run("opening", Duration::from_millis(20), move || {
            wait.recv().unwrap();
            Tells(told)
        });
        let error = late.err().expect("it waits");
        assert!(error.to_string().contains("opening is not done after 0 s"), "{error}");
        assert!(dropped.try_recv().is_err());
        go.send(()).unwrap();
        dropped.recv().unwrap();
    }
}
