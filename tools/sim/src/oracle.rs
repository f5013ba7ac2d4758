//! Possible contents of each sector of the disk.
//!
//! The oracle is told when a command is submitted and how it ended, and judges what was read. Time
//! is the order of these events. Of each sector it keeps the writes that may still be seen there or
//! may come back:
//!
//! - a read may see a write that nothing certain has replaced before the read began; a write that
//!   ended well replaces all that had ended before it was submitted; writes that overlap in time
//!   have no order until a read shows one;
//! - a write that was aborted, lost with its session, or failed may have happened or not, up to the
//!   moment when its target can do no more of it;
//! - a power cut leaves any write that no durable one has replaced: durable by FUA, by a cache that
//!   writes through, or by a SYNCHRONIZE CACHE that was submitted after the write had ended.
//!
//! It judges sector by sector, so that tearing between sectors is allowed where nothing forbids it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

/// Names a command of the workload for ever. 0 stands for the disk's content before the first.
pub type OpId = u64;

/// Bytes of a sector, which no medium tears.
pub const SECTOR: usize = 512;

const MAGIC: u64 = u64::from_be_bytes(*b"StagSim!");
const ALIVE: u64 = u64::MAX;

/// The command that wrote the bytes of a sector, if they name one.
pub(crate) fn writer_of(bytes: &[u8]) -> Option<OpId> {
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_be_bytes);
    (word(0)? == MAGIC).then(|| word(8))?
}

/// Content that a write puts into its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros.
    Zeros,
    /// Bytes that name the write and the sector.
    Stamp(OpId),
    /// Bytes that name the write and the sector's place in its block: the same in all blocks, as
    /// WRITE SAME does.
    Repeated(OpId),
}

/// End of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was done; `durable` if the answer promised that.
    Done {
        /// It is on the medium.
        durable: bool,
    },
    /// It was refused before any of it was done.
    Refused,
    /// It may have been done, in part or as a whole, and no more of it will be.
    Unknown,
}

#[derive(Clone, Debug)]
struct Entry {
    op: OpId,
    content: Content,
    start: u64,
    /// After this time no more of it is executed; [`ALIVE`] while that may happen.
    end: u64,
    /// Reads that begin after this time do not see it.
    dead_at: u64,
    /// It certainly took place.
    done: bool,
    /// A power cut does not undo it.
    durable: bool,
    /// A durable write has replaced it: no power cut brings it back.
    gone: bool,
    /// The last power cut may have left it.
    settled: bool,
    /// The system may have dropped it after a failed sync: no later one makes it durable.
    doubtful: bool,
}

struct Pending {
    start: u64,
    sectors: Vec<Range<usize>>,
}

/// The books.
pub struct Oracle {
    sectors: Vec<Vec<Entry>>,
    per_block: usize,
    time: u64,
    last_cut: u64,
    writes: BTreeMap<OpId, Pending>,
    /// Times of the submission of commands that read data.
    looks: BTreeMap<OpId, u64>,
    /// Submission times of commands in flight that write the cache, and the sectors that they
    /// promise to make durable.
    syncs: BTreeMap<OpId, (u64, Range<usize>)>,
}

