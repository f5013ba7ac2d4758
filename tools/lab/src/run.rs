//! Runs experiments: every point in every round, each recorded as soon as it is measured. A failed
//! point is recorded and the run continues; an interrupted run can be resumed. A disturbed run is
//! repeated, within a limit; its figures have no influence on that. This module knows nothing of
//! the quantities measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::awake::Awake;
use crate::context::{Context, Pinning, Stop};
use crate::experiment::Experiment;
use crate::library::Source;
use crate::load::{Look, are_apart, cache_line_ns};
use crate::machine::Machine;
use crate::measure::{self, Measure};
use crate::path::Paths;
use crate::point::{Point, Value};
use crate::progress::Progress;
use crate::record::{FORMAT, Load, Outcome, Record};
use crate::results::{self, Folder, Info, file_name};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of results, with one subfolder per experiment.
    pub out: PathBuf,
    /// Whether it is a short run (`--quick`).
    pub quick: bool,
    /// Restricts points to these values on these axes; experiments without such an axis are run
    /// whole.
    pub only: Vec<(String, Vec<Value>)>,
    /// Measures recorded points anew.
    pub again: bool,
    /// Measures points anew that are recorded as failed or missing.
    pub retry: bool,
    /// Rounds, overriding the experiment's.
    pub rounds: Option<u32>,
    /// The seed of the first round.
    pub seed: u64,
    /// The path of the `stag` binary.
    pub stag: PathBuf,
    /// The processors of both ends.
    pub pinning: Pinning,
    /// Runs both ends before all other programs (SCHED_FIFO).
    pub realtime: bool,
    /// No run begins later than this after the first, except in the first round.
    pub within: Option<Duration>,
    /// The longest time, over all runs, to wait until the two cores share a cache.
    pub wait: Duration,
}

pub type Maker<'a> = &'a dyn Fn(&Experiment) -> Result<Box<dyn Measure>, measure::Error>;

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The outcome of each experiment.
    pub experiments: Vec<One>,
    /// Whether the user ended it.
    pub interrupted: bool,
}

/// The outcome of one experiment.
#[derive(Clone, Debug, Default)]
pub struct One {
    pub name: String,
    /// The number of runs recorded before.
    pub before: usize,
    /// The number of runs measured now.
    pub measured: usize,
    /// The number of runs that failed now.
    pub failed: usize,
    /// The number of points for which the machine lacks a requirement.
    pub missing: usize,
    /// The number of runs skipped because their point had failed before.
    pub left_out: usize,
    /// The number of repetitions of disturbed runs.
    pub retaken: usize,
}

/// The number of failed rounds after which a point is skipped.
const MOST_FAILURES: u32 = 2;

/// The maximum number of repetitions of a disturbed run.
const MOST_RETAKES: u32 = 2;
/// The number of runs of an experiment per permitted repetition.
const RUNS_TO_A_RETAKE: usize = 8;
/// The same for a short run.
const QUICK_RUNS_TO_A_RETAKE: usize = 16;

/// One point in one round.
struct Step {
    at: usize,
    round: u32,
}

struct Plan<'a> {
    source: &'a Source,
    points: Vec<Point>,
    steps: Vec<Step>,
    done: BTreeSet<(usize, u32)>,
    folder: Folder,
    records: Vec<Record>,
    // The time of each point, over all rounds, seconds.
    took: BTreeMap<usize, Vec<f64>>,
}

