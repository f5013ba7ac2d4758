//! The only source of randomness. Every decision of a run comes from its seed through here, in an
//! order that does not depend on the machine.

use backing::model::Random;

/// A generator for the simulator's decisions.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// A generator of its own for one part of the world, so that one part's use does not change
    /// another's numbers.
    pub fn fork(&mut self) -> Self {
        Self(Random::new(self.0.bits()))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// An index below `n`, or 0 if `n` is 0.
    pub fn index(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high.saturating_sub(low) + 1)
    }

    /// True `per_mille` times of a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.0.below(1000) < per_mille
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
