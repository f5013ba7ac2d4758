//! Opening of a store: the journal is replayed onto the last checkpoint, everything is counted, and
//! free blocks become zeros.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use backing::BlockStore;
use runtime::Chain;

use super::Inner;
use super::database::{Database, LAYOUT, Meta};
use super::directory::{Directory, Partition};
use super::extents::blocks;
use super::journal::{self, Entry, Journal, Log};
use super::layers::{Layer, Layers};
use super::logged::{Logged, Ranges};
use super::open::Parts;
use super::reclaim::Holds;
use super::record::{
    self, CHUNK, COLLECTION, Key, LOST, PARTITION, ROOT, USER, View, decode_chunk, key, numbers,
};
use super::space::{Blocks, Space};
use crate::store::{BLOCK, Error, FIRST_ID, Id};

/// Bytes of the journal that are read at once.
const READ: usize = 1 << 20;
/// Keys that are looked at between two turns of the layers' lock.
pub(super) const SCANNED: usize = 4096;

pub(super) async fn recover(mut parts: Parts) -> Result<Inner, Error> {
    let database = Database::of(&mut parts);
    let (meta, base, _) = database.open()?;
    let layers = Layers::default();
    layers.write().base = Arc::new(base);
    let sector = parts.journal.geometry().block.max(512) as usize;
    let fresh = meta.is_none();
    let meta = match meta {
        Some(meta) => meta,
        None if parts.create => new_meta(&parts)?,
        None => return Err(Error::NotFound(Id::ROOT)),
    };
    if meta.segment * 2 > parts.journal.size() || meta.blocks * BLOCK > parts.arena.size() {
        return Err(Error::Damaged(Id::ROOT));
    }
    let journal = Journal { store: parts.journal.clone(), name: meta.name, segment: meta.segment, sector };
    let replayed = if fresh { Replayed::default() } else { replay(&journal, &meta, &*parts.arena).await? };
    // Frames of this life have other numbers than all earlier lives' frames, even those of a life
    // that left no frame. So frames that a cut has left behind a gap stay invalid.
    let number = (meta.number + replayed.frames + 1) | 0xffff_ffff;
    let meta = Meta { number, side: 0, clean: false, ..meta };
    parts.arena.sync().await?;
    let base = match meta.layout {
        LAYOUT => database.write(&replayed.layer, &meta)?,
        _ => database.write_anew(&replayed.layer, &meta)?,
    };
    layers.write().base = Arc::new(base);

    let counted = count(&layers)?;
    // Of a new store, the arena may be that of an old one.
    let clean = counted.was_clean(&replayed) && replayed.was_clean;
    let space = Space::new(meta.blocks, counted.used);
    if !clean && counted.damaged == 0 {
        // Remains of removed objects there must not reach another object.
        for free in space.free() {
            parts.arena.discard(free.at * BLOCK, free.len * BLOCK).await?;
        }
        parts.arena.sync().await?;
    }
    if counted.damaged > 0 {
        tracing::error!(
            store = parts.health.path(),
            records = counted.damaged,
            "damaged metadata: the store is not changed until `stag osd check --repair` has repaired it"
        );
    }
    let mut dying: Vec<u64> = counted.homes.into_iter().collect();
    if counted.damaged > 0 {
        // They may be those of a partition whose record cannot be read.
        dying.clear();
    }
    dying.retain(|home| !counted.directory.partitions.values().any(|p| p.home == *home));
    let mut log = Log::default();
    log.number = number + 1;
    Ok(Inner {
        arena: parts.arena,
        health: parts.health,
        journal,
        database,
        capacity_blocks: meta.blocks,
        most_bytes: usize::try_from(meta.segment).unwrap_or(usize::MAX),
        has_thread: parts.thread,
        log: Mutex::new(log),
        layers,
        directory: RwLock::new(counted.directory),
        space: Mutex::new(space),
        locks: Arc::new(super::Locks::new()),
        holds: Arc::new(Holds::default()),
        logged: Logged::default(),
        limbo: Mutex::default(),
        touched: Mutex::default(),
        touched_count: AtomicU64::new(0),
        damaged: AtomicBool::new(counted.damaged > 0),
        dying: Mutex::new(dying),
        emptied: AtomicU64::new(0),
    })
}

fn new_meta(parts: &Parts) -> Result<Meta, Error> {
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|_| Error::Io(libc::EIO))?;
    let segment = parts.journal.size() / 2 / 4096 * 4096;
    let blocks = parts.arena.size() / BLOCK;
    if segment < 1 << 16 || blocks == 0 {
        return Err(Error::NoSpace);
    }
    let name = u64::from_le_bytes(name);
    Ok(Meta { layout: LAYOUT, name, number: 0, side: 0, blocks, segment, clean: true })
}

#[derive(Default)]
struct Replayed {
    layer: Layer,
    frames: u64,
    was_clean: bool,
}

