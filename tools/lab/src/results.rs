//! The folder of results, with one subfolder per experiment. A subfolder has the experiment's file
//! as it was run, and `run.json` (the machine and the options). It also has `records/` with one
//! JSON file per point and round, and `samples.csv`. Files are written atomically, so an
//! interrupted run can be resumed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use load::Distribution;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::context::Pinning;
use crate::experiment::{Experiment, Wrong};
use crate::figure::Figure;
use crate::library::Source;
use crate::load::are_apart;
use crate::machine::{Machine, hex};
use crate::measures::distribution_of;
use crate::point::Value;
use crate::record::{self, Outcome, Record};
use crate::sample::Quantity;

/// The version of the format of `run.json`.
const FORMAT: u32 = 1;
/// The maximum length of a results file, bytes.
const MOST_FILE: u64 = 128 << 20;

/// The conditions of an experiment's run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// [`FORMAT`].
    pub format: u32,
    pub experiment: String,
    /// SHA-256 of its file.
    pub text: String,
    /// Whether it is a short run (`--quick`).
    pub quick: bool,
    /// The seed of the first round; each later round adds one.
    pub seed: u64,
    /// The processors of both ends.
    pub pinning: Pinning,
    /// When it began: seconds since 1970.
    pub began: f64,
    /// The machine it ran on.
    pub machine: Machine,
}

impl Info {
    /// The conditions of a run that begins now.
    pub fn new(source: &Source, quick: bool, seed: u64, pinning: Pinning, machine: Machine) -> Self {
        Self {
            format: FORMAT,
            experiment: source.experiment.name.clone(),
            text: hex(&Sha256::digest(source.text.as_bytes())),
            quick,
            seed,
            pinning,
            began: now(),
            machine,
        }
    }

    /// The first condition that differs, of those that must be equal within one set of results.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        [
            ("the experiment's file", self.text != other.text),
            ("--quick", self.quick != other.quick),
            ("--seed", self.seed != other.seed),
            ("the processors to run on", self.pinning != other.pinning),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
        .or_else(|| self.machine.differs(&other.machine))
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// An error of a results folder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The path of the file.
        path: String,
        #[source]
        error: io::Error,
    },
    /// It contains results of another run.
    #[error(
        "{path} has results of another run: {what} is not the same; name another folder with --out, or measure anew with --again"
    )]
    Another {
        path: String,
        /// The condition that differs.
        what: &'static str,
    },
    /// Another lab is running there.
    #[error("{0}: another `stag lab run` is at work there")]
    Busy(String),
    /// It contains no results.
    #[error("{0} has no results; `stag lab run NAME --out DIR` makes some")]
    None(String),
    /// A file in it is invalid.
    #[error("{path}: {why}")]
    Broken {
        /// The path of the file.
        path: String,
        why: String,
    },
}

pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |error| Error::Io { path, error }
}

/// The folder of one experiment, opened for writing.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    // Locked while this value lives.
    lock: File,
}

impl Drop for Folder {
    /// Unlocks explicitly: a child process that another thread is just starting may still have the
    /// file open.
    fn drop(&mut self) {
        // On failure the lock ends when the last open descriptor is closed.
        let _ = self.lock.unlock();
    }
}

