//! Numbers by Zipf's law: the k-th most popular of n comes up in proportion to 1/k^θ, for any n
//! without a table.
//!
//! By rejection-inversion (W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates
//! from monotone discrete distributions", 1996): the area under 1/x^θ is inverted, and the little
//! that lies beyond the steps is rejected.

use crate::random::{Random, mix};

/// A Zipf distribution over the numbers 0 to n-1.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    /// H(1.5) - 1: where the area begins.
    low: f64,
    /// H(n + 0.5): where it ends.
    high: f64,
    /// Below this distance no test is needed.
    safe: f64,
    scatter: Scatter,
}

impl Zipf {
    /// A distribution over `n` numbers, at least 1, with the exponent `theta`, more than 0. `seed`
    /// decides which of the numbers are popular.
    pub fn new(n: u64, theta: f64, seed: u64) -> Self {
        let n = n.max(1);
        let mut zipf = Self { n, theta, low: 0.0, high: 0.0, safe: 0.0, scatter: Scatter::new(n, seed) };
        zipf.low = zipf.area(1.5) - 1.0;
        zipf.high = zipf.area(n as f64 + 0.5);
        zipf.safe = 2.0 - zipf.inverse(zipf.area(2.5) - 2f64.powf(-theta));
        zipf
    }

    /// A popularity, 0 for the most popular.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.high + random.fraction() * (self.low - self.high);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.n as f64);
            if k - x <= self.safe || u >= self.area(k + 0.5) - k.powf(-self.theta) {
                return k as u64 - 1;
            }
        }
    }

    /// A number, the popular ones scattered over all.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        self.scatter.place(self.rank(random))
    }

    /// The integral of x^-θ from 1 on.
    #[inline]
    fn area(&self, x: f64) -> f64 {
        let exponent = 1.0 - self.theta;
        let log = x.ln();
        if exponent.abs() < 1e-9 { log } else { (exponent * log).exp_m1() / exponent }
    }

    #[inline]
    fn inverse(&self, area: f64) -> f64 {
        let exponent = 1.0 - self.theta;
        if exponent.abs() < 1e-9 {
            return area.exp();
        }
        ((area * exponent).max(-1.0).ln_1p() / exponent).exp()
    }
}

/// Maps 0 to n-1 onto themselves, one to one, in no visible order.
#[derive(Clone, Debug)]
struct Scatter {
    n: u64,
    mask: u64,
    shift: u32,
    add: u64,
}

impl Scatter {
    fn new(n: u64, seed: u64) -> Self {
        let mask = n.next_power_of_two().max(2) - 1;
        Self { n, mask, shift: mask.count_ones() / 2 + 1, add: mix(seed) }
    }

    /// Steps that are each one to one over a power of two, again until the result is below n.
    #[inline]
    fn place(&self, mut x: u64) -> u64 {
        loop {
            for multiplier in [0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f] {
                x = x.wrapping_add(self.add) & self.mask;
                x ^= x >> self.shift;
                x = x.wrapping_mul(multiplier) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_up_as_often_as_the_law_says() {
        for (n, theta) in [(1000u64, 0.99), (1000, 0.5), (1000, 1.0), (1000, 1.5), (10, 2.0)] {
            let zipf = Zipf::new(n, theta, 1);
            let mut random = Random::new(3, 0);
            let draws = 400_000;
            let mut seen = vec![0u32; n as usize];
            for _ in 0..draws {
                seen[zipf.rank(&mut random) as usize] += 1;
            }
            let norm: f64 = (1..=n).map(|k| (k as f64).powf(-theta)).sum();
            for k in [1u64, 2, 3, 5, 9, n / 2 + 1] {
                let expected = f64::from(draws) * (k as f64).powf(-theta) / norm;
                let got = f64::from(seen[k as usize - 1]);
                let tolerance = 5.0 * expected.sqrt() + 2.0;
                assert!(
                    (got - expected).abs() < tolerance,
                    "rank {k} of {n}, θ {theta}: {got}, expected {expected}"
                );
            }
        }
    }

    #[test]
    fn the_smallest_and_the_largest_of_ranges_stay_within() {
        let mut random = Random::new(1, 1);
        for n in [1u64, 2, 3, 1 << 20, 1 << 40] {
            let zipf = Zipf::new(n, 1.1, 5);
            for _ in 0..2000 {
                assert!(zipf.next(&mut random) < n);
            }
        }
        assert_eq!(Zipf::new(0, 0.9, 0).next(&mut random), 0);
    }

    #[test]
    fn scattering_loses_no_number_and_parts_neighbours() {
        for n in [1u64, 2, 7, 64, 1000, 4097] {
            let scatter = Scatter::new(n, 9);
            let mut places: Vec<u64> = (0..n).map(|x| scatter.place(x)).collect();
            if n >= 1000 {
                let near = places.windows(2).filter(|p| p[0].abs_diff(p[1]) < 4).count();
                assert!(near < n as usize / 20, "{near} neighbours of {n} stay neighbours");
            }
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..n), "{n}");
        }
    }
}
