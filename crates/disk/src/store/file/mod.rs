//! A store on a regular file or a block device.
//!
//! Owns how bytes get there and when they are durable; `docs/disk-stores.md` says what each cache mode promises. What it
//! must never do: call a write durable, or a sync done, of which the system has not said so; and call a sync done after
//! one has failed (see `group`).

mod io;
mod open;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ring::{Buf, Chain, Pooled, pool};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

pub use open::{FileOptions, OpenError};

use super::group::Group;
use super::spec::CacheMode;
use super::{BlockStore, Extent, Geometry, Io, StoreError};
use io::Handle;
use open::Medium;

/// Zeros are written from here where the system has no call for it.
static ZEROS: Zeros = Zeros([0; ZEROS_LEN]);
const ZEROS_LEN: usize = 64 << 10;
/// Bytes of zeros in one write.
const ZEROS_WRITE: u64 = 1 << 20;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_LEN]);

/// A regular file or block device. Locked for as long as it is open.
pub struct FileStore {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    data: Handle,
    flush: Handle,
    is_block_device: bool,
    writable: bool,
    thin: bool,
    cache: CacheMode,
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
}

impl FileStore {
    /// Opens and locks what `path` names, or creates it (see [`FileOptions::size`]). Blocks: for start-up.
    ///
    /// # Errors
    /// An [`OpenError`], whose text says what to do.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        let medium = Medium::open(path, options)?;
        let block = u64::from(medium.block_size);
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                data: Handle::new(medium.data),
                flush: Handle::new(medium.flush),
                is_block_device: medium.is_block_device,
                writable: medium.writable,
                thin: medium.thin,
                cache: medium.cache,
                block_size: medium.block_size,
                geometry: medium.geometry,
                memory_align: medium.memory_align,
                size: AtomicU64::new(medium.size / block * block),
                group: Group::new(true),
                no_zero_range: AtomicBool::new(false),
                no_punch: AtomicBool::new(false),
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

    /// The error of the sync that failed, after which no sync succeeds until the store is opened anew.
    pub fn failed(&self) -> Option<StoreError> {
        self.inner.group.failed()
    }

    /// Starts an operation that needs the medium.
    fn run<T, F>(&self, operation: impl FnOnce(Arc<Inner>) -> F) -> Io<T>
    where
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        Io::Running(Pooled::new(operation(self.inner.clone())))
    }

    /// The same for one that changes it.
    fn change<F>(&self, operation: impl FnOnce(Arc<Inner>) -> F) -> Io<()>
    where
        F: Future<Output = Result<(), StoreError>> + 'static,
    {
        if self.inner.writable { self.run(operation) } else { Io::err(StoreError::ReadOnly) }
    }
}

impl Inner {
    async fn read(&self, at: u64, len: usize) -> Result<Chain, StoreError> {
        let mut chain = Chain::new();
        while chain.len() < len {
            let piece = pool::MAX_ALLOC.min(len - chain.len());
            chain.push(self.read_piece(at + chain.len() as u64, piece).await?);
        }
        Ok(chain)
    }

    async fn read_piece(&self, at: u64, len: usize) -> Result<Buf, StoreError> {
        let mut buf = pool::alloc(len).ok_or(StoreError::NoMemory)?;
        let mut done = 0;
        loop {
            let (result, back) = self.data.read(at + done as u64, buf, done).await;
            buf = back;
            let n = result.map_err(|e| self.error(&e))?;
            if done + n >= len {
                return Ok(buf.freeze());
            }
            // A read that brings nothing, or stops within a sector of a direct file, is at the end of the medium.
            let before = done;
            done = self.whole_sectors(done + n);
            if done <= before {
                self.size_now();
                return Err(StoreError::OutOfRange);
            }
        }
    }

    /// Where to go on after `done` bytes: a direct file is read and written from sector borders only.
    fn whole_sectors(&self, done: usize) -> usize {
        let sector = self.geometry.block as usize;
        if self.memory_align == 1 { done } else { done / sector * sector }
    }

    async fn write(&self, at: u64, data: Chain, durable: bool) -> Result<(), StoreError> {
        // Where every write is durable, many of them share one flush; a single durable write among others flushes only
        // its own range.
        let shared_flush = durable && self.cache == CacheMode::WriteThrough;
        let by_itself = durable && !shared_flush;
        let result = if self.is_aligned(&data) {
            self.write_all(at, data, by_itself).await
        } else {
            self.write_copied(at, data, by_itself).await
        };
        if !by_itself {
            self.group.wrote();
        }
        result?;
        if shared_flush { self.sync().await } else { Ok(()) }
    }

