//! The run by intervals: takes what ended in each, prints a line, and keeps the figures for the
//! report. Threads count into [`Slice`]s, of which it is the only reader; it starts nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use load::{Latency, Window, round, seconds};
use serde::Serialize;

/// Digits of its latencies: what an interval needs, in little memory.
const DIGITS: u8 = 2;

/// The I/Os of a thread that ended since the last look, and count.
#[derive(Clone, Debug)]
pub struct Slice(Arc<Mutex<Latency>>);

impl Slice {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Latency::new(DIGITS))))
    }

    /// For counting; held for moments.
    pub fn open(&self) -> MutexGuard<'_, Latency> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One interval of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// When it ended, seconds after the warm-up.
    at: f64,
    /// Its length: the last one of a run may be shorter.
    seconds: f64,
    ios: u64,
    iops: f64,
    /// 10⁶ bytes a second.
    mb_s: f64,
    /// 0 if no I/O ended.
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    errors: u64,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, iops, mb_s, p50_us, p99_us, errors, .. } = self;
        write!(
            f,
            "{at:8.2} s {iops:>9.0} IOPS {mb_s:>9.1} MB/s   p50 {p50_us:>9.1} µs   p99 {p99_us:>9.1} µs   errors {errors}"
        )
    }
}

/// The intervals of a run.
#[derive(Debug)]
pub struct Series {
    every: Duration,
    bs: u32,
    slices: Vec<Slice>,
    /// Errors of the run so far.
    errors: Arc<AtomicU64>,
    counted_errors: u64,
    /// Seconds after the warm-up that earlier intervals cover.
    covered: f64,
    intervals: Vec<Interval>,
}

impl Series {
    /// For the threads of a run with I/Os of `bs` bytes.
    pub fn new(every: f64, bs: u32, threads: usize, errors: Arc<AtomicU64>) -> Self {
        Self {
            every: seconds(every),
            bs,
            slices: (0..threads).map(|_| Slice::new()).collect(),
            errors,
            counted_errors: 0,
            covered: 0.0,
            intervals: Vec::new(),
        }
    }

    /// Where the thread of this number counts.
    pub fn slice(&self, thread: usize) -> Option<Slice> {
        self.slices.get(thread).cloned()
    }

    /// When to look next.
    pub fn next(&self, window: Window) -> Instant {
        window.start + seconds(self.covered) + self.every
    }

    /// Ends the interval if it is over at `now`, and prints it. The run's last one ends with
    /// [`Series::finish`].
    pub fn look(&mut self, window: Window, now: Instant) {
        if now >= self.next(window) && !window.is_over(now) {
            self.take(now.saturating_duration_since(window.start).as_secs_f64());
        }
    }

    /// Ends the last interval of a run that took so many seconds. Returns all of them.
    pub fn finish(mut self, took: f64) -> Vec<Interval> {
        if took > self.covered {
            self.take(took);
        }
        // After the last I/O of a count there is nothing to tell.
        self.intervals.retain(|one| one.at - one.seconds < took);
        self.intervals
    }

    fn take(&mut self, at: f64) {
        let mut latency = Latency::new(DIGITS);
        for slice in &self.slices {
            let mut slice = slice.open();
            latency.add(&slice);
            slice.clear();
        }
        let errors = self.errors.load(Ordering::Relaxed);
        let long = (at - self.covered).max(1e-9);
        let iops = latency.count() as f64 / long;
        let us = |part| round(latency.quantile_us(part), 3);
        let interval = Interval {
            at: round(at, 6),
            seconds: round(long, 6),
            ios: latency.count(),
            iops: round(iops, 1),
            mb_s: round(iops * f64::from(self.bs) / 1e6, 3),
            p50_us: us(0.5),
            p99_us: us(0.99),
            max_us: round(latency.max_us(), 3),
            errors: errors.saturating_sub(self.counted_errors),
        };
        (self.covered, self.counted_errors) = (at, errors);
        say!("{interval}");
        self.intervals.push(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_io_and_error_is_in_one_interval_and_the_last_ends_with_the_run() {
        let now = Instant::now();
        let window = Window::new(now, 1.0, Some(2.5));
        let errors = Arc::new(AtomicU64::new(0));
        let mut series = Series::new(1.0, 4096, 2, errors.clone());
        let slices = [series.slice(0).unwrap(), series.slice(1).unwrap()];
        series.look(window, now + SECOND);
        assert!(series.intervals.is_empty(), "in the warm-up");
        (0..10).for_each(|n| slices[n % 2].open().record(1000 * (n as u64 + 1)));
        errors.store(3, Ordering::Relaxed);
        series.look(window, now + 2 * SECOND);
        series.look(window, now + 2 * SECOND + SECOND / 2);
        // No I/O ends in the second interval, whose end is seen late.
        series.look(window, now + 3 * SECOND + SECOND / 4);
        slices[1].open().record(5000);
        series.look(window, now + 4 * SECOND);
        let all = series.finish(2.5);
        let told: Vec<_> = all.iter().map(|one| (one.at, one.seconds, one.ios, one.errors)).collect();
        assert_eq!(told, [(1.0, 1.0, 10, 3), (2.25, 1.25, 0, 0), (2.5, 0.25, 1, 0)]);
        assert_eq!((all[0].iops, all[0].mb_s, all[1].p99_us), (10.0, 0.041, 0.0));
        assert!((4.9..5.1).contains(&all[0].p50_us) && (9.9..10.1).contains(&all[0].p99_us), "{all:?}");
    }

    #[test]
    fn after_the_last_io_of_a_count_nothing_is_told() {
        let now = Instant::now();
        let window = Window::new(now, 0.0, None);
        let mut series = Series::new(1.0, 512, 1, Arc::default());
        series.slice(0).unwrap().open().record(1000);
        (1..=3).for_each(|n| series.look(window, now + n * SECOND));
        let all = series.finish(0.5);
        assert_eq!((all.len(), all[0].ios), (1, 1));
    }
}
