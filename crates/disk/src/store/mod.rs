//! What a disk's blocks are kept on.
//!
//! A store is a flat range of bytes, shared by all cores; each call uses the ring of the core it is made on. Offsets and
//! lengths are in bytes and are multiples of the unit's logical block size; the unit has checked them against
//! [`BlockStore::size`] before.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ring::{Chain, Pooled};

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

/// A medium.
pub trait BlockStore: Send + Sync + 'static {
    /// Its size in bytes. It may change while it is open (online resize); the unit asks again on each capacity check.
    fn size(&self) -> u64;

    /// Whether writes are possible at all.
    fn writable(&self) -> bool;

    /// Whether [`Self::discard`] gives space back.
    fn thin(&self) -> bool;

    /// Reads `len` bytes at `at`. The buffers are the store's to choose: a memory store hands out slices of its own memory,
    /// a file store buffers of this core's pool. `aligned` direct stores read whole sectors and return the part asked for.
    fn read(&self, at: u64, len: usize) -> Io<Chain>;

    /// Writes `data` at `at`. With `durable`, it is on the medium when this resolves (FUA, or a write-through cache mode);
    /// without, it may sit in a volatile cache until [`Self::sync`].
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()>;

    /// Everything written before this call is on the medium when this resolves.
    fn sync(&self) -> Io<()>;

    /// Deallocates a range; it reads as zeros afterwards. Stores that are not [`Self::thin`] write zeros.
    fn discard(&self, at: u64, len: u64) -> Io<()>;

    /// Writes zeros; `deallocate` allows a hole instead.
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()>;

    /// The extent that contains `at`, no longer than `len`.
    fn extent(&self, at: u64, len: u64) -> Io<Extent>;
}
