//! Keeps concurrent commands whole: [`Stripes`] records which 512-byte sectors are being changed,
//! on all cores.
//!
//! The table has one word per 4 KiB of the medium; blocks a multiple of 16 MiB apart share a word.
//! A word has one bit for each of its eight sectors, set while a command changes that sector. The
//! rest of the word is a version that grows with each change.
//!
//! - A writer claims its sectors ([`Stripes::try_claim`], [`Stripes::claim`]): it sets their bits,
//!   changes the medium, clears the bits and increments the versions. So two writers of the same
//!   sectors take turns. Writers of different sectors do not wait for each other, however close
//!   these are.
//! - A reader whose transport can hold memory while the socket copies it ([`Guard`]) claims its
//!   sectors for that time. It makes no copy of its own.
//! - Any other reader writes nothing here. It records the words ([`Stripes::look`]), reads, and
//!   compares ([`Stripes::is_whole`]). If no bit of its sectors is set and no version differs, they
//!   did not change. Otherwise it claims them, as a writer does, and reads again.
//!
//! No thread spins: a command that does not get its sectors at once queues in a table behind a
//! mutex, in order of arrival, and is woken. A claim may last as long as an I/O. Its holder must
//! never wait for an initiator or for another claim.
//!
//! No deadlock: a claim takes its words in table order, so the holder of the last word can always
//! continue. No lost wake-up: a waiter first counts itself in and then reads the word. A command
//! that clears a bit reads that count afterwards.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use invariant::broken;
use runtime::Guard;
use smallvec::SmallVec;

use super::sync::{AtomicU32, Mutex, MutexGuard, Ordering, WORDS, fence};

/// Bytes per word: the longest command that others always see whole or not at all.
pub(super) const PIECE: usize = 4096;
/// Bytes per bit: the smallest block size of any unit.
const SECTOR: u64 = 512;

/// The bits of all sectors of a word.
const ALL: u32 = 0xff;
/// Increment of the version.
const VERSION: u32 = 0x100;

/// The sectors of one unit that commands are changing.
pub(super) struct Stripes {
    words: Box<[AtomicU32]>,
    /// Number of waiting claims.
    waiting: AtomicU32,
    table: Mutex<Table>,
}

/// The words of a range of bytes, and in each word the bits of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Index of the first block's word.
    start: usize,
    /// Number of words, all different.
    count: usize,
    /// The bits of the first block's sectors, and of the last one's.
    head: u32,
    tail: u32,
}

impl Places {
    /// The words of `bytes` bytes at `at`, with at least one byte.
    #[inline]
    fn of(at: u64, bytes: u64) -> Self {
        let last = at.saturating_add(bytes - 1);
        let piece = PIECE as u64;
        let blocks = last / piece - at / piece + 1;
        if blocks >= WORDS as u64 {
            return Self { start: 0, count: WORDS, head: ALL, tail: ALL };
        }
        let head = ALL << (at % piece / SECTOR) & ALL;
        let tail = ALL >> (7 - last % piece / SECTOR);
        let (head, tail) = if blocks == 1 { (head & tail, head & tail) } else { (head, tail) };
        Self { start: (at / piece) as usize % WORDS, count: blocks as usize, head, tail }
    }

    /// Word and bits of the range's `n`th block.
    #[inline]
    fn block(&self, n: usize) -> (usize, u32) {
        let bits = match n {
            0 => self.head,
            n if n + 1 == self.count => self.tail,
            _ => ALL,
        };
        ((self.start + n) % WORDS, bits)
    }

    /// Like [`Self::block`], in the order of the table.
    #[inline]
    fn in_order(&self, n: usize) -> (usize, u32) {
        let wrapped = (self.start + self.count).saturating_sub(WORDS);
        let before = self.count - wrapped;
        self.block(if n < wrapped { before + n } else { n - wrapped })
    }

    /// The range's bits in a word.
    fn bits_of(&self, word: usize) -> u32 {
        let n = (word + WORDS - self.start) % WORDS;
        if n < self.count { self.block(n).1 } else { 0 }
    }

    /// Whether the two ranges share a word.
    fn meets(&self, other: &Self) -> bool {
        let behind = |a: &Self, b: &Self| (b.start + WORDS - a.start) % WORDS < a.count;
        behind(self, other) || behind(other, self)
    }
}

