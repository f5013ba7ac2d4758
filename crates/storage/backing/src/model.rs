//! A model of a medium with power cuts, for durability tests.
//!
//! It keeps two images of the medium: the durable one, and the one that reads see. Non-durable
//! writes stand between the two. [`ModelStore::cut_power`] keeps an arbitrary subset of them, in
//! their order, torn at sector boundaries. It never touches durable data. The model is not for real
//! data, and it uses no ring and no clock.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::{Buf, Chain, Region, RegionRange};

use super::{BlockStore, Extent, Geometry, Io, StoreError};

/// The error of every operation without power.
const DEAD: StoreError = StoreError::Io(libc::ENODEV);

/// A small generator of random numbers (splitmix64): the same seed gives the same sequence on every
/// machine, forever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
}

/// The effects of a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Writes that had not been synced.
    pub unsynced: usize,
    /// Number of these that are whole on the medium.
    pub kept: usize,
    /// Number of these that are partly there.
    pub torn: usize,
}

/// The model. Clones share the same medium.
#[derive(Clone)]
pub struct ModelStore {
    state: Arc<Mutex<State>>,
    sector: usize,
    thin: bool,
    /// The memory for direct placement, at the same offsets as the medium; `None`: no direct
    /// placement.
    window: Option<Arc<Region>>,
}

struct State {
    seen: Image,
    durable: Image,
    unsynced: Vec<Write>,
    powered: bool,
    /// The error of the next sync, which also loses the data it should have flushed.
    sync_fault: Option<StoreError>,
    /// A sync failed, so every later one fails (see [`BlockStore::sync`]).
    sync_failed: Option<StoreError>,
    cut_after: Option<(u64, u64)>,
    last_cut: Option<Cut>,
}

#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
    /// One flag per sector.
    mapped: Vec<bool>,
}

/// A write between the two images: consecutive sectors.
struct Write {
    first: usize,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    Hole { sectors: usize },
}

impl Write {
    fn sectors(&self, sector: usize) -> usize {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() / sector,
            Content::Hole { sectors } => *sectors,
        }
    }

    /// The part that covers `sectors` of the medium, which must lie within the write.
    fn part(&self, sectors: std::ops::Range<usize>, sector: usize) -> Self {
        let content = match &self.content {
            Content::Bytes(bytes) => {
                let from = (sectors.start - self.first) * sector;
                Content::Bytes(bytes[from..from + sectors.len() * sector].to_vec())
            }
            Content::Hole { .. } => Content::Hole { sectors: sectors.len() },
        };
        Self { first: sectors.start, content }
    }
}

impl Image {
    fn apply(&mut self, write: &Write, sector: usize) {
        let sectors = write.first..write.first + write.sectors(sector);
        let bytes = &mut self.bytes[sectors.start * sector..sectors.end * sector];
        let mapped = match &write.content {
            Content::Bytes(data) => {
                bytes.copy_from_slice(data);
                true
            }
            Content::Hole { .. } => {
                bytes.fill(0);
                false
            }
        };
        self.mapped[sectors].fill(mapped);
    }
}

impl ModelStore {
    /// Maximum number of unsynced writes kept. Older ones become durable, as a full cache writes
    /// back.
    pub(crate) const MAX_UNSYNCED: usize = 4096;

    /// A medium of `size` bytes of zeros with sectors of `sector` bytes; `size` is rounded down to
    /// whole sectors.
    pub fn new(size: usize, sector: u32) -> Self {
        let sector_len = (sector as usize).max(1);
        let sectors = size / sector_len;
        let image = Image { bytes: vec![0; sectors * sector_len], mapped: vec![false; sectors] };
        Self {
            state: Arc::new(Mutex::new(State {
                seen: image.clone(),
                durable: image,
                unsynced: Vec::new(),
                powered: true,
                sync_fault: None,
                sync_failed: None,
                cut_after: None,
                last_cut: None,
            })),
            sector: sector_len,
            thin: true,
            window: None,
        }
    }

