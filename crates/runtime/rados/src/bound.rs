//! A bound of bytes in flight, which all cores share. Those who wait are served in order.
//!
//! librbd takes any number of operations, copies their data, and holds what does not fit into its
//! own limits in memory, or blocks its caller. So the bound stands before it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes that may be in flight.
pub(crate) struct Bound {
    all: u64,
    state: Mutex<State>,
}

struct State {
    free: u64,
    next_ticket: u64,
    /// By ticket, in order.
    waiting: VecDeque<(u64, Waker)>,
}

/// Bytes of the [`Bound`] of `K`, until it is dropped. Keeps `K`.
pub(crate) struct Permit<K: AsRef<Bound>> {
    keep: K,
    bytes: u64,
}

/// Waits for `bytes` of the bound of `keep`; for all of the bound, if it has fewer.
pub(crate) fn take<K: AsRef<Bound>>(keep: K, bytes: u64) -> Take<K> {
    let bytes = bytes.min(keep.as_ref().all);
    Take { keep: Some(keep), bytes, ticket: None }
}

impl Bound {
    pub(crate) fn new(all: u64) -> Self {
        let state = State { free: all, next_ticket: 0, waiting: VecDeque::new() };
        Self { all, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake_first(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }
}

/// The future of [`take`].
pub(crate) struct Take<K: AsRef<Bound>> {
    /// Until the permit has it.
    keep: Option<K>,
    bytes: u64,
    /// While it waits.
    ticket: Option<u64>,
}

impl<K: AsRef<Bound> + Unpin> Future for Take<K> {
    type Output = Permit<K>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit<K>> {
        let this = &mut *self;
        let Some(keep) = this.keep.take() else { return Poll::Pending };
        let mut state = keep.as_ref().state();
        let first = match this.ticket {
            Some(ticket) => state.waiting.front().is_some_and(|(front, _)| *front == ticket),
            None => state.waiting.is_empty(),
        };
        if first && this.bytes <= state.free {
            state.free -= this.bytes;
            if this.ticket.take().is_some() {
                state.waiting.pop_front();
            }
            // There may be enough for the next one too.
            let next = state.wake_first();
            drop(state);
            next.into_iter().for_each(Waker::wake);
            return Poll::Ready(Permit { keep, bytes: this.bytes });
        }
        match this.ticket {
            Some(ticket) => {
                let own = state.waiting.iter_mut().find(|(number, _)| *number == ticket);
                own.into_iter().for_each(|(_, waker)| waker.clone_from(cx.waker()));
            }
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.waiting.push_back((ticket, cx.waker().clone()));
                this.ticket = Some(ticket);
            }
        }
        drop(state);
        this.keep = Some(keep);
        Poll::Pending
    }
}

impl<K: AsRef<Bound>> Drop for Take<K> {
    fn drop(&mut self) {
        let (Some(ticket), Some(keep)) = (self.ticket, &self.keep) else { return };
        let mut state = keep.as_ref().state();
        state.waiting.retain(|(number, _)| *number != ticket);
        // It may have been woken for bytes that it does not take.
        let next = state.wake_first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl<K: AsRef<Bound>> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut state = self.keep.as_ref().state();
        state.free += self.bytes;
        let next = state.wake_first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn poll(take: &mut Take<Arc<Bound>>) -> Poll<Permit<Arc<Bound>>> {
        Pin::new(take).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_small_request_does_not_overtake_a_large_one_that_waits() {
        let bound = Arc::new(Bound::new(10));
        let Poll::Ready(held) = poll(&mut take(bound.clone(), 6)) else { panic!("all is free") };
        let (mut large, mut small) = (take(bound.clone(), 8), take(bound.clone(), 1));
        assert!(poll(&mut large).is_pending());
        assert!(poll(&mut small).is_pending());
        drop(held);
        assert!(poll(&mut small).is_pending());
        let Poll::Ready(large) = poll(&mut large) else { panic!("it is first") };
        assert!(poll(&mut small).is_ready());
        drop(large);
    }

    #[test]
    fn one_that_goes_leaves_its_place_and_more_than_all_is_all() {
        let bound = Arc::new(Bound::new(10));
        let Poll::Ready(held) = poll(&mut take(bound.clone(), 100)) else { panic!("all is free") };
        let (mut first, mut second) = (take(bound.clone(), 10), take(bound.clone(), 10));
        assert!(poll(&mut first).is_pending());
        assert!(poll(&mut second).is_pending());
        drop(held);
        drop(first);
        assert!(poll(&mut second).is_ready());
        assert_eq!(bound.state().free, 10, "the permit is gone with the test's temporary");
        drop(second);
        assert_eq!(Arc::strong_count(&bound), 1, "nothing keeps it any more");
    }

    #[test]
    fn no_more_is_in_flight_than_allowed_and_all_get_their_turn() {
        let bound = Arc::new(Bound::new(100));
        let in_flight = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let (bound, in_flight) = (bound.clone(), in_flight.clone());
                std::thread::spawn(move || {
                    let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
                    runtime.block_on(async move {
                        let tasks = (0..20u64).map(|task| {
                            let (bound, in_flight) = (bound.clone(), in_flight.clone());
                            runtime::spawn(async move {
                                for round in 0..50 {
                                    let bytes = (thread + task + round) % 70 + 1;
                                    let permit = take(bound.clone(), bytes).await;
                                    let now = in_flight.fetch_add(bytes, Ordering::SeqCst) + bytes;
                                    assert!(now <= 100, "{now}");
                                    runtime::yield_now().await;
                                    in_flight.fetch_sub(bytes, Ordering::SeqCst);
                                    drop(permit);
                                }
                            })
                        });
                        for task in tasks.collect::<Vec<_>>() {
                            task.await.unwrap();
                        }
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(bound.state().free, 100);
    }
}
