//! What units keep their bytes on: files, block devices and memory, and the I/O engines that reach them.
//!
//! A store is a flat range of bytes, shared by all cores; each call uses the ring of the core it is made on. Offsets and
//! lengths are in bytes and are multiples of the unit's logical block size; the unit has checked them against
//! [`BlockStore::size`] before. Knows bytes and durability, and nothing of SCSI.
#![forbid(unsafe_code)]

pub mod engine;
pub mod faulty;
mod file;
mod group;
pub mod ledger;
mod memory;
pub mod model;
mod sharded;
pub mod size;
pub mod spec;
#[cfg(test)]
mod testing;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ring::{Buf, Chain, Pooled, RegionRange};

pub use file::{FileOptions, FileStore, Made, OpenError};
pub use memory::MemoryStore;

/// Why a store could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The medium has no room for the write (ENOSPC, EDQUOT): SPACE ALLOCATION FAILED WRITE PROTECT.
    #[error("no space is left on the medium")]
    NoSpace,
    /// The medium is read-only (EROFS, EPERM on a sealed file).
    #[error("the medium is read-only")]
    ReadOnly,
    /// The range is not there, though it was: the file shrank.
    #[error("the medium is shorter than the unit")]
    OutOfRange,
    /// The store cannot do this at all (a hole in something without holes).
    #[error("the store does not support the operation")]
    Unsupported,
    /// No buffer could be had.
    #[error("out of buffers")]
    NoMemory,
    /// Any other failure, with its errno.
    #[error("input/output error (errno {0})")]
    Io(i32),
}

impl StoreError {
    /// What an errno of the system means for a medium. 0 and negative numbers become EIO.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT => Self::NoSpace,
            libc::EROFS | libc::EPERM | libc::EACCES => Self::ReadOnly,
            // A write beyond the largest file that the system or its limits allow: the range cannot exist.
            libc::EFBIG | libc::ENXIO => Self::OutOfRange,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            libc::ENOMEM | libc::ENOBUFS => Self::NoMemory,
            errno if errno > 0 => Self::Io(errno),
            _ => Self::Io(libc::EIO),
        }
    }

    /// [`Self::from_errno`] of an [`io::Error`].
    pub fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::OutOfRange,
            io::ErrorKind::OutOfMemory => Self::NoMemory,
            _ => Self::from_errno(error.raw_os_error().unwrap_or(0)),
        }
    }
}

/// An operation on a store: finished at once, or on its way.
pub enum Io<T> {
    /// Finished. Taken by the first poll.
    Ready(Option<Result<T, StoreError>>),
    /// On its way on this core's ring.
    Running(Pooled<Result<T, StoreError>>),
}

impl<T> Io<T> {
    /// Finished well.
    pub fn ok(value: T) -> Self {
        Self::Ready(Some(Ok(value)))
    }
    /// Finished badly.
    pub fn err(error: StoreError) -> Self {
        Self::Ready(Some(Err(error)))
    }
}

impl<T: Unpin> Future for Io<T> {
    type Output = Result<T, StoreError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
            Self::Running(future) => Pin::new(future).poll(cx),
        }
    }
}

/// How a written range looks afterwards when it is asked for: GET LBA STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Whether the medium holds it; a deallocated range reads as zeros.
    pub mapped: bool,
}

/// In which pieces a medium works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Offsets and lengths must be multiples of this many bytes: a power of two. The unit's logical block size is one of
    /// its multiples.
    pub block: u32,
    /// Bytes that the medium writes without reading their surroundings first: a power of two, at least `block`.
    pub physical_block: u32,
    /// Bytes that a discard can give back: a power of two. Parts of them are only zeroed.
    pub discard_granularity: u32,
}

/// What a thin medium holds, and what it can still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Bytes that are allocated.
    pub used: u64,
    /// Bytes that can still be allocated for this medium.
    pub available: u64,
    /// Whether nobody else can take what is available.
    pub dedicated: bool,
}

