//! Walking over many objects in bounded pieces: the ids of a list, batch by batch, and the
//! descriptor of a CDB continuation that says what to look for. A walk holds one batch, whatever
//! the list's length, and goes on behind the last id that it saw: objects that come and go
//! meanwhile are seen or not, none is seen twice.

use osd::continuation::Descriptor;

use super::failure::Failure;
use super::task::Task;
use crate::store::{List, ObjectStore};

/// Ids that a walk holds at a time: its work between two turns of the core's other tasks.
pub(super) const BATCH: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Walk {
    what: List,
    from: Option<u64>,
}

impl Walk {
    /// All of `what` from the id `from` on.
    pub const fn new(what: List, from: u64) -> Self {
        Self { what, from: Some(from) }
    }

    /// The next ids, in ascending order, in place of what `ids` holds; none at the end.
    pub fn next(&mut self, store: &dyn ObjectStore, limit: usize, ids: &mut Vec<u64>) -> Result<(), Failure> {
        ids.clear();
        let Some(from) = self.from else { return Ok(()) };
        let more = store.list(self.what, from, limit, ids)?;
        self.from = match ids.last() {
            Some(last) if more => last.checked_add(1),
            _ => None,
        };
        Ok(())
    }
}

/// The one descriptor that `pick` wants of the command's CDB continuation. Capabilities may stand
/// beside it; another descriptor may not, and without the one that is wanted the command cannot be
/// done.
pub(super) fn descriptor<T>(task: &Task<'_>, pick: impl Fn(&Descriptor) -> Option<T>) -> Result<T, Failure> {
    let mut found = None;
    for descriptor in &task.descriptors {
        if matches!(descriptor, Descriptor::ExtensionCapabilities(_)) {
            continue;
        }
        match pick(descriptor) {
            Some(picked) if found.is_none() => found = Some(picked),
            // The first descriptor is where the eye falls; its type is at fault.
            _ => return Err(Failure::parameter(osd::continuation::HEADER_LEN as u64)),
        }
    }
    found.ok_or_else(|| Failure::cdb(48))
}
