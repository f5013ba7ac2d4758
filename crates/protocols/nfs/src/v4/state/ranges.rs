//! Owns the byte ranges of one lock owner and file: merges and splits them as POSIX does.

use std::collections::BTreeMap;

use super::saved::saved;
use crate::v4::Status;

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Range {
    /// From `offset` and `length`; all ones is to the end of the file (RFC 8881 §18.10.3).
    ///
    /// # Errors
    /// INVAL for a length of 0, and for a range that ends beyond 2⁶⁴ − 1.
    pub(super) fn new(offset: u64, length: u64) -> Result<Self, Status> {
        let last = match length {
            0 => return Err(Status::Inval),
            u64::MAX => u64::MAX,
            length => offset.checked_add(length - 1).ok_or(Status::Inval)?,
        };
        Ok(Range { first: offset, last })
    }

    /// `length4` of the range.
    pub(super) fn length(self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 }
    }
}

/// Last byte of a locked range, and its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Locked {
    last: u64,
    writes: bool,
}

/// Ranges by their first byte. They do not overlap, and neighbours of one kind are merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    locked: BTreeMap<u64, Locked>,
}

saved! {
    Range { first, last }
    Locked { last, writes }
    Ranges { locked }
}

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.locked.len()
    }

    /// The last locked range that a lock of another owner conflicts with.
    pub(super) fn conflict(&self, range: Range, writes: bool) -> Option<(Range, bool)> {
        let overlapping = self.locked.range(..=range.last).rev();
        let mut overlapping = overlapping.take_while(|(_, it)| it.last >= range.first);
        let (first, found) = overlapping.find(|(_, it)| writes || it.writes)?;
        Some((Range { first: *first, last: found.last }, found.writes))
    }

    /// A locked range begins before `range` and ends after it.
    pub(super) fn splits(&self, range: Range) -> bool {
        let before = self.locked.range(..range.first).next_back();
        before.is_some_and(|(_, it)| it.last > range.last)
    }

    /// Unlocks a range.
    pub(super) fn unlock(&mut self, range: Range) {
        let overlapping = self.locked.range(..=range.last).rev().take_while(|(_, it)| it.last >= range.first);
        let overlapping: Vec<(u64, Locked)> = overlapping.map(|(first, it)| (*first, *it)).collect();
        for (first, found) in overlapping {
            self.locked.remove(&first);
            if first < range.first {
                self.locked.insert(first, Locked { last: range.first - 1, writes: found.writes });
            }
            if found.last > range.last {
                self.locked.insert(range.last + 1, found);
            }
        }
    }

    /// Locks a range: replaces what the owner had there.
    pub(super) fn lock(&mut self, range: Range, writes: bool) {
        self.unlock(range);
        let Range { mut first, mut last } = range;
        let before = self.locked.range(..first).next_back().map(|(first, it)| (*first, *it));
        if let Some((start, _)) = before.filter(|(_, it)| it.last + 1 == first && it.writes == writes) {
            self.locked.remove(&start);
            first = start;
        }
        let after = last.checked_add(1).and_then(|it| self.locked.get(&it)).copied();
        if let Some(it) = after.filter(|it| it.writes == writes) {
            self.locked.remove(&(last + 1));
            last = it.last;
        }
        self.locked.insert(first, Locked { last, writes });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(ranges: &Ranges) -> Vec<(u64, u64, bool)> {
        ranges.locked.iter().map(|(first, it)| (*first, it.last, it.writes)).collect()
    }

    fn range(first: u64, last: u64) -> Range {
        Range { first, last }
    }

    /// RFC 8881 §18.10.3.
    #[test]
    fn a_range_is_not_empty_and_ends_within_64_bits() {
        assert_eq!(Range::new(5, 0), Err(Status::Inval));
        assert_eq!(Range::new(5, 1), Ok(range(5, 5)));
        assert_eq!(Range::new(5, u64::MAX), Ok(range(5, u64::MAX)));
        assert_eq!(Range::new(2, u64::MAX - 1), Ok(range(2, u64::MAX)));
        assert_eq!(Range::new(3, u64::MAX - 1), Err(Status::Inval));
        assert_eq!(range(5, u64::MAX).length(), u64::MAX);
        assert_eq!(range(5, 5).length(), 1);
    }

    #[test]
    fn a_lock_splits_one_of_another_kind_and_merges_with_its_kind() {
        let mut ranges = Ranges::default();
        ranges.lock(range(0, 99), false);
        ranges.lock(range(40, 59), true);
        assert_eq!(all(&ranges), [(0, 39, false), (40, 59, true), (60, 99, false)]);
        ranges.lock(range(40, 59), false);
        assert_eq!(all(&ranges), [(0, 99, false)]);
        ranges.unlock(range(10, u64::MAX));
        assert_eq!(all(&ranges), [(0, 9, false)]);
    }

    #[test]
    fn the_last_byte_of_a_file_can_be_locked() {
        let mut ranges = Ranges::default();
        ranges.lock(range(u64::MAX, u64::MAX), true);
        ranges.lock(range(0, u64::MAX - 1), true);
        assert_eq!(all(&ranges), [(0, u64::MAX, true)]);
        assert_eq!(ranges.conflict(range(7, 7), false), Some((range(0, u64::MAX), true)));
        ranges.unlock(range(0, u64::MAX));
        assert_eq!(ranges.len(), 0);
    }

    proptest! {
        /// Against one kind for each of 24 bytes.
        #[test]
        fn ranges_are_what_each_byte_is(
            steps in prop::collection::vec((0..24u64, 1..24u64, 0..3u8), 1..40)
        ) {
            let mut ranges = Ranges::default();
            let mut bytes = [None; 24];
            for (first, length, kind) in steps {
                let range = range(first, (first + length - 1).min(23));
                let kind = [None, Some(false), Some(true)][usize::from(kind)];
                match kind {
                    Some(writes) => ranges.lock(range, writes),
                    None => ranges.unlock(range),
                }
                bytes[range.first as usize..=range.last as usize].fill(kind);
                let mut expected: Vec<(u64, u64, bool)> = Vec::new();
                for (at, kind) in (0..).zip(bytes) {
                    let Some(writes) = kind else { continue };
                    match expected.last_mut() {
                        Some((_, last, same)) if *last + 1 == at && *same == writes => *last = at,
                        _ => expected.push((at, at, writes)),
                    }
                }
                prop_assert_eq!(all(&ranges), expected);
                for at in 0..24u64 {
                    let found = ranges.conflict(super::Range { first: at, last: at }, false);
                    prop_assert_eq!(found.is_some(), bytes[at as usize] == Some(true));
                }
            }
        }
    }
}
