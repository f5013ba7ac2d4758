//! [`Group`]: several operations that wait for a file to be durable share one fsync. Decides which
//! flush covers which operation.
//!
//! A flush that starts after a request covers it; one that runs already may have missed its
//! changes.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tree::TreeError;

/// Failures remembered for operations that have not asked yet.
const MOST_FAILURES: usize = 64;

/// The flushes of one file, shared by all cores.
#[derive(Default)]
pub(crate) struct Group(Mutex<State>);

#[derive(Default)]
struct State {
    running: bool,
    /// Number of the newest flush that started.
    started: u64,
    /// Number of the newest flush that ended.
    ended: u64,
    failures: Vec<(u64, TreeError)>,
    waiting: Vec<Waker>,
}

impl Group {
    /// Waits until a flush that began after this call has ended. `start` begins one, given its
    /// number, and must ensure a call of [`Self::ended`].
    pub(crate) async fn flushed(&self, start: impl Fn(u64)) -> Result<(), TreeError> {
        let wanted = self.lock().started + 1;
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.ended >= wanted {
                let failure = state.failures.iter().find(|(number, _)| *number == wanted);
                return Poll::Ready(failure.map_or(Ok(()), |(_, error)| Err(*error)));
            }
            if !state.waiting.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            if !state.running {
                state.running = true;
                state.started += 1;
                let number = state.started;
                drop(state);
                start(number);
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the flush of this number.
    pub(crate) fn ended(&self, number: u64, result: Result<(), TreeError>) {
        let mut state = self.lock();
        state.running = false;
        state.ended = number;
        if let Err(error) = result {
            if state.failures.len() == MOST_FAILURES {
                state.failures.remove(0);
            }
            state.failures.push((number, error));
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn those_who_come_during_a_flush_share_the_next_one_and_its_failure() {
        let (group, begun) = (Group::default(), RefCell::new(Vec::new()));
        let flush = || group.flushed(|number| begun.borrow_mut().push(number));
        let (mut first, mut second, mut third) = (pin!(flush()), pin!(flush()), pin!(flush()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        assert_eq!(*begun.borrow(), [1], "the others wait");
        group.ended(1, Ok(()));
        assert_eq!(first.poll(&mut cx), Poll::Ready(Ok(())));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        assert_eq!(*begun.borrow(), [1, 2], "one for both");
        group.ended(2, Err(TreeError::Io(5)));
        assert_eq!(second.poll(&mut cx), Poll::Ready(Err(TreeError::Io(5))));
        assert_eq!(third.poll(&mut cx), Poll::Ready(Err(TreeError::Io(5))));
        let mut fourth = pin!(flush());
        assert!(fourth.as_mut().poll(&mut cx).is_pending());
        group.ended(3, Ok(()));
        assert_eq!(fourth.poll(&mut cx), Poll::Ready(Ok(())), "a later flush is another one");
    }
}