impl Folder {
    /// Opens `path` for a run, and returns the records of the same run in it. With `again`, removes
    /// earlier results.
    ///
    /// # Errors
    /// If it contains results of another run, if another lab is running in it, or if it cannot be
    /// written.
    pub fn open(
        path: &Path,
        source: &Source,
        info: &Info,
        again: bool,
    ) -> Result<(Self, Vec<Record>), Error> {
        let records = path.join("records");
        fs::create_dir_all(&records).map_err(io_error(&records))?;
        let lock_path = path.join(".lock");
        let lock = File::create(&lock_path).map_err(io_error(&lock_path))?;
        lock.try_lock().map_err(|_| Error::Busy(path.display().to_string()))?;
        let folder = Self { path: path.to_owned(), lock };
        let info_path = path.join("run.json");
        let begun = info_path.exists();
        if begun && again {
            fs::remove_dir_all(&records).map_err(io_error(&records))?;
            fs::create_dir_all(&records).map_err(io_error(&records))?;
        } else if begun {
            let before: Info = read_json(&info_path)?;
            if let Some(what) = info.differs(&before) {
                return Err(Error::Another { path: path.display().to_string(), what });
            }
            let (found, _) = read_records(&records)?;
            return Ok((folder, found));
        }
        folder.write("experiment.toml", source.text.as_bytes())?;
        folder.write_json("run.json", info)?;
        Ok((folder, Vec::new()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Saves a record, replacing an earlier one of the same point and round.
    pub fn save(&self, record: &Record) -> Result<(), Error> {
        self.write_json(&format!("records/{}.json", file_name(&record.key, record.round)), record)
    }

    /// Writes `samples.csv` from all records.
    pub(crate) fn save_csv(&self, experiment: &Experiment, records: &[Record]) -> Result<(), Error> {
        self.write("samples.csv", csv(experiment, records).as_bytes())
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        let path = self.path.join(name);
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| Error::Broken { path: path.display().to_string(), why: error.to_string() })?;
        self.write(name, (text + "\n").as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.path.join(name);
        write_whole(&path, bytes).map_err(io_error(&path))
    }
}

/// Writes a file atomically: into a temporary file beside it, which is then renamed.
///
/// # Errors
/// Errors of the system.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().map(std::ffi::OsStr::to_os_string).unwrap_or_default();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    drop(file);
    fs::rename(&beside, path)
}

/// A file name for a point that is valid on any file system: its key if valid, else with a hash of
/// the key.
pub fn file_name(key: &str, round: u32) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || "._=,-".contains(c);
    let plain: String = key.chars().map(|c| if good(c) { c } else { '_' }).take(120).collect();
    if plain == key {
        return format!("{plain}-r{round}");
    }
    let hash = hex(Sha256::digest(key.as_bytes()).get(..5).unwrap_or_default());
    format!("{plain}-{hash}-r{round}")
}

pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let file = File::open(path).map_err(io_error(path))?;
    file.take(MOST_FILE).read_to_string(&mut text).map_err(io_error(path))?;
    Ok(text)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = read_text(path)?;
    serde_json::from_str(&text)
        .map_err(|error| Error::Broken { path: path.display().to_string(), why: error.to_string() })
}

/// All records, and messages on files that are not valid records.
fn read_records(path: &Path) -> Result<(Vec<Record>, Vec<String>), Error> {
    let (mut records, mut broken) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(io_error(path))? {
        let path = entry.map_err(io_error(path))?.path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        match read_json::<Record>(&path) {
            Ok(record) if record.format == record::FORMAT => records.push(record),
            Ok(record) => broken.push(format!("{}: format {} is not known", path.display(), record.format)),
            Err(error) => broken.push(error.to_string()),
        }
    }
    records.sort_by(|a, b| {
        (a.round, a.began).partial_cmp(&(b.round, b.began)).unwrap_or(std::cmp::Ordering::Equal)
    });
    Ok((records, broken))
}

/// The results of one experiment, for a report.
#[derive(Clone, Debug)]
pub struct Results {
    pub path: PathBuf,
    /// The experiment as it was run.
    pub experiment: Experiment,
    /// The text of its file.
    pub text: String,
    /// The conditions of the run.
    pub info: Info,
    /// All records, by round and time.
    pub records: Vec<Record>,
    /// Messages on files that could not be read.
    pub broken: Vec<String>,
}

/// One point with the figures of its rounds.
#[derive(Clone, Debug)]
pub struct Found {
    /// The value on each axis, in the order of the axes.
    pub coordinates: Vec<(String, Value)>,
    /// The figures, by quantity.
    pub figures: BTreeMap<String, Figure>,
    /// The latencies of all rounds whose tool printed them.
    pub distribution: Distribution,
    /// The number of rounds disturbed by other programs or the hypervisor.
    pub disturbed: usize,
}

impl Found {
    pub fn at(&self, axis: &str) -> Option<&Value> {
        self.coordinates.iter().find(|(name, _)| name == axis).map(|(_, value)| value)
    }

