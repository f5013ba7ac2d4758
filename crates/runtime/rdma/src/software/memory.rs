//! The exposed memory of one queue pair, by the protocol's index. The protocol has checked every
//! offset and length; anything that still does not fit is not written.

use iwarp::rdmap::Atomic;
use runtime::{BufMut, Chain};

use super::payload::copy_out;
use crate::{Buffers, Rights, Withdrawn};

/// Bits of an index for the slot. The upper bits count its uses, so that an old index names
/// nothing.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// Maximum number of exposed memories.
pub(super) const MOST: u32 = SLOT_MASK;

/// The memory of an STag.
pub(super) enum Exposed {
    /// Buffers that the peer writes, and reads if it has the right.
    Buffers(Buffers),
    /// Bytes that the peer reads.
    Source(Chain),
    /// No memory: written data is dropped.
    Nothing,
}

struct Slot {
    uses: u32,
    exposed: Option<Exposed>,
    /// End of the last byte that the peer has written.
    placed: u64,
    /// One of the buffers is in use for a receive, and is not in its list.
    busy: bool,
    invalidated: bool,
}

/// The result of an access to exposed memory.
pub(super) enum Look<T> {
    /// The memory's content.
    Seen(T),
    /// A receive into some of it is in progress. Retry when it ends.
    Busy,
    /// The memory has been withdrawn.
    Gone,
}

/// All exposed memory.
#[derive(Default)]
pub(super) struct Memory {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Index and STag of the memories that the peer has invalidated.
    invalidated: Vec<(u32, u32)>,
}

/// A buffer taken out for a receive.
pub(super) struct Loan {
    index: u32,
    position: usize,
}

impl Memory {
    /// Adds `exposed` and returns its index; `None` if there are too many.
    pub(super) fn insert(&mut self, exposed: Exposed) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() < MOST as usize => {
                self.slots.push(Slot { uses: 0, exposed: None, placed: 0, busy: false, invalidated: false });
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let slot = &mut self.slots[at as usize];
        *slot = Slot { uses: slot.uses, exposed: Some(exposed), placed: 0, busy: false, invalidated: false };
        Some(slot.uses << SLOT_BITS | at)
    }

    fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((index & SLOT_MASK) as usize)?;
        (slot.exposed.is_some() && slot.uses == index >> SLOT_BITS).then_some(slot)
    }

    /// The memory with this index.
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Exposed> {
        self.slot(index)?.exposed.as_mut()
    }

    /// Records that the peer has invalidated the STag.
    pub(super) fn invalidate(&mut self, index: u32, stag: u32) {
        if let Some(slot) = self.slot(index) {
            slot.invalidated = true;
            self.invalidated.push((stag, index));
        }
    }

    /// The index of an STag that the peer has invalidated.
    pub(super) fn find_invalidated(&mut self, stag: u32) -> Option<u32> {
        let at = self.invalidated.iter().position(|(s, _)| *s == stag)?;
        Some(self.invalidated.swap_remove(at).1)
    }

    /// Removes the memory with this index and returns it.
    pub(super) fn remove(&mut self, index: u32) -> Option<Withdrawn> {
        let slot = self.slot(index)?;
        let buffers = match slot.exposed.take() {
            Some(Exposed::Buffers(buffers)) => buffers,
            _ => Buffers::new(),
        };
        let withdrawn =
            Withdrawn { buffers, placed: Some(slot.placed), invalidated: slot.invalidated, busy: slot.busy };
        slot.uses = (slot.uses + 1) & (u32::MAX >> SLOT_BITS);
        // Do not reuse the slot while a buffer is out: it must not return to another memory.
        if !slot.busy {
            self.free.push(index & SLOT_MASK);
        }
        Some(withdrawn)
    }

    /// The buffers of this index, if none is in use for a receive.
    fn at_rest(&mut self, index: u32) -> Look<&mut Buffers> {
        match self.slot(index) {
            Some(Slot { busy: true, .. }) => Look::Busy,
            Some(Slot { exposed: Some(Exposed::Buffers(buffers)), .. }) => Look::Seen(buffers),
            _ => Look::Gone,
        }
    }

    /// A copy of the bytes `at..at + len`.
    pub(super) fn copy(&mut self, index: u32, at: usize, len: usize) -> Look<Chain> {
        match self.at_rest(index) {
            Look::Seen(buffers) => Look::Seen(copy_out(buffers, at, len)),
            Look::Busy => Look::Busy,
            Look::Gone => Look::Gone,
        }
    }

    /// Executes an atomic operation on the eight bytes at `at`, a number in this machine's byte
    /// order, and returns the value before.
    pub(super) fn apply(&mut self, index: u32, at: usize, operation: Atomic) -> Look<u64> {
        let buffers = match self.at_rest(index) {
            Look::Seen(buffers) => buffers,
            Look::Busy => return Look::Busy,
            Look::Gone => return Look::Gone,
        };
        let mut bytes = [0; 8];
        for (i, byte) in bytes.iter_mut().enumerate() {
            // The bytes may be in several buffers.
            let Some((position, place)) = find(buffers, at + i) else { return Look::Gone };
            *byte = buffers[position][place];
        }
        let original = u64::from_ne_bytes(bytes);
        copy_in(buffers, at, &operation.apply(original).to_ne_bytes());
        if let Some(slot) = self.slot(index) {
            slot.placed = slot.placed.max(at as u64 + 8);
        }
        Look::Seen(original)
    }

    /// Copies the peer's written bytes to their place.
    pub(super) fn write(&mut self, index: u32, offset: u64, bytes: &[u8]) {
        let Some(slot) = self.slot(index) else { return };
        slot.placed = slot.placed.max(offset + bytes.len() as u64);
        if let Some(Exposed::Buffers(buffers)) = &mut slot.exposed {
            copy_in(buffers, offset as usize, bytes);
        }
    }

    /// Records `len` arrived bytes without a destination.
    pub(super) fn skip(&mut self, index: u32, offset: u64, len: usize) {
        if let Some(slot) = self.slot(index) {
            slot.placed = slot.placed.max(offset + len as u64);
        }
    }

    /// Takes out the buffer that contains `offset`, for a receive from that byte on.
    pub(super) fn lend(&mut self, index: u32, offset: u64) -> Option<(Loan, BufMut, usize)> {
        let slot = self.slot(index)?;
        let Some(Exposed::Buffers(buffers)) = &mut slot.exposed else { return None };
        let (position, at) = find(buffers, offset as usize)?;
        let buffer = buffers.remove(position);
        slot.busy = true;
        Some((Loan { index, position }, buffer, at))
    }

    /// Returns the buffer, into which the peer has written up to `end`, unless it was withdrawn
    /// meanwhile.
    pub(super) fn put_back(&mut self, loan: &Loan, buffer: BufMut, end: u64) {
        let Some(slot) = self.slot(loan.index) else {
            return self.free.push(loan.index & SLOT_MASK);
        };
        slot.busy = false;
        slot.placed = slot.placed.max(end);
        if let Some(Exposed::Buffers(buffers)) = &mut slot.exposed {
            buffers.insert(loan.position.min(buffers.len()), buffer);
        }
    }
}

