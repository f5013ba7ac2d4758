//! [`Gather`]: what one vectored send sends.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::{fmt, io};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use crate::buf::{Buf, Chain};
use crate::sim::calls;

/// Stable bytes up to this many are copied by [`Gather::push`]: cheaper than a vector of their own.
const COPIED: usize = 256;
/// Less than this is not worth lending: to copy memory that was fetched meanwhile costs less than three pages' way through a
/// pipe, by measurement (docs/src/evidence/performance.md).
const LENT: usize = 12 << 10;
/// A gather that lends anything is worth it if it has not more than this to copy, or an eighth of what it lends.
const FEW_COPIED: usize = 8 << 10;
/// How many vectors one system call takes (UIO_MAXIOV).
const MOST_VECTORS: usize = 1024;
/// The most that one system call moves (MAX_RW_COUNT, less a page).
const MOST_BYTES: usize = 0x7fff_0000;
const FIRST_ARENA: usize = 1 << 10;
const LAST_ARENA: usize = 64 << 10;

/// Collects bytes for one send: headers are copied into an arena of its own, payloads are kept alive until they have
/// been sent. [`crate::TcpStream::send`] gives it back empty, its memory kept, so that using it again does not
/// allocate.
///
/// While a part of it has been sent, more may be appended.
#[derive(Default)]
pub struct Gather(Box<Inner>);

struct Inner {
    /// Points into arenas, buffers and vectors; all of them stay where they are when this moves.
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
    /// For each vector whether its memory may be lent.
    lent: Vec<bool>,
    /// Bytes of all vectors that may be lent.
    lent_len: usize,
    /// The first vector that is not sent wholly.
    next: usize,
    /// Bytes not sent yet.
    len: usize,
    /// Bytes of all vectors.
    total: usize,
    buffers: Vec<Buf>,
    /// Filled one after the other and never moved; the last is the one in use.
    arenas: Vec<Vec<u8>>,
}

/// A piece of memory that is to be sent.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub vector: libc::iovec,
    /// It may be lent instead of copied.
    pub lent: bool,
}

impl Default for Inner {
    fn default() -> Self {
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let header = unsafe { std::mem::zeroed() };
        Self {
            header,
            vectors: Vec::new(),
            lent: Vec::new(),
            lent_len: 0,
            next: 0,
            len: 0,
            total: 0,
            buffers: Vec::new(),
            arenas: Vec::new(),
        }
    }
}

impl Gather {
    /// Nothing to send.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that are to be sent.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Into how many pieces of memory the bytes fall.
    pub fn vectors(&self) -> usize {
        self.0.vectors.len() - self.0.next
    }

    /// Appends a copy of `bytes`; for headers.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        self.0.reserve(bytes.len()).extend_from_slice(bytes);
        self.0.commit(bytes.len());
    }

    /// [`Self::push_copy`] of as many bytes as headers have.
    #[inline]
    pub fn push_header<const N: usize>(&mut self, header: &[u8; N]) {
        let inner = &mut *self.0;
        match inner.arenas.last_mut() {
            Some(arena) if arena.capacity() - arena.len() >= N => arena.extend_from_slice(header),
            _ => inner.reserve(N).extend_from_slice(header),
        }
        inner.commit(N);
    }

    /// Appends `buf` and keeps it until it has been sent. Short ones are copied instead, unless they are a region's.
    pub fn push(&mut self, buf: Buf) {
        if buf.len() <= COPIED {
            if let Some(bytes) = buf.as_slice() {
                return self.push_copy(bytes);
            }
        }
        let inner = &mut *self.0;
        inner.append(buf.as_ptr().cast_mut(), buf.len(), false);
        inner.buffers.push(buf);
    }

    /// Like [`Self::push`], and says that a region's memory may also be sent as it is when the peer gets it, which may be
    /// after the send is over (see [`super::Lender`]).
    pub fn push_lent(&mut self, buf: Buf) {
        if !buf.is_lent() || buf.len() < LENT {
            // By the time it is copied it has come.
            buf.prefetch();
            return self.push(buf);
        }
        let inner = &mut *self.0;
        inner.append(buf.as_ptr().cast_mut(), buf.len(), true);
        inner.buffers.push(buf);
    }

    /// Whether what may be lent outweighs what has to be copied to lend it.
    pub(super) fn is_worth_lending(&self) -> bool {
        let copied = self.0.total - self.0.lent_len;
        self.0.lent_len > 0 && copied <= FEW_COPIED.max(self.0.lent_len / 8)
    }

    /// The pieces that are not sent yet.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let (vectors, lent) = (&self.0.vectors[self.0.next..], &self.0.lent[self.0.next..]);
        vectors.iter().zip(lent).map(|(&vector, &lent)| Piece { vector, lent })
    }

    /// Appends all buffers of `chain`.
    pub fn push_chain(&mut self, chain: Chain) {
        for buf in chain {
            self.push(buf);
        }
    }

    /// Drops everything, and keeps the memory for the next use.
    pub fn clear(&mut self) {
        let inner = &mut *self.0;
        inner.vectors.clear();
        inner.lent.clear();
        inner.next = 0;
        inner.total = 0;
        inner.lent_len = 0;
        inner.len = 0;
        inner.buffers.clear();
        // The last arena is the largest: enough for what was collected this time, in one piece.
        if let Some(mut arena) = inner.arenas.pop() {
            arena.clear();
            inner.arenas.clear();
            inner.arenas.push(arena);
        }
    }

    /// What to submit next. The entry points to memory that this owns and that does not move with it.
    pub(super) fn entry(&mut self, fd: types::Fd) -> Entry {
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        if let [only] = &self.0.vectors[self.0.next..] {
            let len = only.iov_len.min(MOST_BYTES) as u32;
            return opcode::Send::new(fd, only.iov_base.cast_const().cast(), len).flags(flags).build();
        }
        let more = self.0.prepare();
        opcode::SendMsg::new(fd, &raw const self.0.header).flags((flags | more) as u32).build()
    }

    /// Sends what `socket` takes without waiting, and returns how many bytes that were.
    pub(super) fn send_now(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | self.0.prepare();
        // SAFETY: as below.
        if let Some(sent) = unsafe { calls::sendmsg(socket.as_raw_fd(), &raw const self.0.header) } {
            return sent;
        }
        // SAFETY: the header points to vectors, and they to memory, that this owns.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const self.0.header, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Notes that the first `n` bytes have been sent.
    pub(super) fn advance(&mut self, n: usize) {
        let inner = &mut *self.0;
        let mut n = n.min(inner.len);
        inner.len -= n;
        while n > 0 {
            let vector = &mut inner.vectors[inner.next];
            if n < vector.iov_len {
                // SAFETY: within the same piece of memory.
                vector.iov_base = unsafe { vector.iov_base.byte_add(n) };
                vector.iov_len -= n;
                return;
            }
            n -= vector.iov_len;
            inner.next += 1;
        }
    }
}

