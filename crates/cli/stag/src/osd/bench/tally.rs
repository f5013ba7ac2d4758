//! What was measured, as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::bench::cpu;

/// The commands of one kind.
pub struct Tally {
    /// Nanoseconds.
    latency: Histogram<u64>,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Tally {
    pub fn new() -> Self {
        // These bounds are always taken.
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap_or_else(|_| unreachable!());
        Self { latency, errors: 0, first_error: None }
    }

    pub fn count(&mut self, took: Duration) {
        self.latency.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn fail(&mut self, why: impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    pub fn add(&mut self, other: &Self) {
        let _ = self.latency.add(&other.latency);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }

    pub fn len(&self) -> u64 {
        self.latency.len()
    }

    /// `bytes` are those of one command's data.
    pub fn report(&self, what: &str, seconds: f64, bytes: u32, cpu: Cpu) -> Value {
        let us = |nanoseconds: f64| (nanoseconds / 10.0).round() / 100.0;
        let quantile = |q: f64| us(self.latency.value_at_quantile(q) as f64);
        let ops = self.len() as f64;
        let rate = if seconds > 0.0 { ops / seconds } else { 0.0 };
        let each = |used: Option<Duration>| used.map(|used| us(used.as_nanos() as f64 / ops.max(1.0)));
        json!({
            "what": what, "ops": self.len(), "seconds": seconds, "ops_s": rate, "mb_s": rate * f64::from(bytes) / 1e6,
            "mean_us": us(self.latency.mean()), "stdev_us": us(self.latency.stdev()), "p10_us": quantile(0.1), "p50_us": quantile(0.5),
            "p99_us": quantile(0.99), "max_us": us(self.latency.max() as f64), "target_us": each(cpu.target),
            "client_us": each(cpu.client), "errors": self.errors, "first_error": self.first_error,
        })
    }
}

/// Processor time during a measurement.
#[derive(Clone, Copy, Default)]
pub struct Cpu {
    pub target: Option<Duration>,
    pub client: Option<Duration>,
}

impl Cpu {
    /// What both have used until now.
    pub fn now(target: Option<u32>) -> Self {
        Self { target: target.and_then(cpu::used), client: cpu::used(std::process::id()) }
    }

    pub fn since(self, before: Self) -> Self {
        let less = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        Self { target: less(self.target, before.target), client: less(self.client, before.client) }
    }
}