/// Runs `sources` one after another on this machine, which `machine` describes.
///
/// # Errors
/// If there is nothing to run, or results cannot be saved. Errors of a point go into its record.
pub fn run(
    sources: &[Source],
    options: &Options,
    machine: Machine,
    make: Maker<'_>,
    stop: &Stop,
    progress: &mut dyn Progress,
) -> Result<Summary, Error> {
    let mut plans = Vec::new();
    for source in sources {
        plans.extend(plan(source, options, &machine)?);
    }
    if plans.is_empty() {
        return Err(Error::NoPoint);
    }
    let mut summary = Summary::default();
    for at in 0..plans.len() {
        let one = experiment(&mut plans, at, options, make, stop, progress)?;
        summary.experiments.push(one);
        if stop.asked() {
            summary.interrupted = true;
            break;
        }
    }
    Ok(summary)
}

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The selection contains no point.
    #[error("no point fits what --only asks for")]
    NoPoint,
    /// `--only` names an axis or a value of no experiment.
    #[error("--only: {0}")]
    Only(String),
    /// Results cannot be saved.
    #[error(transparent)]
    Results(#[from] results::Error),
}

/// Checks that the axes and values of `--only` exist.
///
/// # Errors
/// The existing axes or values.
pub fn check_only(sources: &[Source], only: &[(String, Vec<Value>)]) -> Result<(), Error> {
    for (name, values) in only {
        let axes: Vec<_> = sources.iter().filter_map(|source| source.experiment.axis(name)).collect();
        if axes.is_empty() {
            let known: BTreeSet<&str> = sources
                .iter()
                .flat_map(|source| &source.experiment.axis)
                .map(|axis| axis.name.as_str())
                .collect();
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Error::Only(format!("there is no axis `{name}`; there are: {known}")));
        }
        for value in values {
            if !axes.iter().any(|axis| axis.every_value().any(|known| known.same(value))) {
                let known: Vec<String> =
                    axes.iter().flat_map(|axis| axis.every_value()).map(ToString::to_string).collect();
                return Err(Error::Only(format!(
                    "`{name}` is never {value}; it is one of: {}",
                    known.join(", ")
                )));
            }
        }
    }
    Ok(())
}

fn plan<'a>(source: &'a Source, options: &Options, machine: &Machine) -> Result<Option<Plan<'a>>, Error> {
    let experiment = &source.experiment;
    let wanted = |point: &Point| {
        options.only.iter().all(|(axis, values)| {
            let mut on = point.coordinates.iter().filter(|(name, _)| name == axis);
            on.all(|(_, value)| values.iter().any(|wanted| wanted.same(value)))
        })
    };
    let points: Vec<Point> = experiment.points(options.quick).into_iter().filter(wanted).collect();
    if points.is_empty() {
        return Ok(None);
    }
    let info = Info::new(source, options.quick, options.seed, options.pinning.clone(), machine.clone());
    let path = options.out.join(&experiment.name);
    let (folder, mut records) = Folder::open(&path, source, &info, options.again)?;
    if options.retry {
        records.retain(|record| record.sample().is_some());
    }
    let keys: BTreeMap<String, usize> =
        points.iter().enumerate().map(|(at, point)| (point.key(), at)).collect();
    let mut took: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut done = BTreeSet::new();
    for record in &records {
        if let Some(at) = keys.get(&record.key) {
            done.insert((*at, record.round));
            took.entry(*at).or_default().push(record.seconds);
        }
    }
    let rounds = options.rounds.unwrap_or_else(|| experiment.rounds(options.quick));
    let steps = (1..=rounds)
        .flat_map(|round| order(points.len(), round).map(move |at| Step { at, round }))
        .filter(|step| {
            let most = points.get(step.at).and_then(|point| experiment.most_rounds(point));
            options.rounds.is_some() || most.is_none_or(|most| step.round <= most)
        })
        .collect();
    Ok(Some(Plan { source, points, steps, done, folder, records, took }))
}

/// Reverses every other round: linear drift then affects all points equally.
fn order(count: usize, round: u32) -> Box<dyn Iterator<Item = usize>> {
    if round % 2 == 1 { Box::new(0..count) } else { Box::new((0..count).rev()) }
}

