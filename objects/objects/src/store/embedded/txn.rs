//! One change in progress: the records it read, the new ones, and their commit.
//!
//! Steps work on copies of the records that they touch. No reader sees them before the commit,
//! which appends all of them to the journal and to the active layer under one lock. A transaction
//! that is dropped before gives back the blocks that it took.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::directory::{Delta, Partition};
use super::layers::{Known, Val};
use super::record::{
    self, ATTRIBUTE, CHUNK, COLLECTION, COUNT, INLINE_EXTENTS, Key, PARTITION, ROOT, Record, Run, USER, View,
    decode_chunk, encode_chunk, key, numbers,
};
use super::space::Blocks;
use super::{Inner, journal, unpoisoned};
use crate::store::{Applied, BLOCK, Error, Id, Stop};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Root,
    Partition,
    User,
    Collection,
}

#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub runs: Vec<Run>,
    pub existed: bool,
    pub dirty: bool,
}

/// An object's record, and what of its extents was looked at.
#[derive(Debug)]
pub(super) struct Work {
    pub home: u64,
    pub of: Of,
    existed: bool,
    pub exists: bool,
    pub dirty: bool,
    pub record: Record,
    /// Blocks and length before.
    before: (u64, u64),
    pub chunks: BTreeMap<u64, Chunk>,
}

impl Work {
    pub(crate) fn is_user(&self) -> bool {
        self.exists && self.of == Of::User
    }
}

pub(super) struct Txn {
    pub inner: Arc<Inner>,
    pub works: BTreeMap<Id, Work>,
    pub puts: BTreeMap<Key, Val>,
    /// The part of the payload that is not puts.
    pub payload: Vec<u8>,
    /// Blocks taken, given up, and used once more.
    pub added: Vec<Blocks>,
    /// Index in `added` from which on blocks may be overwritten: no other object shares or still
    /// needs them.
    pub fresh_from: usize,
    pub freed: Vec<Blocks>,
    pub shared: Vec<Blocks>,
    /// Changes of collections' numbers of members, by home and id.
    pub members: BTreeMap<(u64, u64), i64>,
    /// Members that go because their objects do. Their collections are not locked: others may
    /// remove one meanwhile, and create another with its id.
    pub left: Vec<Key>,
    /// Partitions that begin and end, with their homes.
    pub created: BTreeMap<u64, Partition>,
    pub removed: BTreeMap<u64, u64>,
    pub dying: SmallVec<[u64; 2]>,
    /// Homes that it has filled: they belong to no partition until it is committed.
    pub made: SmallVec<[u64; 1]>,
    pub formatted: bool,
    /// Data goes into the journal too, so that the arena need not be flushed.
    pub logs_data: bool,
    /// Data was written to the arena that the journal does not have.
    pub unlogged: bool,
    /// The arena has to be flushed before the commit, whatever that promises: bytes that may be
    /// durable are in it alone.
    pub must_sync: bool,
    pub logged: usize,
    /// It is committed by the task that writes the checkpoints, which cannot wait for itself.
    pub by_checkpointer: bool,
    pub stop: Option<Stop>,
    pub applied: Applied,
    deltas: BTreeMap<u64, Delta>,
    committed: bool,
}

impl Txn {
    pub fn new(inner: Arc<Inner>, logs_data: bool) -> Self {
        Self {
            inner,
            works: BTreeMap::new(),
            puts: BTreeMap::new(),
            payload: Vec::new(),
            added: Vec::new(),
            fresh_from: 0,
            freed: Vec::new(),
            shared: Vec::new(),
            members: BTreeMap::new(),
            left: Vec::new(),
            created: BTreeMap::new(),
            removed: BTreeMap::new(),
            dying: SmallVec::new(),
            made: SmallVec::new(),
            formatted: false,
            logs_data,
            unlogged: false,
            must_sync: false,
            logged: 0,
            by_checkpointer: false,
            stop: None,
            applied: Applied::default(),
            deltas: BTreeMap::new(),
            committed: false,
        }
    }

