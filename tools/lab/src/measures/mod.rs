//! The kinds of measurement, by their names in experiments. Each starts commands that users run
//! too, at the two ends of the path, and reads their output; none judges a figure.

mod bench;
mod commands;
mod equations;
mod fio;
mod nfs;
mod osd;
mod rdma;
mod scratch;
mod servers;
mod sessions;
mod words;

use load::Distribution;

use crate::experiment::Experiment;
use crate::experiment::program::COMMANDS;
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::record::Record;
use crate::sample::Sample;

/// The field of tools' output with a [`Distribution`].
const HISTOGRAM: &str = "histogram_ns";
/// The kind of experiments that another program measures.
pub(crate) const RECORDED: &str = "recorded";
/// The names that experiments may use.
pub const KINDS: &[&str] = &["bench", "nfs", "osd", "rdma", "sessions", "equations", COMMANDS, RECORDED];

/// The settings of any point for the link between target and client.
const LINK: &[&str] = &[
    "link",
    "mtu",
    "link-delay",
    "link-jitter",
    "link-rate",
    "link-rate-plan",
    "link-rate-period",
    "link-queue",
    "link-loss",
    "link-burst",
    "link-reorder",
    "link-reorder-by",
    "link-overhead",
    "link-seed",
    "link-backend",
    "congestion",
];
/// The settings of every kind; the frame reads `rounds`.
const ALL: &[&str] = &["block", "digests", "rounds", "seconds", "warmup"];
const BENCH: &[&str] = &[
    "server",
    "unit",
    "unit-size",
    "unit-options",
    "fill",
    "serve-options",
    "serve-config",
    "target-cores",
    "pattern",
    "depth",
    "total-depth",
    "connections",
    "sessions",
    "spread",
    "spin",
    "bench-options",
    "header-digest",
    "data-digest",
    "rdma-crc",
    "rdma-markers",
    "receive",
    "cut-after",
    "link-lines",
    "client",
    "peak-part",
    "count-payload",
    "tune",
    "tune-options",
];
const SESSIONS: &[&str] = &["held", "pings-s"];
const OSD: &[&str] = &[
    "transport",
    "store",
    "serve-options",
    "serve-config",
    "target-cores",
    "bench-options",
    "count-memory",
    "command",
    "clients",
    "processes",
    "ios",
    "durable",
    "objects",
    "span",
    "spin",
];
const NFS: &[&str] = &[
    "transport",
    "version",
    "pattern",
    "call",
    "depth",
    "span-each",
    "ios-each",
    "file-sync",
    "rdma-reads",
    "rdma-segment",
    "spin",
    "serve-options",
    "target-cores",
];
const PROGRAMS: &[&str] = &["server", "client", "unit", "unit-size"];
const RDMA: &[&str] = &["operation", "depth", "outstanding", "register", "clients", "fpdu", "spin"];

/// The settings that the experiment's measure reads, including those of links; empty for an unknown
/// kind.
pub fn settings(experiment: &Experiment) -> Vec<&str> {
    let own: &[&[&str]] = match experiment.measure.as_str() {
        "bench" => &[BENCH, &["transport"]],
        "equations" => &[BENCH],
        "sessions" => &[BENCH, SESSIONS],
        "nfs" => &[NFS],
        "osd" => &[OSD],
        "rdma" => &[RDMA],
        COMMANDS => &[PROGRAMS],
        RECORDED => &[],
        _ => return Vec::new(),
    };
    let known = own.iter().chain(&[ALL, LINK]).flat_map(|names| names.iter().copied());
    known.chain(experiment.named()).collect()
}

/// The figures of a record, read anew in what the tools printed; those that the lab counted itself
/// are not among them. `None` if nothing was printed that has any.
pub(crate) fn read_again(experiment: &Experiment, record: &Record) -> Option<Result<Sample, Error>> {
    let raw = &record.sample()?.raw;
    let coordinates = record.coordinates.iter().map(|(axis, value)| (axis.clone(), value.clone())).collect();
    let settings = record.settings.clone();
    let point = Point { experiment: record.experiment.clone(), coordinates, settings, quick: record.quick };
    match experiment.measure.as_str() {
        "bench" | "nfs" => Some(bench::read_again(&point, raw)),
        "osd" => Some(osd::read_again(&point, raw)),
        "rdma" => Some(rdma::read(raw)),
        "equations" => Some(equations::read(raw)),
        COMMANDS => Some(commands::read_again(experiment, &point, raw)),
        _ => None,
    }
}

