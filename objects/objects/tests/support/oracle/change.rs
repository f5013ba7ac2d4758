//! Changes of the oracle, step by step. If a step fails, the state from before is put back.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Collection, Data, Object, Pages, Partition, State};
use objects::store::{Applied, Change, Duplicate, Error, FIRST_ID, MAX_VALUE, Origin, Step, TimesUpdate};
use osd::Id;

impl State {
    pub(super) fn apply(&mut self, change: Change, capacity: u64) -> Result<Applied, Error> {
        let whole = change.is_whole()?;
        // One step fails before it modifies anything; only after that there is something to put
        // back.
        let before = (change.steps.len() > 1).then(|| self.clone());
        let used = self.used();
        let mut applied = Applied::default();
        for step in change.steps {
            let result = self.step(step, capacity, &mut applied);
            if let Err(error) = result {
                if let Some(before) = before {
                    // Ids that were given out stay given out.
                    *self = before;
                }
                return Err(error);
            }
        }
        if !whole {
            applied.used_change = self.used().wrapping_sub(used).cast_signed();
        }
        Ok(applied)
    }

    fn step(&mut self, step: Step, capacity: u64, applied: &mut Applied) -> Result<(), Error> {
        let room = capacity.saturating_sub(self.used());
        match step {
            Step::Format => {
                let (next_id, generations) = (self.next_id, self.generations);
                *self = Self { next_id, generations, ..Self::default() };
            }
            Step::CreatePartition(id) => {
                self.new_partition(id)?;
                let generation = self.new_generation();
                self.partitions.insert(id, Partition { generation, ..Partition::default() });
            }
            Step::RemovePartition { id, contents } => {
                let partition = self.partition(id)?;
                if !contents && (!partition.objects.is_empty() || !partition.collections.is_empty()) {
                    return Err(Error::NotEmpty(Id::partition(id)));
                }
                self.partitions.remove(&id);
            }
            Step::CreateUser(id) => {
                self.new_object(id)?.objects.insert(id.object, Arc::default());
            }
            Step::CreateCollection(id, kind) => {
                let collection = Collection {
                    kind,
                    attributes: Pages::new(),
                    times: objects::store::Times::default(),
                    members: BTreeMap::new(),
                };
                self.new_object(id)?.collections.insert(id.object, Arc::new(collection));
            }
            Step::RemoveUser(id) => {
                let partition = self.changing(id)?;
                let object = partition.objects.remove(&id.object).ok_or(Error::NotFound(id))?;
                partition.used -= object.data.used();
                partition.length -= object.data.length;
                for collection in object.memberships.keys() {
                    if let Some(collection) = partition.collections.get_mut(collection) {
                        Arc::make_mut(collection).members.remove(&id.object);
                    }
                }
            }
            Step::RemoveCollection { id, members } => {
                let partition = self.changing(id)?;
                let collection = partition.collections.get(&id.object).ok_or(Error::NotFound(id))?;
                if !members && !collection.members.is_empty() {
                    return Err(Error::NotEmpty(id));
                }
                if let Some(collection) = partition.collections.remove(&id.object) {
                    for object in collection.members.keys() {
                        if let Some(object) = partition.objects.get_mut(object) {
                            Arc::make_mut(object).memberships.remove(&id.object);
                        }
                    }
                }
            }
            Step::Write { id, at, data } => {
                Data::end_of(at, data.len() as u64)?;
                self.write_within(id, room, |d| d.write(at, &data.to_vec()))?;
            }
            Step::Append { id, data, most } => {
                let at = self.user(id)?.data.length;
                if Data::end_of(at, data.len() as u64)? > most {
                    return Err(Error::TooLong);
                }
                self.write_within(id, room, |d| d.write(at, &data.to_vec()))?;
                applied.appended.push(at);
            }
            Step::Punch { id, at, len } => {
                if at > self.user(id)?.data.length {
                    return Err(Error::OutOfRange);
                }
                self.write_within(id, room, |d| d.punch(at, len).unwrap_or_default())?;
            }
            Step::Clear { id, at, len } => {
                let end = Data::end_of(at, len)?;
                self.write_within(id, room, |d| d.clear(at, end))?;
            }
            Step::SetLength { id, length } => {
                Data::end_of(length, 0)?;
                self.write_within(id, room, |d| d.set_length(length))?;
            }
            Step::Copy { from, to, attributes } => {
                let source = self.user(from)?.clone();
                if source.data.used() > room {
                    return Err(Error::NoSpace);
                }
                let partition = self.new_object(to)?;
                partition.used += source.data.used();
                partition.length += source.data.length;
                let attributes = if attributes { source.attributes.clone() } else { Pages::new() };
                let copy = Object { attributes, data: source.data.clone(), ..Object::default() };
                partition.objects.insert(to.object, Arc::new(copy));
            }
            Step::SetAttribute { id, page, number, value } => {
                if value.len() > MAX_VALUE {
                    return Err(Error::ValueTooLong);
                }
                let attributes = self.attributes_of(id)?;
                if value.is_empty() {
                    attributes.remove(&(page, number));
                } else {
                    attributes.insert((page, number), value);
                }
            }
            Step::Expect { id, created } => {
                if self.described(id)?.1.created != created {
                    return Err(Error::NotFound(id));
                }
            }
            Step::SetTimes { id, times } => self.set_times(id, times)?,
            Step::Join { object, collection, number } => {
                let id = Id::new(object.partition, collection);
                let partition = self.changing(object)?;
                let found = partition.collections.get_mut(&collection).ok_or(Error::NotFound(id))?;
                let member = partition.objects.get_mut(&object.object).ok_or(Error::NotFound(object))?;
                Arc::make_mut(found).members.insert(object.object, number);
                Arc::make_mut(member).memberships.insert(collection, number);
            }
            Step::Leave { object, collection } => {
                let id = Id::new(object.partition, collection);
                let partition = self.changing(object)?;
                let found = partition.collections.get_mut(&collection).ok_or(Error::NotFound(id))?;
                let member = partition.objects.get_mut(&object.object).ok_or(Error::NotFound(object))?;
                Arc::make_mut(found).members.remove(&object.object);
                Arc::make_mut(member).memberships.remove(&collection);
            }
            Step::Duplicate { source, id, kind, made_ms } => {
                let mut copy = self.partition(source)?.clone();
                self.new_partition(id)?;
                if copy.used > room {
                    return Err(Error::NoSpace);
                }
                copy.origin = Some(Origin { source, generation: copy.generation, kind, made_ms });
                copy.generation = self.new_generation();
                self.partitions.insert(id, copy);
            }
            Step::Refresh { id, made_ms } => {
                let (origin, source) = self.origin(id)?;
                let content = self.partition(source)?.clone();
                self.replace_content(id, content, room)?;
                if let Some(partition) = self.partitions.get_mut(&id) {
                    partition.origin = Some(Origin { made_ms, ..origin });
                }
            }
            Step::Restore { id } => {
                let (_, source) = self.origin(id)?;
                let content = self.partition(id)?.clone();
                self.replace_content(source, content, room)?;
            }
            Step::Detach { id } => {
                self.origin_of(id)?;
                if let Some(partition) = self.partitions.get_mut(&id) {
                    partition.origin = None;
                }
            }
        }
        Ok(())
    }

