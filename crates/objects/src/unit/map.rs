//! READ MAP: which parts of a user object were written and which are holes. READ MAPS AND COMPARE: where an object may differ
//! from its namesake in another partition, most of all from what a snapshot kept of it.
//!
//! A comparison's descriptors say what the object itself has in a range that differs: written data, or a hole (which what
//! lies behind its end counts as). Damage is not known before it is read: descriptors of damaged parts are never sent, and
//! asking for them alone gives an empty map.
//!
//! What has no room in Data-In is counted, not kept; a part of more than 32 bits takes several descriptors.

use osd::data::{MAP_DESCRIPTOR_LEN, MAP_HEADER_LEN, MapDescriptor, MapType, map_header};
use osd::sense::function;
use osd::{Id, ObjectType};

use super::failure::{Failure, field};
use super::limits::MAX_RETRIEVED;
use super::subject::at;
use super::task::{Task, Touch};
use crate::store::{Change, Difference, Extent};

/// Extents or differences that are looked up at a time.
const BATCH: usize = 512;

/// REQUESTED MAP TYPE.
const TYPE_FIELD: u16 = 48;
/// PARTITION_ID of the one to compare with.
const OTHER_FIELD: u16 = 40;

/// The longest part that one descriptor tells of: the most whole blocks of 4096 bytes.
const MAX_PART: u64 = 0xFFFF_F000;

/// A map as it is made.
struct Map {
    wanted: Option<MapType>,
    out: Vec<u8>,
    /// Bytes that there is room for.
    room: usize,
    count: u64,
    /// The part that has been seen last: its neighbour may go on with it.
    last: Option<(MapType, u64, u64)>,
}

impl Map {
    fn new(task: &Task<'_>, map_type: u16, allocation: u64) -> Result<Self, Failure> {
        let wanted = match map_type {
            0 => None,
            code => Some(MapType::from_code(code).ok_or_else(|| Failure::cdb(TYPE_FIELD))?),
        };
        let room = allocation.min(task.transfer.room()).min(MAX_RETRIEVED);
        let room = usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(MAP_HEADER_LEN);
        Ok(Self { wanted, out: Vec::new(), room, count: 0, last: None })
    }

    /// Adds a part.
    fn push(&mut self, kind: MapType, at: u64, len: u64) {
        if len == 0 || self.wanted.is_some_and(|wanted| wanted != kind) {
            return;
        }
        match &mut self.last {
            Some((last, start, end)) if *last == kind && *start + *end == at => *end += len,
            _ => {
                self.flush();
                self.last = Some((kind, at, len));
            }
        }
    }

    /// Writes the last part.
    fn flush(&mut self) {
        let Some((kind, mut offset, mut len)) = self.last.take() else { return };
        self.count = self.count.saturating_add(len.div_ceil(MAX_PART));
        while len > 0 && self.out.len() < self.room {
            let part = len.min(MAX_PART);
            self.out.extend(MapDescriptor { kind, offset, len: part as u32 }.encode()); // at most MAX_PART
            offset += part;
            len -= part;
        }
        // Whole ones only.
        self.out.truncate(self.room / MAP_DESCRIPTOR_LEN * MAP_DESCRIPTOR_LEN);
    }

    fn put(mut self, task: &mut Task<'_>, allocation: u64) {
        self.flush();
        let mut reply = map_header(self.count).to_vec();
        reply.append(&mut self.out);
        reply.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
        task.transfer.put(reply.into());
    }
}

/// READ MAP.
pub(super) async fn read_map(
    task: &mut Task<'_>,
    id: Id,
    allocation: u64,
    start: u64,
    map_type: u16,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate(id, Touch::Read { start, end: u64::MAX }).await?;
    let info = task.unit.user_object(id)?;
    if start > info.length {
        return Err(Failure::cdb(task.start_field()));
    }
    let mut map = Map::new(task, map_type, allocation)?;
    set(task, id).await?;
    task.progress.begin(function::COMMAND);
    let unit = task.unit;
    let mut extents = Vec::new();
    let mut from = start;
    loop {
        extents.clear();
        let more = unit.store.extents(at(id), from, u64::MAX - from, BATCH, &mut extents)?;
        for &Extent { at, len, data } in &extents {
            map.push(if data { MapType::Written } else { MapType::Hole }, at, len);
        }
        match extents.last() {
            Some(last) if more && last.len > 0 => from = last.at.saturating_add(last.len),
            _ => break,
        }
        task.transfer.pause().await?;
    }
    map.put(task, allocation);
    task.progress.done(function::COMMAND);
    // What it gets is the same before the map was read, which changes nothing; in Data-In it comes behind.
    task.get(id).await
}

/// Sets what the command sets.
async fn set(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    task.quota_turn(id.partition).await?;
    task.apply_with_attributes(id, ObjectType::User, Change::new()).await?;
    Ok(())
}

/// READ MAPS AND COMPARE.
pub(super) async fn compare(
    task: &mut Task<'_>,
    id: Id,
    allocation: u64,
    other: u64,
    map_type: u16,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    let with = Id::new(other, id.object);
    // In ascending order, so that two that compare the same cannot wait for each other.
    for id in if with < id { [with, id] } else { [id, with] } {
        task.isolate(id, Touch::Read { start: 0, end: u64::MAX }).await?;
        if with == id {
            break;
        }
    }
    task.unit.user_object(id)?;
    if task.unit.store.partition(other).is_err() {
        return Err(Failure::cdb(OTHER_FIELD));
    }
    task.unit.user_object(with).map_err(|_| Failure::cdb(field::OBJECT))?;
    let mut map = Map::new(task, map_type, allocation)?;
    set(task, id).await?;
    task.progress.begin(function::COMMAND);
    let unit = task.unit;
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        found.clear();
        let more = unit.store.differences([at(id), at(with)], from, u64::MAX - from, BATCH, &mut found)?;
        for &difference in &found {
            describe(task, id, difference, &mut map).await?;
        }
        match found.last() {
            Some(last) if more && last.len > 0 => from = last.at.saturating_add(last.len),
            _ => break,
        }
        task.transfer.pause().await?;
    }
    map.put(task, allocation);
    task.progress.done(function::COMMAND);
    task.get(id).await
}

/// Adds what the object at `id` has where it differs.
async fn describe(
    task: &mut Task<'_>,
    id: Id,
    Difference { at: start, len }: Difference,
    map: &mut Map,
) -> Result<(), Failure> {
    let end = start.saturating_add(len);
    let mut from = start;
    let mut extents = Vec::new();
    while from < end {
        extents.clear();
        let more = task.unit.store.extents(at(id), from, end - from, BATCH, &mut extents)?;
        for &Extent { at, len, data } in &extents {
            map.push(if data { MapType::Written } else { MapType::Hole }, at, len);
        }
        if let Some(last) = extents.last() {
            from = last.at.saturating_add(last.len);
        }
        if !more {
            break;
        }
        task.transfer.pause().await?;
    }
    // Behind its end.
    map.push(MapType::Hole, from, end.saturating_sub(from));
    Ok(())
}
