//! The ring that takes a core's operations: the kernel's io_uring, or a simulated one.

use std::io;
use std::time::Duration;

use io_uring::IoUring;
use io_uring::squeue::Entry;

use super::{Completion, Uring};
#[cfg(feature = "sim")]
use crate::sim::{self, ring::SimRing};

/// One core's ring.
#[cfg_attr(feature = "sim", expect(clippy::large_enum_variant, reason = "there is one a core"))]
pub(crate) enum Driver {
    Kernel(Uring),
    #[cfg(feature = "sim")]
    Simulated(SimRing),
}

/// One expression for the kernel's ring, another for a simulated one.
macro_rules! either {
    ($self:ident, $ring:ident => $call:expr, $other:expr) => {
        match $self {
            Self::Kernel($ring) => $call,
            #[cfg(feature = "sim")]
            Self::Simulated($ring) => $other,
        }
    };
}

impl Driver {
    /// The ring of a new core: see [`Uring::new`].
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some(here) = sim::here() {
            return Ok(Self::Simulated(SimRing::new(here)));
        }
        Uring::new(entries).map(Self::Kernel)
    }

    /// Registers the mailbox of the core with a simulated ring.
    pub(crate) fn own(&self, mailbox: u16) {
        either!(self, _kernel => _ = mailbox, _kernel.own(mailbox));
    }

    /// The kernel's ring; `None` if it is simulated.
    pub(crate) fn kernel(&self) -> Option<&IoUring> {
        either!(self, ring => Some(ring.ring()), {
            let _ = ring;
            None
        })
    }

    /// Registers a ring of provided buffers.
    ///
    /// # Safety
    /// The address is that of `count` entries, a power of two, which stay mapped as long as the
    /// ring exists.
    pub(crate) unsafe fn provide(&self, address: u64, count: u16) -> io::Result<()> {
        // SAFETY: the caller's.
        unsafe {
            either!(self, ring => ring.ring().submitter().register_buf_ring_with_flags(address, count, 0, 0), {
                ring.provide(address, count);
                Ok(())
            })
        }
    }

    /// [`Uring::push`].
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its completion has been seen.
    #[inline]
    pub(crate) unsafe fn push(&self, entry: &Entry) -> u64 {
        // SAFETY: the caller's.
        either!(self, ring => unsafe { ring.push(entry) }, ring.push(entry))
    }

    /// [`Uring::hurry`].
    #[inline]
    pub(crate) fn hurry(&self) {
        either!(self, ring => ring.hurry(), {
            let _ = ring;
        });
    }

    /// [`Uring::submit`].
    pub(crate) fn submit(&self) {
        either!(self, ring => ring.submit(), ring.submit());
    }

    /// [`Uring::unsubmitted`].
    #[inline]
    pub(crate) fn unsubmitted(&self) -> usize {
        either!(self, ring => ring.unsubmitted(), ring.unsubmitted())
    }

    /// [`Uring::is_submitted`].
    pub(crate) fn is_submitted(&self, number: u64) -> bool {
        either!(self, ring => ring.is_submitted(number), ring.is_submitted(number))
    }

    /// [`Uring::take_back`].
    pub(crate) fn take_back(&self, user_data: u64) -> bool {
        either!(self, ring => ring.take_back(user_data), {
            let _ = (ring, user_data);
            false
        })
    }

    /// [`Uring::has_work`]. Always true in a world, so that each turn of the loop enters the ring.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        either!(self, ring => ring.has_work(), {
            let _ = ring;
            true
        })
    }

    /// [`Uring::has_completions`].
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        either!(self, ring => ring.has_completions(), ring.has_completions())
    }

    /// [`Uring::can_poll`].
    pub(crate) fn can_poll(&self) -> bool {
        either!(self, ring => ring.can_poll(), {
            let _ = ring;
            false
        })
    }

    /// [`Uring::enter`].
    pub(crate) fn enter(&self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        either!(self, ring => ring.enter(want, timeout), ring.enter(want, timeout))
    }

    /// The next completion: user data and result.
    #[inline]
    pub(crate) fn next_completion(&self) -> Option<(u64, Completion)> {
        either!(self, ring => {
            let entry = ring.next_completion()?;
            Some((entry.user_data(), Completion::from_entry(&entry)))
        }, ring.next_completion())
    }
}
