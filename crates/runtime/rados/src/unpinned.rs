//! Threads for calls that block, pinned to no core.
//!
//! The threads that librados starts inherit the processors of the thread that connects, and a core
//! is pinned to one. Such threads have the processors of the process' first thread, which is no
//! core: those that the administrator has given the process.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use runtime::{Completer, Foreign, timeout};

use crate::error::Error;

/// Pause between two tries to get a thread.
const PAUSE: Duration = Duration::from_millis(250);

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

/// Starts `f` on a thread of its own, for a core: at once, or as soon as the system has a thread.
/// If the core ends before, `f` is dropped. `what` is its name in the log.
pub(crate) fn start_surely(what: &'static str, f: impl FnOnce() + Send + 'static) {
    let place = Arc::new(Mutex::new(Some(f)));
    until_started(what, move || {
        let place = place.clone();
        start(move || {
            let f = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            f.into_iter().for_each(|f| f());
        })
    });
}

/// Calls `start` until it returns true: now, and then in a task of this core.
fn until_started(what: &'static str, start: impl Fn() -> bool + 'static) {
    if start() {
        return;
    }
    tracing::warn!("{what} waits until the system has a thread");
    runtime::spawn(async move {
        loop {
            runtime::sleep(PAUSE).await;
            if start() {
                break;
            }
        }
        tracing::warn!("{what} has a thread now");
    });
}

/// Lets this thread run on all processors that the process may have.
fn leave_cores() {
    // SAFETY: the set is plain bits and outlives the calls. The process' id is that of its first
    // thread.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(libc::getpid(), size_of_val(&set), &raw mut set) {
            0 => libc::sched_setaffinity(0, size_of_val(&set), &raw const set),
            error => error,
        }
    };
    if done != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "a thread for Ceph stays on its processors");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    fn processors() -> i32 {
        // SAFETY: the set is plain bits and outlives the calls.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
            libc::CPU_COUNT(&set)
        }
    }

    /// Pins a thread to the processor of this one; 0 is this one. Returns the processors that it
    /// had.
    fn pin(thread: libc::pid_t) -> libc::cpu_set_t {
        // SAFETY: the sets are plain bits and outlive the calls.
        unsafe {
            let (mut before, mut one): (libc::cpu_set_t, libc::cpu_set_t) = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(thread, size_of_val(&before), &raw mut before), 0);
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut one);
            assert_eq!(libc::sched_setaffinity(thread, size_of_val(&one), &raw const one), 0);
            before
        }
    }

    #[test]
    fn a_thread_started_by_a_pinned_one_has_the_processors_of_the_process() {
        let all = processors();
        let seen = || run("looking", Duration::from_secs(60), processors).unwrap();
        std::thread::spawn(move || {
            pin(0);
            assert_eq!((processors(), seen()), (1, all));
            // As by taskset, or CPUAffinity= of systemd.
            // SAFETY: it takes nothing.
            let process = unsafe { libc::getpid() };
            let before = pin(process);
            let few = seen();
            // SAFETY: the set is plain bits and outlives the call.
            let restored =
                unsafe { libc::sched_setaffinity(process, size_of_val(&before), &raw const before) };
            assert_eq!((few, restored), (1, 0));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_core_tries_until_there_is_a_thread_and_no_longer() {
        let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
        runtime.block_on(async {
            let tries = Rc::new(Cell::new(0));
            let count = tries.clone();
            until_started("a test", move || {
                count.set(count.get() + 1);
                count.get() == 3
            });
            assert_eq!(tries.get(), 1, "the caller does not wait");
            while Rc::strong_count(&tries) > 1 {
                runtime::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(tries.get(), 3);
            let (told, done) = mpsc::channel();
            start_surely("a test", move || told.send(processors()).unwrap());
            assert!(done.recv().unwrap() > 0);
        });
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