    pub fn partition(&self, id: u64) -> Result<Partition, Error> {
        let missing = Error::NotFound(Id::partition(id));
        if let Some(partition) = self.created.get(&id) {
            return Ok(*partition);
        }
        if self.formatted || self.removed.contains_key(&id) {
            return Err(missing);
        }
        self.inner.directory().partitions.get(&id).copied().ok_or(missing)
    }

    /// Whether a partition has objects or collections, as this change sees it.
    pub fn is_empty(&self, id: u64) -> Result<bool, Error> {
        let mut partition = self.partition(id)?;
        if let Some(delta) = self.deltas.get(&id) {
            partition.apply(*delta);
        }
        let (mut before, mut after) = (partition.objects + partition.collections, 0);
        for (_, work) in self.works.iter().filter(|(o, _)| o.partition == id && o.object > 0) {
            before = before.saturating_sub(u64::from(work.existed));
            after += u64::from(work.exists);
        }
        Ok(before + after == 0)
    }

    /// A key's value as this change sees it.
    pub fn get<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Error> {
        match self.puts.get(key) {
            Some(value) => Ok(value.as_deref().map(f)),
            None => self.inner.layers.get(key, f),
        }
    }

    /// The keys between two, both included, as this change sees them. [`Error::BadChange`] if there
    /// are more than the journal could hold a change of.
    pub fn keys(&self, from: Key, to: Key) -> Result<Vec<Key>, Error> {
        let most = self.inner.journal.segment / (from.len() as u64 + 1);
        let mut keys = std::collections::BTreeSet::new();
        let mut next = Some(from);
        while let Some(from) = next {
            if keys.len() as u64 > most {
                return Err(Error::BadChange);
            }
            next = self.inner.layers.scan(from, to, super::recover::SCANNED, |key, _| {
                keys.insert(*key);
                true
            })?;
        }
        for (key, value) in self.puts.range(from..=to) {
            if value.is_some() {
                keys.insert(*key);
            } else {
                keys.remove(key);
            }
        }
        Ok(keys.into_iter().collect())
    }

    pub fn put(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.puts.insert(key, value.map(Arc::from));
    }

    /// Between two pieces of a step that takes long: gives the core's other tasks their turn.
    /// [`Error::Stopped`] if the change is to end, [`Error::BadChange`] if the journal cannot hold
    /// it.
    pub async fn pause(&self) -> Result<(), Error> {
        runtime::yield_now().await;
        if self.payload.len() as u64 > self.inner.journal.segment {
            return Err(Error::BadChange);
        }
        Stop::check(self.stop.as_ref())
    }

    /// Numbers in the keys of an object's attributes that its record does not hold.
    pub fn owner(id: Id, home: u64) -> (u64, u64) {
        if id.object == 0 { (0, id.partition) } else { (home, id.object) }
    }

    /// The record of an object of any kind, which need not exist.
    pub fn work(&mut self, id: Id) -> Result<&mut Work, Error> {
        if !self.works.contains_key(&id) {
            let work = self.load(id)?;
            self.works.insert(id, work);
        }
        self.works.get_mut(&id).ok_or(Error::NotFound(id))
    }

    fn load(&self, id: Id) -> Result<Work, Error> {
        let read = |key: &Key| {
            let found = self.get(key, |bytes| View::new(key, bytes, id).map(View::to_record))?;
            found.transpose()
        };
        let (home, of, record) = if id.is_root() {
            (
                0,
                Of::Root,
                Some(if self.formatted { None } else { read(&key(ROOT, 0, 0, 0))? }.unwrap_or_default()),
            )
        } else if id.is_partition() {
            let record = match self.partition(id.partition) {
                Ok(_) => read(&key(PARTITION, id.partition, 0, 0))?,
                Err(_) => None,
            };
            (0, Of::Partition, record)
        } else {
            let partition = self.partition(id.partition).map_err(|_| Error::NotFound(id))?;
            let home = partition.home;
            if id.object > partition.highest {
                // None of this id was ever committed, and what this change has made of it is in its
                // works.
                (home, Of::Collection, None)
            } else {
                match read(&key(USER, home, id.object, 0))? {
                    Some(record) => (home, Of::User, Some(record)),
                    None => (home, Of::Collection, read(&key(COLLECTION, home, id.object, 0))?),
                }
            }
        };
        let exists = record.is_some();
        let mut record = record.unwrap_or_default();
        let before = if of == Of::User { (record.b, record.a) } else { (0, 0) };
        self.inner.touched(id, &mut record.times);
        Ok(Work { home, of, existed: exists, exists, dirty: false, record, before, chunks: BTreeMap::new() })
    }