    fn new_generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    fn new_partition(&self, id: u64) -> Result<(), Error> {
        if id < FIRST_ID {
            return Err(Error::BadId(id));
        }
        match self.partitions.contains_key(&id) {
            true => Err(Error::Exists(Id::partition(id))),
            false => Ok(()),
        }
    }

    /// The partition of an object that is going to change.
    fn changing(&mut self, id: Id) -> Result<&mut Partition, Error> {
        let partition = self.partitions.get_mut(&id.partition).ok_or(Error::NotFound(id))?;
        match partition.origin {
            Some(Origin { kind: Duplicate::Snapshot, .. }) => Err(Error::Snapshot(id.partition)),
            _ => Ok(partition),
        }
    }

    /// The partition of an object that is going to be.
    fn new_object(&mut self, id: Id) -> Result<&mut Partition, Error> {
        self.partition(id.partition)?;
        let partition = self.changing(id)?;
        if id.object < FIRST_ID {
            return Err(Error::BadId(id.object));
        }
        if partition.objects.contains_key(&id.object) || partition.collections.contains_key(&id.object) {
            return Err(Error::Exists(id));
        }
        Ok(partition)
    }

    /// Changes an object's data, unless that takes more than `room` bytes.
    fn write_within(&mut self, id: Id, room: u64, write: impl FnOnce(&mut Data)) -> Result<(), Error> {
        let partition = self.changing(id)?;
        let object = partition.objects.get_mut(&id.object).ok_or(Error::NotFound(id))?;
        let mut data = object.data.clone();
        write(&mut data);
        if data.used() > object.data.used() && data.used() - object.data.used() > room {
            return Err(Error::NoSpace);
        }
        partition.used = partition.used - object.data.used() + data.used();
        partition.length = partition.length - object.data.length + data.length;
        Arc::make_mut(object).data = data;
        Ok(())
    }

