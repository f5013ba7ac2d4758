//! [`Awaited`]: a value that one thread changes, and that tasks on all cores wait for.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A value that all threads may change and wait for. Each look takes a lock.
pub struct Awaited<T>(Mutex<Inner<T>>);

struct Inner<T> {
    value: T,
    /// By number. Who gives up takes its own out.
    waiting: HashMap<u64, Waker>,
    /// The last waiter's number.
    last: u64,
}

impl<T> Awaited<T> {
    /// One with this value.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Inner { value, waiting: HashMap::new(), last: 0 }))
    }

    /// Runs `look` on the value. Nobody is woken.
    pub fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.lock().value)
    }

    /// Changes the value, and wakes all who wait.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        let mut inner = self.lock();
        change(&mut inner.value);
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Waits until `find` finds something in the value.
    pub async fn until<R>(&self, find: impl Fn(&T) -> Option<R>) -> R {
        // Most look for what is there, and take the lock once.
        let found = find(&self.lock().value);
        if let Some(found) = found {
            return found;
        }
        let waiter = Waiter::new(self);
        poll_fn(|cx| {
            let mut inner = self.lock();
            if let Some(found) = find(&inner.value) {
                return Poll::Ready(found);
            }
            inner.waiting.insert(waiter.number, cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits, until it is dropped.
struct Waiter<'a, T> {
    on: &'a Awaited<T>,
    number: u64,
}

impl<'a, T> Waiter<'a, T> {
    fn new(on: &'a Awaited<T>) -> Self {
        let mut inner = on.lock();
        inner.last += 1;
        Self { on, number: inner.last }
    }
}

impl<T> Drop for Waiter<'_, T> {
    fn drop(&mut self) {
        self.on.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn all_who_wait_are_woken_and_those_who_give_up_leave_nothing() {
        let value = Awaited::new(1);
        let seven = |value: &i32| (*value == 7).then_some("seven");
        let mut cx = Context::from_waker(Waker::noop());
        let mut one = pin!(value.until(seven));
        for _ in 0..100 {
            let mut gives_up = pin!(value.until(seven));
            assert!(gives_up.as_mut().poll(&mut cx).is_pending());
            assert!(one.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(value.lock().waiting.len(), 1);
        value.change(|value| *value = 7);
        assert!(value.lock().waiting.is_empty());
        assert_eq!(one.as_mut().poll(&mut cx), Poll::Ready("seven"));
        let numbers = value.lock().last;
        assert_eq!(pin!(value.until(seven)).poll(&mut cx), Poll::Ready("seven"));
        assert_eq!(value.lock().last, numbers, "who does not wait takes no number");
    }
}
