//! Waiting, on one core, for something that other code on the same core will do.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes everybody who waits. It remembers nothing: a waiter looks at the state it waits for, before and after.
#[derive(Default)]
pub struct Notify {
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes all who wait now.
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
        // Keep the allocation, unless somebody has begun a new list.
        let mut current = self.waiters.borrow_mut();
        if current.is_empty() {
            *current = waiters;
        }
    }

    /// Leaves a waker for the next [`Self::notify`].
    pub fn register(&self, waker: &Waker) {
        let mut waiters = self.waiters.borrow_mut();
        if !waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    /// Waits until `ready` gives something; it is asked at once and after every notification.
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
