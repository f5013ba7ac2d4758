//! A store on a regular file or a block device.
//!
//! Owns the I/O of such a store and its durability; `docs/src/reference/stores.md` describes the
//! promises of each cache mode. It must never report a write as durable, or a sync as done, before
//! the system has confirmed it. It must never report a sync as done after one has failed (see
//! `group`). It must report every failure to its [`Health`].

mod alone;
mod fault;
mod mapped;
mod open;
#[cfg(test)]
mod tests;
mod transfer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::{Buf, Chain, File, Local, Pooled, Shared};

pub use open::{FileOptions, Made, OpenError, new_directory};

use super::engine::Engine;
use super::group::{Group, Obeys};
use super::spec::CacheMode;
use super::{BlockStore, Extent, Geometry, Health, Io, Presence, Resources, StoreError};
use alone::Alone;
use mapped::{Mapped, Seen};
use open::{Medium, PastCache};
use transfer::{Impatience, PROMPT};

/// Bytes of zeros in one write, for media without a system call that writes zeros.
const ZEROS_WRITE: u64 = 1 << 20;

/// A regular file or block device. Locked for as long as it is open.
pub struct FileStore {
    inner: Shared<Inner>,
}

struct Inner {
    path: PathBuf,
    /// Reads, writes, zeros and holes.
    data: File,
    /// The same file for flushes: see [`Medium::flush`].
    flush: File,
    writable: bool,
    thin: bool,
    cache: CacheMode,
    engine: Engine,
    /// The file is on a file system in memory: writes need no flush, and no flush would make them
    /// survive.
    in_memory: bool,
    block_size: u32,
    geometry: Geometry,
    memory_align: usize,
    /// In bytes, a multiple of the block size.
    size: AtomicU64,
    /// The most of it that is shown, bytes. Held while the size is read, so that no older one
    /// replaces a newer one.
    limit: Mutex<u64>,
    group: Group,
    health: Arc<Health>,
    /// The medium turned out to have no call that writes zeros.
    no_zero_range: AtomicBool,
    /// The medium turned out to have no call that makes holes, although it seemed to.
    no_punch: AtomicBool,
    impatience: Impatience,
    /// See [`FileOptions::log`].
    log: bool,
    past_cache: Option<PastCache>,
    alone: Alone,
    /// Only with engines that map the file.
    mapped: Option<Mapped>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Closing the file keeps the lock while a mapping of it exists: pages in flight to a peer
        // keep one. They are only read, and this store writes nothing any more.
        if let Err(error) = self.data.unlock() {
            tracing::debug!(path = %self.path.display(), %error, "unlocking");
        }
    }
}