    fn attributes_of(&mut self, id: Id) -> Result<&mut Pages, Error> {
        if id.is_root() {
            return Ok(Arc::make_mut(&mut self.attributes));
        }
        if id.is_partition() {
            let partition = self.partitions.get_mut(&id.partition).ok_or(Error::NotFound(id))?;
            return Ok(Arc::make_mut(&mut partition.attributes));
        }
        let partition = self.changing(id)?;
        if let Some(object) = partition.objects.get_mut(&id.object) {
            return Ok(&mut Arc::make_mut(object).attributes);
        }
        let collection = partition.collections.get_mut(&id.object).ok_or(Error::NotFound(id))?;
        Ok(&mut Arc::make_mut(collection).attributes)
    }

    pub(super) fn set_times(&mut self, id: Id, times: TimesUpdate) -> Result<(), Error> {
        let found = if id.is_root() {
            &mut self.times
        } else {
            let partition = self.partitions.get_mut(&id.partition).ok_or(Error::NotFound(id))?;
            if id.is_partition() {
                &mut partition.times
            } else if let Some(object) = partition.objects.get_mut(&id.object) {
                &mut Arc::make_mut(object).times
            } else {
                let collection = partition.collections.get_mut(&id.object).ok_or(Error::NotFound(id))?;
                &mut Arc::make_mut(collection).times
            }
        };
        times.apply_to(found);
        Ok(())
    }

    fn origin_of(&self, id: u64) -> Result<Origin, Error> {
        self.partition(id)?.origin.ok_or(Error::NoSource(id))
    }

    /// Origin of a duplicate; its source must still exist.
    fn origin(&self, id: u64) -> Result<(Origin, u64), Error> {
        let origin = self.origin_of(id)?;
        match self.partitions.get(&origin.source) {
            Some(source) if source.generation == origin.generation => Ok((origin, origin.source)),
            _ => Err(Error::NoSource(id)),
        }
    }

    /// Replaces all of a partition but its identity and its origin.
    fn replace_content(&mut self, id: u64, content: Partition, room: u64) -> Result<(), Error> {
        let partition = self.partitions.get_mut(&id).ok_or(Error::NotFound(Id::partition(id)))?;
        if content.used.saturating_sub(partition.used) > room {
            return Err(Error::NoSpace);
        }
        let next_id = partition.next_id.max(content.next_id);
        let (generation, origin) = (partition.generation, partition.origin);
        *partition = Partition { generation, origin, next_id, ..content };
        Ok(())
    }
}
