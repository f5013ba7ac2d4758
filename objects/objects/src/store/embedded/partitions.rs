//! Creation, removal and duplication of whole partitions.
//!
//! A duplicate is a copy of the records, and shares all data. The copy goes to a home of its own in
//! many small commits while the source stands still; the last change lets a partition's record name
//! it. Until then, and after a crash, it belongs to no partition, and is emptied like the home of a
//! removed one.

use std::sync::atomic::Ordering;

use super::directory::Partition;
use super::extents::blocks;
use super::layers::{Val, successor};
use super::locks::Needed;
use super::record::{self, CHUNK, CONTENT, Key, PARTITION, Record, USER, View, decode_chunk, key, numbers};
use super::space::Blocks;
use super::txn::Txn;
use super::{Inner, journal, unpoisoned};
use crate::store::{Commit, Error, FIRST_ID, Id, Origin, Stop};

/// Keys that one commit copies or deletes.
const AT_ONCE: usize = 512;
/// Bytes of a put in the journal, at most, beside its value.
const ENTRY: usize = 64;
/// Interval at which emptying checks whether a check has ended.
pub(super) const LATER: std::time::Duration = std::time::Duration::from_millis(5);
/// Intervals of [`LATER`] without any emptying after which waiting for it ends.
const IDLE: u32 = 400;

impl Txn {
    pub(crate) fn new_home(&self) -> u64 {
        let mut directory = self.inner.directory_mut();
        directory.next_home += 1;
        directory.next_home - 1
    }

    pub fn new_generation(&self) -> u64 {
        let mut directory = self.inner.directory_mut();
        directory.next_generation += 1;
        directory.next_generation - 1
    }

