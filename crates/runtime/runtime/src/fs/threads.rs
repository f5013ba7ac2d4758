//! A core's threads for blocking file calls: the method of thread-pool servers, as one of several
//! ways to read and write, and the only one of a core without a ring.
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
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;

use crate::identity::Identity;
use crate::op::sqe::Sqe;
use crate::runtime::Address;
use crate::sim::files;

/// Most threads of a core.
const MOST_THREADS: usize = 32;
/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);
/// IORING_FSYNC_DATASYNC.
const DATASYNC: u32 = 1;

/// One blocking call, and the destination of its result.
pub(crate) struct Call {
    sqe: Sqe,
    /// The user as whom the core acted when it made the call.
    acting: Option<Identity>,
    /// Keeps the file open until the call has ended.
    _file: Arc<OwnedFd>,
}

// SAFETY: what the entry points to is owned by the call's operation, which keeps it, unused, until
// the call has completed; the rest is `Send` by itself.
unsafe impl Send for Call {}

impl Call {
    /// The call that `entry` asks for on `file`, an operation of files.
    pub(crate) fn new(entry: &Entry, file: &Arc<OwnedFd>) -> Self {
        Self { sqe: Sqe::of(entry), acting: Identity::present(), _file: Arc::clone(file) }
    }

    /// Makes the call, and then gives its file up: a count, or the negative of an errno.
    fn run(self) -> i32 {
        let acting = self.acting.as_ref().map(Identity::act).transpose();
        let result = acting.and_then(|_acting| self.run_as_told());
        result.map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EACCES), |count| count as i32)
    }

    fn run_as_told(&self) -> io::Result<usize> {
        let Sqe { opcode, fd, off, addr, len, op_flags, .. } = self.sqe;
        let (at, flags) = (off as i64, op_flags as i32);
        let one = [self.sqe.piece()];
        // SAFETY: whoever made the call keeps the file open, and what the entry points to valid,
        // until the call has completed.
        let rc = unsafe {
            let pieces = match opcode {
                opcode::Writev::CODE => std::slice::from_raw_parts(addr as *const libc::iovec, len as usize),
                _ => &one,
            };
            let (vectors, count) = (pieces.as_ptr(), pieces.len() as i32);
            match opcode {
                opcode::Read::CODE => {
                    if let Some(read) = files::read(fd, pieces, off, flags) {
                        return read;
                    }
                    libc::preadv2(fd, vectors, count, at, flags)
                }
                opcode::Write::CODE | opcode::Writev::CODE => {
                    if let Some(written) = files::write(fd, pieces, off, flags) {
                        return written;
                    }
                    libc::pwritev2(fd, vectors, count, at, flags)
                }
                opcode::Fsync::CODE if op_flags & DATASYNC != 0 => libc::fdatasync(fd) as isize,
                opcode::Fsync::CODE => libc::fsync(fd) as isize,
                // Its fields: offset, length and mode.
                opcode::Fallocate::CODE => libc::fallocate64(fd, len as i32, at, addr as i64) as isize,
                _ => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            }
        };
        usize::try_from(rc).map_err(|_| io::Error::last_os_error())
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
            return calls.drain(..).for_each(|call| self.0.make(call));
        }
        let mut queue = self.0.lock();
        queue.calls.extend(calls.drain(..));
        if !queue.call_help(&self.0) && queue.threads == 0 {
            // No thread can be started: run the calls here.
            while let Some(call) = queue.calls.pop_front() {
                self.0.make(call);
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

    fn make(&self, call: Call) {
        let user_data = call.sqe.user_data;
        self.core.complete(user_data, call.run());
    }

    fn work(self: Arc<Self>) {
        let mut queue = self.lock();
        queue.waking = false;
        loop {
            if let Some(call) = queue.calls.pop_front() {
                queue.call_help(&self);
                drop(queue);
                self.make(call);
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
