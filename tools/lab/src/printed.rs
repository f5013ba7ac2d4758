//! Runs that somebody made by hand, as `stag bench --json` and `stag rdma-bench --json` print them:
//! charts of their latencies and intervals, and a comparison of two. It reads, and runs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use load::Distribution;
use serde_json::Value as Json;

use crate::compare::{Comparison, Pair, line};
use crate::experiment::{Kind, Scale, bytes_label};
use crate::figure::{Figure, Noise};
use crate::measures;
use crate::plot::{Chart, numeric};
use crate::report::cdf;
use crate::results::{Error, read_text};
use crate::sample::{Better, Quantity};

/// What names a run among those of a document.
const KEYS: &[&str] = &["pattern", "operation", "bs", "size", "depth", "outstanding"];
/// What should be the same for figures to be comparable.
const SAME: &[&str] = &[
    "urls",
    "read_percent",
    "zipf",
    "connections",
    "sessions",
    "initiators",
    "threads",
    "rate",
    "verify",
    "crc",
    "seconds",
];
/// The figures that intervals have: field, unit, and which direction is better.
const OF_INTERVALS: &[(&str, &str, Better)] = &[
    ("iops", "IOPS", Better::Higher),
    ("mb_s", "MB/s", Better::Higher),
    ("p50_us", "µs", Better::Lower),
    ("p99_us", "µs", Better::Lower),
];

/// A document of runs.
#[derive(Debug)]
pub struct Printed {
    /// The file's name, without its ending.
    name: String,
    runs: Vec<Json>,
}

/// A chart and the name of its file, without its ending.
pub struct Drawn {
    pub file: String,
    pub chart: Chart,
}

/// Reads a document.
///
/// # Errors
/// If it cannot be read, or holds no runs.
pub fn read(path: &Path) -> Result<Printed, Error> {
    let broken = |why: String| Error::Broken { path: path.display().to_string(), why };
    let mut document: Json =
        serde_json::from_str(&read_text(path)?).map_err(|error| broken(error.to_string()))?;
    let runs = match document.get_mut("runs").map(Json::take) {
        Some(Json::Array(runs)) if runs.iter().all(|run| run["lat_us"].is_object()) && !runs.is_empty() => {
            runs
        }
        _ => {
            let why = "it holds no runs of `stag bench --json` or `stag rdma-bench --json`";
            return Err(broken(why.to_owned()));
        }
    };
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Printed { name, runs })
}

fn key(run: &Json) -> String {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let words = KEYS.iter().filter(|name| !run[**name].is_null());
    words.map(|name| format!("{name}={}", text(&run[*name]))).collect::<Vec<_>>().join(",")
}

/// A run's name for readers: `randread, 4 KiB, depth 32`.
fn name(run: &Json) -> String {
    let what = run["pattern"].as_str().or_else(|| run["operation"].as_str()).unwrap_or("run");
    let bytes = run["bs"].as_i64().or_else(|| run["size"].as_i64()).filter(|bytes| *bytes > 0);
    let mut words = vec![what.to_owned()];
    words.extend(bytes.map(bytes_label));
    words.extend(run["depth"].as_u64().map(|depth| format!("depth {depth}")));
    words.join(", ")
}

