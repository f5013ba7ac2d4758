//! The metadata as a sorted map: what was changed lately in memory, the rest in redb.
//!
//! Three layers: `active` takes changes, `frozen` is on its way into redb, `base` is redb as of the last checkpoint. A key is
//! looked for in that order. redb is only written by checkpoints, one transaction each, so that it is always exactly what it
//! was after some change; what came later is in the journal. Nothing of redb's panics gets out of here.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// Bytes of keys and values in `active`.
    pub active_bytes: usize,
    pub frozen: Arc<Layer>,
    pub base: Arc<Base>,
}

/// The layers, for all cores.
#[derive(Default)]
pub(super) struct Layers(RwLock<View>);

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
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
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

    /// Shows up to `limit` pairs between two keys, both included, in order, until `each` says false. The key to go on with, if
    /// the limit came first. `each` must not use the layers.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        limit: usize,
        mut each: impl FnMut(&Key, &[u8]) -> bool,
    ) -> Result<Option<Key>, Error> {
        if from > to {
            return Ok(None);
        }
        let view = self.read();
        let view = &*view;
        guarded(|| {
            let mut active = view.active.range(from..=to).peekable();
            let mut frozen = view.frozen.range(from..=to).peekable();
            let mut base = match &view.base.0 {
                Some(table) => Some(table.range::<&Key>(&from..=&to).map_err(|e| redb_error(e.into()))?),
                None => None,
            };
            let mut from_base = || match base.as_mut().and_then(Iterator::next) {
                Some(Ok(pair)) => Ok(Some(pair)),
                Some(Err(error)) => Err(redb_error(error.into())),
                None => Ok(None),
            };
            let mut below = from_base()?;
            let mut left = limit;
            loop {
                let keys = [
                    active.peek().map(|(key, _)| **key),
                    frozen.peek().map(|(key, _)| **key),
                    below.as_ref().map(|(key, _)| *key.value()),
                ];
                let Some(next) = keys.into_iter().flatten().min() else { return Ok(None) };
                if left == 0 {
                    return Ok(Some(next));
                }
                let mut go_on = true;
                let newest = take(&mut active, &next);
                let newer = take(&mut frozen, &next);
                match newest.or(newer) {
                    Some(Some(value)) => {
                        left -= 1;
                        go_on = each(&next, value);
                    }
                    Some(None) => {}
                    None => {
                        if let Some((_, value)) = &below {
                            left -= 1;
                            go_on = each(&next, value.value());
                        }
                    }
                }
                if keys[2] == Some(next) {
                    below = from_base()?;
                }
                if !go_on {
                    return Ok(None);
                }
            }
        })
    }
}

fn take<'a>(layer: &mut Peekable<impl Iterator<Item = (&'a Key, &'a Val)>>, key: &Key) -> Option<&'a Val> {
    layer.next_if(|(next, _)| *next == key).map(|(_, value)| value)
}
