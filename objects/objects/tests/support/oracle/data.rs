//! The data of one object in memory: pages, which clones share until one writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::store::{BLOCK, Difference, Error, Extent, MAX_LENGTH};

pub(super) const PAGE: usize = BLOCK as usize;
type Page = [u8; PAGE];

#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub length: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Data {
    pub fn used(&self) -> u64 {
        self.pages.len() as u64 * BLOCK
    }

    /// End of a range, which must not exceed [`MAX_LENGTH`].
    pub fn end_of(at: u64, len: u64) -> Result<u64, Error> {
        at.checked_add(len).filter(|end| *end <= MAX_LENGTH).ok_or(Error::OutOfRange)
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let end = at.saturating_add(len as u64).min(self.length).max(at);
        let mut bytes = vec![0; (end - at) as usize];
        for (index, page) in self.pages.range(at / BLOCK..end.div_ceil(BLOCK)) {
            let (from, to) = ((index * BLOCK).max(at), ((index + 1) * BLOCK).min(end));
            if from < to {
                let within = (from - index * BLOCK) as usize;
                bytes[(from - at) as usize..(to - at) as usize]
                    .copy_from_slice(&page[within..within + (to - from) as usize]);
            }
        }
        bytes
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let to = at + done as u64;
            let (index, within) = (to / BLOCK, (to % BLOCK) as usize);
            let n = (PAGE - within).min(bytes.len() - done);
            let page = self.pages.entry(index).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
        if !bytes.is_empty() {
            self.length = self.length.max(at + bytes.len() as u64);
        }
    }

    pub fn clear(&mut self, at: u64, end: u64) {
        if at == end {
            return;
        }
        let hole_end = if end >= self.length { end.next_multiple_of(BLOCK) } else { end };
        self.length = self.length.max(end);
        let indices: Vec<u64> =
            self.pages.range(at / BLOCK..hole_end.div_ceil(BLOCK)).map(|(i, _)| *i).collect();
        for index in indices {
            let (from, to) = ((index * BLOCK).max(at), ((index + 1) * BLOCK).min(hole_end));
            if to - from == BLOCK {
                self.pages.remove(&index);
            } else if let Some(page) = self.pages.get_mut(&index) {
                let within = (from - index * BLOCK) as usize;
                Arc::make_mut(page)[within..within + (to - from) as usize].fill(0);
            }
        }
    }

    pub fn set_length(&mut self, length: u64) {
        if length < self.length {
            self.clear(length, self.length);
        }
        self.length = length;
    }

    pub fn punch(&mut self, at: u64, len: u64) -> Result<(), Error> {
        if at > self.length {
            return Err(Error::OutOfRange);
        }
        let from = at.saturating_add(len).min(self.length);
        let old = self.clone();
        self.set_length(at);
        for extent in old.extents(from, old.length - from) {
            if extent.data {
                self.write(at + (extent.at - from), &old.read(extent.at, extent.len as usize));
            }
        }
        self.length = at + (old.length - from);
        Ok(())
    }

    /// None from `at` beyond the end, where a shrinking object may have left a caller.
    pub fn extents(&self, at: u64, len: u64) -> Vec<Extent> {
        let end = at.saturating_add(len).min(self.length).max(at);
        let mut extents: Vec<Extent> = Vec::new();
        let mut next = at;
        let mut push = |at: u64, to: u64, data| match extents.last_mut() {
            _ if at >= to => {}
            Some(last) if last.data == data => last.len += to - at,
            _ => extents.push(Extent { at, len: to - at, data }),
        };
        for index in self.pages.range(at / BLOCK..end.div_ceil(BLOCK)).map(|(i, _)| *i) {
            let (from, to) = ((index * BLOCK).max(at), ((index + 1) * BLOCK).min(end));
            push(next, from, false);
            push(from, to, true);
            next = to;
        }
        push(next, end, false);
        extents
    }

    pub fn differences(&self, other: &Self, at: u64, len: u64) -> Vec<Difference> {
        let end = at.saturating_add(len).min(self.length.max(other.length));
        let both = self.length.min(other.length);
        let range = at / BLOCK..end.div_ceil(BLOCK).max(at / BLOCK);
        let mut indices: Vec<u64> =
            self.pages.range(range.clone()).chain(other.pages.range(range)).map(|(i, _)| *i).collect();
        indices.sort_unstable();
        indices.dedup();
        let same = |index: &u64| match (self.pages.get(index), other.pages.get(index)) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            _ => false,
        };
        let span = |index: u64| ((index * BLOCK).max(at), ((index + 1) * BLOCK).min(end));
        let mut spans: Vec<_> = indices.into_iter().filter(|i| !same(i)).map(span).collect();
        // Bytes beyond the end of the shorter one differ in any case.
        spans.push((both.max(at), end));
        spans.retain(|(from, to)| from < to);
        spans.sort_unstable();
        let mut merged: Vec<Difference> = Vec::new();
        for (at, to) in spans {
            match merged.last_mut() {
                Some(last) if last.at + last.len >= at => last.len = last.len.max(to - last.at),
                _ => merged.push(Difference { at, len: to - at }),
            }
        }
        merged
    }
}
