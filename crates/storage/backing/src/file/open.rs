//! Opens a file or block device: determines its kind, size and I/O alignment, and locks it.
//!
//! Blocks on the file system; runs at start-up, never on the data path.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime::{Chain, OpenOptions, files, pool};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::Geometry;
use crate::engine::Engine;
use crate::size::Size;
use crate::spec::{CacheMode, DEFAULT_BLOCK_SIZE};

/// Options to open a file or block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Size in bytes. A missing or empty file is created sparse with this size; an existing one
    /// must have it.
    pub size: Option<u64>,
    /// `None`: the mode that the engine requires, otherwise write-back for files and direct for
    /// block devices.
    pub cache: Option<CacheMode>,
    /// `None`: [`Engine::default_for`] of the cache mode.
    pub engine: Option<Engine>,
    /// `None`: thin if the medium supports it.
    pub thin: Option<bool>,
    /// Logical block size in bytes: 512 to 4096. `None`: 512, or the sector of a direct medium if
    /// that is larger.
    pub block_size: Option<u32>,
    /// Opens for reading only.
    pub read_only: bool,
    /// The file is a log: writes are small, and a caller waits for each one. The core writes small
    /// non-durable writes to the page cache itself, although the file system may block it. Durable
    /// writes bypass the page cache if the file system supports it and no earlier write is dirty.
    /// While the medium is fast, an idle core waits for them itself, as for small flushes. That is
    /// one round trip to the medium, without waking a kernel thread.
    pub log: bool,
}

/// Reason why a store could not be opened. Each text names the path and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file does not exist, and no size is given to create it.
    #[error("{path} does not exist: to create it, give it a size, as in {path},size=1G")]
    Missing { path: PathBuf },
    /// The device does not exist.
    #[error(
        "{path} does not exist, and nothing is made among devices: check the name (`lsblk` lists what there is)"
    )]
    NoDevice { path: PathBuf },
    /// Another process serves the medium.
    #[error(
        "{path} is in use by another process: two servers of one disk would destroy it. End the other one (`lslocks` or `fuser -v {path}` names it)"
    )]
    Locked { path: PathBuf },
    /// The block device is mounted or part of another device.
    #[error(
        "{path} is in use by this system (mounted, swap, or part of LVM, RAID or multipath): release it first (`lsblk {path}` shows who has it), or serve it with ro"
    )]
    Claimed { path: PathBuf },
    /// Write permission is missing.
    #[error("{path} cannot be written ({source}): serve it with ro, or change its permissions")]
    NotWritable { path: PathBuf, source: io::Error },
    /// The path names a directory, a socket, a tape…
    #[error("{path} is {what}: name a regular file or a block device")]
    NotAMedium {
        path: PathBuf,
        /// The kind of file.
        what: &'static str,
    },
    /// The medium is smaller than one block.
    #[error(
        "{path} has {size} bytes, less than one block of {block_size}: give it a size, as in {path},size=1G"
    )]
    Empty {
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The logical block size in bytes.
        block_size: u32,
    },
    /// The existing file has another size.
    #[error("{path} has {have} bytes ({shown}), not {want}: leave the size out, or change the file's with `truncate -s`", shown = Size(*have))]
    WrongSize {
        path: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// The configured size, in bytes.
        want: u64,
    },
    /// The file system does not support O_DIRECT.
    #[error("{path} lies on a file system without direct I/O: write cache=writeback or cache=writethrough")]
    NoDirect { path: PathBuf },
    /// The unit's blocks are smaller than the medium's.
    #[error(
        "{path} can only be written in pieces of {sector} bytes past the page cache, but the unit's blocks have {block_size}: write bs={sector} if it holds no data yet, or cache=writeback"
    )]
    SmallBlocks {
        path: PathBuf,
        /// The alignment that O_DIRECT requires, in bytes.
        sector: u32,
        /// The logical block size in bytes.
        block_size: u32,
    },
    /// The medium's sectors are larger than any supported block size.
    #[error(
        "{path} can only be written in pieces of {sector} bytes past the page cache, more than a block can have: write cache=writeback"
    )]
    LargeSectors {
        path: PathBuf,
        /// The alignment that O_DIRECT requires, in bytes.
        sector: u32,
    },
    /// The engine does not support the cache mode.
    #[error("{path} cannot be served with engine={engine} and cache={cache}: {instead}")]
    Engine {
        path: PathBuf,
        engine: Engine,
        /// The configured cache mode.
        cache: CacheMode,
        /// The option to use instead.
        instead: &'static str,
    },
    /// The file cannot be mapped.
    #[error("{path} cannot be mapped ({source}): write engine=inline, or leave engine out")]
    NoMapping { path: PathBuf, source: io::Error },
    /// The medium does not support thin provisioning.
    #[error("{path} lies on a medium that cannot give space back: write thin=off")]
    NotThin { path: PathBuf },
    /// The file was replaced while it was being opened.
    #[error("{path} was replaced by another file while it was opened: try again")]
    Replaced { path: PathBuf },
    #[error("{path} cannot be {doing}: {source}")]
    System {
        path: PathBuf,
        /// The failed action, a participle.
        doing: &'static str,
        source: io::Error,
    },
    /// No memory for a memory store.
    #[error("no memory can be had for a disk of {shown} ({source})", shown = Size(*size))]
    Memory {
        /// Requested size, bytes.
        size: u64,
        source: io::Error,
    },
}

