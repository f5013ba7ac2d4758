//! The file of an experiment: what is measured at which points, how it is shown, and which claims are held against it.
//! docs/lab.md describes it for those who write one. It is read here, and checked in `check`; nothing is run.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::point::{Point, Value, size};

/// The format of files that this program reads.
pub const FORMAT: u32 = 1;
/// The most points of one experiment.
pub const MOST_POINTS: usize = 4096;
/// The setting that says how often a point is taken at most.
const ROUNDS: &str = "rounds";

/// A whole experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// [`FORMAT`].
    pub format: u32,
    /// Its name on the command line and in results: lower-case letters, digits and hyphens.
    pub name: String,
    /// One line.
    pub title: String,
    /// What it repeats: a paper's figures and tables.
    #[serde(default)]
    pub paper: String,
    /// What it is about, in paragraphs that an empty line parts.
    #[serde(default)]
    pub about: String,
    /// The kind of measurement ([`crate::measures::KINDS`]).
    pub measure: String,
    /// How often each point is taken.
    #[serde(default = "three")]
    pub rounds: u32,
    /// Whether processors are kept awake meanwhile.
    #[serde(default = "yes")]
    pub awake: bool,
    /// The longest that a point may take, seconds.
    #[serde(default = "minute")]
    pub timeout_s: f64,
    /// How long a point is expected to take, seconds: for the time that is left before any has been taken.
    #[serde(default = "some_seconds")]
    pub expect_s: f64,
    /// For the measure, the same for all points.
    #[serde(default)]
    pub settings: toml::Table,
    /// What is otherwise with `--quick`.
    #[serde(default)]
    pub quick: Quick,
    /// The axes of the matrix, the slowest first.
    #[serde(default)]
    pub axis: Vec<Axis>,
    /// Points of the matrix that are left out.
    #[serde(default)]
    pub skip: Vec<Skip>,
    /// Plots of the report.
    #[serde(default)]
    pub plot: Vec<Plot>,
    /// Tables of the report; without any, one of everything.
    #[serde(default)]
    pub table: Vec<Table>,
    /// Claims that are held against the figures.
    #[serde(default)]
    pub finding: Vec<Finding>,
    /// Figures of the paper, shown as they are.
    #[serde(default)]
    pub reference: Vec<Reference>,
    /// Names of quantities for readers, by quantity; the usual ones have names.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
}

/// Names of quantities for readers.
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
    ("rtt_ms", "round trip"),
];

/// What is otherwise with `--quick`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Quick {
    /// Rounds; 2 unless said.
    pub rounds: Option<u32>,
    /// Seconds.
    pub timeout_s: Option<f64>,
    /// Seconds.
    pub expect_s: Option<f64>,
    /// Over those of the experiment.
    #[serde(default)]
    pub settings: toml::Table,
}

/// One axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Axis {
    /// Its name: what a measure asks its point for.
    pub name: String,
    /// Its name for readers.
    #[serde(default)]
    pub title: String,
    /// The unit of its numbers; with `B`, values such as "64k" are numbers.
    #[serde(default)]
    pub unit: String,
    /// Its values, in the order in which they are taken and shown.
    pub values: Vec<Value>,
    /// Its values with `--quick`.
    pub quick: Option<Vec<Value>>,
    /// Names of values for readers, by value.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Settings that hold at a value, over all others, by value.
    #[serde(default)]
    pub settings: BTreeMap<String, toml::Table>,
}

/// Points that are left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Skip {
    /// Which.
    #[serde(rename = "where")]
    pub at: Selection,
    /// Why, for the reader.
    #[serde(default)]
    pub because: String,
}

/// Points, by axis: those that fit all.
pub type Selection = BTreeMap<String, Choice>;

/// Of the values of one axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    /// This one.
    One(Value),
    /// One of these.
    Any(Vec<Value>),
    /// Numbers from `from` to `to`, both included.
    Range(Range),
}

/// Numbers from `from` to `to`, both included.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// No less.
    pub from: Option<Value>,
    /// No more.
    pub to: Option<Value>,
}

