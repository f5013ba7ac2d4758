//! What root and partitions prescribe for what is in them: quotas, and whether timestamps are kept. Kept in memory by
//! partition, so that a command on data asks no store for it; forgotten when an attribute of these pages changes. Owns
//! the enforcement of quotas; what the attributes are worth is read by `attributes`.
//!
//! A quota of all ones, or one that was never set, is none. Space is counted as the store allocates it, in whole blocks.

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
use super::subject::at;
use crate::store::{BLOCK, Change, Error, ObjectInfo};

/// Partitions whose policy is remembered; beyond that all are forgotten and looked up again.
const REMEMBERED: usize = 4096;

/// BYPASS: timestamps are not kept.
pub(super) const BYPASS: u8 = 0x7F;

/// What a partition prescribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Timestamps are not kept in it.
    pub bypass: bool,
    /// Bytes that all of its objects may occupy.
    pub capacity: u64,
    /// User objects and collections that may be in it.
    pub objects: u64,
    /// Collections that one object may be in.
    pub collections: u32,
    /// MAXIMUM LENGTH that new objects get.
    pub default_length: u64,
}

/// The policies that are remembered.
#[derive(Default)]
pub(super) struct Policies(RwLock<Table>);

#[derive(Default)]
struct Table {
    known: HashMap<u64, Policy>,
    /// How often all was forgotten: what was looked up before is not remembered after.
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
    /// What `partition` prescribes; of 0 the root.
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
        match self.store.attribute(at(id), attribute.page.0, attribute.number, &mut value) {
            Ok(true) => {}
            // One that is being created has none yet.
            Ok(false) | Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(value.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }

    /// Keeps others from growing `partition` meanwhile, where it has a quota: to be taken before a quota is checked, and held
    /// until what it was checked for is done.
    pub(super) async fn quota_turn(&self, partition: u64) -> Result<Option<Guard<'_>>, Failure> {
        let policy = self.policy(partition)?;
        if policy.capacity == u64::MAX && policy.objects == u64::MAX {
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

    /// Whether one more partition may be created.
    pub(super) fn check_partitions(&self) -> Result<(), Failure> {
        let quota = self.stored_number(Id::ROOT, root_quotas::PARTITIONS)?.unwrap_or(u64::MAX);
        if self.store.root().partitions >= quota { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Whether the object at `id` may become `length` bytes long. `info` is the object's; `None` of one that is being
    /// created.
    pub(super) fn check_length(&self, id: Id, info: Option<&ObjectInfo>, length: u64) -> Result<(), Failure> {
        if length > crate::store::MAX_LENGTH {
            return Err(Failure::quota());
        }
        if info.is_some_and(|info| length <= info.length) {
            return Ok(());
        }
        let max = match info {
            Some(_) => self.stored_number(id, user_quotas::MAX_LENGTH)?.unwrap_or(u64::MAX),
            None => self.policy(id.partition)?.default_length,
        };
        if length > max { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Whether the partition has room for what is written at all of `pieces` of an object.
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
        // Only what is not allocated yet counts.
        let mut after = used;
        for range in &blocks {
            after = after.saturating_add(most(range).saturating_sub(self.allocated(id, *range)?));
        }
        if after > policy.capacity { Err(Failure::quota()) } else { Ok(()) }
    }

    /// Bytes of the blocks `first..=last` of an object that are allocated.
    fn allocated(&self, id: Id, (first, last): (u64, u64)) -> Result<u64, Failure> {
        let mut there = 0u64;
        let mut at_byte = first * BLOCK;
        let until = last.saturating_add(1).saturating_mul(BLOCK);
        let mut extents = Vec::new();
        while at_byte < until {
            extents.clear();
            let more = match self.store.extents(at(id), at_byte, until - at_byte, 256, &mut extents) {
                Ok(more) => more,
                // It is being created.
                Err(Error::NotFound(_)) => break,
                Err(error) => return Err(error.into()),
            };
            for extent in extents.iter().filter(|extent| extent.data) {
                let end = extent.at.saturating_add(extent.len).next_multiple_of(BLOCK);
                there = there.saturating_add(end - extent.at / BLOCK * BLOCK);
            }
            match extents.last() {
                Some(last) if more && last.len > 0 => at_byte = last.at.saturating_add(last.len),
                _ => break,
            }
        }
        Ok(there)
    }

    /// Gives a new user object the quota that its partition prescribes.
    pub(super) fn inherit_length(&self, id: Id, change: &mut Change) -> Result<(), Failure> {
        let policy = self.policy(id.partition)?;
        if policy.default_length != u64::MAX {
            let value = policy.default_length.to_be_bytes();
            change.set_attribute(at(id), user_quotas::PAGE.0, user_quotas::MAX_LENGTH.number, &value);
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
            if self.store.attribute(at(Id::ROOT), from.page.0, from.number, &mut value)? {
                change.set_attribute(at(Id::partition(partition)), to.page.0, to.number, &value);
            }
        }
        Ok(())
    }
}
