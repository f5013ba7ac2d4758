//! LIST and LIST COLLECTION: ids in ascending order, alone or with attributes, as many as there is
//! room for, and where to go on. Owns the list identifiers. A continued list keeps no state in the
//! unit: its identifier holds the number of its partition's changes when it was begun. So later
//! pieces can tell whether there were more (LSTCHG).
//!
//! ADDITIONAL LENGTH is that of the whole list if that is known without reading it: from its first
//! id, or when the rest has been read. Otherwise it is a lower bound that is greater than the bytes
//! sent.

use std::sync::atomic::{AtomicU32, Ordering};

use osd::Id;
use osd::attributes::list::{OBJECT_HEADER_LEN, write_object};
use osd::cdb::{List as ListCommand, ListCollection};
use osd::data::{LIST_HEADER_LEN, ListHeader, Listed};
use smallvec::SmallVec;

use super::OsdUnit;
use super::attributes::Request;
use super::failure::Failure;
use super::reply::Pieces;
use super::scan::{BATCH, Walk};
use super::subject::{Info, Subject};
use super::task::{Task, Touch};
use crate::store::{Change, FIRST_ID, List, Step, TimesUpdate};

/// The longest reply, in bytes: the rest of a longer one is left for the next piece.
const MAX_REPLY: u64 = 1 << 20;

/// Ids behind those sent that are counted for ADDITIONAL LENGTH: few, because most clients that ask
/// for a piece of a list request the next one anyway.
const COUNTED: usize = 256;

const COUNTERS: usize = 256;

/// Counts of the changes of partitions' lists since the unit was made.
pub(super) struct Lists {
    counters: Box<[AtomicU32]>,
}

impl Lists {
    /// Counts from a number that `seed` makes, so that identifiers of a unit that was made before
    /// are not taken for those of this one.
    pub fn new(seed: u64) -> Self {
        let first = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        Self { counters: (0..COUNTERS).map(|_| AtomicU32::new(first)).collect() }
    }

    fn counter(&self, partition: u64) -> &AtomicU32 {
        let mixed = partition.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
        &self.counters[mixed as usize % COUNTERS]
    }

    /// The identifier of a list of `partition` (0: of the partitions) that begins now; never 0.
    fn id(&self, partition: u64) -> u32 {
        self.counter(partition).load(Ordering::Acquire).max(1)
    }

    /// Lists that a change touches: partitions, 0 for the list of them; `None` for all lists.
    pub fn touched(change: &Change) -> Option<SmallVec<[u64; 2]>> {
        let mut touched: SmallVec<[u64; 2]> = SmallVec::new();
        let mut note = |partition| {
            // The steps of a large change are of one partition.
            if touched.last() != Some(&partition) {
                touched.push(partition);
            }
        };
        for step in &change.steps {
            match step {
                Step::CreateUser(id)
                | Step::CreateCollection(id, _)
                | Step::RemoveUser(id)
                | Step::RemoveCollection { id, .. }
                | Step::Copy { to: id, .. }
                | Step::Join { object: id, .. }
                | Step::Leave { object: id, .. } => note(id.partition),
                Step::CreatePartition(id)
                | Step::RemovePartition { id, .. }
                | Step::Duplicate { id, .. }
                | Step::Refresh { id, .. } => {
                    note(0);
                    note(*id);
                }
                Step::Format | Step::Restore { .. } => return None,
                Step::Write { .. }
                | Step::Append { .. }
                | Step::Punch { .. }
                | Step::Clear { .. }
                | Step::SetLength { .. }
                | Step::SetAttribute { .. }
                | Step::Expect { .. }
                | Step::SetTimes { .. }
                | Step::Detach { .. } => {}
            }
        }
        Some(touched)
    }

    /// Takes note that what [`Self::touched`] says has been done.
    pub fn note(&self, touched: &Option<SmallVec<[u64; 2]>>) {
        let bump = |counter: &AtomicU32| {
            counter.fetch_add(1, Ordering::Release);
        };
        match touched {
            Some(partitions) => partitions.iter().for_each(|&partition| bump(self.counter(partition))),
            None => self.counters.iter().for_each(bump),
        }
    }
}

struct Asked {
    /// The requested list, and the object that the command is about.
    what: List,
    listed: Listed,
    subject: Subject,
    allocation: u64,
    initial: u64,
    list_id: u32,
    attributes: bool,
    total: u64,
}

impl Asked {
    /// The initiator may have taken its time to send the command's data: looks up the list as it is
    /// now.
    fn look_again(&mut self, unit: &OsdUnit) -> Result<(), Failure> {
        self.subject = match (self.what, self.subject.id) {
            (List::Members(_), id) => Subject { id, info: Info::Object(unit.collection(id)?) },
            (_, id) => unit.subject(id)?,
        };
        self.total = match (self.what, &self.subject.info) {
            (List::Members(_), Info::Object(collection)) => collection.members,
            (List::Collections(_), Info::Partition(partition)) => partition.collections,
            (_, Info::Partition(partition)) => partition.objects,
            _ => unit.store.root().partitions,
        };
        Ok(())
    }
}

pub(super) async fn list(task: &mut Task<'_>, list: &ListCommand) -> Result<(), Failure> {
    if list.sort != 0 {
        return Err(Failure::cdb_bit(11, 3));
    }
    let subject = task.unit.subject(Id::partition(list.partition))?;
    let (what, listed, total) = match &subject.info {
        Info::Partition(info) => (List::Users(list.partition), Listed::UserObjects, info.objects),
        _ => (List::Partitions, Listed::Partitions, task.unit.store.root().partitions),
    };
    let ListCommand { allocation, initial, list_id, attributes, .. } = *list;
    run(task, Asked { what, listed, subject, allocation, initial, list_id, attributes, total }).await
}