/// The charts of these documents: the share of I/Os by their latency, and what intervals tell.
pub fn charts(documents: &[Printed]) -> Vec<Drawn> {
    let named = |document: &Printed, run: &Json| match documents {
        [_] => name(run),
        _ => format!("{}: {}", document.name, name(run)),
    };
    let runs: Vec<(String, &Json)> = documents
        .iter()
        .flat_map(|document| document.runs.iter().map(move |run| (named(document, run), run)))
        .collect();
    let stem = documents.first().map(|document| document.name.clone()).unwrap_or_default();
    let distributions: Vec<(String, Distribution)> = runs
        .iter()
        .filter_map(|(name, run)| Some((name.clone(), run["histogram_ns"].as_str()?.parse().ok()?)))
        .collect();
    let latencies = cdf::chart("Latencies by their share", String::new(), &distributions);
    let mut all: Vec<Drawn> =
        latencies.map(|chart| Drawn { file: format!("{stem}-latency"), chart }).into_iter().collect();
    for (field, title, y_title) in [
        ("iops", "I/Os a second over time", "I/Os a second"),
        ("p99_us", "99th percentile of latencies over time", "99th percentile (µs)"),
    ] {
        all.extend(over_time(&runs, field, title, y_title).map(|chart| {
            let ending = field.trim_end_matches("_us");
            Drawn { file: format!("{stem}-{ending}"), chart }
        }));
    }
    all
}

fn over_time(runs: &[(String, &Json)], field: &str, title: &str, y_title: &str) -> Option<Chart> {
    let of = |run: &Json| -> Vec<(f64, f64)> {
        let intervals = run["intervals"].as_array().into_iter().flatten();
        intervals.filter_map(|one| Some((one["at"].as_f64()?, one[field].as_f64()?))).collect()
    };
    let with: Vec<(String, Vec<(f64, f64)>)> = runs
        .iter()
        .map(|(name, run)| (name.clone(), of(run)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let (places, series) = numeric(&with, |at| format!("{at:.2} s"));
    (!series.is_empty()).then(|| Chart {
        title: title.to_owned(),
        subtitle: "each point is an interval, at its end".to_owned(),
        x_title: "Time after the warm-up (s)".to_owned(),
        x_scale: Scale::Linear,
        x_bytes: false,
        y_title: y_title.to_owned(),
        y_scale: Scale::Linear,
        kind: Kind::Lines,
        places,
        series,
    })
}

/// The runs of one name, as the rounds of a point.
struct Point<'a> {
    runs: Vec<&'a Json>,
    figures: BTreeMap<String, Figure>,
    /// Whether the rounds are intervals of one run.
    of_intervals: bool,
}

impl<'a> Point<'a> {
    fn of(runs: Vec<&'a Json>) -> Self {
        let mut quantities: BTreeMap<String, Vec<Quantity>> = BTreeMap::new();
        for run in &runs {
            // Runs with errors have no figures.
            let values = measures::of_a_bench(run).map(|sample| sample.values).unwrap_or_default();
            values.into_iter().for_each(|(name, value)| quantities.entry(name).or_default().push(value));
        }
        let mut of_intervals = false;
        if let [run] = runs.as_slice() {
            let intervals = whole_intervals(run);
            if intervals.len() > 1 && !quantities.is_empty() {
                of_intervals = true;
                for (field, unit, better) in OF_INTERVALS {
                    let values = intervals.iter().filter_map(|one| one[*field].as_f64());
                    let of = |value| Quantity { value, unit: (*unit).to_owned(), better: *better };
                    quantities.insert((*field).to_owned(), values.map(of).collect());
                }
            }
        }
        let figures = quantities
            .into_iter()
            .filter_map(|(name, found)| Some((name, Figure::of((1..).zip(&found))?)))
            .collect();
        Self { runs, figures, of_intervals }
    }
}

/// The intervals of a run without a last one that is cut short.
fn whole_intervals(run: &Json) -> Vec<&Json> {
    let long = |one: &Json| one["seconds"].as_f64().unwrap_or(0.0);
    let mut all: Vec<&Json> = run["intervals"].as_array().into_iter().flatten().collect();
    if let [first, .., last] = all.as_slice()
        && long(last) < 0.9 * long(first)
    {
        all.pop();
    }
    all
}

fn points(document: &Printed) -> BTreeMap<String, Point<'_>> {
    let mut by_key: BTreeMap<String, Vec<&Json>> = BTreeMap::new();
    document.runs.iter().for_each(|run| by_key.entry(key(run)).or_default().push(run));
    by_key.into_iter().map(|(key, runs)| (key, Point::of(runs))).collect()
}

