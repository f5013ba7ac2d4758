//! A new database, of the readable pairs of one that redb refuses.
//!
//! It is written beside the old one and takes its place when it is whole; the old one is kept under
//! another name. Records that do not match their checksums are taken along, so that a check can
//! name their owners. A key of the kind [`LOST`] stands for each page with lost pairs. While there
//! is one, the store is not changed, since its free blocks are not known.

use std::io;
use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTable};

use super::database::{DatabaseStorage, Meta, builder};
use super::layers::{TABLE, guarded, redb_error};
use super::overflow::{Opened, Overflow};
use super::pages::{Item, Salvage};
use super::record::{KINDS, Key, LOST, META, key, unsealed};
use crate::store::{Error, Id};

/// Bytes of records that are held before they are written.
const AT_ONCE: usize = 8 << 20;

struct Copying<'a> {
    into: &'a redb::Database,
    waiting: Vec<(Key, Vec<u8>)>,
    bytes: usize,
    lost: u64,
}

/// Whether a record matches its checksum, of whatever layout it is.
fn is_sound(key: &[u8], value: &[u8]) -> bool {
    unsealed(key, value).is_some() || unsealed(&[], value).is_some()
}

impl Copying<'_> {
    fn take(&mut self, item: Item<'_>) -> Result<(), redb::Error> {
        let (key, value) = match item {
            Item::Pair { key, value, .. } => match Key::try_from(key) {
                Ok(key) if KINDS.contains(&key[0]) => (key, value),
                _ => return Ok(()),
            },
            Item::Lost(page) => {
                self.lost += 1;
                (key(LOST, page, 0, 0), &[][..])
            }
        };
        self.bytes += key.len() + value.len();
        self.waiting.push((key, value.to_vec()));
        if self.bytes >= AT_ONCE { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), redb::Error> {
        let transaction = self.into.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in self.waiting.drain(..) {
                // The damage may be in the key itself: it takes no sound record's place.
                if is_sound(&key, &value) || table.get(&key)?.is_none() {
                    table.insert(&key, value.as_slice())?;
                }
            }
        }
        self.bytes = 0;
        Ok(transaction.commit()?)
    }
}

/// Makes the database anew. Whether anything is lost. An error if nothing can be saved: then the
/// old one is as it was.
pub(super) fn rebuild(storage: &dyn DatabaseStorage, cache_bytes: usize) -> Result<bool, Error> {
    let damaged = Error::Damaged(Id::ROOT);
    let failed = |error: io::Error| redb_error(error.into());
    let old = storage.open().map_err(failed)?;
    let beside = match storage.beside() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(damaged),
        beside => Arc::new(Overflow::new(beside.map_err(failed)?, 0)),
    };
    let found = guarded(|| {
        let into = builder(cache_bytes).create_with_backend(Opened(beside.clone()));
        let into = into.map_err(|error| redb_error(error.into()))?;
        let mut copying = Copying { into: &into, waiting: Vec::new(), bytes: 0, lost: 0 };
        let (like, width) = (Opened(beside), size_of::<Key>());
        let mut each = |item: Item<'_>| copying.take(item);
        let read = Salvage::read(&*old, &like, "objects", width, is_sound, &mut each);
        let mended = read.map_err(redb_error)?.ok_or(damaged)?;
        copying.write().map_err(redb_error)?;
        let lost = copying.lost;
        let read = || -> Result<_, redb::Error> {
            let table = into.begin_read()?.open_table(TABLE)?;
            Ok(table.get(&key(META, 0, 0, 0))?.map(|meta| Meta::decode(meta.value())))
        };
        // Without it, the store would be taken for one that was never finished.
        read().map_err(redb_error)?.ok_or(damaged)??;
        Ok((mended, lost))
    });
    let (mended, lost) = found.inspect_err(|_| storage.forget())?;
    let kept = storage.replace().map_err(failed)?;
    let file = storage.name();
    if lost > 0 {
        tracing::error!(
            file,
            kept,
            mended,
            lost,
            "pages of the objects' metadata were damaged; it is made anew of the rest: restore a backup, \
             or have `stag osd check --repair` say what is lost"
        );
    } else {
        tracing::error!(
            file,
            kept,
            mended,
            "bits of the objects' metadata had turned, and are turned back; nothing is lost: watch the medium"
        );
    }
    Ok(lost > 0)
}
