//! CREATE CLONE, CREATE SNAPSHOT, DETACH CLONE, REFRESH SNAPSHOT OR CLONE and RESTORE PARTITION
//! FROM SNAPSHOT: whole partitions, of which data is shared until one of both sides changes it.
//!
//! There is one method of duplication, which every method that leaves the choice to the unit means
//! too; duplicates are made when they are asked for. A duplicate has the attributes of its source,
//! then what the command sets.

use osd::continuation::duplication;
use osd::{Id, ObjectType};

use super::failure::{Failure, field};
use super::frame::Plan;
use super::task::{Task, Touch};
use crate::store::{Duplicate, FIRST_ID, Origin, Step, TimesUpdate};

const SOURCE_FIELD: u16 = 40;
pub(super) const METHOD_FIELD: u16 = 14;

/// Whether the unit duplicates by `method`: those that ask for space of their own are not met by
/// sharing.
pub(super) const fn duplicates_by(method: u8) -> bool {
    use duplication as by;
    matches!(method, by::DEFAULT | by::SPACE_EFFICIENT | by::FASTER_COPY | by::DO_NOT_CARE)
}

pub(super) async fn duplicate(
    task: &mut Task<'_>,
    requested: u64,
    source: u64,
    method: u8,
    kind: Duplicate,
) -> Result<(), Failure> {
    let unit = task.unit;
    if !duplicates_by(method) {
        return Err(Failure::cdb(METHOD_FIELD));
    }
    if requested != 0
        && (!(FIRST_ID..u64::MAX).contains(&requested) || unit.store.partition(requested).is_ok())
    {
        return Err(Failure::cdb(field::PARTITION));
    }
    if source == 0 || unit.store.partition(source).is_err() {
        return Err(Failure::cdb(SOURCE_FIELD));
    }
    task.mutate(
        |_| {
            let id = if requested == 0 { unit.store.reserve_ids(0, 1)? } else { requested };
            let plan = Plan::of(Id::partition(id), ObjectType::Partition, Touch::WRITE_ALL);
            Ok(plan.partitions().undo(|id| Step::RemovePartition { id: id.partition, contents: true }))
        },
        |task, change| {
            let id = task.current.id;
            unit.check_partitions()?;
            change.push(Step::Duplicate { source, id: id.partition, kind, made_ms: task.now });
            change.push(Step::SetTimes { id, times: task.creation_times(source)? });
            Ok(())
        },
    )
    .await
}

/// The source of a duplicate; it must be one of `kinds`.
fn origin(task: &Task<'_>, partition: u64, field: u16, kinds: &[Duplicate]) -> Result<Origin, Failure> {
    let info = task.unit.store.partition(partition).map_err(|_| Failure::cdb(field))?;
    info.origin.filter(|origin| kinds.contains(&origin.kind)).ok_or_else(|| Failure::cdb(field))
}

pub(super) async fn detach(task: &mut Task<'_>, partition: u64) -> Result<(), Failure> {
    origin(task, partition, field::PARTITION, &[Duplicate::Clone])?;
    change_whole(task, partition, Step::Detach { id: partition }, None).await
}

/// REFRESH SNAPSHOT OR CLONE: it gets the present content of its source.
pub(super) async fn refresh(task: &mut Task<'_>, partition: u64) -> Result<(), Failure> {
    let origin = origin(task, partition, field::PARTITION, &[Duplicate::Clone, Duplicate::Snapshot])?;
    let step = Step::Refresh { id: partition, made_ms: task.now };
    let content = Content { of: origin.source, named_by: (partition, field::PARTITION), origin };
    change_whole(task, partition, step, Some(content)).await
}

/// RESTORE PARTITION FROM SNAPSHOT: the partition gets the content of a snapshot that was made of
/// it.
pub(super) async fn restore(task: &mut Task<'_>, partition: u64, snapshot: u64) -> Result<(), Failure> {
    if partition == 0 {
        return Err(Failure::cdb(field::PARTITION));
    }
    let info = task.unit.store.partition(partition).map_err(|_| Failure::cdb(field::PARTITION))?;
    let origin = origin(task, snapshot, SOURCE_FIELD, &[Duplicate::Snapshot])?;
    // One that merely has the id of a partition that is gone is another.
    if (origin.source, origin.generation) != (partition, info.generation) {
        return Err(Failure::cdb(SOURCE_FIELD));
    }
    let content = Content { of: snapshot, named_by: (snapshot, SOURCE_FIELD), origin };
    change_whole(task, partition, Step::Restore { id: snapshot }, Some(content)).await
}

/// The content that replaces a partition's own.
#[derive(Clone, Copy)]
struct Content {
    /// The partition that has it.
    of: u64,
    /// The duplicate, and the field that it is wrong to name if its origin has become another.
    named_by: (u64, u16),
    origin: Origin,
}

/// Does `step`, which changes `partition` as a whole, to `content` if it gets that, with what the
/// command sets of it.
async fn change_whole(
    task: &mut Task<'_>,
    partition: u64,
    step: Step,
    content: Option<Content>,
) -> Result<(), Failure> {
    let id = Id::partition(partition);
    task.mutate(
        |_| Ok(Plan::of(id, ObjectType::Partition, Touch::WRITE_ALL)),
        |task, change| {
            change.push(step.clone());
            if let Some(Content { of, named_by: (duplicate, field), origin: before }) = content {
                // The initiator was waited for, and others.
                let now = origin(task, duplicate, field, &[before.kind])?;
                if (now.source, now.generation) != (before.source, before.generation) {
                    return Err(Failure::cdb(field));
                }
                task.unit.security_stays(partition, of, change)?;
            }
            let times = TimesUpdate { data_modified: Some(task.now), ..TimesUpdate::default() };
            task.set_times(id, times, change)
        },
    )
    .await
}