/// Reads what the journal has after the last checkpoint, and writes data in it to the arena.
async fn replay(journal: &Journal, meta: &Meta, arena: &dyn BlockStore) -> Result<Replayed, Error> {
    let mut replayed = Replayed { was_clean: meta.clean, ..Replayed::default() };
    let mut segments = Vec::new();
    for side in [meta.side, 1 - meta.side] {
        let mut segment = Vec::with_capacity(journal.segment as usize);
        while (segment.len() as u64) < journal.segment {
            let n = READ.min(journal.segment as usize - segment.len());
            let chain = journal.store.read(side * journal.segment + segment.len() as u64, n).await?;
            let start = segment.len();
            segment.resize(start + n, 0);
            chain.copy_to_slice(&mut segment[start..]);
        }
        segments.push(segment);
    }
    let mut writes = Vec::new();
    for segment in &segments {
        for payload in journal::frames(segment, journal, meta.number + replayed.frames + 1) {
            replayed.frames += 1;
            for entry in journal::entries(payload) {
                match entry? {
                    Entry::Put(key, value) => replayed.layer.insert(key, Some(value.into())),
                    Entry::Delete(key) => replayed.layer.insert(key, None),
                    Entry::Data(at, bytes) => writes.push((at, bytes.len() as u64, Some(bytes))),
                    Entry::Overwritten(at, len) => writes.push((at, len, None)),
                }
            }
        }
    }
    // From the newest on: data of a covered range is out of date.
    let mut covered = Ranges::default();
    for (at, len, bytes) in writes.into_iter().rev() {
        let end = at.checked_add(len).filter(|end| *end <= arena.size());
        let end = end.ok_or(Error::Damaged(Id::ROOT))?;
        for (from, to) in covered.without(at, end) {
            if let Some(bytes) = bytes {
                let part = bytes[(from - at) as usize..(to - at) as usize].to_vec();
                arena.write(from, Chain::from(part), false).await?;
            }
        }
        covered.add(at, end);
    }
    Ok(replayed)
}

pub(super) struct Counted {
    pub directory: Directory,
    pub used: Vec<Blocks>,
    /// Homes that have content.
    pub homes: std::collections::BTreeSet<u64>,
    pub damaged: u64,
}

impl Counted {
    fn was_clean(&self, replayed: &Replayed) -> bool {
        replayed.frames == 0 && self.damaged == 0
    }
}

pub(super) fn count(layers: &Layers) -> Result<Counted, Error> {
    let mut counted = Counted {
        directory: Directory { next_partition: FIRST_ID, next_home: 1, ..Directory::default() },
        used: Vec::new(),
        homes: std::collections::BTreeSet::new(),
        damaged: 0,
    };
    let directory = &mut counted.directory;
    let root = key(ROOT, 0, 0, 0);
    if let Some(times) = layers.get(&root, |v| View::new(&root, v, Id::ROOT).map(View::times))? {
        match times {
            Ok(times) => directory.root_times = times,
            Err(_) => counted.damaged += 1,
        }
    }
    let mut by_home: BTreeMap<u64, Partition> = BTreeMap::new();
    let mut ids = BTreeMap::new();
    scan(layers, PARTITION, |at, [id, _, _], value| match View::new(at, value, Id::partition(id)) {
        Ok(view) => {
            let record = view.to_record();
            let partition = Partition {
                home: record.a,
                generation: record.generation(),
                origin: record.origin(),
                next_id: FIRST_ID,
                ..Partition::default()
            };
            directory.saw(partition.generation, partition.origin);
            ids.insert(id, record.a);
            by_home.insert(record.a, partition);
        }
        Err(_) => counted.damaged += 1,
    })?;
    scan(layers, LOST, |_, _, _| counted.damaged += 1)?;
    let none = Partition::default();
    let mut homes = std::mem::take(&mut counted.homes);
    scan(layers, USER, |at, [home, id, _], value| match View::new(at, value, Id::new(home, id)) {
        Ok(view) => {
            let partition = by_home.entry(home).or_insert(none);
            partition.objects += 1;
            partition.blocks += view.b();
            partition.length = partition.length.saturating_add(view.a());
            partition.saw(id);
            homes.insert(home);
            counted.used.extend(view.runs().map(|run| blocks(&run)));
        }
        Err(_) => counted.damaged += 1,
    })?;
    scan(layers, CHUNK, |at, [home, _, _], value| match decode_chunk(at, value) {
        Some(runs) => {
            homes.insert(home);
            counted.used.extend(runs.iter().map(blocks));
        }
        None => counted.damaged += 1,
    })?;
    for kind in [COLLECTION, record::ATTRIBUTE, record::MEMBER, record::MEMBERSHIP, record::COUNT] {
        scan(layers, kind, |_, [home, id, _], _| {
            // Attributes of partitions and of the root lie in home 0.
            if home > 0 {
                homes.insert(home);
            }
            if kind == COLLECTION {
                let partition = by_home.entry(home).or_insert(none);
                partition.collections += 1;
                partition.saw(id);
            }
        })?;
    }
    for (id, home) in ids {
        if let Some(partition) = by_home.get(&home) {
            counted.directory.partitions.insert(id, *partition);
        }
        if id < 1 << 63 {
            counted.directory.next_partition = counted.directory.next_partition.max(id + 1);
        }
    }
    counted.directory.next_home = by_home.keys().chain(homes.iter()).max().map_or(1, |home| home + 1);
    counted.homes = homes;
    Ok(counted)
}

/// Shows all of one kind: keys, their numbers, values.
pub(super) fn scan(
    layers: &Layers,
    kind: u8,
    mut each: impl FnMut(&Key, [u64; 3], &[u8]),
) -> Result<(), Error> {
    let mut from = Some(key(kind, 0, 0, 0));
    while let Some(next) = from {
        from = layers.scan(next, key(kind, u64::MAX, u64::MAX, u64::MAX), SCANNED, |key, value| {
            each(key, numbers(key), value);
            true
        })?;
    }
    Ok(())
}
