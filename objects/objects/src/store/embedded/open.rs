//! Opening a directory: checks whether it holds a store and whether that is free, or makes a new
//! one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::engine::Engine;
use backing::size::Size;
use backing::spec::CacheMode;
use backing::{BlockStore, FileOptions, FileStore, Health, MemoryStore};

use super::database::{Database, DatabaseFile, DatabaseStorage};
use super::{EmbeddedStore, Inner, recover};
use crate::store::{BLOCK, Error};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes that objects' data may occupy, of a new store; one that exists has its own. `None`: as
    /// many as its file system has.
    pub capacity: Option<u64>,
    /// Whether to make a new store where there is none.
    pub create: bool,
    /// Bytes of metadata that are cached, beside recent changes.
    pub cache_bytes: usize,
    /// Bytes of the journal, of a new store: a checkpoint is due each time that a quarter of them
    /// was written.
    pub journal_bytes: u64,
    /// I/O engine of the arena; `None` for the default.
    pub engine: Option<Engine>,
}

impl Default for Options {
    fn default() -> Self {
        Self { capacity: None, create: false, cache_bytes: 256 << 20, journal_bytes: 64 << 20, engine: None }
    }
}

/// Files of a store, without which it has lost something.
const PARTS: [&str; 3] = ["metadata.redb", "arena", "journal"];
/// Names that a directory has only if it held a store before.
const TRACES: [&str; 5] = ["arena", "journal", "metadata.redb", "metadata.damaged", "identity"];
/// Other names that the directory of a new store may hold.
const OTHERS: [&str; 4] = [UNFINISHED, "journal.new", "metadata.rebuilt", "lost+found"];
/// A file that is in the directory from before a new store's first file until the store is whole.
pub const UNFINISHED: &str = "unfinished";
/// The smallest journal, in bytes.
const LEAST_JOURNAL: u64 = 256 << 10;
/// The largest, in bytes.
const MOST_JOURNAL: u64 = 4 << 30;
/// The journal of a store in memory, in bytes: that of [`Options`], so that changes are bounded
/// alike.
const MEMORY_JOURNAL: u64 = 64 << 20;
/// The cache of one, in bytes: the cached pages are in memory already.
const MEMORY_CACHE: usize = 16 << 20;
/// The largest arena, in bytes: nearly the largest file of ext4.
const MOST_CAPACITY: u64 = 15 << 40;

/// Why a directory could not be opened. Each text names the path and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path} holds no objects: to make a new store there, ask for it")]
    Missing { path: PathBuf },
    #[error("{path} is not empty, and what it holds is no store of objects: name another directory")]
    NotAStore { path: PathBuf },
    #[error("{path} cannot have a capacity of {capacity} bytes: from 1 MiB to 15 TiB are possible")]
    Capacity { path: PathBuf, capacity: u64 },
    /// One of its files is missing or empty, and what the others hold would be lost.
    #[error(
        "{path} holds a part of a store of objects, but {missing} is missing or empty: put it back from a \
         backup, or empty the directory for a new store"
    )]
    Incomplete { path: PathBuf, missing: &'static str },
    /// The directory cannot be made, or the arena cannot be opened, or another process has it.
    #[error(transparent)]
    Arena(#[from] backing::OpenError),
    #[error(
        "{path} is damaged, and its objects cannot be found: {error}; restore the directory from a backup, \
         and watch the medium"
    )]
    Damaged { path: PathBuf, error: Error },
    /// A later version has made it, or has had it.
    #[error("{path} has layout {layout}, which this version does not know: use a later one")]
    Layout { path: PathBuf, layout: u64 },
    #[error("{path} cannot be opened: {error}")]
    Medium { path: PathBuf, error: Error },
    #[error("{path} cannot be {doing}: {source}")]
    System { path: PathBuf, doing: &'static str, source: io::Error },
}

