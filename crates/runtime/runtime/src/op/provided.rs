//! The core's provided buffers: memory that idle sockets receive into, so that none of them ties up
//! memory.
//!
//! They are ordinary pool buffers. A buffer that the kernel has filled leaves the ring for good,
//! and another buffer of the pool takes its place. So a slow consumer holds pool memory and never
//! starves the ring of a slot. Small arrivals are copied out and their buffer stays, which costs
//! less and pins less.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::Driver;
use crate::buf::{BufMut, Bytes, pool};

/// Size of each provided buffer in bytes, and the most that one receive returns.
pub(crate) const RECV_BUFFER: usize = 64 << 10;
/// Receives without a shortage after which the number of buffers may be halved.
const ENOUGH: u32 = 8192;
/// Arrivals up to this many bytes are copied.
const COPIED: usize = 1024;

/// The ring of provided buffers, group 0.
pub(crate) struct Provided {
    entries: NonNull<BufRingEntry>,
    mask: u16,
    tail: u16,
    /// By buffer id. `None` where fewer are wanted, or the pool was exhausted.
    buffers: Vec<Option<BufMut>>,
    missing: usize,
    /// Target number of buffers; grows when more sockets receive at once.
    wanted: usize,
    /// Lower bound of `wanted`.
    least: usize,
    /// Receives since `wanted` last changed.
    since: u32,
}

impl Provided {
    /// Maps and registers a ring with `count` buffers and places for `most`, both rounded up to a
    /// power of two.
    pub(crate) fn new(ring: &Driver, count: u16, most: u16) -> io::Result<Self> {
        let wanted = count.clamp(2, 4096).next_power_of_two();
        let count = most.clamp(wanted, 4096).next_power_of_two();
        let entries = crate::buf::map_pages(usize::from(count) * size_of::<BufRingEntry>())?.cast();
        let address = entries.as_ptr() as u64;
        let mut this = Self {
            entries,
            mask: count - 1,
            tail: 0,
            buffers: (0..count).map(|_| None).collect(),
            missing: 0,
            wanted: usize::from(wanted),
            least: usize::from(wanted),
            since: 0,
        };
        this.missing = usize::from(count);
        // SAFETY: the pages were mapped for that many entries and stay mapped until the ring has
        // gone.
        unsafe { ring.provide(address, count) }?;
        this.refill();
        Ok(this)
    }

    /// Wants more buffers: a socket found none, since more of them received at once than there
    /// were.
    pub(crate) fn grow(&mut self) {
        self.wanted = (self.wanted * 2).min(self.buffers.len());
        self.since = 0;
        self.refill();
    }

    /// Counts a receive, and wants fewer buffers after many that all found one: the fewer take
    /// turns, the more of them the processor's caches hold. Whether there is one too many.
    #[inline]
    fn is_plenty(&mut self) -> bool {
        self.since += 1;
        if self.since >= ENOUGH {
            self.since = 0;
            self.wanted = (self.wanted / 2).max(self.least);
        }
        self.buffers.len() - self.missing > self.wanted
    }

    /// Fills places without a buffer from the pool.
    pub(crate) fn refill(&mut self) {
        for id in 0..self.buffers.len() {
            if self.buffers.len() - self.missing >= self.wanted {
                return;
            }
            if self.buffers[id].is_none() {
                let Some(buffer) = pool::alloc(RECV_BUFFER) else { return };
                self.supply(id as u16, buffer);
            }
        }
    }

    /// Puts `buffer` into an empty place. Returns whether there was one.
    pub(crate) fn give(&mut self, buffer: BufMut) -> bool {
        let id = self.buffers.iter().position(Option::is_none);
        match id {
            Some(id) if buffer.capacity() >= RECV_BUFFER => self.supply(id as u16, buffer),
            _ => return false,
        }
        true
    }

    /// Whether the kernel has no buffer to receive into.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.missing == self.buffers.len()
    }

    fn supply(&mut self, id: u16, mut buffer: BufMut) {
        buffer.set_len(RECV_BUFFER);
        self.buffers[usize::from(id)] = Some(buffer);
        self.missing -= 1;
        self.offer(id);
    }

    /// Hands buffer `id` to the kernel.
    #[inline]
    fn offer(&mut self, id: u16) {
        let Some(buffer) = &mut self.buffers[usize::from(id)] else { return };
        let address = buffer.as_mut_ptr() as u64;
        // SAFETY: the masked index lies within the mapped entries, and the kernel reads an entry
        // only after the tail has passed it. Fields are set one by one, since the first entry's
        // last field is the ring's tail.
        unsafe {
            let entry = self.entries.add(usize::from(self.tail & self.mask)).as_mut();
            entry.set_addr(address);
            entry.set_len(RECV_BUFFER as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies within the first entry, which is mapped for as long as this lives;
        // the kernel reads it concurrently, hence the atomic.
        unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }

    /// Takes the first `len` bytes that the kernel received into buffer `id`.
    #[inline]
    pub(crate) fn take(&mut self, id: u16, len: usize) -> Bytes {
        let plenty = self.is_plenty();
        let Some(slot) = self.buffers.get_mut(usize::from(id)) else { return Bytes::new() };
        let Some(buffer) = slot else { return Bytes::new() };
        let len = len.min(RECV_BUFFER);
        if len <= COPIED {
            let bytes = match pool::alloc(len) {
                Some(mut copy) => {
                    copy.copy_from_slice(&buffer[..len]);
                    copy.freeze_bytes()
                }
                None => buffer[..len].to_vec().into(),
            };
            if plenty {
                *slot = None;
                self.missing += 1;
            } else {
                self.offer(id);
            }
            return bytes;
        }
        let Some(mut buffer) = slot.take() else { return Bytes::new() };
        self.missing += 1;
        if !plenty && let Some(other) = pool::alloc(RECV_BUFFER) {
            self.supply(id, other);
        }
        buffer.truncate(len);
        buffer.freeze_bytes()
    }

    /// Puts back a buffer that the kernel chose and that no task uses.
    pub(crate) fn put_back(&mut self, id: u16) {
        self.offer(id);
    }

    /// Leaks the buffers and the ring's pages: the kernel may still touch them.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
        self.missing = 0;
        self.mask = u16::MAX;
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        if self.buffers.is_empty() {
            return;
        }
        // SAFETY: mapped by `new` with this length. The ring that they were registered with keeps
        // its own hold on the pages, and no receive is in flight any more, or `leak` would have
        // been called.
        unsafe {
            crate::buf::unmap_pages(self.entries.cast(), self.buffers.len() * size_of::<BufRingEntry>())
        };
    }
}
