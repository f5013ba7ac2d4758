//! The bookkeeping of a verifying writer: the contents that each block may have after a crash.
//!
//! Blocks are stamped with their address and a generation. The writer records every write when it
//! is issued and when it is acknowledged, and every sync. After a crash the ledger judges the
//! medium. A block must hold one whole generation issued for it, not older than the newest one
//! acknowledged as durable. It does no I/O, so the same ledger serves a store, a simulator and a
//! target on the network.

use std::fmt;

/// Number of a write; 0 stands for zeros: a block that was never written, or was zeroed.
pub type Generation = u64;

const MAGIC: u64 = u64::from_be_bytes(*b"StagMark");
/// Bytes per stamp: no medium tears them.
const SECTOR: usize = 512;

/// Fills `block` (a multiple of 512 bytes) with stamps of `generation` for the block at `lba`.
pub fn stamp(lba: u64, generation: Generation, block: &mut [u8]) {
    for (i, sector) in block.chunks_mut(SECTOR).enumerate() {
        let words = [MAGIC, lba, generation, i as u64];
        let mut mixed = lba.rotate_left(32) ^ generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64;
        for (at, word) in sector.chunks_mut(8).enumerate() {
            let value = words.get(at).copied().unwrap_or_else(|| {
                mixed = mixed.rotate_left(7).wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_add(at as u64);
                mixed
            });
            word.copy_from_slice(&value.to_be_bytes()[..word.len()]);
        }
    }
}

/// Reads the generation of a block, checking every byte of it.
///
/// # Errors
/// The damage of the block.
pub fn read_stamp(lba: u64, block: &[u8]) -> Result<Generation, Damage> {
    match read_stamps(lba, block)?[..] {
        [] => Ok(0),
        [one] => Ok(one),
        [first, second, ..] => Err(Damage::Torn(first, second)),
    }
}

/// The generations in a block, each once.
fn read_stamps(lba: u64, block: &[u8]) -> Result<Vec<Generation>, Damage> {
    let mut found = Vec::with_capacity(1);
    for (i, sector) in block.chunks(SECTOR).enumerate() {
        let generation = sector_stamp(lba, i, sector)?;
        if !found.contains(&generation) {
            found.push(generation);
        }
    }
    Ok(found)
}

fn sector_stamp(lba: u64, index: usize, sector: &[u8]) -> Result<Generation, Damage> {
    if sector.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let word = |at: usize| {
        sector.get(at * 8..at * 8 + 8).and_then(|w| w.try_into().ok()).map_or(0, u64::from_be_bytes)
    };
    if word(0) != MAGIC || word(3) != index as u64 {
        return Err(Damage::Garbage);
    }
    if word(1) != lba {
        return Err(Damage::Misplaced(word(1)));
    }
    let generation = word(2);
    let mut expected = vec![0; (index + 1) * SECTOR];
    stamp(lba, generation, &mut expected);
    if expected[index * SECTOR..] == *sector { Ok(generation) } else { Err(Damage::Garbage) }
}

/// The damage of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The bytes are not a stamp.
    #[error("its bytes were never written")]
    Garbage,
    /// The block holds another block's bytes.
    #[error("it holds the bytes of block {0}")]
    Misplaced(u64),
    /// The block holds parts of two writes.
    #[error("it holds parts of generations {0} and {1}")]
    Torn(Generation, Generation),
}

/// A block with wrong content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The block does not hold the data of any write.
    #[error("block {lba}: {damage}")]
    Damaged {
        lba: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// A write that was acknowledged as durable is gone.
    #[error("block {lba}: generation {durable} was acknowledged as durable, but {found} is there")]
    Lost {
        lba: u64,
        /// The oldest generation allowed.
        durable: Generation,
        found: Generation,
    },
    /// A generation that was never written to the block, or that cannot return.
    #[error("block {lba}: generation {found} is there, which it cannot hold any more (newest {newest})")]
    Unexpected {
        lba: u64,
        found: Generation,
        /// The newest generation issued.
        newest: Generation,
    },
}

/// The allowed contents of all blocks of a medium.
pub struct Ledger {
    blocks: Vec<Block>,
    next_generation: Generation,
    acknowledged: u64,
}

#[derive(Clone, Default)]
struct Block {
    /// The content of the medium, unless one of `newer` is there.
    durable: Generation,
    /// Issued after `durable`, oldest first.
    newer: Vec<Issued>,
}

#[derive(Clone, Copy)]
struct Issued {
    generation: Generation,
    /// The block's content after this write: the generation, or 0 for zeros.
    content: Generation,
    /// Number of its acknowledgement.
    acknowledged: Option<u64>,
}

/// Identifies an issued sync: it covers the writes acknowledged before.
#[derive(Clone, Copy, Debug)]
pub struct SyncToken(u64);

