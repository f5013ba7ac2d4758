//! Group commit: many concurrent SYNCHRONIZE CACHEs share one fdatasync.
//!
//! Owns which flush covers which request, and the record of a failed flush. Any flush that *starts*
//! after a request covers it; a flush already running may have missed the request's writes. So at
//! most two flushes serve any number of requests: the running one, and the one that starts when it
//! ends.
//!
//! A failed flush is never retried as success. After a failed fsync Linux marks the lost pages
//! clean and reports the error once. A second fsync would succeed although the data never reached
//! the medium. So the first failure is kept, and every later request gets it, until an
//! administrator acknowledges it ([`Health`]).

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::sharded::Sharded;
use super::{Health, StoreError};

/// The flushes of one store, shared by all cores.
#[derive(Debug)]
pub(crate) struct Group {
    /// Bytes written since the last flush started. A write counts when it *completes*: a running
    /// flush does not cover a write that completes meanwhile.
    dirty: Sharded,
    state: Mutex<State>,
    health: Arc<Health>,
    obeys: Obeys,
}

/// Failed flushes that make a store refuse further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obeys {
    /// Every one recorded in its [`Health`]: the store is the whole medium.
    Health,
    /// Only its own: the store is part of a medium, whose owner checks the [`Health`].
    Itself,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Number of the newest flush that started.
    started: u64,
    /// Number of the newest flush that succeeded.
    finished: u64,
    /// The failure of a flush, and the number of acknowledgements before it.
    failed: Option<(StoreError, u64)>,
    waiting: Vec<Waker>,
    /// Number of times `waiting` was emptied, so that a waiter knows whether its index is still
    /// valid.
    round: u64,
}

impl Group {
    /// `dirty`: whether the first request must flush. Required for a file that outlives the
    /// process: writes acknowledged by an earlier process may still be in a volatile cache.
    pub(crate) fn new(dirty: bool, health: Arc<Health>, obeys: Obeys) -> Self {
        let group = Self { dirty: Sharded::new(), state: Mutex::default(), health, obeys };
        if dirty {
            group.wrote(1);
        }
        group
    }

    /// Counts the bytes of a completed write that is not durable by itself.
    pub(crate) fn wrote(&self, bytes: u64) {
        // Ordered against the clearing in `sync`: the flush that takes these bytes from the count
        // sees the write.
        self.dirty.add(bytes.max(1));
    }

    /// Bytes that the next flush may have to write.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.sum()
    }

    /// The failure in force, if any.
    fn failed(&self, state: &State) -> Option<StoreError> {
        if self.obeys == Obeys::Health
            && let Some(error) = self.health.flush_refusal()
        {
            return Some(error);
        }
        let (error, before) = state.failed?;
        (self.health.acknowledgements() == before).then_some(error)
    }

    /// Whether every write so far is flushed, or the failure in force. `None` if a flush is needed.
    pub(crate) fn settled(&self) -> Option<Result<(), StoreError>> {
        let state = self.lock();
        match self.failed(&state) {
            Some(error) => Some(Err(error)),
            // After an acknowledged failure the amount of dirty data is unknown.
            None if !state.running && state.finished == state.started && self.dirty() == 0 => Some(Ok(())),
            None => None,
        }
    }

    /// Waits until a flush that started after this call has ended. Runs it with `flush` unless
    /// another caller does.
    pub(crate) async fn sync<F>(&self, flush: impl Fn() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let ticket = {
            let state = self.lock();
            // If no write completed since the running flush started, that flush covers this request
            // too.
            state.started + u64::from(self.dirty() > 0)
        };
        let mut place = None;
        loop {
            match poll_fn(|cx| self.poll_turn(cx, ticket, &mut place)).await {
                Turn::Covered(result) => return result,
                Turn::Lead(number) => {
                    let lead = Lead { group: self, number };
                    // Clear before the flush starts.
                    self.dirty.clear();
                    let result = flush().await;
                    lead.end(result);
                }
            }
        }
    }

    fn poll_turn(&self, cx: &mut Context<'_>, ticket: u64, place: &mut Option<(u64, usize)>) -> Poll<Turn> {
        let mut state = self.lock();
        if let Some(error) = self.failed(&state) {
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
        // Return the memory for the next round.
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

/// The caller that runs the flush. If it is dropped before the end (its task was torn down),
/// another waiter takes the lead.
struct Lead<'a> {
    group: &'a Group,
    number: u64,
}

impl Lead<'_> {
    fn end(self, result: Result<(), StoreError>) {
        let number = self.number;
        self.group.leave(|state| match result {
            Ok(()) => state.finished = number,
            Err(error) => state.failed = Some((error, self.group.health.acknowledgements())),
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

    fn group() -> Group {
        Group::new(true, Health::new("medium"), Obeys::Health)
    }

    /// A medium whose flushes end when the test says so.
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
        let (group, medium) = (group(), Medium::default());
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
    fn a_running_flush_covers_a_request_without_writes_since_its_start() {
        let (group, medium) = (group(), Medium::default());
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
        let (group, medium) = (group(), Medium::default());
        medium.results.borrow_mut().extend([Err(StoreError::Io(5)), Ok(()), Ok(())]);
        for _ in 0..3 {
            let mut sync = pin!(group.sync(|| medium.flush()));
            assert_eq!(poll(&mut sync), Poll::Ready(Err(StoreError::Io(5))));
        }
        assert_eq!(medium.flushes.get(), 1, "it is not tried again");
        assert_eq!(group.settled(), Some(Err(StoreError::Io(5))));
    }

    #[test]
    fn after_an_acknowledged_failure_the_next_request_flushes() {
        for obeys in [Obeys::Health, Obeys::Itself] {
            let health = Health::new("medium");
            let (group, medium) = (Group::new(true, health.clone(), obeys), Medium::default());
            medium.results.borrow_mut().extend([Err(StoreError::Io(5)), Ok(())]);
            let mut sync = pin!(group.sync(|| medium.flush()));
            assert_eq!(poll(&mut sync), Poll::Ready(Err(StoreError::Io(5))));
            health.acknowledge().unwrap();
            assert_eq!(group.settled(), None, "nothing was written since, and yet a flush is due");
            let mut sync = pin!(group.sync(|| medium.flush()));
            assert_eq!(poll(&mut sync), Poll::Ready(Ok(())));
            assert_eq!((medium.flushes.get(), group.settled()), (2, Some(Ok(()))));
        }
    }

    #[test]
    fn a_failure_of_an_earlier_life_is_obeyed_by_a_whole_medium_only() {
        let health = Health::new("medium");
        health.flush_failed(5, None);
        let whole = Group::new(true, health.clone(), Obeys::Health);
        assert_eq!(whole.settled(), Some(Err(StoreError::Io(5))));
        assert_eq!(Group::new(true, health, Obeys::Itself).settled(), None);
    }

    #[test]
    fn a_dropped_leader_hands_the_lead_over() {
        let (group, medium) = (group(), Medium::default());
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
    fn every_request_gets_a_flush_that_started_after_its_write() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 2000;
        let (group, written, flushed) = (group(), AtomicU64::new(0), AtomicU64::new(0));
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
