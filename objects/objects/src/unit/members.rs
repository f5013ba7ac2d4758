//! Commands on every member of a collection: REMOVE MEMBER OBJECTS, GET MEMBER ATTRIBUTES and SET
//! MEMBER ATTRIBUTES.
//!
//! They go through the members in pieces of [`BATCH`], each a change of its own. A piece is done as
//! a whole or not at all, and finished pieces stay when the command ends badly or is aborted. A
//! tracking collection's Command Tracking page shows its progress. With FUA everything is on the
//! medium when the command ends.

use std::collections::VecDeque;

use osd::attributes::AttributeId;
use osd::attributes::list::write_of_many;
use osd::sense::function;
use osd::{Id, ObjectType};

use super::attributes::{Effects, Entries, Request};
use super::collections::action;
use super::failure::Failure;
use super::scan::{BATCH, Walk};
use super::task::{Task, Touch};
use super::tracking::Tracking;
use crate::store::{Change, Commit, Error, List, Scope, Step, TimesUpdate};

/// Steps of one change, at most about: members with many attributes to set make smaller pieces.
const STEPS: usize = 4096;

/// REMOVE MEMBER OBJECTS: the attributes set and got are the collection's, and come first.
pub(super) async fn remove_members(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    let check = |task: &mut Task<'_>| task.unit.collection(id).map(drop);
    task.remove(id, check, async |task| {
        each_member(task, id, |_, object, change| {
            change.push(Step::RemoveUser(object));
            Ok(())
        })
        .await
    })
    .await
}

pub(super) async fn get_member_attributes(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    begin(task, id, Touch::READ_ALL).await?;
    get(task, id).await?;
    task.resume().await?;
    set(task, id).await?;
    task.progress.done(function::COMMAND);
    Ok(())
}

pub(super) async fn set_member_attributes(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    begin(task, id, Touch::WRITE_ALL).await?;
    set(task, id).await?;
    get(task, id).await?;
    task.progress.done(function::COMMAND);
    Ok(())
}

async fn begin(task: &mut Task<'_>, id: Id, touch: Touch) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate(id, touch).await?;
    task.unit.collection(id)?;
    task.progress.begin(function::COMMAND);
    Ok(())
}

/// Puts the attributes of all members that the command asks for, as a list of many objects.
async fn get(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    let wanted = match std::mem::take(&mut task.parameters.get) {
        Request::Nothing => return Ok(()),
        // No page of one object can hold what many have.
        Request::Page(_) => return Err(Failure::cdb_bit(11, 5)),
        Request::List(wanted) => wanted,
    };
    get_of_many(task, id.partition, Walk::new(List::Members(id), 0), u64::MAX, &wanted).await
}

/// Puts the `wanted` attributes of the objects that `walk` finds in a partition, up to the id
/// `last`, as a list of many objects.
pub(super) async fn get_of_many(
    task: &mut Task<'_>,
    partition: u64,
    walk: Walk,
    last: u64,
    wanted: &[AttributeId],
) -> Result<(), Failure> {
    task.progress.begin(function::GET_ATTRIBUTES);
    task.put_list(Many { partition, walk, last, wanted, ids: VecDeque::new(), looked: 0 }).await?;
    task.progress.done(function::GET_ATTRIBUTES);
    Ok(())
}

#[derive(Clone)]
struct Many<'w> {
    partition: u64,
    walk: Walk,
    /// The last id that is one of them.
    last: u64,
    wanted: &'w [AttributeId],
    ids: VecDeque<u64>,
    /// Values that were looked up since others had their turn.
    looked: usize,
}

impl Entries for Many<'_> {
    const MANY: bool = true;

    async fn next(&mut self, task: &mut Task<'_>, out: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            let Some(object) = self.ids.pop_front() else {
                let mut ids = Vec::new();
                self.walk.next(&*task.unit.store, BATCH, &mut ids)?;
                ids.retain(|object| *object <= self.last);
                if ids.is_empty() {
                    return Ok(false);
                }
                self.ids = ids.into();
                task.transfer.pause().await?;
                continue;
            };
            let id = Id::new(self.partition, object);
            // One that has gone meanwhile is none of them any more.
            let Ok(subject) = task.unit.subject(id) else { continue };
            let entries = task.entries_of(&subject, self.wanted, &mut self.looked).await?;
            // It cannot be too long: it was made for the field.
            let _ = write_of_many(out, task.version(), object, subject.object_type(), &entries);
            let accessed = TimesUpdate { attributes_accessed: Some(task.now), ..TimesUpdate::default() };
            task.touch(id, accessed)?;
            return Ok(true);
        }
    }
}

