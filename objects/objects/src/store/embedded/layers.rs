//! The metadata as a sorted map: recent changes in memory, the rest in redb.
//!
//! Three layers: `active` takes changes, `frozen` is on its way into redb, `base` is redb as of the
//! last checkpoint. A key is looked for in that order. Only checkpoints write redb, one transaction
//! each, so that it always has exactly the state after some change; later changes are in the
//! journal. No panic of redb gets out of here.
//!
//! Deleted keys lie apart from those that have values. So a scan meets no deleted key unless redb
//! has it still, however many objects came and went lately.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind::{InvalidData, UnexpectedEof};
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Waker};

use redb::{AccessGuard, ReadOnlyTable, TableDefinition};
use smallvec::SmallVec;

use super::record::Key;
use crate::store::{Error, Id};

pub(super) const TABLE: TableDefinition<'static, &'static Key, &'static [u8]> =
    TableDefinition::new("objects");

/// A value, or that there is none any more.
pub(super) type Val = Option<Arc<[u8]>>;

/// A layer of changes: a key is among the living, among the deleted, or unchanged.
#[derive(Default)]
pub(super) struct Layer {
    live: BTreeMap<Key, Arc<[u8]>>,
    gone: BTreeSet<Key>,
}

impl Layer {
    pub fn insert(&mut self, key: Key, value: Val) {
        match value {
            Some(value) => {
                self.live.insert(key, value);
                // Seldom is any: an empty set is asked for nothing.
                if !self.gone.is_empty() {
                    self.gone.remove(&key);
                }
            }
            None => {
                self.live.remove(&key);
                self.gone.insert(key);
            }
        }
    }

    /// `Some(None)` if the key is deleted, `None` if nothing has changed it.
    fn get(&self, key: &Key) -> Option<Option<&Arc<[u8]>>> {
        match self.live.get(key) {
            Some(value) => Some(Some(value)),
            None => self.gone.contains(key).then_some(None),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.gone.is_empty()
    }

    pub(crate) fn deleted(&self) -> impl Iterator<Item = &Key> {
        self.gone.iter()
    }

    /// The others, in order, with their values.
    pub(crate) fn living(&self) -> impl Iterator<Item = (&Key, &[u8])> {
        self.live.iter().map(|(key, value)| (key, &**value))
    }
}

impl FromIterator<(Key, Val)> for Layer {
    fn from_iter<T: IntoIterator<Item = (Key, Val)>>(pairs: T) -> Self {
        let mut layer = Self::default();
        pairs.into_iter().for_each(|(key, value)| layer.insert(key, value));
        layer
    }
}

/// redb as of a checkpoint. An empty one has no table yet.
#[derive(Default)]
pub(super) struct Base(pub Option<ReadOnlyTable<&'static Key, &'static [u8]>>);

#[derive(Default)]
pub(super) struct View {
    pub active: Layer,
    pub frozen: Arc<Layer>,
    pub base: Arc<Base>,
}

#[derive(Default)]
pub(super) struct Layers {
    view: RwLock<View>,
    /// Bytes of keys and values in the active layer, readable without the lock.
    active_bytes: AtomicUsize,
    /// Keys met by scans that redb has and a layer has deleted.
    passed: AtomicU64,
    /// redb gave an error: it gives no other answer until it is opened anew.
    failed: AtomicBool,
    /// Waker of the task that opens it anew.
    opener: Mutex<Option<Waker>>,
}

/// So many pairs of redb are looked up before the lock is taken under which they are shown.
const BELOW_AT_ONCE: usize = 256;
/// So many keys are looked at before that lock is released.
const LOOKED_AT_ONCE: usize = 1024;
/// So many deleted keys that redb still has make scans slow: about as long as a checkpoint takes.
pub(super) const MANY_PASSED: u64 = 1 << 16;

/// Maps an error of redb to one of the store.
pub(super) fn redb_error(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(error) => match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Error::NoSpace,
            Some(libc::EROFS) => Error::ReadOnly,
            None if [InvalidData, UnexpectedEof].contains(&error.kind()) => Error::Damaged(Id::ROOT),
            errno => Error::Io(errno.unwrap_or(libc::EIO)),
        },
        redb::Error::Corrupted(_) => Error::Damaged(Id::ROOT),
        _ => Error::Io(libc::EIO),
    }
}