/// A medium, open and locked.
#[derive(Debug)]
pub(super) struct Medium {
    /// For reads and writes. Holds the lock.
    pub data: runtime::File,
    /// For flushes: another open file description of the same file. Linux reports a write-back
    /// error once per description. So a durable write on `data` cannot consume the error that the
    /// next flush must report.
    pub flush: runtime::File,
    pub writable: bool,
    pub size: u64,
    pub cache: CacheMode,
    pub engine: Engine,
    /// The file is on a file system in memory: no operation waits for a medium.
    pub in_memory: bool,
    pub block_size: u32,
    pub thin: bool,
    pub geometry: Geometry,
    /// Alignment of memory addresses that O_DIRECT requires, in bytes; 1 without O_DIRECT.
    pub memory_align: usize,
    /// See [`FileOptions::log`].
    pub past_cache: Option<PastCache>,
}

/// A second, direct descriptor of a file that is otherwise used through the page cache.
#[derive(Debug)]
pub(super) struct PastCache {
    pub file: runtime::File,
    /// Alignment of memory addresses that O_DIRECT requires, in bytes; `sector` is that of offsets
    /// and lengths.
    pub memory_align: usize,
    pub sector: u32,
    /// The file system rejected a direct write; no further attempts.
    pub refused: AtomicBool,
}

impl PastCache {
    /// `None` if the file system does not support it: everything then goes through the cache.
    fn open(path: &Path, known: &std::fs::Metadata) -> Option<Self> {
        let file = open_data(path, false, CacheMode::Direct, false).ok()?;
        let about = file.metadata().ok()?;
        if (about.dev(), about.ino()) != (known.dev(), known.ino()) {
            return None;
        }
        let (memory_align, sector) = direct_alignment(&file, false).ok()??;
        let file = runtime::File::from_fd(file.into()).ok()?;
        Some(Self { file, memory_align, sector, refused: AtomicBool::new(false) })
    }

