//! Bytes that operations own: [`Buf`] (shared, immutable), [`Bytes`] (the same, without other
//! writers), [`BufMut`] (unique), [`Chain`] (a list), [`Region`] (memory that all cores share).
//!
//! A `Buf` is a pointer, a length and one counted header. Headers come from the core's pool and go
//! back to it, so no clone, slice or drop allocates, and counts are plain integers: none of these
//! types is `Send`.
//!
//! Two kinds of memory hide behind a `Buf`. *Stable* memory (pool buffers, vectors, statics) does
//! not change while a `Buf` names it, and can be borrowed as `&[u8]`. A *region's* memory may be
//! written by other cores and by the kernel at any time, so a reference to it would be unsound.
//! [`Buf::as_slice`] is `None` for it. Its bytes are only copied out ([`Buf::copy_to`],
//! [`Buf::for_each_slice`], [`Buf::stable`]), or read by the kernel through a pointer, which is how
//! a slice of a region is sent without a copy. A reader that races with a writer gets some mixture
//! of old and new bytes, as it does from any disk.

mod bytes;
mod chain;
pub mod pool;
pub(crate) mod racy;
mod region;
mod unique;

use std::alloc::Layout;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;

pub use bytes::Bytes;
pub use chain::Chain;
use pool::{Header, Kind};
pub use region::{Guard, LastUse, OutOfRange, Region, RegionRange};
pub(crate) use region::{map as map_pages, unmap as unmap_pages};
pub use unique::{BufMut, Destination};

use crate::copies::count_copy;

/// Immutable, counted bytes; cheap to clone and to slice. See the module for what "immutable" means
/// for a region.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    /// `None` for statics and for the empty buffer. Otherwise this `Buf` holds one of the header's
    /// references.
    header: Option<NonNull<Header>>,
}

/// The most bytes of [`Buf::zeros`].
pub const ZEROS: usize = 64 << 10;

#[repr(align(4096))]
struct Zeros([u8; ZEROS]);

static SOME_ZEROS: Zeros = Zeros([0; ZEROS]);

impl Buf {
    /// No bytes.
    pub const fn new() -> Self {
        Self::from_static(&[])
    }

