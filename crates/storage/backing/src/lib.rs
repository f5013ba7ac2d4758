//! Storage for units: files, block devices and memory, and the I/O engines that access them.
//!
//! A store is a flat range of bytes, shared by all cores; each call uses the ring of its own core.
//! Offsets and lengths are in bytes and are multiples of the unit's logical block size. The unit
//! has checked them against [`BlockStore::size`] before. The crate knows bytes and durability, and
//! nothing of SCSI.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

pub mod durable;
pub mod engine;
pub mod faulty;
mod file;
mod group;
pub mod health;
pub mod ledger;
mod memory;
pub mod model;
pub mod remote;
mod sharded;
pub mod size;
pub mod spec;
#[cfg(test)]
mod testing;

use std::io;
use std::sync::Arc;

use runtime::{Buf, Chain, Guard, RegionRange};

pub use file::{FileOptions, FileStore, Made, OpenError, new_directory};
pub use health::{Health, Presence};
pub use memory::MemoryStore;

/// Why an operation of a store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The medium is full (ENOSPC, EDQUOT): SPACE ALLOCATION FAILED WRITE PROTECT.
    #[error("no space is left on the medium")]
    NoSpace,
    /// The medium is read-only (EROFS, EPERM on a sealed file).
    #[error("the medium is read-only")]
    ReadOnly,
    /// The range no longer exists: the file shrank.
    #[error("the medium is shorter than the unit")]
    OutOfRange,
    /// The store does not support the operation (for example a hole in a medium without holes).
    #[error("the store does not support the operation")]
    Unsupported,
    /// No buffer was available.
    #[error("out of buffers")]
    NoMemory,
    /// The operation did not end in time: it may have been carried out, or still be.
    #[error("the outcome is unknown")]
    Unknown,
    /// The medium no longer takes anything from this daemon, since another one has taken it over.
    #[error("the medium refuses this daemon")]
    Fenced,
    /// Any other failure, with its errno.
    #[error("input/output error (errno {0})")]
    Io(i32),
}

impl StoreError {
    /// The store error for an errno of the system. 0 and negative numbers become EIO.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT => Self::NoSpace,
            libc::EROFS | libc::EPERM | libc::EACCES => Self::ReadOnly,
            // A write beyond the maximum file size of the system or of its limits: the range cannot
            // exist.
            libc::EFBIG | libc::ENXIO => Self::OutOfRange,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            libc::ENOMEM | libc::ENOBUFS => Self::NoMemory,
            errno if errno > 0 => Self::Io(errno),
            _ => Self::Io(libc::EIO),
        }
    }

    /// [`Self::from_errno`] of an [`io::Error`].
    pub(crate) fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::OutOfRange,
            io::ErrorKind::OutOfMemory => Self::NoMemory,
            _ => Self::from_errno(error.raw_os_error().unwrap_or(0)),
        }
    }
}

/// An operation on a store: complete, or in flight.
pub type Io<T> = runtime::Answer<Result<T, StoreError>>;

/// A range of one state, for GET LBA STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Whether the medium stores the range; a deallocated range reads as zeros.
    pub mapped: bool,
}

/// Block sizes and granularity of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Offsets and lengths must be multiples of this many bytes: a power of two. The unit's logical
    /// block size is one of its multiples.
    pub block: u32,
    /// Bytes that the medium writes without first reading their surroundings: a power of two, at
    /// least `block`.
    pub physical_block: u32,
    /// Granularity of discards in bytes: a power of two. Smaller parts are only zeroed.
    pub discard_granularity: u32,
}

/// The used and the available space of a thin medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Bytes that are allocated.
    pub used: u64,
    /// Bytes that can still be allocated for this medium.
    pub available: u64,
    /// Whether the available space is reserved for this medium.
    pub dedicated: bool,
}

