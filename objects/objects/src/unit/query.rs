//! QUERY: finds user objects of a partition or members of a collection whose attributes are in
//! given ranges. Matches are listed in Data-In, and put into a collection if one is named. Owns the
//! search; `osd::continuation` defines the criteria.
//!
//! A search looks at [`BATCH`] objects and lets others have their turn. It keeps the ids that there
//! is room for, packed and in [`MAX_PACKED`](super::limits::MAX_PACKED) bytes at most, counts the
//! rest, and knows nothing of the objects that it has passed. With IMMED_TR it goes on when the
//! command has ended: the Command Tracking page of the matches' collection shows its progress. At
//! most [`MAX_SEARCHES`] do so at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use osd::attributes::{AttributeId, PageKind};
use osd::continuation::{Descriptor, Query};
use osd::data::{QUERY_HEADER_LEN, query_header};
use osd::{Id, ObjectType};

use super::OsdUnit;
use super::attributes::Memberships;
use super::collections::{UNNAMED, action};
use super::failure::Failure;
use super::limits::MAX_COLLECTIONS;
use super::locks::Guard;
use super::reply::{Packed, Pieces};
use super::scan::{BATCH, Walk, descriptor};
use super::subject::{Info, Subject};
use super::task::{Current, Task, Touch};
use super::tracking::Tracking;
use crate::store::{Change, CollectionType, Commit, Error, Kind, List, Step, TimesUpdate};

const MATCHES_FIELD: u16 = 40;

/// Searches of a unit that may go on when their commands have ended; a further one is waited for.
const MAX_SEARCHES: usize = 16;

/// Values that are compared in a step, about.
const COMPARED: usize = 4096;

/// Memberships that are looked up at a time.
const MEMBERSHIPS: usize = 64;

#[derive(Default)]
pub(super) struct Searches(Arc<AtomicUsize>);

/// A place among the searches that go on.
struct Place(Arc<AtomicUsize>);

