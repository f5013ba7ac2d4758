//! [`FreePages`]: the pages of the arena that belong to no file.

use std::collections::{BTreeMap, BTreeSet};

/// Pages of the arena that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first page.
    pub(crate) at: u32,
    /// Number of pages, at least 1.
    pub(crate) len: u32,
}

impl Run {
    /// The page behind the last one.
    pub(crate) fn end(self) -> u32 {
        self.at + self.len
    }
}

/// Free pages, as runs that do not touch each other.
pub(crate) struct FreePages {
    by_place: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl FreePages {
    /// The first `pages` pages, all free.
    pub(crate) fn new(pages: u32) -> Self {
        let mut free = Self { by_place: BTreeMap::new(), by_len: BTreeSet::new() };
        if pages > 0 {
            free.add(Run { at: 0, len: pages });
        }
        free
    }

    fn add(&mut self, run: Run) {
        self.by_place.insert(run.at, run.len);
        self.by_len.insert((run.len, run.at));
    }

    fn delete(&mut self, run: Run) {
        self.by_place.remove(&run.at);
        self.by_len.remove(&(run.len, run.at));
    }

    /// Takes up to `most` pages: from `goal` on if that is free, else the shortest run that holds
    /// them, else the longest.
    pub(crate) fn take(&mut self, most: u32, goal: Option<u32>) -> Option<Run> {
        let at_goal = goal.and_then(|at| self.by_place.get(&at).map(|len| Run { at, len: *len }));
        let run = at_goal.or_else(|| {
            let fitting = self.by_len.range((most, 0)..).next().or_else(|| self.by_len.last());
            fitting.map(|(len, at)| Run { at: *at, len: *len })
        })?;
        self.delete(run);
        if run.len > most {
            self.add(Run { at: run.at + most, len: run.len - most });
        }
        Some(Run { at: run.at, len: run.len.min(most) })
    }

    /// Length of the longest run.
    pub(crate) fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Gives pages back.
    pub(crate) fn give(&mut self, mut run: Run) {
        if let Some((at, len)) = self.by_place.range(..run.at).next_back() {
            let before = Run { at: *at, len: *len };
            debug_assert!(before.end() <= run.at, "{run:?} is free already");
            if before.end() == run.at {
                self.delete(before);
                run = Run { at: before.at, len: before.len + run.len };
            }
        }
        if let Some(len) = self.by_place.get(&run.end()) {
            let behind = Run { at: run.end(), len: *len };
            self.delete(behind);
            run.len += behind.len;
        }
        self.add(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_when_they_come_back() {
        let mut free = FreePages::new(10);
        let runs: Vec<Run> = (0..5).map(|_| free.take(2, None).unwrap()).collect();
        assert_eq!(free.take(1, None), None);
        for at in [1, 3, 2, 0, 4] {
            free.give(runs[at]);
        }
        assert_eq!(free.take(20, None), Some(Run { at: 0, len: 10 }));
    }

    #[test]
    fn a_file_grows_where_it_is_and_else_fills_the_smallest_gap() {
        let mut free = FreePages::new(100);
        let first = free.take(10, None).unwrap();
        assert_eq!(free.take(3, Some(first.end())), Some(Run { at: 10, len: 3 }));
        free.give(Run { at: 2, len: 4 });
        assert_eq!(free.take(3, Some(1)), Some(Run { at: 2, len: 3 }));
        assert_eq!(free.take(200, None), Some(Run { at: 13, len: 87 }));
        assert_eq!(free.take(200, None), Some(Run { at: 5, len: 1 }));
    }
}
