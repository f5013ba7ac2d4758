//! Reclaims space that was given up: it waits until the last reader there has ended, becomes zeros,
//! and is free again. Owns the count of the arena's readers, and the list of waiting blocks; never
//! decides that something is given up.
//!
//! Readers are counted on two sides. When some space is to be freed, new readers go to the other
//! side, and the space waits for the earlier ones. It waits however long they take, and however
//! many others come meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::space::Blocks;
use super::{Inner, Kind, unpoisoned};
use crate::store::{BLOCK, Error};

/// Counts of the arena's readers: see [`crate::store::ObjectStore::hold`].
#[derive(Debug, Default)]
pub(super) struct Holds {
    epoch: AtomicU64,
    readers: [AtomicU64; 2],
}

pub(super) struct Reading {
    holds: Arc<Holds>,
    side: usize,
}

impl Holds {
    pub fn enter(self: &Arc<Self>) -> Reading {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let side = (epoch % 2) as usize;
            self.readers[side].fetch_add(1, Ordering::SeqCst);
            let reading = Reading { holds: self.clone(), side };
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return reading;
            }
        }
    }

    /// Separates present readers from later ones, and returns the side of the former. `None` while
    /// readers of the period before are left: later ones would mix with them.
    fn part(&self) -> Option<usize> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        if self.readers[((epoch + 1) % 2) as usize].load(Ordering::SeqCst) > 0 {
            return None;
        }
        self.epoch.store(epoch + 1, Ordering::SeqCst);
        Some((epoch % 2) as usize)
    }

    fn are_over(&self, side: usize) -> bool {
        self.readers[side].load(Ordering::SeqCst) == 0
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.holds.readers[self.side].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Blocks that no object uses and that are not zeros yet.
#[derive(Default)]
pub(super) struct Limbo {
    /// In the order in which they were given up.
    pub blocks: Vec<Blocks>,
    /// Side whose readers the first blocks wait for, and the number of these blocks.
    awaited: Option<(usize, usize)>,
}

impl Limbo {
    /// The first blocks, if their last reader has ended. They stay here until they are free.
    fn unread(&mut self, holds: &Holds) -> Option<Vec<Blocks>> {
        if self.awaited.is_none() && !self.blocks.is_empty() {
            self.awaited = holds.part().map(|side| (side, self.blocks.len()));
        }
        let (side, count) = self.awaited?;
        holds.are_over(side).then(|| self.blocks[..count].to_vec())
    }

    pub fn waits(&self) -> bool {
        self.awaited.is_some()
    }
}

impl Inner {
    pub(super) fn limbo(&self) -> MutexGuard<'_, Limbo> {
        unpoisoned(self.limbo.lock())
    }

    /// Zeros and frees blocks that no object uses any more. Waits up to `patience` for their
    /// readers; the rest is left for the next time. Only one task at a time calls it, and no other
    /// takes blocks out of the list.
    pub(super) async fn reclaim(&self, patience: Duration) {
        let mut waited = Duration::ZERO;
        loop {
            let unread = {
                let mut limbo = self.limbo();
                if limbo.blocks.is_empty() {
                    return;
                }
                limbo.unread(&self.holds)
            };
            match unread {
                Some(blocks) => {
                    if let Err(error) = self.free(blocks).await {
                        let what = format!("space that was given up cannot be given back yet ({error})");
                        self.health.explain(Kind::Write, 0, what);
                        // The next checkpoint tries it again.
                        self.limbo().awaited = None;
                        return;
                    }
                }
                None if waited >= patience || !self.has_thread => return,
                None => {
                    runtime::sleep(Duration::from_millis(1)).await;
                    waited += Duration::from_millis(1);
                }
            }
        }
    }

    /// Makes the first blocks of the list zeros, and free.
    async fn free(&self, mut blocks: Vec<Blocks>) -> Result<(), Error> {
        let count = blocks.len();
        blocks.sort_unstable();
        let mut joined: Vec<Blocks> = Vec::new();
        for next in blocks {
            match joined.last_mut() {
                Some(last) if last.at + last.len == next.at => last.len += next.len,
                _ => joined.push(next),
            }
        }
        for blocks in &joined {
            self.arena.discard(blocks.at * BLOCK, blocks.len * BLOCK).await?;
        }
        self.arena.sync().await?;
        let mut limbo = self.limbo();
        let mut space = self.space();
        limbo.blocks.drain(..count);
        limbo.awaited = None;
        joined.into_iter().for_each(|blocks| space.release(blocks));
        Ok(())
    }
}
