//! A bound of bytes in flight, which all cores share. Those who wait are served in order.
//!
//! librbd takes any number of operations, copies their data, and holds what does not fit into its
//! own limits in memory, or blocks its caller. So the bound stands before it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes that may be in flight. Clones share them.
#[derive(Clone)]
pub(crate) struct Bound(Arc<Shared>);

struct Shared {
    all: u64,
    state: Mutex<State>,
}

struct State {
    free: u64,
    next_ticket: u64,
    /// By ticket, in order.
    waiting: VecDeque<(u64, Waker)>,
}

/// Bytes of a [`Bound`], until it is dropped.
pub(crate) struct Permit {
    bound: Bound,
    bytes: u64,
}

impl Bound {
    pub(crate) fn new(all: u64) -> Self {
        let state = State { free: all, next_ticket: 0, waiting: VecDeque::new() };
        Self(Arc::new(Shared { all, state: Mutex::new(state) }))
    }

    /// Waits for `bytes`; for all of the bound, if it has fewer.
    pub(crate) fn take(&self, bytes: u64) -> Take {
        Take { bound: self.clone(), bytes: bytes.min(self.0.all), ticket: None }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake_first(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }
}

/// The future of [`Bound::take`].
pub(crate) struct Take {
    bound: Bound,
    bytes: u64,
    /// While it waits.
    ticket: Option<u64>,
}

impl Future for Take {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut state = this.bound.state();
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
            return Poll::Ready(Permit { bound: this.bound.clone(), bytes: this.bytes });
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
        Poll::Pending
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.bound.state();
        state.waiting.retain(|(number, _)| *number != ticket);
        // It may have been woken for bytes that it does not take.
        let next = state.wake_first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.bound.state();
        state.free += self.bytes;
        let next = state.wake_first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn poll(take: &mut Take) -> Poll<Permit> {
        Pin::new(take).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_small_request_does_not_overtake_a_large_one_that_waits() {
        let bound = Bound::new(10);
        let Poll::Ready(held) = poll(&mut bound.take(6)) else { panic!("all is free") };
        let (mut large, mut small) = (bound.take(8), bound.take(1));
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
        let bound = Bound::new(10);
        let Poll::Ready(held) = poll(&mut bound.take(100)) else { panic!("all is free") };
        let (mut first, mut second) = (bound.take(10), bound.take(10));
        assert!(poll(&mut first).is_pending());
        assert!(poll(&mut second).is_pending());
        drop(held);
        drop(first);
        assert!(poll(&mut second).is_ready());
        assert_eq!(bound.state().free, 10, "the permit is gone with the test's temporary");
    }

    #[test]
    fn no_more_is_in_flight_than_allowed_and_all_get_their_turn() {
        let bound = Bound::new(100);
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
                                    let permit = bound.take(bytes).await;
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
