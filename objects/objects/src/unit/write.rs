//! WRITE, APPEND, CREATE AND WRITE, CLEAR, PUNCH: the commands that change an object's data.
//!
//! Data is taken in pieces of [`CHUNK_BYTES`]; the last piece and the attributes that the command
//! sets are one change. A CREATE AND WRITE that fails after its first piece removes what it has
//! created.

use osd::cdb::{Isolation, ObjectRange};
use osd::{Id, ObjectType};

use super::failure::{Failure, field, undoes};
use super::frame::{Piece, Plan};
use super::limits::CHUNK_BYTES;
use super::segments::Segments;
use super::task::{Task, Touch};
use crate::store::{Change, Step, TimesUpdate};

pub(super) async fn write(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    task.unit.user_object(id)?;
    let segments = Segments::of(task, range)?;
    put(task, &segments, false).await?;
    task.get(id).await
}

/// CREATE AND WRITE: whole or not at all.
pub(super) async fn create_and_write(
    task: &mut Task<'_>,
    partition: u64,
    requested: u64,
    range: ObjectRange,
) -> Result<(), Failure> {
    let segments = Segments::of(task, range)?;
    task.current.id = task.unit.new_id(partition, requested)?;
    let mut result = put(task, &segments, true).await;
    let id = task.current.id;
    let mut undone = result.is_err();
    if result.is_ok() {
        result = task.get(id).await;
        undone = undoes(&result);
    }
    if undone && std::mem::take(&mut task.created) {
        task.undo(&[id], Step::RemoveUser).await;
    }
    result
}

/// Takes the command's data and writes it, and sets the command's attributes with the last piece.
async fn put(task: &mut Task<'_>, segments: &Segments, create: bool) -> Result<(), Failure> {
    let total = segments.total();
    let (start, end) = segments.span();
    if total > CHUNK_BYTES {
        // Refuses a write that is not possible before all of its data is requested. It is checked
        // again under the quota's turn.
        check(task, segments, 0, total, create)?;
    }
    let isolate =
        async |task: &mut Task<'_>| task.isolate(task.current.id, Touch::Write { start, end }).await;
    task.stream(total, isolate, |task, piece, change| {
        let Piece { offset, len, mut data, .. } = piece;
        let id = task.current.id;
        let create_now = create && offset == 0;
        check(task, segments, offset, offset + len, create_now)?;
        if create_now {
            task.unit.add_creation(task, id, change)?;
        }
        for piece in segments.pieces(offset, len) {
            let data = data.split_to(piece.len as usize); // within the chunk
            change.push(Step::Write { id, at: piece.start, data });
        }
        if piece.is_last && !create { task.set_times(id, modified(task.now), change) } else { Ok(()) }
    })
    .await
}

/// Times that a change of data sets, in the change itself.
fn modified(now: u64) -> TimesUpdate {
    TimesUpdate { data_modified: Some(now), ..TimesUpdate::default() }
}

/// Whether quotas allow the bytes `from..to` of the command's buffer to be written.
fn check(task: &Task<'_>, segments: &Segments, from: u64, to: u64, create: bool) -> Result<(), Failure> {
    let (unit, id) = (task.unit, task.current.id);
    if create {
        unit.check_objects(id.partition, 1)?;
    }
    let info = unit.store.object(id).ok();
    let (_, end) = segments.span();
    unit.check_length(id, info.as_ref(), end)?;
    unit.check_capacity(id, segments.pieces(from, to.saturating_sub(from)))
}

