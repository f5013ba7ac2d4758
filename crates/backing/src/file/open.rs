//! Opening a file or block device: what it is, whether it is free, how large, and how its I/O must be aligned.
//!
//! Blocks on the file system; runs at start-up, never on the data path.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring::{Chain, pool};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::engine::Engine;
use crate::size::Size;
use crate::spec::{CacheMode, DEFAULT_BLOCK_SIZE};
use crate::{Geometry, StoreError};

/// How to open a file or block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Bytes; creates a sparse file if there is none (or an empty one). One that exists must have this size.
    pub size: Option<u64>,
    /// `None`: what the engine needs, else write-back for files and direct for block devices.
    pub cache: Option<CacheMode>,
    /// `None`: [`Engine::default_for`] the cache mode.
    pub engine: Option<Engine>,
    /// `None`: thin if the medium can give space back.
    pub thin: Option<bool>,
    /// Logical block size in bytes: 512 to 4096. `None`: 512, or the sector of a direct medium if that is larger.
    pub block_size: Option<u32>,
    /// Opens for reading only.
    pub read_only: bool,
    /// It is a log: little is written at a time, and somebody waits for it each time. Small writes that need not be durable go to
    /// the page cache by a call of the core's own, though the file system may let it wait there; durable ones go past it where the
    /// file system can and nothing that was written before is dirty, and a core with nothing else to do waits for them itself, as for
    /// small flushes, while the medium is quick: one trip to the medium, without a kernel thread that has to be woken for it.
    pub log: bool,
}

