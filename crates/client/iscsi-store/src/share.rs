//! What other cores see of a link.
//!
//! A unit attention for a power on comes once a session. So only the session that made a change can
//! say whether it is still in the far cache: it would hear of the power on before its SYNCHRONIZE
//! CACHE runs. A session that was made after the power on hears nothing of worth, and its
//! SYNCHRONIZE CACHE succeeds though the data is gone. Each link therefore counts its own changes,
//! and flushes them itself when another core asks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use backing::StoreError;

/// Of one link.
#[derive(Default)]
pub(crate) struct Share {
    /// Counts changes that were acknowledged and may be in a volatile cache.
    changes: AtomicU64,
    /// Of these, how many a flush has covered.
    flushed: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    asked: VecDeque<Asked>,
    waker: Option<Waker>,
    /// The link has gone.
    is_over: bool,
}

type Outcome = Result<(), StoreError>;

/// A flush that another core asks for. Dropped, it ends with an unknown outcome.
pub(crate) struct Asked(Arc<Mutex<Answer>>);

#[derive(Default)]
struct Answer {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Share {
    /// A change was acknowledged that only a flush makes durable.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// What a flush that begins now will cover.
    pub(crate) fn to_flush(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn has_flushed(&self, changes: u64) {
        self.flushed.fetch_max(changes, Ordering::AcqRel);
    }

    pub(crate) fn has_unflushed(&self) -> bool {
        self.flushed.load(Ordering::Acquire) < self.to_flush()
    }

    /// The far cache may be gone. True if acknowledged changes may be gone with it; they are
    /// reported once.
    pub(crate) fn lost(&self) -> bool {
        let changes = self.to_flush();
        self.flushed.fetch_max(changes, Ordering::AcqRel) < changes
    }

    /// Has the link flush its changes. Begins at once.
    pub(crate) fn flush(&self) -> impl Future<Output = Outcome> + use<> {
        let answer = Arc::<Mutex<Answer>>::default();
        let asked = Asked(answer.clone());
        let mut waiting = lock(&self.waiting);
        if !waiting.is_over {
            waiting.asked.push_back(asked);
            let waker = waiting.waker.take();
            drop(waiting);
            waker.into_iter().for_each(Waker::wake);
        }
        poll_fn(move |cx| {
            let mut answer = lock(&answer);
            match answer.outcome.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    answer.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }

    /// The next flush that is asked for; `None` once the link goes.
    pub(crate) fn poll_asked(&self, cx: &Context<'_>) -> Poll<Option<Asked>> {
        let mut waiting = lock(&self.waiting);
        match waiting.asked.pop_front() {
            Some(asked) => Poll::Ready(Some(asked)),
            None if waiting.is_over => Poll::Ready(None),
            None => {
                waiting.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The link goes.
    pub(crate) fn end(&self) {
        let (asked, waker) = {
            let mut waiting = lock(&self.waiting);
            waiting.is_over = true;
            (std::mem::take(&mut waiting.asked), waiting.waker.take())
        };
        drop(asked);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Asked {
    pub(crate) fn end(self, outcome: Outcome) {
        self.answer(outcome);
    }

    fn answer(&self, outcome: Outcome) {
        let waker = {
            let mut answer = lock(&self.0);
            answer.outcome.get_or_insert(outcome);
            answer.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Without effect after an answer that was taken: nobody waits any more.
        self.answer(Err(StoreError::Unknown));
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unflushed_changes_are_lost_once() {
        let share = Share::default();
        assert!(!share.lost());
        share.changed();
        let seen = share.to_flush();
        share.changed();
        share.has_flushed(seen);
        assert!(share.has_unflushed() && share.lost(), "a change after the flush began");
        assert!(!share.has_unflushed() && !share.lost(), "it was reported");
    }

    #[test]
    fn a_flush_of_a_link_that_has_gone_is_of_unknown_outcome() {
        let run = |future| {
            runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async { future.await })
        };
        let share = Share::default();
        let before = share.flush();
        share.end();
        assert_eq!(run(before), Err(StoreError::Unknown));
        assert_eq!(run(share.flush()), Err(StoreError::Unknown));
    }
}