pub(super) struct Parts {
    pub arena: Arc<dyn BlockStore>,
    pub journal: Arc<dyn BlockStore>,
    pub health: Arc<Health>,
    pub database: Box<dyn DatabaseStorage>,
    pub cache_bytes: usize,
    /// Makes it a new one if it was never finished.
    pub create: bool,
    pub thread: bool,
}

impl EmbeddedStore {
    /// Opens the store in the directory `path`, or makes one. Blocks until what a crash has left is
    /// put in order: for start-up.
    ///
    /// # Errors
    /// An [`OpenError`], whose text says what to do.
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let system = |doing| move |source| OpenError::System { path: path.to_owned(), doing, source };
        let [database, arena, journal] = PARTS.map(|part| path.join(part));
        let is_there = |part: &&str| {
            let least = if *part == "journal" { LEAST_JOURNAL } else { 1 };
            path.join(part).metadata().is_ok_and(|found| found.len() >= least)
        };
        let missing = PARTS.into_iter().find(|part| !is_there(part));
        let unfinished = path.join(UNFINISHED).exists();
        if let Some(missing) = missing {
            if !unfinished && TRACES.iter().any(|trace| path.join(trace).exists()) {
                return Err(OpenError::Incomplete { path: path.to_owned(), missing });
            }
            if !options.create {
                return Err(OpenError::Missing { path: path.to_owned() });
            }
            backing::new_directory(path)?;
            for entry in fs::read_dir(path).map_err(system("listed"))? {
                let name = entry.map_err(system("listed"))?.file_name();
                if !TRACES.iter().chain(&OTHERS).any(|own| name == *own) {
                    return Err(OpenError::NotAStore { path: path.to_owned() });
                }
            }
        }
        let is_new = missing.is_some() || unfinished;
        let capacity = match options.capacity {
            Some(capacity) => capacity,
            None => {
                let system_size = rustix::fs::statvfs(path).map_err(|e| system("looked at")(e.into()))?;
                system_size.f_blocks.saturating_mul(system_size.f_frsize).min(MOST_CAPACITY)
            }
        };
        if missing.is_some() && !(1 << 20..=MOST_CAPACITY).contains(&capacity) {
            return Err(OpenError::Capacity { path: path.to_owned(), capacity });
        }
        if missing.is_some() {
            begin(path).map_err(system("marked"))?;
        }
        let is_empty = arena.metadata().map_or(0, |found| found.len()) == 0;
        let size = is_empty.then_some(capacity / BLOCK * BLOCK);
        let file = FileOptions { size, engine: options.engine, ..FileOptions::default() };
        // The arena's lock is the store's.
        let health = Health::new(path.display().to_string());
        let arena = FileStore::open_part(&arena, &file, health.clone())?;
        let bytes = options.journal_bytes.clamp(LEAST_JOURNAL, MOST_JOURNAL).next_multiple_of(8192);
        make_journal(&journal, bytes).map_err(system("given a journal"))?;
        let file = FileOptions {
            cache: Some(CacheMode::WriteBack),
            engine: Some(Engine::Inline),
            thin: Some(false),
            log: true,
            ..FileOptions::default()
        };
        let journal = FileStore::open_part(&journal, &file, health.clone())?;
        let database = DatabaseFile::at(&database).map_err(system("opened"))?;
        flush(path).map_err(system("flushed"))?;
        let parts = Parts {
            arena: Arc::new(arena),
            journal: Arc::new(journal),
            health,
            database: Box::new(database),
            cache_bytes: options.cache_bytes,
            create: options.create && is_new,
            thread: true,
        };
        let store = Self::assemble(parts).map_err(|error| match error {
            Error::NotFound(_) if is_new => OpenError::Missing { path: path.to_owned() },
            // Its database is there, with nothing in it.
            Error::NotFound(id) => OpenError::Damaged { path: path.to_owned(), error: Error::Damaged(id) },
            Error::Layout(layout) => OpenError::Layout { path: path.to_owned(), layout },
            Error::Damaged(_) => OpenError::Damaged { path: path.to_owned(), error },
            error => OpenError::Medium { path: path.to_owned(), error },
        })?;
        if is_new {
            fs::remove_file(path.join(UNFINISHED)).and_then(|()| flush(path)).map_err(system("finished"))?;
        }
        Ok(store)
    }

    /// Makes a store in memory, of `capacity` bytes. Its contents go when it is dropped.
    ///
    /// # Errors
    /// The system has no memory or no thread for it, or the capacity is less than a block.
    pub fn in_memory(capacity: u64) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::Io(error.raw_os_error().unwrap_or(libc::ENOMEM));
        let memory = |bytes, thin| MemoryStore::new(bytes, thin).map(Arc::new).map_err(failed);
        let database = rustix::fs::memfd_create("objects", rustix::fs::MemfdFlags::CLOEXEC);
        let database = File::from(database.map_err(|error| failed(error.into()))?);
        Self::assemble(Parts {
            arena: memory(capacity / BLOCK * BLOCK, true)?,
            journal: memory(MEMORY_JOURNAL, false)?,
            health: Health::new(format!("osd:mem:{}", Size(capacity))),
            database: Box::new(DatabaseFile::in_memory(database)),
            cache_bytes: MEMORY_CACHE,
            create: true,
            thread: true,
        })
    }

    /// Starts the thread that recovers and then writes checkpoints, and waits until it has
    /// recovered.
    fn assemble(parts: Parts) -> Result<Self, Error> {
        let (said, hear) = std::sync::mpsc::sync_channel(1);
        let run = move || {
            let config = runtime::Config {
                entries: 64,
                spin_us: 0,
                pool_bytes: 32 << 20,
                recv_buffers: 2,
                ..runtime::Config::default()
            };
            let runtime = match runtime::Runtime::new(config) {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = said.send(Err(Error::Io(error.raw_os_error().unwrap_or(libc::EIO))));
                    return;
                }
            };
            runtime.block_on(async move {
                match recover::recover(parts).await {
                    Ok(inner) => {
                        let inner = Arc::new(inner);
                        // The caller is waiting.
                        let _ = said.send(Ok(inner.clone()));
                        inner.write_checkpoints().await;
                    }
                    Err(error) => drop(said.send(Err(error))),
                }
            });
        };
        let thread = std::thread::Builder::new().name("objects".into()).spawn(run);
        let thread = thread.map_err(|e| Error::Io(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        let inner: Arc<Inner> = hear.recv().unwrap_or(Err(Error::Io(libc::EIO)))?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// A store that writes checkpoints only on request, or if it has to.
    #[cfg(test)]
    pub(super) async fn by_hand(parts: Parts) -> Result<Self, Error> {
        Ok(Self { inner: Arc::new(recover::recover(parts).await?), thread: None })
    }
}

impl Database {
    pub(super) fn of(parts: &mut Parts) -> Self {
        struct None;
        impl DatabaseStorage for None {
            fn open(&self) -> io::Result<Box<dyn redb::StorageBackend>> {
                Err(io::ErrorKind::NotFound.into())
            }
        }
        Self::new(std::mem::replace(&mut parts.database, Box::new(None)), parts.cache_bytes)
    }
}

/// Marks a directory as that of a store that is not whole yet, durably.
///
/// # Errors
/// Those of the system.
pub fn begin(path: &Path) -> io::Result<()> {
    File::create(path.join(UNFINISHED))?;
    flush(path)
}

fn flush(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes a journal of zeros, so that no later write has to allocate anything. One that exists is
/// left as it is.
fn make_journal(path: &Path, bytes: u64) -> io::Result<()> {
    if path.metadata().is_ok_and(|found| found.len() >= LEAST_JOURNAL) {
        return Ok(());
    }
    let unfinished = path.with_extension("new");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&unfinished)?;
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let n = zeros.len().min((bytes - at) as usize);
        file.write_all_at(&zeros[..n], at)?;
        at += n as u64;
    }
    file.sync_all()?;
    fs::rename(&unfinished, path)
}
