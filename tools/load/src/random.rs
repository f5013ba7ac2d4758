//! Random numbers for addresses and mixes: fast, good enough to spread I/Os, the same for the same
//! seed. Never for secrets.

/// A xorshift64* generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins at `seed`; streams of one seed differ.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(1))) | 1)
    }

    #[inline]
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(n)) >> 64) as u64
    }

    /// A number from 0 to below 1.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        (self.any() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The finalizer of SplitMix64: a bijection that leaves no bit where it was.
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(7, 0);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.fraction()));
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!((random.below(0), random.below(1)), (0, 0));
    }

    #[test]
    fn a_seed_repeats_itself_and_its_streams_differ() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.any(), random.any(), random.any()]
        };
        assert_eq!(take(1, 2), take(1, 2));
        assert_ne!(take(1, 2), take(1, 3));
        assert_ne!(take(1, 2), take(2, 2));
    }
}