    /// Bytes that live for ever.
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        // SAFETY: a slice's pointer is not null, even for an empty slice.
        let ptr = unsafe { NonNull::new_unchecked(bytes.as_ptr().cast_mut()) };
        Self { ptr, len: bytes.len(), header: None }
    }

    /// `len` zeros, at most [`ZEROS`]; at the beginning of a page, for O_DIRECT. They are the same
    /// memory each time.
    #[track_caller]
    pub fn zeros(len: usize) -> Self {
        Self::from_static(&SOME_ZEROS.0[..len])
    }

    /// Takes one of `header`'s references over.
    ///
    /// # Safety
    /// `ptr..ptr+len` lies within the memory that `header` keeps alive, and the caller owns one of
    /// its references.
    unsafe fn from_header(ptr: NonNull<u8>, len: usize, header: NonNull<Header>) -> Self {
        Self { ptr, len, header: Some(header) }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte. For the kernel or a device, and for alignment checks. A caller
    /// that reads memory behind it must keep the `Buf` meanwhile, and read a region's only as
    /// [`Self::copy_to`] does it.
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Whether the address and the length are multiples of `n` (O_DIRECT requires multiples of the
    /// sector size).
    pub fn is_aligned(&self, n: usize) -> bool {
        n != 0 && (self.ptr.as_ptr() as usize) % n == 0 && self.len % n == 0
    }

    /// Whether this names a region's memory, which can change at any time.
    pub fn is_region(&self) -> bool {
        // SAFETY: a `Buf` holds a reference on its header, so the header lives.
        self.header.is_some_and(|h| unsafe { h.as_ref() }.kind() == Kind::Region)
    }

    /// The bytes, unless they are a region's.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.is_region() {
            return None;
        }
        // SAFETY: the memory is initialised and kept alive by the header (or static). Stable memory
        // is not written while a `Buf` names it: a pool buffer becomes a `Buf` only by giving up
        // its `BufMut`.
        Some(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) })
    }

    /// A part of these bytes. Panics if `range` does not lie within them, as slices do.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = resolve(range, self.len);
        let mut part = self.clone();
        part.trim(start, end);
        part
    }

    /// Splits off the first `n` bytes and keeps the rest. Panics if `n` is more than there are.
    pub fn split_to(&mut self, n: usize) -> Self {
        let head = self.slice(..n);
        self.trim(n, self.len);
        head
    }

    /// Drops the first `n` bytes. Panics if `n` is more than there are.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "advance by {n} of {}", self.len);
        self.trim(n, self.len);
    }

    /// Drops all bytes after the first `n`; does nothing if there are fewer.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// Adds the bytes right behind these, if `next` names them in the same memory; else gives it
    /// back.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        let behind = self.ptr.as_ptr().wrapping_add(self.len) == next.ptr.as_ptr();
        if self.header.is_none() || self.header != next.header || !behind {
            return Err(next);
        }
        // Both lie within the memory that the one header keeps alive, one directly behind the
        // other.
        self.len += next.len;
        Ok(())
    }

    /// Narrows to `start..end`, which the caller has checked.
    fn trim(&mut self, start: usize, end: usize) {
        // SAFETY: `start <= end <= len`, so the new range lies within the old one.
        self.ptr = unsafe { self.ptr.add(start) };
        self.len = end - start;
    }

    /// Asks for the first 4 KiB to be brought into the processor's cache, of a region's memory:
    /// they are copied soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if self.is_region() {
            racy::prefetch(self.as_ptr(), self.len.min(4096));
        }
    }

    /// The chunk of this core's pool that it lies in; `None` for all other memory.
    pub fn chunk(&self) -> Option<pool::ChunkName> {
        // SAFETY: a `Buf` holds a reference on its header, so the header lives.
        self.header.and_then(|h| unsafe { h.as_ref() }.chunk_name())
    }

    /// Whether a socket may send this memory as it is when it leaves, after the send is over: a
    /// region's, unless it was mapped otherwise.
    pub fn is_lent(&self) -> bool {
        // SAFETY: a `Buf` holds a reference on its header, so the header lives.
        self.header.is_some_and(|h| unsafe { h.as_ref() }.mapping().is_some_and(|m| m.is_lent()))
    }

    /// The guard of a region's memory, if it has one, and the offset in the region at which this
    /// begins.
    pub(crate) fn guard(&self) -> Option<(&dyn Guard, usize)> {
        // SAFETY: a `Buf` holds a reference on its header, so the header lives as long as it.
        let header = unsafe { self.header?.as_ref() };
        header.mapping()?.guard(self.as_ptr())
    }

    /// Copies all bytes to `dst`. Panics if the lengths differ, or if these are a file's that are
    /// not there any more: see [`Self::try_copy_to`].
    pub fn copy_to(&self, dst: &mut [u8]) {
        self.try_copy_to(dst).expect("a file's pages are copied by those who can do without");
    }

    /// Copies all bytes to `dst`. Panics if the lengths differ.
    ///
    /// # Errors
    /// When these are bytes of a file ([`Region::of_file`]) that do not exist any more; then `dst`
    /// has some of them.
    pub fn try_copy_to(&self, dst: &mut [u8]) -> Result<(), OutOfRange> {
        assert_eq!(dst.len(), self.len, "lengths differ");
        count_copy(self.len);
        let all = match self.as_slice() {
            Some(bytes) => {
                dst.copy_from_slice(bytes);
                true
            }
            // SAFETY: `len` bytes are readable at `ptr` (the region is mapped while the header
            // lives) and writable at `dst`; they cannot overlap since no `&mut` to a region's
            // memory ever exists.
            None => unsafe { racy::copy_out(self.ptr.as_ptr(), dst) },
        };
        if all { Ok(()) } else { Err(OutOfRange) }
    }

    /// A copy on the heap.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut vec = vec![0; self.len];
        self.copy_to(&mut vec);
        vec
    }

    /// Passes all bytes to `f` in order, in one slice or, for a region, in copied pieces of up to 4
    /// KiB. A region may change between this and a later use of the same bytes: to send the
    /// digested bytes, take [`Self::stable`] first.
    pub fn for_each_slice(&self, mut f: impl FnMut(&[u8])) {
        if let Some(bytes) = self.as_slice() {
            return f(bytes);
        }
        count_copy(self.len);
        let mut piece = [0u8; 4096];
        let mut at = 0;
        while at < self.len {
            let n = piece.len().min(self.len - at);
            // SAFETY: as in `copy_to`, for the range `at..at+n`.
            let all = unsafe { racy::copy_out(self.ptr.as_ptr().add(at), &mut piece[..n]) };
            assert!(all, "a file's pages are shown to those who can do without");
            f(&piece[..n]);
            at += n;
        }
    }

    /// These bytes in memory without writers: the same memory, or for a region a copy in a pool
    /// buffer. `None` when the pool is exhausted, a region's slice is longer than
    /// [`pool::MAX_ALLOC`], or a file's bytes do not exist any more.
    pub fn stable(&self) -> Option<Bytes> {
        if !self.is_region() {
            return Some(Bytes::from_stable(self.clone()));
        }
        let mut copy = pool::alloc(self.len)?;
        self.try_copy_to(&mut copy).ok()?;
        Some(copy.freeze_bytes())
    }

    /// The bytes as [`Bytes`], or itself if they are a region's.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        if self.is_region() { Err(self) } else { Ok(Bytes::from_stable(self)) }
    }
}

