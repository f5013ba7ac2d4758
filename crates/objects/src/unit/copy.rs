//! COPY USER OBJECTS: a new user object with the data of another, which both share until one of them changes it. The source
//! stands in the CDB continuation, in the same partition or another.
//!
//! It is one change: FREEZE is kept by every copy, and every time of duplication is at once. Attributes come along if the
//! descriptor asks for it (CPY_ATTR), then what the command sets; memberships and times do not.

use osd::ObjectType;
use osd::continuation::Descriptor;
use osd::sense::function;

use super::failure::Failure;
use super::scan::descriptor;
use super::snapshots::{METHOD_FIELD, duplicates_by};
use super::subject::at;
use super::task::{Task, Touch};
use crate::store::{Change, Commit, Step};

/// Where the source stands in Data-Out: in the continuation's first descriptor, behind its header.
const SOURCE_AT: u64 = osd::continuation::HEADER_LEN as u64 + 8;

/// COPY USER OBJECTS.
pub(super) async fn copy(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    method: u8,
) -> Result<(), Failure> {
    let unit = task.unit;
    if !duplicates_by(method) {
        return Err(Failure::cdb(METHOD_FIELD));
    }
    let id = unit.new_id(partition, requested)?;
    let source = descriptor(task, |descriptor| match descriptor {
        Descriptor::CopySource(source) => Some(*source),
        _ => None,
    })?;
    let from = source.id;
    let lost = |_| Failure::parameter(SOURCE_AT);
    unit.user_object(from).map_err(lost)?;
    task.take_parameters().await?;
    task.current.id = id;
    let (read, write) = (Touch::Read { start: 0, end: u64::MAX }, Touch::Write { start: 0, end: u64::MAX });
    // In ascending order, so that no two wait for each other.
    if from < id {
        task.isolate(from, read).await?;
        task.isolate(id, write).await?;
    } else {
        task.isolate(id, write).await?;
        task.isolate(from, read).await?;
    }
    task.quota_turn(partition).await?;
    let info = unit.user_object(from).map_err(lost)?;
    task.progress.begin(function::COMMAND);
    unit.check_objects(partition, 1)?;
    unit.check_length(id, None, info.length)?;
    check_used(task, partition, info.used)?;
    let mut change = Change::of(Step::Copy { from: at(from), to: at(id), attributes: source.attributes });
    change.push(Step::SetTimes { id: at(id), times: task.creation_times(partition)? });
    // A quota of the source's is not one of the partition's that the copy is in.
    unit.inherit_length(id, &mut change)?;
    unit.security_creation(id, &mut change)?;
    task.apply_with_attributes(id, ObjectType::User, change).await?;
    task.progress.done(function::COMMAND);
    task.function_done();
    let got = task.get(id).await;
    if got.is_err() {
        // A create that fails leaves nothing.
        let undo = Change::of(Step::RemoveUser(at(id)));
        if let Err(error) = unit.apply(undo, Commit::Relaxed).await {
            tracing::warn!(%error, "a copy whose creation failed could not be removed");
        }
    }
    got
}

/// Whether the partition may hold `used` bytes more: what is shared counts for each that shares it.
fn check_used(task: &Task<'_>, partition: u64, used: u64) -> Result<(), Failure> {
    let quota = task.unit.policy(partition)?.capacity;
    let there = task.unit.store.partition(partition)?.used;
    if there.saturating_add(used) > quota { Err(Failure::quota()) } else { Ok(()) }
}
