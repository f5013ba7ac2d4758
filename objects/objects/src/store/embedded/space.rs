//! [`Space`]: the free blocks of the arena, and those that are used more than once.
//!
//! Both follow from the extents of all objects, and are counted anew when the store is opened: a
//! stored counter can be wrong, a computed one cannot. Free blocks read as zeros, durably. If a
//! power cut takes new data, zeros are left and never another object's bytes.

use std::collections::BTreeMap;

use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Blocks {
    pub at: u64,
    pub len: u64,
}

/// Free ranges that are searched for a long enough one, before the space is taken in pieces.
const LOOKED_AT: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Space {
    /// Starts of free ranges, with their lengths.
    free: BTreeMap<u64, u64>,
    free_blocks: u64,
    cursor: u64,
    /// Starts of ranges that are used more than once: their lengths, and how often.
    shared: BTreeMap<u64, (u64, u32)>,
    total: u64,
}

impl Space {
    /// `used`: all extents of all objects, in any order.
    pub fn new(total: u64, mut used: Vec<Blocks>) -> Self {
        let mut space = Self { total, ..Self::default() };
        used.retain(|blocks| blocks.len > 0);
        used.sort_unstable();
        // Starts and ends in order: between two of them the count does not change.
        let mut ends = std::collections::BinaryHeap::new();
        let (mut at, mut next) = (0, used.into_iter().peekable());
        loop {
            let start = next.peek().map(|b| b.at);
            let end = ends.peek().map(|std::cmp::Reverse(end)| *end);
            let Some(event) = start.into_iter().chain(end).min() else { break };
            space.note(at, event, ends.len());
            at = at.max(event);
            while ends.peek().is_some_and(|std::cmp::Reverse(end)| *end <= event) {
                ends.pop();
            }
            while let Some(blocks) = next.next_if(|b| b.at <= event) {
                ends.push(std::cmp::Reverse(blocks.at + blocks.len));
            }
        }
        space.note(at, total, 0);
        space
    }

    fn note(&mut self, from: u64, to: u64, count: usize) {
        let to = to.min(self.total);
        if from >= to {
            return;
        }
        match count {
            0 => self.release(Blocks { at: from, len: to - from }),
            1 => {}
            _ => self.add_shared(from, to - from, count as u32),
        }
    }

    #[cfg(test)]
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    pub(crate) fn used_blocks(&self) -> u64 {
        self.total - self.free_blocks
    }

    pub fn free(&self) -> impl Iterator<Item = Blocks> {
        self.free.iter().map(|(at, len)| Blocks { at: *at, len: *len })
    }

    /// Takes `len` blocks, at `hint` if it can, in as few pieces as it finds. `None`, and nothing
    /// is taken, if there are not as many.
    pub fn allocate(&mut self, len: u64, hint: Option<u64>) -> Option<SmallVec<[Blocks; 4]>> {
        if len > self.free_blocks {
            return None;
        }
        let mut taken = SmallVec::new();
        let mut left = len;
        if let Some(hint) = hint {
            if let Some(found) = self.free.get(&hint).copied() {
                taken.push(self.take(hint, found.min(left)));
                left -= found.min(left);
            }
        }
        if left > 0 {
            let cursor = self.cursor;
            let around = self.free.range(cursor..).chain(self.free.range(..cursor));
            if let Some(at) = around.take(LOOKED_AT).find(|(_, len)| **len >= left).map(|(at, _)| *at) {
                taken.push(self.take(at, left));
                left = 0;
            }
        }
        while left > 0 {
            let cursor = self.cursor;
            let first = self.free.range(cursor..).chain(self.free.range(..cursor)).next();
            let (at, found) = first.map(|(at, len)| (*at, *len))?;
            taken.push(self.take(at, found.min(left)));
            left -= found.min(left);
        }
        Some(taken)
    }

    /// The first `len` blocks of the free range at `at`, which has as many.
    fn take(&mut self, at: u64, len: u64) -> Blocks {
        if let Some(found) = self.free.remove(&at) {
            if found > len {
                self.free.insert(at + len, found - len);
            }
        }
        self.free_blocks -= len;
        self.cursor = at + len;
        Blocks { at, len }
    }

    /// Frees blocks that no object uses any more.
    pub fn release(&mut self, blocks: Blocks) {
        let Blocks { mut at, mut len } = blocks;
        self.free_blocks += len;
        if let Some((before, n)) = self.free.range(..at).next_back().map(|(a, n)| (*a, *n)) {
            if before + n == at {
                self.free.remove(&before);
                (at, len) = (before, len + n);
            }
        }
        if let Some(n) = self.free.remove(&(at + len)) {
            len += n;
        }
        self.free.insert(at, len);
    }

    /// Whether any of these blocks is used more than once.
    pub(crate) fn is_shared(&self, blocks: Blocks) -> bool {
        let before = self.shared.range(..=blocks.at).next_back();
        before.is_some_and(|(at, (len, _))| at + len > blocks.at)
            || self.shared.range(blocks.at..blocks.at + blocks.len).next().is_some()
    }

    /// One more use of each of these blocks, which are in use.
    pub fn share(&mut self, blocks: Blocks) {
        self.each_piece(blocks, |space, piece, count| {
            space.add_shared(piece.at, piece.len, count.max(1) + 1)
        });
    }

    /// Removes one use of each of these blocks. Reports those without a use left, which are not
    /// free yet.
    pub(crate) fn drop_use(&mut self, blocks: Blocks, unused: &mut Vec<Blocks>) {
        if self.shared.is_empty() {
            return unused.push(blocks);
        }
        self.each_piece(blocks, |space, piece, count| match count {
            0 => unused.push(piece),
            2 => {}
            _ => space.add_shared(piece.at, piece.len, count - 1),
        });
    }