/// The words of a range as a reader saw them.
pub(super) struct Seen<const N: usize> {
    places: Places,
    words: [u32; N],
}

/// Waiting claims, in order of arrival.
#[derive(Default)]
struct Table {
    entries: VecDeque<Entry>,
    next: u64,
}

struct Entry {
    id: u64,
    places: Places,
    waker: Option<Waker>,
}

impl Stripes {
    /// A table without claims.
    pub(super) fn new() -> Self {
        let words = std::iter::repeat_with(AtomicU32::default).take(WORDS).collect();
        Self { words, waiting: AtomicU32::new(0), table: Mutex::default() }
    }

    /// Claims `bytes` bytes at `at`, if none of them is claimed and no claim of the unit waits.
    #[inline]
    pub(super) fn try_claim(&self, at: u64, bytes: u64) -> Option<Claim<'_>> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let places = Places::of(at, bytes);
        for n in 0..places.count {
            if !self.take(places.in_order(n)) {
                self.give_back(&places, n);
                return None;
            }
        }
        Some(Claim { stripes: self, places })
    }

    /// Waits until none of the `bytes` bytes at `at` is claimed, and claims them.
    pub(super) async fn claim(&self, at: u64, bytes: u64) -> Claim<'_> {
        match self.try_claim(at, bytes) {
            Some(claim) => claim,
            None => self.wait_for(Places::of(at, bytes)).await,
        }
    }

    async fn wait_for(&self, places: Places) -> Claim<'_> {
        let mut waiter = {
            let mut table = self.table();
            let id = table.next;
            table.next += 1;
            table.entries.push_back(Entry { id, places, waker: None });
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // The words are read after that: the load that looks at a word has no order by itself.
            fence(Ordering::SeqCst);
            Waiter { stripes: self, id, places, taken: 0 }
        };
        poll_fn(|cx| waiter.poll(cx)).await;
        waiter.taken = 0;
        Claim { stripes: self, places }
    }

    /// Records the words of a range of at most `N` 4 KiB blocks.
    #[inline]
    pub(super) fn look<const N: usize>(&self, at: u64, bytes: u64) -> Seen<N> {
        let places = Places::of(at, bytes);
        debug_assert!(places.count <= N);
        let mut words = [0; N];
        for (n, word) in words.iter_mut().enumerate().take(places.count) {
            *word = self.words[places.block(n).0].load(Ordering::Acquire);
        }
        Seen { places, words }
    }

    /// Whether the range is unchanged since it was recorded.
    #[inline]
    pub(super) fn is_whole<const N: usize>(&self, seen: &Seen<N>) -> bool {
        fence(Ordering::Acquire);
        (0..seen.places.count).all(|n| {
            let (word, bits) = seen.places.block(n);
            self.is_same(seen, n, word, bits)
        })
    }

    /// The same for a range recorded under the claim `own` of this unit, which may share words with
    /// it.
    pub(super) fn is_whole_beside<const N: usize>(&self, seen: &Seen<N>, own: Option<&Claim<'_>>) -> bool {
        fence(Ordering::Acquire);
        let own = |word| own.map_or(0, |claim| claim.places.bits_of(word));
        (0..seen.places.count).all(|n| {
            let (word, bits) = seen.places.block(n);
            self.is_same(seen, n, word, bits & !own(word))
        })
    }

    /// The same for the range's `n`th block of 4 KiB.
    pub(super) fn is_block_whole<const N: usize>(&self, seen: &Seen<N>, n: usize) -> bool {
        fence(Ordering::Acquire);
        let (word, bits) = seen.places.block(n);
        self.is_same(seen, n, word, bits)
    }

    #[inline]
    fn is_same<const N: usize>(&self, seen: &Seen<N>, n: usize, word: usize, bits: u32) -> bool {
        let (before, now) = (seen.words[n], self.words[word].load(Ordering::Relaxed));
        (before | now) & bits == 0 && (before ^ now) < VERSION
    }

    /// Ends a claim whose guard was consumed by [`Claim::into_places`].
    #[inline]
    pub(super) fn release(&self, places: Places) {
        self.give_back(&places, places.count);
    }

    #[inline]
    fn take(&self, (word, bits): (usize, u32)) -> bool {
        let word = &self.words[word];
        let mut now = word.load(Ordering::Relaxed);
        while now & bits == 0 {
            match word.compare_exchange_weak(now, now | bits, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => {
                    // The bit becomes visible before any following change.
                    fence(Ordering::Release);
                    return true;
                }
                Err(other) => now = other,
            }
        }
        false
    }

    /// Releases the first `taken` words, in the order of the table.
    #[inline]
    fn give_back(&self, places: &Places, taken: usize) {
        // All writes must be visible before the first bit is cleared, including those past the
        // caches. A locked instruction or a fence waits for them.
        if taken > 1 {
            fence(Ordering::SeqCst);
        }
        for n in 0..taken {
            let (word, bits) = places.in_order(n);
            let word = &self.words[word];
            if bits == ALL && taken > 1 {
                // This claim has the whole word: no other command changes it.
                let next = word.load(Ordering::Relaxed).wrapping_add(VERSION - ALL);
                word.store(next, Ordering::Release);
            } else {
                word.fetch_add(VERSION - bits, Ordering::SeqCst);
            }
        }
        if taken > 1 {
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.wake(places);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn wake(&self, places: &Places) {
        let mut table = self.table();
        let met = table.entries.iter_mut().filter(|entry| entry.places.meets(places));
        // Few claims wait for one claim: their wakers need no allocation.
        let wakers: SmallVec<[Waker; 16]> = met.filter_map(|entry| entry.waker.take()).collect();
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Removes a claim from the table, so that later ones may continue.
    fn leave(&self, id: u64, places: &Places) {
        let mut table = self.table();
        match table.entries.iter().position(|entry| entry.id == id) {
            Some(at) => {
                table.entries.remove(at);
                self.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            None => broken!("a claim that waits and is not in the table"),
        }
        drop(table);
        self.wake(places);
    }
}

/// A socket that copies a store's memory claims it meanwhile, as a writer does.
impl Guard for Stripes {
    #[inline]
    fn hold(&self, at: usize, len: usize) -> bool {
        self.try_claim(at as u64, len as u64).map(Claim::into_places).is_some()
    }

    #[inline]
    fn release(&self, at: usize, len: usize) {
        Self::release(self, Places::of(at as u64, len as u64));
    }

    fn settled(&self, at: usize, len: usize) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move { drop(self.claim(at as u64, len as u64).await) })
    }
}

/// A waiting claim. On drop it releases its words and leaves the table.
struct Waiter<'a> {
    stripes: &'a Stripes,
    id: u64,
    places: Places,
    /// Number of words already taken, in the order of the table.
    taken: usize,
}