    pub fn new_partition(&self, id: u64) -> Result<(), Error> {
        if id < FIRST_ID {
            return Err(Error::BadId(id));
        }
        match self.partition(id) {
            Ok(_) => Err(Error::Exists(Id::partition(id))),
            Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn begin_partition(
        &mut self,
        id: u64,
        partition: Partition,
        record: Record,
    ) -> Result<(), Error> {
        self.retire(Id::partition(id));
        self.created.insert(id, partition);
        let work = self.work(Id::partition(id))?;
        work.exists = true;
        work.dirty = true;
        work.record = Record { a: partition.home, ..record };
        work.record.set_generation(partition.generation);
        work.record.set_origin(partition.origin);
        Ok(())
    }

    pub fn remove_partition(&mut self, id: u64, contents: bool) -> Result<(), Error> {
        let partition = self.partition(id)?;
        if !contents && !self.is_empty(id)? {
            return Err(Error::NotEmpty(Id::partition(id)));
        }
        let name = Id::partition(id);
        if self.existing(name)?.record.spilled > 0 {
            self.drop_attributes((0, id))?;
        }
        let work = self.existing(name)?;
        work.exists = false;
        if self.created.remove(&id).is_none() {
            self.removed.insert(id, partition.home);
        }
        self.dying.push(partition.home);
        Ok(())
    }

    pub fn format(&mut self) -> Result<(), Error> {
        let (from, to) = (key(PARTITION, 0, 0, 0), key(PARTITION, u64::MAX, u64::MAX, u64::MAX));
        for partition in self.keys(from, to)? {
            self.put(partition, None);
        }
        let (from, to) = (key(record::ATTRIBUTE, 0, 0, 0), key(record::ATTRIBUTE, 0, u64::MAX, u64::MAX));
        for attribute in self.keys(from, to)? {
            self.put(attribute, None);
        }
        self.put(key(record::ROOT, 0, 0, 0), None);
        self.works.clear();
        self.dying.extend(self.inner.directory().partitions.values().map(|p| p.home));
        self.formatted = true;
        self.work(Id::ROOT)?.dirty = true;
        Ok(())
    }

    /// Origin of a duplicate; its source must still exist.
    pub fn origin(&self, id: u64) -> Result<Origin, Error> {
        let origin = self.partition(id)?.origin.ok_or(Error::NoSource(id))?;
        match self.partition(origin.source) {
            Ok(source) if source.generation == origin.generation => Ok(origin),
            _ => Err(Error::NoSource(id)),
        }
    }

    pub async fn duplicate(&mut self, source: u64, id: u64, origin: Origin) -> Result<(), Error> {
        let from = self.partition(source)?;
        self.new_partition(id)?;
        let record = self.existing(Id::partition(source))?.record.clone();
        let home = self.copy_home(from.home).await?;
        if record.spilled > 0 {
            self.copy_attributes((0, source), (0, id))?;
        }
        let generation = self.new_generation();
        self.begin_partition(id, Partition { home, generation, origin: Some(origin), ..from }, record)
    }

    /// Gives the partition `id` the content of `source`.
    pub async fn replace(&mut self, id: u64, source: u64, origin: Option<Origin>) -> Result<(), Error> {
        let (old, from) = (self.partition(id)?, self.partition(source)?);
        let record = self.existing(Id::partition(source))?.record.clone();
        let home = self.copy_home(from.home).await?;
        self.drop_attributes((0, id))?;
        if record.spilled > 0 {
            self.copy_attributes((0, source), (0, id))?;
        }
        self.dying.push(old.home);
        let next_id = old.next_id.max(from.next_id);
        let partition = Partition { home, generation: old.generation, origin, next_id, ..from };
        self.created.insert(id, partition);
        let work = self.existing(Id::partition(id))?;
        work.dirty = true;
        work.record = Record { a: home, ..record };
        work.record.set_generation(old.generation);
        work.record.set_origin(origin);
        Ok(())
    }

    /// Copies all that is in a home to a new one, and lets both have the data.
    async fn copy_home(&mut self, source: u64) -> Result<u64, Error> {
        let home = self.new_home();
        // Unless the change is committed, it is emptied again.
        self.made.push(home);
        self.inner.copy_content(source, home, self.stop.as_ref()).await?;
        Ok(home)
    }
}

/// Puts and blocks that one commit is about.
#[derive(Default)]
struct Part {
    puts: std::collections::BTreeMap<Key, Val>,
    used: Vec<Blocks>,
}

/// The blocks that a pair of key and value names.
fn blocks_of(found: &Key, value: &[u8], used: &mut Vec<Blocks>) -> Result<(), Error> {
    let [home, object, _] = numbers(found);
    let id = Id::new(home, object);
    match found[0] {
        USER => used.extend(View::new(found, value, id)?.runs().map(|run| blocks(&run))),
        CHUNK => used.extend(decode_chunk(found, value).ok_or(Error::Damaged(id))?.iter().map(blocks)),
        _ => {}
    }
    Ok(())
}

/// Bytes of the journal that a put takes, about.
pub(super) fn entry_len(value: &Val) -> usize {
    ENTRY + value.as_ref().map_or(0, |value| value.len())
}

impl Inner {
    /// Bytes of puts after which a part ends: with the longest attribute after it, it fits into a
    /// segment.
    pub(super) fn part_bytes(&self) -> usize {
        usize::try_from(self.journal.segment / 8).unwrap_or(usize::MAX)
    }

    async fn copy_content(&self, source: u64, home: u64, stop: Option<&Stop>) -> Result<(), Error> {
        for kind in CONTENT {
            let mut next = Some(key(kind, source, 0, 0));
            while let Some(from) = next {
                Stop::check(stop)?;
                let (mut part, mut failed) = (Part::default(), None);
                let (mut bytes, mut full) = (0, None);
                let to = key(kind, source, u64::MAX, u64::MAX);
                next = self.layers.scan(from, to, AT_ONCE, |found, value| {
                    failed = blocks_of(found, value, &mut part.used).err();
                    let [_, b, c] = numbers(found);
                    let copy = key(kind, home, b, c);
                    let value = Some(record::moved(found, &copy, value).into());
                    bytes += entry_len(&value);
                    part.puts.insert(copy, value);
                    full = (bytes >= self.part_bytes()).then_some(*found);
                    failed.is_none() && full.is_none()
                })?;
                if let Some(last) = full {
                    next = successor(&last).filter(|next| *next <= to);
                }
                match failed {
                    Some(error) => return Err(error),
                    None => self.commit_part(part, true).await?,
                }
            }
        }
        Ok(())
    }

    /// Deletes some records of homes that belong to no partition. Returns whether there may be
    /// more.
    pub(super) async fn empty_some(&self) -> Result<bool, Error> {
        let mut needed = Needed::default();
        needed.emptying();
        // Not waited for: its holder may wait for a checkpoint, which this very task writes.
        let Some(_emptying) = self.locks.try_take(needed) else {
            if self.has_thread {
                runtime::sleep(LATER).await;
            }
            return Ok(false);
        };
        let Some(home) = unpoisoned(self.dying.lock()).last().copied() else { return Ok(false) };
        let mut part = Part::default();
        for kind in CONTENT {
            let to = key(kind, home, u64::MAX, u64::MAX);
            let left = AT_ONCE - part.puts.len();
            self.layers.scan(key(kind, home, 0, 0), to, left, |found, value| {
                // Damaged records go too; the next open finds their blocks.
                let _ = blocks_of(found, value, &mut part.used);
                part.puts.insert(*found, None);
                true
            })?;
            if part.puts.len() == AT_ONCE {
                break;
            }
        }
        if part.puts.is_empty() {
            unpoisoned(self.dying.lock()).retain(|other| *other != home);
            // The next checkpoint frees its space: do it now.
            let ticket = {
                let mut log = self.log();
                log.rotate = true;
                log.appended
            };
            self.written(ticket, Commit::Relaxed).await?;
            return Ok(true);
        }
        self.commit_part(part, false).await?;
        self.emptied.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Waits until the homes without a partition are empty, as long as that progresses.
    pub(super) async fn are_emptied(&self) {
        let (mut seen, mut idle) = (self.emptied.load(Ordering::Relaxed), 0);
        // By hand it is done by the next checkpoint.
        while self.has_thread && idle < IDLE && !unpoisoned(self.dying.lock()).is_empty() {
            runtime::sleep(LATER).await;
            let now = self.emptied.load(Ordering::Relaxed);
            idle = if now == seen { idle + 1 } else { 0 };
            seen = now;
        }
    }

    /// Commits puts that belong to no change; the caller may have to write the checkpoint itself.
    async fn commit_part(&self, mut part: Part, share: bool) -> Result<(), Error> {
        if part.puts.is_empty() {
            return Ok(());
        }
        let mut payload = Vec::new();
        for (key, value) in &part.puts {
            journal::put(&mut payload, key, value.as_deref());
        }
        if (payload.len() + journal::HEADER + self.journal.sector) as u64 > self.journal.segment {
            return Err(Error::BadChange);
        }
        loop {
            let appended = {
                let mut log = self.log();
                if let Some(error) = log.failed {
                    return Err(error);
                }
                if log.has_room(&self.journal, payload.len()) {
                    log.pending.extend_from_slice(&payload);
                    log.appended += 1;
                    self.layers.publish(std::mem::take(&mut part.puts));
                    let mut space = self.space();
                    for blocks in part.used.drain(..) {
                        match share {
                            true => space.share(blocks),
                            false => space.drop_use(blocks, &mut log.freed),
                        }
                    }
                    Some(log.appended)
                } else {
                    None
                }
            };
            match appended {
                Some(ticket) => {
                    self.written(ticket, Commit::Relaxed).await?;
                    runtime::yield_now().await;
                    return Ok(());
                }
                None if share => self.checkpoint().await?,
                // It is the checkpoints' own task that empties homes: it cannot wait for itself.
                None => self.checkpoint_here().await?,
            }
        }
    }

    /// Commits puts that name no new blocks.
    pub(super) async fn commit_puts(&self, puts: std::collections::BTreeMap<Key, Val>) -> Result<(), Error> {
        self.commit_part(Part { puts, used: Vec::new() }, true).await
    }

    /// Keeps every change away.
    pub(super) async fn lock_all(&self) -> super::locks::Held {
        let mut needed = Needed::default();
        needed.all();
        needed.emptying();
        self.locks.take(needed).await
    }
}
