//! Group commit: many SYNCHRONIZE CACHEs at once share one fdatasync.
//!
//! Owns which flush covers which request, and the memory of a flush that failed. A request is covered by any flush that
//! *starts* after it was made; one that is already running may have passed the request's writes by. So at most two
//! flushes serve any number of requests: the one that runs, and the one that starts when it ends.
//!
//! A failed flush is never retried as success. After an fsync that failed, Linux marks the lost pages clean and reports
//! the error once; a second fsync would succeed without the data having reached the medium. The first failure is
//! therefore kept, and every later request gets it, until the store is opened anew.

use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::StoreError;
use super::sharded::Sharded;

/// The flushes of one store, shared by all cores.
#[derive(Debug)]
pub(crate) struct Group {
    /// Bytes written since the last flush started. Counted when a write *completes*: a write that completes while a flush
    /// runs is not covered by it.
    dirty: Sharded,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Number of the newest flush that started.
    started: u64,
    /// Number of the newest flush that ended well.
    finished: u64,
    failed: Option<StoreError>,
    waiting: Vec<Waker>,
    /// Counts how often `waiting` was emptied, so that a waiter knows whether its place in it is still its own.
    round: u64,
}

impl Group {
    /// `dirty`: whether the first request must flush. A store over a file that outlives the process must: what an
    /// earlier process wrote and acknowledged may still be in a volatile cache.
    pub(crate) fn new(dirty: bool) -> Self {
        let group = Self { dirty: Sharded::new(), state: Mutex::default() };
        if dirty {
            group.wrote(1);
        }
        group
    }

    /// Notes that a write of some bytes completed that is not durable by itself.
    pub(crate) fn wrote(&self, bytes: u64) {
        // Ordered against the clearing in `sync`: the write is seen by whichever flush takes these bytes from the count.
        self.dirty.add(bytes.max(1));
    }

    /// How many bytes the next flush may have to write.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.sum()
    }

    /// The error of the flush that failed, if one did.
    pub(crate) fn failed(&self) -> Option<StoreError> {
        self.lock().failed
    }

    /// Whether everything written so far is flushed already, or the failure that will never let it be. `None` if a flush
    /// has to be waited for.
    pub(crate) fn settled(&self) -> Option<Result<(), StoreError>> {
        let state = self.lock();
        match state.failed {
            Some(error) => Some(Err(error)),
            None if !state.running && self.dirty() == 0 => Some(Ok(())),
            None => None,
        }
    }

    /// Waits until a flush that started after this call has ended, running it itself (with `flush`) if nobody else does.
    pub(crate) async fn sync<F>(&self, flush: impl Fn() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let ticket = {
            let state = self.lock();
            // While nothing completed since the running flush started, that flush covers this request too.
            state.started + u64::from(self.dirty() > 0)
        };
        let mut place = None;
        loop {
            match poll_fn(|cx| self.poll_turn(cx, ticket, &mut place)).await {
                Turn::Covered(result) => return result,
                Turn::Lead(number) => {
                    let lead = Lead { group: self, number };
                    // Before the flush looks at the medium.
                    self.dirty.clear();
                    let result = flush().await;
                    lead.end(result);
                }
            }
        }
    }

    fn poll_turn(&self, cx: &mut Context<'_>, ticket: u64, place: &mut Option<(u64, usize)>) -> Poll<Turn> {
        let mut state = self.lock();
        if let Some(error) = state.failed {
            return Poll::Ready(Turn::Covered(Err(error)));
        }
        if state.finished >= ticket {
            return Poll::Ready(Turn::Covered(Ok(())));
        }
        if !state.running {
            state.running = true;
            state.started += 1;
            return Poll::Ready(Turn::Lead(state.started));
        }
        match *place {
            Some((round, at)) if round == state.round => state.waiting[at].clone_from(cx.waker()),
            _ => {
                *place = Some((state.round, state.waiting.len()));
                state.waiting.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, update: impl FnOnce(&mut State)) {
        let mut woken = {
            let mut state = self.lock();
            state.running = false;
            update(&mut state);
            state.round += 1;
            std::mem::take(&mut state.waiting)
        };
        woken.drain(..).for_each(Waker::wake);
        // Hand the memory back for the next round.
        let mut state = self.lock();
        if state.waiting.capacity() == 0 {
            state.waiting = woken;
        }
    }
}

enum Turn {
    Covered(Result<(), StoreError>),
    Lead(u64),
}

/// The one that runs the flush. Dropped before its end (its task was torn down), it leaves the lead to another waiter.
struct Lead<'a> {
    group: &'a Group,
    number: u64,
}

