//! Takes in figures that another program measured, as the results of an experiment whose kind is
//! `recorded`: reports, charts and comparisons then treat them like the lab's own.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::context::Pinning;
use crate::library::Source;
use crate::machine::Machine;
use crate::point::{Value, key};
use crate::record::{FORMAT, Load, Outcome, Record};
use crate::results::{Error, Folder, Info, now};
use crate::sample::{Quantity, Sample};

/// The measurements of another program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// Whether it was a short run.
    #[serde(default)]
    pub quick: bool,
    /// The processors of both ends.
    #[serde(default)]
    pub pinning: Pinning,
    pub runs: Vec<Run>,
}

/// One run of one point.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The value on each axis.
    pub coordinates: BTreeMap<String, Value>,
    /// The number of the round, from 1.
    pub round: u32,
    #[serde(default)]
    pub values: BTreeMap<String, Quantity>,
    /// Why it has none.
    #[serde(default)]
    pub missing: Option<String>,
    /// The cache-line transfer time between the two ends' processors, ns.
    #[serde(default)]
    pub cache_line_ns: Option<u32>,
}

/// Replaces the results in the folder `path` by those that were given.
///
/// # Errors
/// If a run is of no point of the experiment, or a file cannot be written.
pub fn save(path: &Path, source: &Source, machine: Machine, given: Given) -> Result<(), Error> {
    let experiment = &source.experiment;
    let broken = |why: String| Error::Broken { path: path.display().to_string(), why };
    let info = Info::new(source, given.quick, 0, given.pinning, machine);
    let (folder, _) = Folder::open(path, source, &info, true)?;
    let mut records = Vec::new();
    for run in given.runs {
        let mut coordinates = Vec::new();
        for axis in &experiment.axis {
            let value = run
                .coordinates
                .get(&axis.name)
                .and_then(|value| axis.every_value().find(|known| known.same(value)).cloned());
            let value = value.ok_or_else(|| {
                broken(format!(
                    "a run has no value of axis `{}` that it knows: {:?}",
                    axis.name, run.coordinates
                ))
            })?;
            coordinates.push((axis.name.clone(), value));
        }
        let outcome = match run.missing {
            Some(why) => Outcome::Missing(why),
            None => Outcome::Measured(Sample { values: run.values, ..Sample::new() }),
        };
        let record = Record {
            format: FORMAT,
            experiment: experiment.name.clone(),
            key: key(&coordinates),
            coordinates: coordinates.into_iter().collect(),
            round: run.round,
            seed: 0,
            quick: given.quick,
            began: now(),
            seconds: 0.0,
            outcome,
            load: Load { cache_line_ns: run.cache_line_ns, ..Load::default() },
            link: serde_json::Value::Null,
            settings: toml::Table::new(),
            retaken: 0,
        };
        folder.save(&record)?;
        records.push(record);
    }
    folder.save_csv(experiment, &records)
}
