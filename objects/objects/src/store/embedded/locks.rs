//! [`Locks`]: changes wait for one another by object and by partition.
//!
//! Objects and partitions are spread over a fixed number of locks, which are taken in one order, so
//! that no deadlock arises. Waiting costs a core nothing. Readers take no lock here.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::store::Id;

const PARTITIONS: usize = 128;
const OBJECTS: usize = 1024;

pub(super) struct Locks(Box<[Mutex<Lock>]>);

#[derive(Default)]
struct Lock {
    shared: u32,
    exclusive: bool,
    /// Waiters for exclusive use, which therefore keep new sharers away.
    wanted: u32,
    waiting: VecDeque<Waker>,
}

/// The locks that a change needs, each shared or exclusive (`true`).
#[derive(Debug, Default)]
pub(super) struct Needed(SmallVec<[(u16, bool); 8]>);

impl Needed {
    /// For a change of one object, while its partition stays as it is.
    pub fn object(&mut self, id: Id) {
        self.0.push((stripe(id.partition, 0, PARTITIONS), false));
        self.0.push((PARTITIONS as u16 + stripe(id.partition, id.object, OBJECTS), true));
    }

    /// For a change of a partition as a whole.
    pub fn partition(&mut self, id: u64) {
        self.0.push((stripe(id, 0, PARTITIONS), true));
    }

    /// For emptying homes without a partition, which must not run during a check either.
    pub fn emptying(&mut self) {
        self.0.push(((PARTITIONS + OBJECTS) as u16, true));
    }

    pub fn all(&mut self) {
        self.0.extend((0..PARTITIONS as u16).map(|at| (at, true)));
    }

    fn sorted(mut self) -> SmallVec<[(u16, bool); 8]> {
        // The exclusive wish of one lock comes first, and is the one that stays.
        self.0.sort_unstable_by_key(|(at, exclusive)| (*at, !exclusive));
        self.0.dedup_by_key(|(at, _)| *at);
        self.0
    }
}

fn stripe(a: u64, b: u64, count: usize) -> u16 {
    let mixed = (a.rotate_left(32) ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) as usize % count) as u16
}

/// Locks that are held until this is dropped.
pub(super) struct Held {
    locks: Arc<Locks>,
    held: SmallVec<[(u16, bool); 8]>,
}

impl Locks {
    pub fn new() -> Self {
        Self((0..=PARTITIONS + OBJECTS).map(|_| Mutex::default()).collect())
    }

    fn lock(&self, at: u16) -> MutexGuard<'_, Lock> {
        self.0[usize::from(at)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn take(self: &Arc<Self>, needed: Needed) -> Held {
        let mut held = Held { locks: self.clone(), held: SmallVec::new() };
        for (at, exclusive) in needed.sorted() {
            self.take_one(at, exclusive).await;
            held.held.push((at, exclusive));
        }
        held
    }

    /// Takes all of them, if none has to be waited for.
    pub fn try_take(self: &Arc<Self>, needed: Needed) -> Option<Held> {
        match pin!(self.take(needed)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(held) => Some(held),
            Poll::Pending => None,
        }
    }

    async fn take_one(&self, at: u16, exclusive: bool) {
        /// Takes the wish back when the waiter is dropped.
        struct Wish<'a>(&'a Locks, u16, bool);
        impl Drop for Wish<'_> {
            fn drop(&mut self) {
                if self.2 {
                    let mut lock = self.0.lock(self.1);
                    lock.wanted -= 1;
                    if lock.wanted == 0 {
                        lock.waiting.drain(..).for_each(Waker::wake);
                    }
                }
            }
        }
        let mut wish = Wish(self, at, false);
        poll_fn(|cx| {
            let mut lock = self.lock(at);
            let free = if exclusive {
                !lock.exclusive && lock.shared == 0
            } else {
                !lock.exclusive && lock.wanted == 0
            };
            if free {
                lock.exclusive = exclusive;
                lock.shared += u32::from(!exclusive);
                return Poll::Ready(());
            }
            if exclusive && !wish.2 {
                wish.2 = true;
                lock.wanted += 1;
            }
            if !lock.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                lock.waiting.push_back(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (at, exclusive) in self.held.drain(..) {
            let mut lock = self.locks.lock(at);
            if exclusive {
                lock.exclusive = false;
            } else {
                lock.shared -= 1;
            }
            if lock.shared == 0 {
                lock.waiting.drain(..).for_each(Waker::wake);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(locks: &Arc<Locks>, needed: Needed) -> Option<Held> {
        locks.try_take(needed)
    }

    fn object(partition: u64, object: u64) -> Needed {
        let mut needed = Needed::default();
        needed.object(Id::new(partition, object));
        needed
    }

    fn partition(id: u64) -> Needed {
        let mut needed = Needed::default();
        needed.partition(id);
        needed
    }

    #[test]
    fn one_object_is_changed_by_one_and_a_partition_by_nobody_else() {
        let locks = Arc::new(Locks::new());
        let first = now(&locks, object(1, 1)).unwrap();
        assert!(now(&locks, object(1, 1)).is_none());
        let second = now(&locks, object(1, 2)).unwrap();
        assert!(now(&locks, partition(1)).is_none());
        drop((first, second));
        let whole = now(&locks, partition(1)).unwrap();
        assert!(now(&locks, object(1, 3)).is_none());
        assert!(now(&locks, object(2, 3)).is_some());
        drop(whole);
        assert!(now(&locks, object(1, 3)).is_some());
    }

    #[test]
    fn who_wants_a_partition_is_not_kept_waiting_by_those_who_come_later() {
        let locks = Arc::new(Locks::new());
        let first = now(&locks, object(1, 1)).unwrap();
        let mut whole = pin!(locks.take(partition(1)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(whole.as_mut().poll(&mut cx).is_pending());
        assert!(now(&locks, object(1, 2)).is_none());
        drop(first);
        assert!(whole.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn who_stops_waiting_lets_the_others_in() {
        let locks = Arc::new(Locks::new());
        let _first = now(&locks, object(1, 1)).unwrap();
        {
            let mut whole = pin!(locks.take(partition(1)));
            assert!(whole.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(now(&locks, object(1, 2)).is_some());
    }
}
