//! What one run of one point has found: named numbers with their units, and all that the tools said, as they said it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which way a quantity is better, for comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better: rates.
    Higher,
    /// Less is better: latencies, processor time.
    Lower,
    /// Neither: a fact, such as a round-trip time of the link.
    #[default]
    Neither,
}

/// A number with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// Finite.
    pub value: f64,
    /// As it is printed behind the number: `IOPS`, `MB/s`, `µs`, `%`; empty for a ratio.
    #[serde(default)]
    pub unit: String,
    /// Which way it is better.
    #[serde(default)]
    pub better: Better,
}

/// What one run of one point has found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// By name: `iops`, `mb_s`, `p50_us`, … The same name has the same unit in a whole experiment.
    pub values: BTreeMap<String, Quantity>,
    /// What the tools printed, for who wants to know more.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub raw: serde_json::Value,
    /// What a reader of the figures must know: "tgtd has one thread", "the unit is of 64 MiB".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Sample {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds something of which more is better. A number that is not finite is left out: it was not measured.
    pub fn rate(&mut self, name: &str, value: f64, unit: &str) {
        self.put(name, value, unit, Better::Higher);
    }

    /// Adds something of which less is better.
    pub fn cost(&mut self, name: &str, value: f64, unit: &str) {
        self.put(name, value, unit, Better::Lower);
    }

    /// Adds something that is neither good nor bad.
    pub fn fact(&mut self, name: &str, value: f64, unit: &str) {
        self.put(name, value, unit, Better::Neither);
    }

    /// Adds what a reader must know.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn put(&mut self, name: &str, value: f64, unit: &str, better: Better) {
        if value.is_finite() {
            self.values.insert(name.to_owned(), Quantity { value, unit: unit.to_owned(), better });
        }
    }
}
