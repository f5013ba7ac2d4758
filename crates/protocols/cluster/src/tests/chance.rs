//! The seed's numbers: SplitMix64.

use std::time::Duration;

pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Whether it happens, in `percent` of cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Microseconds from `from` to `to`.
    pub fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.next() % (to - from + 1))
    }

    /// Milliseconds from `from` to `to`.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        self.micros(from * 1_000, to * 1_000)
    }
}