    /// Whether it has all these values.
    pub(crate) fn is_at<'a>(&self, values: impl IntoIterator<Item = &'a (String, Value)>) -> bool {
        values.into_iter().all(|(axis, value)| self.at(axis).is_some_and(|at| at.same(value)))
    }

    /// Whether most rounds of the figure were disturbed.
    pub(crate) fn is_pale(&self, figure: &Figure) -> bool {
        self.disturbed * 2 > figure.rounds.len()
    }
}

impl Results {
    /// Reads the folder of one experiment.
    ///
    /// # Errors
    /// If it is not a valid results folder.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text_path = path.join("experiment.toml");
        let text = read_text(&text_path)?;
        let experiment = Experiment::read(&text).map_err(|error: Wrong| Error::Broken {
            path: text_path.display().to_string(),
            why: error.to_string(),
        })?;
        let info: Info = read_json(&path.join("run.json"))?;
        let (records, broken) = read_records(&path.join("records"))?;
        Ok(Self { path: path.to_owned(), experiment, text, info, records, broken })
    }

    /// All points that were measured, in the order of the axes' values, with the figures of all
    /// runs that count.
    pub fn found(&self) -> Vec<Found> {
        self.sorted(self.counted())
    }

    /// The same with the figures of undisturbed runs only, which decide verdicts. Points whose
    /// runs were all disturbed are left out.
    pub fn undisturbed(&self) -> Vec<Found> {
        let mut by_key = self.counted();
        by_key.values_mut().for_each(|records| records.retain(|record| !record.load.disturbed));
        self.sorted(by_key)
    }

    /// The measured records that count, by point. A hypervisor may move the cores: a point counts
    /// only its runs on cores as far apart as in most runs, if it has any.
    fn counted(&self) -> BTreeMap<&str, Vec<&Record>> {
        let apart = |record: &Record| are_apart(record.load.cache_line_ns);
        let mut by_key: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in self.records.iter().filter(|record| record.sample().is_some()) {
            by_key.entry(&record.key).or_default().push(record);
        }
        let runs = by_key.values().flatten();
        let most_apart = 2 * runs.clone().filter(|record| apart(record)).count() > runs.count();
        for records in by_key.values_mut() {
            if records.iter().any(|record| apart(record) == most_apart) {
                records.retain(|record| apart(record) == most_apart);
            }
        }
        by_key
    }

    /// The points without a figure in any round: those that failed, and those for which the machine
    /// lacks a requirement and that never failed.
    pub fn lost(&self) -> (Vec<Found>, Vec<Found>) {
        let mut by_key: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in &self.records {
            by_key.entry(&record.key).or_default().push(record);
        }
        by_key.retain(|_, records| records.iter().all(|record| record.sample().is_none()));
        let failed =
            |records: &[&Record]| records.iter().any(|record| matches!(record.outcome, Outcome::Failed(_)));
        let (failed, missing) = by_key.into_iter().partition(|(_, records)| failed(records));
        (self.sorted(failed), self.sorted(missing))
    }

    fn sorted(&self, by_key: BTreeMap<&str, Vec<&Record>>) -> Vec<Found> {
        let mut all: Vec<Found> = by_key.into_values().filter_map(|records| self.one(&records)).collect();
        all.sort_by_cached_key(|found| {
            let rank = |(axis, value): &(String, Value)| {
                self.experiment.axis(axis).map_or(0, |axis| axis.rank(value))
            };
            found.coordinates.iter().map(rank).collect::<Vec<_>>()
        });
        all
    }

    fn one(&self, records: &[&Record]) -> Option<Found> {
        let first = records.first()?;
        let axes = self.experiment.axis.iter();
        let coordinates = axes
            .filter_map(|axis| Some((axis.name.clone(), first.coordinates.get(&axis.name)?.clone())))
            .collect();
        let mut quantities: BTreeMap<String, Vec<(u32, &Quantity)>> = BTreeMap::new();
        for record in records {
            for (name, quantity) in record.sample().iter().flat_map(|sample| &sample.values) {
                quantities.entry(name.clone()).or_default().push((record.round, quantity));
            }
        }
        let figures =
            quantities.into_iter().filter_map(|(name, found)| Some((name, Figure::of(found)?))).collect();
        let disturbed = records.iter().filter(|record| record.load.disturbed).count();
        let mut distribution = Distribution::default();
        // What cannot be read `verify` tells.
        let all = records.iter().filter_map(|record| distribution_of(record)?.ok());
        all.for_each(|one| distribution.add(&one));
        Some(Found { coordinates, figures, distribution, disturbed })
    }
}