fn experiment(
    plans: &mut [Plan<'_>],
    at: usize,
    options: &Options,
    make: Maker<'_>,
    stop: &Stop,
    progress: &mut dyn Progress,
) -> Result<One, Error> {
    let Some(Plan { source, points, steps, .. }) = plans.get(at) else { return Ok(One::default()) };
    let experiment = &source.experiment;
    let mut one = One { name: experiment.name.clone(), ..One::default() };
    let mut measure: Option<Box<dyn Measure>> = None;
    let mut paths = Paths::new(&options.stag);
    let awake = if experiment.awake { Awake::keep(&options.pinning) } else { None };
    if experiment.awake && awake.is_none() && options.pinning != Pinning::default() {
        progress.say("processors may be halted while they wait: the system lets no thread of policy SCHED_IDLE run (is chrt there?)");
    }
    // The number of failures of each point.
    let mut failures: BTreeMap<usize, u32> = BTreeMap::new();
    let points = points.clone();
    let steps: Vec<(usize, u32)> = steps.iter().map(|step| (step.at, step.round)).collect();
    let began = Instant::now();
    let mut wait = options.wait;
    for (index, round) in steps {
        let (Some(point), Some(plan)) = (points.get(index), plans.get(at)) else { continue };
        if plan.done.contains(&(index, round)) {
            one.before += 1;
            // Points recorded as failed are retried on request only.
            let before = plan.records.iter().find(|r| r.key == point.key() && r.round == round);
            match before.map(|record| &record.outcome) {
                Some(Outcome::Failed(_)) => *failures.entry(index).or_default() += 1,
                Some(Outcome::Missing(_)) => _ = failures.insert(index, MOST_FAILURES),
                Some(Outcome::Measured(_)) | None => {}
            }
            continue;
        }
        if failures.get(&index).is_some_and(|count| *count >= MOST_FAILURES) {
            one.left_out += 1;
            if let Some(plan) = plans.get_mut(at) {
                plan.done.insert((index, round));
            }
            continue;
        }
        if stop.asked() {
            break;
        }
        if round > 1 && options.within.is_some_and(|within| began.elapsed() > within) {
            progress.say(&format!("{}: the time is over in round {round}", one.name));
            break;
        }
        while !wait.is_zero() && !stop.asked() && are_apart(cache_line_ns(&options.pinning)) {
            let second = wait.min(Duration::from_secs(1));
            std::thread::sleep(second);
            wait -= second;
        }
        let total = plans.iter().map(|plan| plan.steps.len()).sum();
        let done = plans.iter().map(|plan| plan.done.len()).sum();
        progress.begins(point, round, done, total, left(plans, options.quick));
        let Some(plan) = plans.get_mut(at) else { continue };
        let mut once = |measure: &mut Option<_>| {
            let folder = plan.folder.path();
            let taken = take(plan.source, point, round, options, make, stop, &mut paths, measure, folder)?;
            Some(Record { load: Load { awake: awake.is_some(), ..taken.load.clone() }, ..taken })
        };
        let Some(mut record) = once(&mut measure) else { break };
        let of_these = |record: &&Record| points.iter().any(|point| point.key() == record.key);
        let before: u32 = plan.records.iter().filter(of_these).map(|record| record.retaken).sum();
        let runs = if options.quick { QUICK_RUNS_TO_A_RETAKE } else { RUNS_TO_A_RETAKE };
        let spare = u32::try_from(plan.steps.len().div_ceil(runs)).unwrap_or(u32::MAX);
        while record.load.disturbed
            && record.sample().is_some()
            && record.retaken < MOST_RETAKES.min(spare.saturating_sub(before))
        {
            // The record is complete if the user requests the end now. The measure is dropped
            // because state measured once per round was disturbed as well.
            measure = None;
            let Some(again) = once(&mut measure) else { break };
            let failed = match &again.outcome {
                Outcome::Failed(why) => Some(why.clone()),
                Outcome::Measured(_) | Outcome::Missing(_) => None,
            };
            record = calmer(record, again);
            if let Some(why) = failed {
                // Its logs stay.
                progress.say(&format!(
                    "{}, round {round}: failed when it was taken again, since it had been disturbed: {why}",
                    point.key()
                ));
                break;
            }
        }
        one.retaken += usize::try_from(record.retaken).unwrap_or_default();
        match &record.outcome {
            Outcome::Measured(_) => one.measured += 1,
            Outcome::Missing(_) => {
                one.missing += 1;
                failures.insert(index, MOST_FAILURES);
            }
            Outcome::Failed(_) => {
                one.failed += 1;
                *failures.entry(index).or_default() += 1;
            }
        }
        plan.folder.save(&record)?;
        plan.done.insert((index, round));
        plan.took.entry(index).or_default().push(record.seconds);
        progress.ended(&record);
        // With --retry an earlier record of the same point and round may have been read.
        plan.records.retain(|before| before.key != record.key || before.round != record.round);
        plan.records.push(record);
    }
    drop(measure);
    if let Some(plan) = plans.get(at) {
        plan.folder.save_csv(&plan.source.experiment, &plan.records)?;
        // Succeeds only if it is empty: the logs of failed points stay.
        let _ = fs::remove_dir(plan.folder.path().join("logs"));
    }
    Ok(one)
}

/// The less disturbed of two runs of one point; the other is discarded, whatever its figures. A
/// failed second run is always discarded.
fn calmer(first: Record, second: Record) -> Record {
    let (retaken, began, seconds) = (first.retaken + 1, first.began, first.seconds + second.seconds);
    let better = second.sample().is_some() && second.load.is_calmer_than(&first.load);
    let kept = if better { second } else { first };
    Record { retaken, began, seconds, ..kept }
}

/// The expected time of the remaining runs. Each point is expected to take its last time, else the
/// mean of its experiment, else the time in the file.
fn left(plans: &[Plan<'_>], quick: bool) -> Duration {
    let mut seconds = 0.0;
    for plan in plans {
        let (sum, count) =
            plan.took.values().flatten().fold((0.0, 0), |(sum, count), took| (sum + took, count + 1));
        let usual = if count > 0 { sum / f64::from(count) } else { plan.source.experiment.expect_s(quick) };
        for step in plan.steps.iter().filter(|step| !plan.done.contains(&(step.at, step.round))) {
            seconds += plan.took.get(&step.at).and_then(|took| took.last().copied()).unwrap_or(usual);
        }
    }
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Measures one point once. `None`: the user requested the end, and the point counts as not
/// measured.
#[expect(clippy::too_many_arguments, reason = "all that one point depends on")]
fn take(
    source: &Source,
    point: &Point,
    round: u32,
    options: &Options,
    make: Maker<'_>,
    stop: &Stop,
    paths: &mut Paths,
    measure: &mut Option<Box<dyn Measure>>,
    folder: &Path,
) -> Option<Record> {
    let began = results::now();
    let clock = Instant::now();
    let logs = folder.join("logs").join(file_name(&point.key(), round));
    let seed = options.seed.wrapping_add(u64::from(round) - 1);
    let line_ns = cache_line_ns(&options.pinning);
    let look = Look::now();
    let found = measured(source, point, round, seed, options, make, stop, paths, measure, &logs);
    let mut load = look.since();
    load.cache_line_ns = line_ns;
    // The hypervisor moved the cores meanwhile.
    let after = if line_ns.is_some() { cache_line_ns(&options.pinning) } else { None };
    load.disturbed |= after.is_some() && are_apart(line_ns) != are_apart(after);
    let mut link = serde_json::Value::Null;
    let outcome = match found {
        Ok(sample) => {
            // Logs of successful points are not needed; remains do no harm.
            let _ = fs::remove_dir_all(&logs);
            link = paths.record();
            Outcome::Measured(sample)
        }
        Err(_) if stop.asked() => return None,
        Err(measure::Error::Missing(why)) => {
            let _ = fs::remove_dir_all(&logs);
            Outcome::Missing(why)
        }
        Err(error) => {
            // The measure's state or its link may have caused the failure.
            *measure = None;
            link = paths.record();
            paths.leave();
            Outcome::Failed(error.to_string())
        }
    };
    load.link_behind = link["behind"].as_str().map(str::to_owned);
    load.disturbed |= load.link_behind.is_some();
    Some(Record {
        format: FORMAT,
        experiment: source.experiment.name.clone(),
        key: point.key(),
        coordinates: point.by_axis(),
        round,
        seed,
        quick: options.quick,
        began,
        seconds: clock.elapsed().as_secs_f64(),
        outcome,
        load,
        link,
        settings: point.settings.clone(),
        retaken: 0,
    })
}

#[expect(clippy::too_many_arguments, reason = "all that one point depends on")]
fn measured(
    source: &Source,
    point: &Point,
    round: u32,
    seed: u64,
    options: &Options,
    make: Maker<'_>,
    stop: &Stop,
    paths: &mut Paths,
    measure: &mut Option<Box<dyn Measure>>,
    logs: &Path,
) -> Result<crate::Sample, measure::Error> {
    let within = Duration::try_from_secs_f64(source.experiment.timeout_s(options.quick))
        .unwrap_or(Duration::from_secs(60));
    if logs.exists() {
        fs::remove_dir_all(logs).map_err(measure::Error::io(logs.display().to_string()))?;
    }
    fs::create_dir_all(logs).map_err(measure::Error::io(logs.display().to_string()))?;
    if paths.changes(point)? {
        // Its processes use the path that ends now.
        *measure = None;
    }
    paths.lead(point)?;
    let measure = match measure {
        Some(measure) => measure,
        None => measure.insert(make(&source.experiment)?),
    };
    let mut context = Context::new(options.stag.clone(), logs.to_owned(), within, stop.clone());
    context.seed = seed;
    context.round = round;
    context.pinning = options.pinning.clone();
    context.realtime = options.realtime;
    paths.enter(&mut context);
    measure.run(point, &mut context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(found: Option<f64>, stolen_percent: f64) -> Record {
        let outcome = match found {
            Some(iops) => {
                let mut sample = crate::Sample::new();
                sample.rate("iops", iops, "IOPS");
                Outcome::Measured(sample)
            }
            None => Outcome::Failed("the target died".into()),
        };
        Record {
            format: FORMAT,
            experiment: "x".into(),
            key: "-".into(),
            coordinates: BTreeMap::new(),
            round: 1,
            seed: 1,
            quick: false,
            began: 100.0 + stolen_percent,
            seconds: 1.5,
            outcome,
            load: Load { stolen_percent, disturbed: stolen_percent > 10.0, ..Load::default() },
            link: serde_json::Value::Null,
            settings: toml::Table::new(),
            retaken: 0,
        }
    }

    #[test]
    fn of_two_runs_the_one_is_kept_that_was_disturbed_less_whatever_it_found() {
        let iops = |record: &Record| record.sample().map(|sample| sample.values["iops"].value);
        let kept = calmer(record(Some(900.0), 40.0), record(Some(100.0), 12.0));
        assert_eq!((iops(&kept), kept.retaken, kept.seconds), (Some(100.0), 1, 3.0));
        assert!((kept.began - 140.0).abs() < 1e-9, "it began with the first");
        let kept = calmer(kept, record(Some(5000.0), 20.0));
        assert_eq!((iops(&kept), kept.retaken, kept.load.stolen_percent), (Some(100.0), 2, 12.0));
        // The programs of a run over a link that was behind were not measured over that link.
        let behind = |mut record: Record| {
            record.load.link_behind = Some("it was late".into());
            record
        };
        let kept = calmer(behind(record(Some(900.0), 0.0)), record(Some(100.0), 8.0));
        assert_eq!(iops(&kept), Some(100.0));
        let kept = calmer(record(Some(100.0), 8.0), behind(record(Some(900.0), 0.0)));
        assert_eq!(iops(&kept), Some(100.0));
        // A failed run has no figure.
        let kept = calmer(record(Some(900.0), 40.0), record(None, 0.0));
        assert_eq!((iops(&kept), kept.retaken), (Some(900.0), 1));
    }
}
