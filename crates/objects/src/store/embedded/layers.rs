//! The metadata as a sorted map: what was changed lately in memory, the rest in redb.
//!
//! Three layers: `active` takes changes, `frozen` is on its way into redb, `base` is redb as of the last checkpoint. A key is
//! looked for in that order. redb is only written by checkpoints, one transaction each, so that it is always exactly what it
//! was after some change; what came later is in the journal. Nothing of redb's panics gets out of here.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::{ReadOnlyTable, TableDefinition};

use super::record::Key;
use crate::store::{Error, ObjectId};

/// The one table.
pub(super) const TABLE: TableDefinition<'static, &'static Key, &'static [u8]> =
    TableDefinition::new("objects");

/// A value, or that there is none any more.
pub(super) type Val = Option<Arc<[u8]>>;
pub(super) type Layer = BTreeMap<Key, Val>;

/// redb as of a checkpoint. An empty one has no table yet.
#[derive(Default)]
pub(super) struct Base(pub Option<ReadOnlyTable<&'static Key, &'static [u8]>>);

/// The three.
#[derive(Default)]
pub(super) struct View {
    pub active: Layer,
    pub frozen: Arc<Layer>,
    pub base: Arc<Base>,
}

/// The layers, for all cores.
#[derive(Default)]
pub(super) struct Layers {
    view: RwLock<View>,
    /// Bytes of keys and values in the active layer, for those who need not see it.
    active_bytes: AtomicUsize,
}

/// So many deleted keys are copied at most before the lock is released; so are as many others as were asked for.
const DELETED_AT_ONCE: usize = 4096;

/// What redb says, as an error of the store.
pub(super) fn redb_error(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(error) => match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Error::NoSpace,
            Some(libc::EROFS) => Error::ReadOnly,
            errno => Error::Io(errno.unwrap_or(libc::EIO)),
        },
        redb::Error::Corrupted(_) => Error::Damaged(ObjectId::ROOT),
        _ => Error::Io(libc::EIO),
    }
}

/// Runs what calls redb: a panic in there is damage that it did not expect.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Error::Damaged(ObjectId::ROOT)))
}

impl Base {
    fn get<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Error> {
        let Some(table) = &self.0 else { return Ok(None) };
        guarded(|| {
            let found = table.get(key).map_err(|e| redb_error(e.into()))?;
            Ok(found.map(|value| f(value.value())))
        })
    }
}

