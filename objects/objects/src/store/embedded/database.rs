//! redb, as checkpoints write it; opened anew after it has failed, and made anew if it is damaged.
//!
//! redb may panic on a page that it does not expect, and in a commit twice, which ends the process.
//! So it verifies the whole file when it is opened, and later reads go through [`Verified`].

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use backing::Presence;
use redb::{ReadableDatabase, ReadableTable, StorageBackend};

use super::layers::{Base, Layer, TABLE, guarded, redb_error};
use super::overflow::{Opened, Overflow};
use super::rebuild::rebuild;
use super::record::{self, Key, META, key};
use super::verified::Verified;
use crate::store::{Error, Id};

/// Opens what redb keeps its pages in; again after a failure.
pub trait DatabaseStorage: Send + Sync + 'static {
    /// Its name in the log.
    fn name(&self) -> String {
        String::new()
    }

    /// A new handle on the same bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;

    /// An empty one beside it, which may take its place.
    ///
    /// # Errors
    /// Those of the system; `Unsupported` if there is no such place.
    fn beside(&self) -> io::Result<Box<dyn StorageBackend>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Puts the file that was made beside it in its place, durably, and keeps the old one under
    /// another name, which it returns.
    ///
    /// # Errors
    /// Those of the system.
    fn replace(&self) -> io::Result<String> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes the file that was made beside it.
    fn forget(&self) {}

    /// Whether its file has no name any more.
    fn is_removed(&self) -> bool {
        false
    }

    /// Whether its file is at its path; `None` if it has none, or if that is not known.
    fn presence(&self) -> Option<Presence> {
        None
    }
}

/// A regular file. The arena's lock is the lock of the whole store: this one has none of its own.
#[derive(Debug)]
pub struct DatabaseFile {
    file: Mutex<File>,
    /// `None` of one in memory.
    path: Option<PathBuf>,
}

impl DatabaseFile {
    /// Opens a file, or makes one.
    ///
    /// # Errors
    /// Those of the system.
    pub fn at(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file: Mutex::new(file), path: Some(path.to_owned()) })
    }

    /// A file without a name.
    pub fn in_memory(file: File) -> Self {
        Self { file: Mutex::new(file), path: None }
    }

    /// The file beside this one of another extension.
    fn sibling(&self, extension: &str) -> io::Result<PathBuf> {
        let path = self.path.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Ok(path.with_extension(extension))
    }

    fn file(&self) -> std::sync::MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Extensions of a damaged database, and of one that is being made, instead of `.redb`.
const DAMAGED: &str = "damaged";
const REBUILT: &str = "rebuilt";

impl DatabaseStorage for DatabaseFile {
    fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "memory".to_owned(), |path| path.display().to_string())
    }

    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(Pages(self.file().try_clone()?)))
    }

    fn beside(&self) -> io::Result<Box<dyn StorageBackend>> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(self.sibling(REBUILT)?)?;
        Ok(Box::new(Pages(file)))
    }

    fn replace(&self) -> io::Result<String> {
        let (rebuilt, damaged) = (self.sibling(REBUILT)?, self.sibling(DAMAGED)?);
        let path = self.path.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let file = File::options().read(true).write(true).open(&rebuilt)?;
        // A check by root leaves it to the daemon's user.
        let before = std::fs::metadata(path)?;
        file.set_permissions(before.permissions())?;
        std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()))?;
        file.sync_all()?;
        match std::fs::remove_file(&damaged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // At no time is there none under its name. Not every file system has links.
        if std::fs::hard_link(path, &damaged).is_err() {
            std::fs::copy(path, &damaged)?;
        }
        {
            // Whoever asks for its presence sees one of both files, under its name.
            let mut open = self.file();
            std::fs::rename(&rebuilt, path)?;
            *open = file;
        }
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(damaged.display().to_string())
    }

    fn is_removed(&self) -> bool {
        self.path.is_some() && self.file().metadata().is_ok_and(|own| own.nlink() == 0)
    }

    fn presence(&self) -> Option<Presence> {
        let path = self.path.as_ref()?;
        let file = self.file();
        let own = file.metadata().ok()?;
        match std::fs::metadata(path) {
            _ if own.nlink() == 0 => Some(Presence::Removed),
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => Some(Presence::There),
            Ok(_) => Some(Presence::Moved),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Presence::Moved),
            Err(_) => None,
        }
    }

    fn forget(&self) {
        if let Ok(rebuilt) = self.sibling(REBUILT) {
            // The next one is made over it.
            let _ = std::fs::remove_file(rebuilt);
        }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// Layout of the records: [`LAYOUT`], or an older one.
    pub layout: u64,
    /// Its name: random.
    pub name: u64,
    /// The last frame of the journal that is in here.
    pub number: u64,
    /// The segment in which the next one is.
    pub side: u64,
    pub blocks: u64,
    pub segment: u64,
    /// It was closed, and everything that is free is zeros.
    pub clean: bool,
}