impl Waiter<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut table = self.stripes.table();
        let Some(own) = table.entries.iter().position(|entry| entry.id == self.id) else {
            broken!("a claim that waits and is not in the table");
            return Poll::Ready(());
        };
        // Store the waker before reading the words: a later release then finds it.
        table.entries[own].waker = Some(cx.waker().clone());
        if table.entries.range(..own).any(|earlier| earlier.places.meets(&self.places)) {
            return Poll::Pending;
        }
        while self.taken < self.places.count {
            if !self.stripes.take(self.places.in_order(self.taken)) {
                return Poll::Pending;
            }
            self.taken += 1;
        }
        Poll::Ready(())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.stripes.give_back(&self.places, self.taken);
        }
        self.stripes.leave(self.id, &self.places);
    }
}

/// The exclusive right to change, and to read, some sectors; ends on drop.
pub(super) struct Claim<'a> {
    stripes: &'a Stripes,
    places: Places,
}

impl Claim<'_> {
    /// Releases the right from the borrow: the caller must call [`Stripes::release`] once with the
    /// places.
    #[inline]
    pub(super) fn into_places(self) -> Places {
        std::mem::ManuallyDrop::new(self).places
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        self.stripes.release(self.places);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::unit::tests::block_on;

    const KIB: u64 = 1024;

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_range_has_the_words_and_bits_of_its_sectors() {
        let places = Places::of(3 * 512, 1024);
        assert_eq!((places.count, places.block(0)), (1, (0, 0b11000)));
        // Across the end of a block, and of the table.
        let places = Places::of((WORDS as u64 * 4 - 2) * KIB, 4096);
        let all: Vec<_> = (0..places.count).map(|n| places.in_order(n)).collect();
        assert_eq!(all, [(0, 0x0f), (WORDS - 1, 0xf0)]);
        let all = Places::of(0, u64::MAX);
        assert_eq!((all.count, all.head, all.tail), (WORDS, ALL, ALL));
        let long = Places::of(5 * 4 * KIB, 1 << 20);
        assert!((0..256).all(|n| long.in_order(n) == (5 + n, ALL)));
    }

    #[test]
    fn writers_of_the_same_sectors_take_turns_by_arrival() {
        let stripes = Stripes::new();
        let first = stripes.try_claim(0, 4096).unwrap();
        assert!(stripes.try_claim(512, 512).is_none());
        assert!(stripes.try_claim(4096, 4096).is_some());
        let mut second = pin!(stripes.claim(2048, 8192));
        let mut third = pin!(stripes.claim(4096, 512));
        assert!(poll_once(second.as_mut()).is_pending());
        assert!(poll_once(third.as_mut()).is_pending(), "it came later");
        assert!(stripes.try_claim(1 << 20, 512).is_none(), "somebody waits: who comes now asks the table");
        drop(first);
        let Poll::Ready(second) = poll_once(second.as_mut()) else { panic!("it is free") };
        assert!(poll_once(third.as_mut()).is_pending());
        drop(second);
        assert!(poll_once(third.as_mut()).is_ready());
        assert!(stripes.try_claim(0, 1 << 30).is_some());
    }

    #[test]
    fn writers_of_neighbouring_sectors_do_not_wait() {
        let stripes = Stripes::new();
        let claims: Vec<_> = (0..8).map(|n| stripes.try_claim(n * 512, 512).unwrap()).collect();
        assert!(stripes.try_claim(0, 4096).is_none());
        drop(claims);
        assert!(stripes.try_claim(0, 4096).is_some());
    }

    #[test]
    fn a_reader_learns_of_every_change() {
        let stripes = Stripes::new();
        let look = || stripes.look::<2>(2048, 4096);
        let seen = look();
        assert!(stripes.is_whole(&seen));
        drop(stripes.try_claim(4096, 512));
        assert!(!stripes.is_whole(&seen), "one came and went");
        assert!(stripes.is_block_whole(&seen, 0) && !stripes.is_block_whole(&seen, 1));
        let seen = look();
        let held = stripes.try_claim(4096, 512);
        assert!(!stripes.is_whole(&seen), "one is there");
        let seen = look();
        assert!(!stripes.is_whole(&seen), "it was there already");
        drop(held);
        assert!(!stripes.is_whole(&seen));
        // Sectors outside the range that it reads.
        let held = stripes.try_claim(0, 2048);
        assert!(stripes.is_whole(&look()));
        drop(held);
    }

    #[test]
    fn one_that_stops_waiting_leaves_nothing_behind() {
        let stripes = Stripes::new();
        let held = stripes.try_claim(4096, 512).unwrap();
        {
            let mut waits = pin!(stripes.claim(0, 8192));
            assert!(poll_once(waits.as_mut()).is_pending());
        }
        drop(held);
        assert!(stripes.try_claim(0, 1 << 30).is_some());
        assert!(stripes.table().entries.is_empty());
        assert_eq!(stripes.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn claims_of_many_threads_lose_no_update_and_no_wake_up() {
        // Each thread adds one, in two steps, to the counters of its claimed sectors.
        const ROUNDS: u64 = 2000;
        let counters: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new((Stripes::new(), counters));
        let threads: Vec<_> = (0..4u64)
            .map(|n| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let (stripes, counters) = &*shared;
                    for round in 0..ROUNDS {
                        let (first, len) = if n % 2 == 0 { (0, 16) } else { (round % 15, 2) };
                        let _claim = block_on(stripes.claim(first * 512, len * 512));
                        for counter in &counters[first as usize..(first + len) as usize] {
                            let seen = counter.load(Ordering::Relaxed);
                            std::hint::spin_loop();
                            counter.store(seen + 1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let sum: u64 = shared.1.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 2 * ROUNDS * 16 + 2 * ROUNDS * 2);
    }
}
