//! [`Directory`]: names, with positions that stay while other names come and go.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes charged for an entry beside its name, in both maps.
const ENTRY_COST: u64 = 192;

/// Cookies begin behind those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// Identifies a node: the slot in the table, and a number that no other node ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Its slot in the table.
    pub(crate) slot: u32,
    /// Its number.
    pub(crate) fileid: u64,
}

/// Node that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    /// The node.
    pub(crate) key: Key,
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
}

/// The entries of a directory.
pub(crate) struct Directory {
    /// The directory that holds this one; the root's is itself.
    pub(crate) parent: Key,
    names: HashMap<Arc<[u8]>, (u64, Child)>,
    /// By cookie.
    order: BTreeMap<u64, (Arc<[u8]>, Child)>,
    next: u64,
    /// Bytes charged for the entries.
    cost: u64,
}

/// Bytes charged for an entry of that name.
pub(crate) fn entry_cost(name: &[u8]) -> u64 {
    ENTRY_COST + name.len() as u64
}

impl Directory {
    /// No entries.
    pub(crate) fn new(parent: Key) -> Self {
        Self { parent, names: HashMap::new(), order: BTreeMap::new(), next: FIRST_COOKIE, cost: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Child> {
        self.names.get(name).map(|(_, child)| *child)
    }

    /// Makes `name` refer to `child`. An existing name keeps its place.
    pub(crate) fn set(&mut self, name: &[u8], child: Child) {
        if let Some((cookie, there)) = self.names.get_mut(name) {
            *there = child;
            if let Some((_, there)) = self.order.get_mut(cookie) {
                *there = child;
            }
            return;
        }
        let name: Arc<[u8]> = name.into();
        self.cost += entry_cost(&name);
        self.names.insert(name.clone(), (self.next, child));
        self.order.insert(self.next, (name, child));
        self.next = self.next.saturating_add(1);
    }

    /// Adds a name that is not there, at a cookie that is not taken.
    pub(crate) fn set_at(&mut self, cookie: u64, name: &[u8], child: Child) {
        self.next = cookie;
        self.set(name, child);
    }

    /// The cookie of the next name.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn set_next(&mut self, cookie: u64) {
        self.next = cookie;
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        let Some((cookie, _)) = self.names.remove(name) else { return };
        self.order.remove(&cookie);
        self.cost -= entry_cost(name);
        if self.names.len() < self.names.capacity() / 4 {
            self.names.shrink_to_fit();
        }
    }

    /// The entries behind a cookie, in order.
    pub(crate) fn behind(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Child)> {
        let entries = cookie.checked_add(1).map(|from| self.order.range(from..));
        entries.into_iter().flatten().map(|(cookie, (name, child))| (*cookie, &**name, *child))
    }
}
