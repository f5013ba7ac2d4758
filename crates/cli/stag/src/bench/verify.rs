//! Checks whether a unit keeps its data: stamps written blocks, and compares read blocks with the
//! acknowledged writes.

use std::fmt;

use runtime::BufMut;

use super::generations::{Expected, Generations};
use super::stamp::{self, Found};

/// A block with wrong content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub lba: u64,
    /// The oldest and the newest generation that it may have.
    pub expected: (u32, u32),
    pub found: Found,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (oldest, newest) = self.expected;
        write!(f, "LBA {}: expected generation {oldest}", self.lba)?;
        if newest > oldest {
            write!(f, " to {newest} (those after {oldest} were not acknowledged)")?;
        }
        match &self.found {
            Found::Generation(found) if *found < oldest => {
                write!(f, ", found {found}: an acknowledged write was lost")
            }
            Found::Generation(found) => write!(f, ", found {found}, which was never sent"),
            Found::OtherRun => {
                f.write_str(", found what an earlier run wrote: an acknowledged write was lost")
            }
            Found::OtherAddress { lba, generation } => {
                write!(f, ", found generation {generation} of LBA {lba}: data at the wrong place")
            }
            Found::Corrupt { generation, at } => {
                write!(f, ", found {generation} with a wrong byte at {at}: the block is corrupt")
            }
            Found::NoStamp { zeros: true } => f.write_str(", found zeros: an acknowledged write was lost"),
            Found::NoStamp { zeros: false } => f.write_str(", found bytes that were never written there"),
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks that were compared with their stamp.
    pub blocks: u64,
    /// Those of them that are wrong.
    pub wrong: Vec<Wrong>,
}

/// Most unacknowledged generations that a block may be a mixture of.
const MIXED: u32 = 8;

/// The expected content of a part of a unit.
#[derive(Debug)]
pub struct Verifier {
    run: u64,
    block_len: usize,
    generations: Generations,
}

impl Verifier {
    /// For `places` of a unit with blocks of `block_len` bytes, in the run called `run`.
    pub fn new(run: u64, block_len: u32, places: usize) -> Self {
        Self { run, block_len: (block_len as usize).max(1), generations: Generations::new(places) }
    }

    /// See [`Generations::begin_write`].
    pub fn begin_write(&mut self, place: u64) -> Option<u32> {
        self.generations.begin_write(place)
    }

    /// See [`Generations::end_write`].
    pub fn end_write(&mut self, place: u64, acknowledged: bool) {
        self.generations.end_write(place, acknowledged);
    }

    /// See [`Generations::begin_read`].
    pub fn begin_read(&self, place: u64) -> u32 {
        self.generations.begin_read(place)
    }

    /// See [`Generations::is_known`].
    pub fn is_known(&self, place: u64) -> bool {
        self.generations.is_known(place)
    }

    /// Fills blocks from `lba` on.
    pub fn stamp(&self, data: &mut BufMut, lba: u64, generation: u32) {
        for (lba, block) in (lba..).zip(data.chunks_mut(self.block_len)) {
            stamp::write(block, self.run, lba, generation);
        }
    }

    /// Whether a block is a permitted mixture of generations: all but the first were in flight, or
    /// never acknowledged.
    fn is_beside_a_write(&self, block: &[u8], lba: u64, oldest: u32, newest: u32) -> bool {
        // If many were never acknowledged, only the last ones count.
        let from = newest.saturating_sub(MIXED).max(oldest);
        let generations = std::iter::once(oldest).chain(from..=newest);
        newest > oldest && stamp::is_mixture(block, self.run, lba, generations)
    }

    /// Checks blocks from `lba` on. The read of `place` that returned them began when `oldest` was
    /// the acknowledged generation.
    pub fn check(&self, data: &[u8], place: u64, lba: u64, oldest: u32) -> Checked {
        let Expected::From(oldest, newest) = self.generations.end_read(place, oldest) else {
            return Checked::default();
        };
        let mut checked = Checked::default();
        for (lba, block) in (lba..).zip(data.chunks(self.block_len)) {
            checked.blocks += 1;
            let found = stamp::read(block, self.run, lba);
            let right = matches!(found, Found::Generation(g) if (oldest..=newest).contains(&g));
            if !right && !self.is_beside_a_write(block, lba, oldest, newest) {
                checked.wrong.push(Wrong { lba, expected: (oldest, newest), found });
            }
        }
        checked
    }
}