/// The index of the buffer that contains byte `offset` of the whole, and the offset in it.
pub(super) fn find(buffers: &[BufMut], mut offset: usize) -> Option<(usize, usize)> {
    for (position, buffer) in buffers.iter().enumerate() {
        if offset < buffer.len() {
            return Some((position, offset));
        }
        offset -= buffer.len();
    }
    None
}

/// Copies `bytes` to `offset` of the whole.
pub(super) fn copy_in(buffers: &mut [BufMut], offset: usize, mut bytes: &[u8]) {
    let Some((first, mut at)) = find(buffers, offset) else { return };
    runtime::count_copy(bytes.len());
    for buffer in &mut buffers[first..] {
        let (here, rest) = bytes.split_at(bytes.len().min(buffer.len() - at));
        buffer[at..at + here.len()].copy_from_slice(here);
        (bytes, at) = (rest, 0);
        if bytes.is_empty() {
            return;
        }
    }
}

impl From<Rights> for iwarp::stag::Rights {
    fn from(rights: Rights) -> Self {
        match rights {
            Rights::Write => Self::REMOTE_WRITE | Self::REMOTE_INVALIDATE,
            Rights::ReadWrite => Self::REMOTE_WRITE | Self::REMOTE_READ | Self::REMOTE_INVALIDATE,
            Rights::All => {
                Self::REMOTE_WRITE | Self::REMOTE_READ | Self::REMOTE_ATOMIC | Self::REMOTE_INVALIDATE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::{Config, Runtime, pool};

    use super::*;

    #[test]
    fn memory_that_is_being_received_into_is_looked_at_when_that_is_over() {
        Runtime::new(Config::default()).unwrap().block_on(async {
            let mut memory = Memory::default();
            let buffers = [8, 16].map(|len| {
                let mut buffer = pool::alloc(len).unwrap();
                buffer.fill(len as u8);
                buffer
            });
            let index = memory.insert(Exposed::Buffers(buffers.into_iter().collect())).unwrap();
            let (loan, buffer, at) = memory.lend(index, 0).unwrap();
            assert_eq!((buffer.len(), at), (8, 0));
            let add = Atomic::FetchAdd { add: 1, mask: 0 };
            assert!(matches!(memory.copy(index, 8, 16), Look::Busy));
            assert!(matches!(memory.apply(index, 8, add), Look::Busy));
            memory.put_back(&loan, buffer, 8);
            let Look::Seen(data) = memory.copy(index, 6, 4) else { panic!("it is at rest") };
            assert_eq!(data.to_vec(), [8, 8, 16, 16]);
            assert!(
                matches!(memory.apply(index, 8, add), Look::Seen(original) if original == u64::from_ne_bytes([16; 8]))
            );
            memory.remove(index).unwrap();
            assert!(matches!(memory.apply(index, 8, add), Look::Gone));
        });
    }
}