/// Runs what calls redb: a panic in there is damage that it did not expect.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Error::Damaged(Id::ROOT)))
}

impl Base {
    fn get<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Error> {
        let Some(table) = &self.0 else { return Ok(None) };
        guarded(|| {
            let found = table.get(key).map_err(|e| redb_error(e.into()))?;
            Ok(found.map(|value| f(value.value())))
        })
    }

    /// Looks up the first `most` pairs between two keys. Returns the last key up to which there are
    /// no others. Keys out of order, or not between the two, are damage that redb does not look
    /// for: a scan would never end, or show wrong keys.
    fn some(&self, (from, to): (Key, Key), most: usize, into: &mut Pairs) -> Result<Key, Error> {
        let Some(table) = &self.0 else { return Ok(to) };
        guarded(|| {
            for pair in table.range::<&Key>(&from..=&to).map_err(|e| redb_error(e.into()))?.take(most) {
                let pair = pair.map_err(|e| redb_error(e.into()))?;
                // redb panics on a damaged page without the key or value: they are read here, where
                // the panic is caught. Its pages do not change later.
                let (key, _) = (pair.0.value(), pair.1.value());
                if !(from..=to).contains(key) || into.last().is_some_and(|(last, _)| last.value() >= key) {
                    return Err(Error::Damaged(Id::ROOT));
                }
                into.push(pair);
            }
            let last = into.last().filter(|_| into.len() == most);
            Ok(last.map_or(to, |(key, _)| *key.value()))
        })
    }
}

/// Pairs of redb, in the memory of its pages.
type Pairs = SmallVec<[(AccessGuard<'static, &'static Key>, AccessGuard<'static, &'static [u8]>); 2]>;

impl Layers {
    pub fn read(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a result of redb on. After an error, redb has to be opened anew.
    fn noted<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
            if let Some(waker) = self.opener.lock().unwrap_or_else(PoisonError::into_inner).take() {
                waker.wake();
            }
        }
        result
    }

    /// Whether redb has to be opened anew, which the caller will be woken for.
    pub(crate) fn poll_failed(&self, cx: &Context<'_>) -> bool {
        *self.opener.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        self.failed.load(Ordering::Acquire)
    }

    /// The same, once.
    pub(crate) fn take_failed(&self) -> bool {
        self.failed.swap(false, Ordering::AcqRel)
    }

    /// Bytes of keys and values that the next checkpoint takes.
    pub(crate) fn active_bytes(&self) -> usize {
        self.active_bytes.load(Ordering::Relaxed)
    }

    /// Whether scans have met so many deleted keys, since the last time, that a checkpoint is less
    /// work than to meet them again.
    pub(crate) fn is_untidy(&self) -> bool {
        self.passed.load(Ordering::Relaxed) >= MANY_PASSED && self.passed.swap(0, Ordering::Relaxed) > 0
    }

    pub(crate) fn publish(&self, puts: BTreeMap<Key, Val>) {
        let mut view = self.write();
        let mut bytes = 0;
        for (key, value) in puts {
            bytes += key.len() + 64 + value.as_ref().map_or(0, |value| value.len());
            view.active.insert(key, value);
        }
        self.active_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Freezes the active layer, and begins a new one.
    pub fn freeze(&self) {
        let mut view = self.write();
        debug_assert!(view.frozen.is_empty());
        view.frozen = Arc::new(std::mem::take(&mut view.active));
        self.active_bytes.store(0, Ordering::Relaxed);
    }

    pub fn get<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Error> {
        let view = self.read();
        if let Some(found) = view.active.get(key).or_else(|| view.frozen.get(key)) {
            let found = found.cloned();
            drop(view);
            return Ok(found.map(|value| f(&value)));
        }
        let base = view.base.clone();
        drop(view);
        self.noted(base.get(key, f))
    }

    /// Looks a key up in redb, for a later [`Self::get_known`] under a lock under which redb must
    /// not be asked.
    pub fn ask<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Known<R>, Error> {
        let view = self.read();
        let base = view.base.clone();
        if view.active.get(key).or_else(|| view.frozen.get(key)).is_some() {
            return Ok(Known { base, found: None });
        }
        drop(view);
        let found = self.noted(base.get(key, f))?;
        Ok(Known { base, found })
    }

    /// As [`Self::get`]; asks redb only if a checkpoint has been written since `known` was looked
    /// up.
    pub fn get_known<R>(
        &self,
        key: &Key,
        known: Known<R>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let view = self.read();
        if let Some(found) = view.active.get(key).or_else(|| view.frozen.get(key)) {
            return Ok(found.map(|value| f(value)));
        }
        if Arc::ptr_eq(&view.base, &known.base) {
            return Ok(known.found);
        }
        drop(view);
        self.get(key, f)
    }

    /// Shows up to `limit` pairs between two keys, both included, in order, until `each` says
    /// false. The key to go on with, if the limit came first. Pieces of it are of one moment each.
    /// The lock is not held while redb is asked, and never for long. `each` must not use the
    /// layers.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        limit: usize,
        each: impl FnMut(&Key, &[u8]) -> bool,
    ) -> Result<Option<Key>, Error> {
        self.scan_counted(from, to, limit, each, &mut 0)
    }

    /// As [`Self::scan`]; counts the keys that it looks at.
    fn scan_counted(
        &self,
        from: Key,
        to: Key,
        limit: usize,
        mut each: impl FnMut(&Key, &[u8]) -> bool,
        looked: &mut usize,
    ) -> Result<Option<Key>, Error> {
        let (mut next, mut left) = (Some(from), limit);
        // One more than is shown, to know whether there are more.
        let mut most = limit.saturating_add(1).min(BELOW_AT_ONCE);
        while let Some(from) = next.filter(|from| *from <= to) {
            let base = self.read().base.clone();
            // Its pages are let go before it is.
            let mut below = Pairs::new();
            let until = self.noted(base.some((from, to), most, &mut below))?;
            // The batch held deleted records only; there may be many more.
            most = BELOW_AT_ONCE;
            let view = self.read();
            if !Arc::ptr_eq(&base, &view.base) {
                // A checkpoint was written meanwhile, and its keys are not in the layers any more.
                continue;
            }
            let mut until_now = Looked::default();
            let scanned = merge(&view, &below, (from, until), &mut left, &mut each, &mut until_now);
            *looked += until_now.at;
            if until_now.passed > 0 {
                self.passed.fetch_add(until_now.passed, Ordering::Relaxed);
            }
            match scanned {
                Scanned::All => next = if until < to { successor(&until) } else { None },
                Scanned::Some(next_one) => next = Some(next_one),
                Scanned::Until(next) => return Ok(next),
            }
        }
        Ok(None)
    }
}