/// Why a store could not be opened. Each text names the path and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file, and no size to create it with.
    #[error("{path} does not exist: to create it, give it a size, as in {path},size=1G")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Another process serves it.
    #[error(
        "{path} is in use by another process: two servers of one disk would destroy it. End the other one (`lslocks` or `fuser -v {path}` names it)"
    )]
    Locked {
        /// The path.
        path: PathBuf,
    },
    /// The block device is mounted or part of something.
    #[error(
        "{path} is in use by this system (mounted, swap, or part of LVM, RAID or multipath): release it first (`lsblk {path}` shows who has it), or serve it with ro"
    )]
    Claimed {
        /// The path.
        path: PathBuf,
    },
    /// No permission to write.
    #[error("{path} cannot be written ({source}): serve it with ro, or change its permissions")]
    NotWritable {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a directory, a socket, a tape…
    #[error("{path} is {what}: name a regular file or a block device")]
    NotAMedium {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It has no bytes.
    #[error(
        "{path} has {size} bytes, less than one block of {block_size}: give it a size, as in {path},size=1G"
    )]
    Empty {
        /// The path.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The logical block size in bytes.
        block_size: u32,
    },
    /// Its size is another one.
    #[error("{path} has {have} bytes ({shown}), not {want}: leave the size out, or change the file's with `truncate -s`", shown = Size(*have))]
    WrongSize {
        /// The path.
        path: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// The size asked for, in bytes.
        want: u64,
    },
    /// O_DIRECT is not to be had.
    #[error("{path} lies on a file system without direct I/O: write cache=writeback or cache=writethrough")]
    NoDirect {
        /// The path.
        path: PathBuf,
    },
    /// The unit's blocks are smaller than what the medium can write.
    #[error(
        "{path} can only be written in pieces of {sector} bytes past the page cache, but the unit's blocks have {block_size}: write bs={sector} if it holds no data yet, or cache=writeback"
    )]
    SmallBlocks {
        /// The path.
        path: PathBuf,
        /// What O_DIRECT asks for, in bytes.
        sector: u32,
        /// The logical block size in bytes.
        block_size: u32,
    },
    /// The medium's pieces are larger than any block size.
    #[error(
        "{path} can only be written in pieces of {sector} bytes past the page cache, more than a block can have: write cache=writeback"
    )]
    LargeSectors {
        /// The path.
        path: PathBuf,
        /// What O_DIRECT asks for, in bytes.
        sector: u32,
    },
    /// The engine and the cache mode do not go together.
    #[error("{path} cannot be served with engine={engine} and cache={cache}: {instead}")]
    Engine {
        /// The path.
        path: PathBuf,
        /// The engine asked for.
        engine: Engine,
        /// The cache mode asked for.
        cache: CacheMode,
        /// What to write.
        instead: &'static str,
    },
    /// It cannot be mapped.
    #[error("{path} cannot be mapped ({source}): write engine=inline, or leave engine out")]
    NoMapping {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It was asked to be thin and cannot.
    #[error("{path} lies on a medium that cannot give space back: write thin=off")]
    NotThin {
        /// The path.
        path: PathBuf,
    },
    /// The file was replaced while it was opened.
    #[error("{path} was replaced by another file while it was opened: try again")]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// Any other failure.
    #[error("{path} cannot be {doing}: {source}")]
    System {
        /// The path.
        path: PathBuf,
        /// What failed.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// No memory for a memory store.
    #[error("no memory can be had for a disk of {shown} ({source})", shown = Size(*size))]
    Memory {
        /// Bytes.
        size: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// A medium, open and locked.
#[derive(Debug)]
pub(super) struct Medium {
    /// Reads and writes go here. Holds the lock.
    pub data: ring::File,
    /// Flushes go here: another open file description of the same file. Linux reports a write-back error once to each
    /// description, so that a durable write on `data` cannot swallow the error that the next flush must report.
    pub flush: ring::File,
    pub writable: bool,
    pub size: u64,
    pub cache: CacheMode,
    pub engine: Engine,
    /// It lies on a file system in memory: nothing ever waits for a medium.
    pub in_memory: bool,
    pub block_size: u32,
    pub thin: bool,
    pub geometry: Geometry,
    /// What O_DIRECT asks of memory addresses, in bytes; 1 without it.
    pub memory_align: usize,
    /// See [`FileOptions::log`].
    pub past_cache: Option<PastCache>,
}

/// A file that is else used through the page cache, opened past it.
#[derive(Debug)]
pub(super) struct PastCache {
    pub file: ring::File,
    /// What O_DIRECT asks of memory addresses, and of places and lengths, in bytes.
    pub memory_align: usize,
    pub sector: u32,
    /// The file system said so when it was asked to, and is asked no more.
    pub refused: AtomicBool,
}

impl PastCache {
    /// `None` where the file system cannot: everything then goes through the cache.
    fn open(path: &Path, known: &std::fs::Metadata) -> Option<Self> {
        let file = open_data(path, false, CacheMode::Direct, false).ok()?;
        let about = file.metadata().ok()?;
        if (about.dev(), about.ino()) != (known.dev(), known.ino()) {
            return None;
        }
        let (memory_align, sector) = direct_alignment(&file, false)?;
        let file = ring::File::from_fd(file.into()).ok()?;
        Some(Self { file, memory_align, sector, refused: AtomicBool::new(false) })
    }

    /// What a write came to; `None` if the file system cannot write so, which is no fault of the medium: it goes through the cache.
    pub(super) fn ended(&self, written: io::Result<()>) -> Option<Result<(), StoreError>> {
        match written {
            Ok(()) => Some(Ok(())),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                self.refused.store(true, Ordering::Relaxed);
                None
            }
            Err(error) => Some(Err(StoreError::from_io(&error))),
        }
    }

    /// Whether the kernel takes such a write.
    pub(super) fn takes(&self, at: u64, data: &Chain) -> bool {
        let sector = u64::from(self.sector);
        !self.refused.load(Ordering::Relaxed)
            && at % sector == 0
            && data.iter().all(|buf| buf.is_aligned(self.memory_align) && buf.len() as u64 % sector == 0)
    }
}

impl Medium {
    pub(super) fn open(path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        let system = |doing| move |source| OpenError::System { path: path.to_owned(), doing, source };
        let (is_block_device, create) = match std::fs::metadata(path) {
            Ok(metadata) => (kind(path, &metadata)?, false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (false, true),
            Err(e) => return Err(system("looked at")(e)),
        };
        if create && (options.size.is_none() || options.read_only) {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        let default = if is_block_device { CacheMode::Direct } else { CacheMode::WriteBack };
        let cache = options.cache.unwrap_or_else(|| options.engine.map_or(default, |e| e.cache(default)));
        let engine = options.engine.unwrap_or(Engine::default_for(cache));
        if let Err(instead) = engine.fits(cache) {
            return Err(OpenError::Engine { path: path.to_owned(), engine, cache, instead });
        }
        let mut created = None;
        if create {
            created = Some(create_file(path, options.size.unwrap_or(0))?);
        }
        let result = Self::open_existing(path, options, (cache, engine), is_block_device);
        match (&result, created) {
            // Locked: somebody else found it between its making and our lock, and serves it now.
            (Err(OpenError::Locked { .. }), _) => {}
            (Err(_), Some(Created(file))) => remove_created(path, &file),
            (Ok(_), Some(_)) => tracing::info!(path = %path.display(), size = options.size, "created"),
            _ => {}
        }
        result
    }

    fn open_existing(
        path: &Path,
        options: &FileOptions,
        (cache, engine): (CacheMode, Engine),
        is_block_device: bool,
    ) -> Result<Self, OpenError> {
        let system = |doing| move |source| OpenError::System { path: path.to_owned(), doing, source };
        let data = open_data(path, options.read_only, cache, is_block_device)?;
        let metadata = data.metadata().map_err(system("looked at"))?;
        if kind(path, &metadata)? != is_block_device {
            return Err(OpenError::Replaced { path: path.to_owned() });
        }
        lock(path, &data, options.read_only)?;
        let flush = File::open(path).map_err(system("opened"))?;
        let other = flush.metadata().map_err(system("looked at"))?;
        if (other.dev(), other.ino()) != (metadata.dev(), metadata.ino()) {
            return Err(OpenError::Replaced { path: path.to_owned() });
        }
        if let (Some(size), 0, false, false) =
            (options.size, metadata.len(), is_block_device, options.read_only)
        {
            set_size(path, &data, size)?;
        }
        let (memory_align, sector) = match cache {
            CacheMode::Direct => direct_alignment(&data, is_block_device)
                .ok_or_else(|| OpenError::NoDirect { path: path.to_owned() })?,
            _ => (1, DEFAULT_BLOCK_SIZE),
        };
        let block_size = block_size(path, options.block_size, sector)?;
        let size = media_size(&data).map_err(system("measured"))?;
        match options.size {
            Some(want) if want != size => {
                return Err(OpenError::WrongSize { path: path.to_owned(), have: size, want });
            }
            _ if size < u64::from(block_size) => {
                return Err(OpenError::Empty { path: path.to_owned(), size, block_size });
            }
            _ => {}
        }
        let can_be_thin = match (options.read_only, is_block_device) {
            // Asked only what is already there.
            (true, block) => !block,
            (false, true) => discards(&metadata),
            (false, false) => punches(&data, size),
        };
        if options.thin == Some(true) && !can_be_thin {
            return Err(OpenError::NotThin { path: path.to_owned() });
        }
        let in_memory = !is_block_device && is_in_memory(&data);
        let cached_log = options.log && cache != CacheMode::Direct && !is_block_device && !in_memory;
        let past_cache = cached_log.then(|| PastCache::open(path, &metadata)).flatten();
        Ok(Self {
            geometry: geometry(&data, &metadata, is_block_device, sector),
            data: ring::File::from_fd(data.into()).map_err(system("used"))?,
            flush: ring::File::from_fd(flush.into()).map_err(system("used"))?,
            writable: !options.read_only,
            size,
            cache,
            engine,
            in_memory,
            block_size,
            thin: options.thin.unwrap_or(can_be_thin),
            memory_align,
            past_cache,
        })
    }
}

/// Whether it is a block device; an error if it is neither that nor a regular file.
fn kind(path: &Path, metadata: &std::fs::Metadata) -> Result<bool, OpenError> {
    let file_type = metadata.file_type();
    let what = if file_type.is_file() {
        return Ok(false);
    } else if file_type.is_block_device() {
        return Ok(true);
    } else if file_type.is_dir() {
        "a directory"
    } else if file_type.is_char_device() {
        "a character device"
    } else if file_type.is_fifo() {
        "a pipe"
    } else {
        "a socket"
    };
    Err(OpenError::NotAMedium { path: path.to_owned(), what })
}

/// A file that this process has just made.
struct Created(File);

/// Makes a sparse file, on the medium with its name, before anything is written into it.
fn create_file(path: &Path, size: u64) -> Result<Created, OpenError> {
    let system = |source| OpenError::System { path: path.to_owned(), doing: "created", source };
    let file = new_file(path)?;
    if let Err(error) = set_size(path, &file, size).and_then(|()| sync_parent(path).map_err(system)) {
        remove_created(path, &file);
        return Err(error);
    }
    Ok(Created(file))
}

/// Files made for units that are not open yet. Dropped, it removes them again; [`Self::keep`] does not.
#[derive(Debug, Default)]
pub struct Made {
    /// What was made, and as what to know it again: device and inode.
    files: Vec<(PathBuf, (u64, u64))>,
    syncs: usize,
}

/// Files that are held open at once while they are made.
const AT_ONCE: usize = 256;

impl Made {
    /// Makes those of `wanted`, path and bytes, that do not exist: sparse, and on the medium with their names. It waits for the
    /// medium as seldom as it can: a journal takes many files at once, and a directory's names go together.
    ///
    /// # Errors
    /// The first that cannot be made, or a directory that cannot be synchronised; then none has been.
    pub fn new<'a>(wanted: impl IntoIterator<Item = (&'a Path, u64)>) -> Result<Self, (PathBuf, OpenError)> {
        let mut made = Self::default();
        let mut wanted = wanted.into_iter().filter(|(path, _)| !path.exists()).peekable();
        let mut directories = std::collections::BTreeSet::new();
        while wanted.peek().is_some() {
            let mut files: Vec<(&Path, File)> = Vec::new();
            for (path, size) in wanted.by_ref().take(AT_ONCE) {
                let file = new_file(path).map_err(|error| (path.to_owned(), error))?;
                let about = file.metadata();
                made.files.push((path.to_owned(), about.map_or((0, 0), |about| (about.dev(), about.ino()))));
                file.set_len(size).map_err(failed(path, "given its size"))?;
                directories.insert(parent(path));
                files.push((path, file));
            }
            for (path, file) in files {
                file.sync_all().map_err(failed(path, "created"))?;
            }
        }
        for directory in directories {
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(failed(directory, "synchronised"))?;
            made.syncs += 1;
        }
        Ok(made)
    }

    /// How many files were made.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// How many directories were synchronised for that.
    pub fn directory_syncs(&self) -> usize {
        self.syncs
    }

    /// They are used: they stay.
    pub fn keep(mut self) {
        match &self.files[..] {
            [] => {}
            [(path, _)] => tracing::info!(path = %path.display(), "created"),
            files => tracing::info!(files = files.len(), "created"),
        }
        self.files.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (path, known) in &self.files {
            // Not what somebody else has put there meanwhile.
            let same = |about: &std::fs::Metadata| (about.dev(), about.ino()) == *known;
            if std::fs::symlink_metadata(path).is_ok_and(|about| same(&about)) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn failed<'a>(path: &'a Path, doing: &'static str) -> impl FnOnce(io::Error) -> (PathBuf, OpenError) + 'a {
    move |source| (path.to_owned(), OpenError::System { path: path.to_owned(), doing, source })
}

fn new_file(path: &Path) -> Result<File, OpenError> {
    let system = |source| OpenError::System { path: path.to_owned(), doing: "created", source };
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(system)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn set_size(path: &Path, file: &File, size: u64) -> Result<(), OpenError> {
    let system = |source| OpenError::System { path: path.to_owned(), doing: "given its size", source };
    file.set_len(size).and_then(|()| file.sync_all()).map_err(system)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

/// Removes a file that could not be used after all, if the name is still its.
fn remove_created(path: &Path, file: &File) {
    let same = |a: &std::fs::Metadata, b: &std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if let (Ok(a), Ok(b)) = (file.metadata(), std::fs::symlink_metadata(path)) {
        if same(&a, &b) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn open_data(
    path: &Path,
    read_only: bool,
    cache: CacheMode,
    is_block_device: bool,
) -> Result<File, OpenError> {
    let mut flags = 0;
    if cache == CacheMode::Direct {
        flags |= libc::O_DIRECT;
    }
    if is_block_device && !read_only {
        // Fails with EBUSY while the system itself uses the device, and keeps it from doing so while it is served.
        flags |= libc::O_EXCL;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only).custom_flags(flags);
    let busy = |e: &io::Error| is_block_device && e.raw_os_error() == Some(libc::EBUSY);
    patiently(|| options.open(path), busy).map_err(|source| {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::EINVAL) if cache == CacheMode::Direct => OpenError::NoDirect { path },
            Some(libc::EBUSY) if is_block_device => OpenError::Claimed { path },
            Some(libc::EROFS | libc::EACCES | libc::EPERM | libc::ETXTBSY) if !read_only => {
                OpenError::NotWritable { path, source }
            }
            _ => OpenError::System { path, doing: "opened", source },
        }
    })
}

/// How long a lock or a claim is waited for, and how often it is tried.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 60 } else { 2000 });
const PAUSE: Duration = Duration::from_millis(20);

/// Tries until it is no longer `taken` by another, or for [`PATIENCE`].
///
/// After a close or a kill the kernel may still be finishing the last operations, which hold the file open, and with it its lock
/// and its claim, until they are done; and who only looks at a device claims it for a moment. The successor waits for them, and
/// never reads under writes of its predecessor.
fn patiently<T, E>(mut attempt: impl FnMut() -> Result<T, E>, taken: impl Fn(&E) -> bool) -> Result<T, E> {
    let mut waited = Duration::ZERO;
    loop {
        match attempt() {
            Err(e) if taken(&e) && waited < PATIENCE => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            result => return result,
        }
    }
}

/// Takes the lock that keeps other servers away: `flock`, which ends with the open file description and therefore with
/// the process, however it ends; on block devices it also keeps udev from probing. Readers share it.
fn lock(path: &Path, file: &File, read_only: bool) -> Result<(), OpenError> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let attempt = || rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation));
    patiently(attempt, |e| *e == Errno::WOULDBLOCK).map_err(|e| match e {
        Errno::WOULDBLOCK => OpenError::Locked { path: path.to_owned() },
        e => OpenError::System { path: path.to_owned(), doing: "locked", source: e.into() },
    })
}

/// How many bytes there are: what a regular file's metadata say, and for a block device where its end is.
fn media_size(file: &File) -> io::Result<u64> {
    // Nothing uses the file's position, so that moving it hurts nobody.
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// What O_DIRECT asks of memory addresses, and of offsets and lengths. `None` if there is no direct I/O.
fn direct_alignment(file: &File, is_block_device: bool) -> Option<(usize, u32)> {
    if let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
            let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
            // Both 0: this file cannot be read directly (encrypted, or data in the journal).
            return (memory.is_power_of_two() && offset.is_power_of_two())
                .then_some((memory as usize, offset.max(DEFAULT_BLOCK_SIZE)));
        }
    }
    // Kernels before 6.1, and file systems that do not say: ask the device, or try.
    if is_block_device {
        let sector = rustix::fs::ioctl_blksszget(file).ok().filter(|s| s.is_power_of_two())?;
        return Some((sector as usize, sector.max(DEFAULT_BLOCK_SIZE)));
    }
    let mut buf = pool::alloc(4096)?;
    for sector in [512u32, 1024, 2048, 4096] {
        if file.read_at(&mut buf[..sector as usize], 0).is_ok() {
            return Some((sector as usize, sector));
        }
    }
    None
}

fn block_size(path: &Path, asked: Option<u32>, sector: u32) -> Result<u32, OpenError> {
    const LARGEST: u32 = 4096;
    let path = path.to_owned();
    match asked {
        Some(block_size) if block_size < sector => Err(OpenError::SmallBlocks { path, sector, block_size }),
        Some(block_size) => Ok(block_size),
        None if sector > LARGEST => Err(OpenError::LargeSectors { path, sector }),
        None => Ok(sector.max(DEFAULT_BLOCK_SIZE)),
    }
}

/// Whether the file system keeps its files in memory alone.
fn is_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == TMPFS as _ || fs.f_type == RAMFS as _)
}

/// Whether the file system can make holes: tried behind the end, where a hole changes nothing.
fn punches(file: &File, size: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, size.next_multiple_of(4096), 4096).is_ok()
}

