//! [`Names`]: the files that names meant when they were opened. A hint: whoever uses it checks it.
//!
//! The descriptor of an open file keeps the name that it was opened by in memory (the dentry), so
//! that a call by that name does not wait for the medium. So the file itself says by which name it
//! was opened: one that was closed, and opened again by its id, does not keep the name.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tree::NodeId;

/// Parts with a lock each.
const PARTS: usize = 16;
/// Names in a part at most; a full one is cleared.
const MOST_IN_PART: usize = 4096;

/// The hash of a number that is one.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Files by [`Names::key`].
type Part = HashMap<u64, NodeId, BuildHasherDefault<Hashed>>;

/// Files by names.
#[derive(Default)]
pub(crate) struct Names {
    hasher: RandomState,
    parts: [Mutex<Part>; PARTS],
}

impl Names {
    /// What stands for `name` of a directory here. Another name may have the same.
    pub(crate) fn key(&self, directory: &NodeId, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }

    /// The file that the name may still mean.
    pub(crate) fn get(&self, key: u64) -> Option<NodeId> {
        self.part(key).get(&key).copied()
    }

    /// A file was opened by this name, and will stay open.
    pub(crate) fn opened(&self, key: u64, file: NodeId) {
        let mut part = self.part(key);
        if part.len() >= MOST_IN_PART {
            part.clear();
        }
        part.insert(key, file);
    }

    /// The name means another file now, or none.
    pub(crate) fn forget(&self, key: u64) {
        self.part(key).remove(&key);
    }

    fn part(&self, key: u64) -> MutexGuard<'_, Part> {
        self.parts[key as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_one_directory_and_no_more_than_the_bound() {
        let names = Names::default();
        let id = |n: u32| NodeId::new(&n.to_le_bytes()).unwrap();
        let key = |directory: u32, name: &[u8]| names.key(&id(directory), name);
        names.opened(key(1, b"a"), id(3));
        assert_eq!(names.get(key(1, b"a")), Some(id(3)));
        assert_eq!((names.get(key(2, b"a")), names.get(key(1, b"b"))), (None, None));
        names.forget(key(1, b"a"));
        assert_eq!(names.get(key(1, b"a")), None);
        for n in 0..3 * (PARTS * MOST_IN_PART) as u32 {
            names.opened(key(1, &n.to_le_bytes()), id(n));
        }
        let held: usize = names.parts.iter().map(|part| part.lock().unwrap().len()).sum();
        assert!(held <= PARTS * MOST_IN_PART, "{held}");
    }
}
