//! Application of a change: its locks, its steps, its commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Inner;
use super::directory::Partition;
use super::locks::Needed;
use super::record::{COUNT, MEMBER, MEMBERSHIP, Record, key, numbers, sealed};
use super::txn::{Of, Txn, Work};
use crate::store::{
    Applied, Change, CollectionType, Commit, Duplicate, Error, FIRST_ID, Id, MAX_VALUE, Origin, Step,
};

/// Most bytes of a durable change's data that go through the journal: one flush instead of two.
pub(super) const LOGGED: usize = 64 << 10;
/// Times that a change that finds no space waits for reclaimed space.
const ATTEMPTS: usize = 16;

impl Inner {
    pub(super) async fn apply(self: &Arc<Self>, change: Change, commit: Commit) -> Result<Applied, Error> {
        change.is_whole()?;
        if self.damaged.load(Ordering::Relaxed) {
            return Err(Error::Damaged(Id::ROOT));
        }
        let mut attempts = 0;
        loop {
            match self.attempt(&change, commit).await {
                Err(Error::NoSpace) if attempts < ATTEMPTS && self.can_reclaim() => {
                    attempts += 1;
                    // Space of removed partitions is freed piece by piece, without a time limit.
                    self.are_emptied().await;
                    self.checkpoint().await?;
                }
                result => return result,
            }
        }
    }

    async fn attempt(self: &Arc<Self>, change: &Change, commit: Commit) -> Result<Applied, Error> {
        if commit == Commit::Durable {
            self.flush_refusal()?;
        }
        let held = self.locks.take(self.needed(change)).await;
        let data: usize = change.steps.iter().map(data_len).sum();
        let mut txn = Txn::new(self.clone(), commit == Commit::Durable && data <= LOGGED);
        txn.stop.clone_from(&change.stop);
        for (at, step) in change.steps.iter().enumerate() {
            let in_place = change.steps[at + 1..].iter().all(|later| is_harmless(later, step));
            txn.step(step, in_place).await?;
        }
        if txn.must_sync || (commit == Commit::Durable && txn.unlogged) {
            self.arena.sync().await?;
        }
        let (ticket, applied) = txn.commit().await?;
        self.written(ticket, commit).await?;
        if !self.has_thread && self.log().frozen.is_some() {
            self.write_checkpoint().await?;
        }
        // The next change need not wait for the flush.
        drop(held);
        if commit == Commit::Durable {
            self.flush_journal(ticket).await?;
        }
        Ok(applied)
    }

    fn needed(&self, change: &Change) -> Needed {
        let mut needed = Needed::default();
        for step in &change.steps {
            match step {
                Step::Format => needed.all(),
                Step::CreatePartition(id) | Step::RemovePartition { id, .. } | Step::Detach { id } => {
                    needed.partition(*id);
                }
                Step::Duplicate { source, id, .. } => {
                    needed.partition(*source);
                    needed.partition(*id);
                }
                Step::Refresh { id, .. } | Step::Restore { id } => {
                    needed.partition(*id);
                    let source = self.directory().partition(*id).ok().and_then(|p| p.origin);
                    if let Some(origin) = source {
                        needed.partition(origin.source);
                    }
                }
                Step::CreateUser(id)
                | Step::CreateCollection(id, _)
                | Step::RemoveUser(id)
                | Step::RemoveCollection { id, .. }
                | Step::Write { id, .. }
                | Step::Append { id, .. }
                | Step::Punch { id, .. }
                | Step::Clear { id, .. }
                | Step::SetLength { id, .. }
                | Step::SetAttribute { id, .. }
                | Step::Expect { id, .. }
                | Step::SetTimes { id, .. } => needed.object(*id),
                Step::Copy { from, to, .. } => {
                    needed.object(*from);
                    needed.object(*to);
                }
                Step::Join { object, collection, .. } | Step::Leave { object, collection } => {
                    needed.object(*object);
                    needed.object(Id::new(object.partition, *collection));
                }
            }
        }
        needed
    }
}

fn data_len(step: &Step) -> usize {
    match step {
        Step::Write { data, .. } | Step::Append { data, .. } => data.len(),
        _ => 0,
    }
}

/// Whether a step cannot fail after `earlier`, unless the medium does: it is about the same object,
/// which is there then.
fn is_harmless(step: &Step, earlier: &Step) -> bool {
    let same = |id: &Id| match earlier {
        Step::Write { id: other, .. }
        | Step::Append { id: other, .. }
        | Step::Clear { id: other, .. }
        | Step::Punch { id: other, .. }
        | Step::SetLength { id: other, .. } => id == other,
        _ => false,
    };
    match step {
        Step::Write { id, .. } | Step::SetTimes { id, .. } => same(id),
        Step::SetAttribute { id, value, .. } => same(id) && value.len() <= MAX_VALUE,
        _ => false,
    }
}