#[cfg(test)]
mod tests {
    use runtime::pool;

    use super::*;

    fn written(verifier: &mut Verifier, place: u64, acknowledged: bool) -> BufMut {
        let generation = verifier.begin_write(place).unwrap();
        let mut data = pool::alloc(1024).unwrap();
        data.set_len(1024);
        verifier.stamp(&mut data, place * 2, generation);
        verifier.end_write(place, acknowledged);
        data
    }

    #[test]
    fn what_was_acknowledged_is_right_and_what_was_there_before_is_named() {
        let mut verifier = Verifier::new(1, 512, 4);
        let old = written(&mut verifier, 3, true);
        let new = written(&mut verifier, 3, true);
        let oldest = verifier.begin_read(3);
        assert_eq!(verifier.check(&new, 3, 6, oldest), Checked { blocks: 2, wrong: vec![] });
        let wrong = verifier.check(&old, 3, 6, oldest).wrong;
        assert_eq!(wrong.len(), 2);
        assert_eq!(
            wrong[1].to_string(),
            "LBA 7: expected generation 2, found 1: an acknowledged write was lost"
        );
    }

    #[test]
    fn a_write_that_was_not_acknowledged_may_be_there_or_not() {
        let mut verifier = Verifier::new(1, 512, 1);
        let first = written(&mut verifier, 0, true);
        let second = written(&mut verifier, 0, false);
        let oldest = verifier.begin_read(0);
        assert!(verifier.check(&first, 0, 0, oldest).wrong.is_empty());
        assert!(verifier.check(&second, 0, 0, oldest).wrong.is_empty());
        let wrong = &verifier.check(&[0; 512], 0, 0, oldest).wrong[0];
        assert!(wrong.to_string().contains("expected generation 1 to 2"), "{wrong}");
        assert!(wrong.to_string().ends_with("found zeros: an acknowledged write was lost"), "{wrong}");
    }

    #[test]
    fn a_block_of_two_generations_is_right_beside_a_write_and_wrong_after_it() {
        let mut verifier = Verifier::new(1, 512, 1);
        let mut data = written(&mut verifier, 0, true);
        let generation = verifier.begin_write(0).unwrap();
        let oldest = verifier.begin_read(0);
        let mut new = pool::alloc(1024).unwrap();
        new.set_len(1024);
        verifier.stamp(&mut new, 0, generation);
        data[320..].copy_from_slice(&new[320..]);
        assert!(verifier.check(&data, 0, 0, oldest).wrong.is_empty());
        data[700] ^= 1;
        assert_eq!(verifier.check(&data, 0, 0, oldest).wrong.len(), 1);
        data[700] ^= 1;
        verifier.end_write(0, true);
        // The read that began beside the write may still have found both; the next one may not.
        assert!(verifier.check(&data, 0, 0, oldest).wrong.is_empty());
        assert_eq!(verifier.check(&data, 0, 0, verifier.begin_read(0)).wrong.len(), 1);
    }

    #[test]
    fn what_nobody_wrote_is_not_judged() {
        let verifier = Verifier::new(1, 512, 1);
        assert_eq!(verifier.check(&[7; 512], 0, 0, verifier.begin_read(0)), Checked::default());
    }

    #[test]
    fn every_way_to_be_wrong_is_a_sentence() {
        for (found, says) in [
            (Found::OtherRun, "an earlier run"),
            (Found::OtherAddress { lba: 9, generation: 3 }, "of LBA 9"),
            (Found::Corrupt { generation: 5, at: 40 }, "wrong byte at 40"),
            (Found::NoStamp { zeros: false }, "never written there"),
            (Found::Generation(9), "never sent"),
        ] {
            let wrong = Wrong { lba: 8, expected: (5, 5), found };
            assert!(wrong.to_string().contains(says), "{wrong}");
        }
    }
}
