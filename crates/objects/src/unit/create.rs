//! CREATE, CREATE PARTITION, FORMAT OSD, and what takes objects away again: REMOVE, REMOVE PARTITION.
//!
//! What is created and the attributes that the command sets of it are one change, so that a creation whose attributes
//! cannot be set leaves nothing behind.

use osd::cdb::RemoveScope;
use osd::ids::FIRST_ID;
use osd::sense::function;
use osd::{Id, ObjectType};

use super::attributes::{Effects, Request};
use super::failure::{Failure, field};
use super::members::get_of_many;
use super::scan::Walk;
use super::subject::at;
use super::task::{Task, Touch};
use crate::store::{Change, Commit, Error, List, MAX_STEPS, Step, TimesUpdate};

/// CREATE: one user object or many. Attributes are set of each and got of each, many as a list of many objects.
pub(super) async fn create(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    count: u16,
) -> Result<(), Failure> {
    let count = u32::from(count.max(1));
    if count > 1 && requested != 0 {
        return Err(Failure::cdb(field::OBJECT));
    }
    task.take_parameters().await?;
    let unit = task.unit;
    let first = match count {
        1 => unit.new_id(partition, requested)?.object,
        _ if partition < FIRST_ID || unit.store.partition(partition).is_err() => {
            return Err(Failure::cdb(field::PARTITION));
        }
        _ => unit.store.reserve_ids(partition, count)?,
    };
    let last = Id::new(partition, first + (u64::from(count) - 1));
    task.current.id = last;
    task.isolate(last, Touch::None).await?;
    task.progress.begin(function::COMMAND);
    task.quota_turn(partition).await?;
    unit.check_objects(partition, u64::from(count))?;
    let mut done = Vec::new();
    let result = create_all(task, partition, first..=last.object, &mut done).await;
    if result.is_ok() {
        task.progress.done(function::COMMAND);
        task.function_done();
        let got = match count {
            1 => task.get(last).await,
            _ => get_all(task, partition, first, last).await,
        };
        if got.is_err() {
            undo(task, &done).await;
        }
        return got;
    }
    undo(task, &done).await;
    result
}

/// Gets attributes of all objects that were created, as a list of many objects; the Current Command page, which tells the highest id, is in
/// the entries of each. A page is got of the last.
async fn get_all(task: &mut Task<'_>, partition: u64, first: u64, last: Id) -> Result<(), Failure> {
    let Request::List(wanted) = &mut task.parameters.get else { return task.get(last).await };
    let wanted = std::mem::take(wanted);
    task.isolate_getting(last).await?;
    let created = Walk::new(List::Users(partition), first);
    get_of_many(task, partition, created, last.object, &wanted).await
}

/// Creates `ids` in as few changes as possible: one, but for very many.
async fn create_all(
    task: &mut Task<'_>,
    partition: u64,
    ids: std::ops::RangeInclusive<u64>,
    done: &mut Vec<u64>,
) -> Result<(), Failure> {
    let mut change = Change::new();
    let mut pending = Vec::new();
    let mut effects = Effects::default();
    let mut looked_at = 0;
    for object in ids {
        let id = Id::new(partition, object);
        looked_at += task.parameters.set.len();
        if looked_at >= MAX_STEPS {
            // What is set may be many things that need no step.
            looked_at = 0;
            task.transfer.pause().await?;
        }
        let before = change.steps.len();
        task.unit.add_creation(task, id, &mut change)?;
        task.add_settings(id, ObjectType::User, &mut change, &mut effects)?;
        pending.push(object);
        let of_one = change.steps.len() - before;
        if change.steps.len() + of_one > MAX_STEPS {
            task.apply(std::mem::take(&mut change)).await?;
            done.append(&mut pending);
            task.transfer.pause().await?;
        }
    }
    task.apply(change).await?;
    done.append(&mut pending);
    task.settings_applied(effects);
    Ok(())
}

/// Removes what a command that failed had created.
async fn undo(task: &mut Task<'_>, ids: &[u64]) {
    for ids in ids.chunks(MAX_STEPS) {
        let mut change = Change::new();
        for &object in ids {
            change.push(Step::RemoveUser(at(Id::new(task.current.id.partition, object))));
        }
        if let Err(error) = task.unit.apply(change, Commit::Relaxed).await {
            tracing::warn!(%error, "objects whose creation failed could not be removed");
        }
    }
}

