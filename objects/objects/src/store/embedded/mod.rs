//! The store on a directory, `osd:DIR`, and on memory, `osd:mem:SIZE`.
//!
//! Object data lies in extents of one arena, which is a `backing` store, so that reads send its
//! pages without a copy, as a disk unit's do. Metadata lies in redb, behind a journal of its own to
//! which a change is appended. One write makes it safe from the end of the process, one flush from
//! a power cut. All tasks that wait at the time share both. `docs/src/objects/store.md` describes
//! the promise of each kind of commit.
//!
//! It must never show an object the bytes of another, whatever a power cut interrupts. It must not
//! call anything durable before the system has confirmed it. It must not block a core that has
//! other work for a flush (`backing` sees to that).

mod apply;
mod attributes;
mod check;
mod checkpoint;
mod data;
mod database;
mod directory;
mod extents;
mod journal;
mod layers;
mod locks;
mod logged;
mod open;
mod overflow;
mod pages;
mod partitions;
mod read;
mod rebuild;
mod reclaim;
mod record;
mod recover;
mod space;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod txn;
mod verified;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use backing::health::{Health, Kind, Presence};
use backing::{BlockStore, StoreError};
use runtime::Chain;

pub use database::{DatabaseFile, DatabaseStorage};
pub use open::{OpenError, Options, UNFINISHED, begin};

use super::passed_on::passed_on;
use super::{
    Applied, Attribute, Attributes, BLOCK, Change, CheckReport, Commit, Difference, Error, Extent, Hold, Id,
    Io, List, Membership, ObjectInfo, ObjectStore, PartitionInfo, RootInfo, Scope, Times, TimesUpdate,
};
use database::Database;
use directory::Directory;
use journal::{Journal, Log};
use layers::Layers;
use locks::Locks;
use logged::Logged;
use reclaim::{Holds, Limbo};
use space::Space;

/// Times that wait to be written; beyond that they are written at once.
const MOST_TOUCHED: usize = 8192;
/// So many are written by the store's own thread.
const MANY_TOUCHED: u64 = MOST_TOUCHED as u64 / 2;

/// A store on a directory, which one process at a time has open, or in memory.
pub struct EmbeddedStore {
    inner: Arc<Inner>,
    /// Writes checkpoints; none in tests that do it by hand.
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    arena: Arc<dyn BlockStore>,
    /// Of all that it stands on.
    health: Arc<Health>,
    journal: Journal,
    database: Database,
    capacity_blocks: u64,
    /// Bytes of changed keys and values after which a checkpoint is due.
    most_bytes: usize,
    /// Whether a thread of its own writes checkpoints.
    has_thread: bool,
    log: Mutex<Log>,
    layers: Layers,
    directory: RwLock<Directory>,
    space: Mutex<Space>,
    locks: Arc<Locks>,
    holds: Arc<Holds>,
    logged: Logged,
    /// Blocks that no object uses and that are not zeros yet.
    limbo: Mutex<Limbo>,
    touched: Mutex<HashMap<Id, TimesUpdate>>,
    /// Entries of `touched`: mostly 0, and then the lock is not taken.
    touched_count: AtomicU64,
    /// Damage was found, so that free blocks are not known: nothing is changed until it is
    /// repaired.
    damaged: AtomicBool,
    /// Homes that are no partition's any more, to be emptied.
    dying: Mutex<Vec<u64>>,
    /// Number of times that a part of one was emptied.
    emptied: AtomicU64,
}

fn unpoisoned<'a, T>(lock: Result<MutexGuard<'a, T>, PoisonError<MutexGuard<'a, T>>>) -> MutexGuard<'a, T> {
    lock.unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn log(&self) -> MutexGuard<'_, Log> {
        unpoisoned(self.log.lock())
    }
    fn space(&self) -> MutexGuard<'_, Space> {
        unpoisoned(self.space.lock())
    }
    fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner)
    }
    fn directory_mut(&self) -> RwLockWriteGuard<'_, Directory> {
        self.directory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Times that were noted and not written yet.
    fn touched(&self, id: Id, times: &mut Times) {
        if self.touched_count.load(Ordering::Relaxed) > 0 {
            if let Some(update) = unpoisoned(self.touched.lock()).get(&id) {
                update.apply_to(times);
            }
        }
    }
}

