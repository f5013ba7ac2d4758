//! [`Changing`]: the files with a change in progress, so that OPEN gives no delegation of them.
//!
//! A change marks its file, then looks for delegations, and unmarks the file when it has ended.
//! OPEN gives a delegation only of a file without a mark. So a delegation is there before the
//! change looks, and is recalled, or it comes after the change.
//!
//! Files share marks by a hash: a mark may keep a delegation of another file back, and nothing
//! else.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use tree::NodeId;

use crate::handle::ExportId;

/// Marks of single files. Two files share one rarely.
const MARKS: usize = 4096;

/// Marks of the files with a change in progress.
pub(crate) struct Changing {
    marks: Box<[AtomicU32]>,
    /// Changes of files that were not looked up.
    any: AtomicU32,
}

/// A change in progress. It ends when this is dropped.
pub(crate) struct Change<'c>(&'c AtomicU32);

/// A change of the file of a name. Until it ends, another file may take the name and be changed in
/// its place: no file is delegated. The second mark is that of the file which was found.
pub(crate) type NamedChange<'c> = (Change<'c>, Option<Change<'c>>);

impl Default for Changing {
    fn default() -> Self {
        Self { marks: (0..MARKS).map(|_| AtomicU32::new(0)).collect(), any: AtomicU32::new(0) }
    }
}

impl Changing {
    fn mark(&self, export: ExportId, node: &NodeId) -> &AtomicU32 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(export.0);
        hasher.write(node.bytes());
        &self.marks[hasher.finish() as usize % MARKS]
    }

    /// Begins a change of a file.
    pub(crate) fn begin(&self, export: ExportId, node: &NodeId) -> Change<'_> {
        Change::of(self.mark(export, node))
    }

    /// Begins a change of a file that is not known yet.
    pub(crate) fn begin_any(&self) -> Change<'_> {
        Change::of(&self.any)
    }

    /// Whether a change of the file may be in progress.
    pub(crate) fn may_be(&self, export: ExportId, node: &NodeId) -> bool {
        self.any.load(Ordering::SeqCst) > 0 || self.mark(export, node).load(Ordering::SeqCst) > 0
    }
}

impl<'c> Change<'c> {
    /// Marks before the caller reads. OPEN writes before it reads the mark too, so one side sees
    /// the other.
    fn of(mark: &'c AtomicU32) -> Self {
        mark.fetch_add(1, Ordering::SeqCst);
        Self(mark)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_being_changed_until_the_last_change_ends() {
        let (changing, export) = (Changing::default(), ExportId(7));
        let [one, other] = [1, 2].map(|id| NodeId::new(&[id]).unwrap());
        let first = changing.begin(export, &one);
        let second = changing.begin(export, &one);
        drop(first);
        assert!(changing.may_be(export, &one) && !changing.may_be(export, &other));
        drop(second);
        assert!(!changing.may_be(export, &one));
        let any = changing.begin_any();
        assert!(changing.may_be(export, &other));
        drop(any);
        assert!(!changing.may_be(export, &other));
    }
}
