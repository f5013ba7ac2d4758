//! CREATE COLLECTION, REMOVE COLLECTION and CREATE USER TRACKING COLLECTION.
//!
//! Members of a linked collection name it in their Collections page. Those of a tracking collection do not know of it: their
//! memberships have the number [`UNNAMED`], which is no attribute's.

use osd::sense::function;
use osd::{Id, ObjectType};

use super::failure::Failure;
use super::scan::{BATCH, Walk};
use super::subject::at;
use super::task::{Task, Touch};
use super::tracking::Tracking;
use crate::store::{Change, CollectionType, Commit, Error, List, Step};

/// The number of memberships that are not shown in the Collections page.
pub(super) const UNNAMED: u32 = 0;

/// SOURCE COLLECTION_OBJECT_ID.
const SOURCE_FIELD: u16 = 40;

/// CREATE COLLECTION: a linked one.
pub(super) async fn create_collection(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    let id = create(task, partition, requested, CollectionType::LINKED, None).await?;
    finish(task, id).await
}

/// CREATE USER TRACKING COLLECTION, with the members of `source` if that is not 0.
pub(super) async fn create_tracking_collection(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    source: u64,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    let unit = task.unit;
    let source = match source {
        0 => None,
        source => {
            unit.store.partition(partition)?;
            let id = Id::new(partition, source);
            Some((id, unit.collection(id).map_err(|_| Failure::cdb(SOURCE_FIELD))?))
        }
    };
    let id = create(task, partition, requested, CollectionType::TRACKING, source.map(|(id, _)| id)).await?;
    if let Some((source, info)) = source {
        let tracking = Tracking::new(id, &unit.collection(id)?, action(task), info.members);
        if let Err(failure) = join_members(task, source, id, tracking).await {
            undo(task, id).await;
            return Err(failure);
        }
    }
    finish(task, id).await
}

/// Gets what the command gets of the collection that it has created.
async fn finish(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    task.progress.done(function::COMMAND);
    task.function_done();
    let got = task.get(id).await;
    if got.is_err() {
        undo(task, id).await;
    }
    got
}

/// A create that fails leaves nothing.
async fn undo(task: &Task<'_>, id: Id) {
    let undo = Change::of(Step::RemoveCollection { id: at(id), members: true });
    if let Err(error) = task.unit.apply(undo, Commit::Relaxed).await {
        tracing::warn!(%error, "a collection whose creation failed could not be removed");
    }
}

/// SERVICE ACTION of the command.
pub(super) fn action(task: &Task<'_>) -> u16 {
    task.cdb.command.action().code(task.version()).unwrap_or(0)
}

/// Creates an empty collection, and sets what the command sets of it. `source` is read for it later.
async fn create(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    kind: CollectionType,
    source: Option<Id>,
) -> Result<Id, Failure> {
    let unit = task.unit;
    let id = unit.new_id(partition, requested)?;
    task.current.id = id;
    // In ascending order, so that no two wait for each other.
    let read = Touch::Read { start: 0, end: u64::MAX };
    match source {
        Some(source) if source < id => {
            task.isolate(source, read).await?;
            task.isolate(id, Touch::None).await?;
        }
        Some(source) => {
            task.isolate(id, Touch::None).await?;
            task.isolate(source, read).await?;
        }
        None => task.isolate(id, Touch::None).await?,
    }
    task.quota_turn(partition).await?;
    task.progress.begin(function::COMMAND);
    unit.check_objects(partition, 1)?;
    let mut change = Change::of(Step::CreateCollection(at(id), kind));
    change.push(Step::SetTimes { id: at(id), times: task.creation_times(partition)? });
    unit.security_creation(id, &mut change)?;
    task.apply_with_attributes(id, ObjectType::Collection, change).await?;
    Ok(id)
}

/// Makes the members of `source` members of the tracking collection `id` too, in pieces.
async fn join_members(
    task: &mut Task<'_>,
    source: Id,
    id: Id,
    mut tracking: Tracking,
) -> Result<(), Failure> {
    let unit = task.unit;
    let mut walk = Walk::new(List::Members(at(source)), 0);
    let mut members = Vec::new();
    loop {
        walk.next(&*unit.store, BATCH, &mut members)?;
        if members.is_empty() {
            let mut ended = Change::new();
            tracking.end_with(&mut ended, &Ok(()));
            task.apply(ended).await?;
            return Ok(());
        }
        let mut change = Change::new();
        for &object in &members {
            change.push(joining(id, object));
        }
        let mut joined = tracking;
        joined.processed += members.len() as u64;
        joined.progress(&mut change);
        match unit.apply(change, task.commit()).await {
            Ok(_) => tracking = joined,
            Err(Error::NotFound(_)) => {
                // One has gone since it was listed: one by one, and without it.
                for &object in &members {
                    join_alone(task, id, object, &mut tracking).await?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        task.transfer.pause().await?;
    }
}

/// The step by which `object` becomes a member of the tracking collection `id`.
fn joining(id: Id, object: u64) -> Step {
    let object = at(Id::new(id.partition, object));
    Step::Join { object, collection: id.object, number: UNNAMED }
}

/// Makes one object a member, if it is still there.
async fn join_alone(task: &Task<'_>, id: Id, object: u64, tracking: &mut Tracking) -> Result<(), Failure> {
    let unit = task.unit;
    let mut change = Change::of(joining(id, object));
    let mut joined = *tracking;
    joined.processed += 1;
    joined.progress(&mut change);
    match unit.apply(change, task.commit()).await {
        Ok(_) => *tracking = joined,
        Err(Error::NotFound(_)) if unit.is_gone(Id::new(id.partition, object)) => tracking.missing += 1,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// REMOVE COLLECTION; with `force` even one with members, which stay as objects.
pub(super) async fn remove_collection(task: &mut Task<'_>, id: Id, force: bool) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate(id, Touch::Write { start: 0, end: u64::MAX }).await?;
    let info = task.unit.collection(id)?;
    if info.members > 0 && !force {
        return Err(Error::NotEmpty(at(id)).into());
    }
    task.set_and_get(id, Change::new()).await?;
    task.isolate_next(id, Touch::Write { start: 0, end: u64::MAX }).await?;
    task.progress.begin(function::COMMAND);
    task.apply(Change::of(Step::RemoveCollection { id: at(id), members: force })).await?;
    task.progress.done(function::COMMAND);
    Ok(())
}
