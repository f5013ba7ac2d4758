//! Random numbers of a seed.

use std::ops::Range;

/// A stream of random numbers (SplitMix64): the same for the same seed, everywhere and for ever.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5354_4147_5349_4d00)
    }

    /// The next number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `range`; its start, if the range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start);
        if width == 0 { range.start } else { range.start + self.bits() % width }
    }

    /// True `per_million` times in a million.
    pub fn happens(&mut self, per_million: u64) -> bool {
        self.bits() % 1_000_000 < per_million
    }
}