pub(super) async fn list_collection(task: &mut Task<'_>, list: &ListCollection) -> Result<(), Failure> {
    let id = list.id;
    let (what, listed, subject, total) = if id.object == 0 {
        let partition = task.unit.store.partition(id.partition)?;
        let subject = Subject { id, info: Info::Partition(partition) };
        (List::Collections(id.partition), Listed::Collections, subject, partition.collections)
    } else {
        let collection = task.unit.collection(id)?;
        let subject = Subject { id, info: Info::Object(collection) };
        (List::Members(id), Listed::UserObjects, subject, collection.members)
    };
    let ListCollection { allocation, initial, list_id, attributes, .. } = *list;
    run(task, Asked { what, listed, subject, allocation, initial, list_id, attributes, total }).await
}

struct Piece {
    /// Behind the header.
    body: Vec<u8>,
    /// Id to go on with; 0 at the end.
    continuation: u64,
    /// Bytes behind the header if all of it fitted.
    whole: u64,
}

async fn run(task: &mut Task<'_>, mut asked: Asked) -> Result<(), Failure> {
    let id = asked.subject.id;
    // With LIST_ATTR the list takes the attributes to get.
    task.inspect(id, Touch::READ_ALL, async |task| {
        asked.look_again(task.unit)?;
        let now_id = task.unit.lists.id(id.partition);
        let room = asked.allocation.min(task.transfer.room()).min(MAX_REPLY);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let piece = if asked.attributes {
            with_attributes(task, &asked, room).await?
        } else {
            ids_alone(task, &asked, room).await?
        };
        let going_on = piece.continuation != 0;
        let header = ListHeader {
            additional_len: piece.whole.saturating_add(LIST_HEADER_LEN as u64 - 8),
            continuation: piece.continuation,
            list_id: match asked.list_id {
                _ if !going_on => 0,
                0 => now_id,
                begun => begun,
            },
            changed: asked.list_id != 0 && asked.list_id != now_id,
            listed: asked.listed,
            attributes: asked.attributes,
        };
        let mut reply = Pieces::new(room as u64);
        reply.write(task, &header.encode(task.version())).await?;
        reply.write(task, &piece.body).await?;
        reply.put(task);
        let accessed = TimesUpdate { data_accessed: Some(task.now), ..TimesUpdate::default() };
        task.touch(id, accessed)
    })
    .await
}

async fn ids_alone(task: &mut Task<'_>, asked: &Asked, room: usize) -> Result<Piece, Failure> {
    let fit = room.saturating_sub(LIST_HEADER_LEN) / 8;
    let unit = task.unit;
    let mut walk = Walk::new(asked.what, asked.initial);
    let mut body = Vec::new();
    let (mut batch, mut seen, mut continuation) = (Vec::new(), 0usize, 0);
    let mut complete = true;
    loop {
        let limit = (fit + COUNTED).saturating_sub(seen).min(4 * BATCH);
        if limit == 0 {
            complete = false;
            break;
        }
        walk.next(&*unit.store, limit, &mut batch)?;
        if batch.is_empty() {
            break;
        }
        for id in &batch {
            if seen < fit {
                body.extend(id.to_be_bytes());
            } else if continuation == 0 {
                continuation = *id;
            }
            seen += 1;
        }
        // The rest need not be counted if the total is known.
        if continuation != 0 && asked.initial <= FIRST_ID {
            break;
        }
        task.transfer.pause().await?;
    }
    let seen = seen as u64;
    let whole = match continuation {
        0 => seen,
        _ if asked.initial <= FIRST_ID => asked.total.max(seen),
        _ if complete => seen,
        _ => seen + 1,
    };
    Ok(Piece { body, continuation, whole: whole.saturating_mul(8) })
}

async fn with_attributes(task: &mut Task<'_>, asked: &Asked, room: usize) -> Result<Piece, Failure> {
    // OSD-1 has no such lists, and a page of each object has no place in one.
    let wanted = match std::mem::take(&mut task.parameters.get) {
        Request::List(wanted) => wanted,
        Request::Nothing => Vec::new(),
        Request::Page(_) => return Err(Failure::cdb_bit(11, 5)),
    };
    let space = room.saturating_sub(LIST_HEADER_LEN);
    let unit = task.unit;
    let mut walk = Walk::new(asked.what, asked.initial);
    let mut body = Vec::new();
    let mut batch = Vec::new();
    let mut looked = 0;
    loop {
        walk.next(&*unit.store, BATCH, &mut batch)?;
        if batch.is_empty() {
            return Ok(Piece { whole: body.len() as u64, body, continuation: 0 });
        }
        for &id in &batch {
            let named = match asked.listed {
                Listed::Partitions => Id::partition(id),
                Listed::Collections | Listed::UserObjects => Id::new(asked.subject.id.partition, id),
            };
            // One that has gone meanwhile is not listed.
            let Ok(subject) = unit.subject(named) else { continue };
            let shown = if unit.shows(task, named.partition)? { wanted.as_slice() } else { &[] };
            let entries = task.entries_of(&subject, shown, &mut looked).await?;
            let end = body.len() + OBJECT_HEADER_LEN + entries.len();
            if end > space {
                return Ok(Piece { body, continuation: id, whole: end as u64 });
            }
            // It cannot be too long: it was made for the field.
            let _ = write_object(&mut body, id, subject.object_type(), &entries);
        }
        task.transfer.pause().await?;
    }
}
