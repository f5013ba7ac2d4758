//! A core's threads for blocking file calls: the method of thread-pool servers, as one of several
//! ways to read and write.
//!
//! The calls are operations of the core's table like those of its ring: they own the memory that
//! they use, and complete through the core's mailbox. Rule: no call waits for one that blocks while
//! a thread is available.
//!
//! Threads are started as they are needed and end when they have been idle for a while. A thread
//! that takes a call while more are waiting wakes one other, and no more than one is being woken at
//! a time. So calls that end quickly run one after the other on one thread, without a wake-up each,
//! and calls that block get as many threads as there are.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::runtime::Address;
use crate::sim::files;

/// Most threads of a core.
const MOST_THREADS: usize = 32;
/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);

/// Direction in which a call moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// One blocking call, and the destination of its result.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) direction: Direction,
    pub(crate) fd: RawFd,
    pub(crate) vectors: *const libc::iovec,
    pub(crate) count: i32,
    pub(crate) at: i64,
    /// RWF_*.
    pub(crate) flags: i32,
    pub(crate) user_data: u64,
}

// SAFETY: what the pointer names is owned by the call's operation, which keeps it, unused, until
// the call has completed.
unsafe impl Send for Call {}

impl Call {
    /// Makes the call: a count, or the negative of an errno.
    fn run(&self) -> i32 {
        if let Some(result) = self.run_in_world() {
            return result
                .map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO), |count| count as i32);
        }
        // SAFETY: whoever made the call keeps the file open and the vectors valid until it has
        // completed.
        let rc = unsafe {
            match self.direction {
                Direction::Read => libc::preadv2(self.fd, self.vectors, self.count, self.at, self.flags),
                Direction::Write => libc::pwritev2(self.fd, self.vectors, self.count, self.at, self.flags),
            }
        };
        match i32::try_from(rc) {
            Ok(count) if count >= 0 => count,
            _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// Makes the call on a file of a simulated world, if it is one.
    fn run_in_world(&self) -> Option<std::io::Result<usize>> {
        let at = self.at as u64;
        // SAFETY: whoever made the call keeps the vectors valid until it has completed.
        unsafe {
            let pieces = std::slice::from_raw_parts(self.vectors, self.count as usize);
            match self.direction {
                Direction::Read => files::read(self.fd, pieces, at, self.flags),
                Direction::Write => files::write(self.fd, pieces, at, self.flags),
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    threads: usize,
    idle: usize,
    /// A thread was woken and has not taken a call yet.
    waking: bool,
    closed: bool,
}

struct Inner {
    queue: Mutex<Queue>,
    news: Condvar,
    core: Address,
}

/// The threads of one core. Dropping it lets them finish the queued calls.
pub(crate) struct Threads(Arc<Inner>);

impl Threads {
    pub(crate) fn new(core: Address) -> Self {
        Self(Arc::new(Inner { queue: Mutex::default(), news: Condvar::new(), core }))
    }

    /// Takes all of `calls`.
    pub(crate) fn submit(&self, calls: &mut Vec<Call>) {
        if crate::sim::is_on() {
            // A simulated world has no threads of which it does not know: each call is made at
            // once.
            return calls.drain(..).for_each(|call| self.0.core.complete(call.user_data, call.run()));
        }
        let mut queue = self.0.lock();
        queue.calls.extend(calls.drain(..));
        if !queue.call_help(&self.0) && queue.threads == 0 {
            // No thread can be started: run the calls here.
            while let Some(call) = queue.calls.pop_front() {
                self.0.core.complete(call.user_data, call.run());
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.news.notify_all();
    }
}

impl Queue {
    /// Wakes or starts another thread, if calls are waiting and none is being woken. Returns
    /// whether one comes, or need not.
    fn call_help(&mut self, inner: &Arc<Inner>) -> bool {
        if self.calls.is_empty() || self.waking {
            return true;
        }
        if self.idle > 0 {
            self.waking = true;
            inner.news.notify_one();
            return true;
        }
        if self.threads >= MOST_THREADS {
            return false;
        }
        let theirs = Arc::clone(inner);
        let started = std::thread::Builder::new().name("ring-file".into()).spawn(move || theirs.work());
        if started.is_ok() {
            self.threads += 1;
            self.waking = true;
        }
        started.is_ok()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(self: Arc<Self>) {
        let mut queue = self.lock();
        queue.waking = false;
        loop {
            if let Some(call) = queue.calls.pop_front() {
                queue.call_help(&self);
                drop(queue);
                self.core.complete(call.user_data, call.run());
                queue = self.lock();
                continue;
            }
            if queue.closed {
                queue.threads -= 1;
                return;
            }
            queue.idle += 1;
            let (woken, wait) = self.news.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            queue.waking = false;
            if wait.timed_out() && queue.calls.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}