impl Ledger {
    /// A ledger for a medium of `blocks` blocks of zeros.
    pub fn new(blocks: usize) -> Self {
        Self { blocks: vec![Block::default(); blocks], next_generation: 0, acknowledged: 0 }
    }

    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Records a write of `count` blocks from `lba` on, just before it is issued. Returns the
    /// generation for its stamps. Only one write per block may be in flight.
    pub fn issue(&mut self, lba: u64, count: usize) -> Generation {
        self.issue_content(lba, count, |generation| generation)
    }

    /// Like [`Self::issue`] for a command that zeroes the blocks (WRITE SAME, or UNMAP of a unit
    /// that reads zeros afterwards).
    pub fn issue_zeros(&mut self, lba: u64, count: usize) -> Generation {
        self.issue_content(lba, count, |_| 0)
    }

    fn issue_content(&mut self, lba: u64, count: usize, of: impl Fn(Generation) -> Generation) -> Generation {
        self.next_generation += 1;
        let generation = self.next_generation;
        for block in self.range(lba, count) {
            block.newer.push(Issued { generation, content: of(generation), acknowledged: None });
        }
        generation
    }

    /// Records the acknowledgement of a write; `durable` if it promised durability.
    pub fn acknowledge(&mut self, lba: u64, count: usize, generation: Generation, durable: bool) {
        self.acknowledged += 1;
        let now = self.acknowledged;
        for block in self.range(lba, count) {
            if durable {
                block.settle(|issued| issued.generation == generation);
            } else if let Some(issued) = block.newer.iter_mut().find(|issued| issued.generation == generation)
            {
                issued.acknowledged = Some(now);
            }
        }
    }

    /// Records a sync, just before it is issued.
    pub fn issue_sync(&self) -> SyncToken {
        SyncToken(self.acknowledged)
    }

    /// Records the acknowledgement of a sync.
    pub fn acknowledge_sync(&mut self, token: SyncToken) {
        for block in &mut self.blocks {
            block.settle(|issued| issued.acknowledged.is_some_and(|at| at <= token.0));
        }
    }

    /// The newest generation issued.
    pub fn newest(&self) -> Generation {
        self.next_generation
    }

    /// Judges the bytes found at `lba`: after a crash, or at any time without a write in flight to
    /// it. Returns the generation found, or `None` if the crash tore the block between allowed
    /// generations. Records the result: the block cannot go back before it, unless it was not yet
    /// `durable`. A killed process leaves the page cache; a power cut leaves only the medium.
    ///
    /// # Errors
    /// The [`Violation`], if there is one.
    pub fn check(&mut self, lba: u64, bytes: &[u8], durable: bool) -> Result<Option<Generation>, Violation> {
        let found = read_stamps(lba, bytes).map_err(|damage| Violation::Damaged { lba, damage })?;
        let block = usize::try_from(lba).ok().and_then(|at| self.blocks.get_mut(at));
        let Some(block) = block else {
            return Err(Violation::Unexpected { lba, found: found.first().copied().unwrap_or(0), newest: 0 });
        };
        for &found in &found {
            if found != block.durable && !block.newer.iter().any(|issued| issued.content == found) {
                let newest = block.newer.last().map_or(block.durable, |issued| issued.generation);
                return Err(match found < block.durable {
                    true => Violation::Lost { lba, durable: block.durable, found },
                    false => Violation::Unexpected { lba, found, newest },
                });
            }
        }
        // The crash ended all writes in flight; overwritten ones cannot return.
        block.newer.retain(|issued| found.contains(&issued.content));
        for issued in &mut block.newer {
            issued.acknowledged.get_or_insert(self.acknowledged);
        }
        match found[..] {
            [one] => {
                if durable {
                    block.durable = one;
                    block.newer.clear();
                }
                Ok(Some(one))
            }
            // The block stays torn between these until it is written again.
            _ => Ok(None),
        }
    }

    fn range(&mut self, lba: u64, count: usize) -> std::slice::IterMut<'_, Block> {
        let end = self.blocks.len();
        let start = usize::try_from(lba).map_or(end, |at| at.min(end));
        self.blocks[start..start.saturating_add(count).min(end)].iter_mut()
    }
}

