//! Operations in flight.
//!
//! The rule of this module: **an operation in flight owns the memory that the kernel may use.** An
//! [`Op`] holds its buffers; when it is dropped before its completion has arrived, they move to the
//! operation table and stay there until it does. The operation is cancelled, but cancelling only
//! hurries the completion. The file needs no such care: once submitted, the kernel holds the file
//! itself, and a call on a thread does too. An operation that is dropped while still queued is
//! submitted before the drop returns, so the descriptor's number cannot be given to another file in
//! between.

mod driver;
mod epoll;
mod foreign;
mod generation;
mod provided;
mod restrictions;
pub(crate) mod sqe;
mod table;
mod uring;
mod watched;

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use io_uring::squeue::Entry;
use io_uring::{cqueue, opcode, squeue};

pub use driver::Backend;
pub(crate) use driver::Driver;
use epoll::Epoll;
pub use foreign::{Completer, Foreign};
pub(crate) use provided::{Provided, RECV_BUFFER};
pub(crate) use table::{Completed, Key, Table};
use uring::Uring;
pub(crate) use watched::Watched;

use crate::fs::Call;
use crate::runtime::Core;
use table::Orphan;

/// User data of entries whose completion carries no information.
pub(crate) const IGNORED: u64 = u64::MAX;
/// User data of the poll by which other threads wake a core.
pub(crate) const WOKEN: u64 = u64::MAX - 1;

/// Content of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

impl Completion {
    /// The result as a count, or the error that it was.
    pub(crate) fn count(self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(self.result.wrapping_neg()))
    }

    /// The provided buffer that the kernel chose.
    pub(crate) fn buffer(self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }

    /// Whether more completions of the same operation follow.
    pub(crate) fn more(self) -> bool {
        cqueue::more(self.flags)
    }

    /// Whether the socket had more to read.
    pub(crate) fn socket_nonempty(self) -> bool {
        cqueue::sock_nonempty(self.flags)
    }
}

/// Whether an operation that failed with this error should be tried again.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// One operation with one completion, and the data that it owns.
pub(crate) struct Op<T: 'static> {
    core: Rc<Core>,
    key: Key,
    /// Present until the operation has ended.
    data: Option<T>,
}

/// Nothing points into it: memory that the kernel uses does not move with `data`.
impl<T> Unpin for Op<T> {}

impl<T: 'static> Op<T> {
    /// Starts an operation on this thread's ring.
    ///
    /// # Safety
    /// Everything that `entry` points to is owned by `data`, stays valid while `data` is alive, and
    /// does not move when `data` does.
    #[inline]
    pub(crate) unsafe fn start(entry: Entry, data: T) -> Self {
        // SAFETY: passed on.
        unsafe { Self::start_on(Core::current(), entry, data) }
    }

    /// Like [`Self::start`], on a ring at hand.
    ///
    /// # Safety
    /// As for [`Self::start`].
    #[inline]
    pub(crate) unsafe fn start_on(core: Rc<Core>, entry: Entry, data: T) -> Self {
        let mut table = core.table.borrow_mut();
        let key = table.insert(false);
        // SAFETY: `data` is kept by this `Op`, and by the table after it, until the completion has
        // been seen.
        let number = unsafe { core.uring.push(&entry.user_data(key.user_data())) };
        table.set_number(key, number);
        drop(table);
        Self { core, key, data: Some(data) }
    }
}

