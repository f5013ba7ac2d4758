//! WRITE, APPEND, CREATE AND WRITE, CLEAR, PUNCH: what changes an object's data.
//!
//! Data is taken in pieces of [`CHUNK_BYTES`]; the last piece and the attributes that the command sets are one change. A
//! CREATE AND WRITE that fails after its first piece removes what it has created.

use osd::cdb::{Isolation, ObjectRange};
use osd::sense::function;
use osd::{Id, ObjectType};

use super::failure::{Failure, field};
use super::limits::CHUNK_BYTES;
use super::segments::Segments;
use super::subject::at;
use super::task::{Task, Touch};
use crate::store::{Change, Commit, Scope, Step, TimesUpdate};

/// WRITE.
pub(super) async fn write(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    task.unit.user_object(id)?;
    let segments = Segments::of(task, range)?;
    put(task, id, &segments, false).await?;
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
    let id = task.unit.new_id(partition, requested)?;
    task.current.id = id;
    let mut result = put(task, id, &segments, true).await;
    if result.is_ok() {
        result = task.get(id).await;
    }
    if result.is_err() && task.created {
        task.created = false;
        // While the initiator was waited for it may have been removed, and another one have got its id.
        let created = task.unit.store.object(at(id)).map(|info| info.times.created);
        if created.is_ok_and(|created| created != task.now) {
            return result;
        }
        // If even that fails, the medium does, and the command's own failure is the better one to tell of.
        let undo = task.unit.apply(Change::of(Step::RemoveUser(at(id))), Commit::Relaxed).await;
        if let Err(error) = undo {
            tracing::warn!(%error, "an object whose creation failed could not be removed");
        }
    }
    result
}

/// Takes the command's data and writes it, and sets the command's attributes with the last piece.
async fn put(task: &mut Task<'_>, id: Id, segments: &Segments, create: bool) -> Result<(), Failure> {
    let total = segments.total();
    let (start, end) = segments.span();
    if total > CHUNK_BYTES {
        // What cannot be is refused before all of the data is asked for; under the quota's turn it is looked at again.
        check(task, id, segments, 0, total, create)?;
    }
    let mut done = 0;
    loop {
        let len = (total - done).min(CHUNK_BYTES);
        let mut data = task.take_data(done, len).await?;
        let first = done == 0;
        let last = done + len == total;
        if last {
            task.take_parameters().await?;
        }
        if first {
            task.isolate(id, Touch::Write { start, end }).await?;
            task.progress.begin(function::COMMAND);
        } else {
            task.take_turn().await?;
        }
        let unit = task.unit;
        task.quota_turn(id.partition).await?;
        check(task, id, segments, done, done + len, create && first)?;
        let mut change = Change::new();
        if create && first {
            unit.add_creation(task, id, &mut change)?;
        }
        for piece in segments.pieces(done, len) {
            let data = data.split_to(piece.len as usize); // within the chunk
            change.push(Step::Write { id: at(id), at: piece.start, data });
        }
        done += len;
        if last {
            if !create {
                task.set_times(id, modified(task.now), &mut change)?;
            }
            task.apply_with_attributes(id, ObjectType::User, change).await?;
        } else {
            let applied = unit.apply(change, Commit::Relaxed).await?;
            task.current.used_change = task.current.used_change.saturating_add(applied.used_change);
        }
        task.created |= create;
        if last {
            break;
        }
        task.yield_turn();
    }
    if task.cdb.options.fua && total > CHUNK_BYTES {
        task.sync(Scope::Object(at(id))).await?;
    }
    task.progress.done(function::COMMAND);
    task.function_done();
    Ok(())
}

/// What a change of data leaves behind, in the change itself.
fn modified(now: u64) -> TimesUpdate {
    TimesUpdate { data_modified: Some(now), ..TimesUpdate::default() }
}

/// Whether quotas allow the bytes `from..to` of the command's buffer to be written.
fn check(
    task: &Task<'_>,
    id: Id,
    segments: &Segments,
    from: u64,
    to: u64,
    create: bool,
) -> Result<(), Failure> {
    let unit = task.unit;
    if create {
        unit.check_objects(id.partition, 1)?;
    }
    let info = unit.store.object(at(id)).ok();
    let (_, end) = segments.span();
    unit.check_length(id, info.as_ref(), end)?;
    unit.check_capacity(id, segments.pieces(from, to.saturating_sub(from)))
}

