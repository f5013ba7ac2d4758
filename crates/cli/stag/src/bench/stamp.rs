//! The content of a verified block: run, LBA and generation, and bytes that follow from these.
//!
//! A block is 512 bytes or more, little-endian: 8 bytes of magic, 8 of the run, 8 of the LBA, 4 of
//! the generation, 4 of zeros. Words that follow from run, LBA and generation fill the rest.

use load::random::mix;

const MAGIC: u64 = u64::from_le_bytes(*b"StagVrfy");
const HEADER: usize = 32;

/// The content of a block that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The block, as it was written in this generation.
    Generation(u32),
    /// A block of another run.
    OtherRun,
    /// A block of another LBA.
    OtherAddress { lba: u64, generation: u32 },
    /// A stamp, and then a wrong byte.
    Corrupt {
        /// The generation that the stamp tells.
        generation: u32,
        /// The first wrong byte.
        at: usize,
    },
    /// Nothing that this tool wrote; all zeros if true.
    NoStamp {
        /// Whether all bytes are zeros.
        zeros: bool,
    },
}

fn word(run: u64, lba: u64, generation: u32) -> u64 {
    mix(run ^ mix(lba ^ mix(generation.into())))
}

#[inline]
fn filler(word: u64, index: usize) -> [u8; 8] {
    let x = word.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
}

pub fn write(block: &mut [u8], run: u64, lba: u64, generation: u32) {
    let Some((header, rest)) = block.split_at_mut_checked(HEADER) else { return };
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..16].copy_from_slice(&run.to_le_bytes());
    header[16..24].copy_from_slice(&lba.to_le_bytes());
    header[24..28].copy_from_slice(&generation.to_le_bytes());
    header[28..].fill(0);
    let word = word(run, lba, generation);
    for (index, bytes) in rest.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&filler(word, index)[..bytes.len()]);
    }
}

/// Reads a block that should be `lba` of `run`.
pub fn read(block: &[u8], run: u64, lba: u64) -> Found {
    let number =
        |at: usize| block.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    if number(0) != MAGIC || block.len() < HEADER {
        return Found::NoStamp { zeros: block.iter().all(|byte| *byte == 0) };
    }
    let generation = number(24) as u32;
    if number(8) != run {
        return Found::OtherRun;
    }
    if number(16) != lba {
        return Found::OtherAddress { lba: number(16), generation };
    }
    if number(24) >> 32 != 0 {
        return Found::Corrupt { generation, at: 28 };
    }
    let word = word(run, lba, generation);
    for (index, bytes) in block[HEADER..].chunks(8).enumerate() {
        let right = filler(word, index);
        if *bytes != right[..bytes.len()] {
            let within = bytes.iter().zip(right).position(|(found, right)| *found != right).unwrap_or(0);
            return Found::Corrupt { generation, at: HEADER + index * 8 + within };
        }
    }
    Found::Generation(generation)
}

/// Whether each byte of a block is that byte of one of these generations. A read beside a write may
/// find such a mixture, since nothing orders the two.
pub fn is_mixture(block: &[u8], run: u64, lba: u64, generations: impl Iterator<Item = u32>) -> bool {
    let mut right = vec![false; block.len()];
    let mut written = vec![0; block.len()];
    for generation in generations {
        write(&mut written, run, lba, generation);
        for (right, (found, written)) in right.iter_mut().zip(block.iter().zip(&written)) {
            *right |= found == written;
        }
    }
    block.len() > HEADER && right.into_iter().all(|right| right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_as_it_was_written() {
        for len in [512, 520, 4096] {
            let mut block = vec![0xaa; len];
            write(&mut block, 1, 2, 3);
            assert_eq!(read(&block, 1, 2), Found::Generation(3));
            assert_eq!(read(&block, 9, 2), Found::OtherRun);
            assert_eq!(read(&block, 1, 7), Found::OtherAddress { lba: 2, generation: 3 });
        }
    }

    #[test]
    fn every_single_flipped_bit_is_noticed() {
        let mut block = vec![0; 512];
        write(&mut block, 0x1234, 77, 5);
        for at in 0..512 {
            for bit in 0..8 {
                block[at] ^= 1 << bit;
                assert_ne!(read(&block, 0x1234, 77), Found::Generation(5), "byte {at}");
                block[at] ^= 1 << bit;
            }
        }
        block[300] ^= 1;
        assert_eq!(read(&block, 0x1234, 77), Found::Corrupt { generation: 5, at: 300 });
    }

    #[test]
    fn what_is_no_stamp_is_told_so() {
        assert_eq!(read(&[0; 512], 1, 2), Found::NoStamp { zeros: true });
        assert_eq!(read(&[1; 512], 1, 2), Found::NoStamp { zeros: false });
        assert_eq!(read(&[], 1, 2), Found::NoStamp { zeros: true });
    }

    #[test]
    fn halves_of_two_generations_are_corrupt() {
        let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
        write(&mut old, 1, 2, 3);
        write(&mut new, 1, 2, 4);
        new[2048..].copy_from_slice(&old[2048..]);
        assert_eq!(read(&new, 1, 2), Found::Corrupt { generation: 4, at: 2048 });
    }

    #[test]
    fn a_mixture_has_no_byte_of_any_other_generation() {
        let (mut old, mut new) = (vec![0; 512], vec![0; 512]);
        write(&mut old, 1, 2, 3);
        write(&mut new, 1, 2, 4);
        old[320..].copy_from_slice(&new[320..]);
        assert!(is_mixture(&old, 1, 2, 3..=4));
        assert!(!is_mixture(&old, 1, 2, 3..=3) && !is_mixture(&old, 1, 9, 3..=4));
        let (a, b) = (old[400], 0x55);
        old[400] ^= b;
        assert!(!is_mixture(&old, 1, 2, 3..=4));
        old[400] = a;
        assert!(is_mixture(&old, 1, 2, 3..=4));
        assert!(!is_mixture(&[], 1, 2, 3..=4));
    }
}
