//! The partitions, in memory: where each one's content is, and its sums.
//!
//! A partition's content is found under its *home*, a number of its own, so that a refresh or a
//! restore is one change of the partition's record, and a removal too: the old home is emptied
//! afterwards. Sums are counted when the store is opened.

use std::collections::BTreeMap;

use crate::store::{Error, FIRST_ID, Id, Origin, Times};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Partition {
    pub home: u64,
    pub generation: u64,
    pub origin: Option<Origin>,
    pub objects: u64,
    pub collections: u64,
    /// Sum of the user objects' blocks.
    pub blocks: u64,
    /// Sum of their logical lengths.
    pub length: u64,
    /// The least id that has not been given out.
    pub next_id: u64,
    /// No object has an id above this one: nothing has to be looked up to know that one is new.
    pub highest: u64,
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    pub partitions: BTreeMap<u64, Partition>,
    pub root_times: Times,
    pub next_partition: u64,
    pub next_home: u64,
    /// The least generation that neither a partition has nor an origin names.
    pub next_generation: u64,
}

/// The effect of a change on a partition's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    pub objects: i64,
    pub collections: i64,
    pub blocks: i64,
    pub length: i64,
    pub highest: u64,
}

impl Delta {
    /// Whether it leaves the sums as they are.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Ids from here on are not given out by counting on from them: an initiator may ask for the last
/// one.
const UNCOUNTED: u64 = 1 << 63;

impl Directory {
    pub fn partition(&self, id: u64) -> Result<&Partition, Error> {
        self.partitions.get(&id).ok_or(Error::NotFound(Id::partition(id)))
    }

    pub fn objects(&self) -> u64 {
        self.partitions.values().map(|p| p.objects).sum()
    }

    pub fn apply(&mut self, id: u64, delta: Delta) {
        if let Some(partition) = self.partitions.get_mut(&id) {
            partition.apply(delta);
        }
    }

    /// There is a partition of this generation, made of that one.
    pub fn saw(&mut self, generation: u64, origin: Option<Origin>) {
        let highest = generation.max(origin.map_or(0, |origin| origin.generation));
        self.next_generation = self.next_generation.max(highest.saturating_add(1));
    }

    pub fn reserve(&mut self, count: u32) -> Result<u64, Error> {
        let partitions = &self.partitions;
        reserve(&mut self.next_partition, count, |id| Ok(partitions.contains_key(&id)))
    }
}

impl Partition {
    pub fn apply(&mut self, delta: Delta) {
        self.objects = self.objects.saturating_add_signed(delta.objects);
        self.collections = self.collections.saturating_add_signed(delta.collections);
        self.blocks = self.blocks.saturating_add_signed(delta.blocks);
        self.length = self.length.saturating_add_signed(delta.length);
        self.saw(delta.highest);
    }

    pub fn saw(&mut self, id: u64) {
        self.highest = self.highest.max(id);
        if (self.next_id..UNCOUNTED).contains(&id) {
            self.next_id = id + 1;
        }
    }
}

/// The next `count` ids that nothing has, after those that were given out already. As long as they
/// are counted on, nothing has any from `next` on; `taken` is asked of the others only.
pub(super) fn reserve(
    next: &mut u64,
    count: u32,
    mut taken: impl FnMut(u64) -> Result<bool, Error>,
) -> Result<u64, Error> {
    let (mut first, count) = ((*next).max(FIRST_ID), u64::from(count.max(1)));
    'again: loop {
        let end = first.checked_add(count).ok_or(Error::NoIds)?;
        for id in (first.max(UNCOUNTED)..end).rev() {
            if taken(id)? {
                first = id + 1;
                continue 'again;
            }
        }
        *next = end;
        return Ok(first);
    }
}
