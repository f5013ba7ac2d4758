//! A latency distribution as a short text: a word for each bucket that has any commands. Reports
//! print it, records keep it, and those of several runs add up. It measures nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Buckets for each doubling of the latency: a bucket is 6 % wide at most.
const EACH: u64 = 16;

/// How many commands took how long, in buckets that are the same for all distributions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution(BTreeMap<u64, u64>);

/// The longest latency of the bucket of `ns`, ns.
fn bucket(ns: u64) -> u64 {
    if ns < EACH {
        return ns;
    }
    let wide = (1 << ns.ilog2()) / EACH;
    // The last bucket ends with the last number.
    (ns - ns % wide).saturating_add(wide - 1)
}

/// The shortest latency of the bucket that ends with `last`, ns.
fn first(last: u64) -> u64 {
    if last < EACH { last } else { last - ((1 << last.ilog2()) / EACH - 1) }
}

impl Distribution {
    /// Counts `count` commands of this latency.
    pub fn record(&mut self, ns: u64, count: u64) {
        if count > 0 {
            let counted = self.0.entry(bucket(ns)).or_default();
            *counted = counted.saturating_add(count);
        }
    }

    /// Adds the counts of another one.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(last, count)| self.record(*last, *count));
    }

    /// The number of commands.
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// For each bucket, shortest first: the latency that its commands did not exceed, µs, and the
    /// part of all commands that did not.
    pub fn shares(&self) -> Vec<(f64, f64)> {
        let all = self.count().max(1) as f64;
        let mut sum = 0_u64;
        let share = |(last, count): (&u64, &u64)| {
            sum = sum.saturating_add(*count);
            (*last as f64 / 1e3, sum as f64 / all)
        };
        self.0.iter().map(share).collect()
    }

    /// Between which latencies the one lies that a part of the commands did not exceed, µs: 0.5 is
    /// the median. `None` if there are no commands.
    pub fn quantile_us(&self, part: f64) -> Option<(f64, f64)> {
        let rank = (self.count() as f64 * part).ceil();
        // The last bit of a product may tell the next command.
        let at = |rank: f64| {
            let mut sum = 0_u64;
            let mut ends = self.0.iter().map(|(last, count)| {
                sum = sum.saturating_add(*count);
                (*last, sum)
            });
            let found = ends.find(|(_, sum)| *sum as f64 >= rank).map(|(last, _)| last);
            found.or_else(|| self.0.keys().next_back().copied())
        };
        let (low, high) = (at((rank - 1.0).max(1.0))?, at(rank + 1.0)?);
        Some((first(low) as f64 / 1e3, high as f64 / 1e3))
    }
}

/// `LATENCY:COUNT` of each bucket with a space between: the longest latency of the bucket, ns.
impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (last, count)) in self.0.iter().enumerate() {
            write!(f, "{}{last}:{count}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for word in text.split_whitespace() {
            let pair = word
                .split_once(':')
                .and_then(|(last, count)| Some((last.parse::<u64>().ok()?, count.parse::<u64>().ok()?)));
            match pair {
                Some((last, count)) if bucket(last) == last => all.record(last, count),
                _ => return Err(format!("{word} is no bucket of a distribution of latencies")),
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_latencies_without_gaps() {
        let mut last = None;
        for ns in (0..200_000).chain([u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            let end = bucket(ns);
            assert!(first(end) <= ns && ns <= end && bucket(end) == end, "{ns}: {end}");
            assert!((end - first(end)) as f64 <= ns as f64 / EACH as f64, "{ns}: {end}");
            if ns < 200_000 && last.is_some_and(|last| last != end) {
                assert_eq!(last.map(|last| last + 1), Some(first(end)));
            }
            last = Some(end);
        }
    }

    #[test]
    fn text_is_read_as_it_was_written_and_what_is_no_bucket_is_refused() {
        let mut one = Distribution::default();
        [7, 1000, 1001, 5_000_000].into_iter().for_each(|ns| one.record(ns, 3));
        assert_eq!(one.to_string(), "7:3 1023:6 5242879:3");
        assert_eq!(one.to_string().parse(), Ok(one.clone()));
        assert_eq!("".parse(), Ok(Distribution::default()));
        for wrong in ["1000:3", "7", "7:", "7:-1", "x:1"] {
            assert!(wrong.parse::<Distribution>().is_err(), "{wrong}");
        }
        let mut both = one.clone();
        both.add(&one);
        assert_eq!((both.count(), both.shares()[1]), (24, (1.023, 0.75)));
    }

    /// 24 octaves are 60 ns to a second. Records keep the text, so its length is bounded.
    #[test]
    fn the_text_is_short_however_many_commands_there_are() {
        let mut all = Distribution::default();
        let mut ns = 60.0;
        while ns < 1e9 {
            all.record(ns as u64, 1_000_000);
            ns *= 1.001;
        }
        assert!(all.to_string().len() < 8000, "{}", all.to_string().len());
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let mut all = Distribution::default();
        (1..=10_000_u64).for_each(|us| all.record(us * 1000, 1));
        for (part, us) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0), (1.0, 10_000.0)] {
            let (low, high) = all.quantile_us(part).unwrap();
            assert!(low <= us && us <= high && high - low < us / 10.0, "{part}: {low} to {high}");
        }
        assert_eq!(Distribution::default().quantile_us(0.5), None);
    }
}