impl Layers {
    pub fn read(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of keys and values that the next checkpoint takes.
    pub fn active_bytes(&self) -> usize {
        self.active_bytes.load(Ordering::Relaxed)
    }

    /// Shows everybody what has changed.
    pub fn publish(&self, puts: Layer) {
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

    /// Shows the value of a key.
    pub fn get<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Error> {
        let view = self.read();
        if let Some(found) = view.active.get(key).or_else(|| view.frozen.get(key)) {
            let found = found.clone();
            drop(view);
            return Ok(found.map(|value| f(&value)));
        }
        let base = view.base.clone();
        drop(view);
        base.get(key, f)
    }

    /// What redb has of a key, to be asked with [`Self::get_known`] under a lock that no redb is to be asked under.
    pub fn ask<R>(&self, key: &Key, f: impl FnOnce(&[u8]) -> R) -> Result<Known<R>, Error> {
        let view = self.read();
        let base = view.base.clone();
        if view.active.contains_key(key) || view.frozen.contains_key(key) {
            return Ok(Known { base, found: None });
        }
        drop(view);
        let found = base.get(key, f)?;
        Ok(Known { base, found })
    }

    /// As [`Self::get`]; asks redb only if a checkpoint has been written since `known` was looked up.
    pub fn get_known<R>(
        &self,
        key: &Key,
        known: Known<R>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let view = self.read();
        if let Some(found) = view.active.get(key).or_else(|| view.frozen.get(key)) {
            return Ok(found.as_deref().map(f));
        }
        if Arc::ptr_eq(&view.base, &known.base) {
            return Ok(known.found);
        }
        drop(view);
        self.get(key, f)
    }

    /// Shows up to `limit` pairs between two keys, both included, in order, until `each` says false. The key to go on with, if
    /// the limit came first. What it shows is of one moment, unless there are thousands of deleted keys among it. The lock is not
    /// held while redb is asked. `each` must not use the layers.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        limit: usize,
        mut each: impl FnMut(&Key, &[u8]) -> bool,
    ) -> Result<Option<Key>, Error> {
        let (mut next, mut left) = (Some(from), limit);
        while let Some(from) = next.filter(|from| *from <= to) {
            let view = self.read();
            if view.base.0.is_none() {
                // Nothing of it is read from a medium.
                return match merge(
                    view.active.range(from..=to),
                    &view.frozen,
                    &view.base,
                    (from, to),
                    &mut left,
                    &mut each,
                )? {
                    Scanned::All => Ok(None),
                    Scanned::Until(next) => Ok(next),
                };
            }
            let (mut some, mut until) = (Vec::new(), to);
            let (mut shown, mut deleted) = (0, 0);
            for (key, value) in view.active.range(from..=to) {
                some.push((*key, value.clone()));
                match value {
                    Some(_) => shown += 1,
                    None => deleted += 1,
                }
                // One more than is shown, to know whether there are more.
                if shown > left || deleted >= DELETED_AT_ONCE {
                    until = *key;
                    break;
                }
            }
            let (frozen, base) = (view.frozen.clone(), view.base.clone());
            drop(view);
            match merge(
                some.iter().map(|(key, value)| (key, value)),
                &frozen,
                &base,
                (from, until),
                &mut left,
                &mut each,
            )? {
                Scanned::All => next = if until < to { successor(&until) } else { None },
                Scanned::Until(next) => return Ok(next),
            }
        }
        Ok(None)
    }
}

/// What redb said of a key, and which redb.
pub(super) struct Known<R> {
    base: Arc<Base>,
    found: Option<R>,
}

/// How far a scan has come.
enum Scanned {
    /// All there is between the two keys was shown.
    All,
    /// `each` has had enough, or the limit came and this is the next.
    Until(Option<Key>),
}

/// Shows what three layers have between two keys: `active` is that of the first.
fn merge<'a>(
    active: impl Iterator<Item = (&'a Key, &'a Val)>,
    frozen: &Layer,
    base: &Base,
    (from, to): (Key, Key),
    left: &mut usize,
    each: &mut impl FnMut(&Key, &[u8]) -> bool,
) -> Result<Scanned, Error> {
    guarded(|| {
        let mut active = active.peekable();
        let mut frozen = frozen.range(from..=to).peekable();
        let mut base = match &base.0 {
            Some(table) => Some(table.range::<&Key>(&from..=&to).map_err(|e| redb_error(e.into()))?),
            None => None,
        };
        let mut from_base = || match base.as_mut().and_then(Iterator::next) {
            Some(Ok(pair)) => Ok(Some(pair)),
            Some(Err(error)) => Err(redb_error(error.into())),
            None => Ok(None),
        };
        let mut below = from_base()?;
        loop {
            let keys = [
                active.peek().map(|(key, _)| **key),
                frozen.peek().map(|(key, _)| **key),
                below.as_ref().map(|(key, _)| *key.value()),
            ];
            let Some(next) = keys.into_iter().flatten().min() else { return Ok(Scanned::All) };
            let (newest, newer) = (take(&mut active, &next), take(&mut frozen, &next));
            let under = below.as_ref().filter(|_| keys[2] == Some(next)).map(|(_, value)| value.value());
            let value = match newest.or(newer) {
                Some(value) => value.as_deref(),
                None => under,
            };
            if let Some(value) = value {
                if *left == 0 {
                    return Ok(Scanned::Until(Some(next)));
                }
                *left -= 1;
                if !each(&next, value) {
                    return Ok(Scanned::Until(None));
                }
            }
            if keys[2] == Some(next) {
                below = from_base()?;
            }
        }
    })
}

/// The key behind `key`.
fn successor(key: &Key) -> Option<Key> {
    let mut next = *key;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

fn take<'a>(layer: &mut Peekable<impl Iterator<Item = (&'a Key, &'a Val)>>, key: &Key) -> Option<&'a Val> {
    layer.next_if(|(next, _)| *next == key).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicU64;

    use redb::StorageBackend;

    use super::super::database::{Database, DatabaseStorage, Meta};
    use super::super::record::{USER, key, numbers};
    use super::super::testing::Disk;
    use super::*;

    /// A disk that looks, whenever it is read, whether somebody has the lock of the layers.
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
        // More deleted ones in a row than are copied at once, some of which were frozen.
        let deleted = 1000..1000 + 2 * DELETED_AT_ONCE as u64;
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
    fn what_is_known_of_a_key_counts_until_a_checkpoint_is_written() {
        let database = Database::new(Box::new(Disk::default()), 0);
        let meta = Meta { layout: 2, name: 1, number: 0, side: 0, blocks: 1, segment: 1 << 16, clean: false };
        let layers = Layers::default();
        let write = |n: u8| {
            let base = database.write(&Layer::from([(at(1), value(n))]), &meta).unwrap();
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
        layers.publish(Layer::from([(at(1), value(3))]));
        assert_eq!(layers.get_known(&at(1), known, first), Ok(Some(3)));
        let known = layers.ask(&at(1), first).unwrap();
        layers.publish(Layer::from([(at(1), None)]));
        assert_eq!(layers.get_known(&at(1), known, first), Ok(None));
    }
}
