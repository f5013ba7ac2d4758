//! Space that was given up, on its way to be free again: it waits until nobody reads there any
//! more, becomes zeros, and can be taken. Owns who reads the arena, and the list of what waits;
//! never decides that something is given up.
//!
//! Who reads is counted on two sides. When some space is to be freed, new readers go to the other
//! side, and it waits for those who were there before: however long they take, and however many
//! others come meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::space::Blocks;
use super::{Inner, Kind, unpoisoned};
use crate::store::{BLOCK, Error};

/// Who reads the arena now: see [`crate::store::ObjectStore::hold`].
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

    /// Parts those who read now from those who begin from here on, and gives the side of the
    /// former. `None` while somebody is left from the time before: the new ones would mix with
    /// them.
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

/// Blocks that nobody uses and that are not zeros yet.
#[derive(Default)]
pub(super) struct Limbo {
    /// In the order in which they were given up.
    pub blocks: Vec<Blocks>,
    /// Whose end the first of them wait for: the side, and how many of them.
    awaited: Option<(usize, usize)>,
}

impl Limbo {
    /// The first blocks, if nobody reads there any more. They stay here until they are free.
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

    /// Makes what nobody uses any more zeros, and free. Waits so long for those who still read
    /// there; what is left then is left for the next time. By one task at a time, which is the only
    /// one that takes any out of the list.
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
