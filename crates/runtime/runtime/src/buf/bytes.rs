//! [`Bytes`]: a [`Buf`] that is known to be stable, and can therefore be borrowed as a slice.

use std::fmt;
use std::ops::{Deref, RangeBounds};

use super::Buf;

/// Immutable, reference-counted bytes: data that a socket received, or a frozen pool buffer. Has
/// everything that [`Buf`] has, and `Deref` to `[u8]`.
#[derive(Clone, Default)]
pub struct Bytes(Buf);

impl Bytes {
    /// No bytes.
    pub const fn new() -> Self {
        Self(Buf::new())
    }

    /// The caller has checked that `buf` is not a region's.
    pub(super) fn from_stable(buf: Buf) -> Self {
        debug_assert!(!buf.is_region());
        Self(buf)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the same as `Buf::as_slice`; that these are not a region's was checked when this
        // was made.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }

    /// A part of these bytes. Panics if `range` does not lie within them, as slices do.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        Self(self.0.slice(range))
    }

    /// Splits off the first `n` bytes and keeps the rest. Panics if `n` is more than there are.
    pub fn split_to(&mut self, n: usize) -> Self {
        Self(self.0.split_to(n))
    }

    /// Drops the first `n` bytes. Panics if `n` is more than there are.
    pub fn advance(&mut self, n: usize) {
        self.0.advance(n);
    }

    /// Drops all bytes after the first `n`; does nothing if there are fewer.
    pub fn truncate(&mut self, n: usize) {
        self.0.truncate(n);
    }

    /// The same bytes as a [`Buf`].
    pub fn into_buf(self) -> Buf {
        self.0
    }
}

impl Deref for Bytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Bytes> for Buf {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(vec: Vec<u8>) -> Self {
        Self(vec.into())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}
