//! Attributes: short ones in the object's record, the others under keys of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::locks::Needed;
use super::record::{Held, INLINE_VALUE, INLINE_VALUES, Key, View, page_number, sealed, unsealed};
use super::txn::{Of, Txn, attribute_keys};
use super::{Inner, record, unpoisoned};
use crate::store::{Attribute, Attributes, Commit, Error, Id, MAX_VALUE, Value};

/// Keys of attributes that are looked up at a time: most callers want the first few.
const SCANNED: usize = 32;

/// Times that are written by one change.
const TOUCHED_AT_ONCE: usize = 64;

impl Txn {
    pub fn set_attribute(&mut self, id: Id, page: u32, number: u32, value: &[u8]) -> Result<(), Error> {
        if value.len() > MAX_VALUE {
            return Err(Error::ValueTooLong);
        }
        let work = self.existing(id)?;
        let owner = Self::owner(id, work.home);
        let at = work.record.held.binary_search_by_key(&(page, number), |h| (h.page, h.number));
        let was_held = at.is_ok();
        let at = at.unwrap_or_else(|at| at);
        if was_held {
            work.record.held.remove(at);
            work.dirty = true;
        }
        let sum: usize = work.record.held.iter().map(|h| h.value.len()).sum();
        let fits = value.len() <= INLINE_VALUE && sum + value.len() <= INLINE_VALUES;
        if !value.is_empty() && fits {
            work.record.held.insert(at, Held { page, number, value: Value::from_slice(value) });
            work.dirty = true;
        }
        let spilled = work.record.spilled;
        let spill = !value.is_empty() && !fits;
        if spilled == 0 && !spill {
            return Ok(());
        }
        let key = record::key(record::ATTRIBUTE, owner.0, owner.1, page_number(page, number));
        let was_spilled = !was_held && spilled > 0 && self.get(&key, |_| ())?.is_some();
        if spill {
            self.put(key, Some(sealed(&key, value)));
        } else if was_spilled {
            self.put(key, None);
        }
        let work = self.existing(id)?;
        work.record.spilled = spilled - u32::from(was_spilled) + u32::from(spill);
        work.dirty = true;
        Ok(())
    }

    /// Deletes the keys of attributes that a record which goes does not hold.
    pub(crate) fn drop_attributes(&mut self, owner: (u64, u64)) -> Result<(), Error> {
        let (from, to) = attribute_keys(owner, 0, u32::MAX);
        for key in self.keys(from, to)? {
            self.put(key, None);
        }
        Ok(())
    }

    /// Copies the keys of attributes that a record does not hold. [`Error::BadChange`] if they are
    /// longer than the journal could hold.
    pub(crate) fn copy_attributes(&mut self, owner: (u64, u64), to_owner: (u64, u64)) -> Result<(), Error> {
        let (from, to) = attribute_keys(owner, 0, u32::MAX);
        let mut len = 0;
        for key in self.keys(from, to)? {
            let [_, _, number] = record::numbers(&key);
            let copy = record::key(record::ATTRIBUTE, to_owner.0, to_owner.1, number);
            let value = self.get(&key, |bytes| record::moved(&key, &copy, bytes))?;
            len += value.as_ref().map_or(0, Vec::len) as u64;
            if len > self.inner.journal.segment {
                return Err(Error::BadChange);
            }
            self.put(copy, value);
        }
        Ok(())
    }
}

impl Inner {
    /// The key of an object's record, of whatever kind it may be: the second is tried when there is
    /// no first.
    pub(super) fn keys_of(&self, id: Id) -> Result<(u64, [Key; 2]), Error> {
        if id.is_root() {
            return Ok((0, [record::key(record::ROOT, 0, 0, 0); 2]));
        }
        if id.is_partition() {
            self.directory().partition(id.partition)?;
            return Ok((0, [record::key(record::PARTITION, id.partition, 0, 0); 2]));
        }
        let partition = *self.directory().partition(id.partition).map_err(|_| Error::NotFound(id))?;
        if id.object > partition.highest {
            // No lookup is needed.
            return Err(Error::NotFound(id));
        }
        let home = partition.home;
        let at = |kind| record::key(kind, home, id.object, 0);
        Ok((home, [at(record::USER), at(record::COLLECTION)]))
    }

