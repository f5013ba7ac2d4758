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
    /// How often it was taken before and thrown away, since the machine was disturbed meanwhile more than this time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retaken: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
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

/// From so many percent of one processor on, a point is disturbed.
pub const DISTURBED_PERCENT: f64 = 10.0;

/// What the machine did beside a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// The load average of the last minute, before it began.
    pub average: f64,
    /// Processor time that programs other than the lab and its children used meanwhile, percent of one processor.
    pub others_percent: f64,
    /// For how long the hypervisor kept a processor that had something to do (what it gave to others, and the time that it took to
    /// wake one that it had halted), percent of one processor.
    pub stolen_percent: f64,
    /// Whether either was enough to doubt the figures.
    pub disturbed: bool,
    /// Whether its processors were kept from being halted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awake: bool,
    /// What a cache line took from the target's processor to the client's just before, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_ns: Option<u32>,
}

impl Load {
    /// Whether other programs disturbed it.
    pub fn by_others(&self) -> bool {
        self.disturbed && self.others_percent > DISTURBED_PERCENT
    }

    /// Whether the hypervisor did.
    pub fn by_hypervisor(&self) -> bool {
        self.disturbed && self.stolen_percent > DISTURBED_PERCENT
    }

    /// How much of a processor was lost to both, percent.
    pub fn lost_percent(&self) -> f64 {
        self.others_percent + self.stolen_percent
    }
}

/// What disturbed some runs, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbed {
    /// All runs.
    pub runs: usize,
    /// Of them, those during which other programs used more than [`DISTURBED_PERCENT`] of a processor.
    pub by_others: usize,
    /// Those from which the hypervisor kept more than that.
    pub by_hypervisor: usize,
    /// How many disturbed runs were taken again.
    pub retaken: u32,
}

impl Disturbed {
    /// Of these.
    pub fn of(records: &[Record]) -> Self {
        Self {
            runs: records.len(),
            by_others: records.iter().filter(|record| record.load.by_others()).count(),
            by_hypervisor: records.iter().filter(|record| record.load.by_hypervisor()).count(),
            retaken: records.iter().map(|record| record.retaken).sum(),
        }
    }

    /// In words, without a full stop.
    pub fn words(&self) -> String {
        let some = |count: usize| if count == 0 { "none".to_owned() } else { count.to_string() };
        let again = match self.retaken {
            0 => String::new(),
            1 => "; 1 disturbed run was taken again".to_owned(),
            count => format!("; {count} disturbed runs were taken again"),
        };
        format!(
            "Other programs used more than a tenth of a processor during {} of {} runs, and the hypervisor kept as much from {}{again}",
            some(self.by_others),
            self.runs,
            some(self.by_hypervisor)
        )
    }
}
