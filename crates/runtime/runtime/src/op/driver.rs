//! The driver of a core's operations: the kernel's io_uring, epoll(7) where that is forbidden, or a
//! simulated ring.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use io_uring::IoUring;
use io_uring::squeue::Entry;

use super::{Completion, Epoll, Uring};
#[cfg(feature = "sim")]
use crate::sim::{self, ring::SimRing};

/// One core's driver.
pub(crate) enum Driver {
    Kernel(Uring),
    Epoll(Epoll),
    #[cfg(feature = "sim")]
    Simulated(SimRing),
}

/// A call that all drivers have.
macro_rules! each {
    ($self:ident, $driver:ident => $call:expr) => {
        match $self {
            Self::Kernel($driver) => $call,
            Self::Epoll($driver) => $call,
            #[cfg(feature = "sim")]
            Self::Simulated($driver) => $call,
        }
    };
}

/// What carries out a runtime's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// What [`Backend::prefer`] was told, or else what the environment variable STAG_RUNTIME names.
    /// Without either io_uring, and epoll where the system forbids or lacks io_uring.
    #[default]
    Auto,
    /// io_uring.
    IoUring,
    /// epoll(7), and threads for files.
    Epoll,
}

/// What [`Backend::Auto`] means in this process.
static PREFERRED: Mutex<Backend> = Mutex::new(Backend::Auto);

/// The environment variable of [`Backend::Auto`].
const VARIABLE: &str = "STAG_RUNTIME";

impl Backend {
    const NAMES: [(Self, &str); 3] =
        [(Self::Auto, "auto"), (Self::IoUring, "io_uring"), (Self::Epoll, "epoll")];

    /// Its name: `auto`, `io_uring`, `epoll`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(backend, _)| *backend == self).map_or("", |(_, name)| name)
    }

    /// Makes this the backend of runtimes that are made from now on and have [`Backend::Auto`].
    pub fn prefer(self) {
        *PREFERRED.lock().unwrap_or_else(PoisonError::into_inner) = self;
    }

    /// This, or what the process or the environment says in its place.
    fn told(self) -> io::Result<Self> {
        if self != Self::Auto {
            return Ok(self);
        }
        let preferred = *PREFERRED.lock().unwrap_or_else(PoisonError::into_inner);
        match std::env::var(VARIABLE) {
            Ok(name) if preferred == Self::Auto => {
                let known = Self::NAMES.iter().find(|(_, known)| *known == name);
                known.map(|(backend, _)| *backend).ok_or_else(|| {
                    let why = format!("{VARIABLE}={name}: write auto, io_uring or epoll");
                    io::Error::new(io::ErrorKind::InvalidInput, why)
                })
            }
            _ => Ok(preferred),
        }
    }
}

/// Whether a ring cannot be had here: it is forbidden, or the kernel has none.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// epoll, where a ring cannot be had.
fn instead(error: io::Error) -> io::Result<Driver> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let reason = crate::runtime::explained(error);
        tracing::info!(%reason, "epoll and threads carry out what io_uring would");
    });
    Epoll::new().map(Driver::Epoll)
}

impl Driver {
    /// The driver of a new core: see [`Uring::new`].
    pub(crate) fn new(entries: u32, backend: Backend) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some(here) = sim::here() {
            return Ok(Self::Simulated(SimRing::new(here)));
        }
        match backend.told()? {
            Backend::IoUring => Uring::new(entries).map(Self::Kernel),
            Backend::Epoll => Epoll::new().map(Self::Epoll),
            Backend::Auto => match Uring::new(entries) {
                Err(error) if is_forbidden(&error) => instead(error),
                ring => ring.map(Self::Kernel),
            },
        }
    }

    /// What it is; a simulated ring counts as io_uring.
    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::Epoll(_) => Backend::Epoll,
            _ => Backend::IoUring,
        }
    }

    /// Whether it takes operations of files.
    #[inline]
    pub(crate) fn carries_files(&self) -> bool {
        !matches!(self, Self::Epoll(_))
    }

    /// A descriptor's number is given up, and operations on it have ended.
    pub(crate) fn forget(&self, fd: RawFd) {
        if let Self::Epoll(epoll) = self {
            epoll.forget(fd);
        }
    }

    /// Registers the mailbox of the core with a simulated ring.
    pub(crate) fn own(&self, mailbox: u16) {
        match self {
            Self::Kernel(_) | Self::Epoll(_) => _ = mailbox,
            #[cfg(feature = "sim")]
            Self::Simulated(ring) => ring.own(mailbox),
        }
    }

    /// The kernel's ring, if there is one.
    pub(crate) fn kernel(&self) -> Option<&IoUring> {
        match self {
            Self::Kernel(ring) => Some(ring.ring()),
            _ => None,
        }
    }

    /// Registers a ring of provided buffers.
    ///
    /// # Safety
    /// The address is that of `count` entries, a power of two, which stay mapped as long as the
    /// ring exists.
    pub(crate) unsafe fn provide(&self, address: u64, count: u16) -> io::Result<()> {
        // SAFETY: the caller's.
        each!(self, driver => unsafe { driver.provide(address, count) })
    }

    /// [`Uring::push`].
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its completion has been seen.
    #[inline]
    pub(crate) unsafe fn push(&self, entry: &Entry) -> u64 {
        // SAFETY: the caller's.
        each!(self, driver => unsafe { driver.push(entry) })
    }

    /// [`Uring::hurry`].
    #[inline]
    pub(crate) fn hurry(&self) {
        if let Self::Kernel(ring) = self {
            ring.hurry();
        }
    }

    /// [`Uring::submit`].
    pub(crate) fn submit(&self) {
        each!(self, driver => driver.submit());
    }

    /// [`Uring::unsubmitted`].
    #[inline]
    pub(crate) fn unsubmitted(&self) -> usize {
        each!(self, driver => driver.unsubmitted())
    }

    /// [`Uring::is_submitted`].
    pub(crate) fn is_submitted(&self, number: u64) -> bool {
        each!(self, driver => driver.is_submitted(number))
    }

    /// [`Uring::take_back`].
    pub(crate) fn take_back(&self, user_data: u64) -> bool {
        match self {
            Self::Kernel(ring) => ring.take_back(user_data),
            Self::Epoll(epoll) => epoll.take_back(user_data),
            #[cfg(feature = "sim")]
            Self::Simulated(_) => false,
        }
    }

    /// [`Uring::has_work`]. Always true in a world, so that each turn of the loop enters the ring.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        match self {
            Self::Kernel(ring) => ring.has_work(),
            Self::Epoll(epoll) => epoll.has_work(),
            #[cfg(feature = "sim")]
            Self::Simulated(_) => true,
        }
    }

    /// [`Uring::has_completions`].
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        each!(self, driver => driver.has_completions())
    }

    /// How often to ask [`Self::has_work`] between two looks at the clock; 0 if polling is
    /// meaningless.
    pub(crate) fn polls(&self) -> u32 {
        match self {
            Self::Kernel(ring) if ring.can_poll() => 16,
            // Each is a system call.
            Self::Epoll(_) => 1,
            _ => 0,
        }
    }

    /// [`Uring::enter`].
    pub(crate) fn enter(&self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        each!(self, driver => driver.enter(want, timeout))
    }

    /// The next completion: user data and result.
    #[inline]
    pub(crate) fn next_completion(&self) -> Option<(u64, Completion)> {
        each!(self, driver => driver.next_completion())
    }
}