/// A medium.
pub trait BlockStore: Send + Sync + 'static {
    /// Its size in bytes, as last seen: cheap enough for each command's range check. It may change while the store is
    /// open (online resize, a file that shrinks): see [`Self::refresh`].
    fn size(&self) -> u64;

    /// Looks at the medium (a system call) and returns its size, which [`Self::size`] says from now on. The unit asks when
    /// its capacity is asked for, and after [`StoreError::OutOfRange`].
    fn refresh(&self) -> u64 {
        self.size()
    }

    /// In which pieces it works.
    fn geometry(&self) -> Geometry;

    /// Whether writes are possible at all.
    fn writable(&self) -> bool;

    /// Whether [`Self::discard`] gives space back.
    fn thin(&self) -> bool;

    /// Reads `len` bytes at `at`. The buffers are the store's to choose: a memory store hands out slices of its own memory,
    /// a file store buffers of this core's pool. A slice of a memory store shows what is written after this resolved: take
    /// `Buf::stable` of it where the same bytes must be seen twice (a digest and the data it covers).
    fn read(&self, at: u64, len: usize) -> Io<Chain>;

    /// Like [`Self::read`], for bytes that are only sent: they may be the medium's own memory, which shows what is written
    /// later, and which only a send, `Buf::stable` or `Buf::try_copy_to` should look at (a file's can be cut short).
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        self.read(at, len)
    }

    /// What [`Self::read_to_send`] would give, if that is the medium's own memory in one piece and nobody has to wait for it.
    fn lend(&self, _at: u64, _len: usize) -> Option<Buf> {
        None
    }

    /// Writes `data` at `at`. With `durable`, it is on the medium when this resolves (FUA, or a write-through cache mode);
    /// without, it may sit in a volatile cache until [`Self::sync`]. A write that fails may have been done in part.
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()>;

    /// Whether [`Self::land`] may do anything.
    fn lands(&self) -> bool {
        false
    }

    /// Has `fill` write to the medium's own memory at `at`, at most `len` bytes from there on: [`Self::write`] of what it says that it
    /// filled, not durable, at once. Gives these bytes as they lie there; a later [`Self::write`] of them to where they lie does not
    /// touch them again, whatever has been written over them meanwhile, and makes them durable if that is asked for. `None`: nothing was
    /// filled.
    fn land(&self, _at: u64, _len: usize, _fill: &mut dyn FnMut(&mut RegionRange) -> usize) -> Option<Buf> {
        None
    }

    /// Everything that was written, zeroed or discarded before this call (its operation had resolved) is on the medium
    /// when this resolves. Once a sync has failed, every later one fails too, until the store is opened anew: the system
    /// may have dropped what it could not write, and no later success would bring it back.
    fn sync(&self) -> Io<()>;

    /// Deallocates a range; it reads as zeros afterwards. Stores that are not [`Self::thin`] write zeros. Like
    /// [`Self::write_zeros`], it is on the medium only after a [`Self::sync`].
    fn discard(&self, at: u64, len: u64) -> Io<()>;

    /// Writes zeros; `deallocate` allows a hole instead.
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()>;

    /// The extent that contains `at`, no longer than `len`.
    fn extent(&self, at: u64, len: u64) -> Io<Extent>;

    /// The file that holds the bytes, each at its own offset, for the system to copy from; `None` where there is none.
    fn file(&self) -> Option<ring::File> {
        None
    }

    /// Copies `len` bytes at `from_at` of another store's (or this one's) [`Self::file`] to `at`, by what the system has that is
    /// better than to read and write them: it may share the blocks. [`StoreError::Unsupported`] where it has nothing; then
    /// nothing was copied, or a part.
    fn copy_from(&self, _from: ring::File, _from_at: u64, _at: u64, _len: u64) -> Io<()> {
        Io::err(StoreError::Unsupported)
    }

    /// What a thin medium holds and can take; `None` where that cannot be said. A system call or two: not for the data path.
    fn resources(&self) -> Option<Resources> {
        None
    }
}

/// A store that refuses every change.
pub struct ReadOnly<S>(
    /// What is read.
    pub S,
);

impl<S: BlockStore> BlockStore for ReadOnly<S> {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn refresh(&self) -> u64 {
        self.0.refresh()
    }
    fn writable(&self) -> bool {
        false
    }
    fn thin(&self) -> bool {
        self.0.thin()
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.0.read(at, len)
    }
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        self.0.read_to_send(at, len)
    }
    fn lend(&self, at: u64, len: usize) -> Option<Buf> {
        self.0.lend(at, len)
    }
    fn write(&self, _at: u64, _data: Chain, _durable: bool) -> Io<()> {
        Io::err(StoreError::ReadOnly)
    }
    fn sync(&self) -> Io<()> {
        Io::ok(())
    }
    fn discard(&self, _at: u64, _len: u64) -> Io<()> {
        Io::err(StoreError::ReadOnly)
    }
    fn write_zeros(&self, _at: u64, _len: u64, _deallocate: bool) -> Io<()> {
        Io::err(StoreError::ReadOnly)
    }
    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.0.extent(at, len)
    }
    fn file(&self) -> Option<ring::File> {
        self.0.file()
    }
    fn resources(&self) -> Option<Resources> {
        self.0.resources()
    }
}
