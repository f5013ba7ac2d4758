//! Accesses that reach the medium: a store that records each of them, and the rule that no command
//! takes effect twice, despite retries and reassignment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use backing::{BlockStore, Extent, Geometry, Health, Io, Resources};
use runtime::{Buf, Chain, Guard, Pooled, RegionRange};

use crate::oracle::{OpId, SECTOR, writer_of};

/// A read or a write of the store.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Bytes of the medium.
    pub(crate) range: Range<u64>,
    pub(crate) writes: bool,
    /// Its place in the order of all beginnings and ends; `None` while it has not ended.
    pub(crate) begun: u64,
    pub(crate) ended: Option<u64>,
    pub(crate) when: Instant,
}

#[derive(Default)]
struct Log {
    events: u64,
    accesses: Vec<Access>,
    /// Writes by the command that their data names, and by sector.
    writes: BTreeMap<(OpId, u64), u32>,
    /// Sectors whose data was placed in the store's own memory, by command.
    landed: BTreeMap<OpId, BTreeSet<u64>>,
    /// Address of the store's memory.
    memory: Option<usize>,
}

impl Log {
    /// Whether `buf` is the store's own memory at `at`.
    fn is_at(&self, at: usize, buf: &Buf) -> bool {
        self.memory == Some((buf.as_ptr() as usize).wrapping_sub(at))
    }

    fn landed(&mut self, at: usize, buf: &Buf) {
        self.memory = Some((buf.as_ptr() as usize).wrapping_sub(at));
        let bytes = buf.to_vec();
        for start in (at.next_multiple_of(SECTOR)..at + bytes.len()).step_by(SECTOR) {
            if let Some(op) = writer_of(&bytes[start - at..]) {
                self.landed.entry(op).or_default().insert((start / SECTOR) as u64);
            }
        }
    }

    /// Counts a write of whole sectors.
    ///
    /// Data in the store's own memory may have been replaced there by that of another command, so
    /// it does not name its command. The command is then the one whose data was placed in exactly
    /// these sectors; a write for which there are several is not counted.
    fn wrote(&mut self, at: u64, data: &Chain) {
        let (mut bytes, mut in_place) = (Vec::new(), Vec::new());
        for buf in data {
            let is_at = self.is_at(at as usize + bytes.len(), buf);
            bytes.extend(buf.to_vec());
            in_place.resize(bytes.len().div_ceil(SECTOR), is_at);
        }
        let sectors: Vec<_> = (at / SECTOR as u64..).zip(bytes.chunks(SECTOR)).zip(in_place).collect();
        let named = sectors.iter().find(|(_, in_place)| !in_place).map(|((_, bytes), _)| writer_of(bytes));
        let writer = named.unwrap_or_else(|| {
            let all: BTreeSet<u64> = sectors.iter().map(|((sector, _), _)| *sector).collect();
            let mut placed = self.landed.iter().filter(|(_, landed)| **landed == all).map(|(op, _)| *op);
            placed.next().filter(|_| placed.next().is_none())
        });
        // A block that a command covers only in part is written as a whole: the rest of it names
        // other commands.
        let Some(writer) = writer else { return };
        for ((sector, bytes), in_place) in sectors {
            if in_place || writer_of(bytes) == Some(writer) {
                *self.writes.entry((writer, sector)).or_default() += 1;
            }
        }
    }
}

/// The accesses to a medium by all servers. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Executions(Arc<Mutex<Log>>);

impl Executions {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same store, with its accesses recorded.
    pub(crate) fn watch(&self, store: Arc<dyn BlockStore>) -> Arc<dyn BlockStore> {
        Arc::new(Watched { store, executions: self.clone() })
    }

    /// All accesses so far.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        self.lock().accesses.clone()
    }

    /// A command whose write reached the medium twice, although `once` says that its client sent it
    /// only once.
    pub(crate) fn repeated(&self, once: impl Fn(OpId) -> bool) -> Option<String> {
        let log = self.lock();
        let (&(op, sector), times) = log.writes.iter().find(|((op, _), times)| **times > 1 && once(*op))?;
        let at = sector * SECTOR as u64;
        let accesses: Vec<_> =
            log.accesses.iter().filter(|access| access.writes && access.range.contains(&at)).collect();
        Some(format!("op {op} was executed {times} times in sector {sector}: {accesses:?}"))
    }

    fn begin(&self, range: Range<u64>, writes: bool) -> usize {
        let mut log = self.lock();
        log.events += 1;
        let begun = log.events;
        log.accesses.push(Access { range, writes, begun, ended: None, when: runtime::clock() });
        log.accesses.len() - 1
    }

    fn end(&self, access: usize) {
        let mut log = self.lock();
        log.events += 1;
        let ended = log.events;
        log.accesses[access].ended = Some(ended);
    }

    /// Records the end of an access.
    fn follow<T: Unpin + 'static>(&self, access: usize, io: Io<T>) -> Io<T> {
        if matches!(io, Io::Ready(_)) {
            self.end(access);
            return io;
        }
        let executions = self.clone();
        Io::Running(Pooled::new(async move {
            let result = io.await;
            executions.end(access);
            result
        }))
    }
}