/// Turns any range into `start..end` within `len`, or panics.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => n.checked_add(1).expect("range start overflows"),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => n.checked_add(1).expect("range end overflows"),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "range {start}..{end} of {len} bytes");
    (start, end)
}

impl Clone for Buf {
    #[inline]
    fn clone(&self) -> Self {
        if let Some(h) = self.header {
            // SAFETY: this `Buf` holds a reference, so the header lives.
            unsafe { h.as_ref() }.retain();
        }
        Self { ptr: self.ptr, len: self.len, header: self.header }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        if let Some(h) = self.header {
            // SAFETY: gives up the one reference that this `Buf` holds, once.
            unsafe { Header::release(h) };
        }
    }
}

impl Default for Buf {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Vec<u8>> for Buf {
    fn from(vec: Vec<u8>) -> Self {
        let vec = std::mem::ManuallyDrop::new(vec);
        if vec.capacity() == 0 {
            return Self::new();
        }
        let ptr = vec.as_ptr().cast_mut();
        // SAFETY: the pointer of a vector with capacity is not null and was allocated as an array
        // of that many bytes.
        unsafe {
            let ptr = NonNull::new_unchecked(ptr);
            let layout = Layout::array::<u8>(vec.capacity()).unwrap_unchecked();
            Self::from_header(ptr, vec.len(), pool::heap_header(ptr, layout))
        }
    }
}

impl From<Box<[u8]>> for Buf {
    fn from(bytes: Box<[u8]>) -> Self {
        Vec::from(bytes).into()
    }
}

impl From<&'static [u8]> for Buf {
    fn from(bytes: &'static [u8]) -> Self {
        Self::from_static(bytes)
    }
}

impl<const N: usize> From<&'static [u8; N]> for Buf {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::from_static(bytes)
    }
}

impl From<BufMut> for Buf {
    fn from(buf: BufMut) -> Self {
        buf.freeze()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_region() { "region" } else { "bytes" };
        write!(f, "Buf({} {kind})", self.len)
    }
}

#[cfg(test)]
mod tests;