    /// Takes the range out of the shared blocks, and shows it piece by piece with the counts it
    /// had; 0 for once.
    fn each_piece(&mut self, blocks: Blocks, mut each: impl FnMut(&mut Self, Blocks, u32)) {
        let (mut at, end) = (blocks.at, blocks.at + blocks.len);
        while at < end {
            let before = self.shared.range(..=at).next_back().map(|(a, (n, c))| (*a, *n, *c));
            match before.filter(|(start, len, _)| start + len > at) {
                Some((start, len, count)) => {
                    let to = end.min(start + len);
                    self.shared.remove(&start);
                    if start < at {
                        self.shared.insert(start, (at - start, count));
                    }
                    if start + len > to {
                        self.shared.insert(to, (start + len - to, count));
                    }
                    each(self, Blocks { at, len: to - at }, count);
                    at = to;
                }
                None => {
                    let next = self.shared.range(at..end).next().map_or(end, |(start, _)| *start);
                    each(self, Blocks { at, len: next - at }, 0);
                    at = next;
                }
            }
        }
    }

    fn add_shared(&mut self, mut at: u64, mut len: u64, count: u32) {
        if let Some((before, (n, c))) = self.shared.range(..at).next_back().map(|(a, v)| (*a, *v)) {
            if before + n == at && c == count {
                self.shared.remove(&before);
                (at, len) = (before, len + n);
            }
        }
        if let Some((n, c)) = self.shared.get(&(at + len)).copied() {
            if c == count {
                self.shared.remove(&(at + len));
                len += n;
            }
        }
        self.shared.insert(at, (len, count));
    }

    /// One use more of each of these blocks, free ones among them.
    pub(crate) fn occupy(&mut self, blocks: Blocks) {
        let (mut at, end) = (blocks.at, blocks.at + blocks.len);
        while at < end {
            let before = self.free.range(..=at).next_back().map(|(start, len)| (*start, *len));
            match before.filter(|(start, len)| start + len > at) {
                Some((start, len)) => {
                    let to = end.min(start + len);
                    self.free.remove(&start);
                    if start < at {
                        self.free.insert(start, at - start);
                    }
                    if start + len > to {
                        self.free.insert(to, start + len - to);
                    }
                    self.free_blocks -= to - at;
                    at = to;
                }
                None => {
                    let next = self.free.range(at..end).next().map_or(end, |(start, _)| *start);
                    self.share(Blocks { at, len: next - at });
                    at = next;
                }
            }
        }
    }

    /// Whether each block is used as often as in `other`.
    pub fn is_like(&self, other: &Self) -> bool {
        self.free == other.free && self.shared == other.shared
    }

    /// For comparison: the free ranges, and the shared ones with their number of uses.
    #[cfg(test)]
    pub fn describe(&self) -> (Vec<Blocks>, Vec<(Blocks, u32)>) {
        let shared = self.shared.iter().map(|(at, (len, count))| (Blocks { at: *at, len: *len }, *count));
        (self.free().collect(), shared.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backing::model::Random;

    const TOTAL: u64 = 64;

    fn counts(space: &Space) -> Vec<u32> {
        let mut counts = vec![1; TOTAL as usize];
        let (free, shared) = space.describe();
        for blocks in free {
            counts[blocks.at as usize..(blocks.at + blocks.len) as usize].fill(0);
        }
        for (blocks, count) in shared {
            counts[blocks.at as usize..(blocks.at + blocks.len) as usize].fill(count);
        }
        counts
    }

    #[test]
    fn uses_are_counted_like_in_a_plain_list_and_the_same_when_counted_anew() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut space = Space::new(TOTAL, Vec::new());
            let (mut model, mut extents) = (vec![0u32; TOTAL as usize], Vec::<Blocks>::new());
            for _ in 0..200 {
                match random.below(3) {
                    0 => {
                        let len = 1 + random.below(8);
                        let fits = model.iter().filter(|c| **c == 0).count() as u64 >= len;
                        let hint = (random.below(2) == 0).then(|| random.below(TOTAL));
                        let taken = space.allocate(len, hint);
                        assert_eq!(taken.is_some(), fits);
                        for blocks in taken.into_iter().flatten() {
                            for count in &mut model[blocks.at as usize..(blocks.at + blocks.len) as usize] {
                                assert_eq!(*count, 0);
                                *count = 1;
                            }
                            extents.push(blocks);
                        }
                    }
                    1 if !extents.is_empty() => {
                        let blocks = extents[random.below(extents.len() as u64) as usize];
                        space.share(blocks);
                        extents.push(blocks);
                        let range = blocks.at as usize..(blocks.at + blocks.len) as usize;
                        model[range].iter_mut().for_each(|c| *c += 1);
                    }
                    2 if !extents.is_empty() => {
                        let blocks = extents.swap_remove(random.below(extents.len() as u64) as usize);
                        let mut unused = Vec::new();
                        space.drop_use(blocks, &mut unused);
                        unused.into_iter().for_each(|blocks| space.release(blocks));
                        let range = blocks.at as usize..(blocks.at + blocks.len) as usize;
                        model[range].iter_mut().for_each(|c| *c -= 1);
                    }
                    _ => {}
                }
                assert_eq!(counts(&space), model);
                let free = model.iter().filter(|c| **c == 0).count() as u64;
                assert_eq!((space.free_blocks(), space.used_blocks()), (free, TOTAL - free));
            }
            let mut one_by_one = Space::new(TOTAL, Vec::new());
            extents.iter().for_each(|blocks| one_by_one.occupy(*blocks));
            assert_eq!(one_by_one.free_blocks(), space.free_blocks());
            assert!(one_by_one.is_like(&space));
            assert!(Space::new(TOTAL, extents).is_like(&space));
        }
    }
}
