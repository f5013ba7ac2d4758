//! Waking one task of this thread from another.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A flag that one task waits for. Ringing it twice before the task runs counts once.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Bell {
    pub fn ring(&self) {
        if !self.rung.replace(true) {
            if let Some(waker) = self.waiter.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// Whether it was rung; clears it.
    pub fn take(&self) -> bool {
        self.rung.replace(false)
    }

    pub async fn heard(&self) {
        poll_fn(|cx| {
            if self.take() {
                return Poll::Ready(());
            }
            let mut waiter = self.waiter.borrow_mut();
            if !waiter.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waiter = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// Tasks that wait for room, in order.
#[derive(Debug, Default)]
pub(crate) struct Room {
    waiting: RefCell<VecDeque<Waker>>,
}

impl Room {
    pub fn wake_one(&self) {
        let first = self.waiting.borrow_mut().pop_front();
        if let Some(waker) = first {
            waker.wake();
        }
    }

    pub fn wake_all(&self) {
        let all = std::mem::take(&mut *self.waiting.borrow_mut());
        all.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` returns true. Calls it again whenever a task is woken.
    pub async fn until(&self, mut ready: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
