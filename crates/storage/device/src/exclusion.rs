//! Excludes the commands that must be atomic (COMPARE AND WRITE, ORWRITE, WRITE ATOMIC) from all
//! other writes of a unit, on all cores. Owns the right to write to a range; never touches a block.
//!
//! While no atomic command is pending, a plain write costs two uncontended atomic operations on a
//! cache line of its own core: it counts itself in and out. An atomic command announces itself,
//! waits until every plain write counted in before has left, and then owns its range. Plain writes
//! that arrive meanwhile see the announcement and queue in a table behind a mutex. They sleep only
//! while they overlap an earlier atomic command. No thread spins.
//!
//! Why this is safe: a plain write first counts itself in and then checks for an announcement. An
//! atomic command first announces itself and then reads the counters. All four operations are
//! sequentially consistent, so one of the two sees the other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use super::sync::{AtomicU32, Mutex, MutexGuard, Ordering, SLOTS, slot};

/// A counter on a cache line (and its prefetched neighbour) of its own.
#[repr(align(128))]
#[derive(Default)]
struct Slot(AtomicU32);

/// The exclusion of one unit. Its callers choose the unit of the ranges.
pub struct Exclusion {
    slots: Box<[Slot]>,
    /// Atomic commands in the table.
    atomics: AtomicU32,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// In the order of arrival.
    entries: VecDeque<Entry>,
    next: u64,
}

struct Entry {
    id: u64,
    start: u64,
    end: u64,
    atomic: bool,
    waker: Option<Waker>,
}

impl Table {
    /// Whether an earlier entry blocks `id`.
    fn blocked(&self, id: u64) -> bool {
        let Some(at) = self.entries.iter().position(|e| e.id == id) else { return false };
        let own = &self.entries[at];
        self.entries.range(..at).any(|e| (e.atomic || own.atomic) && e.start < own.end && own.start < e.end)
    }

    fn wakers(&mut self) -> Vec<Waker> {
        self.entries.iter_mut().filter_map(|e| e.waker.take()).collect()
    }
}

impl Default for Exclusion {
    fn default() -> Self {
        Self::new()
    }
}

impl Exclusion {
    /// An exclusion without writes.
    pub fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            atomics: AtomicU32::new(0),
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a plain write in, unless an atomic command is pending; then [`Self::write`] must
    /// queue.
    #[inline]
    pub fn try_write(&self) -> Option<Counted<'_>> {
        let slot = slot();
        self.slots[slot].0.fetch_add(1, Ordering::SeqCst);
        // From here on the guard's drop counts the write out, and wakes an atomic command that
        // waits for it.
        let guard = Counted { exclusion: self, slot };
        (self.atomics.load(Ordering::SeqCst) == 0).then_some(guard)
    }

    /// Waits until a plain write of `start..end` may run.
    pub async fn write(&self, start: u64, end: u64) -> WriteGuard<'_> {
        match self.try_write() {
            Some(guard) => WriteGuard::Counted(guard),
            None => WriteGuard::Queued(self.enter(start, end, false).await),
        }
    }

    /// Waits until no other write overlaps `start..end`, and blocks later ones.
    pub async fn atomic(&self, start: u64, end: u64) -> Queued<'_> {
        let guard = self.enter(start, end, true).await;
        // A slot seen empty stays empty. Later writers that count themselves in see the
        // announcement and leave.
        let mut drained = 0;
        poll_fn(|cx| self.poll_drained(cx, guard.id, &mut drained)).await;
        guard
    }

    async fn enter(&self, start: u64, end: u64, atomic: bool) -> Queued<'_> {
        let id = {
            let mut table = self.table();
            let id = table.next;
            table.next += 1;
            table.entries.push_back(Entry { id, start, end, atomic, waker: None });
            if atomic {
                self.atomics.fetch_add(1, Ordering::SeqCst);
            }
            id
        };
        let guard = Queued { exclusion: self, id };
        poll_fn(|cx| {
            let mut table = self.table();
            if !table.blocked(id) {
                return Poll::Ready(());
            }
            table.park(id, cx);
            Poll::Pending
        })
        .await;
        guard
    }

    fn poll_drained(&self, cx: &mut Context<'_>, id: u64, drained: &mut usize) -> Poll<()> {
        // Park before reading the counters: a writer that leaves afterwards finds the waker.
        self.table().park(id, cx);
        while *drained < SLOTS {
            if self.slots[*drained].0.load(Ordering::SeqCst) != 0 {
                return Poll::Pending;
            }
            *drained += 1;
        }
        Poll::Ready(())
    }

    /// Counts a plain write out of `slot`.
    #[inline]
    fn leave_slot(&self, slot: usize) {
        self.slots[slot].0.fetch_sub(1, Ordering::SeqCst);
        if self.atomics.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let wakers = self.table().wakers();
        wakers.into_iter().for_each(Waker::wake);
    }

    #[cold]
    fn leave(&self, id: u64) {
        let mut table = self.table();
        if let Some(at) = table.entries.iter().position(|e| e.id == id) {
            if table.entries.remove(at).is_some_and(|e| e.atomic) {
                self.atomics.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let wakers = table.wakers();
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Table {
    fn park(&mut self, id: u64, cx: &Context<'_>) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.id == id) {
            entry.waker = Some(cx.waker().clone());
        }
    }
}

/// A plain write's right, held by its counter; ends on drop.
pub struct Counted<'a> {
    exclusion: &'a Exclusion,
    slot: usize,
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.exclusion.leave_slot(self.slot);
    }
}