    /// The record of one that is there.
    pub fn existing(&mut self, id: Id) -> Result<&mut Work, Error> {
        match self.work(id) {
            Ok(work) if work.exists => Ok(work),
            Ok(_) => Err(Error::NotFound(id)),
            Err(error) => Err(error),
        }
    }

    /// Takes a user object's record out, to be put back.
    pub(crate) fn take_user(&mut self, id: Id) -> Result<Work, Error> {
        if !self.existing(id)?.is_user() {
            return Err(Error::NotFound(id));
        }
        self.works.remove(&id).ok_or(Error::NotFound(id))
    }

    pub(crate) fn load_chunks(&self, work: &mut Work, id: Id, from: u64, to: u64) -> Result<(), Error> {
        if !work.record.chunked || from >= to {
            return Ok(());
        }
        let (first, last) = (from / record::CHUNK_BLOCKS, (to - 1) / record::CHUNK_BLOCKS);
        let chunk_key = |chunk| key(CHUNK, work.home, id.object, chunk);
        let chunks: Vec<u64> = if last - first < 64 {
            (first..=last).collect()
        } else {
            self.keys(chunk_key(first), chunk_key(last))?.iter().map(|key| numbers(key)[2]).collect()
        };
        for chunk in chunks {
            if work.chunks.contains_key(&chunk) {
                continue;
            }
            let at = chunk_key(chunk);
            let found = self.get(&at, |bytes| decode_chunk(&at, bytes))?;
            let existed = found.is_some();
            let runs = found.map_or(Ok(Vec::new()), |runs| runs.ok_or(Error::Damaged(id)))?;
            work.chunks.insert(chunk, Chunk { runs, existed, dirty: false });
        }
        Ok(())
    }

    fn seal(&mut self) {
        for (id, work) in std::mem::take(&mut self.works) {
            self.settle(id, work);
        }
        self.applied.used_change = self.deltas.values().map(|d| d.blocks).sum::<i64>() * BLOCK as i64;
    }

    /// Lets a record that this change has removed go, so that its id can be used again.
    pub(crate) fn retire(&mut self, id: Id) {
        if self.works.get(&id).is_some_and(|work| !work.exists) {
            if let Some(work) = self.works.remove(&id) {
                self.settle(id, work);
            }
        }
    }

    /// Turns a record into puts, and notes the changes of its partition's sums.
    fn settle(&mut self, id: Id, mut work: Work) {
        let own = match work.of {
            Of::Root => key(ROOT, 0, 0, 0),
            Of::Partition => key(PARTITION, id.partition, 0, 0),
            Of::User => key(USER, work.home, id.object, 0),
            Of::Collection => key(COLLECTION, work.home, id.object, 0),
        };
        if work.of == Of::User && work.exists && work.dirty {
            place_extents(&mut work);
        }
        for (number, chunk) in &work.chunks {
            let at = key(CHUNK, work.home, id.object, *number);
            if !work.exists || chunk.runs.is_empty() || !work.record.chunked {
                if chunk.existed {
                    self.puts.insert(at, None);
                }
            } else if chunk.dirty {
                self.puts.insert(at, Some(encode_chunk(&at, &chunk.runs).into()));
            }
        }
        if work.exists && work.dirty {
            self.puts.insert(own, Some(work.record.encode(&own).into()));
        } else if work.existed && !work.exists {
            self.puts.insert(own, None);
        }
        if matches!(work.of, Of::User | Of::Collection) {
            let delta = self.deltas.entry(id.partition).or_default();
            let count = i64::from(work.exists) - i64::from(work.existed);
            let after = match work.of {
                Of::User if work.exists => (work.record.b, work.record.a),
                _ => (0, 0),
            };
            match work.of {
                Of::User => delta.objects += count,
                _ => delta.collections += count,
            }
            delta.blocks += after.0.wrapping_sub(work.before.0).cast_signed();
            delta.length += after.1.wrapping_sub(work.before.1).cast_signed();
            if work.exists && !work.existed {
                delta.highest = delta.highest.max(id.object);
            }
        }
        if work.of == Of::Partition && work.exists {
            if let Some(created) = self.created.get_mut(&id.partition) {
                created.origin = work.record.origin();
            }
        }
    }