/// A store whose accesses are recorded.
struct Watched {
    store: Arc<dyn BlockStore>,
    executions: Executions,
}

impl BlockStore for Watched {
    fn size(&self) -> u64 {
        self.store.size()
    }
    fn refresh(&self) -> u64 {
        self.store.refresh()
    }
    fn inspect(&self) {
        self.store.inspect();
    }
    fn geometry(&self) -> Geometry {
        self.store.geometry()
    }
    fn writable(&self) -> bool {
        self.store.writable()
    }
    fn thin(&self) -> bool {
        self.store.thin()
    }
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        let access = self.executions.begin(at..at + len as u64, false);
        self.executions.follow(access, self.store.read(at, len))
    }
    fn read_now(&self, at: u64, len: usize) -> Option<Buf> {
        let read = self.store.read_now(at, len)?;
        let access = self.executions.begin(at..at + len as u64, false);
        self.executions.end(access);
        Some(read)
    }
    fn prefetch(&self, at: u64, len: usize) {
        self.store.prefetch(at, len);
    }
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        let access = self.executions.begin(at..at + len as u64, false);
        self.executions.follow(access, self.store.read_to_send(at, len))
    }
    fn lend(&self, at: u64, len: usize) -> Option<Buf> {
        self.store.lend(at, len)
    }
    fn set_guard(&self, guard: Arc<dyn Guard>) -> bool {
        self.store.set_guard(guard)
    }
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        let access = self.executions.begin(at..at + data.len() as u64, true);
        self.executions.lock().wrote(at, &data);
        self.executions.follow(access, self.store.write(at, data, durable))
    }
    fn lands(&self) -> bool {
        self.store.lands()
    }
    fn land(&self, at: u64, len: usize, fill: &mut dyn FnMut(&mut RegionRange) -> usize) -> Option<Buf> {
        let landed = self.store.land(at, len, fill)?;
        self.executions.lock().landed(at as usize, &landed);
        Some(landed)
    }
    fn sync(&self) -> Io<()> {
        self.store.sync()
    }
    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.store.discard(at, len)
    }
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.store.write_zeros(at, len, deallocate)
    }
    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.store.extent(at, len)
    }
    fn file(&self) -> Option<runtime::File> {
        self.store.file()
    }
    fn copy_from(&self, from: runtime::File, from_at: u64, at: u64, len: u64) -> Io<()> {
        self.store.copy_from(from, from_at, at, len)
    }
    fn resources(&self) -> Option<Resources> {
        self.store.resources()
    }
    fn health(&self) -> Option<&Arc<Health>> {
        self.store.health()
    }
}

#[cfg(test)]
mod tests {
    use backing::model::ModelStore;

    use super::*;
    use crate::oracle::{Content, Oracle};

    #[test]
    fn a_write_that_is_done_twice_is_found() {
        let executions = Executions::default();
        let store = executions.watch(Arc::new(ModelStore::new(8 * SECTOR, SECTOR as u32)));
        let oracle = Oracle::new(8, 1);
        let write = |op| {
            let bytes = oracle.bytes(Content::Stamp(op), 3).to_vec();
            assert!(matches!(store.write(3 * SECTOR as u64, bytes.into(), true), Io::Ready(_)));
        };
        write(1);
        write(2);
        assert_eq!(executions.repeated(|_| true), None);
        write(1);
        assert!(
            executions.repeated(|op| op == 1).is_some_and(|what| what.contains("op 1 was executed 2 times"))
        );
        assert_eq!(executions.repeated(|op| op == 2), None);
    }

    #[test]
    fn data_that_was_placed_directly_counts_for_the_command_that_placed_it() {
        let executions = Executions::default();
        let model = ModelStore::new(8 * SECTOR, SECTOR as u32).landing().expect("memory is there");
        let store = executions.watch(Arc::new(model));
        let oracle = Oracle::new(8, 1);
        let land = |op, sectors: Range<usize>| {
            let bytes: Vec<u8> =
                sectors.clone().flat_map(|sector| oracle.bytes(Content::Stamp(op), sector)).collect();
            let mut fill = |place: &mut RegionRange| {
                place.write(&bytes);
                bytes.len()
            };
            store.land((sectors.start * SECTOR) as u64, bytes.len(), &mut fill).expect("it is taken")
        };
        let write = |sector: usize, data: &Buf| {
            assert!(matches!(store.write((sector * SECTOR) as u64, data.clone().into(), true), Io::Ready(_)));
        };
        let first = land(1, 2..5);
        let second = land(2, 1..4);
        // The second command's data has replaced that of the first.
        write(1, &second);
        write(2, &first);
        assert_eq!(executions.repeated(|_| true), None);
        write(2, &first);
        assert!(
            executions.repeated(|op| op == 1).is_some_and(|what| what.contains("op 1 was executed 2 times"))
        );
        assert_eq!(executions.repeated(|op| op == 2), None);
    }
}
