//! [`Cache`]: the open files, up to a limit. It chooses the files to close: those not used for
//! longest, as far as one bit a file can tell.
//!
//! It never closes a file that an operation uses, or one with data that is not flushed: Linux may
//! forget a failure of the write-back with the last descriptor.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tree::NodeId;

use crate::node::Node;

/// Parts with a lock each.
const PARTS: usize = 16;
/// Files examined at most to find one to close.
const LOOKS: usize = 32;

/// Hashes an id by its last bytes: its seal, which is random, and which no client can choose for an
/// id that exists.
#[derive(Default)]
pub(crate) struct SealHasher(u64);

impl Hasher for SealHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk::<8>() {
            self.0 = u64::from_le_bytes(*last);
        }
    }
}

/// An id with the hash of [`SealHasher`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sealed(NodeId);

impl std::hash::Hash for Sealed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0.bytes());
    }
}

#[derive(Default)]
struct Part {
    places: HashMap<Sealed, usize, BuildHasherDefault<SealHasher>>,
    nodes: Vec<Arc<Node>>,
    hand: usize,
}

/// The open files.
pub(crate) struct Cache {
    parts: [Mutex<Part>; PARTS],
    most_in_part: usize,
}

impl Cache {
    /// A cache of about `most` files.
    pub(crate) fn new(most: usize) -> Self {
        Self { parts: Default::default(), most_in_part: (most / PARTS).max(4) }
    }

    /// The open file with this id.
    pub(crate) fn get(&self, id: &NodeId) -> Option<Arc<Node>> {
        let part = self.part(id);
        let node = &part.nodes[*part.places.get(&Sealed(*id))?];
        node.used.store(true, Ordering::Relaxed);
        Some(Arc::clone(node))
    }

    /// Adds an open file and returns it, or returns the one that exists already. Also returns a
    /// file that must be flushed before it can be closed.
    pub(crate) fn add(&self, node: Arc<Node>) -> (Arc<Node>, Option<Arc<Node>>) {
        let mut part = self.part(&node.id);
        if let Some(place) = part.places.get(&Sealed(node.id)) {
            return (Arc::clone(&part.nodes[*place]), None);
        }
        let (closed, dirty) = part.make_room(self.most_in_part);
        let place = part.nodes.len();
        part.places.insert(Sealed(node.id), place);
        part.nodes.push(Arc::clone(&node));
        drop(part);
        // Closing may take time.
        drop(closed);
        (node, dirty)
    }

    /// Forgets a file.
    pub(crate) fn remove(&self, id: &NodeId) {
        let mut part = self.part(id);
        let place = part.places.get(&Sealed(*id)).copied();
        let closed = place.map(|place| part.take(place));
        drop(part);
        drop(closed);
    }

    fn part(&self, id: &NodeId) -> MutexGuard<'_, Part> {
        let part = id.bytes().last().map_or(0, |byte| usize::from(*byte) % PARTS);
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Takes out up to two files that are not in use, while there are too many. Also returns one
    /// that needs a flush first.
    fn make_room(&mut self, most: usize) -> ([Option<Arc<Node>>; 2], Option<Arc<Node>>) {
        let (mut closed, mut dirty) = ([None, None], None);
        let mut looks = LOOKS;
        for closed in &mut closed {
            while looks > 0 && closed.is_none() && self.nodes.len() >= most {
                looks -= 1;
                self.hand = (self.hand + 1) % self.nodes.len();
                let node = &self.nodes[self.hand];
                if node.used.swap(false, Ordering::Relaxed) || Arc::strong_count(node) > 1 {
                    continue;
                }
                if node.is_dirty() {
                    dirty.get_or_insert_with(|| Arc::clone(node));
                    continue;
                }
                *closed = Some(self.take(self.hand));
            }
        }
        (closed, dirty)
    }

    fn take(&mut self, place: usize) -> Arc<Node> {
        let node = self.nodes.swap_remove(place);
        self.places.remove(&Sealed(node.id));
        if let Some(moved) = self.nodes.get(place) {
            self.places.insert(Sealed(moved.id), place);
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::stat::Stat;

    fn node(n: u32) -> Arc<Node> {
        let file = std::fs::File::open("/").unwrap();
        // The last byte chooses the part: all go to one part.
        let mut bytes = [0; 12];
        bytes[4..8].copy_from_slice(&n.to_le_bytes());
        let stat = Stat::of(file.as_fd()).unwrap();
        Node::new(NodeId::new(&bytes).unwrap(), &stat, None, file.into())
    }

    #[test]
    fn the_cache_stays_within_its_bound_and_keeps_what_is_in_use_or_dirty() {
        let cache = Cache::new(PARTS * 50);
        let (kept, _) = cache.add(node(0));
        let (dirty, _) = cache.add(node(1));
        dirty.wrote();
        let id = dirty.id;
        drop(dirty);
        let mut asked = false;
        for n in 2..1000 {
            asked |= cache.add(node(n)).1.is_some_and(|dirty| dirty.id == id);
        }
        let open = cache.part(&kept.id).nodes.len();
        assert!(open <= 60, "{open}");
        assert!(cache.get(&kept.id).is_some_and(|same| Arc::ptr_eq(&same, &kept)));
        assert!(cache.get(&id).is_some() && asked, "it is to be flushed");
        cache.remove(&id);
        assert!(cache.get(&id).is_none());
        let (again, _) = cache.add(node(0));
        assert!(Arc::ptr_eq(&again, &kept), "one node a file");
    }
}
