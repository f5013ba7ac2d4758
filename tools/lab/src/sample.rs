//! The outcome of one run of one point: named numbers with their units, and the unmodified output
//! of the tools.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The direction in which a quantity is better, for comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Higher is better: rates.
    Higher,
    /// Lower is better: latencies, processor time.
    Lower,
    /// Neither: a fact, such as a round-trip time of the link.
    #[default]
    Neither,
}

/// A number with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// The value, finite.
    pub value: f64,
    /// The unit printed after the number: `IOPS`, `MB/s`, `µs`, `%`; empty for a ratio.
    #[serde(default)]
    pub unit: String,
    /// The direction that is better.
    #[serde(default)]
    pub better: Better,
}

/// The outcome of one run of one point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// By name: `iops`, `mb_s`, `p50_us`, … The same name has the same unit in a whole experiment.
    pub values: BTreeMap<String, Quantity>,
    /// The output of the tools, for further analysis.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub raw: serde_json::Value,
    /// Notes for a reader of the figures: "tgtd has one thread", "the unit is of 64 MiB".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Sample {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a quantity of which higher is better. A number that is not finite counts as not
    /// measured and is left out.
    pub fn rate(&mut self, name: &str, value: f64, unit: &str) {
        self.put(name, value, unit, Better::Higher);
    }

    /// Adds a quantity of which lower is better.
    pub fn cost(&mut self, name: &str, value: f64, unit: &str) {
        self.put(name, value, unit, Better::Lower);
    }

    /// Adds a quantity that is neither good nor bad.
    pub(crate) fn fact(&mut self, name: &str, value: f64, unit: &str) {
        self.put(name, value, unit, Better::Neither);
    }

    /// Adds a note for a reader.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Adds a quantity.
    pub(crate) fn put(&mut self, name: &str, value: f64, unit: &str, better: Better) {
        if value.is_finite() {
            self.values.insert(name.to_owned(), Quantity { value, unit: unit.to_owned(), better });
        }
    }
}
