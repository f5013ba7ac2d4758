//! Waiting for one command.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use invariant::broken;
use iscsi::initiator::{Session as Protocol, TaskKey};

use super::Response;
use super::state::{Inner, Task};
use crate::error::Error;
use crate::payload::{Data, Destination};

/// An outstanding command. Dropping the ticket does not stop the command; its answer is then
/// dropped.
///
/// It ends with [`Error::Lost`] if the session was lost and the command is not repeatable, or was
/// repeated too often. It ends with [`Error::Rejected`] or [`Error::TargetFailure`] if the target
/// did not run it. It ends with [`Error::Aborted`] after [`super::Session::abort`], or a function
/// of [`super::Session::task_management`] that includes it.
#[must_use = "a command's outcome is known by awaiting its ticket"]
pub struct Ticket {
    inner: Rc<Inner>,
    /// `None` after the answer was taken.
    slot: Option<usize>,
}

impl Ticket {
    /// The slot of a command of the session `inner` without an answer.
    pub(super) fn unanswered_in(&self, inner: &Rc<Inner>) -> Option<usize> {
        let slot = self.slot.filter(|_| Rc::ptr_eq(inner, &self.inner))?;
        let core = inner.core.borrow();
        core.slots.get(slot).is_some_and(|entry| entry.answer.is_none()).then_some(slot)
    }
}

/// Passes a task to the session's protocol ([`Inner::submit`]), to be waited for.
///
/// # Errors
/// Why the session has ended; [`Error::Argument`] if `submit` refuses the task.
pub(super) fn submit(
    inner: &Rc<Inner>,
    destination: Destination,
    write_len: usize,
    submit: impl FnOnce(&mut Protocol<Data, Task>, Task) -> Result<TaskKey, Task>,
) -> Result<Ticket, Error> {
    let slot = inner.submit(destination, write_len, submit)?;
    Ok(Ticket { inner: inner.clone(), slot: Some(slot) })
}

impl Future for Ticket {
    type Output = Result<Response, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else { return Poll::Ready(Err(Error::Closed)) };
        let mut core = self.inner.core.borrow_mut();
        let Some(entry) = core.slots.get_mut(slot) else {
            broken!("a ticket without a slot");
            return Poll::Ready(Err(Error::Closed));
        };
        let Some(answer) = entry.answer.take() else {
            if !entry.waiter.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                entry.waiter = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        core.slots.remove(slot);
        drop(core);
        self.slot = None;
        Poll::Ready(answer)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let mut core = self.inner.core.borrow_mut();
        match core.slots.get_mut(slot) {
            Some(entry) if entry.answer.is_none() => {
                entry.abandoned = true;
                entry.waiter = None;
            }
            Some(_) => drop(core.slots.remove(slot)),
            None => broken!("a ticket without a slot"),
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}
