//! [`Scatter`]: the destinations of one vectored receive.

use std::fmt;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use smallvec::SmallVec;

use crate::buf::Destination;

/// Destinations in the order in which they are filled.
pub type Destinations = SmallVec<[Destination; 4]>;

/// Collects memory for one receive: typically the rest of a payload in its final place, and after
/// it an ordinary buffer for what follows. [`crate::TcpStream::recv_into`] gives it back; using it
/// again does not allocate.
#[derive(Default)]
pub struct Scatter(Box<Inner>);

struct Inner {
    /// Points into the destinations and vectors; both stay where they are when this moves.
    header: libc::msghdr,
    vectors: SmallVec<[libc::iovec; 4]>,
    /// The first vector that is not filled wholly.
    next: usize,
    /// Bytes of room left.
    len: usize,
    destinations: Destinations,
}

impl Default for Inner {
    fn default() -> Self {
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let header = unsafe { std::mem::zeroed() };
        Self { header, vectors: SmallVec::new(), next: 0, len: 0, destinations: SmallVec::new() }
    }
}

impl Scatter {
    /// No room.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of bytes that it has room for.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no room.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Appends a destination.
    pub fn push(&mut self, destination: impl Into<Destination>) {
        let mut destination = destination.into();
        let (ptr, len) = destination.parts_mut();
        let inner = &mut *self.0;
        if len > 0 {
            inner.vectors.push(libc::iovec { iov_base: ptr.cast(), iov_len: len });
            inner.len += len;
        }
        inner.destinations.push(destination);
    }

    /// Takes the destinations out, in the order in which they were pushed; nothing is left.
    pub fn take(&mut self) -> Destinations {
        let inner = &mut *self.0;
        inner.vectors.clear();
        inner.next = 0;
        inner.len = 0;
        std::mem::take(&mut inner.destinations)
    }

    /// The next entry to submit. It points to memory that this owns and that does not move with it.
    pub(super) fn entry(&mut self, fd: types::Fd, ioprio: u16) -> Entry {
        let inner = &mut *self.0;
        let rest = &mut inner.vectors[inner.next..];
        if let [only] = rest {
            let len = only.iov_len.min(1 << 30) as u32;
            return opcode::Recv::new(fd, only.iov_base.cast(), len).ioprio(ioprio).build();
        }
        opcode::RecvMsg::new(fd, self.header()).ioprio(ioprio).build()
    }

    /// The vectors to fill next, for recvmsg(2): they are in memory that this owns and that does
    /// not move with it.
    pub(super) fn header(&mut self) -> *mut libc::msghdr {
        let inner = &mut *self.0;
        let rest = &mut inner.vectors[inner.next..];
        inner.header.msg_iov = rest.as_mut_ptr();
        inner.header.msg_iovlen = rest.len().min(1024) as _;
        &raw mut inner.header
    }

    /// Records that the first `n` bytes have been filled.
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

impl fmt::Debug for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scatter({} bytes in {})", self.len(), self.0.destinations.len())
    }
}