impl Searches {
    fn enter(&self) -> Option<Place> {
        let enter = |count| (count < MAX_SEARCHES).then_some(count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).ok()?;
        Some(Place(self.0.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Search {
    unit: Arc<OsdUnit>,
    partition: u64,
    walk: Walk,
    query: Query,
    /// The collection that matches are put into, and whether they name it.
    matches: Option<(Id, CollectionType)>,
    /// When that was created: once the command has ended, another may get its id.
    created: u64,
    /// Collections that an object may name.
    most: u64,
    tracking: Tracking,
    /// Matches that there is room for: of each how far it is behind the one before.
    found: Packed,
    last: u64,
    /// Most matches that fit.
    room: u64,
    count: u64,
    batch: Vec<u64>,
    value: Vec<u8>,
}

impl Search {
    /// Keeps others from having objects name collections during the next step, where matches are to
    /// and a quota counts them.
    async fn turn<'u>(&self, unit: &'u OsdUnit) -> Result<Option<Guard<'u>>, Failure> {
        match self.matches {
            Some((_, kind)) if kind != CollectionType::TRACKING => {
                unit.quota_turn(self.partition, true).await
            }
            _ => Ok(None),
        }
    }

    /// Looks at the next objects, with the [turn](Self::turn) that this takes. Whether there may be
    /// more.
    async fn step(&mut self) -> Result<bool, Failure> {
        let unit = self.unit.clone();
        // Many criteria make a step of fewer objects.
        let limit = BATCH.min(COMPARED / self.query.criteria.len().max(1)).max(1);
        self.walk.next(&*unit.store, limit, &mut self.batch)?;
        if self.batch.is_empty() {
            return Ok(false);
        }
        let mut batch = std::mem::take(&mut self.batch);
        let looked_at = batch.len() as u64;
        let mut missing = 0;
        let mut failure = None;
        batch.retain(|object| match self.is_match(Id::new(self.partition, *object)) {
            Ok(matches) => matches,
            // Gone since it was listed: it matches nothing.
            Err(Error::NotFound(_)) => {
                missing += 1;
                false
            }
            Err(error) => {
                failure.get_or_insert(error);
                false
            }
        });
        if let Some(error) = failure {
            return Err(error.into());
        }
        self.tracking.missing += missing;
        self.tracking.processed += looked_at - missing;
        self.most = unit.policy(self.partition)?.collections.min(MAX_COLLECTIONS).into();
        match self.join_all(&batch).await {
            Err(Error::NotFound(_)) => {
                // One has gone since it was looked at: one by one, and without it.
                let mut joined = Vec::new();
                for &object in &batch {
                    match self.join_all(&[object]).await {
                        Ok(()) => joined.push(object),
                        Err(Error::NotFound(_)) if self.unit.is_gone(Id::new(self.partition, object)) => {
                            self.tracking.missing += 1;
                            self.tracking.processed -= 1;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                batch = joined;
            }
            result => result?,
        }
        for object in &batch {
            if self.count < self.room && self.found.push([object - self.last]) {
                self.last = *object;
            }
            self.count += 1;
        }
        self.batch = batch;
        Ok(true)
    }

    /// Puts the matches, at most `room` bytes.
    async fn put(&self, task: &mut Task<'_>, room: u64) -> Result<(), Failure> {
        let mut reply = Pieces::new(room);
        reply.write(task, &query_header(self.count)).await?;
        let mut id = 0;
        for behind in self.found.iter() {
            id += behind;
            reply.write(task, &u64::to_be_bytes(id)).await?;
        }
        reply.put(task);
        Ok(())
    }

    /// Puts objects into the matches' collection, and tells how far the search is.
    async fn join_all(&self, objects: &[u64]) -> Result<(), Error> {
        let mut change = Change::new();
        for &object in objects {
            self.join(Id::new(self.partition, object), &mut change)?;
        }
        self.tracking.progress(&mut change);
        self.apply(change).await
    }

    async fn end(&self, result: &Result<(), Failure>) -> Result<(), Error> {
        let mut ended = Change::new();
        self.tracking.end_with(&mut ended, result);
        self.apply(ended).await
    }

    async fn apply(&self, mut change: Change) -> Result<(), Error> {
        if let Some((id, _)) = self.matches.filter(|_| !change.is_empty()) {
            change.steps.insert(0, Step::Expect { id, created: self.created });
            self.unit.apply(change, Commit::Relaxed).await?;
        }
        Ok(())
    }

    fn is_match(&mut self, id: Id) -> Result<bool, Error> {
        let Self { unit, query, value, .. } = self;
        let mut memberships = None;
        // An object without any criterion to fail matches all of none, and none of none.
        for criterion in &query.criteria {
            value.clear();
            let defined = worth(unit, id, criterion.attribute, &mut memberships, value)?;
            if criterion.matches(defined.then_some(value.as_slice())) != query.all {
                return Ok(!query.all);
            }
        }
        Ok(query.all)
    }

    /// Adds to `change` that `id` becomes a member of the matches' collection.
    fn join(&self, id: Id, change: &mut Change) -> Result<(), Error> {
        let Some((collection, kind)) = self.matches else { return Ok(()) };
        let store = &self.unit.store;
        if store.membership(collection, id.object)?.is_some() {
            return Ok(());
        }
        let number = if kind == CollectionType::TRACKING { UNNAMED } else { self.free_number(id)? };
        change.push(Step::Join { object: id, collection: collection.object, number });
        Ok(())
    }

    /// The least number of the Collections page by which `object` names no collection, if it may
    /// name one more.
    fn free_number(&self, object: Id) -> Result<u32, Error> {
        let mut taken = Vec::new();
        let (mut from, mut found) = (0, Vec::new());
        loop {
            found.clear();
            let more = self.unit.store.memberships(object, from, MEMBERSHIPS, &mut found)?;
            taken.extend(found.iter().map(|membership| membership.number));
            match found.last() {
                Some(last) if more => from = last.collection.saturating_add(1),
                _ => break,
            }
        }
        taken.retain(|number| *number != UNNAMED);
        if taken.len() as u64 >= self.most {
            // A quota like any other.
            return Err(Error::NoSpace);
        }
        taken.sort_unstable();
        let mut number = osd::attributes::numbers::collections::FIRST;
        for taken in taken {
            if taken == number {
                number += 1; // there are fewer collections than numbers
            }
        }
        Ok(number)
    }
}

/// Appends the value of an attribute of a user object.
fn worth(
    unit: &OsdUnit,
    id: Id,
    attribute: AttributeId,
    memberships: &mut Option<Memberships>,
    value: &mut Vec<u8>,
) -> Result<bool, Error> {
    if attribute.page.is_free() && attribute.number != 0 {
        // Clients search for attributes that they defined; the store keeps those.
        let suits = attribute.page.suits(ObjectType::User);
        return if suits {
            unit.store.attribute(id, attribute.page.0, attribute.number, value)
        } else {
            Ok(false)
        };
    }
    if attribute.page.kind() == PageKind::CurrentCommand {
        return Ok(false);
    }
    let info = unit.store.object(id)?;
    let subject = Subject { id, info: Info::Object(info) };
    if Memberships::has(&subject, attribute) {
        // All of them are looked up once, however many criteria are about them.
        if memberships.is_none() {
            *memberships = Some(unit.memberships_by_number(&subject).unwrap_or_default());
        }
        return Ok(memberships.as_ref().is_some_and(|by_number| by_number.value(attribute.number, value)));
    }
    // An attribute without a value is undefined.
    Ok(unit.value(&subject, &Current::default(), attribute, value).unwrap_or(false))
}

pub(super) async fn query(
    task: &mut Task<'_>,
    id: Id,
    immediate: bool,
    allocation: u64,
    matches: u64,
) -> Result<(), Failure> {
    let unit = task.unit;
    let query = descriptor(task, |descriptor| match descriptor {
        Descriptor::Query(query) => Some(query.clone()),
        _ => None,
    })?;
    task.take_parameters().await?;
    task.isolate(id, Touch::READ_ALL).await?;
    let (what, total) = if id.object == 0 {
        (List::Users(id.partition), unit.store.partition(id.partition)?.objects)
    } else {
        (List::Members(id), unit.collection(id)?.members)
    };
    let mut tracking = Tracking::none();
    let mut created = 0;
    let matches = match matches {
        0 if immediate => return Err(Failure::cdb_bit(11, 7)),
        0 => None,
        matches if matches == id.object => return Err(Failure::cdb(MATCHES_FIELD)),
        matches => {
            let collection = Id::new(id.partition, matches);
            let info = unit.collection(collection).map_err(|_| Failure::cdb(MATCHES_FIELD))?;
            tracking = Tracking::new(collection, &info, action(task), total);
            created = info.times.created;
            match info.kind {
                Kind::Collection(kind) if kind != CollectionType::SPONTANEOUS => Some((collection, kind)),
                _ => return Err(Failure::cdb(MATCHES_FIELD)),
            }
        }
    };
    task.observe(id, async |task| {
        let room = allocation.min(task.transfer.room());
        let mut search = Search {
            unit: unit.clone(),
            partition: id.partition,
            walk: Walk::new(what, 0),
            query,
            matches,
            created,
            most: u64::MAX,
            tracking,
            found: Packed::default(),
            last: 0,
            room: room.saturating_sub(QUERY_HEADER_LEN as u64) / 8,
            count: 0,
            batch: Vec::new(),
            value: Vec::new(),
        };
        let mut begun = Change::new();
        search.tracking.begin(&mut begun);
        task.apply(begun).await?;
        let goes_on = if immediate && runtime::is_running() { unit.searches.enter() } else { None };
        match goes_on {
            Some(place) => go_on(search, place),
            None => {
                let result = run(task, &mut search).await;
                let ended = search.end(&result).await;
                result?;
                ended?;
                if task.commit() == Commit::Durable && search.matches.is_some() {
                    task.sync(crate::store::Scope::Partition(id.partition)).await?;
                }
                search.put(task, room).await?;
            }
        }
        let accessed = TimesUpdate { data_accessed: Some(task.now), ..TimesUpdate::default() };
        task.touch(id, accessed)
    })
    .await
}

async fn run(task: &mut Task<'_>, search: &mut Search) -> Result<(), Failure> {
    let unit = search.unit.clone();
    loop {
        // A waiting command can be aborted.
        let turn = task.transfer.unless_lost(search.turn(&unit)).await??;
        if !search.step().await? {
            return Ok(());
        }
        drop(turn);
        task.transfer.pause().await?;
    }
}

fn go_on(mut search: Search, place: Place) {
    // Its handle is let go: it ends by itself, or with the core.
    drop(runtime::spawn(async move {
        let unit = search.unit.clone();
        let result = loop {
            let step = match search.turn(&unit).await {
                Ok(_turn) => search.step().await,
                Err(failure) => Err(failure),
            };
            match step {
                Ok(true) => runtime::yield_now().await,
                Ok(false) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        // The collection may be gone, and with it the page that would tell.
        let _ = search.end(&result).await;
        drop(place);
    }));
}