impl FileStore {
    /// Opens and locks the file at `path`, or creates it (see [`FileOptions::size`]). Blocks: use
    /// it only at start-up.
    ///
    /// # Errors
    /// An [`OpenError`], whose text says what to do.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        Self::open_as(path, options, Health::new(path.display().to_string()), Obeys::Health)
    }

    /// Opens a file that is only part of a unit's medium; `health` is that of the whole. The store
    /// refuses flushes after one of its own has failed, and ignores failures of other parts.
    ///
    /// # Errors
    /// An [`OpenError`], whose text says what to do.
    pub fn open_part(path: &Path, options: &FileOptions, health: Arc<Health>) -> Result<Self, OpenError> {
        Self::open_as(path, options, health, Obeys::Itself)
    }

    fn open_as(
        path: &Path,
        options: &FileOptions,
        health: Arc<Health>,
        obeys: Obeys,
    ) -> Result<Self, OpenError> {
        let mut medium = Medium::open(path, options)?;
        let block = u64::from(medium.block_size);
        let size = medium.size / block * block;
        if obeys == Obeys::Health {
            health.expect_size(size);
        }
        let mapped = match medium.engine {
            Engine::Mmap | Engine::Sendpage => {
                let lent = medium.engine == Engine::Sendpage;
                let mapped = Mapped::new(&medium.data, size, medium.writable, lent, medium.in_memory);
                match mapped {
                    Ok(mapped) => Some(mapped),
                    Err(error) if options.engine.is_none() => {
                        tracing::info!(path = %path.display(), %error, "cannot be mapped: read by engine=inline");
                        medium.engine = Engine::Inline;
                        None
                    }
                    Err(source) => return Err(OpenError::NoMapping { path: path.to_owned(), source }),
                }
            }
            _ => None,
        };
        Ok(Self {
            inner: Shared::new(Inner {
                path: path.to_owned(),
                data: medium.data,
                flush: medium.flush,
                writable: medium.writable,
                thin: medium.thin,
                cache: medium.cache,
                engine: medium.engine,
                in_memory: medium.in_memory,
                block_size: medium.block_size,
                geometry: medium.geometry,
                memory_align: medium.memory_align,
                size: AtomicU64::new(size),
                limit: Mutex::new(u64::MAX),
                group: Group::new(true, health.clone(), obeys),
                health,
                no_zero_range: AtomicBool::new(false),
                no_punch: AtomicBool::new(false),
                impatience: Impatience::default(),
                log: options.log,
                past_cache: medium.past_cache,
                alone: Alone::default(),
                mapped,
            }),
        })
    }

    /// The unit's logical block size in bytes: the configured one, or the one that the medium
    /// requires.
    pub fn block_size(&self) -> u32 {
        self.inner.block_size
    }

    /// The cache mode in use.
    pub fn cache(&self) -> CacheMode {
        self.inner.cache
    }

    /// The engine in use.
    pub fn engine(&self) -> Engine {
        self.inner.engine
    }

    /// Reads without the mapping, and records that the page cache now has the range.
    fn read_and_note(&self, mapped: &Mapped, at: u64, len: usize) -> Io<Chain> {
        match self.inner.read_at_once(at, len) {
            Some(Ok(chain)) => {
                mapped.saw(at, len, Seen::AtOnce { written: false });
                Io::ok(chain)
            }
            Some(Err(error)) => Io::err(error),
            None => self.run(|inner| async move { inner.read_and_note(at, len).await }),
        }
    }

    /// Starts an operation on the medium.
    fn run<T, F>(&self, operation: impl FnOnce(Local<Inner>) -> F) -> Io<T>
    where
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        Io::Running(Pooled::new(operation(self.inner.local())))
    }

    /// Starts an operation that changes `len` bytes of the medium at `at`.
    fn change<F>(&self, at: u64, len: u64, operation: impl FnOnce(Local<Inner>) -> F) -> Io<()>
    where
        F: Future<Output = Result<(), StoreError>> + 'static,
    {
        match self.inner.takes(at, len) {
            Ok(()) => self.run(operation),
            Err(error) => Io::err(error),
        }
    }
}

impl Inner {
    async fn sync(&self) -> Result<(), StoreError> {
        // A log has little dirty data, and the caller of a flush waits for exactly that data.
        let is_little = self.log && self.group.dirty() <= PROMPT as u64;
        let here = || if is_little { self.alone.wait_for(|| self.flush.sync_data_now()) } else { None };
        let flush = || async {
            let flushed = match here() {
                Some(flushed) => flushed,
                None => self.flush.sync_data().await,
            };
            match flushed {
                Ok(()) => self.still_there(),
                Err(error) => Err(self.flush_failed(error).await),
            }
        };
        self.group.sync(flush).await
    }