/// The layout that this code writes. Of layout 1, checksums did not cover keys.
pub(super) const LAYOUT: u64 = 2;

/// Bytes of a checkpoint that may wait for room.
const OVERFLOW: usize = 256 << 20;
/// Records that are looked at between two that are written, when they are laid out anew.
const AT_ONCE: usize = 4096;

impl Meta {
    fn encode(&self) -> Vec<u8> {
        let Self { layout, name, number, side, blocks, segment, clean } = *self;
        let numbers = [layout, name, number, side, blocks, segment, u64::from(clean)];
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        // The same in every layout.
        record::sealed(&[], &bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = Error::Damaged(Id::ROOT);
        let rest = record::unsealed(&[], bytes).ok_or(damaged)?;
        let mut numbers = [0; 7];
        let mut found = rest.chunks_exact(8);
        for number in &mut numbers {
            let bytes = found.next().and_then(|b| b.try_into().ok()).ok_or(damaged)?;
            *number = u64::from_le_bytes(bytes);
        }
        let [layout, name, number, side, blocks, segment, clean] = numbers;
        if layout > LAYOUT {
            return Err(Error::Layout(layout));
        }
        let sensible = layout > 0 && side < 2 && clean < 2 && segment >= 1 << 16 && blocks > 0;
        let clean = clean == 1;
        if sensible { Ok(Self { layout, name, number, side, blocks, segment, clean }) } else { Err(damaged) }
    }
}

/// The database. Only the writer of a checkpoint takes the lock.
pub(super) struct Database {
    storage: Box<dyn DatabaseStorage>,
    cache_bytes: usize,
    open: Mutex<Option<Open>>,
    /// Records were lost when it was made anew, and [`Database::open`] has not reported that yet.
    lost: AtomicBool,
}

type Open = (redb::Database, Arc<Overflow>);

/// For a database that is verified when it is opened.
pub(super) fn builder(cache_bytes: usize) -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
    builder
}

impl Database {
    pub fn new(storage: Box<dyn DatabaseStorage>, cache_bytes: usize) -> Self {
        Self { storage, cache_bytes, open: Mutex::new(None), lost: AtomicBool::new(false) }
    }

    /// Whether its file has no name any more.
    pub fn is_removed(&self) -> bool {
        self.storage.is_removed()
    }

    /// Whether its file is at its path.
    pub fn presence(&self) -> Option<Presence> {
        self.storage.presence()
    }

    fn open_verified(&self) -> Result<Open, Error> {
        guarded(|| {
            let file = self.storage.open().map_err(|e| redb_error(e.into()))?;
            let file = Box::new(Verified::new(file, self.storage.name()));
            let file = Arc::new(Overflow::new(file, OVERFLOW));
            let database = builder(self.cache_bytes).create_with_backend(Opened(file.clone()));
            Ok((database.map_err(|e| redb_error(e.into()))?, file))
        })
    }

    /// Opens redb. A damaged one is made anew of what can be read of it.
    fn open_or_rebuild(&self) -> Result<Open, Error> {
        match self.open_verified() {
            Err(Error::Damaged(_)) => {
                if rebuild(&*self.storage, self.cache_bytes)? {
                    self.lost.store(true, Ordering::Relaxed);
                }
                self.open_verified()
            }
            open => open,
        }
    }

