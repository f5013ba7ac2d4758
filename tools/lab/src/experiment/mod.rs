//! The file of an experiment: the measured points, their presentation, and the claims judged
//! against them. docs/src/lab/lab.md describes the format for authors. This module reads it,
//! `check` validates it; neither runs anything.

mod check;
mod choice;
pub(crate) mod program;

use std::collections::{BTreeMap, BTreeSet};

pub use choice::{Choice, Many, Range, Selection, fits};
use serde::{Deserialize, Serialize};

use crate::point::{Point, Value, size};

/// The version of the file format that this program reads.
pub const FORMAT: u32 = 1;
/// The maximum number of points of one experiment.
pub(crate) const MOST_POINTS: usize = 4096;
/// The setting that limits the rounds of a point.
const ROUNDS: &str = "rounds";

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// [`FORMAT`].
    pub format: u32,
    /// Its name on the command line and in results: lower-case letters, digits and hyphens.
    pub name: String,
    pub title: String,
    /// The work that it reproduces: a paper's figures and tables.
    #[serde(default)]
    pub paper: String,
    /// Its description, in paragraphs separated by empty lines.
    #[serde(default)]
    pub about: String,
    /// The kind of measurement ([`crate::measures::KINDS`]).
    pub measure: String,
    /// The number of rounds of each point.
    #[serde(default = "three")]
    pub rounds: u32,
    /// Whether processors are kept awake during a point.
    #[serde(default = "yes")]
    pub awake: bool,
    /// The time limit of a point, seconds.
    #[serde(default = "minute")]
    pub timeout_s: f64,
    /// The expected time of a point, seconds: for the remaining time before the first point has
    /// been measured.
    #[serde(default = "some_seconds")]
    pub expect_s: f64,
    /// Settings of the measure that apply to all points.
    #[serde(default)]
    pub settings: toml::Table,
    /// The differences with `--quick`.
    #[serde(default)]
    pub quick: Quick,
    /// The axes of the matrix, the slowest first.
    #[serde(default)]
    pub axis: Vec<Axis>,
    /// Points of the matrix that are skipped.
    #[serde(default)]
    pub skip: Vec<Skip>,
    /// Plots of the report.
    #[serde(default)]
    pub plot: Vec<Plot>,
    /// Tables of the report; if empty, one table of everything.
    #[serde(default)]
    pub table: Vec<Table>,
    /// Claims that are judged against the figures.
    #[serde(default)]
    pub finding: Vec<Finding>,
    /// Figures of the paper, shown unchanged.
    #[serde(default)]
    pub reference: Vec<Reference>,
    /// Servers of the measure `commands`, by name.
    #[serde(default)]
    pub server: BTreeMap<String, program::Program>,
    /// Its clients.
    #[serde(default)]
    pub client: BTreeMap<String, program::Program>,
    /// Names of quantities for readers, by quantity; common quantities have default names.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
}

/// Default names of quantities for readers.
const NAMES: &[(&str, &str)] = &[
    ("iops", "I/Os a second"),
    ("mb_s", "throughput"),
    ("mbit_s", "throughput"),
    ("link_percent", "part of the link"),
    ("mean_us", "mean latency"),
    ("p50_us", "median latency"),
    ("p90_us", "latency, 90th percentile"),
    ("p99_us", "latency, 99th percentile"),
    ("p999_us", "latency, 99.9th percentile"),
    ("max_us", "largest latency"),
    ("target_us", "the target's processor time an I/O"),
    ("client_us", "the client's processor time an I/O"),
    ("target_percent", "the target's processor time"),
    ("client_percent", "the client's processor time"),
    ("machine_us", "the whole machine's processor time an I/O"),
    ("machine_user_us", "time in programs an I/O"),
    ("machine_system_us", "time in system calls an I/O"),
    ("machine_irq_us", "time in interrupt handlers an I/O"),
    ("machine_softirq_us", "time in deferred work of interrupts an I/O"),
    ("machine_percent", "the whole machine's processor time"),
    ("interrupts", "interrupts an I/O"),
    ("switches", "context switches an I/O"),
    ("rtt_ms", "round trip"),
];

/// The differences with `--quick`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Quick {
    /// Rounds; 2 by default.
    pub rounds: Option<u32>,
    /// Seconds.
    pub timeout_s: Option<f64>,
    /// Seconds.
    pub expect_s: Option<f64>,
    /// Settings, which override those of the experiment.
    #[serde(default)]
    pub settings: toml::Table,
}

