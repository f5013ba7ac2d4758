//! Counts of the exports' calls and bytes, one set for each core, which are added up on request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::handle::ExportId;

/// Calls and bytes of an export, of all clients since it was first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that failed because of the medium, or because it is full.
    pub errors: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors += other.errors;
    }
}

/// One export's counts on one core.
#[derive(Default)]
pub(crate) struct Tally(Cell<Counts>);

impl Tally {
    /// Changes the counts.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }
}

/// All exports' counts on one core: those too that are served no more, since a name may come back.
#[derive(Default)]
pub(crate) struct Tallies(RefCell<Vec<(ExportId, Rc<Tally>)>>);

impl Tallies {
    /// An export's.
    pub(crate) fn of(&self, export: ExportId) -> Rc<Tally> {
        let mut all = self.0.borrow_mut();
        if let Some((_, known)) = all.iter().find(|(id, _)| *id == export) {
            return known.clone();
        }
        let new = Rc::<Tally>::default();
        all.push((export, new.clone()));
        new
    }

    /// All.
    pub(crate) fn all(&self) -> Vec<(ExportId, Counts)> {
        self.0.borrow().iter().map(|(id, tally)| (*id, tally.0.get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_an_exports_own() {
        let tallies = Tallies::default();
        tallies.of(ExportId(1)).count(|counts| counts.calls += 2);
        tallies.of(ExportId(2)).count(|counts| counts.read_bytes += 5);
        tallies.of(ExportId(1)).count(|counts| counts.calls += 1);
        let calls = Counts { calls: 3, ..Counts::default() };
        let bytes = Counts { read_bytes: 5, ..Counts::default() };
        assert_eq!(tallies.all(), [(ExportId(1), calls), (ExportId(2), bytes)]);
    }
}