impl Block {
    /// Marks the newest write for which `is` returns true as durable.
    fn settle(&mut self, is: impl Fn(&Issued) -> bool) {
        if let Some(at) = self.newer.iter().rposition(is) {
            self.durable = self.newer[at].content;
            self.newer.drain(..=at);
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("blocks", &self.blocks.len())
            .field("writes", &self.next_generation)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(lba: u64, generation: Generation) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        if generation > 0 {
            stamp(lba, generation, &mut bytes);
        }
        bytes
    }

    #[test]
    fn a_stamp_tells_every_damage() {
        assert_eq!(read_stamp(7, &block(7, 3)), Ok(3));
        assert_eq!(read_stamp(7, &[0; 4096]), Ok(0));
        assert_eq!(read_stamp(8, &block(7, 3)), Err(Damage::Misplaced(7)));
        let torn = [&block(7, 3)[..2048], &block(7, 4)[2048..]].concat();
        assert_eq!(read_stamp(7, &torn), Err(Damage::Torn(3, 4)));
        for at in [0, 100, 511, 512, 4095] {
            let mut bytes = block(7, 3);
            bytes[at] ^= 1;
            assert_eq!(read_stamp(7, &bytes), Err(Damage::Garbage), "{at}");
        }
    }

    #[test]
    fn what_was_acknowledged_as_durable_must_be_there() {
        let mut ledger = Ledger::new(10);
        let first = ledger.issue(2, 3);
        ledger.acknowledge(2, 3, first, true);
        assert_eq!(ledger.check(2, &block(2, first), true), Ok(Some(first)));
        assert_eq!(
            ledger.check(4, &block(4, 0), true),
            Err(Violation::Lost { lba: 4, durable: first, found: 0 })
        );
        assert_eq!(ledger.check(5, &block(5, 0), true), Ok(Some(0)));
        assert!(matches!(ledger.check(5, &block(5, first), true), Err(Violation::Unexpected { .. })));
        assert!(matches!(ledger.check(10, &block(10, 0), true), Err(Violation::Unexpected { .. })));
    }

    #[test]
    fn what_was_not_synced_may_be_there_or_not() {
        let fresh = || {
            let mut ledger = Ledger::new(1);
            let first = ledger.issue(0, 1);
            ledger.acknowledge(0, 1, first, false);
            let second = ledger.issue(0, 1);
            (ledger, first, second)
        };
        for found in 0..=2 {
            let (mut ledger, _, _) = fresh();
            assert_eq!(ledger.check(0, &block(0, found), true), Ok(Some(found)));
            // Afterwards no other generation is allowed.
            for other in (0..=2).filter(|other| *other != found) {
                assert!(ledger.check(0, &block(0, other), true).is_err(), "{other} after {found}");
            }
        }
        let (mut ledger, first, second) = fresh();
        ledger.check(0, &block(0, second), false).unwrap();
        assert!(ledger.check(0, &block(0, first), true).is_err());
        assert_eq!(ledger.check(0, &block(0, 0), true), Ok(Some(0)), "seen in a cache that a power cut took");
    }

    #[test]
    fn a_sync_covers_what_was_acknowledged_before_it_was_issued() {
        let mut ledger = Ledger::new(3);
        let first = ledger.issue(0, 1);
        ledger.acknowledge(0, 1, first, false);
        let on_its_way = ledger.issue(1, 1);
        let token = ledger.issue_sync();
        ledger.acknowledge(1, 1, on_its_way, false);
        let newer = ledger.issue(0, 1);
        ledger.acknowledge(0, 1, newer, false);
        ledger.acknowledge_sync(token);
        assert_eq!(ledger.check(1, &block(1, 0), true), Ok(Some(0)));
        assert!(matches!(ledger.check(0, &block(0, 0), true), Err(Violation::Lost { .. })));
        assert_eq!(ledger.check(0, &block(0, first), true), Ok(Some(first)));
    }

    #[test]
    fn zeros_are_a_content_like_any_other() {
        let mut ledger = Ledger::new(1);
        let first = ledger.issue(0, 1);
        ledger.acknowledge(0, 1, first, true);
        assert!(matches!(ledger.check(0, &block(0, 0), true), Err(Violation::Lost { .. })));
        let zeros = ledger.issue_zeros(0, 1);
        assert_eq!(ledger.check(0, &block(0, first), false), Ok(Some(first)));
        let again = ledger.issue_zeros(0, 1);
        ledger.acknowledge(0, 1, again, true);
        assert!(zeros < again);
        assert!(ledger.check(0, &block(0, first), true).is_err());
        assert_eq!(ledger.check(0, &block(0, 0), true), Ok(Some(0)));
    }

    #[test]
    fn a_crash_may_tear_what_was_not_durable_and_nothing_else() {
        let mut ledger = Ledger::new(1);
        let first = ledger.issue(0, 1);
        ledger.acknowledge(0, 1, first, true);
        let second = ledger.issue(0, 1);
        let torn = |a, b| [&block(0, a)[..512], &block(0, b)[512..]].concat();
        assert_eq!(ledger.check(0, &torn(second, first), true), Ok(None));
        assert!(matches!(ledger.check(0, &torn(0, second), true), Err(Violation::Lost { .. })));
        ledger.acknowledge(0, 1, second, true);
        assert!(matches!(ledger.check(0, &torn(second, first), true), Err(Violation::Lost { .. })));
    }
}