/// CREATE PARTITION.
pub(super) async fn create_partition(task: &mut Task<'_>, requested: u64) -> Result<(), Failure> {
    // The highest has no id behind it, where the range of those that are excluded would end.
    let may_be = (FIRST_ID..u64::MAX).contains(&requested) && task.unit.store.partition(requested).is_err();
    if requested != 0 && !may_be {
        return Err(Failure::cdb(field::PARTITION));
    }
    task.take_parameters().await?;
    let unit = task.unit;
    let partition = if requested == 0 { unit.store.reserve_ids(0, 1)? } else { requested };
    let id = Id::partition(partition);
    task.current.id = id;
    task.isolate(id, Touch::None).await?;
    task.partition_turn().await?;
    task.progress.begin(function::COMMAND);
    unit.check_partitions()?;
    let mut change = Change::of(Step::CreatePartition(partition));
    change.push(Step::SetTimes { id: at(id), times: task.creation_times(0)? });
    unit.inherit_quotas(partition, &mut change)?;
    unit.security_creation(id, &mut change)?;
    task.apply_with_attributes(id, ObjectType::Partition, change).await?;
    // What was known of a partition of the same id that is gone.
    unit.policies.forget();
    task.progress.done(function::COMMAND);
    task.function_done();
    let got = task.get(id).await;
    if got.is_err() {
        let undo = Change::of(Step::RemovePartition { id: partition, contents: false });
        if let Err(error) = unit.apply(undo, Commit::Relaxed).await {
            tracing::warn!(%error, "a partition whose creation failed could not be removed");
        }
    }
    got
}

/// FORMAT OSD: everything is removed, and attributes of the root may be set. The capacity is the store's own: one that is
/// asked for must not be more than that.
pub(super) async fn format(task: &mut Task<'_>, capacity: u64) -> Result<(), Failure> {
    if capacity > task.unit.store.root().capacity {
        return Err(Failure::cdb(task.length_field()));
    }
    let unit = task.unit;
    // Before others have to wait for it, and when no partition can be made or secured any more.
    unit.permitted_everywhere(task).await?;
    task.take_parameters().await?;
    task.isolate(Id::ROOT, Touch::None).await?;
    unit.permitted_everywhere(task).await?;
    task.progress.begin(function::COMMAND);
    let mut change = Change::of(Step::Format);
    task.unit.security_keep(&mut change)?;
    let result = task.apply_with_attributes(Id::ROOT, ObjectType::Root, change).await;
    task.unit.policies.forget();
    task.unit.security_formatted()?;
    result?;
    task.progress.done(function::COMMAND);
    task.function_done();
    task.get(Id::ROOT).await
}

/// REMOVE: set and get attributes, then the user object goes.
pub(super) async fn remove(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate(id, Touch::Write { start: 0, end: u64::MAX }).await?;
    task.unit.user_object(id)?;
    task.set_and_get(id, Change::new()).await?;
    task.isolate_next(id, Touch::Write { start: 0, end: u64::MAX }).await?;
    task.progress.begin(function::COMMAND);
    task.apply(Change::of(Step::RemoveUser(at(id)))).await?;
    task.progress.done(function::COMMAND);
    Ok(())
}

/// REMOVE PARTITION: set and get attributes, then the partition goes, with what is in it if that is asked for.
pub(super) async fn remove_partition(
    task: &mut Task<'_>,
    partition: u64,
    scope: RemoveScope,
) -> Result<(), Failure> {
    let id = Id::partition(partition);
    if partition < FIRST_ID {
        return Err(Failure::cdb(field::PARTITION));
    }
    task.take_parameters().await?;
    task.isolate(id, Touch::Write { start: 0, end: u64::MAX }).await?;
    let info = task.unit.store.partition(partition)?;
    let contents = scope == RemoveScope::Contents;
    if !contents && (info.objects > 0 || info.collections > 0) {
        return Err(Error::NotEmpty(at(id)).into());
    }
    task.set_and_get(id, Change::new()).await?;
    task.isolate_next(id, Touch::Write { start: 0, end: u64::MAX }).await?;
    task.progress.begin(function::COMMAND);
    task.apply(Change::of(Step::RemovePartition { id: partition, contents })).await?;
    task.unit.policies.forget();
    task.progress.done(function::COMMAND);
    Ok(())
}

impl Task<'_> {
    /// The times of what the command creates. The time of creation is kept even where timestamps are bypassed: capabilities
    /// name objects by it.
    pub(super) fn creation_times(&self, partition: u64) -> Result<TimesUpdate, Failure> {
        let created = TimesUpdate { created: Some(self.now), ..TimesUpdate::default() };
        if self.bypass(partition)? {
            return Ok(created);
        }
        Ok(TimesUpdate { attributes_modified: Some(self.now), data_modified: Some(self.now), ..created })
    }
}