impl Inner {
    /// Points the header to what is to be sent next, and returns the flag that says whether more will follow.
    fn prepare(&mut self) -> libc::c_int {
        let rest = &mut self.vectors[self.next..];
        self.header.msg_iov = rest.as_mut_ptr();
        self.header.msg_iovlen = rest.len().min(MOST_VECTORS) as _;
        if rest.len() > MOST_VECTORS { libc::MSG_MORE } else { 0 }
    }

    /// An arena with room for `len` bytes.
    #[inline(never)]
    fn reserve(&mut self, len: usize) -> &mut Vec<u8> {
        let room = self.arenas.last().map_or(0, |a| a.capacity() - a.len());
        if room < len || self.arenas.is_empty() {
            let last = self.arenas.last().map_or(FIRST_ARENA / 2, Vec::capacity);
            self.arenas.push(Vec::with_capacity((last * 2).clamp(FIRST_ARENA, LAST_ARENA).max(len)));
        }
        let last = self.arenas.len() - 1;
        &mut self.arenas[last]
    }

    /// Appends the last `len` bytes of the arena in use.
    #[inline]
    fn commit(&mut self, len: usize) {
        let Some(arena) = self.arenas.last_mut() else { return };
        // The pointer is taken from the whole vector, so that neighbours can be joined.
        let start = arena.len() - len;
        let ptr = arena.as_mut_ptr().wrapping_add(start);
        self.append(ptr, len, false);
    }

    /// Appends `len` bytes at `ptr`, to the last vector if they follow it.
    #[inline]
    fn append(&mut self, ptr: *mut u8, len: usize, lent: bool) {
        if len == 0 {
            return;
        }
        self.len += len;
        self.total += len;
        self.lent_len += if lent { len } else { 0 };
        // A vector that is sent already is not longer what it was.
        let fresh = self.vectors.len() > self.next;
        if let Some(last) = self.vectors.last_mut()
            && fresh
            && self.lent.last() == Some(&lent)
            && last.iov_base.wrapping_byte_add(last.iov_len) == ptr.cast()
        {
            last.iov_len += len;
            return;
        }
        self.vectors.push(libc::iovec { iov_base: ptr.cast(), iov_len: len });
        self.lent.push(lent);
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gather({} bytes in {})", self.len(), self.vectors())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{Region, pool};

    #[test]
    fn neighbours_become_one_vector_and_strangers_do_not() {
        let mut gather = Gather::new();
        gather.push_copy(b"abc");
        gather.push_copy(b"def");
        assert_eq!((gather.len(), gather.vectors()), (6, 1));
        let region = Region::new(1 << 20).unwrap();
        gather.push(region.slice(0, 4096).unwrap());
        gather.push(region.slice(4096, 4096).unwrap());
        assert_eq!((gather.len(), gather.vectors()), (6 + 8192, 2));
        gather.push(region.slice(0, 4096).unwrap());
        gather.push(Buf::from(b"short"));
        assert_eq!(gather.vectors(), 4);
        gather.push(Buf::new());
        assert_eq!(gather.vectors(), 4);
    }

    #[test]
    fn buffers_are_kept_until_it_is_cleared_and_memory_is_used_again() {
        let used = pool::stats().in_use;
        let mut gather = Gather::new();
        for _ in 0..3 {
            for _ in 0..1000 {
                gather.push_copy(&[1; 48]);
            }
            gather.push(pool::alloc(4096).unwrap().freeze());
            assert_eq!(pool::stats().in_use, used + 4096);
            gather.clear();
            assert_eq!((gather.len(), pool::stats().in_use), (0, used));
        }
        assert_eq!(gather.0.arenas.len(), 1);
        gather.push_copy(&[1; 48]);
        assert_eq!(gather.0.arenas.len(), 1);
    }

    #[test]
    fn a_partial_send_leaves_the_rest() {
        let mut gather = Gather::new();
        gather.push_copy(b"0123456789");
        gather.push(pool::alloc(4096).unwrap().freeze());
        gather.advance(4);
        assert_eq!((gather.len(), gather.vectors()), (4102, 2));
        gather.advance(6);
        assert_eq!((gather.len(), gather.vectors()), (4096, 1));
        gather.advance(4096);
        assert_eq!((gather.len(), gather.vectors()), (0, 0));
    }
}