    /// The result of a write. `None` if the file system does not support such a write: then write
    /// through the cache, since the medium has no fault.
    pub(super) fn ended(&self, written: io::Result<()>) -> Option<io::Result<()>> {
        match written {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                self.refused.store(true, Ordering::Relaxed);
                None
            }
            ended => Some(ended),
        }
    }

    /// Whether the kernel accepts such a write.
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
        let (is_block_device, create) = match files::metadata(path) {
            Ok(metadata) => (kind(path, &metadata)?, false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (false, true),
            Err(e) => return Err(system("looked at")(e)),
        };
        if create && is_among_devices(path) {
            return Err(OpenError::NoDevice { path: path.to_owned() });
        }
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
            // Locked: another process found the file after its creation and before our lock, and
            // now serves it.
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
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let flush = files::open(path, read_only).map_err(system("opened"))?;
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
                .map_err(system("read with O_DIRECT"))?
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
            // Read-only: no probe, which would write. A regular file may have holes.
            (true, block) => !block,
            (false, true) => discards(&metadata),
            (false, false) => punches(&data, size),
        };
        if options.thin == Some(true) && !can_be_thin {
            return Err(OpenError::NotThin { path: path.to_owned() });
        }
        let in_memory = !is_block_device && files::is_in_memory(&data);
        let cached_log = options.log && cache != CacheMode::Direct && !is_block_device && !in_memory;
        let past_cache = cached_log.then(|| PastCache::open(path, &metadata)).flatten();
        Ok(Self {
            geometry: geometry(&data, &metadata, is_block_device, sector),
            data: runtime::File::from_fd(data.into()).map_err(system("used"))?,
            flush: runtime::File::from_fd(flush.into()).map_err(system("used"))?,
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

/// A file that this process has just created.
struct Created(File);

/// Creates a sparse file, with its name durable, before any data is written.
fn create_file(path: &Path, size: u64) -> Result<Created, OpenError> {
    let system = |source| OpenError::System { path: path.to_owned(), doing: "created", source };
    let file = new_file(path)?;
    if let Err(error) =
        set_size(path, &file, size).and_then(|()| files::sync_directory(parent(path)).map_err(system))
    {
        remove_created(path, &file);
        return Err(error);
    }
    Ok(Created(file))
}

/// The files of units that are about to be opened, with their names durable. Drop removes the files
/// that this created; [`Self::keep`] keeps them.
#[derive(Debug, Default)]
pub struct Made {
    /// The created files, each with its device and inode number.
    files: Vec<(PathBuf, (u64, u64))>,
    syncs: usize,
}

/// Maximum number of files open at once while creating them.
const AT_ONCE: usize = 256;

impl Made {
    /// Creates those of `wanted` (path and bytes) that do not exist and have a size: sparse, with
    /// durable names. Also makes the names of existing files durable: their creator may have been
    /// killed before. Waits for the medium as rarely as possible: a journal commits many files at
    /// once, and one sync covers a directory. `mark` may set extended attributes of each new file,
    /// which become durable with it.
    ///
    /// # Errors
    /// The first file that cannot be created, or directory that cannot be synchronised; then no
    /// file is left.
    pub fn new<'a>(
        wanted: impl IntoIterator<Item = (&'a Path, Option<u64>)>,
        mark: impl Fn(&Path, &File),
    ) -> Result<Self, (PathBuf, OpenError)> {
        let mut made = Self::default();
        let mut directories = std::collections::BTreeSet::new();
        let mut missing = Vec::new();
        for (path, size) in wanted {
            match (files::metadata(path), size) {
                (Ok(about), _) if about.is_file() => drop(directories.insert(parent(path))),
                (Err(error), Some(size)) if error.kind() == io::ErrorKind::NotFound => {
                    missing.push((path, size))
                }
                // Opening the others reports their errors.
                _ => {}
            }
        }
        let new: std::collections::BTreeSet<&Path> = missing.iter().map(|(path, _)| parent(path)).collect();
        for some in missing.chunks(AT_ONCE) {
            let mut files: Vec<(&Path, File)> = Vec::new();
            for (path, size) in some.iter().copied() {
                let file = new_file(path).map_err(|error| (path.to_owned(), error))?;
                let about = file.metadata();
                made.files.push((path.to_owned(), about.map_or((0, 0), |about| (about.dev(), about.ino()))));
                file.set_len(size).map_err(failed(path, "given its size"))?;
                mark(path, &file);
                files.push((path, file));
            }
            for (path, file) in files {
                files::sync(&file).map_err(failed(path, "created"))?;
            }
        }
        directories.extend(&new);
        for directory in directories {
            match files::sync_directory(directory) {
                // A directory with search but no read permission.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !new.contains(directory) => {
                    tracing::debug!(directory = %directory.display(), %error, "not synchronised");
                }
                synced => synced.map_err(failed(directory, "synchronised"))?,
            }
            made.syncs += 1;
        }
        Ok(made)
    }

    /// Number of files created.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether no file was created.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Number of directories synchronised for them.
    pub fn directory_syncs(&self) -> usize {
        self.syncs
    }

    /// Keeps the created files.
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
            // Keep a file that another process has put there meanwhile.
            let same = |about: &std::fs::Metadata| (about.dev(), about.ino()) == *known;
            if files::symlink_metadata(path).is_ok_and(|about| same(&about)) {
                let _ = files::remove(path);
            }
        }
    }
}

fn failed<'a>(path: &'a Path, doing: &'static str) -> impl FnOnce(io::Error) -> (PathBuf, OpenError) + 'a {
    move |source| (path.to_owned(), OpenError::System { path: path.to_owned(), doing, source })
}

/// Whether a new file there would replace a missing device by memory. /dev/shm is for files.
fn is_among_devices(path: &Path) -> bool {
    // Directories that are missing as well would be made in the nearest one that is there.
    let there = parent(path).ancestors().find_map(|above| std::fs::canonicalize(above).ok());
    let directory = there.unwrap_or_else(|| parent(path).to_owned());
    directory.starts_with("/dev") && !directory.starts_with("/dev/shm")
}

/// Makes the directory of a new store, and those above it, except among devices.
///
/// # Errors
/// It cannot be made.
pub fn new_directory(path: &Path) -> Result<(), OpenError> {
    if is_among_devices(path) {
        return Err(OpenError::NoDevice { path: path.to_owned() });
    }
    let system = |source| OpenError::System { path: path.to_owned(), doing: "created", source };
    std::fs::create_dir_all(path).map_err(system)
}