/// Sets what the command sets of all members.
async fn set(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    if task.parameters.set.is_empty() {
        return Ok(());
    }
    task.progress.begin(function::SET_ATTRIBUTES);
    if task.joins() {
        task.quota_turn(id.partition).await?;
    }
    let settings = std::mem::take(&mut task.parameters.set);
    let result = each_member(task, id, |task, object, change| {
        let mut effects = Effects::default();
        task.unit.modify(object, ObjectType::User, &settings, change, &mut effects)?;
        let times = TimesUpdate { attributes_modified: Some(task.now), ..TimesUpdate::default() };
        task.set_times(object, times, change)
    })
    .await;
    task.parameters.set = settings;
    result?;
    task.progress.done(function::SET_ATTRIBUTES);
    Ok(())
}

/// Applies the steps that `steps` makes for each member, in pieces, and keeps the Command Tracking
/// page.
async fn each_member(
    task: &mut Task<'_>,
    id: Id,
    mut steps: impl FnMut(&Task<'_>, Id, &mut Change) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let info = task.unit.collection(id)?;
    let mut tracking = Tracking::new(id, &info, action(task), info.members);
    let mut begun = Change::new();
    tracking.begin(&mut begun);
    apply(task, begun).await?;
    let result = pieces(task, id, &mut tracking, &mut steps).await;
    let mut ended = Change::new();
    tracking.end_with(&mut ended, &result);
    apply(task, ended).await?;
    result?;
    if task.commit() == Commit::Durable {
        task.sync(Scope::Partition(id.partition)).await?;
    }
    Ok(())
}

async fn pieces(
    task: &mut Task<'_>,
    id: Id,
    tracking: &mut Tracking,
    steps: &mut impl FnMut(&Task<'_>, Id, &mut Change) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let unit = task.unit;
    let mut walk = Walk::new(List::Members(id), 0);
    let mut members = Vec::new();
    loop {
        walk.next(&*unit.store, BATCH, &mut members)?;
        if members.is_empty() {
            return Ok(());
        }
        let mut from = 0;
        while from < members.len() {
            let mut change = Change::new();
            let mut to = from;
            let before = *tracking;
            while to < members.len() && change.steps.len() < STEPS {
                let object = Id::new(id.partition, members[to]);
                let len = change.steps.len();
                match steps(task, object, &mut change) {
                    Ok(()) => tracking.processed += 1,
                    Err(failure) => {
                        // Changes of earlier members stay.
                        change.steps.truncate(len);
                        tracking.progress(&mut change);
                        apply(task, change).await?;
                        return Err(failure);
                    }
                }
                to += 1;
            }
            tracking.progress(&mut change);
            match unit.apply(change, Commit::Relaxed).await {
                Ok(applied) => {
                    task.current.used_change = task.current.used_change.saturating_add(applied.used_change);
                }
                Err(Error::NotFound(_)) => {
                    // One has gone since it was listed: one by one, and without it.
                    *tracking = before;
                    for &object in &members[from..to] {
                        alone(task, Id::new(id.partition, object), tracking, steps).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
            from = to;
            task.transfer.pause().await?;
        }
    }
}

async fn alone(
    task: &mut Task<'_>,
    object: Id,
    tracking: &mut Tracking,
    steps: &mut impl FnMut(&Task<'_>, Id, &mut Change) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if task.unit.store.object(object).is_err() {
        tracking.missing += 1;
        return Ok(());
    }
    let mut change = Change::new();
    steps(task, object, &mut change)?;
    let mut after = *tracking;
    after.processed += 1;
    after.progress(&mut change);
    match task.unit.apply(change, Commit::Relaxed).await {
        Ok(applied) => {
            task.current.used_change = task.current.used_change.saturating_add(applied.used_change);
            *tracking = after;
        }
        Err(Error::NotFound(_)) => tracking.missing += 1,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Applies a change that is no longer there to be made durable by itself.
async fn apply(task: &Task<'_>, change: Change) -> Result<(), Failure> {
    if !change.is_empty() {
        task.unit.apply(change, Commit::Relaxed).await?;
    }
    Ok(())
}
