//! What the daemon has done in the last minutes, as far as somebody looked: a sample a second at
//! most, for charts and rates.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::control::status::Status;

/// Samples that are kept: five minutes, if somebody looks all the time.
const MOST: usize = 300;
/// The least time between two samples, milliseconds.
const STEP_MS: u64 = 900;
/// The most time that a rate is about, milliseconds.
const RECENT_MS: u64 = 60_000;

/// Counts since the daemon's start, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Calls of NFS.
    pub calls: u64,
    /// Commands that were timed, and the sum of their latencies, nanoseconds.
    pub timed: u64,
    pub time_ns: u64,
}

/// The samples, the oldest first.
#[derive(Default)]
pub struct History {
    all: Mutex<VecDeque<Sample>>,
}

/// What happens in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The time that they are about, seconds.
    pub over_s: f64,
    pub reads: f64,
    pub writes: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub calls: f64,
    /// The mean latency of a command, seconds; none where none was timed.
    pub latency_s: Option<f64>,
}

impl Sample {
    /// The counts of a status.
    pub fn of(status: &Status, at_ms: u64) -> Self {
        let mut sample = Self { at_ms, ..Self::default() };
        for unit in status.targets.iter().flat_map(|target| &target.units) {
            sample.reads += unit.io.reads;
            sample.writes += unit.io.writes;
            sample.read_bytes += unit.io.read_bytes;
            sample.written_bytes += unit.io.written_bytes;
            sample.timed += unit.io.timed;
            sample.time_ns += unit.io.time_ns;
        }
        for export in &status.nfs.exports {
            sample.calls += export.calls;
            sample.read_bytes += export.read_bytes;
            sample.written_bytes += export.written_bytes;
        }
        sample
    }

    /// What has happened in a second since `before`.
    pub fn since(&self, before: &Self) -> Rates {
        let over_s = self.at_ms.saturating_sub(before.at_ms).max(1) as f64 / 1e3;
        // A unit that is removed takes its counts with it.
        let more = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let timed = more(self.timed, before.timed);
        Rates {
            over_s,
            reads: more(self.reads, before.reads) / over_s,
            writes: more(self.writes, before.writes) / over_s,
            read_bytes: more(self.read_bytes, before.read_bytes) / over_s,
            written_bytes: more(self.written_bytes, before.written_bytes) / over_s,
            calls: more(self.calls, before.calls) / over_s,
            latency_s: (timed > 0.0).then(|| more(self.time_ns, before.time_ns) / timed / 1e9),
        }
    }
}

impl History {
    /// Whether a sample of `now_ms` would come too early to be kept.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.back().is_some_and(|last| now_ms < last.at_ms.saturating_add(STEP_MS) && now_ms >= last.at_ms)
    }

    /// Keeps a sample, unless it comes too early.
    pub fn keep(&self, sample: Sample) {
        if self.is_fresh(sample.at_ms) {
            return;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back makes earlier samples useless.
        all.retain(|other| other.at_ms < sample.at_ms);
        all.push_back(sample);
        while all.len() > MOST {
            all.pop_front();
        }
    }

    /// The rates between a sample of the last minute and `now`, if there is one that is old enough.
    pub fn rates(&self, now: &Sample) -> Option<Rates> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |sample: &&Sample| now.at_ms.saturating_sub(sample.at_ms);
        let old = all.iter().find(|sample| (STEP_MS..=RECENT_MS).contains(&age(sample)))?;
        Some(now.since(old))
    }

    /// Samples after `since_ms`, each as a list: time in seconds since 1970, reads, writes, calls,
    /// bytes read and written in a second, and the mean latency in milliseconds.
    pub fn json(&self, since_ms: u64) -> Value {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = all.iter().zip(all.iter().skip(1));
        pairs
            .filter(|(_, sample)| sample.at_ms > since_ms)
            .map(|(before, sample)| {
                let rates = sample.since(before);
                let latency_ms = rates.latency_s.map(|latency| latency * 1e3);
                let Rates { reads, writes, calls, read_bytes, written_bytes, .. } = rates;
                json!([
                    sample.at_ms as f64 / 1e3,
                    reads,
                    writes,
                    calls,
                    read_bytes,
                    written_bytes,
                    latency_ms
                ])
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, reads: u64) -> Sample {
        Sample { at_ms, reads, timed: reads, time_ns: reads * 2_000_000, ..Sample::default() }
    }

    #[test]
    fn rates_are_those_of_the_last_minute_if_somebody_looked() {
        let history = History::default();
        assert_eq!(history.rates(&sample(1000, 5)), None);
        history.keep(sample(1_000, 0));
        history.keep(sample(1_500, 9));
        history.keep(sample(100_000, 100));
        let rates = history.rates(&sample(110_000, 300)).unwrap();
        assert_eq!((rates.over_s, rates.reads, rates.latency_s), (10.0, 20.0, Some(0.002)));
        assert_eq!(history.rates(&sample(100_100, 300)), None, "too short a time tells nothing");
        assert_eq!(history.json(0), json!([[100.0, 100.0 / 99.0, 0.0, 0.0, 0.0, 0.0, 2.0]]));
        assert_eq!(history.json(100_000), json!([]));
    }

    #[test]
    fn few_samples_are_kept_and_a_clock_that_is_set_back_begins_anew() {
        let history = History::default();
        (0..1000).for_each(|second| history.keep(sample(second * 1000, second)));
        assert_eq!(history.json(0).as_array().unwrap().len(), MOST - 1);
        history.keep(sample(500_000, 0));
        assert!(history.is_fresh(500_500) && !history.is_fresh(501_000) && !history.is_fresh(499_000));
        assert_eq!(sample(1000, 0).since(&sample(0, 9)).reads, 0.0, "counts that fell are no rate");
    }
}
