//! A store in memory: `mem:1G`.
//!
//! Reads for sending return slices of the memory itself, and every operation ends at once. Nothing
//! outlives the process, so every write counts as durable. There is no lock: concurrent writes of
//! the same bytes leave a mixture, so the unit must exclude them. Memory is allocated at the first
//! write, and freed by a discard.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use runtime::{Buf, Chain, Guard, Pooled, Region, RegionRange, pool};

use super::health::{Health, Kind};
use super::size::Size;
use super::{BlockStore, Extent, Geometry, Io, Resources, StoreError};

/// Bytes per bit of the allocation map: a page.
const UNIT: u64 = 4096;

/// Zeros to write before other work of the core gets its turn, bytes.
const SLICE: u64 = 4 << 20;

/// A flat range of memory.
pub struct MemoryStore {
    shared: Arc<Shared>,
    thin: bool,
}

#[repr(align(128))]
struct Shared {
    region: Arc<Region>,
    map: Map,
    /// Maximum number of units that may be allocated. If it exceeds the store's size there is no
    /// limit, and nothing is counted.
    quota: u64,
    /// Number of units that are allocated or about to be, if there is a quota.
    taken: AtomicU64,
    health: Arc<Health>,
}

impl MemoryStore {
    /// Maps `size` bytes of zeros. `thin`: discards free memory. Otherwise they write zeros, and
    /// [`BlockStore::extent`] reports everything as mapped.
    ///
    /// # Errors
    /// The address space has no room for `size` bytes.
    pub fn new(size: u64, thin: bool) -> io::Result<Self> {
        let len = usize::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let map = Map::new(size.div_ceil(UNIT))?;
        let (quota, taken) = (u64::MAX, AtomicU64::new(0));
        let health = Health::new(format!("mem:{}", Size(size)));
        let shared = Shared { region: Region::new(len)?, map, quota, taken, health };
        Ok(Self { shared: Arc::new(shared), thin })
    }

    /// A thin store that uses at most `quota` bytes of memory, in whole pages: writes beyond it
    /// fail with no space.
    ///
    /// # Errors
    /// The address space has no room for `size` bytes.
    pub fn with_quota(size: u64, quota: u64) -> io::Result<Self> {
        let mut store = Self::new(size, true)?;
        if let Some(shared) = Arc::get_mut(&mut store.shared) {
            shared.quota = quota / UNIT;
        }
        Ok(store)
    }

    /// Bytes of memory that hold data, in whole pages.
    pub fn allocated(&self) -> u64 {
        self.shared.map.count() * UNIT
    }