/// Compares two documents by the bounds that results of the lab have. Runs of one pattern, size and
/// depth are rounds; where there is one, its intervals are.
pub fn compare(first: &Printed, second: &Printed) -> Comparison {
    let (a, b) = (points(first), points(second));
    let all = || a.values().chain(b.values());
    let figures = all().flat_map(|point| &point.figures).map(|(name, figure)| (name.as_str(), figure));
    let noise = Noise::of(figures);
    let (mut lines, mut beware) = (Vec::new(), BTreeSet::new());
    for (key, one) in &a {
        let Some(other) = b.get(key) else { continue };
        for (name, figure) in &one.figures {
            let after = other.figures.get(name).filter(|after| after.unit == figure.unit);
            lines.extend(after.and_then(|after| line(key, name, figure, after, &noise)));
        }
        for field in SAME {
            let (one, other) = (one.runs.first(), other.runs.first());
            if let (Some(one), Some(other)) = (one, other)
                && !alike(&one[*field], &other[*field])
            {
                beware.insert(format!("{field} is not the same: {} and {}", one[*field], other[*field]));
            }
        }
    }
    if all().any(|point| point.of_intervals) {
        let why = "bounds are those of one run's intervals: two runs may differ by more";
        beware.insert(why.to_owned());
    }
    if all().any(|point| point.figures.is_empty()) {
        beware.insert("runs with errors, or without any I/O, are left out".to_owned());
    }
    let lacks = |one: &BTreeMap<String, Point<'_>>, other: &BTreeMap<String, Point<'_>>| -> Vec<String> {
        one.keys().filter(|key| !other.contains_key(*key)).cloned().collect()
    };
    let pair = Pair {
        experiment: format!("{} and {}", first.name, second.name),
        beware: beware.into_iter().collect(),
        lines,
        only_first: lacks(&a, &b),
        only_second: lacks(&b, &a),
    };
    Comparison { pairs: vec![pair], only_first: Vec::new(), only_second: Vec::new() }
}