/// A medium.
pub trait BlockStore: Send + Sync + 'static {
    /// Size in bytes, as last seen: cheap enough for each command's range check. It may change
    /// while the store is open (online resize, a file that shrinks): see [`Self::refresh`].
    fn size(&self) -> u64;

    /// Reads the size of the medium (a system call) and returns it; [`Self::size`] then returns it
    /// too. The unit calls it for READ CAPACITY and after [`StoreError::OutOfRange`].
    fn refresh(&self) -> u64 {
        self.size()
    }

    /// Shows no more than `bytes` bytes of the medium from now on, and refuses changes behind them
    /// ([`StoreError::OutOfRange`]). `None` ends that. For a file that gets another length.
    fn limit(&self, _bytes: Option<u64>) {}

    /// Whether the medium's file has no name any more: its data is lost when it is closed. A
    /// removed device reports errors itself; its name in /dev means nothing.
    fn is_removed(&self) -> bool {
        false
    }

    /// Whether the medium's file is still where it was opened; `None` if it has none, or if that is
    /// not known. Makes system calls: for every few seconds, off the data path.
    fn presence(&self) -> Option<Presence> {
        None
    }

    /// Checks that the medium is still the one that was opened, and reports to its [`Health`].
    fn inspect(&self) {
        if let (Some(health), Some(presence)) = (self.health(), self.presence()) {
            health.saw(&[presence]);
        }
    }

    /// The block sizes of the medium.
    fn geometry(&self) -> Geometry;

    /// Whether the store allows writes.
    fn writable(&self) -> bool;

    /// Whether [`Self::discard`] frees space.
    fn thin(&self) -> bool;

    /// Reads `len` bytes at `at` into buffers of this core, which do not change afterwards.
    /// Concurrent writes may appear in any part of them. A caller that needs whole blocks must
    /// exclude writers, or detect them.
    fn read(&self, at: u64, len: usize) -> Io<Chain>;

    /// The result of [`Self::read`], if it is one buffer and available without waiting.
    fn read_now(&self, _at: u64, _len: usize) -> Option<Buf> {
        None
    }

    /// Up to 4 KiB at `at` will be read soon: a store in memory asks for them to be brought into
    /// the processor's cache.
    fn prefetch(&self, _at: u64, _len: usize) {}

    /// Like [`Self::read`], for bytes to send. They may be the medium's own memory, which shows
    /// later writes. Access it only by a send, `Buf::stable` or `Buf::try_copy_to`, since a file
    /// can be truncated.
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        self.read(at, len)
    }

    /// The result of [`Self::read_to_send`], if it is the medium's own memory in one piece and
    /// available without waiting.
    fn lend(&self, _at: u64, _len: usize) -> Option<Buf> {
        None
    }

    /// Has what [`Self::lend`] lends sent under `guard`, if it is less than 12 KiB: a socket copies
    /// it while no writer changes it. False if the store does not do so.
    fn set_guard(&self, _guard: Arc<dyn Guard>) -> bool {
        false
    }

    /// Writes `data` at `at`. With `durable`, the data is on the medium when this resolves (FUA, or
    /// a write-through cache mode). Without, it may stay in a volatile cache until [`Self::sync`].
    /// A failed write may have been partly done.
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()>;

    /// Whether [`Self::land`] is supported.
    fn lands(&self) -> bool {
        false
    }

    /// Lets `fill` write to the medium's own memory at `at`, at most `len` bytes: a non-durable
    /// [`Self::write`] of the bytes it filled, at once. Returns these bytes in place. A later
    /// [`Self::write`] of them to the same place leaves the memory untouched, even if it was
    /// overwritten meanwhile, and makes it durable if requested. `None`: nothing was filled.
    fn land(&self, _at: u64, _len: usize, _fill: &mut dyn FnMut(&mut RegionRange) -> usize) -> Option<Buf> {
        None
    }

    /// Makes every write, zeroing and discard durable that resolved before this call. After a
    /// failed sync every later one fails too, until it is acknowledged ([`Health::acknowledge`]).
    /// The system may have dropped unwritten data, and no later success would restore it.
    fn sync(&self) -> Io<()>;

    /// Deallocates a range; it reads as zeros afterwards. Stores that are not [`Self::thin`] write
    /// zeros. Like [`Self::write_zeros`], it is durable only after a [`Self::sync`].
    fn discard(&self, at: u64, len: u64) -> Io<()>;

    /// Writes zeros; `deallocate` allows a hole instead.
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()>;

    /// The extent that contains `at`, no longer than `len`.
    fn extent(&self, at: u64, len: u64) -> Io<Extent>;

    /// The file that holds the bytes, each at its own offset, as a source for copies by the system;
    /// `None` if there is none.
    fn file(&self) -> Option<runtime::File> {
        None
    }

    /// Copies `len` bytes at `from_at` of a store's [`Self::file`] to `at`, by a system call that
    /// is better than reading and writing: it may share blocks. [`StoreError::Unsupported`] if
    /// there is none; then nothing was copied, or a part.
    fn copy_from(&self, _from: runtime::File, _from_at: u64, _at: u64, _len: u64) -> Io<()> {
        Io::err(StoreError::Unsupported)
    }

    /// The space of a thin medium; `None` if unknown. Blocks for system calls, or for a look at a
    /// cluster, up to seconds: not for a core.
    fn resources(&self) -> Option<Resources> {
        None
    }

    /// Whether a server may still carry out an operation that has ended as
    /// [`StoreError::Unknown`], even once another process uses the medium.
    fn is_in_doubt(&self) -> bool {
        false
    }

    /// The medium's health; `None` for a store that cannot fail.
    fn health(&self) -> Option<&Arc<Health>> {
        None
    }
}

/// A store that rejects every change.
pub struct ReadOnly<S>(
    /// The store to read.
    pub S,
);

impl<S: BlockStore> BlockStore for ReadOnly<S> {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn refresh(&self) -> u64 {
        self.0.refresh()
    }
    fn limit(&self, bytes: Option<u64>) {
        self.0.limit(bytes);
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
    fn read_now(&self, at: u64, len: usize) -> Option<Buf> {
        self.0.read_now(at, len)
    }
    fn prefetch(&self, at: u64, len: usize) {
        self.0.prefetch(at, len);
    }
    fn read_to_send(&self, at: u64, len: usize) -> Io<Chain> {
        self.0.read_to_send(at, len)
    }
    fn lend(&self, at: u64, len: usize) -> Option<Buf> {
        self.0.lend(at, len)
    }
    fn set_guard(&self, guard: Arc<dyn Guard>) -> bool {
        self.0.set_guard(guard)
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
    fn file(&self) -> Option<runtime::File> {
        self.0.file()
    }
    fn resources(&self) -> Option<Resources> {
        self.0.resources()
    }
    fn health(&self) -> Option<&Arc<Health>> {
        self.0.health()
    }
}