/// The figures of a run that `stag bench` or `stag rdma-bench` printed.
///
/// # Errors
/// If I/Os failed, or none ended.
pub(crate) fn of_a_bench(run: &serde_json::Value) -> Result<Sample, Error> {
    if run["operation"].is_string() {
        return rdma::read(run);
    }
    let mut sample = Sample::new();
    bench::read(&mut sample, run)?;
    Ok(sample)
}

/// The output with the latencies of a record's load: all of it, or the part beside that of other
/// tools.
fn load_of(record: &Record) -> Option<&serde_json::Value> {
    let raw = &record.sample()?.raw;
    // The load that creates objects also removes them.
    let removes = record.coordinates.get("command").is_some_and(|what| what.to_string() == "remove")
        || record.settings.get("command").and_then(toml::Value::as_str) == Some("remove");
    Some(raw.get("bench").or_else(|| raw.get("remove").filter(|_| removes)).unwrap_or(raw))
}

/// How many I/Os of a record took how long; `None` if its tool did not print that.
pub(crate) fn distribution_of(record: &Record) -> Option<Result<Distribution, String>> {
    Some(load_of(record)?.get(HISTOGRAM)?.as_str().unwrap_or_default().parse())
}

/// Whether the latencies that a record's tool printed are those of its percentiles and of its
/// count, and its intervals have all of its I/Os. `None` if it printed none of these.
pub(crate) fn latencies_agree(record: &Record) -> Option<Result<(), String>> {
    let load = load_of(record)?;
    let distribution = match distribution_of(record)? {
        Ok(distribution) => distribution,
        Err(why) => return Some(Err(why)),
    };
    let values = &record.sample()?.values;
    let ended = load["ios"].as_u64().or_else(|| load["ops"].as_u64()).unwrap_or_default();
    let count = ended + load["unsent"].as_u64().unwrap_or_default();
    if distribution.count() != count {
        return Some(Err(format!("the histogram has {} I/Os of {count}", distribution.count())));
    }
    for (quantity, part) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999), ("max_us", 1.0)] {
        let (Some(told), Some((low, high))) = (values.get(quantity), distribution.quantile_us(part)) else {
            continue;
        };
        // Two digits after the point, as the tools print at least.
        if told.value < low - 0.01 || told.value > high + 0.01 {
            let told = told.value;
            return Some(Err(format!("{quantity} is {told}, and from {low} to {high} by the histogram")));
        }
    }
    let in_intervals = load["intervals"]
        .as_array()
        .map(|all| all.iter().map(|one| one["ios"].as_u64().unwrap_or_default()).sum::<u64>());
    Some(match in_intervals {
        Some(sum) if sum != ended => Err(format!("the intervals have {sum} I/Os of {ended}")),
        _ => Ok(()),
    })
}

/// The measure of `experiment`.
///
/// # Errors
/// [`Error::Experiment`] if no kind has that name.
pub fn of(experiment: &Experiment) -> Result<Box<dyn Measure>, Error> {
    Ok(match experiment.measure.as_str() {
        "bench" => Box::new(bench::Bench::default()),
        "nfs" => Box::new(nfs::Nfs),
        "osd" => Box::new(osd::Osd),
        "rdma" => Box::new(rdma::Rdma),
        "sessions" => Box::new(sessions::Sessions),
        "equations" => Box::new(equations::Equations::default()),
        COMMANDS => Box::new(commands::Commands::of(experiment)),
        RECORDED => {
            let why = "another program measures it: the lab only reports what that has recorded";
            return Err(Error::Experiment(why.to_owned()));
        }
        other => {
            let kinds = KINDS.join(", ");
            return Err(Error::Experiment(format!(
                "no kind of measurement is called `{other}`: there are {kinds}"
            )));
        }
    })
}