    async fn punch_or_zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if self.thin && !self.no_punch.load(Ordering::Relaxed) {
            // Also on a block device: it then guarantees zeros, which BLKDISCARD does not.
            let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            match self.fallocate(flags, at, len).await {
                Ok(false) => {}
                Err(StoreError::Unsupported) => self.no_punch.store(true, Ordering::Relaxed),
                result => return result.map(drop),
            }
        }
        self.zero(at, len).await
    }

    async fn zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if !self.no_zero_range.load(Ordering::Relaxed) {
            let flags = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
            match self.fallocate(flags, at, len).await {
                Ok(false) => {}
                Err(StoreError::Unsupported) => self.no_zero_range.store(true, Ordering::Relaxed),
                result => return result.map(drop),
            }
        }
        let mut done = 0;
        while done < len {
            let n = ZEROS_WRITE.min(len - done);
            let mut zeros = Chain::new();
            zeros.push_zeros(n as usize);
            self.write(at + done, zeros, false).await?;
            done += n;
        }
        Ok(())
    }

    /// False if a device refuses the range: through the page cache a unit's blocks may be parts of
    /// its sectors.
    async fn fallocate(&self, mode: i32, at: u64, len: u64) -> Result<bool, StoreError> {
        if len == 0 {
            return Ok(true);
        }
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        let result = self.data.fallocate(mode, at, len).await;
        // A read may have recorded the old pages meanwhile.
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        self.group.wrote(1);
        match result {
            Ok(()) => Ok(true),
            Err(error) if self.data.is_block_device() && error.raw_os_error() == Some(libc::EINVAL) => {
                Ok(false)
            }
            Err(error) => Err(self.write_fault(&error, at)),
        }
    }

    async fn copy_from(&self, from: &File, from_at: u64, at: u64, len: u64) -> Result<(), StoreError> {
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        let mut done = 0;
        let result = loop {
            if done == len {
                break Ok(());
            }
            match self.data.copy_range(from, from_at + done, at + done, (len - done) as usize).await {
                Ok(0) => break Err(StoreError::OutOfRange),
                Ok(copied) => done += copied as u64,
                Err(error) => {
                    break Err(match error.raw_os_error() {
                        Some(libc::EXDEV | libc::EINVAL | libc::EBADF | libc::ETXTBSY | libc::EPERM) => {
                            StoreError::Unsupported
                        }
                        _ => self.write_fault(&error, at + done),
                    });
                }
            }
        };
        // A read may have recorded the old pages meanwhile.
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        self.group.wrote(1);
        result
    }

    /// `at..at + len` must lie within the file, with `len` above 0.
    async fn extent(&self, at: u64, len: u64) -> Result<Extent, StoreError> {
        let (end, block) = (at + len, u64::from(self.block_size));
        let data = match self.data.seek_data(at).await {
            Ok(data) => data.map_or(end, |data| data.min(end)),
            // The file system has no answer.
            Err(_) => at,
        };
        // A block that is partly a hole counts as mapped.
        let hole_len = if data == end { len } else { (data - at) / block * block };
        if hole_len > 0 {
            return Ok(Extent { at, len: hole_len, mapped: false });
        }
        let hole = match self.data.seek_hole(data).await {
            Ok(Some(hole)) => hole.min(end),
            Ok(None) | Err(_) => end,
        };
        Ok(Extent { at, len: (hole - at).next_multiple_of(block).min(len), mapped: true })
    }

    /// Whether a range may be changed. A write behind the end would make the file longer, and the
    /// unit may have looked at the size before a limit was set.
    #[inline]
    fn takes(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if !self.writable {
            return Err(StoreError::ReadOnly);
        }
        let size = self.size.load(Ordering::Acquire);
        if at.checked_add(len).is_some_and(|end| end <= size) { Ok(()) } else { Err(StoreError::OutOfRange) }
    }

    /// Reads the current size of the medium.
    fn size_now(&self) -> u64 {
        self.measure(&self.limit())
    }

    fn limit(&self) -> MutexGuard<'_, u64> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measure(&self, limit: &MutexGuard<'_, u64>) -> u64 {
        let known = self.size.load(Ordering::Acquire);
        let block = u64::from(self.block_size);
        let size = self.data.size().unwrap_or(known).min(**limit) / block * block;
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = %self.path.display(), before, size, "the medium's size changed");
            self.health.saw_size(size);
        }
        size
    }
}

impl BlockStore for FileStore {
    #[inline]
    fn size(&self) -> u64 {
        self.inner.size.load(Ordering::Acquire)
    }

