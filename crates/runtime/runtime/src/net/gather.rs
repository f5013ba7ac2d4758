//! [`Gather`]: the data of one vectored send.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::{fmt, io};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use crate::buf::{Buf, Chain};
use crate::copies::{count_copy, count_sent};
use crate::sim::calls;

/// Stable bytes up to this length are copied by [`Gather::push`]: cheaper than a vector of their
/// own.
const COPIED: usize = 256;
/// Less than this is not worth lending: to copy memory that was fetched meanwhile costs less than
/// three pages' way through a pipe, by measurement (docs/src/evidence/performance.md).
const LENT: usize = 12 << 10;
/// A zero-copy send pays if the gather has at most this much to copy, or an eighth of the bytes
/// that go by reference.
const FEW_COPIED: usize = 8 << 10;
/// Most vectors of one system call (UIO_MAXIOV).
const MOST_VECTORS: usize = 1024;
/// Pieces that one send locks against changes, at most.
const MOST_HELD: usize = 128;
/// Most bytes of one system call (MAX_RW_COUNT, less a page).
const MOST_BYTES: usize = 0x7fff_0000;
const FIRST_ARENA: usize = 1 << 10;
const LAST_ARENA: usize = 64 << 10;

/// Collects bytes for one send: headers are copied into an arena of its own, payloads are kept
/// alive until they have been sent. [`crate::TcpStream::send`] gives it back empty, its memory
/// kept, so that using it again does not allocate.
///
/// While a part of it has been sent, more may be appended.
#[derive(Default)]
pub struct Gather(Box<Inner>);

struct Inner {
    /// Points into arenas, buffers and vectors; all of them stay where they are when this moves.
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
    /// Method by which each vector's memory may be sent.
    kinds: Vec<Kind>,
    /// Bytes of all vectors that may be sent by reference.
    lent_len: usize,
    /// The first vector that is not sent wholly.
    next: usize,
    /// Bytes not sent yet.
    len: usize,
    /// Bytes of all vectors.
    total: usize,
    buffers: Vec<Buf>,
    /// The pieces of [`Kind::Held`] by their vectors, and the number of those that are sent wholly.
    held: Vec<(usize, Buf)>,
    held_sent: usize,
    /// The last send sent nothing, since a writer was changing the first piece.
    busy: bool,
    /// Filled one after the other and never moved; the last is the one in use.
    arenas: Vec<Vec<u8>>,
}

/// Method by which a piece of memory may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Copied by the kernel at any time: it has no writers.
    Stable,
    /// By reference, or copied at any time.
    Lent,
    /// Copied, in one system call, while its region's guard holds it.
    Held,
}

/// A piece of memory that is to be sent.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub vector: libc::iovec,
    pub kind: Kind,
}

impl Default for Inner {
    fn default() -> Self {
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let header = unsafe { std::mem::zeroed() };
        Self {
            header,
            vectors: Vec::new(),
            kinds: Vec::new(),
            lent_len: 0,
            next: 0,
            len: 0,
            total: 0,
            buffers: Vec::new(),
            held: Vec::new(),
            held_sent: 0,
            busy: false,
            arenas: Vec::new(),
        }
    }
}

impl Gather {
    /// Nothing to send.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes to send.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Number of pieces of memory that the bytes are in.
    pub fn vectors(&self) -> usize {
        self.0.vectors.len() - self.0.next
    }