    /// Adds memory for direct placement ([`BlockStore::land`]), as large as the medium.
    ///
    /// # Errors
    /// The address space has no room for it.
    pub fn landing(mut self) -> std::io::Result<Self> {
        let size = self.lock().seen.bytes.len();
        self.window = Some(Region::new(size)?);
        Ok(self)
    }

    /// Disables holes: discards write zeros.
    pub fn thick(mut self) -> Self {
        self.thin = false;
        self
    }

    /// Cuts the power now. `seed` chooses the subset of unsynced writes that reaches the medium,
    /// some only in part. Every operation fails until [`Self::power_on`].
    pub fn cut_power(&self, seed: u64) -> Cut {
        self.lock().cut_power(seed, self.sector)
    }

    /// Cuts the power once `operations` more of any kind have started; the last of them has no
    /// effect.
    pub fn cut_power_after(&self, operations: u64, seed: u64) {
        self.lock().cut_after = Some((operations, seed));
    }

    /// Whether the medium has power.
    pub fn powered(&self) -> bool {
        self.lock().powered
    }

    /// The effects of the last power cut.
    pub fn last_cut(&self) -> Option<Cut> {
        self.lock().last_cut
    }

    /// Restores power. The medium has the content that the cut left. An earlier failed sync is
    /// forgotten, as after reopening.
    pub fn power_on(&self) {
        let mut state = self.lock();
        state.powered = true;
        state.sync_failed = None;
        state.sync_fault = None;
        state.cut_after = None;
    }

    /// Makes the next sync fail and lose the data it should have flushed. Reads still show the
    /// data, but no power cut keeps it. Linux behaves so after a write-back error.
    pub fn fail_next_sync(&self, error: StoreError) {
        self.lock().sync_fault = Some(error);
    }

    /// Number of writes that a power cut could lose now.
    pub fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// The bytes that are durable now.
    pub fn durable_bytes(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        self.lock().durable.bytes.get(at..at.checked_add(len)?).map(<[u8]>::to_vec)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation, and checks power and that the range is whole sectors of the medium.
    fn begin(
        &self,
        at: u64,
        len: u64,
    ) -> Result<(MutexGuard<'_, State>, std::ops::Range<usize>), StoreError> {
        let mut state = self.lock();
        state.tick(self.sector)?;
        let sector = self.sector as u64;
        let end = at.checked_add(len).filter(|&end| end <= state.seen.bytes.len() as u64);
        let end = end.ok_or(StoreError::OutOfRange)?;
        if at % sector != 0 || len % sector != 0 {
            return Err(StoreError::Io(libc::EINVAL));
        }
        Ok((state, (at / sector) as usize..(end / sector) as usize))
    }

    fn put(
        &self,
        at: u64,
        len: u64,
        content: impl FnOnce(usize) -> Content,
        durable: bool,
    ) -> Result<(), StoreError> {
        let (mut state, sectors) = self.begin(at, len)?;
        let write = Write { first: sectors.start, content: content(sectors.len()) };
        state.seen.apply(&write, self.sector);
        if durable {
            // Cached data of these sectors is now older than the medium.
            let older = std::mem::take(&mut state.unsynced);
            for old in older {
                let old_sectors = old.first..old.first + old.sectors(self.sector);
                for part in [
                    old_sectors.start..old_sectors.end.min(sectors.start),
                    old_sectors.start.max(sectors.end)..old_sectors.end,
                ] {
                    if !part.is_empty() {
                        state.unsynced.push(old.part(part, self.sector));
                    }
                }
            }
            state.durable.apply(&write, self.sector);
        } else {
            state.unsynced.push(write);
        }
        if state.unsynced.len() > Self::MAX_UNSYNCED {
            let oldest = state.unsynced.remove(0);
            state.durable.apply(&oldest, self.sector);
        }
        Ok(())
    }

    fn put_bytes(&self, at: u64, bytes: Vec<u8>, durable: bool) -> Result<(), StoreError> {
        match bytes.len() as u64 {
            0 => Ok(()),
            len => self.put(at, len, |_| Content::Bytes(bytes), durable),
        }
    }

    /// Ends a write with direct placement: the current memory is its data, even if overwritten
    /// since.
    fn keep_landed(&self, at: u64, len: u64, durable: bool) -> Result<(), StoreError> {
        let (state, sectors) = self.begin(at, len)?;
        if !durable {
            return Ok(());
        }
        let bytes = state.seen.bytes[sectors.start * self.sector..sectors.end * self.sector].to_vec();
        drop(state);
        self.put_bytes(at, bytes, true)
    }

    fn zeros(&self, at: u64, len: u64, hole: bool) -> Result<(), StoreError> {
        let sector = self.sector;
        let content = |sectors| {
            if hole { Content::Hole { sectors } } else { Content::Bytes(vec![0; sectors * sector]) }
        };
        self.put(at, len, content, false)
    }
}

impl State {
    fn tick(&mut self, sector: usize) -> Result<(), StoreError> {
        if let Some((left, seed)) = &mut self.cut_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let seed = *seed;
                self.cut_after = None;
                self.cut_power(seed, sector);
            }
        }
        if self.powered { Ok(()) } else { Err(DEAD) }
    }

    fn cut_power(&mut self, seed: u64, sector: usize) -> Cut {
        let mut random = Random::new(seed);
        let mut cut = Cut { unsynced: self.unsynced.len(), kept: 0, torn: 0 };
        for write in std::mem::take(&mut self.unsynced) {
            match random.below(3) {
                0 => {}
                1 => {
                    cut.kept += 1;
                    self.durable.apply(&write, sector);
                }
                _ => {
                    let mut kept = 0;
                    let sectors = write.sectors(sector);
                    for at in write.first..write.first + sectors {
                        if random.below(2) == 1 {
                            kept += 1;
                            self.durable.apply(&write.part(at..at + 1, sector), sector);
                        }
                    }
                    cut.kept += usize::from(kept == sectors);
                    cut.torn += usize::from(0 < kept && kept < sectors);
                }
            }
        }
        self.seen = self.durable.clone();
        self.powered = false;
        self.last_cut = Some(cut);
        cut
    }

    fn sync(&mut self, sector: usize) -> Result<(), StoreError> {
        if let Some(error) = self.sync_failed {
            return Err(error);
        }
        let lost = std::mem::take(&mut self.unsynced);
        if let Some(error) = self.sync_fault.take() {
            self.sync_failed = Some(error);
            return Err(error);
        }
        for write in lost {
            self.durable.apply(&write, sector);
        }
        Ok(())
    }
}