    fn with<T>(
        &self,
        f: impl FnOnce(&redb::Database, &Overflow) -> Result<T, redb::Error>,
    ) -> Result<T, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let result = guarded(|| {
            let (database, file) = match open.take() {
                Some(open) => open,
                None => self.open_or_rebuild()?,
            };
            let result = f(&database, &file).map_err(redb_error);
            if result.is_ok() {
                *open = Some((database, file));
            }
            result
        });
        // After a failure it is dropped: redb refuses everything then until it is opened anew.
        result
    }

    /// The last checkpoint's `Meta`, its state for readers, and whether records were lost since it
    /// was opened before. A store that was never finished has no `Meta`.
    pub fn open(&self) -> Result<(Option<Meta>, Base, bool), Error> {
        self.with(|database, _| {
            let transaction = database.begin_read()?;
            let table = match transaction.open_table(TABLE) {
                Ok(table) => table,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok((None, Base(None))),
                Err(error) => return Err(error.into()),
            };
            let meta = table.get(&key(META, 0, 0, 0))?.map(|value| value.value().to_vec());
            Ok((meta, Base(Some(table))))
        })
        .and_then(|(meta, base)| {
            let meta = meta.map(|bytes| Meta::decode(&bytes)).transpose()?;
            Ok((meta, base, self.lost.swap(false, Ordering::Relaxed)))
        })
    }

    /// The same of redb that is opened anew, though it may not have failed in a checkpoint.
    pub(crate) fn open_anew(&self) -> Result<(Option<Meta>, Base, bool), Error> {
        drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.open()
    }

    /// Writes a layer as one transaction, durably, and gives the state after it. Without room for
    /// it, [`Error::NoSpace`]: then the medium has the state before, and what readers see may be
    /// either.
    pub fn write(&self, layer: &Layer, meta: &Meta) -> Result<Base, Error> {
        self.transaction(meta, |table| put(table, layer))
    }

    /// Like [`Self::write`], on records of layout 1, which it lays out anew.
    pub(crate) fn write_anew(&self, layer: &Layer, meta: &Meta) -> Result<Base, Error> {
        self.transaction(&Meta { layout: LAYOUT, ..*meta }, |table| {
            put(table, layer)?;
            let mut last: Option<Key> = None;
            loop {
                let begin = last;
                let from = begin.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut some: Vec<(Key, Vec<u8>)> = Vec::new();
                for pair in table.range::<&Key>((from, Bound::Unbounded))?.take(AT_ONCE) {
                    let (key, value) = pair?;
                    let (key, value) = (*key.value(), value.value());
                    if last.replace(key).is_some_and(|last| key <= last) {
                        return Err(redb::Error::Corrupted("keys are not in order".to_owned()));
                    }
                    some.push((key, record::moved(&[], &key, value)));
                }
                for (key, value) in &some {
                    table.insert(key, value.as_slice())?;
                }
                if some.is_empty() {
                    return Ok(());
                }
            }
        })
    }

    fn transaction(
        &self,
        meta: &Meta,
        change: impl FnOnce(&mut Table<'_>) -> Result<(), redb::Error>,
    ) -> Result<Base, Error> {
        let written = self.with(|database, file| {
            // Finish the previous commit first: this one may use pages that the medium still needs
            // for it.
            if !file.settle()? {
                return Ok(None);
            }
            let mut transaction = database.begin_write()?;
            // Else redb takes a damaged page of a database that was not closed for an interrupted
            // commit. It then goes back to the commit before, whose frames the journal has no more.
            transaction.set_two_phase_commit(true);
            {
                let mut table = transaction.open_table(TABLE)?;
                change(&mut table)?;
                table.insert(&key(META, 0, 0, 0), meta.encode().as_slice())?;
            }
            transaction.commit()?;
            if !file.settle()? {
                return Ok(None);
            }
            Ok(Some(Base(Some(database.begin_read()?.open_table(TABLE)?))))
        })?;
        written.ok_or(Error::NoSpace)
    }
}

type Table<'a> = redb::Table<'a, &'static Key, &'static [u8]>;

fn put(table: &mut Table<'_>, layer: &Layer) -> Result<(), redb::Error> {
    for key in layer.deleted() {
        table.remove(key)?;
    }
    for (key, value) in layer.living() {
        table.insert(key, value)?;
    }
    Ok(())
}