impl Txn {
    async fn step(&mut self, step: &Step, in_place: bool) -> Result<(), Error> {
        match step {
            Step::Format => self.format()?,
            Step::CreatePartition(id) => {
                self.new_partition(*id)?;
                let (home, generation) = (self.new_home(), self.new_generation());
                let partition = Partition { home, generation, next_id: FIRST_ID, ..Partition::default() };
                self.begin_partition(*id, partition, Record::default())?;
            }
            Step::RemovePartition { id, contents } => self.remove_partition(*id, *contents)?,
            Step::CreateUser(id) => self.create(*id, Of::User, 0)?,
            Step::CreateCollection(id, CollectionType(kind)) => {
                self.create(*id, Of::Collection, u64::from(*kind))?;
            }
            Step::RemoveUser(id) => self.remove_user(*id)?,
            Step::RemoveCollection { id, members } => self.remove_collection(*id, *members)?,
            Step::Write { id, at, data } => {
                let write =
                    async |txn: &mut Self, work: &mut Work| txn.write(work, *id, *at, data, in_place).await;
                self.on_data(*id, write).await?;
            }
            Step::Append { id, data, most } => {
                let append = async |txn: &mut Self, work: &mut Work| {
                    let at = work.record.a;
                    if super::data::end_of(at, data.len() as u64)? > *most {
                        return Err(Error::TooLong);
                    }
                    txn.write(work, *id, at, data, in_place).await?;
                    txn.applied.appended.push(at);
                    Ok(())
                };
                self.on_data(*id, append).await?;
            }
            Step::Punch { id, at, len } => {
                self.on_data(*id, async |txn, work| txn.punch(work, *id, *at, *len).await).await?;
            }
            Step::Clear { id, at, len } => {
                let clear = async |txn: &mut Self, work: &mut Work| {
                    let end = super::data::end_of(*at, *len)?;
                    txn.clear(work, *id, *at, end, in_place).await
                };
                self.on_data(*id, clear).await?;
            }
            Step::SetLength { id, length } => {
                let set = async |txn: &mut Self, work: &mut Work| {
                    txn.set_length(work, *id, *length, in_place).await
                };
                self.on_data(*id, set).await?;
            }
            Step::Copy { from, to, attributes } => self.copy(*from, *to, *attributes)?,
            Step::SetAttribute { id, page, number, value } => {
                if value.len() > MAX_VALUE {
                    return Err(Error::ValueTooLong);
                }
                if id.object != 0 {
                    self.changing(*id)?;
                }
                self.set_attribute(*id, *page, *number, value)?;
            }
            Step::Expect { id, created } => {
                if self.existing(*id)?.record.times.created != *created {
                    return Err(Error::NotFound(*id));
                }
            }
            Step::SetTimes { id, times } => {
                let work = self.existing(*id)?;
                let before = work.record.times;
                times.apply_to(&mut work.record.times);
                // Of writes that follow one another within a millisecond one has to say so.
                work.dirty |= work.record.times != before;
            }
            Step::Join { object, collection, number } => self.join(*object, *collection, Some(*number))?,
            Step::Leave { object, collection } => self.join(*object, *collection, None)?,
            Step::Duplicate { source, id, kind, made_ms } => {
                let generation = self.partition(*source)?.generation;
                let origin = Origin { source: *source, generation, kind: *kind, made_ms: *made_ms };
                self.duplicate(*source, *id, origin).await?;
            }
            Step::Refresh { id, made_ms } => {
                let origin = self.origin(*id)?;
                self.replace(*id, origin.source, Some(Origin { made_ms: *made_ms, ..origin })).await?;
            }
            Step::Restore { id } => {
                let origin = self.origin(*id)?;
                let own = self.partition(origin.source)?.origin;
                self.replace(origin.source, *id, own).await?;
            }
            Step::Detach { id } => {
                self.partition(*id)?.origin.ok_or(Error::NoSource(*id))?;
                let work = self.existing(Id::partition(*id))?;
                work.record.set_origin(None);
                work.dirty = true;
            }
        }
        Ok(())
    }

    /// Changes the data of a user object, whose record is taken out meanwhile.
    async fn on_data(
        &mut self,
        id: Id,
        change: impl AsyncFnOnce(&mut Self, &mut Work) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.changing(id)?;
        let mut work = self.take_user(id)?;
        let result = change(self, &mut work).await;
        self.works.insert(id, work);
        result
    }

    /// Fails if the object's partition is a snapshot, whose contents do not change.
    fn changing(&self, id: Id) -> Result<(), Error> {
        match self.partition(id.partition).map_err(|_| Error::NotFound(id))?.origin {
            Some(Origin { kind: Duplicate::Snapshot, .. }) => Err(Error::Snapshot(id.partition)),
            _ => Ok(()),
        }
    }