    /// Commits it: visible to all from then on. Returns its ticket in the journal.
    pub async fn commit(mut self) -> Result<(u64, Applied), Error> {
        let ids: SmallVec<[Id; 4]> =
            self.works.iter().filter(|(_, w)| w.dirty || !w.exists).map(|(id, _)| *id).collect();
        let origins: SmallVec<[(u64, Option<crate::store::Origin>); 2]> = self
            .works
            .iter()
            .filter(|(_, w)| w.of == Of::Partition && w.exists && w.dirty)
            .map(|(id, w)| (id.partition, w.record.origin()))
            .collect();
        let root_times = self.works.get(&Id::ROOT).map(|w| w.record.times);
        self.seal();
        let deltas = std::mem::take(&mut self.deltas);
        let mut payload = std::mem::take(&mut self.payload);
        let puts = |(key, value): (&Key, &Val)| key.len() + 5 + value.as_ref().map_or(0, |value| value.len());
        payload.reserve(self.puts.iter().map(puts).sum());
        for (key, value) in &self.puts {
            journal::put(&mut payload, key, value.as_deref());
        }
        if payload.is_empty() && self.members.is_empty() && self.created.is_empty() && self.removed.is_empty()
        {
            self.committed = true;
            // A durable change makes all earlier ones durable.
            let ticket = self.inner.log().appended;
            return Ok((ticket, std::mem::take(&mut self.applied)));
        }
        for member in &self.left {
            let [home, collection, _] = numbers(member);
            self.members.entry((home, collection)).or_default();
        }
        let most = payload.len() + self.members.len() * 64;
        let inner = self.inner.clone();
        let quiet = deltas.values().all(Delta::is_nothing)
            && self.created.is_empty()
            && self.removed.is_empty()
            && origins.is_empty()
            && root_times.is_none()
            && !self.formatted;
        if (most + journal::HEADER + inner.journal.sector) as u64 > inner.journal.segment {
            return Err(Error::BadChange);
        }
        // Looked up before the lock is taken that all changes need.
        let mut counts: SmallVec<[Known<Option<u64>>; 2]> = SmallVec::new();
        for (home, collection) in self.members.keys() {
            let at = key(COUNT, *home, *collection, 0);
            counts.push(inner.layers.ask(&at, |bytes| count_of(&at, bytes))?);
        }
        let mut left: SmallVec<[Known<()>; 2]> = SmallVec::new();
        for member in &self.left {
            left.push(inner.layers.ask(member, |_| ())?);
        }
        loop {
            {
                let mut log = inner.log();
                if let Some(error) = log.failed {
                    return Err(error);
                }
                if log.has_room(&inner.journal, most) {
                    for (member, known) in std::mem::take(&mut self.left).iter().zip(left) {
                        if inner.layers.get_known(member, known, |_| ())?.is_some() {
                            let [home, collection, _] = numbers(member);
                            *self.members.entry((home, collection)).or_default() -= 1;
                        }
                    }
                    for (((home, collection), change), known) in
                        std::mem::take(&mut self.members).into_iter().zip(counts)
                    {
                        self.count_members((home, collection), change, known, &mut payload)?;
                    }
                    log.pending.extend_from_slice(&payload);
                    log.appended += 1;
                    let ticket = log.appended;
                    // The sums go first: no reader looks for an object above the highest id.
                    if !quiet {
                        self.publish_sums(&deltas, &origins, root_times);
                    }
                    inner.layers.publish(std::mem::take(&mut self.puts));
                    if !(self.shared.is_empty() && self.freed.is_empty()) {
                        let mut space = inner.space();
                        self.shared.drain(..).for_each(|blocks| space.share(blocks));
                        for blocks in self.freed.drain(..) {
                            space.drop_use(blocks, &mut log.freed);
                        }
                    }
                    if !self.dying.is_empty() {
                        unpoisoned(inner.dying.lock()).extend(self.dying.drain(..));
                        if let Some(waker) = log.checkpointer.take() {
                            waker.wake();
                        }
                    }
                    drop(log);
                    inner.forget_touched(&ids);
                    self.committed = true;
                    return Ok((ticket, std::mem::take(&mut self.applied)));
                }
            }
            match self.by_checkpointer {
                true => inner.checkpoint_here().await?,
                false => inner.checkpoint().await?,
            }
        }
    }

