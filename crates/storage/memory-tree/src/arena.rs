//! [`Arena`]: the memory that holds the data of all files, in pages of 4 KiB.
//!
//! Reads return the pages themselves. A page that its file releases is retired: no other file gets
//! it before every slice that may name it has gone. Slices are made through views of the memory
//! ([`Region::view`]), a file always through the same one of [`SHARDS`]. When enough pages of a
//! shard are retired, its view is replaced. They are free once the old view has ended, and the
//! kernel has taken their memory back: pages that it is still sending are detached then.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use runtime::{Buf, LastUse, Region};
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::pages::{PAGE, Pages, Runs, Taken};

/// Number of views of the memory. A peer that receives its data slowly delays the retired pages of
/// one view only.
const SHARDS: usize = 64;

/// Retired pages of a shard at which its view is replaced, at most.
const BATCH: u32 = 256;

/// The memory of all files.
pub(crate) struct Arena {
    region: Arc<Region>,
    pages: Arc<Pages>,
    shards: Box<[RwLock<Shard>]>,
    /// Pages whose view was replaced and has not ended yet.
    waiting: Mutex<Vec<Waiting>>,
    /// Length of `waiting`.
    waits: AtomicUsize,
    /// Pages that are retired.
    retired: AtomicU64,
    batch: u32,
}

#[repr(align(64))]
struct Shard {
    view: Region,
    retired: Runs,
    pages: u32,
}

struct Waiting {
    shard: usize,
    view: LastUse,
    runs: Runs,
}

impl Arena {
    /// Bytes of the largest arena.
    pub(crate) const MOST: u64 = u32::MAX as u64 * PAGE;

    /// Reserves addresses for a budget of [`Self::MOST`] bytes at most.
    ///
    /// # Errors
    /// The address space has no room for them.
    pub(crate) fn new(bytes: Arc<Budget>) -> io::Result<Self> {
        let pages = u32::try_from(bytes.limit().div_ceil(PAGE)).unwrap_or(u32::MAX);
        let region = Region::new(pages as usize * PAGE as usize)?;
        let shard = |_| RwLock::new(Shard { view: region.view(), retired: Runs::new(), pages: 0 });
        Ok(Self {
            pages: Arc::new(Pages::new(region.clone(), pages, bytes)),
            shards: (0..SHARDS).map(shard).collect(),
            waiting: Mutex::default(),
            waits: AtomicUsize::new(0),
            retired: AtomicU64::new(0),
            batch: (pages / 4096).clamp(1, BATCH),
            region,
        })
    }

    /// Up to `most` pages, from `goal` on if that is free: see [`Pages::take`].
    pub(crate) fn take(&self, most: u32, goal: Option<u32>) -> Taken {
        self.pages.take(most, goal)
    }

    /// The pages as they are, for as long as the result lives; for the file of number `owner`.
    pub(crate) fn slice(&self, owner: u32, at: u64, len: usize) -> Option<Buf> {
        let shard = &self.shards[owner as usize % SHARDS];
        let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
        shard.view.slice(at as usize, len).ok()
    }

    /// A copy in a buffer of this core; `None` if it has none.
    pub(crate) fn copy(&self, at: u64, len: usize) -> Option<Buf> {
        self.region.copy(at as usize, len)
    }

    /// Copies the bytes at `at` to `dst`.
    pub(crate) fn read(&self, at: u64, dst: &mut [u8]) -> io::Result<()> {
        self.region.read_into(at as usize, dst).map_err(io::Error::other)
    }

    /// Copies `src` to `at`.
    pub(crate) fn write(&self, at: u64, src: &Buf) -> bool {
        self.region.write_buf(at as usize, src).is_ok()
    }

    /// Sets a range to zeros.
    pub(crate) fn zero(&self, at: u64, len: u64) {
        let done = self.region.fill(at as usize, len as usize, 0);
        debug_assert!(done.is_ok(), "{len} bytes at {at} are not in the arena");
    }

    /// Takes pages back from the file of number `owner`; `lent`: [`Self::slice`] was called for it.
    pub(crate) fn give(&self, owner: u32, runs: Runs, lent: bool) {
        if runs.is_empty() {
            return;
        }
        if !lent {
            self.pages.keep(runs);
        } else {
            let pages: u32 = runs.iter().map(|run| run.len).sum();
            self.retired.fetch_add(pages.into(), Ordering::Relaxed);
            let number = owner as usize % SHARDS;
            let mut shard = self.shards[number].write().unwrap_or_else(PoisonError::into_inner);
            shard.pages += pages;
            shard.retired.extend_from_slice(&runs);
            if shard.pages >= self.batch {
                let old = self.replace_view(number, &mut shard);
                drop(shard);
                drop(old);
            }
        }
        self.collect();
    }

    /// Frees retired pages whose view, and every earlier view of the same shard, has ended. An old
    /// slice may be of a file that had its pages for longer than the last view lasted.
    pub(crate) fn collect(&self) {
        if self.waits.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Ok(mut waiting) = self.waiting.try_lock() else { return };
        let mut lasts = [false; SHARDS];
        let ended = waiting.extract_if(.., |waits| {
            lasts[waits.shard] |= !waits.view.is_over();
            !lasts[waits.shard]
        });
        let ended: SmallVec<[Waiting; 4]> = ended.collect();
        self.waits.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        for Waiting { runs, .. } in ended {
            let pages: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
            self.pages.free_all(&runs);
            self.retired.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Replaces all views with retired pages, and frees what can be freed.
    pub(crate) fn collect_all(&self) {
        for number in 0..SHARDS {
            let mut shard = self.shards[number].write().unwrap_or_else(PoisonError::into_inner);
            let old = (shard.pages > 0).then(|| self.replace_view(number, &mut shard));
            drop(shard);
            drop(old);
        }
        self.collect();
    }

    /// Frees some of the pages that only wait to be freed. False if there are none.
    pub(crate) fn free_slice(&self) -> bool {
        self.pages.free_slice()
    }

    /// Bytes that files have released and that are not free yet.
    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Relaxed) * PAGE + self.pages.doomed_bytes()
    }

    /// The old view, which the caller drops once it has unlocked the shard.
    fn replace_view(&self, number: usize, shard: &mut Shard) -> Region {
        let old = std::mem::replace(&mut shard.view, self.region.view());
        let runs = std::mem::take(&mut shard.retired);
        shard.pages = 0;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Waiting { shard: number, view: old.last_use(), runs });
        self.waits.store(waiting.len(), Ordering::Relaxed);
        old
    }
}
