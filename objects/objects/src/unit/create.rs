//! CREATE, CREATE PARTITION and FORMAT OSD, and the commands that remove objects: REMOVE and REMOVE
//! PARTITION.
//!
//! The new objects and the attributes that the command sets of them are one change, so that a
//! creation whose attributes cannot be set leaves nothing behind.

use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use osd::cdb::RemoveScope;
use osd::ids::FIRST_ID;
use osd::sense::function;
use osd::{Id, ObjectType};

use super::attributes::{Effects, Request};
use super::failure::{Failure, field, undoes};
use super::frame::Plan;
use super::members::get_of_many;
use super::scan::Walk;
use super::task::{Task, Touch};
use crate::store::{Change, Error, List, MAX_STEPS, Step, TimesUpdate};

/// CREATE: one user object or many. Attributes are set of each and got of each, many as a list of
/// many objects.
pub(super) async fn create(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    count: u16,
) -> Result<(), Failure> {
    let count = u64::from(count.max(1));
    if count > 1 && requested != 0 {
        return Err(Failure::cdb(field::OBJECT));
    }
    let unit = task.unit;
    let plan = task.enter(|_| {
        let first = match count {
            1 => unit.new_id(partition, requested)?.object,
            _ if partition < FIRST_ID || unit.store.partition(partition).is_err() => {
                return Err(Failure::cdb(field::PARTITION));
            }
            _ => unit.store.reserve_ids(partition, count as u32)?, // a u16
        };
        Ok(Plan::of(Id::new(partition, first + (count - 1)), ObjectType::User, Touch::None).growing())
    });
    let mut plan = plan.await?;
    let (mut result, made) = loop {
        let last = plan.id.object;
        let ids = last - (count - 1)..=last;
        unit.check_objects(partition, count)?;
        task.begin_creation(partition, ids.clone());
        let mut done = 0;
        let result = create_all(task, partition, ids.clone(), &mut done).await;
        let made = ids.take(done).map(|object| Id::new(partition, object));
        if result.is_ok() || !task.has_lost_id() {
            break (result, made);
        }
        task.undo(&made.collect::<Vec<_>>(), Step::RemoveUser).await;
        let first = unit.store.reserve_ids(partition, count as u32)?; // a u16
        task.move_to(&mut plan, Id::new(partition, first + (count - 1))).await?;
    };
    let last = plan.id;
    let mut undone = result.is_err();
    if result.is_ok() {
        task.created = true;
        task.complete();
        result = match count {
            1 => task.get(last).await,
            _ => get_all(task, last, count).await,
        };
        undone = undoes(&result);
    }
    if undone {
        task.undo(&made.collect::<Vec<_>>(), Step::RemoveUser).await;
    }
    result
}

/// Gets attributes of the `count` objects that were created, as a list of many objects; the Current
/// Command page, which tells the highest id, is in the entries of each. A page is got of the last.
async fn get_all(task: &mut Task<'_>, last: Id, count: u64) -> Result<(), Failure> {
    let Request::List(wanted) = &mut task.parameters.get else { return task.get(last).await };
    let wanted = std::mem::take(wanted);
    task.isolate_getting(last).await?;
    let created = Walk::new(List::Users(last.partition), last.object - (count - 1));
    get_of_many(task, last.partition, created, last.object, &wanted).await
}

/// Creates `ids` in as few changes as possible: one, but for very many. `done` is the number of
/// those that are there.
async fn create_all(
    task: &mut Task<'_>,
    partition: u64,
    ids: RangeInclusive<u64>,
    done: &mut usize,
) -> Result<(), Failure> {
    let mut change = Change::new();
    let mut pending = 0;
    let mut effects = Effects::default();
    let mut looked_at = 0;
    for object in ids {
        let id = Id::new(partition, object);
        looked_at += task.parameters.set.len();
        if looked_at >= MAX_STEPS {
            // Some settings need no step.
            looked_at = 0;
            task.transfer.pause().await?;
        }
        let before = change.steps.len();
        task.unit.add_creation(task, id, &mut change)?;
        task.add_settings(id, ObjectType::User, &mut change, &mut effects)?;
        pending += 1;
        let of_one = change.steps.len() - before;
        if change.steps.len() + of_one > MAX_STEPS {
            task.apply(std::mem::take(&mut change)).await?;
            *done += std::mem::take(&mut pending);
            task.transfer.pause().await?;
        }
    }
    task.apply(change).await?;
    *done += pending;
    task.settings_applied(effects);
    Ok(())
}

