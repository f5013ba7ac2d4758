//! CREATE COLLECTION, REMOVE COLLECTION and CREATE USER TRACKING COLLECTION.
//!
//! Members of a linked collection name it in their Collections page. Those of a tracking collection
//! do not know of it: their memberships have the number [`UNNAMED`], which is no attribute's.

use osd::{Id, ObjectType};

use super::failure::Failure;
use super::frame::Plan;
use super::scan::{BATCH, Walk};
use super::task::{Task, Touch};
use super::tracking::Tracking;
use crate::store::{Change, CollectionType, Commit, Error, List, Step};

/// The number of memberships that are not shown in the Collections page.
pub(super) const UNNAMED: u32 = 0;

const SOURCE_FIELD: u16 = 40;

/// CREATE COLLECTION: a linked one.
pub(super) async fn create_collection(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
) -> Result<(), Failure> {
    let plan = create(task, partition, requested, CollectionType::LINKED, |_| Ok(None)).await?;
    task.finish(plan, Ok(())).await
}

/// CREATE USER TRACKING COLLECTION, with the members of `source` if that is not 0.
pub(super) async fn create_tracking_collection(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    source: u64,
) -> Result<(), Failure> {
    let unit = task.unit;
    let mut members = None;
    let source = (source != 0).then(|| Id::new(partition, source));
    let plan = create(task, partition, requested, CollectionType::TRACKING, |_| {
        if let Some(source) = source {
            unit.store.partition(partition)?;
            members = Some(unit.collection(source).map_err(|_| Failure::cdb(SOURCE_FIELD))?.members);
        }
        Ok(source)
    })
    .await?;
    let result = match (source, members) {
        (Some(source), Some(members)) => {
            let tracking = Tracking::new(plan.id, &unit.collection(plan.id)?, action(task), members);
            join_members(task, source, plan.id, tracking).await
        }
        _ => Ok(()),
    };
    task.finish(plan, result).await
}

pub(super) fn action(task: &Task<'_>) -> u16 {
    task.cdb.command.action().code(task.version()).unwrap_or(0)
}

/// Creates an empty collection, and sets what the command sets of it. The collection that `source`
/// says is read for it later.
async fn create(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    kind: CollectionType,
    source: impl FnOnce(&mut Task<'_>) -> Result<Option<Id>, Failure>,
) -> Result<Plan, Failure> {
    let unit = task.unit;
    task.change(
        |task| {
            let source = source(task)?;
            let id = unit.new_id(partition, requested)?;
            let plan = Plan::of(id, ObjectType::Collection, Touch::None).growing();
            let plan = plan.undo(|id| Step::RemoveCollection { id, members: true });
            Ok(source.into_iter().fold(plan, Plan::reading))
        },
        |task, change| {
            let id = task.current.id;
            unit.check_objects(partition, 1)?;
            change.push(Step::CreateCollection(id, kind));
            change.push(Step::SetTimes { id, times: task.creation_times(partition)? });
            unit.security_creation(id, ObjectType::Collection, change)
        },
    )
    .await
}

/// Makes the members of `source` members of the tracking collection `id` too, in pieces.
async fn join_members(
    task: &mut Task<'_>,
    source: Id,
    id: Id,
    mut tracking: Tracking,
) -> Result<(), Failure> {
    let unit = task.unit;
    let mut walk = Walk::new(List::Members(source), 0);
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
    let object = Id::new(id.partition, object);
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
    let check = |task: &mut Task<'_>| match task.unit.collection(id)?.members {
        1.. if !force => Err(Error::NotEmpty(id).into()),
        _ => Ok(()),
    };
    task.remove(id, check, async |task| {
        let removal = || Change::of(Step::RemoveCollection { id, members: force });
        match task.unit.apply(removal(), task.commit()).await {
            // They are too many for one change.
            Err(Error::BadChange) if force => {
                part_with_members(task, id).await?;
                task.apply(removal()).await.map(drop)
            }
            removed => Ok(removed.map(drop)?),
        }
    })
    .await
}

/// Has the members of a collection leave it, in pieces.
async fn part_with_members(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    let unit = task.unit;
    let mut walk = Walk::new(List::Members(id), 0);
    let mut members = Vec::new();
    loop {
        walk.next(&*unit.store, BATCH, &mut members)?;
        if members.is_empty() {
            return Ok(());
        }
        let leave = |object: &u64| {
            let object = Id::new(id.partition, *object);
            Step::Leave { object, collection: id.object }
        };
        match unit.apply(members.iter().map(leave).collect(), Commit::Relaxed).await {
            // Some have gone since they were listed: the others go with the collection.
            Ok(_) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        task.transfer.pause().await?;
    }
}
