//! Lists of extents: sorted by block, without overlaps, none across the border of a chunk.

use smallvec::SmallVec;

use super::record::{CHUNK_BLOCKS, Run};
use super::space::Blocks;

/// Operations on a list of extents, in a record or in a chunk.
pub(super) trait Runs {
    fn slice(&self) -> &[Run];
    fn splice_in(&mut self, at: usize, remove: usize, with: &[Run]);
}

impl Runs for Vec<Run> {
    fn slice(&self) -> &[Run] {
        self
    }
    fn splice_in(&mut self, at: usize, remove: usize, with: &[Run]) {
        self.splice(at..at + remove, with.iter().copied());
    }
}

impl Runs for SmallVec<[Run; 4]> {
    fn slice(&self) -> &[Run] {
        self
    }
    fn splice_in(&mut self, at: usize, remove: usize, with: &[Run]) {
        drop(self.drain(at..at + remove));
        self.insert_many(at, with.iter().copied());
    }
}

/// The first that ends after `block`.
pub(super) fn first_after(runs: &[Run], block: u64) -> usize {
    runs.partition_point(|run| run.end() <= block)
}

/// Takes the blocks `from..to` out, and appends their runs to `removed`.
pub(super) fn cut(runs: &mut (impl Runs + ?Sized), from: u64, to: u64, removed: &mut Vec<Run>) {
    let first = first_after(runs.slice(), from);
    let mut rest: SmallVec<[Run; 2]> = SmallVec::new();
    let mut count = 0;
    for run in &runs.slice()[first..] {
        if run.block >= to {
            break;
        }
        count += 1;
        let (start, end) = (run.block.max(from), run.end().min(to));
        removed.push(Run { block: start, arena: run.arena + (start - run.block), len: end - start });
        if run.block < start {
            rest.push(Run { len: start - run.block, ..*run });
        }
        if end < run.end() {
            rest.push(Run { block: end, arena: run.arena + (end - run.block), len: run.end() - end });
        }
    }
    if count > 0 {
        runs.splice_in(first, count, &rest);
    }
}

/// Puts an extent where nothing is, joined with its neighbours if they go on. It lies in one chunk.
pub(super) fn insert(runs: &mut (impl Runs + ?Sized), run: Run) {
    let at = first_after(runs.slice(), run.block);
    let chunk = run.block / CHUNK_BLOCKS;
    let joins = |a: &Run, b: &Run| {
        a.end() == b.block && a.arena + a.len == b.arena && a.block / CHUNK_BLOCKS == b.block / CHUNK_BLOCKS
    };
    let mut joined = run;
    let (mut from, mut count) = (at, 0);
    if let Some(before) = at.checked_sub(1).and_then(|i| runs.slice().get(i)) {
        if joins(before, &joined) {
            joined = Run { len: before.len + joined.len, ..*before };
            (from, count) = (at - 1, 1);
        }
    }
    if let Some(after) = runs.slice().get(at) {
        if joins(&joined, after) {
            joined.len += after.len;
            count += 1;
        }
    }
    debug_assert_eq!(joined.block / CHUNK_BLOCKS, chunk);
    runs.splice_in(from, count, &[joined]);
}

/// The pieces of `from..to` in order, with where each is in the arena; `None` for holes.
pub(super) fn pieces(runs: &[Run], from: u64, to: u64, mut each: impl FnMut(u64, u64, Option<u64>)) {
    let mut at = from;
    for run in &runs[first_after(runs, from)..] {
        if run.block >= to {
            break;
        }
        let (start, end) = (run.block.max(from), run.end().min(to));
        if at < start {
            each(at, start - at, None);
        }
        each(start, end - start, Some(run.arena + (start - run.block)));
        at = end;
    }
    if at < to {
        each(at, to - at, None);
    }
}

pub(super) fn blocks(run: &Run) -> Blocks {
    Blocks { at: run.arena, len: run.len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backing::model::Random;

    #[test]
    fn any_cuts_and_insertions_leave_what_a_plain_table_has() {
        const BLOCKS: u64 = 3 * CHUNK_BLOCKS;
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut runs: Vec<Run> = Vec::new();
            let mut small: SmallVec<[Run; 4]> = SmallVec::new();
            let mut table = vec![None; BLOCKS as usize];
            for _ in 0..300 {
                let block = random.below(BLOCKS);
                let chunk_end = (block / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS;
                let len = 1 + random.below((chunk_end - block).min(64));
                let len = len.min(chunk_end - block);
                let (mut removed, mut same) = (Vec::new(), Vec::new());
                cut(&mut runs, block, block + len, &mut removed);
                cut(&mut small, block, block + len, &mut same);
                assert_eq!(removed, same);
                for run in removed {
                    for i in 0..run.len {
                        assert_eq!(table[(run.block + i) as usize].take(), Some(run.arena + i));
                    }
                }
                assert!(table[block as usize..(block + len) as usize].iter().all(Option::is_none));
                if random.below(3) > 0 {
                    // Often next to the run before it.
                    let arena = block + 1000 * random.below(2);
                    insert(&mut runs, Run { block, arena, len });
                    insert(&mut small, Run { block, arena, len });
                    (0..len).for_each(|i| table[(block + i) as usize] = Some(arena + i));
                }
                assert_eq!(runs.as_slice(), small.as_slice());
                pieces(&runs, 0, BLOCKS, |at, len, arena| {
                    for i in 0..len {
                        assert_eq!(table[(at + i) as usize], arena.map(|a| a + i));
                    }
                });
                assert!(runs.iter().all(|r| r.block / CHUNK_BLOCKS == (r.end() - 1) / CHUNK_BLOCKS));
            }
        }
    }
}
