//! READ MAP: the parts of a user object that were written, and its holes. READ MAPS AND COMPARE:
//! the parts in which an object may differ from its namesake in another partition, most of all from
//! a snapshot's copy.
//!
//! A comparison's descriptors describe the object itself in a range that differs: written data, or
//! a hole (also behind its end). Damage is not known before it is read: descriptors of damaged
//! parts are never sent, and asking for them alone gives an empty map.
//!
//! The beginning of a map holds the number of its descriptors, so all of them are looked up before
//! the first is put, and kept packed meanwhile. So the map is of one time however slowly it is
//! taken. Descriptors without room in Data-In, or beyond [`MAX_PACKED`](super::limits::MAX_PACKED)
//! bytes, are counted, not kept. A part of more than 32 bits takes several descriptors.

use osd::data::{MAP_DESCRIPTOR_LEN, MAP_HEADER_LEN, MapDescriptor, MapType, map_header};
use osd::sense::function;
use osd::{Id, ObjectType};
use smallvec::{SmallVec, smallvec};

use super::failure::{Failure, field};
use super::reply::{Packed, Pieces};
use super::task::{Task, Touch};
use crate::store::{BLOCK, Change, Difference, Extent};

/// Extents or differences that are looked up at a time.
const BATCH: usize = 512;

const TYPE_FIELD: u16 = 48;
/// PARTITION_ID of the one to compare with.
const OTHER_FIELD: u16 = 40;

/// The longest part of one descriptor: the most whole blocks of 4096 bytes.
const MAX_PART: u64 = 0xFFFF_F000;

struct Map {
    wanted: Option<MapType>,
    /// Of each part how far it is behind the one before, with its type, and its length.
    parts: Packed,
    /// The end of the last of them.
    end: u64,
    room: u64,
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
        let room = allocation.min(task.transfer.room());
        Ok(Self { wanted, parts: Packed::default(), end: 0, room, count: 0, last: None })
    }

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

    const fn fit(&self) -> u64 {
        self.room.saturating_sub(MAP_HEADER_LEN as u64) / MAP_DESCRIPTOR_LEN as u64
    }

    /// Keeps the last part, if there is room for one of its descriptors, and counts them.
    fn flush(&mut self) {
        let Some((kind, offset, len)) = self.last.take() else { return };
        if self.count < self.fit() {
            let hole = u64::from(kind == MapType::Hole);
            self.parts.push([blocks(offset - self.end) << 1 | hole, blocks(len)]);
            self.end = offset + len;
        }
        self.count = self.count.saturating_add(len.div_ceil(MAX_PART));
    }

    async fn put(mut self, task: &mut Task<'_>) -> Result<(), Failure> {
        self.flush();
        let fit = self.fit();
        let mut reply = Pieces::new(self.room);
        reply.write(task, &map_header(self.count)).await?;
        let (mut put, mut offset) = (0, 0);
        let mut numbers = self.parts.iter();
        while let (Some(first), Some(len)) = (numbers.next(), numbers.next()) {
            let kind = if first & 1 == 1 { MapType::Hole } else { MapType::Written };
            offset += bytes(first >> 1);
            let mut len = bytes(len);
            // Whole ones only.
            while len > 0 && put < fit {
                let part = len.min(MAX_PART);
                let descriptor = MapDescriptor { kind, offset, len: part as u32 }; // at most MAX_PART
                reply.write(task, &descriptor.encode()).await?;
                (put, offset, len) = (put + 1, offset + part, len - part);
            }
            offset += len;
        }
        reply.put(task);
        Ok(())
    }
}

/// A length as a number that is small where it is whole blocks.
const fn blocks(bytes: u64) -> u64 {
    if bytes % BLOCK == 0 { (bytes / BLOCK) << 1 } else { bytes << 1 | 1 }
}

/// The length that [`blocks`] made a number of.
const fn bytes(blocks: u64) -> u64 {
    if blocks & 1 == 0 { (blocks >> 1) * BLOCK } else { blocks >> 1 }
}

pub(super) async fn read_map(
    task: &mut Task<'_>,
    id: Id,
    allocation: u64,
    start: u64,
    map_type: u16,
) -> Result<(), Failure> {
    let check = |task: &Task<'_>| match task.unit.user_object(id)?.length {
        length if start > length => Err(Failure::cdb(task.start_field())),
        _ => Map::new(task, map_type, allocation),
    };
    let touches = smallvec![(id, Touch::Read { start, end: u64::MAX })];
    run(task, id, touches, check, async |task, map| {
        describe(task, id, (start, u64::MAX), map).await.map(drop)
    })
    .await
}

pub(super) async fn compare(
    task: &mut Task<'_>,
    id: Id,
    allocation: u64,
    other: u64,
    map_type: u16,
) -> Result<(), Failure> {
    let with = Id::new(other, id.object);
    let unit = task.unit;
    let check = |task: &Task<'_>| {
        unit.user_object(id)?;
        if unit.store.partition(other).is_err() {
            return Err(Failure::cdb(OTHER_FIELD));
        }
        unit.user_object(with).map_err(|_| Failure::cdb(field::OBJECT))?;
        Map::new(task, map_type, allocation)
    };
    let touches = smallvec![(id, Touch::READ_ALL), (with, Touch::READ_ALL)];
    run(task, id, touches, check, async |task, map| {
        let mut found = Vec::new();
        let mut from = 0;
        loop {
            found.clear();
            let more = unit.store.differences([id, with], from, u64::MAX - from, BATCH, &mut found)?;
            for &Difference { at, len } in &found {
                let end = at.saturating_add(len);
                let described = describe(task, id, (at, end), map).await?;
                // Behind its end.
                map.push(MapType::Hole, described, end.saturating_sub(described));
            }
            match found.last() {
                Some(last) if more && last.len > 0 => from = last.at.saturating_add(last.len),
                _ => return Ok(()),
            }
            task.transfer.pause().await?;
        }
    })
    .await
}

/// Both commands: attributes are set before the map is made, which changes nothing, and got behind
/// it in Data-In.
async fn run(
    task: &mut Task<'_>,
    id: Id,
    mut touches: SmallVec<[(Id, Touch); 2]>,
    check: impl FnOnce(&Task<'_>) -> Result<Map, Failure>,
    look: impl AsyncFnOnce(&mut Task<'_>, &mut Map) -> Result<(), Failure>,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate_all(&mut touches).await?;
    let mut map = check(task)?;
    task.quota_turn(id.partition).await?;
    task.apply_with_attributes(id, ObjectType::User, Change::new()).await?;
    task.progress.begin(function::COMMAND);
    look(task, &mut map).await?;
    map.put(task).await?;
    task.progress.done(function::COMMAND);
    task.get(id).await
}

/// Adds the extents of the object at `id` between `from` and `end`. Returns the end of the last.
async fn describe(
    task: &mut Task<'_>,
    id: Id,
    (mut from, end): (u64, u64),
    map: &mut Map,
) -> Result<u64, Failure> {
    let mut extents = Vec::new();
    while from < end {
        extents.clear();
        let more = task.unit.store.extents(id, from, end - from, BATCH, &mut extents)?;
        for &Extent { at, len, data } in &extents {
            map.push(if data { MapType::Written } else { MapType::Hole }, at, len);
        }
        match extents.last() {
            Some(last) if last.len > 0 => from = last.at.saturating_add(last.len),
            _ => break,
        }
        if !more {
            break;
        }
        task.transfer.pause().await?;
    }
    Ok(from)
}
