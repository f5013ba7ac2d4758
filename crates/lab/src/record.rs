//! One line of an experiment's results: one point in one round, with all that its figures depend on and what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::point::Value;
use crate::sample::Sample;

/// The format of records that this program writes.
pub const FORMAT: u32 = 1;

/// One point in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// The experiment.
    pub experiment: String,
    /// [`crate::Point::key`].
    pub key: String,
    /// By axis.
    pub coordinates: BTreeMap<String, Value>,
    /// From 1.
    pub round: u32,
    /// Where its random numbers began.
    pub seed: u64,
    /// Whether it is of a short run.
    pub quick: bool,
    /// When it began: seconds since 1970.
    pub began: f64,
    /// How long it took, with all that had to be set up, seconds.
    pub seconds: f64,
    /// What came of it.
    pub outcome: Outcome,
    /// What the machine did beside it.
    pub load: Load,
    /// The link that was emulated, and what was measured of it before the run.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub link: serde_json::Value,
    /// All settings that held.
    pub settings: toml::Table,
}

impl Record {
    /// What was measured, if it was.
    pub fn sample(&self) -> Option<&Sample> {
        match &self.outcome {
            Outcome::Measured(sample) => Some(sample),
            Outcome::Missing(_) | Outcome::Failed(_) => None,
        }
    }
}

/// What came of a point.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Figures.
    Measured(Sample),
    /// The machine lacks what it needs: why.
    Missing(String),
    /// It failed: why.
    Failed(String),
}

/// What the machine did beside a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// The load average of the last minute, before it began.
    pub average: f64,
    /// Processor time that others than the lab and its children used meanwhile, percent of one processor.
    pub others_percent: f64,
    /// What the hypervisor gave to others, percent of one processor.
    pub stolen_percent: f64,
    /// Whether that was enough to doubt the figures.
    pub disturbed: bool,
    /// What a cache line took from the target's processor to the client's just before, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_ns: Option<u32>,
}
