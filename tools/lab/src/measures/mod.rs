//! The kinds of measurement, by their names in experiments. Each starts commands that users run
//! too, at the two ends of the path, and reads their output; none judges a figure.

mod bench;
mod equations;
mod fio;
mod nfs;
mod osd;
mod rdma;
mod scratch;
mod servers;
mod sessions;
mod words;

use crate::experiment::Experiment;
use crate::measure::{Error, Measure};

/// The kind of experiments that another program measures.
const RECORDED: &str = "recorded";
/// The names that experiments may use.
pub const KINDS: &[&str] = &["bench", "nfs", "osd", "rdma", "sessions", "equations", RECORDED];

/// The settings of any point for the link between target and client.
const LINK: &[&str] = &[
    "link",
    "mtu",
    "link-delay",
    "link-jitter",
    "link-rate",
    "link-queue",
    "link-loss",
    "link-burst",
    "link-reorder",
    "link-reorder-by",
    "link-overhead",
    "link-seed",
    "link-backend",
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
    "target-cores",
    "command",
    "clients",
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
const RDMA: &[&str] = &["operation", "depth", "outstanding", "spin"];

/// The settings that a measure of this kind reads, including those of links; empty for an unknown
/// kind.
pub fn settings(kind: &str) -> Vec<&'static str> {
    let own: &[&[&str]] = match kind {
        "bench" => &[BENCH, &["transport"]],
        "equations" => &[BENCH],
        "sessions" => &[BENCH, SESSIONS],
        "nfs" => &[NFS],
        "osd" => &[OSD],
        "rdma" => &[RDMA],
        RECORDED => &[],
        _ => return Vec::new(),
    };
    own.iter().chain(&[ALL, LINK]).flat_map(|names| names.iter().copied()).collect()
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