    /// Shows the record of an object of any kind, where it lies.
    pub(super) fn described<R>(&self, id: Id, f: impl FnOnce(u64, Of, View<'_>) -> R) -> Result<R, Error> {
        let (home, [first, second]) = self.keys_of(id)?;
        let of = match id {
            Id { partition: 0, object: 0 } => Of::Root,
            Id { object: 0, .. } => Of::Partition,
            _ => Of::User,
        };
        let mut f = Some(f);
        let mut show = |of, key: &Key, bytes: &[u8]| {
            let view = View::new(key, bytes, id)?;
            f.take().map(|f| f(home, of, view)).ok_or(Error::NotFound(id))
        };
        if let Some(result) = self.layers.get(&first, |bytes| show(of, &first, bytes))? {
            return result;
        }
        match of {
            // The root has no record before its first change.
            Of::Root => show(Of::Root, &first, &record::Record::default().encode(&first)),
            Of::Partition => Err(Error::NotFound(id)),
            _ => match self.layers.get(&second, |bytes| show(Of::Collection, &second, bytes))? {
                Some(result) => result,
                None => Err(Error::NotFound(id)),
            },
        }
    }

    pub(super) fn attribute(
        &self,
        id: Id,
        page: u32,
        number: u32,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let (held, spilled, home) = self.described(id, |home, _, view| {
            for (p, n, v) in view.held() {
                if (p, n) == (page, number) {
                    value.extend_from_slice(v);
                    return (true, 0, home);
                }
            }
            (false, view.spilled(), home)
        })?;
        if held || spilled == 0 {
            return Ok(held);
        }
        let (a, b) = Txn::owner(id, home);
        let key = record::key(record::ATTRIBUTE, a, b, page_number(page, number));
        let found = self.layers.get(&key, |bytes| match unsealed(&key, bytes) {
            Some(v) => {
                value.extend_from_slice(v);
                Ok(())
            }
            None => Err(Error::Damaged(id)),
        })?;
        found.transpose().map(|found| found.is_some())
    }

    pub(super) fn attributes(
        &self,
        id: Id,
        which: Attributes,
        each: &mut dyn FnMut(Attribute<'_>) -> bool,
    ) -> Result<(), Error> {
        let (first, last) = which.range();
        let at = |(page, number)| page_number(page, number);
        let (held, spilled, home) = self.described(id, |home, _, view| {
            let held: Vec<(u64, Vec<u8>)> = view
                .held()
                .filter(|&(page, number, _)| (first..=last).contains(&(page, number)))
                .map(|(page, number, value)| (page_number(page, number), value.to_vec()))
                .collect();
            (held, view.spilled(), home)
        })?;
        let mut held = held.into_iter().peekable();
        let mut tell =
            |at: u64, value: &[u8]| each(Attribute { page: (at >> 32) as u32, number: at as u32, value });
        if spilled > 0 && first <= last {
            let (a, b) = Txn::owner(id, home);
            let key = |at| record::key(record::ATTRIBUTE, a, b, at);
            let mut next = Some(key(at(first)));
            // Keys in batches, values one by one: together they may be large.
            let mut keys = Vec::new();
            while let Some(from) = next {
                keys.clear();
                next = self.layers.scan(from, key(at(last)), SCANNED, |key, _| {
                    keys.push(*key);
                    true
                })?;
                for key in &keys {
                    let at = record::numbers(key)[2];
                    while let Some((before, value)) = held.next_if(|(before, _)| *before < at) {
                        if !tell(before, &value) {
                            return Ok(());
                        }
                    }
                    let value = self.layers.get(key, |bytes| unsealed(key, bytes).map(<[u8]>::to_vec))?;
                    let Some(value) = value else { continue };
                    if !tell(at, &value.ok_or(Error::Damaged(id))?) {
                        return Ok(());
                    }
                }
            }
        }
        for (at, value) in held {
            if !tell(at, &value) {
                break;
            }
        }
        Ok(())
    }

    /// Drops the noted times of these objects, which are in their records now.
    pub(super) fn forget_touched(&self, ids: &[Id]) {
        if self.touched_count.load(Ordering::Relaxed) > 0 {
            let mut touched = unpoisoned(self.touched.lock());
            for id in ids {
                touched.remove(id);
            }
            self.touched_count.store(touched.len() as u64, Ordering::Relaxed);
        }
    }

    pub(super) async fn write_touched(self: &Arc<Self>) -> Result<(), Error> {
        // Not those that are noted meanwhile.
        let count = unpoisoned(self.touched.lock()).len();
        for _ in 0..count.div_ceil(TOUCHED_AT_ONCE) {
            self.write_some_touched().await?;
        }
        Ok(())
    }

    /// Writes some of them. Whether there were any.
    pub(super) async fn write_some_touched(self: &Arc<Self>) -> Result<bool, Error> {
        let some: Vec<Id> = {
            let touched = unpoisoned(self.touched.lock());
            touched.keys().take(TOUCHED_AT_ONCE).copied().collect()
        };
        if some.is_empty() || self.damaged.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut needed = Needed::default();
        some.iter().for_each(|id| needed.object(*id));
        let held = self.locks.take(needed).await;
        self.write_times_of(&some, false).await?;
        drop(held);
        Ok(true)
    }

    /// Whether so many times are noted that some are to be written before a sync.
    pub(super) fn has_many_touched(&self) -> bool {
        self.touched_count.load(Ordering::Relaxed) >= super::MANY_TOUCHED
            && !self.damaged.load(Ordering::Relaxed)
    }

    /// Writes some of the times that were noted, by the task that writes the checkpoints: it must
    /// not wait for a task that may wait for a checkpoint. Returns whether it could write some.
    pub(super) async fn drain_touched(self: &Arc<Self>) -> Result<bool, Error> {
        let some: Vec<Id> = unpoisoned(self.touched.lock()).keys().take(TOUCHED_AT_ONCE).copied().collect();
        let mut needed = Needed::default();
        some.iter().for_each(|id| needed.object(*id));
        match self.locks.try_take(needed) {
            Some(_held) if !some.is_empty() => self.write_times_of(&some, true).await.map(|()| true),
            _ => {
                if self.has_thread {
                    runtime::sleep(super::partitions::LATER).await;
                }
                Ok(false)
            }
        }
    }

    /// Writes the noted times of objects whose locks are held.
    async fn write_times_of(self: &Arc<Self>, some: &[Id], by_checkpointer: bool) -> Result<(), Error> {
        let mut txn = Txn::new(self.clone(), false);
        txn.by_checkpointer = by_checkpointer;
        for id in some {
            // Loading has put the noted times into the record.
            if let Ok(work) = txn.existing(*id) {
                work.dirty = true;
            }
        }
        let (ticket, _) = txn.commit().await?;
        self.forget_touched(some);
        self.written(ticket, Commit::Relaxed).await
    }
}
