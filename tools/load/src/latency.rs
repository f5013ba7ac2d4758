//! Latencies of commands, counted in a histogram. Recording allocates nothing.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Distribution;

/// Latencies from this on share one bucket, ns: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;
/// Lines of the percentile log for each halving of what is left to 100 %, as HdrHistogram has them.
const TICKS: u32 = 5;

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

    /// The percentile log of HdrHistogram (a file `.hgrm`), µs: its plotters read it.
    pub fn percentile_log(&self) -> String {
        let mut text = format!(
            "{:>12} {:>14} {:>10} {:>14}\n\n",
            "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
        );
        let mut count = 0;
        for one in self.0.iter_quantiles(TICKS) {
            count += one.count_since_last_iteration();
            let (us, part) = (one.value_iterated_to() as f64 / 1e3, one.quantile_iterated_to());
            let _ = write!(text, "{us:12.3} {part:.12} {count:10}");
            let _ = match part < 1.0 {
                true => writeln!(text, " {:14.2}", 1.0 / (1.0 - part)),
                false => writeln!(text),
            };
        }
        let parts = (2 * 10_u64.pow(u32::from(self.0.sigfig()))).next_power_of_two();
        let (mean, stdev, max) = (self.mean_us(), self.stdev_us(), self.max_us());
        let _ = write!(
            text,
            "#[Mean    = {mean:12.3}, StdDeviation   = {stdev:12.3}]\n\
             #[Max     = {max:12.3}, Total count    = {:12}]\n\
             #[Buckets = {:12}, SubBuckets     = {parts:12}]\n",
            self.count(),
            self.0.buckets()
        );
        text
    }

    /// Forgets all commands. It keeps the memory.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many commands took how long, in wider buckets.
    pub fn distribution(&self) -> Distribution {
        let mut distribution = Distribution::default();
        for one in self.0.iter_recorded() {
            distribution.record(one.value_iterated_to(), one.count_at_value());
        }
        distribution
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
    fn the_distribution_has_every_command_and_the_same_quantiles() {
        for digits in [2, 3] {
            let mut latency = Latency::new(digits);
            (1..=5000_u64).for_each(|n| latency.record(n * n * 7));
            let distribution = latency.distribution();
            assert_eq!(distribution.count(), latency.count());
            for part in [0.001, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let (low, high) = distribution.quantile_us(part).unwrap();
                let us = latency.quantile_us(part);
                assert!(low <= us && us <= high, "{digits} digits, {part}: {us} in {low} to {high}");
            }
            latency.clear();
            assert_eq!(latency.distribution(), Distribution::default());
        }
    }

    /// The columns and the last lines are those that HdrHistogram's `outputPercentileDistribution`
    /// writes.
    #[test]
    fn the_percentile_log_is_that_of_hdrhistogram() {
        let mut latency = Latency::default();
        (1..=1000_u64).for_each(|us| latency.record(us * 1000));
        let text = latency.percentile_log();
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(
            (head, lines.next()),
            (vec!["Value", "Percentile", "TotalCount", "1/(1-Percentile)"], Some(""))
        );
        let rows: Vec<Vec<f64>> = lines
            .clone()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        for row in &rows {
            // Whole microseconds from 1 to 1000: as many as the value says took no longer.
            assert!((row[0] - row[2]).abs() <= 1.0 && row[2] >= 1000.0 * row[1], "{row:?}");
            assert_eq!(row.len(), if row[1] < 1.0 { 4 } else { 3 });
        }
        assert!(rows.windows(2).all(|two| two[0][1] <= two[1][1]) && rows.len() > 30);
        let half = rows.iter().find(|row| row[1] == 0.5).unwrap();
        assert_eq!((half[2], half[3]), (500.0, 2.0));
        assert_eq!(rows.last().unwrap()[1..], [1.0, 1000.0]);
        let footer: Vec<&str> = lines.filter(|line| line.starts_with('#')).collect();
        assert!(footer[0].starts_with("#[Mean    =      500."), "{footer:?}");
        assert!(footer[1].ends_with("Total count    =         1000]"), "{footer:?}");
        assert!(
            footer[2].starts_with("#[Buckets = ") && footer[2].ends_with("SubBuckets     =         2048]")
        );
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
