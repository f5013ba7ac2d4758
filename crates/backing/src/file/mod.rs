//! A store on a regular file or a block device.
//!
//! Owns how bytes get there and when they are durable; `docs/disk-stores.md` says what each cache mode promises. What it
//! must never do: call a write durable, or a sync done, of which the system has not said so; and call a sync done after
//! one has failed (see `group`).

mod alone;
mod mapped;
mod open;
#[cfg(test)]
mod tests;
mod transfer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ring::{Buf, Chain, File, Local, Pooled, Shared};

pub use open::{FileOptions, Made, OpenError};

use super::engine::Engine;
use super::group::Group;
use super::spec::CacheMode;
use super::{BlockStore, Extent, Geometry, Io, Resources, StoreError};
use alone::Alone;
use mapped::{Mapped, Seen};
use open::{Medium, PastCache};
use transfer::{Impatience, PROMPT};

/// Zeros are written from here where the system has no call for it.
static ZEROS: Zeros = Zeros([0; ZEROS_LEN]);
const ZEROS_LEN: usize = 64 << 10;
/// Bytes of zeros in one write.
const ZEROS_WRITE: u64 = 1 << 20;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_LEN]);

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
    /// On a file system in memory: what is written needs no flush, and none would make it last.
    in_memory: bool,
    block_size: u32,
    geometry: Geometry,
    memory_align: usize,
    /// In bytes, whole blocks.
    size: AtomicU64,
    group: Group,
    /// The medium has no call that writes zeros, as was found out.
    no_zero_range: AtomicBool,
    /// The medium has no call that makes holes, though it looked so.
    no_punch: AtomicBool,
    impatience: Impatience,
    /// See [`FileOptions::log`].
    log: bool,
    past_cache: Option<PastCache>,
    alone: Alone,
    /// Of engines that use one.
    mapped: Option<Mapped>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Closing does not end the lock while a mapping of the file is left: pages on their way to a peer keep it. They are only read,
        // and nothing of this store is written any more.
        if let Err(error) = self.data.unlock() {
            tracing::debug!(path = %self.path.display(), %error, "unlocking");
        }
    }
}

impl FileStore {
    /// Opens and locks what `path` names, or creates it (see [`FileOptions::size`]). Blocks: for start-up.
    ///
    /// # Errors
    /// An [`OpenError`], whose text says what to do.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        let mut medium = Medium::open(path, options)?;
        let block = u64::from(medium.block_size);
        let size = medium.size / block * block;
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
                group: Group::new(true),
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

    /// The unit's logical block size in bytes: as asked for, or what the medium needs.
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

    /// The error of the sync that failed, after which no sync succeeds until the store is opened anew.
    pub fn failed(&self) -> Option<StoreError> {
        self.inner.group.failed()
    }

    /// Starts an operation that needs the medium.
    fn run<T, F>(&self, operation: impl FnOnce(Local<Inner>) -> F) -> Io<T>
    where
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        Io::Running(Pooled::new(operation(self.inner.local())))
    }

    /// The same for one that changes it.
    fn change<F>(&self, operation: impl FnOnce(Local<Inner>) -> F) -> Io<()>
    where
        F: Future<Output = Result<(), StoreError>> + 'static,
    {
        if self.inner.writable { self.run(operation) } else { Io::err(StoreError::ReadOnly) }
    }
}

impl Inner {
    async fn sync(&self) -> Result<(), StoreError> {
        // Of a log little is dirty, and whoever wants it flushed waits for just that.
        let is_little = self.log && self.group.dirty() <= PROMPT as u64;
        let here = || if is_little { self.alone.wait_for(|| self.flush.sync_data_now()) } else { None };
        let flush = || async {
            let flushed = match here() {
                Some(flushed) => flushed,
                None => self.flush.sync_data().await,
            };
            flushed.map_err(|error| self.flush_error(&error))
        };
        self.group.sync(flush).await
    }