/// Whether two settings are the same; a measured time may differ by a hundredth.
fn alike(one: &Json, other: &Json) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => (one - other).abs() <= 0.01 * one.abs().max(other.abs()),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::Change;

    fn run(depth: u32, iops: f64, intervals: &Json) -> Json {
        json!({
            "urls": ["iscsi://h/x/0"], "pattern": "randread", "bs": 4096, "depth": depth, "seconds": 5.0, "errors": 0,
            "ios": 1000, "iops": iops, "mb_s": iops * 4096.0 / 1e6, "client_us": 2.0, "histogram_ns": "1023:900 2047:100",
            "lat_us": { "mean": 1.0, "p50": 1.0, "p99": 2.0, "p999": 2.0, "max": 2.0 }, "intervals": intervals,
        })
    }

    fn printed(name: &str, runs: Vec<Json>) -> Printed {
        Printed { name: name.to_owned(), runs }
    }

    fn intervals(all: &[f64]) -> Json {
        let one = |(at, iops): (usize, &f64)| json!({ "at": at + 1, "seconds": 1.0, "ios": iops, "iops": iops, "mb_s": 1.0, "p50_us": 10.0, "p99_us": 20.0 });
        all.iter().enumerate().map(one).collect()
    }

    fn told(comparison: &Comparison, quantity: &str) -> (Change, bool) {
        let found = comparison.pairs[0].lines.iter().find(|line| line.quantity == quantity).unwrap();
        (found.change, found.ratio.assumed)
    }

    #[test]
    fn runs_of_one_name_are_rounds_and_decide_what_is_more_than_noise() {
        let of = |rates: &[f64]| rates.iter().map(|iops| run(32, *iops, &Json::Null)).collect();
        let before = printed("before", of(&[1000.0, 1010.0, 990.0]));
        let same = compare(&before, &printed("after", of(&[1005.0, 995.0, 985.0])));
        assert_eq!(told(&same, "iops"), (Change::Noise, false));
        let faster = compare(&before, &printed("after", of(&[1200.0, 1210.0, 1190.0])));
        assert_eq!(told(&faster, "iops"), (Change::Better, false));
        assert!(faster.pairs[0].beware.is_empty(), "{:?}", faster.pairs[0].beware);
    }

    #[test]
    fn one_run_has_its_intervals_for_rounds_or_an_assumed_spread() {
        let one = |iops, all: &Json| printed("a", vec![run(32, iops, all)]);
        let slow = compare(&one(1000.0, &Json::Null), &one(800.0, &Json::Null));
        assert_eq!(told(&slow, "iops"), (Change::Worse, true));
        assert_eq!(
            told(&compare(&one(1000.0, &Json::Null), &one(960.0, &Json::Null)), "iops").0,
            Change::Noise
        );
        // Between 700 and 1300 within a run, a tenth more says nothing; without them it would.
        let noisy = one(1000.0, &intervals(&[700.0, 1300.0, 1000.0]));
        let other = one(1150.0, &intervals(&[800.0, 1500.0, 1150.0]));
        let unsure = compare(&noisy, &other);
        assert_eq!(told(&unsure, "iops"), (Change::Noise, false));
        assert!(unsure.pairs[0].beware[0].contains("one run's intervals"), "{:?}", unsure.pairs[0].beware);
    }

    #[test]
    fn what_is_not_comparable_is_said() {
        let mut other = run(1, 1000.0, &Json::Null);
        other["sessions"] = json!(4);
        let mut failed = run(32, 1000.0, &Json::Null);
        failed["errors"] = json!(3);
        let runs =
            vec![run(1, 1000.0, &Json::Null), run(8, 1000.0, &Json::Null), run(32, 1000.0, &Json::Null)];
        let comparison = compare(&printed("a", runs), &printed("b", vec![other, failed]));
        let pair = &comparison.pairs[0];
        assert_eq!(pair.only_first, ["pattern=randread,bs=4096,depth=8"]);
        assert!(pair.lines.iter().all(|line| line.key.ends_with("depth=1")));
        assert_eq!(
            pair.beware,
            ["runs with errors, or without any I/O, are left out", "sessions is not the same: null and 4"]
        );
    }

    #[test]
    fn latencies_and_intervals_are_drawn() {
        let runs = vec![run(1, 1000.0, &intervals(&[900.0, 1100.0])), run(32, 2000.0, &Json::Null)];
        let one = charts(&[printed("file", runs)]);
        let files: Vec<&str> = one.iter().map(|drawn| drawn.file.as_str()).collect();
        assert_eq!(files, ["file-latency", "file-iops", "file-p99"]);
        let svg = crate::plot::draw(&one[0].chart);
        assert!(svg.contains("<title>randread, 4 KiB, depth 1, 90 % within 1.023 µs</title>"), "{svg}");
        let svg = crate::plot::draw(&one[1].chart);
        assert!(svg.contains("<title>randread, 4 KiB, depth 1, 2.00 s: 1100</title>"), "{svg}");
        let several = charts(&[
            printed("a", vec![run(1, 1.0, &Json::Null)]),
            printed("b", vec![run(1, 1.0, &Json::Null)]),
        ]);
        assert_eq!(
            (several.len(), several[0].chart.series[1].name.as_str()),
            (1, "b: randread, 4 KiB, depth 1")
        );
    }

    #[test]
    fn another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        for text in ["{}", "[]", "{\"runs\": []}", "{\"runs\": [1]}", "no"] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text}");
        }
        std::fs::write(&path, json!({ "runs": [run(1, 1.0, &Json::Null)] }).to_string()).unwrap();
        assert_eq!(read(&path).unwrap().name, "x");
    }
}
