//! Rules of the root and of partitions for the objects in them: quotas, and whether timestamps are
//! kept. Kept in memory by partition, so that a command on data asks no store for it; forgotten
//! when an attribute of these pages changes. Owns the enforcement of quotas; `attributes` reads the
//! attributes' values.
//!
//! A quota of all ones, or one that was never set, is none. Space is counted as the store allocates
//! it, in whole blocks.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use osd::Id;
use osd::attributes::numbers::{partition_quotas, root_quotas, timestamps, user_quotas};
use osd::cdb::ObjectRange;
use osd::{AttributeId, ObjectType};
use smallvec::SmallVec;

use super::OsdUnit;
use super::failure::Failure;
use super::locks::{Guard, Key, Mode, Part};
use crate::store::{BLOCK, Change, Error, Extent, ObjectInfo};

/// Partitions whose policy is remembered; beyond that all are forgotten and looked up again.
const REMEMBERED: usize = 4096;

pub(super) const BYPASS: u8 = 0x7F;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub bypass: bool,
    /// Bytes that all of its objects may occupy.
    pub capacity: u64,
    /// User objects and collections that may be in it.
    pub objects: u64,
    /// Collections that one object may name in its Collections page.
    pub collections: u32,
    /// MAXIMUM LENGTH that new objects get.
    pub default_length: u64,
}

#[derive(Default)]
pub(super) struct Policies(RwLock<Table>);

#[derive(Default)]
struct Table {
    known: HashMap<u64, Policy>,
    /// Number of times that all was forgotten: a policy read before is not remembered after.
    forgotten: u64,
}

impl Policies {
    /// Looks everything up again: something was changed.
    pub fn forget(&self) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.known.clear();
        table.forgotten += 1;
    }
}

impl OsdUnit {
    /// The policy of `partition`; of the root for 0.
    pub(super) fn policy(&self, partition: u64) -> Result<Policy, Failure> {
        let forgotten = {
            let table = self.policies.0.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(policy) = table.known.get(&partition) {
                return Ok(*policy);
            }
            table.forgotten
        };
        let policy = self.read_policy(partition)?;
        let mut table = self.policies.0.write().unwrap_or_else(PoisonError::into_inner);
        if table.forgotten == forgotten {
            if table.known.len() >= REMEMBERED {
                table.known.clear();
            }
            table.known.insert(partition, policy);
        }
        Ok(policy)
    }

    fn read_policy(&self, partition: u64) -> Result<Policy, Failure> {
        let id = Id::partition(partition);
        let of_type = if partition == 0 { ObjectType::Root } else { ObjectType::Partition };
        let bypass = AttributeId::new(timestamps::page(of_type), timestamps::BYPASS);
        let bypass = match self.stored_number(id, bypass)? {
            // A partition that says nothing does as the root says.
            None if partition != 0 => self.policy(0)?.bypass,
            value => value == Some(u64::from(BYPASS)),
        };
        if partition == 0 {
            return Ok(Policy {
                bypass,
                capacity: u64::MAX,
                objects: u64::MAX,
                collections: u32::MAX,
                default_length: u64::MAX,
            });
        }
        let quota = |number| Ok::<_, Failure>(self.stored_number(id, number)?.unwrap_or(u64::MAX));
        Ok(Policy {
            bypass,
            capacity: quota(partition_quotas::CAPACITY)?,
            objects: quota(partition_quotas::OBJECTS)?,
            collections: u32::try_from(quota(partition_quotas::COLLECTIONS_PER_OBJECT)?).unwrap_or(u32::MAX),
            default_length: quota(partition_quotas::DEFAULT_MAX_OBJECT_LENGTH)?,
        })
    }

    /// The stored value of an attribute that is a number of up to 8 bytes.
    pub(super) fn stored_number(&self, id: Id, attribute: AttributeId) -> Result<Option<u64>, Failure> {
        let mut value = Vec::new();
        match self.store.attribute(id, attribute.page.0, attribute.number, &mut value) {
            Ok(true) => {}
            // One that is being created has none yet.
            Ok(false) | Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(osd::attributes::number(&value)))
    }