impl BlockStore for ModelStore {
    fn size(&self) -> u64 {
        self.lock().seen.bytes.len() as u64
    }

    fn writable(&self) -> bool {
        true
    }

    fn thin(&self) -> bool {
        self.thin
    }

    fn geometry(&self) -> Geometry {
        let sector = self.sector as u32;
        Geometry { block: sector, physical_block: sector, discard_granularity: sector }
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        let bytes = self.begin(at, len as u64).map(|(state, sectors)| {
            state.seen.bytes[sectors.start * self.sector..sectors.end * self.sector].to_vec()
        });
        Io::Ready(Some(bytes.map(Chain::from)))
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        let Some(window) = &self.window else {
            let bytes = data.to_vec();
            return Io::Ready(Some(self.put(at, bytes.len() as u64, |_| Content::Bytes(bytes), durable)));
        };
        let (mut to, mut begun, mut aside) = (at, at, Vec::new());
        let result = data.iter().try_for_each(|buf| {
            let len = buf.len() as u64;
            match usize::try_from(to).is_ok_and(|to| window.is_at(to, buf)) {
                false => aside.extend(buf.to_vec()),
                true => {
                    self.put_bytes(begun, std::mem::take(&mut aside), durable)?;
                    self.keep_landed(to, len, durable)?;
                    begun = to + len;
                }
            }
            to += len;
            Ok(())
        });
        Io::Ready(Some(result.and_then(|()| self.put_bytes(begun, aside, durable))))
    }

    fn lands(&self) -> bool {
        self.window.is_some()
    }

