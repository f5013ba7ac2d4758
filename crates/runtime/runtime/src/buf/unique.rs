//! [`BufMut`]: a pool buffer with one owner, and [`Destination`]: memory that an operation may
//! fill.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::pool::Header;
use super::{Buf, Bytes, RegionRange};

/// A uniquely owned pool buffer, aligned to 4096 bytes. Its bytes are always initialised: zeros, or
/// what its last user left ([`super::pool::alloc_zeroed`] clears them).
pub struct BufMut {
    header: NonNull<Header>,
    len: usize,
}

impl BufMut {
    /// # Safety
    /// `header` is a block with exactly one reference, which the caller gives up, and `len` is at
    /// most its capacity.
    pub(super) unsafe fn from_header(header: NonNull<Header>, len: usize) -> Self {
        Self { header, len }
    }

    fn header(&self) -> &Header {
        // SAFETY: this owns the header's one reference, so it lives.
        unsafe { self.header.as_ref() }
    }

    /// Address of the first byte, for the kernel or a device to write while this is kept and not
    /// borrowed.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.header().base().as_ptr()
    }

    /// The chunk of this core's pool that it lies in.
    pub fn chunk(&self) -> Option<super::pool::ChunkName> {
        self.header().chunk_name()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Largest length that it can have.
    pub fn capacity(&self) -> usize {
        self.header().capacity()
    }

    /// Shortens to `len` bytes; does nothing if it is shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes it `len` bytes long, up to its capacity; bytes that this adds are initialised but
    /// stale. Panics beyond.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} of {}", self.capacity());
        self.len = len;
    }

    /// Gives up the right to write.
    pub fn freeze(self) -> Buf {
        let this = std::mem::ManuallyDrop::new(self);
        let base = this.header().base();
        // SAFETY: `len` bytes of the block start at its base, and the reference moves from `this`
        // to the `Buf`.
        unsafe { Buf::from_header(base, this.len, this.header) }
    }

    /// Gives up the right to write. The type of the result records that no writer is left.
    pub fn freeze_bytes(self) -> Bytes {
        Bytes::from_stable(self.freeze())
    }
}

impl Drop for BufMut {
    fn drop(&mut self) {
        // SAFETY: gives up the one reference that this owns, once.
        unsafe { Header::release(self.header) };
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block's bytes are initialised (mapped as zeros), and this is their only
        // owner.
        unsafe { std::slice::from_raw_parts(self.header().base().as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.header().base().as_ptr(), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} of {})", self.len, self.capacity())
    }
}

/// Memory for an operation to fill.
#[derive(Debug)]
pub enum Destination {
    /// Bytes `at..at + len` of a pool buffer. Bytes outside are not changed.
    Pool {
        /// The buffer.
        buf: BufMut,
        /// First byte to fill.
        at: usize,
        /// Number of bytes to fill.
        len: usize,
    },
    /// A part of a region.
    Region(RegionRange),
}

impl Destination {
    /// The bytes from `at` on of `buf`. Panics if `at` lies beyond its end.
    pub fn from_offset(buf: BufMut, at: usize) -> Self {
        let len = buf.len().checked_sub(at).expect("an offset within the buffer");
        Self::Pool { buf, at, len }
    }

    /// Address and number of its bytes.
    pub(crate) fn parts_mut(&mut self) -> (*mut u8, usize) {
        match self {
            Self::Pool { buf, at, len } => {
                let (at, len) = (*at, *len);
                assert!(
                    at.checked_add(len).is_some_and(|end| end <= buf.capacity()),
                    "outside of the buffer"
                );
                (buf.as_mut_ptr().wrapping_add(at), len)
            }
            Self::Region(range) => (range.as_mut_ptr(), range.len()),
        }
    }

    /// The bytes that it takes, unless they are a region's.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Pool { buf, at, len } => buf.get(*at..at.checked_add(*len)?),
            Self::Region(_) => None,
        }
    }

    /// The buffer, unless it is a region.
    pub fn into_buf(self) -> Option<BufMut> {
        match self {
            Self::Pool { buf, .. } => Some(buf),
            Self::Region(_) => None,
        }
    }

    /// Number of bytes that it takes.
    pub fn len(&self) -> usize {
        match self {
            Self::Pool { len, .. } => *len,
            Self::Region(range) => range.len(),
        }
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<BufMut> for Destination {
    fn from(buf: BufMut) -> Self {
        Self::from_offset(buf, 0)
    }
}

impl From<RegionRange> for Destination {
    fn from(range: RegionRange) -> Self {
        Self::Region(range)
    }
}