impl Choice {
    /// Whether `value` is chosen.
    pub fn has(&self, value: &Value) -> bool {
        match self {
            Self::One(one) => one.same(value),
            Self::Any(any) => any.iter().any(|one| one.same(value)),
            Self::Range(Range { from, to }) => value.number().is_some_and(|number| {
                from.as_ref().and_then(Value::number).is_none_or(|from| number >= from)
                    && to.as_ref().and_then(Value::number).is_none_or(|to| number <= to)
            }),
        }
    }
}

/// One thing or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Many {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl Many {
    /// All of them.
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

/// How numbers lie along an axis of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// Powers of two evenly.
    Log2,
    /// Powers of ten evenly.
    Log10,
    /// Each value a place of its own.
    Category,
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Lines with marks.
    #[default]
    Lines,
    /// Bars from zero.
    Bars,
}

/// One plot, or with `panel` one for each value of an axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plot {
    /// The name of its files: lower-case letters, digits and hyphens.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What goes upwards; several of one unit are lines of their own.
    pub quantity: Many,
    /// The axis across.
    pub x: String,
    /// The axes whose values make the lines.
    #[serde(default)]
    pub series: Vec<String>,
    /// The axis of whose values each has a plot of its own.
    pub panel: Option<String>,
    /// Which points.
    #[serde(default, rename = "where")]
    pub at: Selection,
    /// Lines or bars.
    #[serde(default)]
    pub kind: Kind,
    /// Across: log2 for bytes, each value a place for words and bars, else linear.
    pub x_scale: Option<Scale>,
    /// Upwards: linear unless said.
    pub y_scale: Option<Scale>,
    /// What is said under it.
    #[serde(default)]
    pub note: String,
}

/// One table: a row for each combination of `rows`, a column for each of `columns` and quantity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Axes.
    pub rows: Vec<String>,
    /// Axes.
    #[serde(default)]
    pub columns: Vec<String>,
    /// What is in the cells.
    pub quantity: Many,
    /// Which points.
    #[serde(default, rename = "where")]
    pub at: Selection,
    /// What is said under it.
    #[serde(default)]
    pub note: String,
}

/// A claim, and how it is judged.
///
/// For each point that fits `where` and `of`, the quantity there, or with `to` its ratio to that of the point which differs by
/// `to` only, or with `against` the ratio of this ratio to the same at the point that differs by `against`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Finding {
    /// Where it is from: "Thesis, figure 5.4".
    #[serde(default)]
    pub source: String,
    /// The claim, a sentence.
    pub claim: String,
    /// What is judged.
    pub quantity: String,
    /// Which points.
    #[serde(default)]
    pub of: Selection,
    /// What they are divided by: coordinates that differ.
    pub to: Option<BTreeMap<String, Value>>,
    /// The quantity that it is divided by, if another. (With it `to` may be left out: the same point.)
    pub to_quantity: Option<String>,
    /// What the ratio is divided by: coordinates that differ.
    pub against: Option<BTreeMap<String, Value>>,
    /// Which points, in all that is looked at but for `to` and `against`.
    #[serde(default, rename = "where")]
    pub at: Selection,
    /// It holds at a point where the figure is this or more…
    pub at_least: Option<f64>,
    /// … and this or less.
    pub at_most: Option<f64>,
    /// At how many points it has to hold.
    #[serde(default)]
    pub over: Over,
}

/// At how many points a claim has to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// All.
    #[default]
    Every,
    /// One or more.
    Some,
    /// In the geometric mean of all.
    Mean,
}

/// Figures of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reference {
    /// What they are.
    pub title: String,
    /// Where they are from.
    #[serde(default)]
    pub source: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Cells, as they are shown.
    pub rows: Vec<Vec<Value>>,
}