fn new_file(path: &Path) -> Result<File, OpenError> {
    if is_among_devices(path) {
        return Err(OpenError::NoDevice { path: path.to_owned() });
    }
    let system = |source| OpenError::System { path: path.to_owned(), doing: "created", source };
    let new = OpenOptions { create_new: true, private: true, ..OpenOptions::default() };
    files::open(path, new).map_err(system)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn set_size(path: &Path, file: &File, size: u64) -> Result<(), OpenError> {
    let system = |source| OpenError::System { path: path.to_owned(), doing: "given its size", source };
    file.set_len(size).and_then(|()| files::sync(file)).map_err(system)
}

/// Removes a file that was created in vain, if the name still belongs to it.
fn remove_created(path: &Path, file: &File) {
    let same = |a: &std::fs::Metadata, b: &std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if let (Ok(a), Ok(b)) = (file.metadata(), files::symlink_metadata(path)) {
        if same(&a, &b) {
            let _ = files::remove(path);
        }
    }
}

fn open_data(
    path: &Path,
    read_only: bool,
    cache: CacheMode,
    is_block_device: bool,
) -> Result<File, OpenError> {
    let options = OpenOptions {
        read_only,
        direct: cache == CacheMode::Direct,
        // Fails with EBUSY while the system itself uses the device, and prevents that while it is
        // served.
        exclusive: is_block_device && !read_only,
        ..OpenOptions::default()
    };
    let busy = |e: &io::Error| is_block_device && e.raw_os_error() == Some(libc::EBUSY);
    patiently(|| files::open(path, options), busy).map_err(|source| {
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

/// Maximum wait for a lock or an exclusive claim, and the retry interval.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 60 } else { 2000 });
const PAUSE: Duration = Duration::from_millis(20);

/// Retries while another process has it (`taken`), up to [`PATIENCE`].
///
/// After a close or a kill the kernel may still finish the last operations. They keep the file
/// open, with its lock and its claim. A program that only inspects a device claims it for a moment,
/// too. The successor waits for them, and never reads while its predecessor's writes are in flight.
fn patiently<T, E>(mut attempt: impl FnMut() -> Result<T, E>, taken: impl Fn(&E) -> bool) -> Result<T, E> {
    let mut waited = Duration::ZERO;
    loop {
        match attempt() {
            Err(e) if taken(&e) && waited < PATIENCE => {
                runtime::nap(PAUSE);
                waited += PAUSE;
            }
            result => return result,
        }
    }
}

/// Takes the lock that excludes other servers. `flock` ends with the open file description and so
/// with the process, however it ends; on block devices it also stops udev from probing. Readers
/// share it.
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

/// The size in bytes: from a regular file's metadata, and for a block device from the position of
/// its end.
fn media_size(file: &File) -> io::Result<u64> {
    // Nothing uses the file's position, so moving it is harmless.
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// The alignment that O_DIRECT requires of memory addresses, and of offsets and lengths. `None`
/// without direct I/O; an error if that cannot be told, since the medium fails.
fn direct_alignment(file: &File, is_block_device: bool) -> io::Result<Option<(usize, u32)>> {
    if let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
            let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
            // Both 0: this file does not support direct reads (encrypted, or data in the journal).
            return Ok((memory.is_power_of_two() && offset.is_power_of_two())
                .then_some((memory as usize, offset.max(DEFAULT_BLOCK_SIZE))));
        }
    }
    // Kernels before 6.1, and file systems that do not report it: ask the device, or try.
    if is_block_device {
        let sector = rustix::fs::ioctl_blksszget(file)?;
        return Ok(sector.is_power_of_two().then_some((sector as usize, sector.max(DEFAULT_BLOCK_SIZE))));
    }
    let mut buf = pool::alloc(4096).ok_or(io::ErrorKind::OutOfMemory)?;
    for sector in [512u32, 1024, 2048, 4096] {
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut buf[..sector as usize], 0)) {
            Ok(_) => return Ok(Some((sector as usize, sector))),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
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

/// Whether the file system can make holes: tried beyond the end, where a hole has no effect.
fn punches(file: &File, size: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, size.next_multiple_of(4096), 4096).is_ok()
}

/// A property of a block device's queue.
fn queue_property(metadata: &std::fs::Metadata, name: &str) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition uses the queue of its disk.
    let text = std::fs::read_to_string(format!("{device}/queue/{name}"))
        .or_else(|_| std::fs::read_to_string(format!("{device}/../queue/{name}")))
        .ok()?;
    text.trim().parse().ok()
}

/// Whether a block device can discard with zeros afterwards.
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
