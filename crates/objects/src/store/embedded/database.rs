//! redb, as checkpoints write it; opened anew after it has failed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use redb::{ReadableDatabase, StorageBackend};

use super::layers::{Base, Layer, TABLE, guarded, redb_error};
use super::record::{self, META, key};
use crate::store::{Error, ObjectId};

/// Opens what redb keeps its pages in; again after a failure.
pub trait DatabaseStorage: Send + Sync + 'static {
    /// A new handle on the same bytes.
    ///
    /// # Errors
    /// Those of the medium.
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;
}

/// A regular file. The arena's lock is the lock of the whole store: this one has none of its own.
#[derive(Debug)]
pub struct DatabaseFile(
    /// Which.
    pub File,
);

impl DatabaseStorage for DatabaseFile {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(Pages(self.0.try_clone()?)))
    }
}

#[derive(Debug)]
struct Pages(File);

impl StorageBackend for Pages {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// What the store says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// Its name: random.
    pub name: u64,
    /// The last frame of the journal that is in here.
    pub number: u64,
    /// The segment in which the next one is.
    pub side: u64,
    /// Blocks of the arena.
    pub blocks: u64,
    /// Bytes of a segment of the journal.
    pub segment: u64,
    /// It was closed, and everything that is free is zeros.
    pub clean: bool,
}

/// The layout that this code writes.
const VERSION: u64 = 1;

impl Meta {
    fn encode(&self) -> Vec<u8> {
        let numbers =
            [VERSION, self.name, self.number, self.side, self.blocks, self.segment, u64::from(self.clean)];
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        record::sealed(&bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = Error::Damaged(ObjectId::ROOT);
        let rest = record::unsealed(bytes).ok_or(damaged)?;
        let mut numbers = [0; 7];
        let mut found = rest.chunks_exact(8);
        for number in &mut numbers {
            let bytes = found.next().and_then(|b| b.try_into().ok()).ok_or(damaged)?;
            *number = u64::from_le_bytes(bytes);
        }
        let [version, name, number, side, blocks, segment, clean] = numbers;
        let sensible = version == VERSION && side < 2 && clean < 2 && segment >= 1 << 16 && blocks > 0;
        let clean = clean == 1;
        if sensible { Ok(Self { name, number, side, blocks, segment, clean }) } else { Err(damaged) }
    }
}

/// The database. Only whoever writes a checkpoint takes the lock.
pub(super) struct Database {
    storage: Box<dyn DatabaseStorage>,
    cache_bytes: usize,
    open: Mutex<Option<redb::Database>>,
}

impl Database {
    pub fn new(storage: Box<dyn DatabaseStorage>, cache_bytes: usize) -> Self {
        Self { storage, cache_bytes, open: Mutex::new(None) }
    }

    fn with<T>(&self, f: impl FnOnce(&redb::Database) -> Result<T, redb::Error>) -> Result<T, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let result = guarded(|| {
            let database = match open.take() {
                Some(database) => database,
                None => {
                    let backend = Opened(self.storage.open().map_err(|e| redb_error(e.into()))?);
                    let mut builder = redb::Builder::new();
                    builder.set_cache_size(self.cache_bytes);
                    builder.create_with_backend(backend).map_err(|e| redb_error(e.into()))?
                }
            };
            let result = f(&database).map_err(redb_error);
            if result.is_ok() {
                *open = Some(database);
            }
            result
        });
        // After a failure it is dropped: redb refuses everything then until it is opened anew.
        result
    }

    /// What the last checkpoint says, and its state for readers. No `Meta` of a store that was never finished.
    pub fn open(&self) -> Result<(Option<Meta>, Base), Error> {
        self.with(|database| {
            let transaction = database.begin_read()?;
            let table = match transaction.open_table(TABLE) {
                Ok(table) => table,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok((None, Base(None))),
                Err(error) => return Err(error.into()),
            };
            let meta = table.get(&key(META, 0, 0, 0))?.map(|value| value.value().to_vec());
            Ok((meta, Base(Some(table))))
        })
        .and_then(|(meta, base)| Ok((meta.map(|bytes| Meta::decode(&bytes)).transpose()?, base)))
    }

    /// Writes a layer as one transaction, durably, and gives the state after it.
    pub fn write(&self, layer: &Layer, meta: &Meta) -> Result<Base, Error> {
        self.with(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                for (key, value) in layer {
                    match value {
                        Some(value) => drop(table.insert(key, &**value)?),
                        None => drop(table.remove(key)?),
                    }
                }
                table.insert(&key(META, 0, 0, 0), meta.encode().as_slice())?;
            }
            transaction.commit()?;
            Ok(Base(Some(database.begin_read()?.open_table(TABLE)?)))
        })
    }
}

/// A boxed backend as one.
#[derive(Debug)]
struct Opened(Box<dyn StorageBackend>);

impl StorageBackend for Opened {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
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
    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}
