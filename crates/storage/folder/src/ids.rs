//! [`Ids`]: ids that were made of the file system's handles. To ask for a handle
//! (name_to_handle_at(2)) takes as long as to ask for the attributes, and a listing would have to
//! ask for both of each entry.
//!
//! A file is recognized by its inode's number and its time of birth: a new file of the same number
//! has another birth. Births are counted in ticks of some milliseconds, within which a number can be
//! used twice. So a file is kept only once it is older than that, by the clock of this machine.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tree::NodeId;

use crate::stat::{Stat, nanoseconds};

/// Parts with a lock each.
const PARTS: usize = 16;
/// Ids in a part at most; a full one is cleared.
const MOST_IN_PART: usize = 4096;
/// The least age of a file that is kept, nanoseconds.
const LEAST_AGE: u64 = 1_000_000_000;

/// The inode's number, and the birth in nanoseconds since 1970.
pub(crate) type File = (u64, u64);

/// Ids by files of one device, which stays mounted.
#[derive(Default)]
pub(crate) struct Ids([Mutex<HashMap<File, NodeId>>; PARTS]);

impl Ids {
    /// The file with these attributes, if its birth is known.
    pub(crate) fn file(stat: &Stat) -> Option<File> {
        Some((stat.inode(), nanoseconds(stat.birth()?)))
    }

    /// The id of a file, if it is known.
    pub(crate) fn get(&self, file: File) -> Option<NodeId> {
        self.part(file).get(&file).copied()
    }

    /// Keeps the id of a file, if it is old enough.
    pub(crate) fn keep(&self, file: File, id: NodeId) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        if now.saturating_sub(file.1) < LEAST_AGE {
            return;
        }
        let mut part = self.part(file);
        if part.len() >= MOST_IN_PART {
            part.clear();
        }
        part.insert(file, id);
    }

    fn part(&self, (inode, _): File) -> MutexGuard<'_, HashMap<File, NodeId>> {
        self.0[inode as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_one_birth_long_ago_and_no_more_than_the_bound() {
        let ids = Ids::default();
        let id = |n: u64| NodeId::new(&n.to_le_bytes()).unwrap();
        ids.keep((1, 5), id(1));
        assert_eq!((ids.get((1, 5)), ids.get((1, 6)), ids.get((2, 5))), (Some(id(1)), None, None));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        for young in [now, now + 3600 * 1_000_000_000, u64::MAX] {
            ids.keep((3, young), id(3));
            assert_eq!(ids.get((3, young)), None);
        }
        for n in 0..3 * (PARTS * MOST_IN_PART) as u64 {
            ids.keep((n, 5), id(n));
        }
        let held: usize = ids.0.iter().map(|part| part.lock().unwrap().len()).sum();
        assert!(held <= PARTS * MOST_IN_PART, "{held}");
    }
}
