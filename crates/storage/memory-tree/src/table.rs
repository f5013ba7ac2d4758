//! [`Table`]: all nodes, each behind a lock of its own.
//!
//! Deadlock rule: a thread that locks several nodes at a time does it through [`Table::lock_all`],
//! in the order of their slots, and locks none while it holds one.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;
use tree::TreeError;

use crate::directory::Key;
use crate::node::Node;

/// Slots of the first chunk. Each further one has twice as many as that before it.
const FIRST: u32 = 64;
/// Chunks that hold as many slots as a u32 can name.
const CHUNKS: usize = 26;

type Slot = Mutex<Option<Box<Node>>>;

/// The nodes of a tree.
pub(crate) struct Table {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Slots that were used before.
    used: Vec<u32>,
    /// Slots from here on were never used.
    next: u32,
}

/// A node that this thread has locked.
pub(crate) struct Locked<'a>(MutexGuard<'a, Option<Box<Node>>>);

impl Deref for Locked<'_> {
    type Target = Node;
    #[inline]
    fn deref(&self) -> &Node {
        self.0.as_deref().expect("a node was there when it was locked")
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Node {
        self.0.as_deref_mut().expect("a node was there when it was locked")
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::default() }
    }

    /// The chunk of a slot, and the position in it.
    fn place(slot: u32) -> (usize, usize) {
        let number = slot / FIRST + 1;
        let chunk = number.ilog2();
        (chunk as usize, (slot - FIRST * ((1 << chunk) - 1)) as usize)
    }

    #[inline]
    fn slot(&self, slot: u32) -> Option<&Slot> {
        let (chunk, at) = Self::place(slot);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// Locks a node.
    ///
    /// # Errors
    /// [`TreeError::Stale`] if it is gone.
    #[inline]
    pub(crate) fn lock(&self, key: Key) -> Result<Locked<'_>, TreeError> {
        let guard = self.slot(key.slot).ok_or(TreeError::Stale)?.lock();
        let guard = guard.unwrap_or_else(PoisonError::into_inner);
        match &*guard {
            Some(node) if node.fileid == key.fileid => Ok(Locked(guard)),
            _ => Err(TreeError::Stale),
        }
    }

    /// Locks several nodes. A node may be named more than once.
    ///
    /// # Errors
    /// [`TreeError::Stale`] if one of them is gone.
    pub(crate) fn lock_all(&self, keys: impl IntoIterator<Item = Key>) -> Result<LockedAll<'_>, TreeError> {
        let mut keys: SmallVec<[Key; 4]> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.windows(2).any(|pair| pair[0].slot == pair[1].slot) {
            // At most one of them exists.
            return Err(TreeError::Stale);
        }
        keys.into_iter().map(|key| Ok((key, self.lock(key)?))).collect::<Result<_, _>>().map(LockedAll)
    }

    /// Adds a node.
    pub(crate) fn insert(&self, node: Box<Node>) -> Result<Key, TreeError> {
        let slot = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.used.pop() {
                Some(slot) => slot,
                None => {
                    let slot = free.next;
                    free.next = slot.checked_add(1).ok_or(TreeError::NoSpace)?;
                    slot
                }
            }
        };
        let key = Key { slot, fileid: node.fileid };
        self.put(slot, node)?;
        Ok(key)
    }

    fn put(&self, slot: u32, node: Box<Node>) -> Result<(), TreeError> {
        let (chunk, at) = Self::place(slot);
        let chunk = self.chunks.get(chunk).ok_or(TreeError::NoSpace)?.get_or_init(|| {
            let len = (FIRST as usize) << chunk;
            (0..len).map(|_| Slot::default()).collect()
        });
        *chunk[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
        Ok(())
    }

    /// Adds a node at a slot where none is.
    pub(crate) fn insert_at(&self, slot: u32, node: Box<Node>) -> Result<(), TreeError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.next = free.next.max(slot.checked_add(1).ok_or(TreeError::NoSpace)?);
        drop(free);
        self.put(slot, node)
    }

    /// After the last [`Self::insert_at`]: the other slots are free.
    pub(crate) fn find_free(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |slot: &u32| {
            let node = self.slot(*slot).map(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner));
            node.is_none_or(|node| node.is_none())
        };
        free.used = (0..free.next).filter(is_free).collect();
    }

    /// Calls `act` for each node, with its slot, until one fails.
    pub(crate) fn each<E>(&self, mut act: impl FnMut(u32, &Node) -> Result<(), E>) -> Result<(), E> {
        let next = self.free.lock().unwrap_or_else(PoisonError::into_inner).next;
        for number in 0..next {
            let Some(slot) = self.slot(number) else { continue };
            if let Some(node) = &*slot.lock().unwrap_or_else(PoisonError::into_inner) {
                act(number, node)?;
            }
        }
        Ok(())
    }

    /// Takes out a node that is locked.
    pub(crate) fn remove(&self, key: Key, mut node: Locked<'_>) -> Option<Box<Node>> {
        let taken = node.0.take();
        drop(node);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used.push(key.slot);
        taken
    }
}

/// Nodes that this thread has locked.
pub(crate) struct LockedAll<'a>(SmallVec<[(Key, Locked<'a>); 4]>);

impl<'a> LockedAll<'a> {
    /// One of them.
    pub(crate) fn get(&mut self, key: Key) -> &mut Node {
        let found = self.0.iter_mut().find(|(locked, _)| *locked == key);
        found.map(|(_, node)| &mut **node).expect("one of those that were locked")
    }

    /// One of them, out of the others.
    pub(crate) fn take(&mut self, key: Key) -> Option<Locked<'a>> {
        let at = self.0.iter().position(|(locked, _)| *locked == key)?;
        Some(self.0.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_its_place_and_no_two_have_the_same() {
        let mut expected = (0, 0);
        for slot in 0..10_000 {
            assert_eq!(Table::place(slot), expected);
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(Table::place(u32::MAX).0 <= CHUNKS);
    }
}
