//! A store of plain maps behind one lock: the reference for the embedded store. Tests and the fuzz
//! target of the unit can look into it. No program contains it.

mod change;
mod data;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use objects::store::{
    Applied, Attribute, Attributes, Change, CheckReport, CollectionType, Commit, Difference, Error, Extent,
    FIRST_ID, Io, Kind, List, Membership, ObjectInfo, ObjectStore, Origin, PartitionInfo, RootInfo, Scope,
    Times, TimesUpdate, Value,
};
use osd::Id;
use runtime::Chain;

use data::Data;

#[derive(Clone, Debug)]
pub struct Oracle {
    state: Arc<Mutex<State>>,
    capacity: u64,
    /// A function of a test that is called before each change, until it returns true.
    #[cfg(test)]
    meddler: Arc<Mutex<Option<Meddler>>>,
}

#[cfg(test)]
type Meddler = fn(&Oracle, &Change) -> bool;

type Pages = BTreeMap<(u32, u32), Value>;

#[derive(Clone, Debug, Default)]
struct State {
    attributes: Arc<Pages>,
    times: Times,
    partitions: BTreeMap<u64, Partition>,
    next_id: u64,
    generations: u64,
}

#[derive(Clone, Debug, Default)]
struct Partition {
    attributes: Arc<Pages>,
    times: Times,
    generation: u64,
    origin: Option<Origin>,
    objects: BTreeMap<u64, Arc<Object>>,
    collections: BTreeMap<u64, Arc<Collection>>,
    used: u64,
    length: u64,
    next_id: u64,
}

#[derive(Clone, Debug, Default)]
struct Object {
    attributes: Pages,
    times: Times,
    data: Data,
    memberships: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug)]
struct Collection {
    kind: CollectionType,
    attributes: Pages,
    times: Times,
    members: BTreeMap<u64, u32>,
}

impl Oracle {
    /// An empty store whose objects' data may take `capacity` bytes; shared bytes count for each
    /// object.
    pub fn new(capacity: u64) -> Self {
        Self {
            state: Arc::default(),
            capacity,
            #[cfg(test)]
            meddler: Arc::default(),
        }
    }

    /// A store of its own that has what this one has now.
    #[cfg(test)]
    pub fn snapshot(&self) -> Self {
        let state = Arc::new(Mutex::new(self.lock().clone()));
        Self { state, capacity: self.capacity, meddler: Arc::default() }
    }

    /// Has `meddler` called before each change, until it returns true.
    #[cfg(test)]
    pub fn meddle(&self, meddler: Meddler) {
        *self.meddler.lock().unwrap_or_else(PoisonError::into_inner) = Some(meddler);
    }

