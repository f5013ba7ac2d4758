//! Latencies of commands, counted in a histogram. Recording allocates nothing.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies from this on share one bucket, ns: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// The latencies of the commands that counted.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self::new(3)
    }
}

impl Latency {
    /// Counts with so many digits, 1 to 5. Two take 60 KB of memory, three take 600 KB.
    pub fn new(digits: u8) -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, digits.clamp(1, 5));
        Self(histogram.unwrap_or_else(|_| unreachable!("bounds in order, digits from 1 to 5")))
    }

    /// Counts a command that took `ns`.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Counts a command that took `time`.
    pub fn record_time(&mut self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the counts of another one with as many digits.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, which is all that could fail.
        let _ = self.0.add(&other.0);
    }

    /// The number of commands counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a part of the commands did not exceed, µs: 0.5 is the median.
    pub fn quantile_us(&self, part: f64) -> f64 {
        self.0.value_at_quantile(part) as f64 / 1e3
    }

    /// The shortest, µs; 0 if there is none.
    pub fn min_us(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.min() as f64 / 1e3 }
    }

    /// The mean, µs.
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1e3
    }

    /// The standard deviation, µs.
    pub fn stdev_us(&self) -> f64 {
        self.0.stdev() / 1e3
    }

    /// The longest, µs.
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }
}

/// `x` to so many digits after the point.
pub fn round(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::default();
        for us in 1..=10_000u64 {
            latency.record(us * 1000);
        }
        for (quantile, us) in
            [(0.5, 5000.0), (0.9, 9000.0), (0.99, 9900.0), (0.999, 9990.0), (0.9999, 9999.0)]
        {
            let got = latency.quantile_us(quantile);
            assert!((got - us).abs() <= us / 1000.0 + 1.0, "p{quantile}: {got}");
        }
        assert_eq!(latency.count(), 10_000);
    }

    #[test]
    fn latencies_out_of_range_count_as_the_nearest_there_is() {
        let mut latency = Latency::new(2);
        assert_eq!((latency.min_us(), latency.max_us()), (0.0, 0.0));
        latency.record(0);
        latency.record_time(Duration::MAX);
        assert_eq!(latency.count(), 2);
        assert!(latency.max_us() * 1e3 >= LONGEST_NS as f64);
        let mut sum = Latency::new(2);
        sum.add(&latency);
        assert_eq!(sum.count(), 2);
    }
}
