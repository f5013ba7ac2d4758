//! The ring itself: setup with the features that the kernel offers, the submission queue with its
//! backlog, and `io_uring_enter`.
//!
//! It never interprets completions; [`super::table`] does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::IoUring;
use io_uring::squeue::Entry;

use super::Completion;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// Transfers of files that are submitted together at most: enough to make the call and the disk's
/// notification cheap.
const TOGETHER: u32 = 8;

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

/// Set-up flags of a ring, by kernel version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    /// Linux 6.6: as `Deferred`, without the indirection of the submission queue.
    Direct,
    /// Linux 6.1: completions are finished when this thread asks for them, in one batch.
    Deferred,
    /// Linux 5.19: completions are finished when this thread next enters the kernel.
    Cooperative,
    /// Any other kernel.
    Plain,
}

/// Best first.
const FLAVOURS: [Flavour; 4] = [Flavour::Direct, Flavour::Deferred, Flavour::Cooperative, Flavour::Plain];

impl Flavour {
    fn builder(self, entries: u32) -> io_uring::Builder {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_r_disabled().setup_clamp().setup_cqsize((entries * 8).min(65536));
        if self == Self::Direct {
            builder.setup_no_sqarray();
        }
        match self {
            Self::Direct | Self::Deferred => {
                builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            Self::Cooperative => {
                builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
            }
            Self::Plain => {}
        }
        builder
    }
}

/// One io_uring and its queued entries.
pub(crate) struct Uring {
    ring: IoUring,
    /// The ring's file descriptor, or its index among the thread's registered rings.
    enter_fd: i32,
    enter_flags: u32,
    registered: bool,
    /// Whether the kernel raises a flag when it has work to run for us, so that polling needs no
    /// system call.
    flags_work: bool,
    /// Entries that found the queue full, in order. They are queued first.
    backlog: RefCell<VecDeque<Entry>>,
    pushed: Cell<u64>,
    /// Transfers of files among the entries queued.
    transfers: Cell<u32>,
}

impl Uring {
    /// Sets up a ring with `entries` submissions and eight times as many completions, as well as
    /// the kernel can.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for flavour in FLAVOURS {
            #[cfg(test)]
            if tests::FORCED.get().is_some_and(|forced| forced != flavour) {
                continue;
            }
            match flavour.builder(entries.clamp(8, 16384)).build(entries.clamp(8, 16384)) {
                Ok(ring) => return Self::with(ring, flavour != Flavour::Plain),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
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
        super::restrictions::apply(&ring)?;
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
            transfers: Cell::new(0),
        })
    }

    pub(crate) fn ring(&self) -> &IoUring {
        &self.ring
    }

    /// Registers a ring of provided buffers.
    ///
    /// # Safety
    /// The address is that of `count` entries, a power of two, which stay mapped as long as the
    /// ring exists.
    pub(crate) unsafe fn provide(&self, address: u64, count: u16) -> io::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(address, count, 0, 0) }
    }

    /// Queues an entry and numbers it. Never fails: an entry that finds no room even after a
    /// submission waits in the backlog.
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its completion has been seen.
    #[inline]
    pub(crate) unsafe fn push(&self, entry: &Entry) -> u64 {
        let number = self.pushed.get() + 1;
        self.pushed.set(number);
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here; the
        // entry is the caller's.
        let queued =
            self.backlog.borrow().is_empty() && unsafe { self.ring.submission_shared().push(entry) }.is_ok();
        if !queued {
            self.push_to_backlog(entry);
        }
        number
    }

    /// The entry pushed last moves a file's data. Submits the queue once there are several of
    /// these. The kernel takes 2 to 3 µs to prepare a direct transfer, and passes the operations of
    /// one submission to a disk together at its end. So an idle disk would wait for the last of
    /// them.
    #[inline]
    pub(crate) fn hurry(&self) {
        let transfers = self.transfers.get() + 1;
        self.transfers.set(transfers);
        if transfers >= TOGETHER {
            self.submit();
        }
    }

    /// Submits the queued entries, and completes none of them.
    pub(crate) fn submit(&self) {
        if self.unsubmitted() > 0 {
            // Failure shows at the next turn of the loop, which tries again.
            let _ = self.enter_with(self.enter_flags & !ENTER_GETEVENTS, 0, None);
        }
    }

    #[cold]
    fn push_to_backlog(&self, entry: &Entry) {
        self.backlog.borrow_mut().push_back(entry.clone());
        // Failure shows at the next turn of the loop, which tries again.
        let _ = self.enter(0, None);
    }

    /// Moves entries from the backlog to the queue, as many as fit.
    fn feed(&self) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            return;
        }
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        let mut queue = unsafe { self.ring.submission_shared() };
        while let Some(entry) = backlog.front() {
            // SAFETY: the caller that pushed the entry vouched for it.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            backlog.pop_front();
        }
    }

    /// Number of entries that the kernel has not taken yet.
    #[inline]
    pub(crate) fn unsubmitted(&self) -> usize {
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        unsafe { self.ring.submission_shared() }.len() + self.backlog.borrow().len()
    }

    /// Whether the kernel has taken the entry that [`Self::push`] numbered.
    pub(crate) fn is_submitted(&self, number: u64) -> bool {
        number + self.unsubmitted() as u64 <= self.pushed.get()
    }

    /// Takes back an entry that is still in the backlog.
    pub(crate) fn take_back(&self, user_data: u64) -> bool {
        let mut backlog = self.backlog.borrow_mut();
        let found = backlog.iter().position(|e| e.get_user_data() == user_data);
        // Replaced, not removed: the numbering counts every entry.
        if let Some(entry) = found.and_then(|i| backlog.get_mut(i)) {
            *entry = io_uring::opcode::Nop::new().build().user_data(super::IGNORED);
        }
        found.is_some()
    }

    /// Whether an [`Self::enter`] that waits for nothing would find something. Without the kernel's
    /// flag it may.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        // SAFETY: only this thread touches the queues, and no other borrow of them is alive here.
        let (sq, cq) = unsafe { (self.ring.submission_shared(), self.ring.completion_shared()) };
        !cq.is_empty() || sq.taskrun() || sq.cq_overflow() || !self.flags_work
    }

    /// Whether completions have arrived.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        !unsafe { self.ring.completion_shared() }.is_empty()
    }

    /// Whether polling [`Self::has_work`] is meaningful.
    pub(crate) fn can_poll(&self) -> bool {
        self.flags_work
    }

    /// Submits everything queued, lets the kernel finish what it can, and waits until `want`
    /// completions have arrived or `timeout` has passed. Returns whether the kernel took all queued
    /// entries; if not (it is out of memory, or holds completions that found no room), completions
    /// have to be reaped first.
    pub(crate) fn enter(&self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.enter_with(self.enter_flags, want, timeout)
    }

    fn enter_with(&self, enter_flags: u32, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.transfers.set(0);
        self.feed();
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        let submit = unsafe { self.ring.submission_shared() }.len();
        let timespec;
        let argument;
        let (flags, arg, arg_len) = match timeout {
            None => (enter_flags, std::ptr::null(), 8),
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
                (enter_flags | ENTER_EXT_ARG, &raw const argument, size_of::<GetEventsArg>())
            }
        };
        // SAFETY: the callers that pushed the entries in the queue vouched for them; the argument
        // outlives the call.
        let rc = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.enter_fd, submit, want, flags, arg, arg_len)
        };
        let result = if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        self.feed();
        match result {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => Ok(()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {
                // The obstacle passes with completions or with time; do not burn the core
                // meanwhile.
                std::thread::yield_now();
                Ok(())
            }
            other => other,
        }
    }

    /// The next completion that is there: user data and result.
    #[inline]
    pub(crate) fn next_completion(&self) -> Option<(u64, Completion)> {
        // SAFETY: only this thread touches the queue, and no other borrow of it is alive here.
        let entry = unsafe { self.ring.completion_shared() }.next()?;
        Some((entry.user_data(), Completion { result: entry.result(), flags: entry.flags() }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config, Gather, ListenOptions, Runtime, TcpListener, TcpStream, blocking, pool, sleep, spawn, timeout,
    };

    #[test]
    fn a_ring_refuses_operations_that_stag_does_not_submit() {
        let ring = Uring::new(8).unwrap();
        let path = c"/dev/null";
        let cwd = io_uring::types::Fd(libc::AT_FDCWD);
        let open = io_uring::opcode::OpenAt::new(cwd, path.as_ptr()).build().user_data(7);
        // SAFETY: the path is a static string.
        unsafe { ring.push(&open) };
        ring.enter(1, None).unwrap();
        let (user_data, completion) = ring.next_completion().unwrap();
        assert_eq!((user_data, completion.result), (7, -libc::EACCES));
        let error = ring.ring().submitter().register_files(&[0]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    }

    thread_local!(pub(super) static FORCED: Cell<Option<Flavour>> = const { Cell::new(None) });

    #[test]
    fn every_ring_flavour_runs_sockets_timers_cancels_and_foreign_wakes() {
        for flavour in FLAVOURS {
            FORCED.set(Some(flavour));
            let runtime = match Runtime::new(Config { entries: 8, ..Config::default() }) {
                Ok(runtime) => runtime,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => continue,
                Err(error) => panic!("{flavour:?}: {error}"),
            };
            let held = pool::stats().in_use;
            runtime.block_on(async {
                let any = "127.0.0.1:0".parse().unwrap();
                let mut listener = TcpListener::bind(any, ListenOptions::default()).unwrap();
                let addr = listener.local_addr().unwrap();
                let server = spawn(async move {
                    let mut streams = Vec::new();
                    for _ in 0..50 {
                        let stream = listener.accept().await.unwrap();
                        streams.push(spawn(async move {
                            let bytes = stream.recv_some(100).await.unwrap();
                            let mut gather = Gather::new();
                            gather.push(bytes.into_buf());
                            stream.send(gather).await.0.unwrap();
                            assert!(timeout(Duration::from_millis(5), stream.recv_some(1)).await.is_err());
                        }));
                    }
                    for stream in streams {
                        stream.await.unwrap();
                    }
                });
                let mut clients = Vec::new();
                for i in 0..50u8 {
                    let client = TcpStream::connect(addr, Duration::from_secs(5)).await.unwrap();
                    let mut gather = Gather::new();
                    gather.push_copy(&[i; 10]);
                    client.send(gather).await.0.unwrap();
                    assert_eq!(*client.recv_some(100).await.unwrap(), [i; 10]);
                    clients.push(client);
                }
                server.await.unwrap();
                for _ in 0..20 {
                    blocking(|| std::thread::sleep(Duration::from_micros(300))).await;
                }
                sleep(Duration::from_millis(2)).await;
            });
            assert_eq!(pool::stats().in_use, held, "{flavour:?}");
        }
        FORCED.set(None);
    }
}
