//! Ranges of an object's bytes that a command is about: the range of its CDB, or the list of a
//! scatter/gather descriptor in its CDB continuation.
//!
//! With a list, its offsets count from STARTING BYTE ADDRESS, and LENGTH is the sum of its lengths.
//! Data-In and Data-Out hold the segments' data one behind the other, in the list's order.

use osd::cdb::ObjectRange;
use smallvec::{SmallVec, smallvec};

use super::failure::Failure;
use super::task::Task;

/// Ranges of an object, one behind the other in the command's buffer.
pub(super) struct Segments {
    ranges: SmallVec<[ObjectRange; 1]>,
    total: u64,
}

impl Segments {
    /// The segments of `task`, whose CDB names `range`.
    pub fn of(task: &Task<'_>, range: ObjectRange) -> Result<Self, Failure> {
        let too_far = || Failure::cdb(task.length_field());
        let mut ranges: SmallVec<[ObjectRange; 1]> = SmallVec::new();
        match task.scatter_gather()? {
            None => {
                range.start.checked_add(range.len).ok_or_else(too_far)?;
                Ok(Self { ranges: smallvec![range], total: range.len })
            }
            Some(list) => {
                let mut total = 0u64;
                for &ObjectRange { start, len } in list {
                    let start = range.start.checked_add(start).ok_or_else(too_far)?;
                    start.checked_add(len).ok_or_else(too_far)?;
                    total = total.checked_add(len).ok_or_else(too_far)?;
                    ranges.push(ObjectRange { start, len });
                }
                if total != range.len {
                    return Err(too_far());
                }
                Ok(Self { ranges, total })
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = ObjectRange> + '_ {
        self.ranges.iter().copied()
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// From the lowest byte to the one behind the highest.
    pub fn span(&self) -> (u64, u64) {
        let start = self.ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = self.ranges.iter().map(|range| range.start + range.len).max().unwrap_or(0);
        (start, end)
    }

    /// The pieces of the object that the buffer's bytes `from..from + len` belong to.
    pub fn pieces(&self, from: u64, len: u64) -> impl Iterator<Item = ObjectRange> + '_ {
        let mut at = 0;
        self.ranges.iter().filter_map(move |range| {
            let (first, last) = (at.max(from), (at + range.len).min(from + len));
            let start = range.start + first.saturating_sub(at);
            at += range.len;
            (first < last).then_some(ObjectRange { start, len: last.saturating_sub(first) })
        })
    }
}
