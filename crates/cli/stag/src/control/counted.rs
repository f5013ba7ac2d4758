//! Outcomes of a target's or a unit's commands, and the times of their stages, as `status` shows
//! them.

use serde::{Deserialize, Serialize};

/// Outcomes and times of a target's commands since it was first served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Commands by outcome, of those that there were.
    pub outcomes: Vec<Ended>,
    /// Commands that waited for a limit of service, and then ran.
    pub limit_waits: u64,
    /// How long they waited, seconds.
    pub limit_wait_s: f64,
    /// Times of one command in eight, of those stages that there were.
    #[serde(default)]
    pub stages: Vec<Stage>,
}

/// Times of a stage of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// `read`, `write` or `other`.
    pub operation: String,
    /// `order`, `data`, `medium` or `send`.
    pub stage: String,
    /// Sum of the times, seconds.
    pub seconds: f64,
    /// Number of them by length: bucket n counts times below 2^(12 + 2n) ns that no earlier one
    /// counts; the last one also counts longer ones.
    pub buckets: [u64; iscsi_server::STAGE_BUCKETS],
}

impl Stage {
    /// Those that there were.
    pub fn all(stages: &iscsi_server::Stages) -> Vec<Self> {
        let stages = stages.iter().filter(|(.., times)| times.commands() > 0);
        let stage = |(operation, stage, times): (&str, &str, &iscsi_server::Times)| Self {
            operation: operation.to_owned(),
            stage: stage.to_owned(),
            seconds: times.time_ns as f64 / 1e9,
            buckets: times.buckets,
        };
        stages.map(stage).collect()
    }
}

/// Commands that ended alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The SCSI status, such as `good` or `check-condition`.
    pub status: String,
    /// The sense key of CHECK CONDITION, such as `medium-error`; empty for another status.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sense_key: String,
    pub commands: u64,
}

impl Work {
    pub fn of(counts: &iscsi_server::TargetCounts) -> Self {
        let outcomes = counts.outcomes().filter(|(.., commands)| *commands > 0);
        let ended = |(status, key, commands): (&str, &str, u64)| Ended {
            status: status.to_owned(),
            sense_key: key.to_owned(),
            commands,
        };
        Self {
            outcomes: outcomes.map(ended).collect(),
            limit_waits: counts.limit_waits,
            limit_wait_s: counts.limit_wait_ns as f64 / 1e9,
            stages: Stage::all(&counts.stages),
        }
    }

    /// Adds what became of another target's.
    #[cfg(feature = "http")]
    pub fn add(&mut self, other: &Self) {
        for more in &other.outcomes {
            let alike = |one: &&mut Ended| one.status == more.status && one.sense_key == more.sense_key;
            match self.outcomes.iter_mut().find(alike) {
                Some(own) => own.commands += more.commands,
                None => self.outcomes.push(more.clone()),
            }
        }
        for more in &other.stages {
            let alike = |one: &&mut Stage| one.operation == more.operation && one.stage == more.stage;
            match self.stages.iter_mut().find(alike) {
                Some(own) => {
                    own.seconds += more.seconds;
                    own.buckets.iter_mut().zip(more.buckets).for_each(|(own, more)| *own += more);
                }
                None => self.stages.push(more.clone()),
            }
        }
        self.limit_waits += other.limit_waits;
        self.limit_wait_s += other.limit_wait_s;
    }

    /// The growth since `before`.
    #[cfg(feature = "http")]
    pub fn since(&self, before: &Self) -> Self {
        let outcomes = self.outcomes.iter().map(|one| {
            let alike = |other: &&Ended| other.status == one.status && other.sense_key == one.sense_key;
            let earlier = before.outcomes.iter().find(alike).map_or(0, |earlier| earlier.commands);
            Ended { commands: one.commands.saturating_sub(earlier), ..one.clone() }
        });
        let stages = self.stages.iter().map(|one| {
            let alike = |other: &&Stage| other.operation == one.operation && other.stage == one.stage;
            let earlier = before.stages.iter().find(alike);
            let (seconds, buckets) = earlier.map_or((0.0, [0; iscsi_server::STAGE_BUCKETS]), |earlier| {
                (earlier.seconds, earlier.buckets)
            });
            Stage {
                seconds: (one.seconds - seconds).max(0.0),
                buckets: std::array::from_fn(|at| one.buckets[at].saturating_sub(buckets[at])),
                ..one.clone()
            }
        });
        Self {
            outcomes: outcomes.collect(),
            limit_waits: self.limit_waits.saturating_sub(before.limit_waits),
            limit_wait_s: (self.limit_wait_s - before.limit_wait_s).max(0.0),
            stages: stages.collect(),
        }
    }
}