/// One axis of the matrix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Axis {
    /// Its name, by which a measure reads the point's value.
    pub name: String,
    /// Its name for readers.
    #[serde(default)]
    pub title: String,
    /// The unit of its numbers; with `B`, values such as "64k" are numbers.
    #[serde(default)]
    pub unit: String,
    /// Its values, in the order of measurement and presentation.
    pub values: Vec<Value>,
    pub quick: Option<Vec<Value>>,
    /// Names of values for readers, by value.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Settings at a value, by value; they override all others.
    #[serde(default)]
    pub settings: BTreeMap<String, toml::Table>,
}

/// Points that are skipped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Skip {
    /// The selection of the points.
    #[serde(rename = "where")]
    pub at: Selection,
    /// The reason, for the reader.
    #[serde(default)]
    pub because: String,
}

/// Placement of values along an axis of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// Powers of two evenly.
    Log2,
    /// Powers of ten evenly.
    Log10,
    /// Each value at its own place, equally spaced.
    Category,
}

/// Style of a plot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    #[default]
    Lines,
    /// Bars from zero.
    Bars,
    /// The distribution of latencies over all rounds: x is the latency, y the share of I/Os that
    /// took no longer.
    Cdf,
}

/// One plot, or with `panel` one per value of that axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plot {
    /// The name of its files: lower-case letters, digits and hyphens.
    pub name: String,
    pub title: String,
    /// The quantity on the y axis; several of one unit are drawn as separate lines. None of a
    /// distribution.
    #[serde(default)]
    pub quantity: Many,
    /// The axis on the x axis; none of a distribution.
    #[serde(default)]
    pub x: String,
    /// The axes whose values form the lines.
    #[serde(default)]
    pub series: Vec<String>,
    /// The axis with one plot per value.
    pub panel: Option<String>,
    /// The selection of points.
    #[serde(default, rename = "where")]
    pub at: Selection,
    #[serde(default)]
    pub kind: Kind,
    /// The x scale. By default log2 for bytes, category for words and bars, else linear.
    pub x_scale: Option<Scale>,
    /// The y scale; linear by default.
    pub y_scale: Option<Scale>,
    /// The title of the reference whose numbers are drawn beside ours, dashed.
    pub reference: Option<String>,
    /// A note under the plot.
    #[serde(default)]
    pub note: String,
}

/// One table: a row per combination of `rows`, a column per combination of `columns` and per
/// quantity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    pub title: String,
    /// Axes of the rows.
    pub rows: Vec<String>,
    /// Axes of the columns.
    #[serde(default)]
    pub columns: Vec<String>,
    /// The quantities in the cells.
    pub quantity: Many,
    /// The selection of points.
    #[serde(default, rename = "where")]
    pub at: Selection,
    /// A note under the table.
    #[serde(default)]
    pub note: String,
}

/// A claim, and how it is judged.
///
/// Each point that matches `where` and `of` is judged by its quantity. With `to`, by the ratio to
/// the point that differs in `to` only. With `against`, by the ratio of that ratio to the same
/// ratio at the point that differs in `against`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Finding {
    /// Its source: "Thesis, figure 5.4".
    #[serde(default)]
    pub source: String,
    /// The claim, a sentence.
    pub claim: String,
    /// Whose claim it is; by default the paper's if the experiment repeats one, else our own mark.
    pub class: Option<Class>,
    pub quantity: String,
    /// The selection of points.
    #[serde(default)]
    pub of: Selection,
    /// The coordinates of the divisor that differ.
    pub to: Option<BTreeMap<String, Value>>,
    /// The quantity of the divisor, if another. (With it `to` can be left out: the same point.)
    pub to_quantity: Option<String>,
    /// The coordinates that differ in the ratio that divides this ratio.
    pub against: Option<BTreeMap<String, Value>>,
    /// The selection of all points concerned, except for the coordinates of `to` and `against`.
    #[serde(default, rename = "where")]
    pub at: Selection,
    /// The claim holds at a point whose figure is at least this …
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    /// The points at which it must hold.
    #[serde(default)]
    pub over: Over,
}

/// Whose claim a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The paper's.
    Paper,
    /// It follows from how the experiment is built, whatever is measured.
    Construction,
    /// A mark that we set ourselves.
    Ours,
}

impl Class {
    /// All, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Construction, Self::Ours];

    pub fn words(self) -> &'static str {
        match self {
            Self::Paper => "the paper's claim",
            Self::Construction => "by construction",
            Self::Ours => "our own mark",
        }
    }
}

