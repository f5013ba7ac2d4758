//! The executor: one a thread, driving futures and one io_uring, or what stands in for it.
//!
//! A turn of its loop runs every task that is ready, then makes one `io_uring_enter` that submits
//! everything the tasks queued and reaps everything that completed. With nothing to do it sleeps in
//! that call; with completions expected within microseconds it polls for them first.

mod core;
mod mailbox;
mod refused;
mod remote;
mod spin;
mod stall;
mod sync;
mod task;
mod waker;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use io_uring::opcode;

use crate::op::{Backend, Op};

pub(crate) use self::core::Core;
pub use refused::NoRing;
pub(crate) use refused::explained;
pub(crate) use remote::Address;
pub use stall::{STALL, Stalls};
pub use task::{JoinError, JoinHandle, spawn};

/// Configuration of a runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// Operations queued between two system calls before one more is made. Rounded up to a power of
    /// two; 8 to 16384.
    pub entries: u32,
    /// Longest time to poll for completions before sleeping, in microseconds: the cost of a sleep.
    /// The actual time depends on how soon work has been arriving. An idle runtime, or one whose
    /// processor other threads want, sleeps. 0 never polls.
    pub spin_us: u32,
    /// The processor to run on; `None` leaves the thread where it is.
    pub core: Option<usize>,
    /// Most bytes that the core's buffer pool maps ([`crate::pool::set_limit`]).
    pub pool_bytes: usize,
    /// Number of 64 KiB buffers for sockets to receive into, at first. It grows, up to an eighth of
    /// the pool, if more sockets receive at once. Rounded up to a power of two; 2 to 4096.
    pub recv_buffers: u16,
    /// What carries out its operations.
    pub backend: Backend,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entries: 1024,
            spin_us: 5,
            core: None,
            pool_bytes: crate::pool::DEFAULT_LIMIT,
            recv_buffers: 32,
            backend: Backend::Auto,
        }
    }
}

/// An executor with its ring. It belongs to the thread that made it.
///
/// Dropping it drops all tasks, cancels all operations and waits until the kernel has let go of
/// their buffers.
pub struct Runtime {
    core: Rc<Core>,
}

impl Runtime {
    /// Sets up a ring, or what stands in for it, and its buffers. Fails with a [`NoRing`] where
    /// io_uring is asked for and forbidden (`PermissionDenied`), or the kernel is older than 5.19
    /// (`Unsupported`); with EMFILE or ENOMEM when there is no more; with `InvalidInput` for an
    /// unknown name in STAG_RUNTIME.
    pub fn new(config: Config) -> io::Result<Self> {
        if let Some(core) = config.core {
            pin_to(core)?;
        }
        crate::pool::set_limit(config.pool_bytes);
        Ok(Self { core: Rc::new(Core::new(&config).map_err(explained)?) })
    }

    /// What carries out its operations; never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.core.uring.backend()
    }

    /// Drives `future`, and all tasks spawned meanwhile, until `future` ends. Tasks that have not
    /// ended stay for the next call. Panics if a runtime runs on this thread already, or if the
    /// ring breaks.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.core.enter();
        self.core.begin();
        let mut future = pin!(future);
        let waker = self.core.main_waker();
        let mut cx = Context::from_waker(&waker);
        self.core.wake_main();
        loop {
            if self.core.take_main_woken() {
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    // Submit what it queued last, such as closing a socket.
                    let _ = self.core.uring.enter(0, None);
                    return output;
                }
            }
            self.core.turn();
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runtime")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.core.shut_down(Duration::from_secs(10));
    }
}

/// Whether a runtime drives the current thread right now.
pub fn is_running() -> bool {
    Core::try_current().is_some()
}

/// Whether this core had nothing to do before its latest work came, and looked out for it: it has
/// time to spare.
pub fn has_polled() -> bool {
    Core::with_current(|core| core.is_some_and(|core| core.has_polled()))
}

/// Whether this core has nothing to do but the current task: no other task is ready, and no
/// operation has completed. Submits queued operations first, so that they do not wait for the task.
/// True outside of a runtime.
pub fn is_alone() -> bool {
    Core::with_current(|core| core.is_none_or(|core| core.is_alone()))
}

/// Turns of this core that took longer than [`STALL`]; none outside of a runtime. A core without a
/// timer does not look.
pub fn stalls() -> Stalls {
    Core::with_current(|core| core.map_or_else(Stalls::default, |core| core.stalls()))
}

/// Submits queued operations to the kernel at once. The kernel begins them with the thread's
/// present credentials ([`crate::act_as`]).
pub fn submit() {
    Core::with_current(|core| {
        if let Some(core) = core {
            core.uring.submit();
        }
    });
}

/// Lets every other ready task of this core run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for one round of the ring: submits the queued entries, and lets other tasks run.
pub async fn round() {
    // SAFETY: the entry points to nothing.
    let op = unsafe { Op::start(opcode::Nop::new().build(), ()) };
    op.await;
}

/// Pins the current thread to one processor.
fn pin_to(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a `cpu_set_t` is plain bits, for which zeros are valid; the index was checked; the
    // set outlives the call.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processors that this process may run on.
pub fn available_cores() -> Vec<usize> {
    // SAFETY: a `cpu_set_t` is plain bits, for which zeros are valid; the set outlives the call.
    let (rc, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), set)
    };
    if rc != 0 {
        return vec![0];
    }
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&i| unsafe { libc::CPU_ISSET(i, &set) }).collect()
}