/// redb's value of a key, and the redb that was asked.
pub(super) struct Known<R> {
    base: Arc<Base>,
    found: Option<R>,
}

#[derive(Default)]
struct Looked {
    at: usize,
    passed: u64,
}

enum Scanned {
    /// All there is between the two keys was shown.
    All,
    /// Keys before this one were shown; others have their turn.
    Some(Key),
    /// `each` has had enough, or the limit came and this is the next.
    Until(Option<Key>),
}

/// Shows what the layers and `below`, all that redb has between two keys, have there.
fn merge(
    view: &View,
    below: &Pairs,
    (from, to): (Key, Key),
    left: &mut usize,
    each: &mut impl FnMut(&Key, &[u8]) -> bool,
    looked: &mut Looked,
) -> Scanned {
    let mut active = view.active.live.range(from..=to).peekable();
    let mut frozen = view.frozen.live.range(from..=to).peekable();
    let mut below = below.iter().map(|(key, value)| (key.value(), value.value())).peekable();
    let (mut gone, mut gone_before) = (Gone::of(&view.active), Gone::of(&view.frozen));
    loop {
        let keys = [
            active.peek().map(|(key, _)| *key),
            frozen.peek().map(|(key, _)| *key),
            below.peek().map(|(key, _)| *key),
        ];
        let Some(next) = keys.into_iter().flatten().min().copied() else { return Scanned::All };
        if looked.at == LOOKED_AT_ONCE {
            return Scanned::Some(next);
        }
        looked.at += 1;
        let (newest, newer) = (take(&mut active, &next), take(&mut frozen, &next));
        let under = below.next_if(|(key, _)| **key == next).map(|(_, value)| value);
        let value = match newest {
            Some(value) => Some(value),
            None if gone.has(&next) => None,
            None => match newer {
                Some(value) => Some(value),
                None if gone_before.has(&next) => None,
                None => under,
            },
        };
        let Some(value) = value else {
            looked.passed += 1;
            continue;
        };
        if *left == 0 {
            return Scanned::Until(Some(next));
        }
        *left -= 1;
        if !each(&next, value) {
            return Scanned::Until(None);
        }
    }
}