/// The points at which a claim must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    #[default]
    Every,
    Some,
    /// The geometric mean of all.
    Mean,
}

/// Figures of the paper, as a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reference {
    pub title: String,
    #[serde(default)]
    pub source: String,
    pub columns: Vec<String>,
    /// For plots: the column that names the place on their x axis.
    pub x: Option<String>,
    /// For plots with panels: the column that names the panel.
    pub panel: Option<String>,
    /// Cells, shown unchanged.
    pub rows: Vec<Vec<Value>>,
}

/// An error in an experiment's file.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It is not valid TOML, or has unknown keys.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// Its values are inconsistent.
    #[error("{0}")]
    Sense(String),
}

fn three() -> u32 {
    3
}

fn yes() -> bool {
    true
}

fn minute() -> f64 {
    60.0
}

fn some_seconds() -> f64 {
    3.0
}

impl Experiment {
    /// Reads and checks the text of a file.
    ///
    /// # Errors
    /// The first error found, in terms of the file's keys.
    pub fn read(text: &str) -> Result<Self, Wrong> {
        let mut experiment: Self = toml::from_str(text)?;
        experiment.read_sizes();
        experiment.check().map_err(Wrong::Sense)?;
        Ok(experiment)
    }

    pub fn axis(&self, name: &str) -> Option<&Axis> {
        self.axis.iter().find(|axis| axis.name == name)
    }

    /// The reference whose numbers `plot` draws.
    pub fn reference_of(&self, plot: &Plot) -> Option<&Reference> {
        let title = plot.reference.as_ref()?;
        self.reference.iter().find(|reference| reference.title == *title)
    }

    /// Whose claim `finding` is.
    pub fn class(&self, finding: &Finding) -> Class {
        let usual = if self.paper.is_empty() { Class::Ours } else { Class::Paper };
        finding.class.unwrap_or(usual)
    }

    /// The number of rounds of each point.
    pub fn rounds(&self, quick: bool) -> u32 {
        if quick { self.quick.rounds.unwrap_or(2) } else { self.rounds }
    }

    /// The maximum number of rounds of `point`, from its setting `rounds`; overrides the
    /// experiment's.
    pub(crate) fn most_rounds(&self, point: &Point) -> Option<u32> {
        point
            .settings
            .get(ROUNDS)
            .and_then(toml::Value::as_integer)
            .and_then(|rounds| u32::try_from(rounds).ok())
    }

    /// The total number of runs: points times rounds.
    pub fn runs(&self, quick: bool) -> usize {
        let rounds = self.rounds(quick);
        let of = |point: &Point| self.most_rounds(point).map_or(rounds, |most| most.min(rounds));
        self.points(quick).iter().map(|point| usize::try_from(of(point)).unwrap_or(usize::MAX)).sum()
    }

    /// The time limit of a point, seconds.
    pub fn timeout_s(&self, quick: bool) -> f64 {
        self.quick.timeout_s.filter(|_| quick).unwrap_or(self.timeout_s)
    }

    /// The expected time of a point, seconds.
    pub fn expect_s(&self, quick: bool) -> f64 {
        self.quick.expect_s.filter(|_| quick).unwrap_or(self.expect_s)
    }

    /// All points that are not skipped; the last axis changes fastest.
    pub fn points(&self, quick: bool) -> Vec<Point> {
        let mut all: Vec<Vec<(String, Value)>> = vec![Vec::new()];
        for axis in &self.axis {
            let values = axis.quick.as_ref().filter(|_| quick).unwrap_or(&axis.values);
            let longer = |point: &Vec<(String, Value)>| {
                let point = point.clone();
                values.iter().map(move |value| {
                    let mut longer = point.clone();
                    longer.push((axis.name.clone(), value.clone()));
                    longer
                })
            };
            all = all.iter().flat_map(longer).collect();
        }
        all.retain(|coordinates| !self.skip.iter().any(|skip| fits(&skip.at, coordinates)));
        all.into_iter().map(|coordinates| self.point(coordinates, quick)).collect()
    }

    fn point(&self, coordinates: Vec<(String, Value)>, quick: bool) -> Point {
        let mut settings = self.settings.clone();
        if quick {
            settings.extend(self.quick.settings.clone());
        }
        for (name, value) in &coordinates {
            let over = self.axis(name).and_then(|axis| axis.settings.get(&value.to_string()));
            settings.extend(over.cloned().unwrap_or_default());
        }
        Point { experiment: self.name.clone(), coordinates, settings, quick }
    }