impl Inner {
    /// The error that everything which is to be durable gets, while a failed flush is not
    /// acknowledged, or once a file was removed.
    fn flush_refusal(&self) -> Result<(), Error> {
        let Self { arena, journal, database, .. } = self;
        if database.is_removed() || arena.is_removed() || journal.store.is_removed() {
            self.health.saw(&[Presence::Removed]);
        }
        self.health.flush_refusal().map_or(Ok(()), |error| {
            let errno = if let StoreError::Io(errno) = error { errno } else { libc::ENOSPC };
            if self.health.mark().is_some() {
                self.health.report(Kind::Flush, errno, None);
            }
            Err(error.into())
        })
    }

    /// A write or a flush of the journal failed: nothing is changed until the store is opened anew.
    #[cold]
    fn journal_failed(&self, error: Error) {
        let what = "no object can be changed until the unit is opened anew (restart the daemon, or take \
                    the unit out and put it back)";
        self.health.failed(format!("its journal failed ({error}): {what}"));
    }
}

impl EmbeddedStore {
    /// Writes a checkpoint now, and frees space that was given up. The store does so by itself from
    /// time to time.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        self.inner.checkpoint().await
    }
}

impl ObjectStore for EmbeddedStore {
    fn root(&self) -> RootInfo {
        let directory = self.inner.directory();
        let mut times = directory.root_times;
        let (partitions, objects) = (directory.partitions.len() as u64, directory.objects());
        drop(directory);
        self.inner.touched(Id::ROOT, &mut times);
        let used = self.inner.space().used_blocks() * BLOCK;
        RootInfo { capacity: self.inner.capacity_blocks * BLOCK, used, partitions, objects, times }
    }

    fn partition(&self, id: u64) -> Result<PartitionInfo, Error> {
        let times = self.inner.times(Id::partition(id))?;
        let directory = self.inner.directory();
        let partition = directory.partition(id)?;
        Ok(PartitionInfo {
            objects: partition.objects,
            collections: partition.collections,
            used: partition.blocks * BLOCK,
            length: partition.length,
            generation: partition.generation,
            origin: partition.origin,
            times,
        })
    }

    passed_on!(inner: object times attribute attributes list membership memberships reserve_ids extents differences);

    fn touch(&self, id: Id, times: TimesUpdate) {
        let mut touched = unpoisoned(self.inner.touched.lock());
        if touched.len() >= MOST_TOUCHED && !touched.contains_key(&id) {
            // Access times are not essential: those of this object are lost until the next sync has
            // made room.
            return;
        }
        let entry = touched.entry(id).or_default();
        *entry = entry.then(times);
        let count = touched.len() as u64;
        let before = self.inner.touched_count.swap(count, Ordering::Relaxed);
        drop(touched);
        if before < MANY_TOUCHED && count >= MANY_TOUCHED {
            if let Some(waker) = self.inner.log().checkpointer.take() {
                waker.wake();
            }
        }
    }

    fn read(&self, id: Id, at: u64, len: usize) -> Io<Chain> {
        self.inner.read(id, at, len, false)
    }

    fn read_to_send(&self, id: Id, at: u64, len: usize) -> Io<Chain> {
        self.inner.read(id, at, len, true)
    }

    fn hold(&self) -> Hold {
        Hold::keep(std::rc::Rc::new(self.inner.holds.enter()))
    }

    fn apply(&self, change: Change, commit: Commit) -> Io<Applied> {
        let inner = self.inner.clone();
        Io::run(async move { inner.apply(change, commit).await })
    }

    fn sync(&self, _scope: Scope) -> Io<()> {
        // One flush covers all; to leave something out would not make it faster.
        let inner = self.inner.clone();
        Io::run(async move { inner.sync().await })
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(&self.inner.health)
    }

    fn inspect(&self) {
        let Inner { arena, journal, database, .. } = &*self.inner;
        let files = [arena.presence(), journal.store.presence(), database.presence()];
        self.inner.health.saw(&files.into_iter().flatten().collect::<Vec<_>>());
    }

    fn check(&self, partition: u64, repair: bool) -> Io<CheckReport> {
        let inner = self.inner.clone();
        Io::run(async move { inner.check(partition, repair).await })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        {
            let mut log = self.inner.log();
            log.closing = true;
            if let Some(waker) = log.checkpointer.take() {
                waker.wake();
            }
        }
        if let Some(thread) = self.thread.take() {
            // The thread has logged its errors.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("capacity_blocks", &self.inner.capacity_blocks).finish()
    }
}