    /// Keeps others from growing `partition` meanwhile, if it has a quota: to be taken before a
    /// quota is checked, and held until the checked work is done. `joins`: objects are to name more
    /// collections.
    pub(super) async fn quota_turn(&self, partition: u64, joins: bool) -> Result<Option<Guard<'_>>, Failure> {
        let policy = self.policy(partition)?;
        let joins = joins && policy.collections != u32::MAX;
        if policy.capacity == u64::MAX && policy.objects == u64::MAX && !joins {
            return Ok(None);
        }
        let key = Key { id: Id::partition(partition), part: Part::Quota };
        Ok(Some(self.locks.lock(key, Mode::EXCLUSIVE).await))
    }

    /// Whether `count` more objects may be created in `partition`.
    pub(super) fn check_objects(&self, partition: u64, count: u64) -> Result<(), Failure> {
        let policy = self.policy(partition)?;
        if policy.objects == u64::MAX {
            return Ok(());
        }
        let info = self.store.partition(partition)?;
        let there = info.objects.saturating_add(info.collections);
        if there.saturating_add(count) > policy.objects { Err(Failure::quota()) } else { Ok(()) }
    }

    pub(super) fn check_partitions(&self) -> Result<(), Failure> {
        let quota = self.stored_number(Id::ROOT, root_quotas::PARTITIONS)?.unwrap_or(u64::MAX);
        if self.store.root().partitions >= quota { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Whether the object at `id` may become `length` bytes long. `info` is the object's; `None` of
    /// one that is being created.
    pub(super) fn check_length(&self, id: Id, info: Option<&ObjectInfo>, length: u64) -> Result<(), Failure> {
        if length > crate::store::MAX_LENGTH {
            return Err(Failure::quota());
        }
        if info.is_some_and(|info| length <= info.length) {
            return Ok(());
        }
        let max = match info {
            Some(_) => self.max_length(id)?,
            None => self.policy(id.partition)?.default_length,
        };
        if length > max { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Longest length that the object at `id` may have, bytes.
    pub(super) fn max_length(&self, id: Id) -> Result<u64, Failure> {
        let quota = self.stored_number(id, user_quotas::MAX_LENGTH)?.unwrap_or(u64::MAX);
        Ok(quota.min(crate::store::MAX_LENGTH))
    }

    /// Whether the partition has room for the data to write to an object in `pieces`.
    pub(super) fn check_capacity(
        &self,
        id: Id,
        pieces: impl Iterator<Item = ObjectRange>,
    ) -> Result<(), Failure> {
        let policy = self.policy(id.partition)?;
        if policy.capacity == u64::MAX {
            return Ok(());
        }
        // Whole blocks, each once.
        let mut blocks: SmallVec<[(u64, u64); 1]> = pieces
            .filter(|piece| piece.len > 0)
            .map(|piece| (piece.start / BLOCK, piece.start.saturating_add(piece.len - 1) / BLOCK))
            .collect();
        blocks.sort_unstable();
        blocks.dedup_by(|next, before| {
            let meet = next.0 <= before.1.saturating_add(1);
            before.1 = if meet { before.1.max(next.1) } else { before.1 };
            meet
        });
        let used = self.store.partition(id.partition)?.used;
        let most = |&(first, last): &(u64, u64)| (last - first + 1).saturating_mul(BLOCK);
        if blocks.iter().map(most).fold(used, u64::saturating_add) <= policy.capacity {
            return Ok(());
        }
        // Only bytes that are not allocated yet count.
        let mut after = used;
        for range in &blocks {
            after = after.saturating_add(most(range).saturating_sub(self.allocated(id, *range)?));
        }
        if after > policy.capacity { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Whether the partition has room for an object of `length` bytes after a PUNCH of `range`.
    /// Data that moves by other than whole blocks may come to lie in more of them.
    pub(super) fn check_punch(&self, id: Id, length: u64, range: ObjectRange) -> Result<(), Failure> {
        let policy = self.policy(id.partition)?;
        let from = range.start.saturating_add(range.len).min(length);
        let by = from.saturating_sub(range.start);
        if policy.capacity == u64::MAX || by % BLOCK == 0 || from == length {
            return Ok(());
        }
        let used = self.store.partition(id.partition)?.used;
        // At worst, the data of one block lies in two afterwards: most commands need not look at
        // each block.
        let moved = (length - from).next_multiple_of(BLOCK).saturating_add(BLOCK);
        if used.saturating_add(moved) <= policy.capacity {
            return Ok(());
        }
        let head = range.start / BLOCK;
        let before = self.allocated(id, (head, (length - 1) / BLOCK))?;
        // The block that keeps the bytes before the range stays, whatever moves into it.
        let mut last = None;
        let mut blocks = 0u64;
        if range.start % BLOCK > 0 && self.allocated(id, (head, head))? > 0 {
            (last, blocks) = (Some(head), 1);
        }
        self.data_of(id, from, length, |extent| {
            let first = (extent.at - by) / BLOCK;
            let end = (extent.at - by + extent.len).div_ceil(BLOCK);
            let new = last.map_or(first, |last| first.max(last + 1));
            blocks += end.saturating_sub(new);
            last = Some(last.unwrap_or(0).max(end.saturating_sub(1)));
        })?;
        let after = blocks.saturating_mul(BLOCK);
        let grows = after > before && used.saturating_add(after - before) > policy.capacity;
        if grows { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Bytes of the blocks `first..=last` of an object that are allocated.
    fn allocated(&self, id: Id, (first, last): (u64, u64)) -> Result<u64, Failure> {
        let mut there = 0u64;
        let until = last.saturating_add(1).saturating_mul(BLOCK);
        self.data_of(id, first * BLOCK, until, |extent| {
            let end = extent.at.saturating_add(extent.len).next_multiple_of(BLOCK);
            there = there.saturating_add(end - extent.at / BLOCK * BLOCK);
        })?;
        Ok(there)
    }

    /// Shows the parts of `from..until` of an object that have data, in order; none of one that is
    /// being created.
    fn data_of(
        &self,
        id: Id,
        mut from: u64,
        until: u64,
        mut each: impl FnMut(&Extent),
    ) -> Result<(), Failure> {
        let mut extents = Vec::new();
        while from < until {
            extents.clear();
            let more = match self.store.extents(id, from, until - from, 256, &mut extents) {
                Ok(more) => more,
                Err(Error::NotFound(_)) => break,
                Err(error) => return Err(error.into()),
            };
            extents.iter().filter(|extent| extent.data).for_each(&mut each);
            match extents.last() {
                Some(last) if more && last.len > 0 => from = last.at.saturating_add(last.len),
                _ => break,
            }
        }
        Ok(())
    }

    /// Gives a new user object the quota that its partition prescribes.
    pub(super) fn inherit_length(&self, id: Id, change: &mut Change) -> Result<(), Failure> {
        let policy = self.policy(id.partition)?;
        if policy.default_length != u64::MAX {
            let value = policy.default_length.to_be_bytes();
            change.set_attribute(id, user_quotas::PAGE.0, user_quotas::MAX_LENGTH.number, &value);
        }
        Ok(())
    }

    /// Gives a new partition the quotas that the root prescribes.
    pub(super) fn inherit_quotas(&self, partition: u64, change: &mut Change) -> Result<(), Failure> {
        let pairs = [
            (root_quotas::DEFAULT_MAX_OBJECT_LENGTH, partition_quotas::DEFAULT_MAX_OBJECT_LENGTH),
            (root_quotas::PARTITION_CAPACITY, partition_quotas::CAPACITY),
            (root_quotas::PARTITION_OBJECTS, partition_quotas::OBJECTS),
            (root_quotas::COLLECTIONS_PER_OBJECT, partition_quotas::COLLECTIONS_PER_OBJECT),
        ];
        let mut value = Vec::new();
        for (from, to) in pairs {
            value.clear();
            if self.store.attribute(Id::ROOT, from.page.0, from.number, &mut value)? {
                change.set_attribute(Id::partition(partition), to.page.0, to.number, &value);
            }
        }
        Ok(())
    }
}
