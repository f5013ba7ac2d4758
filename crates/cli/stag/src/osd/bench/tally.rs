//! The results, as JSON.

use load::cpu::Spent;
use load::{Latency, round};
use serde_json::{Value, json};

/// The commands of one kind.
#[derive(Default)]
pub struct Tally {
    pub latency: Latency,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Tally {
    pub fn fail(&mut self, why: impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }

    /// `bytes` are those of one command's data.
    pub fn report(&self, what: &str, seconds: f64, bytes: u32, cpu: Option<Spent>) -> Value {
        let us = |us: f64| round(us, 2);
        let quantile = |q: f64| us(self.latency.quantile_us(q));
        let ops = self.latency.count();
        let rate = if seconds > 0.0 { ops as f64 / seconds } else { 0.0 };
        let each = |used: std::time::Duration| us(used.as_secs_f64() * 1e6 / ops.max(1) as f64);
        json!({
            "what": what, "ops": ops, "seconds": seconds, "ops_s": rate, "mb_s": rate * f64::from(bytes) / 1e6,
            "mean_us": us(self.latency.mean_us()), "stdev_us": us(self.latency.stdev_us()), "p10_us": quantile(0.1),
            "p50_us": quantile(0.5), "p99_us": quantile(0.99), "p999_us": quantile(0.999), "max_us": us(self.latency.max_us()),
            "histogram_ns": self.latency.distribution().to_string(),
            "target_us": cpu.and_then(|cpu| cpu.target).map(each), "client_us": cpu.map(|cpu| each(cpu.own)),
            "errors": self.errors, "first_error": self.first_error,
        })
    }
}