pub(super) async fn append(task: &mut Task<'_>, id: Id, total: u64) -> Result<(), Failure> {
    let unit = task.unit;
    unit.user_object(id)?;
    // Appends take turns, so that a long one is in one piece and each sees the length that it adds
    // to.
    let isolate = async |task: &mut Task<'_>| {
        // The place is not known yet: locks all of the object behind its present end.
        let from = if task.isolation()? == Isolation::Range { unit.user_object(id)?.length } else { 0 };
        task.isolate_at_end(id, Touch::Write { start: from, end: u64::MAX }).await
    };
    task.stream(total, isolate, |task, piece, change| {
        let Piece { offset, len, data, is_last } = piece;
        let info = unit.user_object(id)?;
        // Later pieces follow the first one: writes, which take no turns with an append, may have
        // moved the end meanwhile.
        let begins = if offset == 0 { info.length } else { task.current.appended_at };
        let end = begins.checked_add(total).ok_or_else(Failure::quota)?;
        unit.check_length(id, Some(&info), end)?;
        let place = begins + offset;
        unit.check_capacity(id, std::iter::once(ObjectRange { start: place, len }))?;
        if len == 0 {
            task.current.appended_at = info.length;
        } else if offset == 0 {
            // The end may move until the store is at it: it keeps the quota, for the whole of the
            // command.
            let most = unit.max_length(id)?.saturating_sub(total - len);
            change.push(Step::Append { id, data, most });
        } else {
            change.push(Step::Write { id, at: place, data });
        }
        if is_last { task.set_times(id, modified(task.now), change) } else { Ok(()) }
    })
    .await?;
    task.get(id).await
}

/// CLEAR: the range reads as zeros; an object that ends before the range does becomes longer.
pub(super) async fn clear(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    let end = range.start.checked_add(range.len).ok_or_else(|| Failure::cdb(task.length_field()))?;
    change_range(task, id, range, end, Step::Clear { id, at: range.start, len: range.len }).await
}

/// PUNCH: the range is deleted, and what follows moves down to its start.
pub(super) async fn punch(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    if range.start > task.unit.user_object(id)?.length {
        return Err(Failure::cdb(task.start_field()));
    }
    change_range(task, id, range, 0, Step::Punch { id, at: range.start, len: range.len }).await
}

/// A change of data that needs none from the initiator. `end` is how long the object has to become
/// at least.
async fn change_range(
    task: &mut Task<'_>,
    id: Id,
    range: ObjectRange,
    end: u64,
    step: Step,
) -> Result<(), Failure> {
    // A PUNCH moves all that is behind it.
    let to = if end == 0 { u64::MAX } else { end };
    let plan = Plan::of(id, ObjectType::User, Touch::Write { start: range.start, end: to }).growing();
    task.mutate(
        |_| Ok(plan),
        |task, change| {
            let info = task.unit.user_object(id)?;
            if range.len > 0 {
                task.unit.check_length(id, Some(&info), end)?;
            }
            if end == 0 {
                task.unit.check_punch(id, info.length, range)?;
            }
            if range.len > 0 {
                change.push(step.clone());
            }
            task.set_times(id, modified(task.now), change)
        },
    )
    .await
}

impl super::OsdUnit {
    /// The id that a new user object or collection gets: the one that is requested, or one of the
    /// unit's choice.
    pub(super) fn new_id(&self, partition: u64, requested: u64) -> Result<Id, Failure> {
        if partition < osd::ids::FIRST_ID || self.store.partition(partition).is_err() {
            return Err(Failure::cdb(field::PARTITION));
        }
        if requested == 0 {
            return Ok(Id::new(partition, self.store.reserve_ids(partition, 1)?));
        }
        let id = Id::new(partition, requested);
        // The highest has no id behind it, where a range of ids would end.
        if !(osd::ids::FIRST_ID..u64::MAX).contains(&requested) || self.store.object(id).is_ok() {
            return Err(Failure::cdb(field::OBJECT));
        }
        Ok(id)
    }

    /// Adds the steps that create the user object `id` to a change: the object, its times, and what
    /// it inherits.
    pub(super) fn add_creation(&self, task: &Task<'_>, id: Id, change: &mut Change) -> Result<(), Failure> {
        change.push(Step::CreateUser(id));
        change.push(Step::SetTimes { id, times: task.creation_times(id.partition)? });
        self.inherit_length(id, change)?;
        self.security_creation(id, ObjectType::User, change)
    }
}