    #[cfg(test)]
    fn before(&self, change: &Change) {
        let slot = || self.meddler.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = slot().take();
        if let Some(meddler) = taken.filter(|meddler| !meddler(self, change)) {
            *slot() = Some(meddler);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn partition(&self, id: u64) -> Result<&Partition, Error> {
        self.partitions.get(&id).ok_or(Error::NotFound(Id::partition(id)))
    }

    fn user(&self, id: Id) -> Result<&Arc<Object>, Error> {
        self.partition(id.partition)?.objects.get(&id.object).ok_or(Error::NotFound(id))
    }

    fn used(&self) -> u64 {
        self.partitions.values().map(|p| p.used).sum()
    }

    /// Attributes and times of an object of any kind.
    fn described(&self, id: Id) -> Result<(&Pages, Times), Error> {
        if id.is_root() {
            return Ok((&self.attributes, self.times));
        }
        let partition = self.partitions.get(&id.partition).ok_or(Error::NotFound(id))?;
        if id.is_partition() {
            return Ok((&partition.attributes, partition.times));
        }
        if let Some(object) = partition.objects.get(&id.object) {
            return Ok((&object.attributes, object.times));
        }
        let collection = partition.collections.get(&id.object).ok_or(Error::NotFound(id))?;
        Ok((&collection.attributes, collection.times))
    }
}

/// Takes up to `limit`, and says whether there are more.
fn some<T>(mut from: impl Iterator<Item = T>, limit: usize, into: &mut Vec<T>) -> bool {
    into.extend(from.by_ref().take(limit));
    from.next().is_some()
}

impl ObjectStore for Oracle {
    fn root(&self) -> RootInfo {
        let state = self.lock();
        RootInfo {
            capacity: self.capacity,
            used: state.used(),
            partitions: state.partitions.len() as u64,
            objects: state.partitions.values().map(|p| p.objects.len() as u64).sum(),
            times: state.times,
        }
    }

    fn partition(&self, id: u64) -> Result<PartitionInfo, Error> {
        let state = self.lock();
        let partition = state.partition(id)?;
        Ok(PartitionInfo {
            objects: partition.objects.len() as u64,
            collections: partition.collections.len() as u64,
            used: partition.used,
            length: partition.length,
            generation: partition.generation,
            origin: partition.origin,
            times: partition.times,
        })
    }

    fn object(&self, id: Id) -> Result<ObjectInfo, Error> {
        let state = self.lock();
        let partition = state.partitions.get(&id.partition).ok_or(Error::NotFound(id))?;
        if let Some(object) = partition.objects.get(&id.object) {
            return Ok(ObjectInfo {
                kind: Kind::User,
                length: object.data.length,
                used: object.data.used(),
                members: 0,
                collections: u32::try_from(object.memberships.len()).unwrap_or(u32::MAX),
                times: object.times,
            });
        }
        let collection = partition.collections.get(&id.object).ok_or(Error::NotFound(id))?;
        Ok(ObjectInfo {
            kind: Kind::Collection(collection.kind),
            length: 0,
            used: 0,
            members: collection.members.len() as u64,
            collections: 0,
            times: collection.times,
        })
    }

    fn times(&self, id: Id) -> Result<Times, Error> {
        self.lock().described(id).map(|(_, times)| times)
    }

    fn touch(&self, id: Id, times: TimesUpdate) {
        // An object that does not exist is none of its concern.
        let _ = self.lock().set_times(id, times);
    }

    fn attribute(&self, id: Id, page: u32, number: u32, value: &mut Vec<u8>) -> Result<bool, Error> {
        let state = self.lock();
        let found = state.described(id)?.0.get(&(page, number));
        if let Some(found) = found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn attributes(
        &self,
        id: Id,
        which: Attributes,
        each: &mut dyn FnMut(Attribute<'_>) -> bool,
    ) -> Result<(), Error> {
        let (first, last) = which.range();
        if first > last {
            return Ok(());
        }
        // Copied: `each` may call the store.
        let found: Vec<_> = {
            let state = self.lock();
            state.described(id)?.0.range(first..=last).map(|(at, value)| (*at, value.clone())).collect()
        };
        found.iter().all(|((page, number), value)| each(Attribute { page: *page, number: *number, value }));
        Ok(())
    }

    fn list(&self, list: List, from: u64, limit: usize, into: &mut Vec<u64>) -> Result<bool, Error> {
        let state = self.lock();
        Ok(match list {
            List::Partitions => some(state.partitions.range(from..).map(|(id, _)| *id), limit, into),
            List::Collections(p) => {
                some(state.partition(p)?.collections.range(from..).map(|(id, _)| *id), limit, into)
            }
            List::Users(p) => some(state.partition(p)?.objects.range(from..).map(|(id, _)| *id), limit, into),
            List::Members(id) => {
                let partition = state.partitions.get(&id.partition).ok_or(Error::NotFound(id))?;
                let collection = partition.collections.get(&id.object).ok_or(Error::NotFound(id))?;
                some(collection.members.range(from..).map(|(id, _)| *id), limit, into)
            }
        })
    }

    fn membership(&self, collection: Id, object: u64) -> Result<Option<u32>, Error> {
        let state = self.lock();
        let found = state.partitions.get(&collection.partition);
        let found = found.and_then(|p| p.collections.get(&collection.object));
        Ok(found.and_then(|c| c.members.get(&object).copied()))
    }

    fn memberships(
        &self,
        object: Id,
        from: u64,
        limit: usize,
        into: &mut Vec<Membership>,
    ) -> Result<bool, Error> {
        let state = self.lock();
        let memberships = state.user(object)?.memberships.range(from..);
        Ok(some(memberships.map(|(id, number)| Membership { collection: *id, number: *number }), limit, into))
    }

    fn reserve_ids(&self, partition: u64, count: u32) -> Result<u64, Error> {
        let mut state = self.lock();
        if partition == 0 {
            let State { partitions, next_id, .. } = &mut *state;
            return reserve(next_id, count, |id| partitions.contains_key(&id));
        }
        let partition =
            state.partitions.get_mut(&partition).ok_or(Error::NotFound(Id::partition(partition)))?;
        let Partition { objects, collections, next_id, .. } = partition;
        reserve(next_id, count, |id| objects.contains_key(&id) || collections.contains_key(&id))
    }

    fn read(&self, id: Id, at: u64, len: usize) -> Io<Chain> {
        Io::Ready(Some(self.lock().user(id).map(|object| Chain::from(object.data.read(at, len)))))
    }

    fn extents(
        &self,
        id: Id,
        at: u64,
        len: u64,
        limit: usize,
        into: &mut Vec<Extent>,
    ) -> Result<bool, Error> {
        let extents = self.lock().user(id)?.data.extents(at, len);
        Ok(some(extents.into_iter(), limit, into))
    }

    fn differences(
        &self,
        [one, other]: [Id; 2],
        at: u64,
        len: u64,
        limit: usize,
        into: &mut Vec<Difference>,
    ) -> Result<bool, Error> {
        let state = self.lock();
        let differences = state.user(one)?.data.differences(&state.user(other)?.data, at, len);
        Ok(some(differences.into_iter(), limit, into))
    }

    fn apply(&self, change: Change, _commit: Commit) -> Io<Applied> {
        #[cfg(test)]
        self.before(&change);
        Io::Ready(Some(self.lock().apply(change, self.capacity)))
    }

    fn sync(&self, _scope: Scope) -> Io<()> {
        Io::ok(())
    }

    fn check(&self, partition: u64, _repair: bool) -> Io<CheckReport> {
        let state = self.lock();
        let mut report = CheckReport::default();
        for (_, found) in state.partitions.iter().filter(|(id, _)| partition == 0 || **id == partition) {
            report.partitions += 1;
            report.objects += (found.objects.len() + found.collections.len()) as u64;
            report.extents +=
                found.objects.values().map(|o| o.data.extents(0, u64::MAX).len() as u64).sum::<u64>();
        }
        Io::ok(report)
    }
}

/// The next `count` ids that nothing has.
fn reserve(next_id: &mut u64, count: u32, taken: impl Fn(u64) -> bool) -> Result<u64, Error> {
    let (mut first, count) = ((*next_id).max(FIRST_ID), u64::from(count.max(1)));
    'again: loop {
        let end = first.checked_add(count).ok_or(Error::NoIds)?;
        for id in (first..end).rev() {
            if taken(id) {
                first = id + 1;
                continue 'again;
            }
        }
        *next_id = end;
        return Ok(first);
    }
}