/// What is wrong with an experiment's file.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It is no TOML, or has keys that mean nothing.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// It makes no sense.
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
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// What is wrong with it, in the words of its own keys.
    pub fn read(text: &str) -> Result<Self, Wrong> {
        let mut experiment: Self = toml::from_str(text)?;
        experiment.read_sizes();
        experiment.check().map_err(Wrong::Sense)?;
        Ok(experiment)
    }

    /// The axis of that name.
    pub fn axis(&self, name: &str) -> Option<&Axis> {
        self.axis.iter().find(|axis| axis.name == name)
    }

    /// How often each point is taken.
    pub fn rounds(&self, quick: bool) -> u32 {
        if quick { self.quick.rounds.unwrap_or(2) } else { self.rounds }
    }

    /// How often `point` is taken at most, whatever the rounds of the experiment: its setting `rounds`.
    pub fn most_rounds(&self, point: &Point) -> Option<u32> {
        point
            .settings
            .get(ROUNDS)
            .and_then(toml::Value::as_integer)
            .and_then(|rounds| u32::try_from(rounds).ok())
    }

    /// How many runs that makes.
    pub fn runs(&self, quick: bool) -> usize {
        let rounds = self.rounds(quick);
        let of = |point: &Point| self.most_rounds(point).map_or(rounds, |most| most.min(rounds));
        self.points(quick).iter().map(|point| usize::try_from(of(point)).unwrap_or(usize::MAX)).sum()
    }

    /// The longest that a point may take, seconds.
    pub fn timeout_s(&self, quick: bool) -> f64 {
        self.quick.timeout_s.filter(|_| quick).unwrap_or(self.timeout_s)
    }

    /// How long a point is expected to take, seconds.
    pub fn expect_s(&self, quick: bool) -> f64 {
        self.quick.expect_s.filter(|_| quick).unwrap_or(self.expect_s)
    }

    /// All points that are not skipped, the last axis changing fastest.
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

    /// `value` of `axis` for readers.
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

    /// `value` of `axis` where nothing else says what it is: a bare number gets its axis's name.
    pub fn place(&self, axis: &str, value: &Value) -> String {
        let label = self.label(axis, value);
        let bare = !matches!(value, Value::Text(_)) && label == value.to_string();
        if bare { format!("{} {label}", self.axis_title(axis)) } else { label }
    }

    /// The axis's name for readers.
    pub fn axis_title(&self, axis: &str) -> String {
        match self.axis(axis) {
            Some(Axis { title, .. }) if !title.is_empty() => title.clone(),
            _ => axis.to_owned(),
        }
    }

    /// A quantity's name for readers.
    pub fn quantity_name(&self, quantity: &str) -> String {
        let usual = || NAMES.iter().find(|(name, _)| *name == quantity).map(|(_, words)| (*words).to_owned());
        self.names.get(quantity).cloned().or_else(usual).unwrap_or_else(|| quantity.replace('_', " "))
    }

    /// Where the unit is bytes, "64k" is a number, everywhere.
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
    /// All its values, with and without `--quick`, each once.
    pub fn every_value(&self) -> impl Iterator<Item = &Value> {
        let more = self.quick.iter().flatten();
        self.values.iter().chain(more.filter(|value| !self.values.iter().any(|known| known.same(value))))
    }

    /// Where a value stands in the order of the file.
    pub fn rank(&self, value: &Value) -> usize {
        self.every_value().position(|known| known.same(value)).unwrap_or(usize::MAX)
    }
}

/// Whether the point fits the selection: on each axis that it names.
pub fn fits(selection: &Selection, coordinates: &[(String, Value)]) -> bool {
    selection
        .iter()
        .all(|(axis, choice)| coordinates.iter().any(|(name, value)| name == axis && choice.has(value)))
}

fn read_size(value: &mut Value) {
    if let Value::Text(text) = value {
        if let Some(bytes) = size(text) {
            *value = Value::Whole(bytes);
        }
    }
}

/// 65536 as `64 KiB`.
pub fn bytes_label(bytes: i64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes % (1 << shift) == 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// With a capital letter first, unless it is a name like iSCSI.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let Some(first) = letters.next() else { return String::new() };
    if letters.clone().next().is_some_and(char::is_uppercase) {
        return text.to_owned();
    }
    first.to_uppercase().chain(letters).collect()
}
