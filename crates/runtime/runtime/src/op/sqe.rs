//! [`Sqe`]: an entry as the kernel reads it, for those that execute entries in its place: a
//! simulated kernel, a core's epoll instance, and a core's threads.
//!
//! It executes nothing.

use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::BufRingEntry;

/// IORING_CQE_F_BUFFER, IORING_CQE_F_MORE and IORING_CQE_F_SOCK_NONEMPTY.
const BUFFER: u32 = 1;
pub(crate) const MORE: u32 = 2;
const NONEMPTY: u32 = 4;
/// IOSQE_BUFFER_SELECT and IOSQE_CQE_SKIP_SUCCESS.
const BUFFER_SELECT: u8 = 1 << 5;
const SKIP_SUCCESS: u8 = 1 << 6;
/// IORING_RECVSEND_POLL_FIRST, IORING_ACCEPT_MULTISHOT, IORING_POLL_ADD_MULTI and
/// IORING_ASYNC_CANCEL_ANY.
const POLL_FIRST: u16 = 1;
const ACCEPT_MULTI: u16 = 1;
const POLL_MULTI: u32 = 1;
const CANCEL_ANY: u32 = 1 << 2;

/// An entry as the kernel reads it (`struct io_uring_sqe`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Sqe {
    pub(crate) opcode: u8,
    flags: u8,
    ioprio: u16,
    pub(crate) fd: i32,
    /// The offset in a file; of a connect the address's length.
    pub(crate) off: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) op_flags: u32,
    pub(crate) user_data: u64,
    buf_index: u16,
    personality: u16,
    splice_fd: i32,
    addr3: u64,
    pad: u64,
}

impl Sqe {
    pub(crate) fn of(entry: &Entry) -> Self {
        const { assert!(size_of::<Entry>() == size_of::<Sqe>()) };
        // SAFETY: the kernel's ABI says what the 64 bytes are, which are plain numbers.
        unsafe { std::mem::transmute_copy(entry) }
    }

    /// Whether a receive waits for data before its first try.
    pub(crate) fn polls_first(&self) -> bool {
        self.ioprio & POLL_FIRST != 0
    }

    pub(crate) fn is_multi_accept(&self) -> bool {
        self.ioprio & ACCEPT_MULTI != 0
    }

    pub(crate) fn is_multi_poll(&self) -> bool {
        self.len & POLL_MULTI != 0
    }

    pub(crate) fn selects_buffer(&self) -> bool {
        self.flags & BUFFER_SELECT != 0
    }

    /// Whether a success has no completion.
    pub(crate) fn skips_success(&self) -> bool {
        self.flags & SKIP_SUCCESS != 0
    }

    /// The operation that a cancel names; `None` for all.
    pub(crate) fn cancels(&self) -> Option<u64> {
        if self.op_flags & CANCEL_ANY != 0 { None } else { Some(self.addr) }
    }

    /// The one piece of memory of a read, write, receive or send.
    pub(crate) fn piece(&self) -> libc::iovec {
        libc::iovec { iov_base: self.addr as *mut libc::c_void, iov_len: self.len as usize }
    }
}

/// The operations of sockets, and of what else can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Accept,
    Connect,
    Recv,
    RecvMsg,
    Send,
    SendMsg,
    Poll,
}

impl Kind {
    pub(crate) fn of(sqe: &Sqe) -> Option<Self> {
        Some(match sqe.opcode {
            opcode::Accept::CODE => Self::Accept,
            opcode::Connect::CODE => Self::Connect,
            opcode::Recv::CODE => Self::Recv,
            opcode::RecvMsg::CODE => Self::RecvMsg,
            opcode::Send::CODE => Self::Send,
            opcode::SendMsg::CODE => Self::SendMsg,
            opcode::PollAdd::CODE => Self::Poll,
            _ => return None,
        })
    }
}

/// A core's provided buffers, as the kernel sees them.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    entries: *mut BufRingEntry,
    mask: u16,
    head: u16,
}

impl Offered {
    /// The buffers of a ring of `count` entries, a power of two.
    ///
    /// # Safety
    /// The address is that of so many entries, which stay mapped as long as this is used.
    pub(crate) unsafe fn new(address: u64, count: u16) -> Self {
        Self { entries: address as *mut BufRingEntry, mask: count - 1, head: 0 }
    }

    /// The next provided buffer: its id, address and length.
    pub(crate) fn take(&mut self) -> Option<(u16, *mut u8, usize)> {
        // SAFETY: the entries are mapped, and the tail lies within the first of them.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries).cast_mut()) }
            .load(Ordering::Acquire);
        if tail == self.head {
            return None;
        }
        // SAFETY: the masked index lies within the entries, and the tail has passed it.
        let entry = unsafe { &*self.entries.add(usize::from(self.head & self.mask)) };
        self.head = self.head.wrapping_add(1);
        Some((entry.bid(), entry.addr() as *mut u8, entry.len() as usize))
    }

    /// Gives the buffer back that was taken last: nothing was received.
    pub(crate) fn untake(&mut self) {
        self.head = self.head.wrapping_sub(1);
    }
}

/// The completion flags of a receive.
pub(crate) fn received_flags(buffer: Option<u16>, more: bool) -> u32 {
    buffer.map_or(0, |id| BUFFER | u32::from(id) << 16) | if more { NONEMPTY } else { 0 }
}
