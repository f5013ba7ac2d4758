//! [`Logged`]: ranges of the arena whose data the journal has, and the arena's own medium may lack.
//!
//! A replay writes them again. A write there without the journal is noted in the journal, after
//! which a replay no longer writes that range. So the journal's data must be on the arena's medium
//! before.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::unpoisoned;

/// Ranges of bytes: starts, with their ends.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The parts of a range that are not in here.
    pub fn without(&self, at: u64, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut next = at;
        let before = self.0.range(..=at).next_back();
        for (from, to) in before.into_iter().chain(self.0.range(at + 1..end.max(at + 1))) {
            if next < *from {
                found.push((next, (*from).min(end)));
            }
            next = next.max(*to);
        }
        if next < end {
            found.push((next, end));
        }
        found
    }

    pub fn add(&mut self, mut at: u64, mut end: u64) {
        if let Some((from, to)) = self.0.range(..=at).next_back().map(|(f, t)| (*f, *t)) {
            if to >= at {
                (at, end) = (from, end.max(to));
            }
        }
        while let Some((from, to)) = self.0.range(at..=end).next().map(|(f, t)| (*f, *t)) {
            self.0.remove(&from);
            end = end.max(to);
        }
        self.0.insert(at, end);
    }

    fn meets(&self, at: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, to)| *to > at)
    }
}

/// Ranges logged since the last flush of the arena, and those before a flush in progress.
#[derive(Debug, Default)]
pub(super) struct Logged(Mutex<[Ranges; 2]>);

impl Logged {
    fn lock(&self) -> MutexGuard<'_, [Ranges; 2]> {
        unpoisoned(self.0.lock())
    }

    /// After it was written to the arena: a flush that begins then covers it.
    pub fn add(&self, at: u64, end: u64) {
        self.lock()[0].add(at, end);
    }

    pub fn meets(&self, at: u64, end: u64) -> bool {
        self.lock().iter().any(|ranges| ranges.meets(at, end))
    }

    /// A checkpoint is about to flush the arena. One at a time.
    pub(crate) fn flush_begins(&self) {
        let [new, old] = &mut *self.lock();
        for (at, end) in std::mem::take(&mut new.0) {
            old.add(at, end);
        }
    }

    /// The flush announced with [`Self::flush_begins`] has ended.
    pub fn flushed(&self) {
        self.lock()[1] = Ranges::default();
    }
}
