//! Operations that a foreign library carries out on threads of its own, and completes by callbacks.
//!
//! They follow the rule of this module: a [`Foreign`] owns the memory that the library uses. If it
//! is dropped before its completion, the table keeps that memory until the completion arrives.
//! Nothing here can cancel such an operation.

use std::ffi::c_void;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::Op;
use crate::pooled::PooledBox;
use crate::runtime::{Address, Core};

/// An operation in flight in a foreign library. It resolves on the core that started it.
pub struct Foreign<T: 'static>(Op<PooledBox<Slot<T>>>);

/// Its memory, which stays at one address until the completion.
struct Slot<T> {
    place: Place,
    data: T,
}

/// Where its completion belongs.
struct Place {
    core: Address,
    user_data: u64,
}

/// The right to complete one operation, from any thread. Dropping it completes the operation with
/// -ECANCELED.
pub struct Completer(NonNull<Place>);

// SAFETY: it only reads the place, which nobody writes after it was made.
unsafe impl Send for Completer {}

impl<T: 'static> Foreign<T> {
    /// Starts an operation on this core. `submit` hands it to the library: it may give the library
    /// pointers into `data`, and to memory that `data` owns. Neither moves before the operation
    /// has been completed.
    pub fn start(data: T, submit: impl FnOnce(&mut T, Completer)) -> Self {
        let core = Core::current();
        let key = Op::<()>::reserve(&core);
        let place = Place { core: core.address(), user_data: key.user_data() };
        let mut slot = PooledBox::new(Slot { place, data });
        let Slot { place, data } = &mut *slot;
        let (completer, data) = (Completer(NonNull::from(&*place)), NonNull::from(data));
        // From here on the table keeps the slot alive, even if `submit` panics.
        let op = Op { core, key, data: Some(slot) };
        // SAFETY: the slot's content does not move with `op`, and nothing else uses it meanwhile.
        submit(unsafe { &mut *data.as_ptr() }, completer);
        Self(op)
    }
}

impl<T: 'static> Future for Foreign<T> {
    /// The result given to [`Completer::complete`], and the memory.
    type Output = (i32, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let done = Pin::new(&mut self.0).poll(cx);
        done.map(|(completion, slot)| (completion.result, slot.into_inner().data))
    }
}

impl Completer {
    /// Completes the operation with `result`, from any thread.
    pub fn complete(self, result: i32) {
        ManuallyDrop::new(self).send(result);
    }

    fn send(&self, result: i32) {
        // SAFETY: the operation's memory lives until its completion, or for ever if its runtime
        // has ended without it.
        let Place { core, user_data } = unsafe { self.0.as_ref() };
        // Sending frees the place: read it before.
        let (core, user_data) = (*core, *user_data);
        core.complete(user_data, result);
    }

    /// As the argument of a callback.
    pub fn into_raw(self) -> *mut c_void {
        ManuallyDrop::new(self).0.as_ptr().cast()
    }

    /// From the argument of a callback.
    ///
    /// # Safety
    /// `raw` came from [`Self::into_raw`], and is given back once.
    pub unsafe fn from_raw(raw: *mut c_void) -> Self {
        // SAFETY: the caller says that it was made from a `NonNull`.
        Self(unsafe { NonNull::new_unchecked(raw.cast()) })
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.send(-libc::ECANCELED);
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completer")
    }
}
