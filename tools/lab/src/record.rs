//! The record of one point in one round: its outcome, and everything that its figures depend on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::point::Value;
use crate::sample::Sample;

/// The version of the record format that this program writes.
pub const FORMAT: u32 = 1;

/// One point in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    pub experiment: String,
    /// [`crate::Point::key`].
    pub key: String,
    /// The coordinates, by axis.
    pub coordinates: BTreeMap<String, Value>,
    /// The number of the round, from 1.
    pub round: u32,
    /// The seed of its random numbers.
    pub seed: u64,
    /// Whether it belongs to a short run (`--quick`).
    pub quick: bool,
    /// When it began: seconds since 1970.
    pub began: f64,
    /// The time it took, including setup, seconds.
    pub seconds: f64,
    pub outcome: Outcome,
    /// The machine's other activity during it.
    pub load: Load,
    /// The emulated link, with its measurement before the run.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub link: serde_json::Value,
    /// All settings in effect.
    pub settings: toml::Table,
    /// The number of earlier runs discarded because the machine was disturbed more than in this
    /// one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retaken: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Record {
    /// The figures, if it was measured.
    pub fn sample(&self) -> Option<&Sample> {
        match &self.outcome {
            Outcome::Measured(sample) => Some(sample),
            Outcome::Missing(_) | Outcome::Failed(_) => None,
        }
    }
}

/// The outcome of a point.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was measured: the figures.
    Measured(Sample),
    /// The machine lacks a requirement: which.
    Missing(String),
    /// It failed: the reason.
    Failed(String),
}

/// The disturbance, in percent of one processor, above which a run counts as disturbed.
pub const DISTURBED_PERCENT: f64 = 10.0;

/// The machine's other activity during a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// The load average of the last minute, before it began.
    pub average: f64,
    /// Processor time of programs other than the lab and its children, percent of one processor.
    pub others_percent: f64,
    /// Time stolen by the hypervisor, percent of one processor: time given to others, and time to
    /// wake a halted processor.
    pub stolen_percent: f64,
    /// Whether either value exceeds [`DISTURBED_PERCENT`], the cores were moved, or the link was
    /// behind.
    pub disturbed: bool,
    /// Why the emulated link did not hold its rate or its delay, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_behind: Option<String>,
    /// All of the machine's work, the lab's included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Work>,
    /// Whether its processors were kept awake.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awake: bool,
    /// The cache-line transfer time from the target's processor to the client's just before,
    /// nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_ns: Option<u32>,
}

/// The work of all processors together during a run, its setup included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Processor time in programs, percent of one processor, niced ones included.
    pub user_percent: f64,
    /// In system calls.
    pub system_percent: f64,
    /// In interrupt handlers.
    pub irq_percent: f64,
    /// In deferred work of interrupts.
    pub softirq_percent: f64,
    /// Interrupts a second.
    pub interrupts_s: f64,
    /// Context switches a second.
    pub switches_s: f64,
}

impl Load {
    /// Whether other programs disturbed it.
    pub(crate) fn by_others(&self) -> bool {
        self.disturbed && self.others_percent > DISTURBED_PERCENT
    }

    /// Whether the hypervisor disturbed it.
    pub(crate) fn by_hypervisor(&self) -> bool {
        self.disturbed && self.stolen_percent > DISTURBED_PERCENT
    }

    /// Whether less disturbed it: by the link first, then by the processor time lost to others and
    /// to the hypervisor.
    pub(crate) fn is_calmer_than(&self, other: &Self) -> bool {
        let lost = |load: &Self| load.others_percent + load.stolen_percent;
        match (self.link_behind.is_some(), other.link_behind.is_some()) {
            (mine, theirs) if mine != theirs => theirs,
            _ => lost(self) < lost(other),
        }
    }
}

/// The disturbed runs, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disturbed {
    pub runs: usize,
    /// Runs during which other programs used more than [`DISTURBED_PERCENT`] of a processor.
    pub by_others: usize,
    /// Runs during which the hypervisor stole more than that.
    pub by_hypervisor: usize,
    /// Runs whose emulated link was behind.
    pub by_link: usize,
    /// Why, in the first of them.
    pub link_behind: Option<String>,
    /// The number of disturbed runs that were repeated.
    pub retaken: u32,
}

impl Disturbed {
    /// Counts the disturbed runs of these records.
    pub fn of(records: &[Record]) -> Self {
        Self {
            runs: records.len(),
            by_others: records.iter().filter(|record| record.load.by_others()).count(),
            by_hypervisor: records.iter().filter(|record| record.load.by_hypervisor()).count(),
            by_link: records.iter().filter(|record| record.load.link_behind.is_some()).count(),
            link_behind: records.iter().find_map(|record| record.load.link_behind.clone()),
            retaken: records.iter().map(|record| record.retaken).sum(),
        }
    }

    /// The counts in words, without a full stop.
    pub fn words(&self) -> String {
        let some = |count: usize| if count == 0 { "none".to_owned() } else { count.to_string() };
        let again = match self.retaken {
            0 => String::new(),
            1 => "; 1 disturbed run was taken again".to_owned(),
            count => format!("; {count} disturbed runs were taken again"),
        };
        let link = match &self.link_behind {
            None => String::new(),
            Some(why) => {
                format!("; the emulated link did not hold its rate in {} (in the first, {why})", self.by_link)
            }
        };
        format!(
            "Other programs used more than a tenth of a processor during {} of {} runs, and the hypervisor kept as much from {}{link}{again}",
            some(self.by_others),
            self.runs,
            some(self.by_hypervisor)
        )
    }
}