    fn refresh(&self) -> u64 {
        self.inner.size_now()
    }

    fn limit(&self, bytes: Option<u64>) {
        let mut limit = self.inner.limit();
        *limit = bytes.unwrap_or(u64::MAX);
        self.inner.measure(&limit);
    }

    fn is_removed(&self) -> bool {
        self.inner.is_removed()
    }

    fn presence(&self) -> Option<Presence> {
        self.inner.presence()
    }

    fn writable(&self) -> bool {
        self.inner.writable
    }

    fn thin(&self) -> bool {
        self.inner.thin
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    #[inline]
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        let Some(mapped) = &self.inner.mapped else {
            return match self.inner.read_at_once(at, len) {
                Some(result) => Io::Ready(Some(result)),
                None => self.run(|inner| async move { inner.read(at, len).await }),
            };
        };
        self.read_and_note(mapped, at, len)
    }

    #[inline]
    fn read_now(&self, at: u64, len: usize) -> Option<Buf> {
        self.inner.mapped.as_ref()?.copy(&self.inner.data, at, len)
    }

    #[inline]
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        let Some(mapped) = &self.inner.mapped else { return self.read(at, len) };
        match mapped.slice(&self.inner.data, at, len) {
            Some(chain) => Io::ok(chain),
            None => self.read_and_note(mapped, at, len),
        }
    }

    #[inline]
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        if let Err(error) = self.inner.takes(at, data.len() as u64) {
            return Io::err(error);
        }
        match self.inner.write_at_once(at, data, durable) {
            Ok(result) if durable => Io::Ready(Some(result.and_then(|()| self.inner.still_there()))),
            Ok(result) => Io::Ready(Some(result)),
            Err(data) => self.run(move |inner| async move {
                inner.write(at, data, durable).await?;
                if durable { inner.still_there() } else { Ok(()) }
            }),
        }
    }

    fn sync(&self) -> Io<()> {
        match self.inner.group.settled() {
            Some(Err(error)) => {
                self.inner.flush_refused(error);
                Io::err(error)
            }
            Some(Ok(())) => Io::Ready(Some(self.inner.still_there())),
            None if !self.inner.writable => Io::ok(()),
            None => self.run(|inner| async move { inner.sync().await }),
        }
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.change(at, len, |inner| async move { inner.punch_or_zero(at, len).await })
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.change(at, len, move |inner| async move {
            if deallocate { inner.punch_or_zero(at, len).await } else { inner.zero(at, len).await }
        })
    }

    fn file(&self) -> Option<File> {
        // With direct I/O the kernel has no cache to copy within, and block devices share no
        // blocks.
        let has = self.inner.cache != CacheMode::Direct && !self.inner.data.is_block_device();
        has.then(|| self.inner.data.another())
    }

    fn copy_from(&self, from: File, from_at: u64, at: u64, len: u64) -> Io<()> {
        if self.inner.cache == CacheMode::Direct || self.inner.data.is_block_device() {
            return Io::err(StoreError::Unsupported);
        }
        self.change(at, len, move |inner| async move { inner.copy_from(&from, from_at, at, len).await })
    }

    fn resources(&self) -> Option<Resources> {
        if !self.inner.thin || self.inner.data.is_block_device() {
            return None;
        }
        let used = self.inner.data.allocated().ok()?;
        let free = runtime::files::room(&self.inner.path).ok()?;
        Some(Resources { used, available: free.min(self.size().saturating_sub(used)), dedicated: false })
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(&self.inner.health)
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        let len = len.min(self.size().saturating_sub(at));
        if len == 0 {
            return Io::err(StoreError::OutOfRange);
        }
        if self.inner.data.is_block_device() || !self.inner.thin {
            return Io::ok(Extent { at, len, mapped: true });
        }
        self.run(move |inner| async move { inner.extent(at, len).await })
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("path", &self.inner.path)
            .field("cache", &self.inner.cache)
            .field("engine", &self.inner.engine)
            .finish()
    }
}
