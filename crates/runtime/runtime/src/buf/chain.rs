//! [`Chain`]: several [`Buf`]s that form one run of bytes.

use smallvec::SmallVec;

use super::{Buf, ZEROS};

/// A list of buffers with their total length. Up to two are held in place. Empty buffers are not
/// kept.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    bufs: SmallVec<[Buf; 2]>,
    len: usize,
}

impl Chain {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `buf`.
    pub fn push(&mut self, buf: impl Into<Buf>) {
        let buf = buf.into();
        if !buf.is_empty() {
            self.len += buf.len();
            self.bufs.push(buf);
        }
    }

    /// Appends `len` zeros, without memory of their own.
    pub fn push_zeros(&mut self, mut len: usize) {
        while len > 0 {
            let piece = len.min(ZEROS);
            self.push(Buf::zeros(piece));
            len -= piece;
        }
    }

    /// Appends `buf`; extends the last buffer if `buf` lies directly behind it in the same memory.
    pub fn push_joined(&mut self, buf: Buf) {
        let len = buf.len();
        let apart = match self.bufs.last_mut() {
            Some(last) => last.join(buf).err(),
            None => Some(buf),
        };
        match apart {
            Some(buf) => self.push(buf),
            None => self.len += len,
        }
    }

    /// Appends all of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.len += other.len;
        self.bufs.append(&mut other.bufs);
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffers in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Buf> {
        self.bufs.iter()
    }

    /// The buffers in order.
    pub fn bufs(&self) -> &[Buf] {
        &self.bufs
    }

    /// Splits off the first `n` bytes and keeps the rest. Panics if `n` is more than there are.
    pub fn split_to(&mut self, n: usize) -> Self {
        assert!(n <= self.len, "split at {n} of {}", self.len);
        if n == self.len {
            return std::mem::take(self);
        }
        let mut head = Self::new();
        let mut whole = 0;
        for buf in &self.bufs {
            if head.len + buf.len() > n {
                break;
            }
            head.len += buf.len();
            whole += 1;
        }
        head.bufs.extend(self.bufs.drain(..whole));
        let rest = n - head.len;
        if rest > 0 {
            head.push(self.bufs[0].split_to(rest));
        }
        self.len -= n;
        head
    }

    /// Drops the first `n` bytes. Panics if `n` is more than there are.
    pub fn advance(&mut self, n: usize) {
        drop(self.split_to(n));
    }

    /// Drops all bytes after the first `n`; does nothing if there are fewer.
    pub fn truncate(&mut self, n: usize) {
        if n < self.len {
            *self = self.split_to(n);
        }
    }

    /// Copies all bytes to `dst`. Panics if the lengths differ.
    pub fn copy_to_slice(&self, dst: &mut [u8]) {
        assert_eq!(dst.len(), self.len, "lengths differ");
        let mut at = 0;
        for buf in &self.bufs {
            buf.copy_to(&mut dst[at..at + buf.len()]);
            at += buf.len();
        }
    }

    /// A copy on the heap.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut vec = vec![0; self.len];
        self.copy_to_slice(&mut vec);
        vec
    }

    /// Passes all bytes to `f` in order, in slices. See [`Buf::for_each_slice`] about regions.
    pub fn for_each_slice(&self, mut f: impl FnMut(&[u8])) {
        for buf in &self.bufs {
            buf.for_each_slice(&mut f);
        }
    }

    /// Whether every buffer's address and length are multiples of `n`.
    pub fn is_aligned(&self, n: usize) -> bool {
        self.bufs.iter().all(|buf| buf.is_aligned(n))
    }
}

impl<B: Into<Buf>> From<B> for Chain {
    fn from(buf: B) -> Self {
        let mut chain = Self::new();
        chain.push(buf);
        chain
    }
}

impl<B: Into<Buf>> FromIterator<B> for Chain {
    fn from_iter<I: IntoIterator<Item = B>>(bufs: I) -> Self {
        let mut chain = Self::new();
        chain.extend(bufs);
        chain
    }
}

impl<B: Into<Buf>> Extend<B> for Chain {
    fn extend<I: IntoIterator<Item = B>>(&mut self, bufs: I) {
        for buf in bufs {
            self.push(buf);
        }
    }
}

impl IntoIterator for Chain {
    type Item = Buf;
    type IntoIter = smallvec::IntoIter<[Buf; 2]>;
    fn into_iter(self) -> Self::IntoIter {
        self.bufs.into_iter()
    }
}

impl<'a> IntoIterator for &'a Chain {
    type Item = &'a Buf;
    type IntoIter = std::slice::Iter<'a, Buf>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