    /// Runs `each` over the pieces of a range: at once if there is one piece, otherwise yielding in
    /// between.
    fn in_slices(&self, at: u64, len: u64, each: fn(&Shared, u64, u64) -> Result<(), StoreError>) -> Io<()> {
        if at.checked_add(len).is_none_or(|end| end > self.size()) {
            return Io::err(StoreError::OutOfRange);
        }
        if len <= SLICE {
            return Io::Ready(Some(each(&self.shared, at, len)));
        }
        let shared = self.shared.clone();
        Io::Running(Pooled::new(async move {
            let mut done = 0;
            while done < len {
                let n = SLICE.min(len - done);
                each(&shared, at + done, n)?;
                done += n;
                let mut turned = false;
                poll_fn(|cx| {
                    if std::mem::replace(&mut turned, true) {
                        return Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
            Ok(())
        }))
    }
}

impl Shared {
    /// Takes the units that a write of the range will allocate from the quota. [`Self::mark`]
    /// settles them.
    #[inline]
    fn take(&self, at: u64, len: u64) -> Result<u64, StoreError> {
        if self.quota == u64::MAX { Ok(0) } else { self.take_of_quota(at, len) }
    }

    #[cold]
    fn take_of_quota(&self, at: u64, len: u64) -> Result<u64, StoreError> {
        let wanted = self.map.missing(at, len);
        let fits = |taken: u64| taken.checked_add(wanted).filter(|taken| *taken <= self.quota);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.map(|_| wanted).map_err(|_| {
            self.health.report(Kind::Full, libc::ENOSPC, None);
            StoreError::NoSpace
        })
    }

    /// Marks a written range as allocated; `wanted` units were taken for it. Returns the units that
    /// another write marked meanwhile to the quota.
    #[inline]
    fn mark(&self, at: u64, len: u64, wanted: u64) {
        let marked = self.map.set(at, len);
        if self.quota != u64::MAX {
            self.taken.fetch_sub(wanted.saturating_sub(marked), Ordering::AcqRel);
        }
    }

    /// A copy of one piece: on the heap if the pool is exhausted, since a read of memory must not
    /// fail.
    #[inline]
    fn copy(&self, at: usize, len: usize) -> Option<Buf> {
        let copy = self.region.copy(at, len);
        copy.or_else(|| self.region.slice(at, len).ok().map(|slice| slice.to_vec().into()))
    }

    /// Writes one piece, whose range is checked.
    #[inline]
    fn write(&self, at: u64, buf: &Buf) -> Result<(), StoreError> {
        let len = buf.len() as u64;
        let wanted = self.take(at, len)?;
        self.region.write_buf(at as usize, buf).map_err(|_| StoreError::OutOfRange)?;
        self.mark(at, len, wanted);
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        let wanted = self.take(at, len)?;
        // The store's size is a usize, and the range was checked against it.
        self.region.fill(at as usize, len as usize, 0).map_err(|_| StoreError::OutOfRange)?;
        self.mark(at, len, wanted);
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> Result<(), StoreError> {
        // Cleared before the pages are freed, and set only after a write's bytes are stored. So a
        // page with data never counts as a hole once the operations on it have ended, in any order.
        let cleared = self.map.clear_whole(at, len);
        if self.quota != u64::MAX {
            self.taken.fetch_sub(cleared, Ordering::AcqRel);
        }
        self.region.punch(at as usize, len as usize).map_err(|e| StoreError::from_io(&e))
    }
}

impl BlockStore for MemoryStore {
    fn size(&self) -> u64 {
        self.shared.region.len() as u64
    }

    fn writable(&self) -> bool {
        true
    }

    fn thin(&self) -> bool {
        self.thin
    }

    fn geometry(&self) -> Geometry {
        Geometry { block: 1, physical_block: 1, discard_granularity: UNIT as u32 }
    }

    #[inline]
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        if usize::try_from(at)
            .ok()
            .and_then(|at| at.checked_add(len))
            .is_none_or(|end| end > self.shared.region.len())
        {
            return Io::err(StoreError::OutOfRange);
        }
        let mut chain = Chain::new();
        while chain.len() < len {
            match self.shared.copy(at as usize + chain.len(), (len - chain.len()).min(pool::MAX_ALLOC)) {
                Some(buf) => chain.push(buf),
                None => return Io::err(StoreError::OutOfRange),
            }
        }
        Io::ok(chain)
    }

    #[inline]
    fn read_now(&self, at: u64, len: usize) -> Option<Buf> {
        self.shared.copy(usize::try_from(at).ok()?, len)
    }

    #[inline]
    fn prefetch(&self, at: u64, len: usize) {
        if let Ok(at) = usize::try_from(at) {
            self.shared.region.prefetch(at, len);
        }
    }

    #[inline]
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        self.lend(at, len).map_or(Io::err(StoreError::OutOfRange), |buf| Io::ok(buf.into()))
    }

    #[inline]
    fn lend(&self, at: u64, len: usize) -> Option<Buf> {
        self.shared.region.slice(usize::try_from(at).ok()?, len).ok()
    }

    fn set_guard(&self, guard: Arc<dyn Guard>) -> bool {
        self.shared.region.set_guard(guard)
    }

    #[inline]
    fn write(&self, at: u64, data: Chain, _durable: bool) -> Io<()> {
        if at.checked_add(data.len() as u64).is_none_or(|end| end > self.size()) {
            return Io::err(StoreError::OutOfRange);
        }
        let mut to = at;
        for buf in &data {
            // Data placed directly is there already and marked, unless a later discard removed it.
            // Then the write preceded the discard.
            if !self.shared.region.is_at(to as usize, buf)
                && let Err(error) = self.shared.write(to, buf)
            {
                return Io::err(error);
            }
            to += buf.len() as u64;
        }
        Io::ok(())
    }

    fn lands(&self) -> bool {
        true
    }

    fn land(&self, at: u64, len: usize, fill: &mut dyn FnMut(&mut RegionRange) -> usize) -> Option<Buf> {
        let start = usize::try_from(at).ok()?;
        let mut place = self.shared.region.destination(start, len).ok()?;
        let wanted = self.shared.take(at, len as u64).ok()?;
        let filled = fill(&mut place).min(len);
        self.shared.mark(at, filled as u64, wanted);
        let landed = self.shared.region.slice(start, filled).ok()?;
        (filled > 0).then_some(landed)
    }

    fn sync(&self) -> Io<()> {
        Io::ok(())
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.in_slices(at, len, if self.thin { Shared::punch } else { Shared::zero })
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.in_slices(at, len, if deallocate && self.thin { Shared::punch } else { Shared::zero })
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(&self.shared.health)
    }

    fn resources(&self) -> Option<Resources> {
        if !self.thin {
            return None;
        }
        let used = self.allocated();
        let most = self.shared.quota.saturating_mul(UNIT).min(self.size());
        let dedicated = self.shared.quota != u64::MAX;
        Some(Resources { used, available: most.saturating_sub(used), dedicated })
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        let len = len.min(self.size().saturating_sub(at));
        if len == 0 {
            return Io::err(StoreError::OutOfRange);
        }
        if !self.thin {
            return Io::ok(Extent { at, len, mapped: true });
        }
        let (mapped, units) = self.shared.map.run(at / UNIT, (at + len).div_ceil(UNIT));
        let end = (at / UNIT + units) * UNIT;
        Io::ok(Extent { at, len: len.min(end - at), mapped })
    }
}

/// The units that hold data: one bit each.
struct Map(Box<[AtomicU64]>);

impl Map {
    fn new(units: u64) -> io::Result<Self> {
        let words =
            usize::try_from(units.div_ceil(64)).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut map = Vec::new();
        map.try_reserve_exact(words).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        map.resize_with(words, AtomicU64::default);
        Ok(Self(map.into_boxed_slice()))
    }

    /// Marks every unit that the range touches, and returns how many were unmarked.
    #[inline]
    fn set(&self, at: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let mut marked = 0;
        Self::words(at / UNIT, (at + len).div_ceil(UNIT), |word, mask| {
            let Some(word) = self.0.get(word) else { return };
            // Read first: rewriting data must not take the cache line from other cores.
            if word.load(Ordering::Relaxed) & mask != mask {
                let before = word.fetch_or(mask, Ordering::Release);
                marked += u64::from((mask & !before).count_ones());
            }
        });
        marked
    }

    /// Number of unmarked units that the range touches.
    fn missing(&self, at: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let mut missing = 0;
        Self::words(at / UNIT, (at + len).div_ceil(UNIT), |word, mask| {
            let now = self.0.get(word).map_or(u64::MAX, |word| word.load(Ordering::Acquire));
            missing += u64::from((mask & !now).count_ones());
        });
        missing
    }

    /// Clears the units that are wholly within the range, and returns how many were marked.
    fn clear_whole(&self, at: u64, len: u64) -> u64 {
        let mut cleared = 0;
        Self::words(at.div_ceil(UNIT), (at + len) / UNIT, |word, mask| {
            if let Some(word) = self.0.get(word) {
                cleared += u64::from((word.fetch_and(!mask, Ordering::AcqRel) & mask).count_ones());
            }
        });
        cleared
    }

    /// Whether `first` is set, and the number of units from it on, up to `end`, in the same state.
    fn run(&self, first: u64, end: u64) -> (bool, u64) {
        let word = |unit: u64| self.0.get((unit / 64) as usize).map_or(0, |w| w.load(Ordering::Acquire));
        let mapped = word(first) >> (first % 64) & 1 == 1;
        let mut unit = first;
        while unit < end {
            let bits = if mapped { !word(unit) } else { word(unit) } >> (unit % 64);
            if bits != 0 {
                unit += u64::from(bits.trailing_zeros());
                break;
            }
            unit = (unit / 64 + 1) * 64;
        }
        (mapped, unit.min(end) - first)
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Calls `f` with each word and the mask of its units in `first..end`.
    #[inline]
    fn words(first: u64, end: u64, mut f: impl FnMut(usize, u64)) {
        let mut unit = first;
        while unit < end {
            let last = end.min((unit / 64 + 1) * 64);
            let count = last - unit;
            let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << (unit % 64) };
            f((unit / 64) as usize, mask);
            unit = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;

    fn pattern(len: usize, salt: u8) -> Vec<u8> {
        (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(salt)).collect()
    }

    #[test]
    fn what_was_written_is_read_back_and_the_rest_is_zeros() {
        let store = MemoryStore::new(1 << 20, true).unwrap();
        let data = pattern(1536, 7);
        let chain: Chain = [data[..512].to_vec(), data[512..].to_vec()].into_iter().collect();
        now(store.write(3584, chain, false)).unwrap();
        assert_eq!(now(store.read(3584, 1536)).unwrap().to_vec(), data);
        assert_eq!(now(store.read(3072, 512)).unwrap().to_vec(), vec![0; 512]);
        assert_eq!(now(store.read(5120, 512)).unwrap().to_vec(), vec![0; 512]);
    }

    #[test]
    fn ranges_beyond_the_end_are_refused() {
        let store = MemoryStore::new(8192, true).unwrap();
        assert_eq!(now(store.read(8192, 512)).unwrap_err(), StoreError::OutOfRange);
        assert_eq!(now(store.read(u64::MAX, 512)).unwrap_err(), StoreError::OutOfRange);
        for at in [7680 + 512, u64::MAX - 100] {
            assert_eq!(now(store.write(at, vec![1; 512].into(), true)).unwrap_err(), StoreError::OutOfRange);
            assert_eq!(now(store.discard(at, 512)).unwrap_err(), StoreError::OutOfRange);
            assert_eq!(now(store.write_zeros(at, 512, true)).unwrap_err(), StoreError::OutOfRange);
            assert_eq!(now(store.extent(at, 512)).unwrap_err(), StoreError::OutOfRange);
        }
    }

    #[test]
    fn discarded_pages_are_holes_and_read_as_zeros() {
        let store = MemoryStore::new(1 << 20, true).unwrap();
        assert_eq!(now(store.extent(0, u64::MAX)).unwrap(), Extent { at: 0, len: 1 << 20, mapped: false });
        now(store.write(0, pattern(65536, 1).into(), false)).unwrap();
        assert_eq!(store.allocated(), 65536);
        now(store.discard(6144, 10240)).unwrap();
        // 6144..8192 shares its page with data: zeroed, but kept.
        assert_eq!(now(store.read(6144, 10240)).unwrap().to_vec(), vec![0; 10240]);
        assert_eq!(now(store.read(0, 6144)).unwrap().to_vec(), pattern(65536, 1)[..6144]);
        assert_eq!(now(store.extent(512, 1 << 20)).unwrap(), Extent { at: 512, len: 7680, mapped: true });
        assert_eq!(now(store.extent(8192, 1 << 20)).unwrap(), Extent { at: 8192, len: 8192, mapped: false });
        assert_eq!(now(store.extent(16384, 100)).unwrap(), Extent { at: 16384, len: 100, mapped: true });
        assert_eq!(now(store.extent(65536, 1 << 20)).unwrap().len, (1 << 20) - 65536);
    }

    #[test]
    fn a_quota_bounds_what_is_allocated_and_a_discard_gives_it_back() {
        let store = MemoryStore::with_quota(1 << 20, 64 << 10).unwrap();
        let full = Resources { used: 64 << 10, available: 0, dedicated: true };
        now(store.write(0, pattern(60 << 10, 1).into(), false)).unwrap();
        now(store.write(100, pattern(4096, 2).into(), false)).unwrap();
        assert_eq!(now(store.write(60 << 10, pattern(8192, 1).into(), false)), Err(StoreError::NoSpace));
        assert_eq!(store.health().unwrap().look().problems[0].kind, Kind::Full);
        assert_eq!(now(store.write_zeros(512 << 10, 8192, false)), Err(StoreError::NoSpace));
        now(store.write(512 << 10, pattern(512, 1).into(), false)).unwrap();
        assert_eq!(store.resources(), Some(full));
        // An allocated range can be written again.
        now(store.write(512 << 10, pattern(4096, 1).into(), false)).unwrap();
        assert_eq!(now(store.write(516 << 10, pattern(1, 1).into(), false)), Err(StoreError::NoSpace));
        now(store.discard(0, 8192)).unwrap();
        assert_eq!(store.resources().unwrap().available, 8192);
        now(store.write(600 << 10, pattern(8192, 1).into(), false)).unwrap();
        assert_eq!(store.resources(), Some(full));
    }

    #[test]
    fn what_lands_is_there_at_once_and_writing_it_changes_nothing_any_more() {
        let store = MemoryStore::with_quota(1 << 20, 16 << 10).unwrap();
        assert!(store.lands());
        let data = pattern(8192, 9);
        let mut fill = |place: &mut RegionRange| {
            place.write(&data);
            data.len()
        };
        let landed = store.land(4096, 12_288, &mut fill).unwrap();
        assert_eq!(landed.to_vec(), data);
        assert_eq!(now(store.read(4096, 8192)).unwrap().to_vec(), data);
        assert_eq!((store.allocated(), store.resources().unwrap().available), (8192, 8192));
        // Another write follows: the directly placed data preceded it.
        now(store.write(4096, pattern(512, 1).into(), false)).unwrap();
        let whole: Chain = [pattern(4096, 3).into(), landed].into_iter().collect();
        now(store.write(0, whole, true)).unwrap();
        assert_eq!(now(store.read(0, 4096)).unwrap().to_vec(), pattern(4096, 3));
        assert_eq!(now(store.read(4096, 512)).unwrap().to_vec(), pattern(512, 1));
        assert_eq!(now(store.read(4608, 7680)).unwrap().to_vec(), data[512..]);
        assert_eq!(store.resources().unwrap().available, 4096);
    }

    /// Data that does not arrive takes no space of the quota.
    #[test]
    fn nothing_is_placed_beyond_the_end_or_the_quota() {
        let store = MemoryStore::with_quota(1 << 20, 8192).unwrap();
        let mut never = |_: &mut RegionRange| -> usize { unreachable!() };
        assert!(store.land((1 << 20) - 512, 1024, &mut never).is_none());
        assert!(store.land(u64::MAX, 1, &mut never).is_none());
        assert!(store.land(0, 12_288, &mut never).is_none());
        assert!(store.land(0, 8192, &mut |_| 0).is_none());
        assert_eq!(store.resources().unwrap().available, 8192);
    }

    #[test]
    fn zeros_are_data_unless_they_may_be_a_hole() {
        let store = MemoryStore::new(1 << 20, true).unwrap();
        now(store.write_zeros(0, 8192, false)).unwrap();
        assert!(now(store.extent(0, 8192)).unwrap().mapped);
        now(store.write_zeros(0, 8192, true)).unwrap();
        assert!(!now(store.extent(0, 8192)).unwrap().mapped);
    }

    #[test]
    fn a_thick_store_has_no_holes() {
        let store = MemoryStore::new(1 << 20, false).unwrap();
        now(store.write(0, pattern(8192, 1).into(), false)).unwrap();
        now(store.discard(0, 8192)).unwrap();
        assert_eq!(now(store.read(0, 8192)).unwrap().to_vec(), vec![0; 8192]);
        assert_eq!(now(store.extent(0, u64::MAX)).unwrap(), Extent { at: 0, len: 1 << 20, mapped: true });
    }

    #[test]
    fn a_long_range_is_done_in_turns() {
        let size = 3 * SLICE + 4096;
        let store = MemoryStore::new(size, true).unwrap();
        let io = store.write_zeros(0, size, false);
        assert!(matches!(io, Io::Running(_)));
        now(io).unwrap();
        assert_eq!(store.allocated(), size);
        now(store.discard(0, size)).unwrap();
        assert_eq!(store.allocated(), 0);
    }

    #[test]
    fn the_map_finds_runs_across_words() {
        let map = Map::new(300).unwrap();
        map.set(10 * UNIT, 200 * UNIT);
        assert_eq!(map.run(0, 300), (false, 10));
        assert_eq!(map.run(10, 300), (true, 200));
        assert_eq!(map.run(100, 150), (true, 50));
        assert_eq!(map.run(210, 300), (false, 90));
        map.clear_whole(64 * UNIT + 1, 64 * UNIT);
        assert_eq!(map.run(10, 300), (true, 55));
        assert_eq!(map.run(65, 300), (false, 63));
        assert_eq!(map.count(), 137);
    }
}