    fn land(&self, at: u64, len: usize, fill: &mut dyn FnMut(&mut RegionRange) -> usize) -> Option<Buf> {
        let window = self.window.as_ref().filter(|_| self.powered())?;
        let start = usize::try_from(at).ok()?;
        let filled = fill(&mut window.destination(start, len).ok()?).min(len);
        let landed = window.slice(start, filled).ok().filter(|landed| !landed.is_empty())?;
        // Without power the write that follows fails too.
        let _ = self.put_bytes(at, landed.to_vec(), false);
        Some(landed)
    }

    fn sync(&self) -> Io<()> {
        let mut state = self.lock();
        let result = state.tick(self.sector).and_then(|()| state.sync(self.sector));
        Io::Ready(Some(result))
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        Io::Ready(Some(self.zeros(at, len, self.thin)))
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        Io::Ready(Some(self.zeros(at, len, self.thin && deallocate)))
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        let len = len.min(self.size().saturating_sub(at)) / self.sector as u64 * self.sector as u64;
        let extent = self.begin(at, len).and_then(|(state, sectors)| {
            let map = &state.seen.mapped[sectors];
            let mapped = !self.thin || *map.first().ok_or(StoreError::OutOfRange)?;
            let run = map.iter().take_while(|&&m| !self.thin || m == mapped).count();
            Ok(Extent { at, len: (run * self.sector) as u64, mapped })
        });
        Io::Ready(Some(extent))
    }
}

