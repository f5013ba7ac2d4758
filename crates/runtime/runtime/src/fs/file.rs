//! [`File`]: reads and writes at offsets, through the ring of the calling core, or on threads of a
//! core that has none.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use io_uring::{opcode, types};
use smallvec::SmallVec;

use super::{OpenOptions, device};
use crate::blocking;
use crate::buf::{Buf, BufMut, Chain, Destination};
use crate::op::{Op, Way, is_transient};
use crate::pooled::PooledBox;
use crate::runtime::Core;
use crate::shared::Shared;
use crate::sim::files;

/// Most bytes of one operation.
pub(super) const MOST_BYTES: usize = 1 << 30;
/// Most vectors of one operation (UIO_MAXIOV).
const MOST_VECTORS: usize = 1024;

/// A file or block device. `Send` and `Sync`: any core may use it, each with its own ring.
///
/// Operations that move data or allocate it are ring operations, or calls by threads of a core
/// without a ring. Dropping their future cancels
/// them; data of a cancelled write may or may not be in the file. Short reads and writes are
/// continued.
#[derive(Debug)]
pub struct File {
    fd: Shared<Arc<OwnedFd>>,
    is_block_device: bool,
}

impl File {
    /// Opens `path`. A system call of its own that may block: for the start of things, not for the
    /// data path.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<Self> {
        let file = Self::from_fd(open_fd(path.as_ref(), options)?)?;
        if let Some(size) = options.size.filter(|_| options.create || options.create_new) {
            if !file.is_block_device && file.size()? < size {
                device::set_len(file.fd().as_fd(), size)?;
            }
        }
        Ok(file)
    }

    /// Takes over an open file.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let mode = device::stat(fd.as_fd())?.st_mode & libc::S_IFMT;
        if mode != libc::S_IFREG && mode != libc::S_IFBLK {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"));
        }
        Ok(Self { fd: Shared::new(Arc::new(fd)), is_block_device: mode == libc::S_IFBLK })
    }

    pub(super) fn raw(&self) -> types::Fd {
        types::Fd(self.fd.as_raw_fd())
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The open file, for a call that keeps it open.
    pub(super) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Ends a lock of flock(2) that was taken on it.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn unlock(&self) -> io::Result<()> {
        device::unlock(self.fd().as_fd())
    }

    /// Its length in bytes.
    pub fn size(&self) -> io::Result<u64> {
        if self.is_block_device {
            return device::size(self.fd().as_fd());
        }
        u64::try_from(device::stat(self.fd().as_fd())?.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Whether it belongs to the user as whom this process acts.
    pub(crate) fn is_own(&self) -> io::Result<bool> {
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        Ok(device::stat(self.fd().as_fd())?.st_uid == user)
    }

    /// Number of bytes that are allocated to a file.
    pub fn allocated(&self) -> io::Result<u64> {
        Ok(u64::try_from(device::stat(self.fd().as_fd())?.st_blocks).unwrap_or(0).saturating_mul(512))
    }

    /// Whether it has no name any more: it was removed, or another was renamed over it. Data
    /// written to it is lost when it is closed.
    pub fn is_orphan(&self) -> io::Result<bool> {
        if let Some(named) = files::is_named(self.fd().as_raw_fd(), None) {
            return Ok(!named);
        }
        Ok(device::stat(self.fd().as_fd())?.st_nlink == 0)
    }

    /// Whether `path` names this file.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        if let Some(named) = files::is_named(self.fd().as_raw_fd(), Some(path)) {
            return Ok(named);
        }
        let (own, named) = (device::stat(self.fd().as_fd())?, std::fs::metadata(path));
        match named {
            Ok(named) => Ok((named.dev(), named.ino()) == (own.st_dev, own.st_ino)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The smallest unit of direct I/O, in bytes: a device's logical sector; for a file its
    /// system's block size is a safe choice, which this returns.
    pub fn logical_sector(&self) -> io::Result<u32> {
        if self.is_block_device {
            return device::logical_sector(self.fd().as_fd());
        }
        let block = device::stat(self.fd().as_fd())?.st_blksize;
        Ok(u32::try_from(block).ok().filter(|b| b.is_power_of_two()).map_or(4096, |b| b.clamp(512, 4096)))
    }

    /// Reads into all of `buf` from `at` on. Returns how many bytes there were: fewer than asked
    /// for only at the end of the file.
    pub async fn read_at(&self, buf: BufMut, at: u64) -> (io::Result<usize>, BufMut) {
        let (result, destination) = self.read_into(buf.into(), at).await;
        (result, destination.into_buf().expect("a buffer went in"))
    }

    /// Reads into all of `destination`, which may be a region's, from `at` on. Returns as
    /// [`Self::read_at`] does.
    pub fn read_into(
        &self,
        destination: Destination,
        at: u64,
    ) -> impl Future<Output = (io::Result<usize>, Destination)> {
        self.read_by(Way::Core, destination, at)
    }

    /// [`Self::read_into`].
    pub(super) async fn read_by(
        &self,
        way: Way,
        mut destination: Destination,
        at: u64,
    ) -> (io::Result<usize>, Destination) {
        let mut done = 0;
        loop {
            let (ptr, len) = destination.parts_mut();
            if done == len {
                return (Ok(done), destination);
            }
            let n = (len - done).min(MOST_BYTES) as u32;
            let entry =
                opcode::Read::new(self.raw(), ptr.wrapping_add(done), n).offset(at + done as u64).build();
            // SAFETY: the entry points into the destination, whose memory does not move with it.
            let op = unsafe { Op::transfer(way, Core::current(), entry, destination, self.shared_fd()) };
            let (completion, back) = op.await;
            destination = back;
            match completion.count() {
                Ok(0) => return (Ok(done), destination),
                Ok(n) => done += n,
                Err(e) if is_transient(&e) => {}
                Err(e) => return (Err(e), destination),
            }
        }
    }

    /// Writes `data` at `at`. With `durable`, it is on the medium when this ends (RWF_DSYNC).
    pub fn write_at(
        &self,
        data: impl Into<Chain>,
        at: u64,
        durable: bool,
    ) -> impl Future<Output = io::Result<()>> {
        self.write_by(Way::Core, data.into(), at, durable)
    }

    /// [`Self::write_at`].
    pub(super) async fn write_by(
        &self,
        way: Way,
        mut data: Chain,
        mut at: u64,
        durable: bool,
    ) -> io::Result<()> {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        while !data.is_empty() {
            let core = Core::current();
            let completion = if let [only] = data.bufs() {
                let only: Buf = only.clone();
                let len = only.len().min(MOST_BYTES) as u32;
                let entry =
                    opcode::Write::new(self.raw(), only.as_ptr(), len).offset(at).rw_flags(flags).build();
                // SAFETY: the entry points to the buffer's memory, which does not move with it.
                unsafe { Op::transfer(way, core, entry, only, self.shared_fd()) }.await.0
            } else {
                let mut vectored = PooledBox::new(Vectored { vectors: SmallVec::new(), data: data.clone() });
                let Vectored { vectors, data } = &mut *vectored;
                fill_vectors(vectors, data);
                let (ptr, len) = (vectored.vectors.as_ptr(), vectored.vectors.len() as u32);
                let entry = opcode::Writev::new(self.raw(), ptr, len).offset(at).rw_flags(flags).build();
                // SAFETY: the entry points to vectors in the box, and they to buffers that it
                // keeps.
                unsafe { Op::transfer(way, core, entry, vectored, self.shared_fd()) }.await.0
            };
            match completion.count() {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    data.advance(n.min(data.len()));
                    at += n as u64;
                }
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes all earlier writes durable, with the metadata needed to read them back (fdatasync).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.fsync(types::FsyncFlags::DATASYNC).await
    }

    /// Makes all earlier writes durable, including times and attributes (fsync).
    pub async fn sync_all(&self) -> io::Result<()> {
        self.fsync(types::FsyncFlags::empty()).await
    }

    async fn fsync(&self, flags: types::FsyncFlags) -> io::Result<()> {
        loop {
            let entry = opcode::Fsync::new(self.raw()).flags(flags).build();
            // SAFETY: the entry points to nothing.
            let (completion, ()) = unsafe { Op::on_file(Core::current(), entry, (), self.shared_fd()) }.await;
            match completion.count() {
                Err(e) if is_transient(&e) => {}
                other => return other.map(drop),
            }
        }
    }

    /// fallocate(2) with `mode`: 0 to allocate, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE for a
    /// hole, FALLOC_FL_ZERO_RANGE for zeros. Errors are those of the call: EOPNOTSUPP where the
    /// file system cannot.
    pub async fn fallocate(&self, mode: i32, at: u64, len: u64) -> io::Result<()> {
        loop {
            let entry = opcode::Fallocate::new(self.raw(), len).offset(at).mode(mode).build();
            // SAFETY: the entry points to nothing.
            let (completion, ()) = unsafe { Op::on_file(Core::current(), entry, (), self.shared_fd()) }.await;
            match completion.count() {
                Err(e) if is_transient(&e) => {}
                other => return other.map(drop),
            }
        }
    }

    /// Makes a hole: the range reads as zeros and its space is free. On a device it discards the
    /// range; the device decides what the range reads as afterwards.
    pub async fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        if self.is_block_device {
            let fd = Arc::clone(&*self.fd);
            return blocking(move || device::discard(fd.as_fd(), at, len)).await;
        }
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, at, len).await
    }

    /// Makes a range zeros, allocated on a file, by the device itself on a block device. EOPNOTSUPP
    /// where neither works: then zeros have to be written.
    pub async fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        if self.is_block_device {
            let fd = Arc::clone(&*self.fd);
            return blocking(move || device::zero_out(fd.as_fd(), at, len)).await;
        }
        self.fallocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, at, len).await
    }

    /// Copies up to `len` bytes at `from_at` of `from` to `at` within the kernel
    /// (copy_file_range(2)), which shares blocks where the file system can. Gives how many were
    /// copied. Errors are those of the call: EXDEV, EINVAL or EOPNOTSUPP where it cannot.
    pub async fn copy_range(&self, from: &Self, from_at: u64, at: u64, len: usize) -> io::Result<usize> {
        let (source, destination) = (Arc::clone(&*from.fd), Arc::clone(&*self.fd));
        blocking(move || {
            files::copy(source.as_raw_fd(), from_at, destination.as_raw_fd(), at, len)
                .unwrap_or_else(|| device::copy_range(source.as_fd(), from_at, destination.as_fd(), at, len))
        })
        .await
    }

    /// Makes `len` bytes at `at` share the blocks of those at `from_at` of `from` (FICLONERANGE); 0
    /// is all behind. It may take time.
    ///
    /// # Errors
    /// Those of ioctl_ficlonerange(2): EOPNOTSUPP where blocks cannot be shared, EINVAL where they
    /// are not aligned.
    pub fn share_range_now(&self, from: &Self, from_at: u64, at: u64, len: u64) -> io::Result<()> {
        if files::has(self.fd().as_raw_fd()) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        device::share_range(from.as_fd(), from_at, self.as_fd(), at, len)
    }

    /// Another handle of the same file, for a thread or a core of its own.
    pub fn another(&self) -> Self {
        Self { fd: Shared::new(Arc::clone(&*self.fd)), is_block_device: self.is_block_device }
    }

    /// Makes a file longer (with a hole) or shorter.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let fd = Arc::clone(&*self.fd);
        blocking(move || device::set_len(fd.as_fd(), len)).await
    }

    /// The first byte from `at` on that the file has data for; `None` if there is only a hole up to
    /// the end.
    pub async fn seek_data(&self, at: u64) -> io::Result<Option<u64>> {
        let fd = Arc::clone(&*self.fd);
        blocking(move || device::seek(fd.as_fd(), at, libc::SEEK_DATA)).await
    }

    /// The first byte from `at` on that lies in a hole (the end of the file counts as one); `None`
    /// beyond the end.
    pub async fn seek_hole(&self, at: u64) -> io::Result<Option<u64>> {
        let fd = Arc::clone(&*self.fd);
        blocking(move || device::seek(fd.as_fd(), at, libc::SEEK_HOLE)).await
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

/// Opens a file, of a simulated world if this is one.
pub(super) fn open_fd(path: &Path, options: OpenOptions) -> io::Result<OwnedFd> {
    match files::open(path, options.flags()) {
        // SAFETY: it was made for this call.
        Some(fd) => fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
        None => options.open(path),
    }
}

/// A write of several buffers.
struct Vectored {
    vectors: SmallVec<[libc::iovec; 16]>,
    data: Chain,
}

/// Fills `vectors` with as much of `data` as one call can take.
pub(super) fn fill_vectors(vectors: &mut SmallVec<[libc::iovec; 16]>, data: &Chain) {
    let mut room = MOST_BYTES;
    for buf in data.iter().take(MOST_VECTORS) {
        let len = buf.len().min(room);
        if len == 0 {
            break;
        }
        vectors.push(libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: len });
        room -= len;
    }
}