    /// Under the journal's lock: others change the same count.
    fn count_members(
        &mut self,
        (home, id): (u64, u64),
        change: i64,
        known: Known<Option<u64>>,
        payload: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let at = key(COUNT, home, id, 0);
        if self.puts.get(&at).is_some_and(Option::is_none) {
            // The collection goes with this change.
            return Ok(());
        }
        let before = self.inner.layers.get_known(&at, known, |bytes| count_of(&at, bytes))?.flatten();
        // A collection that another change has removed meanwhile has no count any more.
        let Some(before) = before.or((change > 0).then_some(0)) else { return Ok(()) };
        let value = record::sealed(&at, &before.saturating_add_signed(change).to_le_bytes());
        journal::put(payload, &at, Some(&value));
        self.put(at, Some(value));
        Ok(())
    }

    fn publish_sums(
        &mut self,
        deltas: &BTreeMap<u64, Delta>,
        origins: &[(u64, Option<crate::store::Origin>)],
        root_times: Option<crate::store::Times>,
    ) {
        let mut directory = self.inner.directory_mut();
        if self.formatted {
            directory.partitions.clear();
        }
        for id in std::mem::take(&mut self.removed).into_keys() {
            directory.partitions.remove(&id);
        }
        for (id, partition) in std::mem::take(&mut self.created) {
            directory.partitions.insert(id, partition);
            if id < 1 << 63 {
                directory.next_partition = directory.next_partition.max(id + 1);
            }
        }
        for (id, delta) in deltas {
            directory.apply(*id, *delta);
        }
        for (id, origin) in origins {
            if let Some(partition) = directory.partitions.get_mut(id) {
                partition.origin = *origin;
            }
        }
        if let Some(times) = root_times {
            directory.root_times = times;
        }
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        if !self.added.is_empty() {
            // They may have been written to: they become zeros like all that is given up.
            self.inner.log().freed.append(&mut self.added);
        }
        if !self.made.is_empty() {
            let mut log = self.inner.log();
            unpoisoned(self.inner.dying.lock()).extend(self.made.drain(..));
            if let Some(waker) = log.checkpointer.take() {
                waker.wake();
            }
        }
    }
}

/// Number of members that a collection's count holds.
pub(super) fn count_of(key: &Key, bytes: &[u8]) -> Option<u64> {
    record::unsealed(key, bytes)?.try_into().ok().map(u64::from_le_bytes)
}

/// Moves extents between the record and its chunks, as many as there are.
fn place_extents(work: &mut Work) {
    let record = &mut work.record;
    if record.chunked && record.b == 0 {
        record.chunked = false;
    }
    if !record.chunked && record.runs.len() > INLINE_EXTENTS {
        record.chunked = true;
        for run in record.runs.drain(..) {
            let chunk = work.chunks.entry(run.block / record::CHUNK_BLOCKS).or_default();
            chunk.runs.push(run);
            chunk.dirty = true;
        }
    }
}

/// The keys of an object's attributes that its record does not hold.
pub(super) fn attribute_keys((a, b): (u64, u64), first: u32, last: u32) -> (Key, Key) {
    let at = |page, number| key(ATTRIBUTE, a, b, record::page_number(page, number));
    (at(first, 0), at(last, u32::MAX))
}
