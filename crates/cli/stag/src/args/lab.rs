//! `stag lab`: experiments, as clap sees them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub use super::lab_link::LabLink;

/// Run experiments on links that are emulated, and report what they find
#[derive(Clone, Debug, Args)]
#[command(long_about = "Run experiments on links that are emulated, and report what they find.\n\n\
    An experiment is a file that says which points are measured, how they are shown and which claims are held against the figures. \
    Those of the papers that Stag follows come with the program; copy one, change it, and run the file. The lab starts commands that \
    users run too: stag serve, stag bench, and other targets and initiators where they are installed. It needs no root.")]
#[command(after_long_help = EXAMPLES)]
pub struct Lab {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

const EXAMPLES: &str = "\
Examples:
  stag lab list
  stag lab run all --quick
  stag lab run thesis --only transport=iser --only block=4k,64k
  stag lab report && xdg-open lab-results/report/index.html
  stag lab compare before after
  stag lab link wan-1400mi -- ping -c 3 198.18.0.1";

/// What `stag lab` does.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    // Each is described at its arguments.
    List(LabList),
    Run(LabRun),
    Record(LabRecord),
    Report(LabReport),
    Compare(LabCompare),
    Link(Box<LabLink>),
    Equations(LabEquations),
}

/// List the experiments that come with the program, or print one's file
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag lab list\n  stag lab list --json\n  stag lab list --show thesis > mine.toml"
)]
pub struct LabList {
    /// Print this experiment's file, to be copied and changed
    #[arg(long, value_name = "NAME", conflicts_with = "json")]
    pub show: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Run experiments
#[derive(Clone, Debug, Args)]
#[command(long_about = "Run experiments.\n\n\
    Every point is taken in several rounds and recorded at once. Ctrl-C ends a run, and the same command goes on with it: what is \
    recorded in the folder is not measured again. A point that fails is recorded as that, with its words, and the run goes on; its logs are \
    kept in the folder's logs/. One that failed in two rounds is left out in the others. At the end the report is written.")]
#[command(
    after_long_help = "Examples:\n  stag lab run all --quick\n  stag lab run thesis --out ~/results\n  stag lab run mine.toml --only block=4k,64k --rounds 5\n  stag lab run all --retry"
)]
pub struct LabRun {
    /// Experiments by name, files, or all that repeat a paper
    #[arg(value_name = "NAME|FILE|all", required = true)]
    pub experiments: Vec<String>,
    /// Fewer points, fewer and shorter rounds: to see what there is to see, not to publish it
    #[arg(long)]
    pub quick: bool,
    /// The folder of results
    #[arg(short, long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Only points with these values on an axis; experiments that have no such axis are run whole
    #[arg(long, value_name = "AXIS=VALUE,…", value_parser = only)]
    pub only: Vec<(String, Vec<lab::Value>)>,
    /// Rounds, instead of each experiment's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Where the random numbers of the first round begin; each round after it has the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Throw away what is recorded of these experiments, and measure anew
    #[arg(long)]
    pub again: bool,
    /// Try again what is recorded as failed or left out
    #[arg(long, conflicts_with = "again")]
    pub retry: bool,
    /// The processors of targets [default: one core's]
    #[arg(long, value_name = "CPUS", value_delimiter = ',', requires = "client_cpus")]
    pub target_cpus: Vec<usize>,
    /// The processors of clients [default: another core's, which shares a cache with it if there is one]
    #[arg(long, value_name = "CPUS", value_delimiter = ',', requires = "target_cpus")]
    pub client_cpus: Vec<usize>,
    /// Let the kernel choose processors
    #[arg(long, conflicts_with_all = ["target_cpus", "client_cpus"])]
    pub unpinned: bool,
    /// Write no report at the end
    #[arg(long)]
    pub no_report: bool,
    /// Tell only what fails
    #[arg(short, long)]
    pub quiet: bool,
}