    /// Appends a copy of `bytes`; for headers.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        self.0.reserve(bytes.len()).extend_from_slice(bytes);
        self.0.commit(bytes.len());
    }

    /// [`Self::push_copy`] for the fixed length of a header.
    #[inline]
    pub fn push_header<const N: usize>(&mut self, header: &[u8; N]) {
        let inner = &mut *self.0;
        match inner.arenas.last_mut() {
            Some(arena) if arena.capacity() - arena.len() >= N => arena.extend_from_slice(header),
            _ => inner.reserve(N).extend_from_slice(header),
        }
        inner.commit(N);
    }

    /// Appends `buf` and keeps it until it has been sent. Short ones are copied instead, unless
    /// they are a region's.
    pub fn push(&mut self, buf: Buf) {
        if buf.len() <= COPIED {
            if let Some(bytes) = buf.as_slice() {
                count_copy(bytes.len());
                return self.push_copy(bytes);
            }
        }
        let inner = &mut *self.0;
        inner.append(buf.as_ptr().cast_mut(), buf.len(), Kind::Stable);
        inner.buffers.push(buf);
    }

    /// Like [`Self::push`], but allows a zero-copy send of a region's memory. The peer may get the
    /// bytes as they are when they leave, which may be after the send is over (see
    /// [`super::Lender`]). Less than 12 KiB is copied by the kernel while the region's guard holds
    /// it, if there is one ([`crate::Region::set_guard`]).
    pub fn push_lent(&mut self, buf: Buf) {
        let inner = &mut *self.0;
        if buf.is_lent() && buf.len() >= LENT {
            inner.append(buf.as_ptr().cast_mut(), buf.len(), Kind::Lent);
            return inner.buffers.push(buf);
        }
        // The bytes are in the cache by the time they are copied.
        buf.prefetch();
        if buf.is_empty() || buf.guard().is_none() {
            return self.push(buf);
        }
        inner.append(buf.as_ptr().cast_mut(), buf.len(), Kind::Held);
        inner.held.push((inner.vectors.len() - 1, buf));
    }

    /// Whether a piece may only be sent by [`Self::send_now`].
    pub(super) fn is_held(&self) -> bool {
        self.0.held_sent < self.0.held.len()
    }

    /// Waits until the writer has finished the first piece, if the last [`Self::send_now`] sent
    /// nothing for that reason. Returns whether it did.
    pub(super) async fn settled(&mut self) -> bool {
        let busy = std::mem::take(&mut self.0.busy);
        if busy
            && let Some((_, buf)) = self.0.held.get(self.0.held_sent)
            && let Some((guard, at)) = buf.guard()
        {
            guard.settled(at, buf.len()).await;
        }
        busy
    }

    /// Whether the bytes for a zero-copy send outweigh those that have to be copied for it.
    pub(super) fn is_worth_lending(&self) -> bool {
        let copied = self.0.total - self.0.lent_len;
        self.0.lent_len > 0 && copied <= FEW_COPIED.max(self.0.lent_len / 8)
    }

    /// The pieces that are not sent yet.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let (vectors, kinds) = (&self.0.vectors[self.0.next..], &self.0.kinds[self.0.next..]);
        vectors.iter().zip(kinds).map(|(&vector, &kind)| Piece { vector, kind })
    }

    /// Copies now the pieces that a send would copy under a guard, up to a piece that a writer is
    /// changing.
    pub fn copy_held(&mut self) {
        let inner = &mut *self.0;
        while let Some((vector, buf)) = inner.held.get(inner.held_sent)
            && let Some((guard, at)) = buf.guard()
            && guard.hold(at, buf.len())
        {
            let copy = copied(buf);
            guard.release(at, buf.len());
            inner.replace(*vector, copy);
            inner.held_sent += 1;
        }
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
        inner.kinds.clear();
        inner.next = 0;
        inner.total = 0;
        inner.lent_len = 0;
        inner.len = 0;
        inner.buffers.clear();
        inner.held.clear();
        inner.held_sent = 0;
        inner.busy = false;
        // The last arena is the largest: enough for the bytes collected this time, in one piece.
        if let Some(mut arena) = inner.arenas.pop() {
            arena.clear();
            inner.arenas.clear();
            inner.arenas.push(arena);
        }
    }

    /// The next entry to submit. It points to memory that this owns and that does not move with it.
    pub(super) fn entry(&mut self, fd: types::Fd) -> Entry {
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        if let [only] = &self.0.vectors[self.0.next..] {
            let len = only.iov_len.min(MOST_BYTES) as u32;
            return opcode::Send::new(fd, only.iov_base.cast_const().cast(), len).flags(flags).build();
        }
        let more = self.0.prepare(MOST_VECTORS);
        opcode::SendMsg::new(fd, &raw const self.0.header).flags((flags | more) as u32).build()
    }

    /// Sends as much as `socket` takes without waiting, and returns the number of bytes.
    /// `WouldBlock` if that is none, or if a writer is changing the first piece; [`Self::settled`]
    /// distinguishes the two.
    pub(super) fn send_now(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let (vectors, held) = self.0.hold();
        self.0.busy = vectors == 0;
        if self.0.busy {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = self.send_vectors(socket, vectors);
        let n = *sent.as_ref().unwrap_or(&0);
        count_sent(n);
        self.advance(n);
        self.0.release(held);
        sent
    }

    fn send_vectors(&mut self, socket: BorrowedFd<'_>, vectors: usize) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | self.0.prepare(vectors);
        // SAFETY: as below.
        if let Some(sent) = unsafe { calls::sendmsg(socket.as_raw_fd(), &raw const self.0.header) } {
            return sent;
        }
        // SAFETY: the header points to vectors, and they to memory, that this owns.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const self.0.header, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Records that the first `n` bytes have been sent.
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
    /// Points the header to the next data to send, up to `most` vectors. Returns MSG_MORE if more
    /// will follow, else 0.
    fn prepare(&mut self, most: usize) -> libc::c_int {
        let rest = &mut self.vectors[self.next..];
        self.header.msg_iov = rest.as_mut_ptr();
        self.header.msg_iovlen = rest.len().min(most) as _;
        if rest.len() > most { libc::MSG_MORE } else { 0 }
    }

    /// Holds what the next send would copy, and returns how many vectors it may send and how many
    /// pieces are held.
    #[inline]
    fn hold(&self) -> (usize, usize) {
        let most = MOST_VECTORS;
        for (n, (vector, buf)) in self.held[self.held_sent..].iter().enumerate() {
            let before = vector - self.next;
            if before >= most {
                return (most, n);
            }
            let free = n < MOST_HELD && buf.guard().is_none_or(|(guard, at)| guard.hold(at, buf.len()));
            if !free {
                return (before, n);
            }
        }
        (most, self.held.len() - self.held_sent)
    }

    /// Releases the first `count` pieces that [`Self::hold`] held, some of which have been sent. If
    /// one was sent in part, its rest is copied first.
    #[inline]
    fn release(&mut self, count: usize) {
        for n in self.held_sent..self.held_sent + count {
            let (vector, buf) = &self.held[n];
            let vector = *vector;
            let left = if vector < self.next { 0 } else { self.vectors[vector].iov_len };
            let rest = (0 < left && left < buf.len()).then(|| copied(&buf.slice(buf.len() - left..)));
            if let Some((guard, at)) = buf.guard() {
                guard.release(at, buf.len());
            }
            if left < buf.len() {
                self.held_sent = n + 1;
            }
            if let Some(rest) = rest {
                self.replace(vector, rest);
            }
        }
    }

    /// Sends `copy` in place of a vector of the same length.
    fn replace(&mut self, vector: usize, copy: Buf) {
        self.vectors[vector].iov_base = copy.as_ptr().cast_mut().cast();
        self.kinds[vector] = Kind::Stable;
        self.buffers.push(copy);
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
        self.append(ptr, len, Kind::Stable);
    }

    /// Appends `len` bytes at `ptr`, to the last vector if they follow it.
    #[inline]
    fn append(&mut self, ptr: *mut u8, len: usize, kind: Kind) {
        if len == 0 {
            return;
        }
        self.len += len;
        self.total += len;
        self.lent_len += if kind == Kind::Lent { len } else { 0 };
        // A vector that is sent already must not be extended.
        let fresh = self.vectors.len() > self.next;
        if let Some(last) = self.vectors.last_mut()
            && fresh
            && kind != Kind::Held
            && self.kinds.last() == Some(&kind)
            && last.iov_base.wrapping_byte_add(last.iov_len) == ptr.cast()
        {
            last.iov_len += len;
            return;
        }
        self.vectors.push(libc::iovec { iov_base: ptr.cast(), iov_len: len });
        self.kinds.push(kind);
    }
}

/// A copy of a region's bytes: on the heap if the pool is exhausted.
fn copied(buf: &Buf) -> Buf {
    buf.stable().map_or_else(|| Buf::from(buf.to_vec()), Buf::from)
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