/// A property of a block device's queue.
fn queue_property(metadata: &std::fs::Metadata, name: &str) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition's queue is its disk's.
    let text = std::fs::read_to_string(format!("{device}/queue/{name}"))
        .or_else(|_| std::fs::read_to_string(format!("{device}/../queue/{name}")))
        .ok()?;
    text.trim().parse().ok()
}

/// Whether a block device gives space back in a way that reads as zeros afterwards.
fn discards(metadata: &std::fs::Metadata) -> bool {
    ["discard_max_bytes", "write_zeroes_max_bytes"]
        .iter()
        .all(|name| queue_property(metadata, name).unwrap_or(0) > 0)
}

fn geometry(file: &File, metadata: &std::fs::Metadata, is_block_device: bool, sector: u32) -> Geometry {
    const LARGEST: u64 = 1 << 20;
    let fit = |bytes: u64| match bytes.is_power_of_two() && bytes <= LARGEST {
        true => (bytes as u32).max(sector),
        false => sector.max(4096),
    };
    let (physical, discard) = if is_block_device {
        let physical = rustix::fs::ioctl_blkpbszget(file).map_or(0, u64::from);
        (physical, queue_property(metadata, "discard_granularity").filter(|&g| g > 0).unwrap_or(physical))
    } else {
        (metadata.blksize(), metadata.blksize())
    };
    Geometry { block: sector, physical_block: fit(physical), discard_granularity: fit(discard) }
}