    /// The name of `value` of `axis` for readers.
    pub fn label(&self, axis: &str, value: &Value) -> String {
        let Some(axis) = self.axis(axis) else { return value.to_string() };
        if let Some(label) = axis.labels.get(&value.to_string()) {
            return label.clone();
        }
        match (axis.unit.as_str(), value) {
            ("B", Value::Whole(bytes)) => bytes_label(*bytes),
            ("", _) | (_, Value::Text(_) | Value::Truth(_)) => value.to_string(),
            (unit, _) => format!("{value} {unit}"),
        }
    }

    /// The name of `value` without context: a bare number gets its axis's name.
    pub fn place(&self, axis: &str, value: &Value) -> String {
        let label = self.label(axis, value);
        let bare = !matches!(value, Value::Text(_)) && label == value.to_string();
        if bare { format!("{} {label}", self.axis_title(axis)) } else { label }
    }

    /// The axis's name for readers.
    pub(crate) fn axis_title(&self, axis: &str) -> String {
        match self.axis(axis) {
            Some(Axis { title, .. }) if !title.is_empty() => title.clone(),
            _ => axis.to_owned(),
        }
    }

    /// A quantity's name for readers.
    pub(crate) fn quantity_name(&self, quantity: &str) -> String {
        let usual = || NAMES.iter().find(|(name, _)| *name == quantity).map(|(_, words)| (*words).to_owned());
        self.names.get(quantity).cloned().or_else(usual).unwrap_or_else(|| quantity.replace('_', " "))
    }

    /// Converts sizes such as "64k" into numbers wherever the unit is bytes.
    fn read_sizes(&mut self) {
        let bytes: BTreeSet<String> =
            self.axis.iter().filter(|axis| axis.unit == "B").map(|axis| axis.name.clone()).collect();
        for axis in self.axis.iter_mut().filter(|axis| bytes.contains(&axis.name)) {
            axis.values.iter_mut().chain(axis.quick.iter_mut().flatten()).for_each(read_size);
            let settings = std::mem::take(&mut axis.settings);
            axis.settings =
                settings.into_iter().map(|(value, over)| (Value::read(&value).to_string(), over)).collect();
            let labels = std::mem::take(&mut axis.labels);
            axis.labels =
                labels.into_iter().map(|(value, label)| (Value::read(&value).to_string(), label)).collect();
        }
        let selections = (self.skip.iter_mut().map(|skip| &mut skip.at))
            .chain(self.plot.iter_mut().map(|plot| &mut plot.at))
            .chain(self.table.iter_mut().map(|table| &mut table.at))
            .chain(self.finding.iter_mut().flat_map(|finding| [&mut finding.at, &mut finding.of]));
        for (_, choice) in selections.flatten().filter(|(axis, _)| bytes.contains(*axis)) {
            match choice {
                Choice::One(one) => read_size(one),
                Choice::Any(any) => any.iter_mut().for_each(read_size),
                Choice::Range(Range { from, to }) => from.iter_mut().chain(to).for_each(read_size),
            }
        }
        let partners = self.finding.iter_mut().flat_map(|finding| [&mut finding.to, &mut finding.against]);
        for (_, value) in partners.flatten().flatten().filter(|(axis, _)| bytes.contains(*axis)) {
            read_size(value);
        }
    }
}

impl Axis {
    /// All values of the axis, with and without `--quick`, each once.
    pub(crate) fn every_value(&self) -> impl Iterator<Item = &Value> {
        let more = self.quick.iter().flatten();
        self.values.iter().chain(more.filter(|value| !self.values.iter().any(|known| known.same(value))))
    }

    /// The position of a value in the order of the file.
    pub fn rank(&self, value: &Value) -> usize {
        self.every_value().position(|known| known.same(value)).unwrap_or(usize::MAX)
    }
}

fn read_size(value: &mut Value) {
    if let Value::Text(text) = value {
        if let Some(bytes) = size(text) {
            *value = Value::Whole(bytes);
        }
    }
}

/// 65536 as `64 KiB`.
pub(crate) fn bytes_label(bytes: i64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes % (1 << shift) == 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// `text` with a capital first letter, unless it is a name like iSCSI.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let Some(first) = letters.next() else { return String::new() };
    if letters.clone().next().is_some_and(char::is_uppercase) {
        return text.to_owned();
    }
    first.to_uppercase().chain(letters).collect()
}