/// APPEND.
pub(super) async fn append(task: &mut Task<'_>, id: Id, total: u64) -> Result<(), Failure> {
    let unit = task.unit;
    unit.user_object(id)?;
    // Appends take turns, so that a long one is in one piece and each sees the length that it adds to. Where the first piece went
    // the others follow: writes, which take no turns with it, may have moved the end meanwhile.
    let mut start = None;
    let mut done = 0;
    loop {
        let len = (total - done).min(CHUNK_BYTES);
        let data = task.take_data(done, len).await?;
        let (first, last) = (done == 0, done + len == total);
        if last {
            task.take_parameters().await?;
        }
        if first {
            // Where it will be is not known yet: all of the object behind its present end.
            let from = if task.isolation()? == Isolation::Range { unit.user_object(id)?.length } else { 0 };
            task.isolate_at_end(id, Touch::Write { start: from, end: u64::MAX }).await?;
            task.progress.begin(function::COMMAND);
        } else {
            task.take_turn().await?;
        }
        task.quota_turn(id.partition).await?;
        let info = unit.user_object(id)?;
        let begins = start.unwrap_or(info.length);
        let end = begins.checked_add(total).ok_or_else(Failure::quota)?;
        unit.check_length(id, Some(&info), end)?;
        let place = begins + done;
        unit.check_capacity(id, std::iter::once(ObjectRange { start: place, len }))?;
        let mut change = Change::new();
        if len == 0 {
            task.current.appended_at = info.length;
        } else if first {
            // The end may move until the store is at it: it keeps the quota, for the whole of the command.
            let most = unit.max_length(id)?.saturating_sub(total - len);
            change.push(Step::Append { id: at(id), data, most });
        } else {
            change.push(Step::Write { id: at(id), at: place, data });
        }
        done += len;
        let applied = if last {
            task.set_times(id, modified(task.now), &mut change)?;
            task.apply_with_attributes(id, ObjectType::User, change).await?
        } else {
            unit.apply(change, Commit::Relaxed).await?
        };
        if first {
            task.current.appended_at = applied.appended.first().copied().unwrap_or(info.length);
            start = Some(task.current.appended_at);
        }
        if !last {
            task.current.used_change = task.current.used_change.saturating_add(applied.used_change);
            task.yield_turn();
            continue;
        }
        break;
    }
    if task.cdb.options.fua && total > CHUNK_BYTES {
        task.sync(Scope::Object(at(id))).await?;
    }
    task.progress.done(function::COMMAND);
    task.function_done();
    task.get(id).await
}

/// CLEAR: the range reads as zeros; an object that ends before the range does becomes longer.
pub(super) async fn clear(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    let end = range.start.checked_add(range.len).ok_or_else(|| Failure::cdb(task.length_field()))?;
    change_range(task, id, range, end, |id| Step::Clear { id: at(id), at: range.start, len: range.len }).await
}

/// PUNCH: the range is deleted, and what follows moves down to its start.
pub(super) async fn punch(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    if range.start > task.unit.user_object(id)?.length {
        return Err(Failure::cdb(task.start_field()));
    }
    change_range(task, id, range, 0, |id| Step::Punch { id: at(id), at: range.start, len: range.len }).await
}

/// A change of data that needs none from the initiator. `end` is how long the object has to become at least.
async fn change_range(
    task: &mut Task<'_>,
    id: Id,
    range: ObjectRange,
    end: u64,
    step: impl FnOnce(Id) -> Step,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    // A PUNCH moves all that is behind it.
    let to = if end == 0 { u64::MAX } else { end };
    task.isolate(id, Touch::Write { start: range.start, end: to }).await?;
    task.progress.begin(function::COMMAND);
    task.quota_turn(id.partition).await?;
    let info = task.unit.user_object(id)?;
    if range.len > 0 {
        task.unit.check_length(id, Some(&info), end)?;
    }
    if end == 0 {
        task.unit.check_punch(id, info.length, range)?;
    }
    let mut change = Change::new();
    if range.len > 0 {
        change.push(step(id));
    }
    task.set_times(id, modified(task.now), &mut change)?;
    task.apply_with_attributes(id, ObjectType::User, change).await?;
    task.progress.done(function::COMMAND);
    task.function_done();
    task.get(id).await
}

impl super::OsdUnit {
    /// The id that a new user object or collection gets: the one that is requested, or one of the unit's choice.
    pub(super) fn new_id(&self, partition: u64, requested: u64) -> Result<Id, Failure> {
        if partition < osd::ids::FIRST_ID || self.store.partition(partition).is_err() {
            return Err(Failure::cdb(field::PARTITION));
        }
        if requested == 0 {
            return Ok(Id::new(partition, self.store.reserve_ids(partition, 1)?));
        }
        let id = Id::new(partition, requested);
        // The highest has no id behind it, where a range of ids would end.
        if !(osd::ids::FIRST_ID..u64::MAX).contains(&requested) || self.store.object(at(id)).is_ok() {
            return Err(Failure::cdb(field::OBJECT));
        }
        Ok(id)
    }

    /// Adds the steps that create the user object `id` to a change: the object, its times, and what it inherits.
    pub(super) fn add_creation(&self, task: &Task<'_>, id: Id, change: &mut Change) -> Result<(), Failure> {
        change.push(Step::CreateUser(at(id)));
        change.push(Step::SetTimes { id: at(id), times: task.creation_times(id.partition)? });
        self.inherit_length(id, change)?;
        self.security_creation(id, change)
    }
}