    async fn punch_or_zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if self.thin && !self.no_punch.load(Ordering::Relaxed) {
            // On a block device too, where it promises zeros afterwards, as BLKDISCARD does not.
            let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            match self.fallocate(flags, at, len).await {
                Err(StoreError::Unsupported) => self.no_punch.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        self.zero(at, len).await
    }

    async fn zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if !self.no_zero_range.load(Ordering::Relaxed) {
            let flags = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
            match self.fallocate(flags, at, len).await {
                Err(StoreError::Unsupported) => self.no_zero_range.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        let mut done = 0;
        while done < len {
            let n = ZEROS_WRITE.min(len - done);
            let mut zeros = Chain::new();
            while (zeros.len() as u64) < n {
                let piece = ZEROS_LEN.min(n as usize - zeros.len());
                zeros.push(Buf::from_static(&ZEROS.0[..piece]));
            }
            self.write(at + done, zeros, false).await?;
            done += n;
        }
        Ok(())
    }

    async fn fallocate(&self, mode: i32, at: u64, len: u64) -> Result<(), StoreError> {
        if len == 0 {
            return Ok(());
        }
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        let result = self.data.fallocate(mode, at, len).await;
        // What was there may have been seen again meanwhile.
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        self.group.wrote(1);
        result.map_err(|e| StoreError::from_io(&e))
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
                        _ => StoreError::from_io(&error),
                    });
                }
            }
        };
        // What was there may have been seen again meanwhile.
        if let Some(mapped) = &self.mapped {
            mapped.forget(at, len);
        }
        self.group.wrote(1);
        result
    }

    /// `at..at + len` lies within the file, and `len` is not 0.
    async fn extent(&self, at: u64, len: u64) -> Result<Extent, StoreError> {
        let (end, block) = (at + len, u64::from(self.block_size));
        let data = match self.data.seek_data(at).await {
            Ok(data) => data.map_or(end, |data| data.min(end)),
            // A file system that cannot say.
            Err(_) => at,
        };
        // A block that is partly a hole is mapped.
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

    /// Looks how large the medium is.
    fn size_now(&self) -> u64 {
        let Ok(size) = self.data.size() else { return self.size.load(Ordering::Acquire) };
        let block = u64::from(self.block_size);
        let size = size / block * block;
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = %self.path.display(), before, size, "the medium's size changed");
        }
        size
    }

    /// A flush failed: that is the end of all syncs, and worth a line.
    fn flush_error(&self, error: &std::io::Error) -> StoreError {
        let path = self.path.display();
        tracing::error!(%path, %error, "a flush failed: what was written before it may be lost, and no sync will succeed until the store is opened anew");
        StoreError::from_io(error)
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
        match self.inner.read_at_once(at, len) {
            Some(result) => Io::Ready(Some(result)),
            None => self.run(|inner| async move { inner.read(at, len).await }),
        }
    }

    #[inline]
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        let Some(mapped) = &self.inner.mapped else { return self.read(at, len) };
        if let Some(chain) = mapped.slice(&self.inner.data, at, len) {
            return Io::ok(chain);
        }
        match self.inner.read_at_once(at, len) {
            Some(Ok(chain)) => {
                mapped.saw(at, len, Seen::AtOnce { written: false });
                Io::ok(chain)
            }
            Some(Err(error)) => Io::err(error),
            None => self.run(|inner| async move { inner.read_and_note(at, len).await }),
        }
    }

    #[inline]
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        if !self.inner.writable {
            return Io::err(StoreError::ReadOnly);
        }
        match self.inner.write_at_once(at, data, durable) {
            Ok(result) => Io::Ready(Some(result)),
            Err(data) => self.run(|inner| async move { inner.write(at, data, durable).await }),
        }
    }

    fn sync(&self) -> Io<()> {
        if !self.inner.writable {
            return Io::ok(());
        }
        match self.inner.group.settled() {
            Some(result) => Io::Ready(Some(result)),
            None => self.run(|inner| async move { inner.sync().await }),
        }
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.change(|inner| async move { inner.punch_or_zero(at, len).await })
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.change(move |inner| async move {
            if deallocate { inner.punch_or_zero(at, len).await } else { inner.zero(at, len).await }
        })
    }

    fn file(&self) -> Option<File> {
        // Past the kernel's cache it has nothing to copy within, and devices share no blocks.
        let has = self.inner.cache != CacheMode::Direct && !self.inner.data.is_block_device();
        has.then(|| self.inner.data.another())
    }

    fn copy_from(&self, from: File, from_at: u64, at: u64, len: u64) -> Io<()> {
        if self.inner.cache == CacheMode::Direct || self.inner.data.is_block_device() {
            return Io::err(StoreError::Unsupported);
        }
        self.change(move |inner| async move { inner.copy_from(&from, from_at, at, len).await })
    }

    fn resources(&self) -> Option<Resources> {
        if !self.inner.thin || self.inner.data.is_block_device() {
            return None;
        }
        let used = self.inner.data.allocated().ok()?;
        let free = rustix::fs::statvfs(&self.inner.path).ok()?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        Some(Resources { used, available: free.min(self.size().saturating_sub(used)), dedicated: false })
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