impl<T: 'static> Op<T> {
    /// Starts an operation of a file: on the ring, or on a thread of a core without one.
    ///
    /// # Safety
    /// As for [`Self::start`].
    pub(crate) unsafe fn on_file(core: Rc<Core>, entry: Entry, data: T, file: &Arc<OwnedFd>) -> Self {
        // SAFETY: passed on.
        unsafe {
            match core.uring.carries_files() {
                true => Self::start_on(core, entry, data),
                false => Self::start_call(core, entry, data, file),
            }
        }
    }

    /// Like [`Self::on_file`], for a file's data: submitted without waiting for many others.
    ///
    /// # Safety
    /// As for [`Self::start`].
    #[inline]
    pub(crate) unsafe fn transfer(
        way: Way,
        core: Rc<Core>,
        entry: Entry,
        data: T,
        file: &Arc<OwnedFd>,
    ) -> Self {
        if way == Way::Thread || !core.uring.carries_files() {
            // SAFETY: passed on.
            return unsafe { Self::start_call(core, entry, data, file) };
        }
        // SAFETY: passed on.
        let op = unsafe { Self::start_on(core, entry, data) };
        op.core.uring.hurry();
        op
    }

    /// A place in the table for an operation that the ring does not carry out.
    fn reserve(core: &Core) -> Key {
        let mut table = core.table.borrow_mut();
        let key = table.insert(false);
        // Number 0: the ring has nothing to submit for it.
        table.set_number(key, 0);
        key
    }

    /// Starts an operation of a file that a thread of this core carries out.
    ///
    /// # Safety
    /// As for [`Self::start`].
    unsafe fn start_call(core: Rc<Core>, entry: Entry, data: T, file: &Arc<OwnedFd>) -> Self {
        let key = Self::reserve(&core);
        core.calls.borrow_mut().push(Call::new(&entry.user_data(key.user_data()), file));
        Self { core, key, data: Some(data) }
    }
}

/// Who carries out an operation of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The core's ring, if it has one.
    Core,
    /// A thread.
    Thread,
}

impl<T: 'static> Future for Op<T> {
    type Output = (Completion, T);
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(completion) = self.core.table.borrow_mut().poll(self.key, cx) else { return Poll::Pending };
        let data = self.data.take().expect("polled after it was ready");
        Poll::Ready((completion, data))
    }
}

impl<T: 'static> Drop for Op<T> {
    fn drop(&mut self) {
        let Some(data) = self.data.take() else { return };
        let done = self.core.table.borrow_mut().abandon(self.key, || Orphan::new(data));
        match done {
            // It had ended, and no task had asked: only a buffer that the kernel chose is left to
            // be put back.
            Some(completion) => {
                if let Some(buffer) = completion.buffer() {
                    self.core.provided.borrow_mut().put_back(buffer);
                }
            }
            None => cancel(&self.core, self.key),
        }
    }
}

/// An operation with any number of completions, none of which points to our memory. Dropping it
/// ends it; completions that were not taken or that still come go to its `dispose`.
pub(crate) struct Multi {
    core: Rc<Core>,
    key: Key,
    dispose: fn(Completion),
}

impl Multi {
    /// Starts an operation on this thread's ring.
    ///
    /// # Safety
    /// `entry` points to nothing.
    pub(crate) unsafe fn start(entry: Entry, dispose: fn(Completion)) -> Self {
        let core = Core::current();
        let mut table = core.table.borrow_mut();
        let key = table.insert(true);
        // SAFETY: the caller says that the entry points to nothing.
        let number = unsafe { core.uring.push(&entry.user_data(key.user_data())) };
        table.set_number(key, number);
        drop(table);
        Self { core, key, dispose }
    }

    /// The next completion; `None` once the last one has been taken.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        self.core.table.borrow_mut().poll_next(self.key, cx)
    }
}

impl Drop for Multi {
    fn drop(&mut self) {
        let (running, left) = self.core.table.borrow_mut().abandon_multi(self.key, self.dispose);
        left.into_iter().for_each(self.dispose);
        if running {
            cancel(&self.core, self.key);
        }
    }
}

/// Asks the kernel to cancel an operation. Returns after the operation itself was submitted.
fn cancel(core: &Core, key: Key) {
    if core.uring.take_back(key.user_data()) {
        // The kernel never saw it, so nothing else completes it.
        core.complete(key.user_data(), Completion { result: -libc::ECANCELED, flags: 0 });
        return;
    }
    let entry = opcode::AsyncCancel::new(key.user_data()).build();
    let entry = entry.user_data(IGNORED).flags(squeue::Flags::SKIP_SUCCESS);
    // SAFETY: the entry points to nothing.
    unsafe { core.uring.push(&entry) };
    let number = core.table.borrow().number(key);
    if number.is_some_and(|n| !core.uring.is_submitted(n)) {
        // An error shows at the next turn of the loop.
        let _ = core.uring.enter(0, None);
    }
}