pub(super) async fn create_partition(task: &mut Task<'_>, requested: u64) -> Result<(), Failure> {
    let unit = task.unit;
    // The highest has no id behind it, where the range of those that are excluded would end.
    let may_be = (FIRST_ID..u64::MAX).contains(&requested) && unit.store.partition(requested).is_err();
    if requested != 0 && !may_be {
        return Err(Failure::cdb(field::PARTITION));
    }
    task.mutate(
        |_| {
            let id = if requested == 0 { unit.store.reserve_ids(0, 1)? } else { requested };
            let plan = Plan::of(Id::partition(id), ObjectType::Partition, Touch::None);
            Ok(plan.partitions().undo(|id| Step::RemovePartition { id: id.partition, contents: false }))
        },
        |task, change| {
            let id = task.current.id;
            unit.check_partitions()?;
            change.push(Step::CreatePartition(id.partition));
            change.push(Step::SetTimes { id, times: task.creation_times(0)? });
            unit.inherit_quotas(id.partition, change)?;
            unit.security_creation(id, ObjectType::Partition, change)
        },
    )
    .await
}

/// FORMAT OSD: everything is removed, and attributes of the root may be set. The capacity is the
/// store's own: one that is asked for must not be more than that.
pub(super) async fn format(task: &mut Task<'_>, capacity: u64) -> Result<(), Failure> {
    let unit = task.unit;
    if capacity > unit.store.root().capacity {
        return Err(Failure::cdb(task.length_field()));
    }
    // Before others have to wait for it, and when no partition can be made or secured any more.
    unit.permitted_everywhere(task).await?;
    task.take_parameters().await?;
    task.isolate(Id::ROOT, Touch::None).await?;
    unit.permitted_everywhere(task).await?;
    task.progress.begin(function::COMMAND);
    let mut change = Change::of(Step::Format);
    unit.security_keep(&mut change)?;
    let result = task.apply_with_attributes(Id::ROOT, ObjectType::Root, change).await;
    unit.policies.forget();
    unit.security_formatted()?;
    result?;
    task.complete();
    task.get(Id::ROOT).await
}

/// REMOVE: set and get attributes, then the user object goes.
pub(super) async fn remove(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    let check = |task: &mut Task<'_>| task.unit.user_object(id).map(drop);
    task.remove(id, check, async |task| task.apply(Change::of(Step::RemoveUser(id))).await.map(drop)).await
}

/// REMOVE PARTITION: set and get attributes, then the partition goes, with its contents on request.
pub(super) async fn remove_partition(
    task: &mut Task<'_>,
    partition: u64,
    scope: RemoveScope,
) -> Result<(), Failure> {
    let id = Id::partition(partition);
    if partition < FIRST_ID {
        return Err(Failure::cdb(field::PARTITION));
    }
    let contents = scope == RemoveScope::Contents;
    let check = |task: &mut Task<'_>| {
        let info = task.unit.store.partition(partition)?;
        let empty = info.objects == 0 && info.collections == 0;
        if contents || empty { Ok(()) } else { Err(Error::NotEmpty(id).into()) }
    };
    task.remove(id, check, async |task| {
        task.apply(Change::of(Step::RemovePartition { id: partition, contents })).await?;
        task.unit.policies.forget();
        Ok(())
    })
    .await
}

/// The number of entries of [`CreationTimes`].
const APART: usize = 4096;

/// The next times of creation that ids may get. No two objects of one id have the same time while
/// the unit runs, though both were created within a millisecond: commands and capabilities tell
/// them apart by it.
pub(super) struct CreationTimes(Mutex<Box<[u64]>>);

impl Default for CreationTimes {
    fn default() -> Self {
        Self(Mutex::new([0; APART].into()))
    }
}

impl CreationTimes {
    /// A time of creation for the objects `ids` of a partition, milliseconds since 1970: `now`, or
    /// the first one after it that none of these ids has had.
    fn take(&self, now: u64, partition: u64, ids: RangeInclusive<u64>) -> u64 {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let base = partition.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let count = ids.end().saturating_sub(*ids.start()).min(APART as u64 - 1);
        // Neighbours have entries of their own, so that many creations do not run ahead of the
        // clock; so have a partition and its first object, which are a multiple of `APART` apart.
        let entries = (0..=count).map(|n| {
            let id = ids.start().wrapping_add(n);
            (base.wrapping_add(id).wrapping_add(id >> 12) % APART as u64) as usize
        });
        let time = entries.clone().map(|at| next[at]).fold(now, u64::max);
        entries.for_each(|at| next[at] = time.saturating_add(1));
        time
    }
}

impl Task<'_> {
    /// Takes the time of creation of the objects `ids` of `partition`, or of the partition itself
    /// for 0: the command is about to create them.
    pub(super) fn begin_creation(&mut self, partition: u64, ids: RangeInclusive<u64>) {
        self.created_at = self.unit.creation_times.take(self.now, partition, ids);
    }

    /// The times of what the command creates. The time of creation is kept even where timestamps
    /// are bypassed: capabilities name objects by it.
    pub(super) fn creation_times(&self, partition: u64) -> Result<TimesUpdate, Failure> {
        let created = TimesUpdate { created: Some(self.created_at), ..TimesUpdate::default() };
        if self.bypass(partition)? {
            return Ok(created);
        }
        Ok(TimesUpdate { attributes_modified: Some(self.now), data_modified: Some(self.now), ..created })
    }
}