/// The deleted keys of a layer, beside others that are asked for in order.
struct Gone<'a> {
    keys: &'a BTreeSet<Key>,
    /// The first key that is not before the last requested one.
    next: Option<&'a Key>,
}

impl<'a> Gone<'a> {
    fn of(layer: &'a Layer) -> Self {
        Self { keys: &layer.gone, next: layer.gone.first() }
    }

    fn has(&mut self, key: &Key) -> bool {
        if self.next.is_some_and(|next| next < key) {
            self.next = self.keys.range(*key..).next();
        }
        self.next == Some(key)
    }
}

/// The first key after one; none after the last.
pub(super) fn successor(key: &Key) -> Option<Key> {
    let mut next = *key;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

fn take<'a>(
    layer: &mut Peekable<impl Iterator<Item = (&'a Key, &'a Arc<[u8]>)>>,
    key: &Key,
) -> Option<&'a [u8]> {
    layer.next_if(|(next, _)| *next == key).map(|(_, value)| &**value)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicU64;

    use redb::{ReadableDatabase, StorageBackend};

    use super::super::database::{Database, DatabaseStorage, Meta};
    use super::super::record::{USER, key, numbers};
    use super::super::testing::Disk;
    use super::*;

    /// A disk that checks, at each read, whether a thread has the lock of the layers.
    #[derive(Clone, Debug, Default)]
    struct Probe(Disk, Arc<Seen>);

    #[derive(Default)]
    struct Seen {
        layers: Layers,
        reads: AtomicU64,
        locked: AtomicU64,
    }

    impl std::fmt::Debug for Seen {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Seen")
        }
    }

    impl DatabaseStorage for Probe {
        fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
            Ok(Box::new(self.clone()))
        }
    }

    impl StorageBackend for Probe {
        fn len(&self) -> io::Result<u64> {
            StorageBackend::len(&self.0)
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.1.reads.fetch_add(1, Ordering::Relaxed);
            if self.1.layers.view.try_write().is_err() {
                self.1.locked.fetch_add(1, Ordering::Relaxed);
            }
            StorageBackend::read(&self.0, offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.0.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.write(offset, data)
        }
    }

    fn at(n: u64) -> Key {
        key(USER, 1, n, 0)
    }

    fn value(n: u8) -> Val {
        Some(Arc::from([n]))
    }

    /// The numbers of a scan in steps of `limit`, each with its value.
    fn scanned(layers: &Layers, limit: usize) -> Vec<(u64, u8)> {
        let (mut found, mut next) = (Vec::new(), Some(at(0)));
        while let Some(from) = next {
            let before = found.len();
            next = layers
                .scan(from, at(u64::MAX), limit, |key, value| {
                    found.push((numbers(key)[1], value[0]));
                    true
                })
                .unwrap();
            assert!(found.len() - before <= limit);
            assert!(next.is_none() || found.len() - before == limit);
        }
        found
    }

    #[test]
    fn a_scan_shows_all_layers_as_one_and_holds_no_lock_while_the_medium_is_read() {
        let probe = Probe::default();
        let seen = probe.1.clone();
        let layers = &seen.layers;
        let database = Database::new(Box::new(probe), 0);
        let meta = Meta { layout: 2, name: 1, number: 0, side: 0, blocks: 1, segment: 1 << 16, clean: false };
        let base: Layer = (0..10_000).map(|n| (at(n), value(1))).collect();
        let base = database.write(&base, &meta).unwrap();
        layers.write().base = Arc::new(base);
        layers.publish((0..10_000).filter(|n| n % 5 == 0).map(|n| (at(n), value(2))).collect());
        layers.freeze();
        // More deleted ones in a row than are looked at in one go, some of which were frozen.
        let deleted = 1000..1000 + 8192;
        layers.publish(deleted.clone().map(|n| (at(n), None)).collect());
        layers.publish((10..10_010).filter(|n| n % 1000 < 10).map(|n| (at(n), value(3))).collect());
        let mut expected = Vec::new();
        for n in 0..10_010 {
            let newest = n >= 10 && n % 1000 < 10;
            match n {
                _ if newest => expected.push((n, 3)),
                _ if n >= 10_000 || deleted.contains(&n) => {}
                _ => expected.push((n, if n % 5 == 0 { 2 } else { 1 })),
            }
        }
        seen.reads.store(0, Ordering::Relaxed);
        for limit in [1, 7, 100, 100_000] {
            assert_eq!(scanned(layers, limit), expected, "limit {limit}");
        }
        assert!(seen.reads.load(Ordering::Relaxed) > 0);
        assert_eq!(seen.locked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn keys_out_of_order_in_the_database_are_damage() {
        let damaged = Err(Error::Damaged(Id::ROOT));
        for (n, shown) in [(7, Ok(Some(at(9)))), (20, damaged), (6, damaged), (0, damaged)] {
            let disk = Disk::default();
            let meta =
                Meta { layout: 2, name: 1, number: 0, side: 0, blocks: 1, segment: 1 << 16, clean: false };
            let database = Database::new(Box::new(disk.clone()), 0);
            database.write(&(1..100).map(|n| (at(n), value(1))).collect(), &meta).unwrap();
            drop(database);
            disk.damage(|bytes| {
                for place in 0..bytes.len() - size_of::<Key>() {
                    if bytes[place..].starts_with(&at(7)) {
                        bytes[place..][..size_of::<Key>()].copy_from_slice(&at(n));
                    }
                }
            });
            // As redb would have it, had it not been verified.
            let database = redb::Builder::new().create_with_backend(disk).unwrap();
            let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
            let layers = Layers::default();
            layers.write().base = Arc::new(Base(Some(table)));
            layers.publish([(at(8), value(2))].into());
            assert_eq!(layers.scan(at(3), at(50), 6, |_, _| true), shown, "{n}");
        }
    }

    #[test]
    fn a_scan_looks_at_what_it_shows_and_at_nothing_that_came_and_went_lately() {
        let layers = Layers::default();
        let looked = |limit: usize| {
            let (mut shown, mut looked) = (0, 0);
            let each = |_: &Key, _: &[u8]| {
                shown += 1;
                true
            };
            let more = layers.scan_counted(at(0), at(u64::MAX), limit, each, &mut looked).unwrap();
            (shown, looked, more.is_some())
        };
        layers.publish((0..3000).map(|n| (at(n), value(1))).collect());
        // Others are created and removed among them and behind them, before and after the layer is
        // frozen.
        for round in 0..2 {
            for others in [10_000..40_000, 40_000..50_000] {
                layers.publish(others.clone().map(|n| (at(n), value(2))).collect());
                layers.publish(others.map(|n| (at(n), None)).collect());
            }
            layers.publish((1000..2000).map(|n| (at(n), None)).collect());
            assert_eq!(looked(100), (100, 101, true));
            match round {
                0 => {
                    assert_eq!(looked(10_000), (2000, 2000, false));
                    layers.freeze();
                }
                // Deleted keys are met where another layer has them.
                _ => assert_eq!(looked(10_000), (2000, 2000, false)),
            }
        }
        layers.publish((2000..2500).map(|n| (at(n), None)).collect());
        assert_eq!(looked(10_000), (1500, 2000, false));
    }

    #[test]
    fn what_is_known_of_a_key_counts_until_a_checkpoint_is_written() {
        let database = Database::new(Box::new(Disk::default()), 0);
        let meta = Meta { layout: 2, name: 1, number: 0, side: 0, blocks: 1, segment: 1 << 16, clean: false };
        let layers = Layers::default();
        let write = |n: u8| {
            let base = database.write(&Layer::from_iter([(at(1), value(n))]), &meta).unwrap();
            layers.write().base = Arc::new(base);
        };
        let first = |bytes: &[u8]| bytes[0];
        write(1);
        let known = layers.ask(&at(1), first).unwrap();
        assert_eq!(layers.get_known(&at(1), known, first), Ok(Some(1)));
        let known = layers.ask(&at(1), first).unwrap();
        write(2);
        assert_eq!(layers.get_known(&at(1), known, first), Ok(Some(2)));
        let known = layers.ask(&at(1), first).unwrap();
        layers.publish(BTreeMap::from([(at(1), value(3))]));
        assert_eq!(layers.get_known(&at(1), known, first), Ok(Some(3)));
        let known = layers.ask(&at(1), first).unwrap();
        layers.publish(BTreeMap::from([(at(1), None)]));
        assert_eq!(layers.get_known(&at(1), known, first), Ok(None));
    }
}