/// Take in what another program measured, as an experiment's results
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Take in what another program measured, as an experiment's results, so that they can be reported and compared.\n\n\
    The experiment's kind is recorded: its file names the axes, tables, charts and claims. The runs are JSON: \
    {\"runs\": [{\"coordinates\": {AXIS: VALUE}, \"round\": 1, \"values\": {\"iops\": {\"value\": 1, \"unit\": \"IOPS\", \"better\": \"higher\"}}}]}; a run \
    without figures says why in \"missing\"."
)]
#[command(
    after_long_help = "Examples:\n  stag lab record bench/peers.toml runs.json --out results && stag lab report results"
)]
pub struct LabRecord {
    /// The experiment's file
    #[arg(value_name = "EXPERIMENT")]
    pub experiment: String,
    /// The runs
    #[arg(value_name = "RUNS")]
    pub runs: PathBuf,
    /// The folder of results, in which the experiment has one of its name; what is there is replaced
    #[arg(short, long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// Write the report on what was measured
#[derive(Clone, Debug, Args)]
#[command(long_about = "Write the report on what was measured.\n\n\
    index.html is one page that opens without a network: claims and whether they hold here, charts, tables, the machine. Beside it \
    are the same as report.json, claims and main tables as results.md, every run as CSV, and each chart as SVG and PNG. A run that is still under way can be reported on.")]
#[command(
    after_long_help = "Examples:\n  stag lab report\n  stag lab report ~/results --out ~/public\n  stag lab report --json | jq '.experiments[].findings[] | [.verdict, .claim]'\n  stag lab report --markdown > results.md"
)]
pub struct LabReport {
    /// The folder of results, of all experiments or of one
    #[arg(value_name = "DIR", default_value = "lab-results")]
    pub dir: PathBuf,
    /// Where to [default: DIR/report]
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print report.json too
    #[arg(long)]
    pub json: bool,
    /// Print results.md too: claims and the main tables, for a document
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
}

/// Say what differs between two results by more than noise
#[derive(Clone, Debug, Args)]
#[command(long_about = "Say what differs between two results by more than noise.\n\n\
    For each figure that both have, the second divided by the first, with bounds: the least of one by the most of the other, and two standard \
    errors at least, as all rounds of the experiment show them. A difference is told if 1 is outside of the bounds.")]
#[command(
    after_long_help = "Examples:\n  stag lab compare before after\n  stag lab compare before after --all\n  stag lab compare before after --json | jq '.pairs[].lines[] | select(.change == \"worse\")'"
)]
pub struct LabCompare {
    /// The first folder of results
    #[arg(value_name = "A")]
    pub first: PathBuf,
    /// The second
    #[arg(value_name = "B")]
    pub second: PathBuf,
    /// Show all figures, also those that do not differ
    #[arg(long)]
    pub all: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Work out what RDMA should gain by leaving copies out, for this machine and others
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Work out what RDMA should gain by leaving copies out, for this machine and others.\n\n\
    By the equations 5.1 to 5.3 of a thesis on iSCSI over RDMA: throughput with copies = memory bandwidth / (memory clock / I/O clock + 2), \
    without them the + 2 is gone. This machine's bandwidths are measured, which takes about a second, and stand for its clocks, in words of \
    8 bytes. With --results, the gains that an experiment measured stand beside."
)]
#[command(
    after_long_help = "Examples:\n  stag lab equations\n  stag lab equations --results lab-results/thesis\n  stag lab equations --memory-clock 400 --io-clock 80"
)]
pub struct LabEquations {
    /// Another memory's bandwidth, GB/s
    #[arg(long, value_name = "GB/s")]
    pub memory_bandwidth: Option<f64>,
    /// Its clock [default: that of its bandwidth]
    #[arg(long, value_name = "MHz")]
    pub memory_clock: Option<f64>,
    /// Another I/O bus's clock
    #[arg(long, value_name = "MHz")]
    pub io_clock: Option<f64>,
    /// Results of `stag lab run thesis` or `thesis-equations`
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

fn only(text: &str) -> Result<(String, Vec<lab::Value>), String> {
    let wrong = || format!("{text} should be AXIS=VALUE or AXIS=VALUE,VALUE");
    let (axis, values) = text.split_once('=').ok_or_else(wrong)?;
    if axis.is_empty() || values.split(',').any(str::is_empty) {
        return Err(wrong());
    }
    Ok((axis.to_owned(), values.split(',').map(lab::Value::read).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_chosen_by_an_axis_and_its_values() {
        let (axis, values) = only("block=512,64k").unwrap();
        assert_eq!(
            (axis.as_str(), values),
            ("block", vec![lab::Value::Whole(512), lab::Value::Whole(65536)])
        );
        for wrong in ["block", "=1", "block=", "block=1,,2"] {
            assert!(only(wrong).is_err(), "{wrong}");
        }
    }
}