/// Reads all results under `path`, of one experiment or of every subfolder, ordered by begin.
///
/// # Errors
/// If there are none, or one is invalid.
pub fn read_all(path: &Path) -> Result<Vec<Results>, Error> {
    if path.join("run.json").is_file() {
        return Ok(vec![Results::read(path)?]);
    }
    let mut all = Vec::new();
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(io_error(path))? {
            let folder = entry.map_err(io_error(path))?.path();
            if folder.join("run.json").is_file() {
                all.push(Results::read(&folder)?);
            }
        }
    }
    if all.is_empty() {
        return Err(Error::None(path.display().to_string()));
    }
    all.sort_by(|a, b| a.info.began.total_cmp(&b.info.began));
    Ok(all)
}

/// CSV (RFC 4180) with one line per record: round, axes, outcome, quantities, and disturbance.
pub fn csv(experiment: &Experiment, records: &[Record]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in records.iter().filter_map(Record::sample).flat_map(|sample| sample.values.keys()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    let axes = experiment.axis.iter().map(|axis| axis.name.as_str());
    let head = ["round", "seed"].into_iter().chain(axes).chain(["outcome"]).chain(names.iter().copied());
    let mut text = line(
        head.chain(["seconds", "others_percent", "stolen_percent", "disturbed", "retaken"])
            .map(str::to_owned),
    );
    for record in records {
        let (outcome, sample) = match &record.outcome {
            Outcome::Measured(sample) => ("measured".to_owned(), Some(sample)),
            Outcome::Missing(why) => (format!("missing: {why}"), None),
            Outcome::Failed(why) => (format!("failed: {why}"), None),
        };
        let mut cells = vec![record.round.to_string(), record.seed.to_string()];
        let coordinate =
            |name: &String| record.coordinates.get(name).map(ToString::to_string).unwrap_or_default();
        cells.extend(experiment.axis.iter().map(|axis| coordinate(&axis.name)));
        cells.push(outcome);
        let value = |name: &&str| sample.and_then(|sample| sample.values.get(*name));
        cells.extend(names.iter().map(|name| value(name).map(|q| q.value.to_string()).unwrap_or_default()));
        cells.push(format!("{:.3}", record.seconds));
        cells.push(record.load.others_percent.to_string());
        cells.push(record.load.stolen_percent.to_string());
        cells.push(record.load.disturbed.to_string());
        cells.push(record.retaken.to_string());
        text += &line(cells);
    }
    text
}

/// A line of CSV.
pub fn line(cells: impl IntoIterator<Item = String>) -> String {
    let quoted = cells.into_iter().map(|cell| {
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    });
    quoted.collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_unlocked_after_its_run_despite_an_inherited_descriptor() {
        let text = "format = 1\nname = 'x'\ntitle = 'X'\nmeasure = 'bench'\n[[axis]]\nname = 'way'\nvalues = ['old', 'new']\n";
        let source = Source { experiment: Experiment::read(text).unwrap(), text: text.to_owned() };
        let info = Info::new(&source, false, 1, Pinning::default(), Machine::default());
        let place = tempfile::tempdir().unwrap();
        let open = || Folder::open(place.path(), &source, &info, false).map(|(folder, _)| folder);
        let folder = open().unwrap();
        assert!(matches!(open(), Err(Error::Busy(_))));
        let of_a_child = folder.lock.try_clone().unwrap();
        drop(folder);
        drop(open().unwrap());
        drop(of_a_child);
    }
}