/// An entry in the table, granted or still waiting; ends on drop.
pub struct Queued<'a> {
    exclusion: &'a Exclusion,
    id: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.exclusion.leave(self.id);
    }
}

/// The right to write; ends on drop.
pub enum WriteGuard<'a> {
    Counted(#[allow(dead_code, reason = "held for its drop")] Counted<'a>),
    /// Granted by the table.
    Queued(#[allow(dead_code, reason = "held for its drop")] Queued<'a>),
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::task::Wake;

    use super::*;

    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Runs a future by parking the thread: a lost wake-up would hang it.
    fn run<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Thread(std::thread::current())));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            std::thread::park();
        }
    }

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_atomic_command_waits_for_plain_writes_and_plain_writes_for_it() {
        let exclusion = Exclusion::new();
        let plain = exclusion.try_write().unwrap();
        let mut atomic = pin!(exclusion.atomic(0, 8));
        assert!(poll_once(atomic.as_mut()).is_pending());
        assert!(exclusion.try_write().is_none());
        drop(plain);
        let Poll::Ready(guard) = poll_once(atomic.as_mut()) else { panic!("the plain write is gone") };
        let mut beside = pin!(exclusion.write(8, 9));
        assert!(poll_once(beside.as_mut()).is_ready());
        let mut within = pin!(exclusion.write(7, 9));
        assert!(poll_once(within.as_mut()).is_pending());
        drop(guard);
        assert!(poll_once(within.as_mut()).is_ready());
        assert!(exclusion.try_write().is_some());
    }

    #[test]
    fn overlapping_atomic_commands_take_turns_by_arrival() {
        let exclusion = Exclusion::new();
        let mut first = pin!(exclusion.atomic(0, 4));
        let mut second = pin!(exclusion.atomic(2, 6));
        let mut third = pin!(exclusion.atomic(10, 12));
        let Poll::Ready(guard) = poll_once(first.as_mut()) else { panic!("nobody is before it") };
        assert!(poll_once(second.as_mut()).is_pending());
        assert!(poll_once(third.as_mut()).is_ready());
        drop(guard);
        assert!(poll_once(second.as_mut()).is_ready());
    }

    #[test]
    fn one_that_stops_waiting_leaves_nothing_behind() {
        let exclusion = Exclusion::new();
        let plain = exclusion.try_write().unwrap();
        {
            let mut atomic = pin!(exclusion.atomic(0, 8));
            assert!(poll_once(atomic.as_mut()).is_pending());
        }
        drop(plain);
        assert!(exclusion.try_write().is_some());
        assert!(exclusion.table().entries.is_empty());
    }

    #[test]
    fn read_modify_writes_of_many_threads_lose_no_update() {
        // Atomic commands add one in two steps. Plain writes write a value back that they read
        // under their guard. An overlap of an atomic command with either loses an addition.
        const ROUNDS: u64 = 2000;
        let shared = Arc::new((Exclusion::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let (exclusion, value, writers) = &*shared;
                    for _ in 0..ROUNDS {
                        if n % 2 == 0 {
                            let _guard = run(exclusion.atomic(0, 1));
                            assert_eq!(writers.load(Ordering::SeqCst), 0);
                            let seen = value.load(Ordering::Relaxed);
                            std::hint::spin_loop();
                            value.store(seen + 1, Ordering::Relaxed);
                        } else {
                            let _guard = run(exclusion.write(0, 1));
                            writers.fetch_add(1, Ordering::SeqCst);
                            std::hint::spin_loop();
                            writers.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(shared.1.load(Ordering::Relaxed), 2 * ROUNDS);
    }
}
