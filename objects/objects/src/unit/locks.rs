//! Isolation: exclusion of commands by object, part and range. Owns the table of locks that are
//! held or waited for, on all cores; never touches an object.
//!
//! A lock is of one object, of its data or of its attributes, of a range of bytes, shared or
//! exclusive. Grants go by arrival: a waiting request keeps later ones out that conflict with it,
//! so none starves. The table is cut into shards by object; a shard is a mutex that is never held
//! across an await. Its entries are at most the commands that run. Waiting commands do not spin.
//!
//! A command that takes several locks takes them in ascending order of [`Key`], so that no two can
//! wait for each other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use osd::Id;

/// Shards; objects are spread over them by their ids.
const SHARDS: usize = 64;

/// The part of an object that a lock is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Data,
    Attributes,
    /// Its end: those that append take turns.
    Tail,
    /// The quota: commands that grow a partition with a quota take turns.
    Quota,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub id: Id,
    pub part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
    /// True: no other lock may overlap it. False: no exclusive one may.
    pub exclusive: bool,
}

impl Mode {
    /// All of it, for reading.
    pub const SHARED: Self = Self { start: 0, end: u64::MAX, exclusive: false };
    /// All of it, for changing it.
    pub(crate) const EXCLUSIVE: Self = Self { exclusive: true, ..Self::SHARED };

    fn conflicts(self, other: Self) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

struct Entry {
    ticket: u64,
    key: Key,
    mode: Mode,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Shard {
    /// By arrival.
    entries: VecDeque<Entry>,
    next: u64,
}

impl Shard {
    /// Whether an earlier entry keeps `ticket` out.
    fn blocked(&self, ticket: u64) -> bool {
        let Some(at) = self.entries.iter().position(|e| e.ticket == ticket) else { return false };
        let own = &self.entries[at];
        self.entries.range(..at).any(|e| e.key == own.key && e.mode.conflicts(own.mode))
    }
}

/// A shard on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

pub(super) struct Locks {
    shards: Box<[Aligned]>,
}

impl Locks {
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Aligned::default()).collect() }
    }

    fn shard(&self, key: Key) -> &Aligned {
        let mixed = (key.id.partition.rotate_left(32) ^ key.id.object).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// Waits for a lock; it is held until the guard is dropped. One whose future is dropped while
    /// it waits leaves nothing behind.
    pub async fn lock(&self, key: Key, mode: Mode) -> Guard<'_> {
        let shard = self.shard(key);
        let ticket = {
            let mut table = shard.lock();
            let ticket = table.next;
            table.next += 1;
            table.entries.push_back(Entry { ticket, key, mode, waker: None });
            ticket
        };
        let guard = Guard { shard, ticket };
        poll_fn(|cx| guard.poll(cx)).await;
        guard
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().entries.is_empty())
    }
}

impl Aligned {
    fn lock(&self) -> MutexGuard<'_, Shard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock, granted or waited for; it ends when this is dropped.
pub(super) struct Guard<'a> {
    shard: &'a Aligned,
    ticket: u64,
}

impl Guard<'_> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut table = self.shard.lock();
        if !table.blocked(self.ticket) {
            return Poll::Ready(());
        }
        if let Some(entry) = table.entries.iter_mut().find(|e| e.ticket == self.ticket) {
            entry.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut table = self.shard.lock();
        let Some(at) = table.entries.iter().position(|e| e.ticket == self.ticket) else { return };
        let gone = table.entries.remove(at);
        let Some(gone) = gone else { return };
        // Those behind it that it may have kept out look again; without any there is nothing to
        // allocate.
        let concerned = |e: &Entry| e.key == gone.key && e.waker.is_some() && e.mode.conflicts(gone.mode);
        let from = at.min(table.entries.len());
        let wakers: Vec<Waker> =
            table.entries.range_mut(from..).filter(|e| concerned(e)).filter_map(|e| e.waker.take()).collect();
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::tests::block_on;
    use super::*;

    fn key(object: u64) -> Key {
        Key { id: Id::new(0x1_0000, object), part: Part::Data }
    }

    fn range(start: u64, end: u64, exclusive: bool) -> Mode {
        Mode { start, end, exclusive }
    }

    fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn readers_share_and_a_writer_waits_for_them_and_those_behind_it_for_the_writer() {
        let locks = Locks::new();
        let one = block_on(locks.lock(key(1), Mode::SHARED));
        let two = block_on(locks.lock(key(1), Mode::SHARED));
        let mut writer = pin!(locks.lock(key(1), Mode::EXCLUSIVE));
        assert!(poll(&mut writer).is_pending());
        let mut late = pin!(locks.lock(key(1), Mode::SHARED));
        assert!(poll(&mut late).is_pending(), "it would starve the writer");
        let _other = block_on(locks.lock(key(2), Mode::EXCLUSIVE));
        drop(one);
        assert!(poll(&mut writer).is_pending());
        drop(two);
        let Poll::Ready(writing) = poll(&mut writer) else { panic!("nobody is before it") };
        assert!(poll(&mut late).is_pending());
        drop(writing);
        assert!(poll(&mut late).is_ready());
    }

    #[test]
    fn ranges_and_parts_that_do_not_meet_do_not_wait() {
        let locks = Locks::new();
        let first = block_on(locks.lock(key(1), range(0, 100, true)));
        let _beside = block_on(locks.lock(key(1), range(100, 200, true)));
        let attributes = Key { part: Part::Attributes, ..key(1) };
        let _attributes = block_on(locks.lock(attributes, Mode::EXCLUSIVE));
        let mut across = pin!(locks.lock(key(1), range(99, 100, false)));
        assert!(poll(&mut across).is_pending());
        drop(first);
        assert!(poll(&mut across).is_ready());
    }

    #[test]
    fn one_that_stops_waiting_lets_those_behind_it_in() {
        let locks = Locks::new();
        let reading = block_on(locks.lock(key(1), Mode::SHARED));
        let mut late = pin!(locks.lock(key(1), Mode::SHARED));
        {
            let mut writer = pin!(locks.lock(key(1), Mode::EXCLUSIVE));
            assert!(poll(&mut writer).is_pending());
            assert!(poll(&mut late).is_pending());
        }
        assert!(poll(&mut late).is_ready());
        drop(reading);
        assert!(block_on(async { locks.lock(key(1), Mode::EXCLUSIVE).await.ticket }) > 0);
        assert!(locks.is_empty());
    }

    #[test]
    fn updates_of_many_threads_are_not_lost() {
        const ROUNDS: u64 = 2000;
        let shared = Arc::new((Locks::new(), AtomicU64::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    for _ in 0..ROUNDS {
                        let _guard = block_on(shared.0.lock(key(1), Mode::EXCLUSIVE));
                        let seen = shared.1.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        shared.1.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(shared.1.load(Ordering::Relaxed), 4 * ROUNDS);
        assert!(shared.0.is_empty());
    }
}
