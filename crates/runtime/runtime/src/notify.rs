//! Waiting, on one core, for a change that other code on the same core makes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes all waiters. It remembers nothing: a waiter checks the state that it waits for, before and
/// after.
#[derive(Default)]
pub struct Notify {
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes all current waiters.
    #[inline]
    pub fn notify(&self) {
        if !self.waiters.borrow().is_empty() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Taken out first: a woken future may wait again at once.
        let mut waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        waiters.drain(..).for_each(Waker::wake);
        // Keep the allocation, unless a waiter has begun a new list.
        let mut current = self.waiters.borrow_mut();
        if current.is_empty() {
            *current = waiters;
        }
    }

    /// Registers a waker for the next [`Self::notify`].
    pub fn register(&self, waker: &Waker) {
        let mut waiters = self.waiters.borrow_mut();
        if !waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    /// Waits until `ready` returns a value; it is called at once and after every notification.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match ready() {
            Some(value) => Poll::Ready(value),
            None => {
                self.register(cx.waker());
                Poll::Pending
            }
        })
        .await
    }
}