impl Lead<'_> {
    fn end(self, result: Result<(), StoreError>) {
        let number = self.number;
        self.group.leave(|state| match result {
            Ok(()) => state.finished = number,
            Err(error) => state.failed = Some(error),
        });
        std::mem::forget(self);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.group.wrote(1);
        self.group.leave(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Flushes that end when the test says so.
    #[derive(Default)]
    struct Medium {
        flushes: Cell<usize>,
        results: RefCell<VecDeque<Result<(), StoreError>>>,
    }

    impl Medium {
        async fn flush(&self) -> Result<(), StoreError> {
            self.flushes.set(self.flushes.get() + 1);
            poll_fn(|_| match self.results.borrow_mut().pop_front() {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            })
            .await
        }
    }

    fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn requests_made_while_a_flush_runs_share_the_next_one() {
        let (group, medium) = (Group::new(true), Medium::default());
        let sync = || group.sync(|| medium.flush());
        let mut first = pin!(sync());
        assert!(poll(&mut first).is_pending());
        group.wrote(512);
        let (mut second, mut third) = (pin!(sync()), pin!(sync()));
        assert!(poll(&mut second).is_pending());
        assert!(poll(&mut third).is_pending());
        assert_eq!(medium.flushes.get(), 1);

        medium.results.borrow_mut().push_back(Ok(()));
        assert_eq!(poll(&mut first), Poll::Ready(Ok(())));
        assert!(poll(&mut third).is_pending(), "the first flush started before the third request");
        assert!(poll(&mut second).is_pending());
        assert_eq!(medium.flushes.get(), 2);
        medium.results.borrow_mut().push_back(Ok(()));
        assert_eq!(poll(&mut third), Poll::Ready(Ok(())));
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
        assert_eq!(medium.flushes.get(), 2);
    }

    #[test]
    fn a_running_flush_covers_a_request_when_nothing_was_written_since_it_started() {
        let (group, medium) = (Group::new(true), Medium::default());
        let mut first = pin!(group.sync(|| medium.flush()));
        assert!(poll(&mut first).is_pending());
        let mut second = pin!(group.sync(|| medium.flush()));
        assert!(poll(&mut second).is_pending());
        assert_eq!(group.settled(), None, "not before the running flush has ended");
        medium.results.borrow_mut().push_back(Ok(()));
        assert_eq!(poll(&mut first), Poll::Ready(Ok(())));
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
        assert_eq!(medium.flushes.get(), 1);
        assert_eq!(group.settled(), Some(Ok(())));
        group.wrote(512);
        assert_eq!(group.settled(), None);
    }

    #[test]
    fn a_failed_flush_fails_every_later_request() {
        let (group, medium) = (Group::new(true), Medium::default());
        medium.results.borrow_mut().extend([Err(StoreError::Io(5)), Ok(()), Ok(())]);
        for _ in 0..3 {
            let mut sync = pin!(group.sync(|| medium.flush()));
            assert_eq!(poll(&mut sync), Poll::Ready(Err(StoreError::Io(5))));
        }
        assert_eq!(medium.flushes.get(), 1, "it is not tried again");
        assert_eq!(group.settled(), Some(Err(StoreError::Io(5))));
    }

    #[test]
    fn a_dropped_leader_hands_the_lead_over() {
        let (group, medium) = (Group::new(true), Medium::default());
        let mut second = pin!(group.sync(|| medium.flush()));
        {
            let mut first = pin!(group.sync(|| medium.flush()));
            assert!(poll(&mut first).is_pending());
            assert!(poll(&mut second).is_pending());
        }
        assert!(poll(&mut second).is_pending());
        assert_eq!(medium.flushes.get(), 2, "the second runs a flush of its own");
        medium.results.borrow_mut().push_back(Ok(()));
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
    }

    /// Wakes a thread.
    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            std::thread::park_timeout(std::time::Duration::from_secs(10));
        }
    }

    #[test]
    fn every_request_of_every_thread_is_covered_by_a_flush_that_started_after_its_write() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 2000;
        let (group, written, flushed) = (Group::new(true), AtomicU64::new(0), AtomicU64::new(0));
        let flushes = AtomicU64::new(0);
        let flush = || async {
            flushes.fetch_add(1, Ordering::Relaxed);
            let covered = written.load(Ordering::SeqCst);
            std::thread::yield_now();
            flushed.fetch_max(covered, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        group.wrote(1);
                        if round % 3 == 0 {
                            std::thread::yield_now();
                        }
                        match group.settled() {
                            Some(result) => result.unwrap(),
                            None => block_on(group.sync(flush)).unwrap(),
                        }
                        assert!(flushed.load(Ordering::SeqCst) >= mine, "the flush did not cover this write");
                    }
                });
            }
        });
        let flushes = flushes.load(Ordering::Relaxed);
        assert!(flushes < THREADS * ROUNDS, "{flushes} flushes: none was shared");
    }
}
