//! [`Data`]: the bytes of a regular file, and their positions in the arena.
//!
//! Pages that were never written are holes. Bytes of a page behind the file's end are zeros.

use std::collections::BTreeMap;

use runtime::{Buf, Chain};
use tree::Contents;

use crate::arena::Arena;
use crate::free::Run;
use crate::pages::{PAGE, Runs, Taken};

/// Bytes charged for each run of pages.
const RUN_COST: u64 = 64;

/// Reads of files of up to this many bytes are copied: the pages of such files are free at once
/// when the files are removed.
const SMALL: u64 = 16 << 10;

/// The bytes of a file. Its owner calls [`Self::free`] before it drops it.
#[derive(Default)]
pub(crate) struct Data {
    size: u64,
    /// Pages that it has.
    pages: u64,
    /// By the number of the first page in the file.
    runs: BTreeMap<u64, Run>,
    /// Whether [`Arena::slice`] was called for it.
    lent: bool,
}

impl Data {
    /// `size` zeros.
    pub(crate) fn zeros(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory that hold data.
    pub(crate) fn allocated(&self) -> u64 {
        self.pages * PAGE
    }

    /// Bytes charged beside them.
    pub(crate) fn cost(&self) -> u64 {
        self.runs.len() as u64 * RUN_COST
    }

    /// The runs that hold a page of `first..end`, in order: the page of the file each begins with.
    fn runs(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, Run)> {
        let before = self.runs.range(..first).next_back();
        let before = before.filter(|(at, run)| *at + u64::from(run.len) > first);
        let inside = self.runs.range(first..end.max(first));
        before.into_iter().chain(inside).map(|(at, run)| (*at, *run))
    }

    /// All its runs, in order: the page of the file each begins with.
    pub(crate) fn all_runs(&self) -> impl Iterator<Item = (u64, Run)> {
        self.runs.iter().map(|(at, run)| (*at, *run))
    }

    /// Fills whole pages with what they were in another process. The caller has taken
    /// [`Self::missing`] from the budget.
    pub(crate) fn restore(&mut self, arena: &Arena, at: u64, data: &Chain) {
        let (size, len) = (self.size, data.len() as u64);
        self.map(arena, at, len, len);
        self.write(arena, at, data);
        self.size = size;
    }

    /// Bytes of memory that a write of the range needs.
    pub(crate) fn missing(&self, at: u64, len: u64) -> u64 {
        let (first, end) = pages(at, len);
        let mut missing = end - first;
        for (at, run) in self.runs(first, end) {
            missing -= (at + u64::from(run.len)).min(end) - at.max(first);
        }
        missing * PAGE
    }

    /// Allocates pages for the whole range. The caller has taken [`Self::missing`] from the budget,
    /// and writes the first `written` bytes of it before the data can be read.
    pub(crate) fn map(&mut self, arena: &Arena, at: u64, len: u64, written: u64) {
        let (mut page, end) = pages(at, len);
        while page < end {
            let before = self.runs.range(..=page).next_back().map(|(at, run)| (*at, *run));
            let mut goal = None;
            if let Some((at, run)) = before {
                let behind = at + u64::from(run.len);
                if behind > page {
                    page = behind;
                    continue;
                }
                goal = (behind == page).then(|| run.end());
            }
            let next = self.runs.range(page..).next().map_or(end, |(at, _)| (*at).min(end));
            let most = u32::try_from(next - page).unwrap_or(u32::MAX);
            let Taken { run: taken, zeros } = arena.take(most, goal);
            if !zeros {
                // All but the written range.
                let (start, len) = (page * PAGE, u64::from(taken.len) * PAGE);
                let head = at.saturating_sub(start).min(len);
                let tail = (at + written).saturating_sub(start).clamp(head, len);
                let place = u64::from(taken.at) * PAGE;
                arena.zero(place, head);
                arena.zero(place + tail, len - tail);
            }
            self.pages += u64::from(taken.len);
            match before.filter(|_| goal == Some(taken.at)) {
                Some((at, run)) => self.runs.insert(at, Run { at: run.at, len: run.len + taken.len }),
                None => self.runs.insert(page, taken),
            };
            page += u64::from(taken.len);
        }
    }

    /// Writes to pages that are there ([`Self::map`]). The file becomes longer if it must.
    pub(crate) fn write(&mut self, arena: &Arena, at: u64, data: &Chain) {
        let end = at + data.len() as u64;
        let mut bufs = data.iter();
        let mut rest = Buf::new();
        let (first, last) = pages(at, data.len() as u64);
        let mut position = at;
        for (page, run) in self.runs(first, last) {
            let behind = end.min((page + u64::from(run.len)) * PAGE);
            while position < behind {
                if rest.is_empty() {
                    let Some(buf) = bufs.next() else { break };
                    rest = buf.clone();
                }
                let n = rest.len().min((behind - position) as usize);
                let place = u64::from(run.at) * PAGE + (position - page * PAGE);
                let written = arena.write(place, &rest.split_to(n));
                debug_assert!(written, "the pages are in the arena");
                position += n as u64;
            }
        }
        debug_assert_eq!(position, end, "all pages are there");
        self.size = self.size.max(end);
    }

    /// Reads up to `len` bytes at `at`, for the file of number `owner`: the pages themselves,
    /// unless the file is small.
    pub(crate) fn read(&mut self, arena: &Arena, owner: u32, at: u64, len: usize) -> Chain {
        let mut chain = Chain::new();
        let len = self.size.saturating_sub(at).min(len as u64);
        if len == 0 {
            return chain;
        }
        let (first, last) = pages(at, len);
        let mut position = at;
        let is_small = self.size <= SMALL && !self.lent;
        let mut lent = false;
        for (page, run) in self.runs(first, last) {
            chain.push_zeros((page * PAGE).saturating_sub(position) as usize);
            position = position.max(page * PAGE);
            let behind = (at + len).min((page + u64::from(run.len)) * PAGE);
            let place = u64::from(run.at) * PAGE + (position - page * PAGE);
            let len = (behind - position) as usize;
            if let Some(copy) = is_small.then(|| arena.copy(place, len)).flatten() {
                chain.push(copy);
            } else if let Some(buf) = arena.slice(owner, place, len) {
                chain.push_joined(buf);
                lent = true;
            }
            position = behind;
        }
        chain.push_zeros((at + len - position) as usize);
        self.lent |= lent;
        chain
    }

    /// Cuts the file, or makes it longer.
    pub(crate) fn set_size(&mut self, arena: &Arena, owner: u32, size: u64) {
        if size < self.size {
            self.erase(arena, owner, size, self.size.next_multiple_of(PAGE));
            self.give_pages(arena, owner, size.div_ceil(PAGE), u64::MAX);
        }
        self.size = size;
    }

    /// Gives all memory back.
    pub(crate) fn free(&mut self, arena: &Arena, owner: u32) {
        self.give_pages(arena, owner, 0, u64::MAX);
        self.size = 0;
    }

    /// Makes the bytes `at..end` zeros, and gives the memory of whole pages back.
    pub(crate) fn erase(&mut self, arena: &Arena, owner: u32, at: u64, end: u64) {
        let (first, last) = (at.div_ceil(PAGE), end / PAGE);
        if first > last {
            return self.zero(arena, at, end);
        }
        self.zero(arena, at, first * PAGE);
        self.zero(arena, last * PAGE, end);
        self.give_pages(arena, owner, first, last);
    }

    /// Makes the bytes `at..end` of one page zeros.
    fn zero(&self, arena: &Arena, at: u64, end: u64) {
        if at < end
            && let Some((page, run)) = self.runs(at / PAGE, at / PAGE + 1).next()
        {
            arena.zero(u64::from(run.at) * PAGE + (at - page * PAGE), end - at);
        }
    }

    /// Gives the pages `first..end` back.
    fn give_pages(&mut self, arena: &Arena, owner: u32, first: u64, end: u64) {
        // A run around no pages is not split: the free pages hold no empty runs.
        if first >= end {
            return;
        }
        let mut given = Runs::new();
        loop {
            let Some((page, run)) = self.runs(first, end).next() else { break };
            self.runs.remove(&page);
            let behind = page + u64::from(run.len);
            let (from, to) = (page.max(first), behind.min(end));
            // Both lie within the run, whose length is a u32.
            let (head, kept) = ((from - page) as u32, (to - page) as u32);
            if head > 0 {
                self.runs.insert(page, Run { at: run.at, len: head });
            }
            if behind > to {
                self.runs.insert(to, Run { at: run.at + kept, len: run.len - kept });
            }
            self.pages -= to - from;
            given.push(Run { at: run.at + head, len: kept - head });
        }
        arena.give(owner, given, self.lent);
    }

    /// The first byte of such contents at or behind `at`, in whole pages. `None` if there is none.
    pub(crate) fn seek(&self, at: u64, contents: Contents) -> Option<u64> {
        if at >= self.size {
            return None;
        }
        let mut position = at;
        for (page, run) in self.runs(at / PAGE, self.size.div_ceil(PAGE)) {
            let start = page * PAGE;
            if contents == Contents::Data {
                return Some(position.max(start));
            }
            if start > position {
                return Some(position);
            }
            position = start + u64::from(run.len) * PAGE;
        }
        match contents {
            Contents::Data => None,
            Contents::Hole => Some(position.min(self.size)),
        }
    }
}

/// The pages that a range touches: the first, and the one behind the last.
fn pages(at: u64, len: u64) -> (u64, u64) {
    let first = at / PAGE;
    (first, if len == 0 { first } else { (at + len).div_ceil(PAGE) })
}