    fn create(&mut self, id: Id, of: Of, kind: u64) -> Result<(), Error> {
        self.partition(id.partition)?;
        self.changing(id)?;
        if id.object < FIRST_ID {
            return Err(Error::BadId(id.object));
        }
        if self.work(id)?.exists {
            return Err(Error::Exists(id));
        }
        // One that the same change has removed may have been of another kind, under another key.
        self.retire(id);
        let work = self.work(id)?;
        work.of = of;
        work.exists = true;
        work.dirty = true;
        work.record = Record { b: kind, ..Record::default() };
        Ok(())
    }

    fn remove_user(&mut self, id: Id) -> Result<(), Error> {
        self.changing(id)?;
        let mut work = self.take_user(id)?;
        let home = work.home;
        let result = self.drop_data(&mut work, id);
        let (spilled, collections) = (work.record.spilled, work.record.c);
        work.exists = false;
        self.works.insert(id, work);
        result?;
        if spilled > 0 {
            self.drop_attributes((home, id.object))?;
        }
        if collections > 0 {
            let (from, to) =
                (key(MEMBERSHIP, home, id.object, 0), key(MEMBERSHIP, home, id.object, u64::MAX));
            for membership in self.keys(from, to)? {
                let [_, _, collection] = numbers(&membership);
                let member = key(MEMBER, home, collection, id.object);
                if self.puts.contains_key(&member) {
                    // This change has made it a member, and so locked the collection.
                    *self.members.entry((home, collection)).or_default() -= 1;
                } else {
                    self.left.push(member);
                }
                self.put(membership, None);
                self.put(member, None);
            }
        }
        Ok(())
    }

    fn remove_collection(&mut self, id: Id, members: bool) -> Result<(), Error> {
        self.changing(id)?;
        let work = self.existing(id)?;
        if work.of != Of::Collection {
            return Err(Error::NotFound(id));
        }
        let (home, spilled) = (work.home, work.record.spilled);
        let (from, to) = (key(MEMBER, home, id.object, 0), key(MEMBER, home, id.object, u64::MAX));
        let found = match self.keys(from, to) {
            Err(Error::BadChange) if !members => return Err(Error::NotEmpty(id)),
            found => found?,
        };
        if !members && !found.is_empty() {
            return Err(Error::NotEmpty(id));
        }
        for member in found {
            let [_, _, object] = numbers(&member);
            self.put(member, None);
            self.put(key(MEMBERSHIP, home, object, id.object), None);
        }
        self.members.remove(&(home, id.object));
        self.put(key(COUNT, home, id.object, 0), None);
        if spilled > 0 {
            self.drop_attributes((home, id.object))?;
        }
        self.existing(id)?.exists = false;
        Ok(())
    }

    fn join(&mut self, object: Id, collection: u64, number: Option<u32>) -> Result<(), Error> {
        self.changing(object)?;
        let id = Id::new(object.partition, collection);
        if self.existing(id)?.of != Of::Collection {
            return Err(Error::NotFound(id));
        }
        let member = self.existing(object)?;
        if !member.is_user() {
            return Err(Error::NotFound(object));
        }
        let home = member.home;
        let at = key(MEMBERSHIP, home, object.object, collection);
        let was = self.get(&at, |_| ())?.is_some();
        if !was && number.is_none() {
            return Ok(());
        }
        let change = i64::from(number.is_some()) - i64::from(was);
        for at in [key(MEMBER, home, collection, object.object), at] {
            self.put(at, number.map(|number| sealed(&at, &number.to_le_bytes())));
        }
        if change != 0 {
            *self.members.entry((home, collection)).or_default() += change;
            let member = self.existing(object)?;
            member.record.c = member.record.c.saturating_add_signed(change);
            member.dirty = true;
        }
        Ok(())
    }

    fn copy(&mut self, from: Id, to: Id, attributes: bool) -> Result<(), Error> {
        if !self.existing(from)?.is_user() {
            return Err(Error::NotFound(from));
        }
        self.create(to, Of::User, 0)?;
        let (mut source, mut copy) = (self.take_user(from)?, self.take_user(to)?);
        let result = self.share_data(&mut source, from, &mut copy, to);
        if attributes {
            copy.record.held.clone_from(&source.record.held);
            copy.record.spilled = source.record.spilled;
        }
        let (spilled, owners) = (source.record.spilled, [(source.home, from.object), (copy.home, to.object)]);
        self.works.insert(from, source);
        self.works.insert(to, copy);
        result?;
        if attributes && spilled > 0 {
            self.copy_attributes(owners[0], owners[1])?;
        }
        Ok(())
    }
}
