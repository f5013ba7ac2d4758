//! Which bytes of a read have come: runs of them, in order, never two that touch.

use smallvec::SmallVec;

/// The most runs. A server may send chunks in any order; those of known ones ascend, and need one.
const MAX_RUNS: usize = 4096;

/// The bytes that have come, relative to the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cover(SmallVec<[Run; 2]>);

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    end: u32,
}

/// Why bytes are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Some have come before.
    Overlap,
    /// They would be one run too many.
    Scattered,
}

impl Cover {
    /// Adds `start..end`, which is not empty.
    pub(crate) fn add(&mut self, start: u32, end: u32) -> Result<(), Bad> {
        // The first run that ends behind the start.
        let at = self.0.partition_point(|run| run.end <= start);
        let next = self.0.get(at).copied();
        if next.is_some_and(|next| next.start < end) {
            return Err(Bad::Overlap);
        }
        let before = at.checked_sub(1).filter(|before| self.0[*before].end == start);
        let joins_next = next.is_some_and(|next| next.start == end);
        match (before, joins_next) {
            (Some(before), true) => {
                self.0[before].end = self.0[at].end;
                self.0.remove(at);
            }
            (Some(before), false) => self.0[before].end = end,
            (None, true) => self.0[at].start = start,
            (None, false) if self.0.len() == MAX_RUNS => return Err(Bad::Scattered),
            (None, false) => self.0.insert(at, Run { start, end }),
        }
        Ok(())
    }

    /// Whether `0..len` has come.
    pub(crate) fn is_whole(&self, len: u32) -> bool {
        matches!(self.0[..], [Run { start: 0, end }] if end == len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scattered_runs_are_bounded() {
        let mut cover = Cover::default();
        let runs = MAX_RUNS as u32;
        assert!((0..runs).all(|run| cover.add(4 * run, 4 * run + 1).is_ok()));
        assert_eq!(cover.add(4 * runs, 4 * runs + 1), Err(Bad::Scattered));
        // What joins a run needs no other.
        assert_eq!(cover.add(1, 2), Ok(()));
        assert_eq!(cover.add(2, 4), Ok(()));
        assert_eq!(cover.add(4 * runs, 4 * runs + 1), Ok(()));
    }

    proptest! {
        #[test]
        fn runs_are_those_of_a_bitmap(parts in prop::collection::vec((0u32..64, 1u32..16), 0..40)) {
            let (mut cover, mut bits) = (Cover::default(), [false; 80]);
            for (start, len) in parts {
                let range = start as usize..(start + len) as usize;
                let is_free = bits[range.clone()].iter().all(|bit| !bit);
                prop_assert_eq!(cover.add(start, start + len).is_ok(), is_free);
                if is_free {
                    bits[range].fill(true);
                }
                prop_assert!(cover.0.windows(2).all(|two| two[0].end < two[1].start));
            }
            let first = bits.iter().position(|bit| !bit).unwrap_or(80);
            let is_whole = first > 0 && bits[first..].iter().all(|bit| !bit);
            prop_assert_eq!(cover.is_whole(first as u32), is_whole);
        }
    }
}
