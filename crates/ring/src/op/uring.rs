//! The ring itself: setup with what the kernel offers, the submission queue with its backlog, and `io_uring_enter`.
//!
//! It never looks into what completes; that is [`super::table`]'s.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue};

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// `struct io_uring_getevents_arg` of the kernel's ABI.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_len: u32,
    min_wait_us: u32,
    timespec: u64,
}

/// `struct io_uring_rsrc_update` of the kernel's ABI.
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// `struct __kernel_timespec` of the kernel's ABI.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// One io_uring and what is queued for it.
pub(crate) struct Uring {
    ring: IoUring,
    /// The ring's file descriptor, or its index among the thread's registered rings.
    enter_fd: i32,
    enter_flags: u32,
    registered: bool,
    /// Whether the kernel raises a flag when it has work to run for us, so that polling needs no system call.
    flags_work: bool,
    /// Entries that found the queue full, in order. They go first.
    backlog: RefCell<VecDeque<Entry>>,
    pushed: Cell<u64>,
}

impl Uring {
    /// Sets up a ring with `entries` submissions and eight times as many completions.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let entries = entries.clamp(8, 16384);
        let base = || {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_clamp().setup_cqsize((entries * 8).min(65536));
            builder
        };
        // From the newest kernel to the oldest: 6.6, 6.1, 5.19, any.
        let mut newest = base();
        newest
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_no_sqarray();
        let mut deferred = base();
        deferred.setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let mut cooperative = base();
        cooperative.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
        let mut last = None;
        for (builder, flags_work) in [(newest, true), (deferred, true), (cooperative, true), (base(), false)]
        {
            match builder.build(entries) {
                Ok(ring) => return Self::with(ring, flags_work),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    fn with(ring: IoUring, flags_work: bool) -> io::Result<Self> {
        let params = ring.params();
        if !params.is_feature_ext_arg()
            || !params.is_feature_nodrop()
            || !params.is_feature_skip_cqe_on_success()
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "io_uring of Linux 5.19 or newer is needed",
            ));
        }
        let mut enter_flags = ENTER_GETEVENTS;
        if params.is_feature_no_iowait() {
            enter_flags |= ENTER_NO_IOWAIT;
        }
        let fd = ring.as_raw_fd();
        let mut update = RingFdUpdate { offset: u32::MAX, reserved: 0, data: fd as u64 };
        // SAFETY: registers this thread's own ring descriptor; the structure outlives the call.
        let rc =
            unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, &raw mut update, 1) };
        let registered = rc == 1;
        let enter_fd = if registered {
            enter_flags |= ENTER_REGISTERED_RING;
            update.offset as i32
        } else {
            fd
        };
        Ok(Self {
            ring,
            enter_fd,
            enter_flags,
            registered,
            flags_work,
            backlog: RefCell::default(),
            pushed: Cell::new(0),
        })
    }

    pub(crate) fn ring(&self) -> &IoUring {
        &self.ring
    }

    /// Queues an entry and numbers it. Never fails: what finds no room even after a submission waits in the backlog.
    ///
    /// # Safety
    /// What the entry points to stays valid until its completion has been seen.
    #[inline]
    pub(crate) unsafe fn push(&self, entry: &Entry) -> u64 {
        let number = self.pushed.get() + 1;
        self.pushed.set(number);
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here; the entry is the caller's.
        let queued =
            self.backlog.borrow().is_empty() && unsafe { self.ring.submission_shared().push(entry) }.is_ok();
        if !queued {
            self.push_to_backlog(entry);
        }
        number
    }

    #[cold]
    fn push_to_backlog(&self, entry: &Entry) {
        self.backlog.borrow_mut().push_back(entry.clone());
        // Failure shows at the next turn of the loop, which tries again.
        let _ = self.enter(0, None);
    }

    /// Moves what fits from the backlog to the queue.
    fn feed(&self) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            return;
        }
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        let mut queue = unsafe { self.ring.submission_shared() };
        while let Some(entry) = backlog.front() {
            // SAFETY: whoever pushed the entry vouched for it.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            backlog.pop_front();
        }
    }

    /// Entries that the kernel has not taken yet.
    #[inline]
    pub(crate) fn unsubmitted(&self) -> usize {
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        unsafe { self.ring.submission_shared() }.len() + self.backlog.borrow().len()
    }

    /// Whether the kernel has taken the entry that [`Self::push`] numbered.
    pub(crate) fn is_submitted(&self, number: u64) -> bool {
        number + self.unsubmitted() as u64 <= self.pushed.get()
    }

    /// Takes an entry back that is still in the backlog.
    pub(crate) fn take_back(&self, user_data: u64) -> bool {
        let mut backlog = self.backlog.borrow_mut();
        let found = backlog.iter().position(|e| e.get_user_data() == user_data);
        // Replaced, not removed: the numbering counts on every entry being there.
        if let Some(entry) = found.and_then(|i| backlog.get_mut(i)) {
            *entry = io_uring::opcode::Nop::new().build().user_data(super::IGNORED);
        }
        found.is_some()
    }

    /// Whether an [`Self::enter`] that waits for nothing would find something. Without the kernel's flag it may.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        // SAFETY: only this thread touches the queues, and no other borrow of them is alive here.
        let (sq, cq) = unsafe { (self.ring.submission_shared(), self.ring.completion_shared()) };
        !cq.is_empty() || sq.taskrun() || sq.cq_overflow() || !self.flags_work
    }

    /// Whether completions are there to be reaped.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        !unsafe { self.ring.completion_shared() }.is_empty()
    }

    /// Whether polling [`Self::has_work`] tells anything.
    pub(crate) fn can_poll(&self) -> bool {
        self.flags_work
    }

    /// Submits everything queued, lets the kernel finish what it can, and waits until `want` completions are there or
    /// `timeout` has passed. Says whether the kernel took what was queued; if not (it is out of memory, or holds
    /// completions that found no room), completions have to be reaped first.
    pub(crate) fn enter(&self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.feed();
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        let submit = unsafe { self.ring.submission_shared() }.len();
        let timespec;
        let argument;
        let (flags, arg, arg_len) = match timeout {
            None => (self.enter_flags, std::ptr::null(), 8),
            Some(timeout) => {
                timespec = Timespec {
                    seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                    nanoseconds: i64::from(timeout.subsec_nanos()),
                };
                argument = GetEventsArg {
                    sigmask: 0,
                    sigmask_len: 0,
                    min_wait_us: 0,
                    timespec: &raw const timespec as u64,
                };
                (self.enter_flags | ENTER_EXT_ARG, &raw const argument, size_of::<GetEventsArg>())
            }
        };
        // SAFETY: entries in the queue are vouched for by those who pushed them; the argument outlives the call.
        let rc = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.enter_fd, submit, want, flags, arg, arg_len)
        };
        let result = if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        self.feed();
        match result {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => Ok(()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {
                // Whatever is in the way passes with completions or with time; do not burn the core meanwhile.
                std::thread::yield_now();
                Ok(())
            }
            other => other,
        }
    }

    /// The next completion that is there.
    #[inline]
    pub(crate) fn next_completion(&self) -> Option<cqueue::Entry> {
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        unsafe { self.ring.completion_shared() }.next()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.registered {
            let mut update = RingFdUpdate { offset: self.enter_fd as u32, reserved: 0, data: 0 };
            let fd = self.ring.as_raw_fd();
            // SAFETY: takes back this thread's own registration; the structure outlives the call.
            unsafe {
                libc::syscall(libc::SYS_io_uring_register, fd, UNREGISTER_RING_FDS, &raw mut update, 1)
            };
        }
    }
}