impl fmt::Debug for ModelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("ModelStore")
            .field("size", &state.seen.bytes.len())
            .field("unsynced", &state.unsynced.len())
            .field("powered", &state.powered)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;

    const SECTOR: usize = 512;

    fn store() -> ModelStore {
        ModelStore::new(64 * SECTOR, SECTOR as u32)
    }

    fn fill(store: &ModelStore, sector: u64, sectors: usize, byte: u8, durable: bool) {
        now(store.write(sector * SECTOR as u64, vec![byte; sectors * SECTOR].into(), durable)).unwrap();
    }

    fn sectors(store: &ModelStore, first: u64, count: usize) -> Vec<u8> {
        let bytes = now(store.read(first * SECTOR as u64, count * SECTOR)).unwrap().to_vec();
        bytes.chunks(SECTOR).for_each(|s| assert!(s.iter().all(|b| *b == s[0]), "a sector is never torn"));
        bytes.chunks(SECTOR).map(|s| s[0]).collect()
    }

    #[test]
    fn a_power_cut_leaves_what_was_durable_and_any_part_of_the_rest() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let store = store();
            fill(&store, 0, 4, 1, true);
            fill(&store, 4, 4, 2, false);
            now(store.sync()).unwrap();
            fill(&store, 8, 4, 3, false);
            fill(&store, 8, 2, 4, false);
            assert_eq!(sectors(&store, 8, 4), [4, 4, 3, 3]);
            let cut = store.cut_power(seed);
            assert_eq!(cut.unsynced, 2);
            assert_eq!(now(store.read(0, SECTOR)).unwrap_err(), DEAD);
            store.power_on();
            assert_eq!(sectors(&store, 0, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
            let left = sectors(&store, 8, 4);
            assert!(
                left[..2].iter().all(|b| [0, 3, 4].contains(b))
                    && left[2..].iter().all(|b| [0, 3].contains(b))
            );
            lost += usize::from(left == [0; 4]);
            kept += usize::from(left == [4, 4, 3, 3]);
            torn += cut.torn;
        }
        assert!(lost > 10 && kept > 10 && torn > 50, "lost {lost}, kept {kept}, torn {torn}");
    }

    #[test]
    fn a_durable_write_outlives_older_unsynced_ones_of_the_same_sectors() {
        for seed in 0..100 {
            let store = store();
            fill(&store, 0, 8, 1, false);
            fill(&store, 2, 3, 2, true);
            store.cut_power(seed);
            store.power_on();
            let left = sectors(&store, 0, 8);
            assert_eq!(left[2..5], [2, 2, 2]);
            assert!(left.iter().all(|b| [0, 1, 2].contains(b)));
        }
    }

    #[test]
    fn a_failed_sync_loses_its_writes_and_fails_ever_after() {
        let store = store();
        fill(&store, 0, 1, 1, false);
        store.fail_next_sync(StoreError::Io(libc::EIO));
        assert_eq!(now(store.sync()), Err(StoreError::Io(libc::EIO)));
        assert_eq!(now(store.sync()), Err(StoreError::Io(libc::EIO)));
        assert_eq!(sectors(&store, 0, 1), [1], "reads still show it");
        store.cut_power(0);
        store.power_on();
        assert_eq!(sectors(&store, 0, 1), [0], "but it never got there");
        now(store.sync()).unwrap();
    }

    #[test]
    fn the_power_goes_after_a_number_of_operations() {
        let store = store();
        store.cut_power_after(3, 1);
        fill(&store, 0, 1, 1, true);
        fill(&store, 1, 1, 1, true);
        assert!(now(store.write(1024, vec![1; 512].into(), true)).is_err());
        assert!(!store.powered());
        assert_eq!(now(store.sync()), Err(DEAD));
        store.power_on();
        assert_eq!(sectors(&store, 0, 3), [1, 1, 0]);
    }

    #[test]
    fn holes_are_told_from_zeros() {
        let store = store();
        fill(&store, 0, 8, 1, false);
        now(store.write_zeros(SECTOR as u64, SECTOR as u64, false)).unwrap();
        now(store.discard(2 * SECTOR as u64, 2 * SECTOR as u64)).unwrap();
        assert_eq!(sectors(&store, 0, 5), [1, 0, 0, 0, 1]);
        let extent = |sector: u64| now(store.extent(sector * 512, u64::MAX)).unwrap();
        assert_eq!(extent(0), Extent { at: 0, len: 1024, mapped: true });
        assert_eq!(extent(2), Extent { at: 1024, len: 1024, mapped: false });
        assert_eq!(extent(4), Extent { at: 2048, len: 2048, mapped: true });
    }

    #[test]
    fn ranges_are_whole_sectors_of_the_medium() {
        let store = store();
        assert_eq!(now(store.read(64 * 512, 512)).unwrap_err(), StoreError::OutOfRange);
        assert_eq!(now(store.read(1, 512)).unwrap_err(), StoreError::Io(libc::EINVAL));
        assert_eq!(now(store.discard(u64::MAX - 511, 512)), Err(StoreError::OutOfRange));
        assert_eq!(now(store.extent(64 * 512, 512)), Err(StoreError::OutOfRange));
    }

    #[test]
    fn the_cache_has_an_end() {
        let store = store();
        for i in 0..ModelStore::MAX_UNSYNCED + 10 {
            fill(&store, (i % 64) as u64, 1, 9, false);
        }
        assert_eq!(store.unsynced(), ModelStore::MAX_UNSYNCED);
    }

    #[test]
    fn what_has_landed_is_not_written_again_and_is_durable_when_its_write_is() {
        let store = store().landing().unwrap();
        let land = |sector: u64, byte: u8| {
            let mut fill = |place: &mut RegionRange| {
                place.write(&vec![byte; 2 * SECTOR]);
                2 * SECTOR
            };
            store.land(sector * SECTOR as u64, 4 * SECTOR, &mut fill).unwrap()
        };
        let landed = land(1, 7);
        assert_eq!(now(store.read(SECTOR as u64, SECTOR)).unwrap().to_vec(), [7; SECTOR]);
        assert_eq!(store.durable_bytes(SECTOR, 1), Some(vec![0]));
        // Another write overtakes this one, which must not undo it.
        fill(&store, 2, 1, 9, false);
        let whole: Chain =
            [vec![1; SECTOR].into(), landed, vec![1; SECTOR].into()].into_iter().collect::<Chain>();
        now(store.write(0, whole, true)).unwrap();
        let durable = store.durable_bytes(0, 4 * SECTOR).unwrap();
        let firsts: Vec<u8> = durable.chunks(SECTOR).map(|sector| sector[0]).collect();
        assert_eq!(firsts, [1, 7, 9, 1]);
        store.cut_power(1);
        assert!(store.land(0, SECTOR, &mut |_| unreachable!()).is_none());
    }
}