impl Oracle {
    /// A disk of zeros.
    pub fn new(sectors: usize, per_block: usize) -> Self {
        let zeros = Entry {
            op: 0,
            content: Content::Zeros,
            start: 0,
            end: 0,
            dead_at: ALIVE,
            done: true,
            durable: true,
            gone: false,
            settled: false,
            doubtful: false,
        };
        Self {
            sectors: vec![vec![zeros]; sectors],
            per_block: per_block.max(1),
            time: 0,
            last_cut: 0,
            writes: BTreeMap::new(),
            looks: BTreeMap::new(),
            syncs: BTreeMap::new(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// The bytes of `content` in a sector.
    pub fn bytes(&self, content: Content, sector: usize) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        let (op, place) = match content {
            Content::Zeros => return bytes,
            Content::Stamp(op) => (op, sector as u64),
            Content::Repeated(op) => (op, 1 << 63 | (sector % self.per_block) as u64),
        };
        let mut mixed = op.rotate_left(32) ^ place ^ MAGIC;
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            mixed = mixed.rotate_left(9).wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_add(i as u64);
            let value = [MAGIC, op, place].get(i).copied().unwrap_or(mixed);
            word.copy_from_slice(&value.to_be_bytes());
        }
        bytes
    }

    /// A write is submitted.
    pub fn submit_write(&mut self, op: OpId, sectors: Vec<Range<usize>>, content: Content) {
        let start = self.tick();
        for sector in sectors.iter().cloned().flatten() {
            // Ranges of one command may overlap; once is enough.
            if self.sectors[sector].last().is_some_and(|entry| entry.op == op) {
                continue;
            }
            self.sectors[sector].push(Entry {
                op,
                content,
                start,
                end: ALIVE,
                dead_at: ALIVE,
                done: false,
                durable: false,
                gone: false,
                settled: false,
                doubtful: false,
            });
        }
        self.writes.insert(op, Pending { start, sectors });
    }

    /// A write ended.
    pub fn end_write(&mut self, op: OpId, ending: Ending) {
        let now = self.tick();
        let Some(Pending { start, sectors }) = self.writes.remove(&op) else { return };
        let oldest_look = self.oldest_look();
        for sector in sectors.into_iter().flatten() {
            let entries = &mut self.sectors[sector];
            if ending == Ending::Refused {
                entries.retain(|entry| entry.op != op);
                continue;
            }
            for entry in entries.iter_mut() {
                if entry.op == op {
                    entry.end = now;
                    if let Ending::Done { durable } = ending {
                        entry.done = true;
                        entry.durable = durable;
                    }
                } else if let Ending::Done { durable } = ending
                    && entry.end < start
                {
                    entry.dead_at = entry.dead_at.min(now);
                    entry.gone |= durable;
                }
            }
            entries.retain(|entry| !entry.gone || entry.dead_at >= oldest_look);
        }
    }

    /// A command was aborted: it may have been done, in part or as a whole, and no more of it will
    /// be.
    pub fn abort(&mut self, op: OpId) {
        self.end_look(op);
        self.end_sync(op, false);
        self.end_write(op, Ending::Unknown);
    }

    fn oldest_look(&self) -> u64 {
        self.looks.values().copied().min().unwrap_or(ALIVE)
    }

    /// A command that reads data is submitted.
    pub fn submit_look(&mut self, op: OpId) {
        let now = self.tick();
        self.looks.insert(op, now);
    }

    /// It ended without data.
    pub fn end_look(&mut self, op: OpId) {
        self.looks.remove(&op);
    }

    /// It saw `bytes` from `first` on. An answer that is `stale` was given before the last power
    /// cut and came after it: it says nothing about what the cut left. Writes that `mix` with it
    /// show in any part of a sector while they run.
    ///
    /// # Errors
    /// A description of the fault.
    pub fn saw(
        &mut self,
        op: OpId,
        first: usize,
        bytes: &[u8],
        stale: bool,
        mix: impl Fn(OpId) -> bool,
    ) -> Result<(), String> {
        let now = self.tick();
        let start = self.looks.get(&op).copied().unwrap_or(now);
        for (i, seen) in bytes.chunks(SECTOR).enumerate() {
            let matches = match self.matches(op, start, first + i, seen) {
                Err(_) if self.is_mixed(op, start, first + i, seen, &mix) => continue,
                matches => matches?,
            };
            if !stale {
                self.learn(&matches, start, now, first + i);
            }
        }
        Ok(())
    }

    /// Entries that the bytes may come from: at least one.
    fn matches(&self, op: OpId, start: u64, sector: usize, seen: &[u8]) -> Result<Vec<usize>, String> {
        let matches: Vec<usize> = (0..self.sectors[sector].len())
            .filter(|at| {
                let entry = &self.sectors[sector][*at];
                entry.op != op && entry.dead_at > start && self.is(entry.content, sector, seen)
            })
            .collect();
        if matches.is_empty() { Err(self.explain(op, start, sector, seen)) } else { Ok(matches) }
    }

    /// Whether each byte may come from some entry, while a write that mixes with the look ran.
    fn is_mixed(&self, op: OpId, start: u64, sector: usize, seen: &[u8], mix: impl Fn(OpId) -> bool) -> bool {
        let entries = || self.sectors[sector].iter().filter(|entry| entry.op != op && entry.dead_at > start);
        let possible: Vec<_> = entries().map(|entry| self.bytes(entry.content, sector)).collect();
        entries().any(|entry| entry.end >= start && mix(entry.op))
            && seen.iter().enumerate().all(|(at, byte)| possible.iter().any(|bytes| bytes[at] == *byte))
    }

    /// Learns from a look: the entries seen are there, and those that they replaced are gone.
    fn learn(&mut self, matches: &[usize], start: u64, now: u64, sector: usize) {
        let last_cut = self.last_cut;
        let single = match *matches {
            [at] => Some(self.sectors[sector][at].clone()),
            _ => None,
        };
        let left = single.as_ref().is_some_and(|entry| entry.settled && entry.end <= last_cut);
        for (at, entry) in self.sectors[sector].iter_mut().enumerate() {
            if matches.contains(&at) {
                continue;
            }
            let replaced = entry.end < start || single.as_ref().is_some_and(|one| entry.end < one.start);
            if replaced {
                entry.dead_at = entry.dead_at.min(now);
            }
            if left && entry.settled {
                // The power cut left the entry that was seen, so it did not leave this one.
                entry.settled = false;
                if entry.end <= last_cut {
                    entry.gone = true;
                    entry.dead_at = entry.dead_at.min(now);
                }
            }
        }
    }

    fn is(&self, content: Content, sector: usize, seen: &[u8]) -> bool {
        match content {
            Content::Zeros => seen.iter().all(|byte| *byte == 0),
            Content::Stamp(op) | Content::Repeated(op) => {
                seen.get(8..16) == Some(&op.to_be_bytes()) && self.bytes(content, sector) == seen
            }
        }
    }

    fn explain(&self, op: OpId, start: u64, sector: usize, seen: &[u8]) -> String {
        let word = |at: usize| {
            seen.get(at * 8..at * 8 + 8).and_then(|w| w.try_into().ok()).map_or(0, u64::from_be_bytes)
        };
        let mut text = format!("op {op} saw in sector {sector} ");
        let _ = match word(0) {
            MAGIC if word(2) >> 63 == 1 => write!(text, "the repeated bytes of op {}", word(1)),
            MAGIC => write!(text, "the bytes of op {} for sector {}", word(1), word(2)),
            _ if seen.iter().all(|byte| *byte == 0) => write!(text, "zeros"),
            _ => write!(text, "bytes that nobody wrote, beginning {:02x?}", &seen[..seen.len().min(16)]),
        };
        let _ = write!(text, "; it was submitted at {start}, and there may be:");
        for entry in &self.sectors[sector] {
            let until = |at: u64| if at == ALIVE { "∞".to_owned() } else { at.to_string() };
            let _ = write!(
                text,
                " [{:?} {}..{} seen until {}{}{}{}]",
                entry.content,
                entry.start,
                until(entry.end),
                until(entry.dead_at),
                if entry.done { ", done" } else { "" },
                if entry.durable { ", durable" } else { "" },
                if entry.settled { ", left by a power cut perhaps" } else { "" },
            );
        }
        text
    }

    /// The probable content of a sector now.
    pub fn guess(&self, sector: usize) -> Content {
        let newest = self.sectors[sector].iter().rev().find(|entry| entry.dead_at == ALIVE && entry.done);
        newest.or(self.sectors[sector].last()).map_or(Content::Zeros, |entry| entry.content)
    }

    /// Whether a look was bound to find `expected` in the sectors from `first` on.
    pub fn had_to_see(&self, op: OpId, first: usize, expected: &[u8]) -> bool {
        let start = self.looks.get(&op).copied().unwrap_or(self.time);
        expected.chunks(SECTOR).enumerate().all(|(i, bytes)| {
            let sector = first + i;
            let mut possible = self.sectors[sector].iter().filter(|e| e.op != op && e.dead_at > start);
            possible.all(|entry| self.is(entry.content, sector, bytes))
        })
    }

    /// A command is submitted that promises to bring these sectors to the medium: SYNCHRONIZE
    /// CACHE, READ with FUA.
    pub fn submit_sync(&mut self, op: OpId, sectors: Range<usize>) {
        let now = self.tick();
        self.syncs.insert(op, (now, sectors));
    }

    /// It ended; `good` if it kept its promise.
    pub fn end_sync(&mut self, op: OpId, good: bool) {
        let Some((start, sectors)) = self.syncs.remove(&op).filter(|_| good) else { return };
        let oldest_look = self.oldest_look();
        for entries in &mut self.sectors[sectors] {
            let mut newest_start = 0;
            for entry in entries.iter_mut() {
                if entry.done && !entry.doubtful && entry.end < start {
                    entry.durable = true;
                    newest_start = newest_start.max(entry.start);
                }
            }
            for entry in entries.iter_mut() {
                entry.gone |= entry.end < newest_start;
            }
            entries.retain(|entry| !entry.gone || entry.dead_at >= oldest_look);
        }
    }

    /// Flushes succeed again after a failed one: writes that were not durable may have been
    /// dropped, though reads show them.
    pub fn failed_flush_forgiven(&mut self) {
        for entry in self.sectors.iter_mut().flatten().filter(|entry| !entry.durable) {
            entry.doubtful = true;
        }
    }

    /// The system has forgotten pages that a failed flush has dropped: reads may find the content
    /// of the medium.
    pub fn cache_dropped(&mut self) {
        let now = self.tick();
        for entry in self.sectors.iter_mut().flatten().filter(|entry| !entry.gone) {
            entry.dead_at = ALIVE;
            entry.done &= entry.durable;
            if entry.end != ALIVE {
                entry.end = entry.end.min(now);
            }
        }
    }

    /// The power is cut: writes that were not durable may be lost.
    pub fn power_cut(&mut self) {
        let now = self.tick();
        self.last_cut = now;
        for entry in self.sectors.iter_mut().flatten().filter(|entry| !entry.gone) {
            entry.settled = true;
            entry.dead_at = ALIVE;
            entry.done &= entry.durable;
            if entry.end != ALIVE {
                entry.end = entry.end.min(now);
            }
        }
    }

    /// Entries kept, for the proof that the books stay small.
    pub fn entries(&self) -> usize {
        self.sectors.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(oracle: &mut Oracle, op: OpId, durable: bool) {
        oracle.submit_write(op, vec![Range { start: 3, end: 4 }], Content::Stamp(op));
        oracle.end_write(op, Ending::Done { durable });
    }

    fn see(oracle: &mut Oracle, op: OpId, content: Content) -> Result<(), String> {
        oracle.submit_look(op);
        let bytes = oracle.bytes(content, 3);
        let result = oracle.saw(op, 3, &bytes, false, |_| false);
        oracle.end_look(op);
        result
    }

    #[test]
    fn a_read_sees_the_write_that_ended_last() {
        let mut oracle = Oracle::new(8, 1);
        write(&mut oracle, 1, false);
        write(&mut oracle, 2, false);
        assert!(see(&mut oracle, 3, Content::Stamp(1)).is_err());
        assert!(see(&mut oracle, 4, Content::Zeros).is_err());
        assert!(see(&mut oracle, 5, Content::Repeated(2)).is_err());
        see(&mut oracle, 6, Content::Stamp(2)).unwrap();
    }

    #[test]
    fn writes_that_overlap_have_no_order_until_one_is_seen() {
        let mut oracle = Oracle::new(8, 1);
        for op in [1, 2] {
            oracle.submit_write(op, vec![Range { start: 0, end: 8 }], Content::Stamp(op));
        }
        see(&mut oracle, 10, Content::Zeros).unwrap();
        oracle.end_write(1, Ending::Done { durable: false });
        see(&mut oracle, 11, Content::Stamp(1)).unwrap();
        see(&mut oracle, 12, Content::Stamp(2)).unwrap();
        assert!(see(&mut oracle, 13, Content::Zeros).is_err());
        assert!(see(&mut oracle, 14, Content::Stamp(1)).is_err(), "the second has replaced it");
    }

    #[test]
    fn an_aborted_write_may_have_happened_until_something_newer_did() {
        let mut oracle = Oracle::new(8, 1);
        write(&mut oracle, 1, false);
        oracle.submit_write(2, vec![Range { start: 3, end: 4 }], Content::Stamp(2));
        oracle.end_write(2, Ending::Unknown);
        let mut other =
            Oracle { sectors: oracle.sectors.clone(), writes: BTreeMap::new(), ..Oracle::new(8, 1) };
        other.time = oracle.time;
        see(&mut oracle, 3, Content::Stamp(1)).unwrap();
        assert!(see(&mut oracle, 4, Content::Stamp(2)).is_err(), "it had not happened, and cannot any more");
        see(&mut other, 3, Content::Stamp(2)).unwrap();
        assert!(see(&mut other, 4, Content::Stamp(1)).is_err());
        write(&mut other, 5, false);
        assert!(see(&mut other, 6, Content::Stamp(2)).is_err());
    }

    #[test]
    fn a_power_cut_takes_back_what_was_not_durable_and_nothing_else() {
        for seen in [Content::Stamp(1), Content::Stamp(2)] {
            let mut oracle = Oracle::new(8, 1);
            write(&mut oracle, 1, true);
            write(&mut oracle, 2, false);
            oracle.power_cut();
            assert!(see(&mut oracle, 3, Content::Zeros).is_err());
            see(&mut oracle, 4, seen).unwrap();
            for other in [Content::Stamp(1), Content::Stamp(2)].into_iter().filter(|c| *c != seen) {
                assert!(see(&mut oracle, 5, other).is_err());
                oracle.power_cut();
                assert!(
                    see(&mut oracle, 6, other).is_err(),
                    "what is seen after a power cut is on the medium"
                );
            }
        }
    }

    #[test]
    fn a_sync_makes_durable_what_had_ended_when_it_was_submitted() {
        let mut oracle = Oracle::new(8, 1);
        write(&mut oracle, 1, false);
        oracle.submit_sync(2, 0..8);
        write(&mut oracle, 3, false);
        oracle.end_sync(2, true);
        oracle.power_cut();
        assert!(see(&mut oracle, 4, Content::Zeros).is_err());
        let mut other = Oracle { sectors: oracle.sectors.clone(), ..Oracle::new(8, 1) };
        (other.time, other.last_cut) = (oracle.time, oracle.last_cut);
        see(&mut oracle, 5, Content::Stamp(1)).unwrap();
        see(&mut other, 5, Content::Stamp(3)).unwrap();
    }

    #[test]
    fn a_look_is_mixed_with_writes_that_run_meanwhile_and_no_others() {
        let mut oracle = Oracle::new(8, 1);
        write(&mut oracle, 1, false);
        oracle.submit_write(2, vec![Range { start: 3, end: 4 }], Content::Stamp(2));
        let mut bytes = oracle.bytes(Content::Stamp(2), 3);
        bytes[200..].copy_from_slice(&oracle.bytes(Content::Stamp(1), 3)[200..]);
        let mut mixes = |mix: OpId, bytes: &[u8]| {
            oracle.submit_look(9);
            oracle.saw(9, 3, bytes, false, |op| op == mix).is_ok()
        };
        assert!(mixes(2, &bytes) && !mixes(7, &bytes));
        bytes[300] ^= 1;
        assert!(!mixes(2, &bytes), "a byte that nobody wrote");
    }

    #[test]
    fn a_refused_write_must_not_be_seen() {
        let mut oracle = Oracle::new(8, 1);
        oracle.submit_write(1, vec![Range { start: 3, end: 4 }], Content::Stamp(1));
        oracle.end_write(1, Ending::Refused);
        assert!(see(&mut oracle, 2, Content::Stamp(1)).is_err());
        oracle.submit_look(3);
        assert!(oracle.had_to_see(3, 3, &[0; SECTOR]));
    }
}
