//! Shared code of the tests: a redb in memory whose power can be cut, changes made of numbers, and
//! the comparison of two stores.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use backing::faulty::{Faults, FaultyStore};
use backing::model::{ModelStore, Random};
use backing::{BlockStore, Health};
use redb::StorageBackend;
use runtime::Chain;

use super::open::Parts;
use super::{DatabaseStorage, EmbeddedStore};
use crate::store::{
    Attributes, BLOCK, Change, CollectionType, Commit, Duplicate, Error, FIRST_ID, Id, Kind, List,
    ObjectStore, Step, TimesUpdate, Value,
};

/// Polls a future that nothing outside has to happen for.
pub fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..1_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
    panic!("it waits for something");
}

pub const P: u64 = FIRST_ID;

pub fn object(n: u64) -> Id {
    Id::new(P, FIRST_ID + n)
}

pub fn apply(store: &dyn ObjectStore, change: impl Into<Change>) -> Result<(), Error> {
    now(store.apply(change.into(), Commit::Durable)).map(drop)
}

#[track_caller]
pub fn sound(store: &EmbeddedStore) {
    assert_eq!(now(store.check(0, false)).unwrap().findings, Vec::<String>::new());
}

/// A file in memory that knows what a power cut leaves.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
    dead: bool,
    reads: u64,
    room: Option<u64>,
    full: bool,
    beside: Option<Disk>,
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn limit(&self, room: Option<u64>) {
        self.lock().room = room;
    }
    pub fn fill(&self, full: bool) {
        self.lock().full = full;
    }
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().seen.clone()
    }
    pub fn reads(&self) -> u64 {
        self.lock().reads
    }
    pub(crate) fn len_now(&self) -> u64 {
        self.lock().seen.len() as u64
    }
    pub fn damage(&self, mut change: impl FnMut(&mut Vec<u8>)) {
        let mut state = self.lock();
        change(&mut state.seen);
        state.durable = state.seen.clone();
    }
    pub fn cut(&self, seed: u64) {
        let (mut state, mut random) = (self.lock(), Random::new(seed));
        for (at, bytes) in std::mem::take(&mut state.unsynced) {
            for (i, sector) in bytes.chunks(512).enumerate() {
                let at = at as usize + i * 512;
                if random.below(2) == 0 && at + sector.len() <= state.durable.len() {
                    state.durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        state.seen = state.durable.clone();
        state.dead = true;
    }
    pub fn power_on(&self) {
        self.lock().dead = false;
    }
    fn alive(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let state = self.lock();
        if state.dead { Err(io::Error::from_raw_os_error(libc::ENODEV)) } else { Ok(state) }
    }
}

impl DatabaseStorage for Disk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(self.clone()))
    }

    fn beside(&self) -> io::Result<Box<dyn StorageBackend>> {
        let disk = Self::default();
        self.lock().beside = Some(disk.clone());
        Ok(Box::new(disk))
    }

    fn replace(&self) -> io::Result<String> {
        let mut state = self.lock();
        let made = state.beside.take().ok_or(io::ErrorKind::NotFound)?;
        state.seen.clone_from(&made.lock().seen);
        state.durable = state.seen.clone();
        state.unsynced.clear();
        Ok("the old one".to_owned())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.alive()?.seen.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.alive()?;
        state.reads += 1;
        let found = state.seen.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.alive()?;
        if state.room.is_some_and(|room| len > room && len > state.seen.len() as u64) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        state.seen.resize(len as usize, 0);
        state.durable.resize(len as usize, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.alive()?;
        state.unsynced.clear();
        state.durable = state.seen.clone();
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.alive()?;
        if state.full {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let end = offset as usize + data.len();
        if end > state.seen.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.seen[offset as usize..end].copy_from_slice(data);
        state.unsynced.push((offset, data.to_vec()));
        Ok(())
    }
}

/// All that a store stands on, in memory.
#[derive(Clone)]
pub struct Rig {
    pub arena: ModelStore,
    pub arena_faults: Faults,
    pub journal: ModelStore,
    pub journal_faults: Faults,
    pub disk: Disk,
    pub health: Arc<Health>,
    /// Bytes of the disk that are cached.
    pub cache_bytes: usize,
}

impl Rig {
    pub fn new(blocks: u64, journal_bytes: usize) -> Self {
        Self {
            arena: ModelStore::new((blocks * BLOCK) as usize, 512),
            arena_faults: Faults::new(),
            journal: ModelStore::new(journal_bytes, 512),
            journal_faults: Faults::new(),
            disk: Disk::default(),
            health: Health::new("medium"),
            cache_bytes: 1 << 20,
        }
    }

    pub fn try_open(&self) -> Result<EmbeddedStore, Error> {
        let arena: Arc<dyn BlockStore> = Arc::new(self.arena.clone());
        let journal: Arc<dyn BlockStore> = Arc::new(self.journal.clone());
        let parts = Parts {
            arena: Arc::new(FaultyStore::new(arena, self.arena_faults.clone())),
            journal: Arc::new(FaultyStore::new(journal, self.journal_faults.clone())),
            health: self.health.clone(),
            database: Box::new(self.disk.clone()),
            cache_bytes: self.cache_bytes,
            create: true,
            thread: false,
        };
        now(EmbeddedStore::by_hand(parts))
    }

    pub fn open(&self) -> EmbeddedStore {
        self.try_open().unwrap()
    }

    /// With a store that has partition [`P`].
    pub fn begun(blocks: u64) -> (Self, EmbeddedStore) {
        let rig = Self::new(blocks, 256 << 10);
        let store = rig.open();
        apply(&store, Step::CreatePartition(P)).unwrap();
        (rig, store)
    }

    pub fn cut(&self, seed: u64) {
        self.arena.cut_power(seed);
        self.journal.cut_power(seed ^ 1);
        self.disk.cut(seed ^ 2);
        self.arena.power_on();
        self.journal.power_on();
        self.disk.power_on();
    }
}

pub type Raw = (u8, u8, u32, u32);

fn partition(n: u32) -> u64 {
    FIRST_ID + u64::from(n % 3)
}

fn any_object(n: u8) -> Id {
    Id::new(partition(u32::from(n) / 5), FIRST_ID + u64::from(n % 5))
}

fn fill(seed: u32, len: usize) -> Chain {
    let bytes: Vec<u8> = (0..len).map(|i| (seed as usize + i / 7) as u8 | 1).collect();
    bytes.into()
}

/// An offset in an object: often at the borders of blocks.
fn place(n: u32) -> u64 {
    let at = u64::from(n % 40_000);
    if n % 3 == 0 { at / BLOCK * BLOCK } else { at }
}

/// The step that four numbers make. Most are about few objects, so that they meet.
pub fn step((kind, which, a, b): Raw) -> Step {
    let id = any_object(which % 15);
    match kind % 24 {
        0 => Step::CreatePartition(partition(a)),
        1 if a % 3 == 0 => Step::RemovePartition { id: partition(b), contents: false },
        1..=3 => Step::CreateUser(id),
        4 => Step::CreateCollection(id, CollectionType((a % 2) as u8)),
        5 => Step::RemoveUser(id),
        6 => Step::RemoveCollection { id, members: a % 2 == 0 },
        7..=10 => Step::Write { id, at: place(a), data: fill(b, b as usize % 20_000) },
        11 => Step::Append {
            id,
            data: fill(b, b as usize % 9_000),
            most: if a % 4 == 0 { place(b / 3) } else { u64::MAX },
        },
        12 => Step::Punch { id, at: place(a), len: place(b) },
        13 => Step::Clear { id, at: place(a), len: place(b) },
        14 => Step::SetLength { id, length: place(a) },
        15 => Step::Copy { from: id, to: any_object((a % 15) as u8), attributes: b % 2 == 0 },
        16 | 17 => {
            let id = match a % 5 {
                0 => Id::ROOT,
                1 => Id::partition(id.partition),
                _ => id,
            };
            // Short ones, long ones, and none.
            let len = [0, 3, 3, 20, 300, 700, 2000][b as usize % 7];
            let value = Value::from_elem(b as u8, len);
            Step::SetAttribute { id, page: a % 3, number: b % 4, value }
        }
        18 if a % 4 == 0 => Step::Expect { id, created: u64::from(b % 4 == 0) },
        18 => {
            Step::SetTimes { id, times: TimesUpdate { data_modified: Some(a.into()), ..Default::default() } }
        }
        19 | 20 => Step::Join { object: id, collection: any_object((a % 15) as u8).object, number: b },
        21 => Step::Leave { object: id, collection: any_object((a % 15) as u8).object },
        22 => Step::Write { id, at: u64::from(a % 8) * (4 << 20) + place(b), data: fill(a, 5000) },
        _ => match a % 8 {
            0 => Step::Duplicate {
                source: partition(b),
                id: partition(b / 3),
                kind: Duplicate::Clone,
                made_ms: 1,
            },
            1 | 2 => Step::Duplicate {
                source: partition(b),
                id: partition(b / 3),
                kind: Duplicate::Snapshot,
                made_ms: 2,
            },
            3 => Step::Refresh { id: partition(b), made_ms: 3 },
            4 => Step::Restore { id: partition(b) },
            5 => Step::Detach { id: partition(b) },
            6 => Step::RemovePartition { id: partition(b), contents: true },
            _ => Step::CreatePartition(partition(b)),
        },
    }
}

/// A change of some steps; one that is about whole partitions has no other.
pub fn change(raw: &[Raw]) -> Change {
    let mut change = Change::new();
    for raw in raw {
        change.push(step(*raw));
    }
    change
}

/// Everything that a store says, as text.
pub fn describe(store: &dyn ObjectStore) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let root = store.root();
    let _ = writeln!(out, "root {} {} {:?}", root.partitions, root.objects, root.times);
    attributes(store, Id::ROOT, &mut out);
    let mut partitions = Vec::new();
    while store.list(List::Partitions, partitions.last().map_or(0, |l| l + 1), 2, &mut partitions).unwrap() {}
    for p in partitions {
        let mut info = store.partition(p).unwrap();
        // A store numbers generations as it likes. Compared is only whether the source is the one
        // that it was.
        info.generation = 0;
        if let Some(origin) = &mut info.origin {
            let source = store.partition(origin.source);
            origin.generation = u64::from(source.is_ok_and(|source| source.generation == origin.generation));
        }
        let _ = writeln!(out, "partition {p:x} {info:?}");
        attributes(store, Id::partition(p), &mut out);
        let (mut users, mut collections) = (Vec::new(), Vec::new());
        while store.list(List::Users(p), users.last().map_or(0, |l| l + 1), 2, &mut users).unwrap() {}
        store.list(List::Collections(p), 0, 1000, &mut collections).unwrap();
        for o in users {
            let id = Id::new(p, o);
            let info = store.object(id).unwrap();
            let _ = writeln!(out, " user {o:x} {info:?}");
            attributes(store, id, &mut out);
            let mut extents = Vec::new();
            store.extents(id, 0, u64::MAX, 100_000, &mut extents).unwrap();
            let mut next = 0;
            for extent in &extents {
                assert_eq!(extent.at, next);
                next += extent.len;
                let _ = write!(out, "  {}+{} {}", extent.at, extent.len, extent.data);
                if extent.data {
                    let bytes = now(store.read(id, extent.at, extent.len as usize)).unwrap().to_vec();
                    let _ = write!(out, " {:08x}", crc_fast::crc32_iscsi(&bytes));
                }
                out.push('\n');
            }
            assert_eq!(next, info.length);
            let beyond = next.saturating_add(3 * BLOCK);
            assert!(!store.extents(id, beyond, 10, 10, &mut extents).unwrap());
            assert_eq!(extents.last().map_or(0, |last| last.at + last.len), next, "extents beyond the end");
            let (at, len) = (info.length / 3 + 1, 5000);
            let some = now(store.read(id, at, len)).unwrap().to_vec();
            let _ = writeln!(out, "  read {} {:08x}", some.len(), crc_fast::crc32_iscsi(&some));
            let mut memberships = Vec::new();
            store.memberships(id, 0, 100, &mut memberships).unwrap();
            let _ = writeln!(out, "  in {memberships:?}");
        }
        for c in collections {
            let id = Id::new(p, c);
            let info = store.object(id).unwrap();
            assert!(matches!(info.kind, Kind::Collection(_)));
            let mut members = Vec::new();
            store.list(List::Members(id), 0, 100, &mut members).unwrap();
            let _ = writeln!(out, " collection {c:x} {info:?} {members:x?}");
            attributes(store, id, &mut out);
            for member in members {
                let _ = writeln!(out, "  {member:x} {:?}", store.membership(id, member).unwrap());
            }
        }
    }
    out
}

fn attributes(store: &dyn ObjectStore, id: Id, out: &mut String) {
    use std::fmt::Write;
    let mut all = Vec::new();
    let each = &mut |a: crate::store::Attribute<'_>| {
        all.push((a.page, a.number, a.value.to_vec()));
        true
    };
    store.attributes(id, Attributes::All, each).unwrap();
    for (page, number, value) in all {
        let mut again = Vec::new();
        assert!(store.attribute(id, page, number, &mut again).unwrap());
        assert_eq!(again, value);
        let _ = writeln!(out, "  @{page}.{number} {} {:?}", value.len(), value.first());
    }
}
