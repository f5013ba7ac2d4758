//! COPY USER OBJECTS: a new user object with the data of another, which both share until one of
//! them changes it. The source stands in the CDB continuation, in the same partition or another.
//!
//! It is one change: FREEZE is kept by every copy, and every time of duplication is at once.
//! Attributes come along if the descriptor asks for it (CPY_ATTR), then what the command sets;
//! memberships and times do not.

use osd::ObjectType;
use osd::continuation::Descriptor;

use super::failure::Failure;
use super::frame::Plan;
use super::scan::descriptor;
use super::snapshots::{METHOD_FIELD, duplicates_by};
use super::task::{Task, Touch};
use crate::store::Step;

/// Offset of the source in Data-Out: in the continuation's first descriptor, behind its header.
const SOURCE_AT: u64 = osd::continuation::HEADER_LEN as u64 + 8;

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
    // A create that fails leaves nothing.
    let plan =
        Plan::of(id, ObjectType::User, Touch::WRITE_ALL).reading(from).growing().undo(Step::RemoveUser);
    task.mutate(
        |_| Ok(plan),
        |task, change| {
            let id = task.current.id;
            let info = unit.user_object(from).map_err(lost)?;
            unit.check_objects(partition, 1)?;
            unit.check_length(id, None, info.length)?;
            check_used(task, partition, info.used)?;
            change.push(Step::Copy { from, to: id, attributes: source.attributes });
            change.push(Step::SetTimes { id, times: task.creation_times(partition)? });
            // A quota of the source's is not one of the partition's that the copy is in.
            unit.inherit_length(id, change)?;
            unit.security_creation(id, ObjectType::User, change)
        },
    )
    .await
}

/// Whether the partition may hold `used` bytes more: shared blocks count for each object that
/// shares them.
fn check_used(task: &Task<'_>, partition: u64, used: u64) -> Result<(), Failure> {
    let quota = task.unit.policy(partition)?.capacity;
    let there = task.unit.store.partition(partition)?.used;
    if there.saturating_add(used) > quota { Err(Failure::quota()) } else { Ok(()) }
}
