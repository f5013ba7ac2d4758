//! [`Pages`]: the pages of the arena that belong to no file, and their memory.
//!
//! Some are kept with their memory and old content: page faults cost more than everything else in a
//! small write.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::Region;
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::free::{FreePages, Run};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Free pages that are kept with their memory, at most.
const STOCK: u32 = 16 << 10;

/// Shorter runs of them are not joined to make a longer one: a file would lie in many pieces.
const SHORT: u32 = 16;

/// Pages whose memory is given back before other work of the core gets its turn.
const SLICE: u32 = 1 << 10;

/// Pages that were released together.
pub(crate) type Runs = SmallVec<[Run; 4]>;

/// The pages that belong to no file.
pub(crate) struct Pages {
    region: Arc<Region>,
    bytes: Arc<Budget>,
    free: Mutex<Free>,
    doomed: Mutex<Doomed>,
}

struct Free {
    /// Without memory: their bytes are zeros.
    zeros: FreePages,
    /// With memory and old content.
    stock: FreePages,
    /// Number of stocked pages.
    stocked: u32,
    /// Upper bound of that number.
    most: u32,
}

/// Pages whose memory has not been returned to the system yet.
#[derive(Default)]
struct Doomed {
    runs: Vec<Run>,
    pages: u64,
    /// Whether a task of some core does it.
    has_task: bool,
}

/// Pages that a file has received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) run: Run,
    /// Whether their bytes are zeros. Otherwise they are another file's, and must not be shown.
    pub(crate) zeros: bool,
}

impl Pages {
    /// The first `pages` pages of `region`, all free and without memory.
    pub(crate) fn new(region: Arc<Region>, pages: u32, bytes: Arc<Budget>) -> Self {
        let (zeros, stock) = (FreePages::new(pages), FreePages::new(0));
        let free = Free { zeros, stock, stocked: 0, most: (pages / 16).min(STOCK) };
        Self { region, bytes, free: Mutex::new(free), doomed: Mutex::default() }
    }

    /// Up to `most` pages, from `goal` on if that is free. The caller has taken them from the
    /// budget, which has no more than there are.
    pub(crate) fn take(&self, most: u32, goal: Option<u32>) -> Taken {
        let mut free = self.free();
        let stock_first = free.stocked > 0 && free.stock.longest() >= most.min(SHORT);
        let zeros = if stock_first { None } else { free.zeros.take(most, goal) };
        if let Some(run) = zeros {
            return Taken { run, zeros: true };
        }
        if let Some(run) = free.stock.take(most, goal) {
            free.stocked -= run.len;
            return Taken { run, zeros: false };
        }
        let run = free.zeros.take(most, goal).expect("the budget has as many pages as there are");
        Taken { run, zeros: true }
    }

    /// Takes pages that no slice names and the kernel is not sending: with their memory, if there
    /// is room for it.
    pub(crate) fn keep(self: &Arc<Self>, mut runs: Runs) {
        let mut free = self.free();
        let mut kept = 0;
        runs.retain(|run| {
            let keeps = free.stocked + run.len <= free.most;
            if keeps {
                free.stocked += run.len;
                free.stock.give(*run);
                kept += u64::from(run.len);
            }
            !keeps
        });
        drop(free);
        self.bytes.give(kept * PAGE);
        self.free_all(&runs);
    }

    /// Gives the memory of pages that no slice names back to the system: of many, in turns with the
    /// core's other work.
    pub(crate) fn free_all(self: &Arc<Self>, runs: &[Run]) {
        let pages: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
        if pages <= SLICE.into() || !runtime::is_running() {
            return runs.iter().for_each(|run| self.free_run(*run));
        }
        let mut doomed = self.doomed();
        doomed.runs.extend_from_slice(runs);
        doomed.pages += pages;
        if !std::mem::replace(&mut doomed.has_task, true) {
            let pages = self.clone();
            drop(runtime::spawn(async move {
                while pages.free_slice() {
                    runtime::yield_now().await;
                }
            }));
        }
    }

    /// Frees some of those that [`Self::free_all`] left. False if there are none.
    pub(crate) fn free_slice(&self) -> bool {
        let mut doomed = self.doomed();
        let Some(run) = doomed.runs.pop() else {
            doomed.has_task = false;
            return false;
        };
        let now = Run { len: run.len.min(SLICE), ..run };
        if run.len > now.len {
            doomed.runs.push(Run { at: now.end(), len: run.len - now.len });
        }
        drop(doomed);
        self.free_run(now);
        self.doomed().pages -= u64::from(now.len);
        true
    }

    /// Bytes that [`Self::free_slice`] has to free.
    pub(crate) fn doomed_bytes(&self) -> u64 {
        self.doomed().pages * PAGE
    }

    fn free_run(&self, run: Run) {
        let (at, len) = (run.at as usize * PAGE as usize, run.len as usize * PAGE as usize);
        if self.region.punch(at, len).is_err() {
            let done = self.region.fill(at, len, 0);
            debug_assert!(done.is_ok(), "{run:?} is in the arena");
        }
        self.free().zeros.give(run);
        self.bytes.give(len as u64);
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doomed(&self) -> MutexGuard<'_, Doomed> {
        self.doomed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