    /// Whether the kernel takes these buffers as they are.
    fn is_aligned(&self, data: &Chain) -> bool {
        let sector = self.geometry.block as usize;
        self.memory_align == 1
            || data.iter().all(|buf| buf.is_aligned(self.memory_align) && buf.len() % sector == 0)
    }

    async fn write_copied(&self, at: u64, mut data: Chain, durable: bool) -> Result<(), StoreError> {
        let mut to = at;
        while !data.is_empty() {
            let piece = data.split_to(pool::MAX_ALLOC.min(data.len()));
            let mut copy = pool::alloc(piece.len()).ok_or(StoreError::NoMemory)?;
            piece.copy_to_slice(&mut copy);
            drop(piece);
            let len = copy.len() as u64;
            self.write_all(to, copy.freeze().into(), durable).await?;
            to += len;
        }
        Ok(())
    }

    async fn write_all(&self, at: u64, mut data: Chain, durable: bool) -> Result<(), StoreError> {
        let mut to = at;
        while !data.is_empty() {
            let n = self.data.write(to, &data, durable).await.map_err(|e| self.error(&e))?;
            let n = if n == data.len() { n } else { self.whole_sectors(n) };
            if n == 0 {
                return Err(StoreError::Io(libc::EIO));
            }
            data.advance(n);
            to += n as u64;
        }
        Ok(())
    }

    async fn sync(&self) -> Result<(), StoreError> {
        self.group.sync(|| async { self.flush.fdatasync().await.map_err(|e| self.flush_error(&e)) }).await
    }

    async fn punch_or_zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if self.thin && !self.no_punch.load(Ordering::Relaxed) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match self.fallocate(flags, at, len).await {
                Err(StoreError::Unsupported) => self.no_punch.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        self.zero(at, len).await
    }

    async fn zero(&self, at: u64, len: u64) -> Result<(), StoreError> {
        if !self.no_zero_range.load(Ordering::Relaxed) {
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
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

    async fn fallocate(&self, flags: FallocateFlags, at: u64, len: u64) -> Result<(), StoreError> {
        if len == 0 {
            return Ok(());
        }
        let result = self.data.fallocate(flags, at, len).await;
        self.group.wrote();
        result.map_err(|e| self.error(&e))
    }

    fn extent(&self, at: u64, len: u64) -> Result<Extent, StoreError> {
        let size = self.size.load(Ordering::Acquire);
        let len = len.min(size.saturating_sub(at));
        if len == 0 {
            return Err(StoreError::OutOfRange);
        }
        if self.is_block_device || !self.thin {
            return Ok(Extent { at, len, mapped: true });
        }
        let (end, block) = (at + len, u64::from(self.block_size));
        // Both calls look at the file's map only: they neither read nor wait for data.
        let data = match rustix::fs::seek(self.data.file(), SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            // No data from here to the end.
            Err(Errno::NXIO) => end,
            Err(Errno::INVAL) => at,
            Err(e) => return Err(StoreError::from_errno(e.raw_os_error())),
        };
        // A block that is partly a hole is mapped.
        let hole_len = if data == end { len } else { (data - at) / block * block };
        if hole_len > 0 {
            return Ok(Extent { at, len: hole_len, mapped: false });
        }
        let hole = match rustix::fs::seek(self.data.file(), SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(end),
            Err(_) => end,
        };
        Ok(Extent { at, len: (hole - at).next_multiple_of(block).min(len), mapped: true })
    }

    /// Looks how large the medium is.
    fn size_now(&self) -> u64 {
        let Ok(size) = open::media_size(self.data.file()) else { return self.size.load(Ordering::Acquire) };
        let block = u64::from(self.block_size);
        let size = size / block * block;
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = %self.path.display(), before, size, "the medium's size changed");
        }
        size
    }

    /// An error of the data path. No line is logged for it: the initiator gets it as sense data.
    fn error(&self, error: &std::io::Error) -> StoreError {
        StoreError::from_io(error)
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

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.run(|inner| async move { inner.read(at, len).await })
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        self.change(|inner| async move { inner.write(at, data, durable).await })
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

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        Io::Ready(Some(self.inner.extent(at, len)))
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("path", &self.inner.path).field("cache", &self.inner.cache).finish()
    }
}
