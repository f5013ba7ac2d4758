//! `stag lab`: experiments, as clap sees them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::bench::{not_negative, positive};
pub use super::lab_link::LabLink;

/// Run experiments on emulated links, and report the results
#[derive(Clone, Debug, Args)]
#[command(long_about = "Run experiments on emulated links, and report the results.\n\n\
    An experiment is a file that states the points to measure, their tables and charts, and claims to check against the figures. \
    The experiments of the papers that Stag follows come with the program; copy one, change it, and run the file. The lab starts \
    ordinary commands: stag serve, stag bench, and other targets and initiators if installed. It needs no root.")]
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
  stag lab verify && tar czf results.tar.gz lab-results
  stag lab compare before after
  stag lab chart run.json
  stag lab link wan-1400mi -- ping -c 3 198.18.0.1";

/// What `stag lab` does.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    // Each is described at its arguments.
    List(LabList),
    Run(LabRun),
    Record(LabRecord),
    Report(LabReport),
    Verify(LabVerify),
    Compare(LabCompare),
    Chart(LabChart),
    Link(Box<LabLink>),
    Equations(LabEquations),
}

/// List the experiments that come with the program, or print one's file
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag lab list\n  stag lab list --json\n  stag lab list --show thesis > mine.toml"
)]
pub struct LabList {
    /// Print this experiment's file, as a start for your own
    #[arg(long, value_name = "NAME", conflicts_with = "json")]
    pub show: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Run experiments
#[derive(Clone, Debug, Args)]
#[command(long_about = "Run experiments.\n\n\
    Each point is measured in several rounds and recorded at once. Ctrl-C ends a run, and the same command continues it: points \
    recorded in the folder are not measured again. A failed point is recorded with its error, and the run continues; its logs are \
    in the folder's logs/. After two failures the other rounds skip the point. The run ends with the report.")]
#[command(
    after_long_help = "Examples:\n  stag lab run all --quick\n  stag lab run thesis --out ~/results\n  stag lab run mine.toml --only block=4k,64k --rounds 5\n  stag lab run all --retry"
)]
pub struct LabRun {
    /// Names or files of experiments, or `all` for those that repeat a paper
    #[arg(value_name = "NAME|FILE|all", required = true)]
    pub experiments: Vec<String>,
    /// Fewer points, fewer and shorter rounds: for a look, not for publication
    #[arg(long)]
    pub quick: bool,
    /// The folder of results
    #[arg(short, long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Only points with these values on an axis; experiments without this axis run whole
    #[arg(long, value_name = "AXIS=VALUE,…", value_parser = only)]
    pub only: Vec<(String, Vec<lab::Value>)>,
    /// Number of rounds [default: each experiment's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Seed of the first round's random numbers; each later round uses the next number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Discard recorded results of these experiments, and measure again
    #[arg(long)]
    pub again: bool,
    /// Retry points recorded as failed or skipped
    #[arg(long, conflicts_with = "again")]
    pub retry: bool,
    /// Processors for targets [default: those of one core]
    #[arg(long, value_name = "CPUS", value_delimiter = ',', requires = "client_cpus")]
    pub target_cpus: Vec<usize>,
    /// Processors for clients [default: those of another core, which shares a cache with the first
    /// if possible]
    #[arg(long, value_name = "CPUS", value_delimiter = ',', requires = "target_cpus")]
    pub client_cpus: Vec<usize>,
    /// Let the kernel choose processors
    #[arg(long, conflicts_with_all = ["target_cpus", "client_cpus"])]
    pub unpinned: bool,
    /// Run targets and clients before all other programs (SCHED_FIFO): for a machine that is not
    /// idle; needs root
    #[arg(long)]
    pub realtime: bool,
    /// Begin no run after this many minutes, except in the first round
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    pub minutes: Option<f64>,
    /// On a virtual machine that moves its cores: wait so long, in all, until the two share a cache
    #[arg(long, value_name = "MINUTES", default_value_t = 0.0, value_parser = not_negative)]
    pub wait: f64,
    /// Exit with status 1 if a claim does not hold
    #[arg(long, conflicts_with = "no_report")]
    pub check: bool,
    /// Skip the report
    #[arg(long)]
    pub no_report: bool,
    /// Print only failures
    #[arg(short, long)]
    pub quiet: bool,
}

/// Import another program's measurements as results of an experiment
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Import another program's measurements as results of an experiment, to report and compare them.\n\n\
    The experiment's kind is `recorded`: its file names the axes, tables, charts and claims. The runs are JSON: \
    {\"runs\": [{\"coordinates\": {AXIS: VALUE}, \"round\": 1, \"values\": {\"iops\": {\"value\": 1, \"unit\": \"IOPS\", \"better\": \"higher\"}}}]}; a run \
    without figures gives the reason in \"missing\"."
)]
#[command(
    after_long_help = "Examples:\n  stag lab record mine.toml runs.json --out results && stag lab report results"
)]
pub struct LabRecord {
    /// The experiment's file
    #[arg(value_name = "EXPERIMENT")]
    pub experiment: String,
    /// The runs
    #[arg(value_name = "RUNS")]
    pub runs: PathBuf,
    /// The folder of results; replaces the experiment's folder in it
    #[arg(short, long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// Write the report of the results
#[derive(Clone, Debug, Args)]
#[command(long_about = "Write the report of the results.\n\n\
    index.html is one page that opens without a network: claims and their verdicts, charts, tables, the machine. Beside it \
    are report.json with the same, results.md with claims and main tables, every run as CSV, and each chart as SVG and PNG, and with --pgf for LaTeX. Works during a run too.")]
#[command(
    after_long_help = "Examples:\n  stag lab report\n  stag lab report ~/results --out ~/public\n  stag lab report --json | jq '.experiments[].findings[] | [.verdict, .claim]'\n  stag lab report --markdown > results.md"
)]
pub struct LabReport {
    /// The folder of results, of all experiments or of one
    #[arg(value_name = "DIR", default_value = "lab-results")]
    pub dir: PathBuf,
    /// The report's folder [default: DIR/report]
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also print report.json
    #[arg(long)]
    pub json: bool,
    /// Also print results.md: claims and main tables, for a document
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Also write each chart as a picture of pgfplots, for \input of LaTeX
    #[arg(long)]
    pub pgf: bool,
}

/// Check that results follow from what the tools printed
#[derive(Clone, Debug, Args)]
#[command(long_about = "Check that results follow from what the tools printed.\n\n\
    For results that somebody hands on, as a folder with its report. Checks that no file has changed since the report was written (SHA256SUMS), \
    reads the figures of each run anew in what the tools printed, and works all figures and verdicts of report.json out anew from the runs. \
    Needs no machine like the one that measured. Ends with 1 if anything differs.")]
#[command(
    after_long_help = "Examples:\n  stag lab verify\n  stag lab verify ~/downloads/lab-results\n  stag lab verify --json | jq .wrong"
)]
pub struct LabVerify {
    /// The folder of results, with its report
    #[arg(value_name = "DIR", default_value = "lab-results")]
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show differences between two results that exceed noise
#[derive(Clone, Debug, Args)]
#[command(long_about = "Show differences between two results that exceed noise.\n\n\
    Prints, for each figure in both, the second divided by the first, with bounds: the least of one by the most of the other, and at least two \
    standard errors over all rounds of the experiment. A figure differs if 1 is outside its bounds.\n\n\
    Two files that stag bench --json or stag rdma-bench --json printed are compared too, with all their figures. Runs of one pattern, size and depth \
    are rounds (--depth 32,32,32 makes three); of a single run with --interval, the intervals are. Without either, 5 % of noise are assumed.")]
#[command(
    after_long_help = "Examples:\n  stag lab compare before after\n  stag lab compare before after --all\n  stag lab compare before.json after.json\n  stag lab compare before after --json | jq '.pairs[].lines[] | select(.change == \"worse\")'"
)]
pub struct LabCompare {
    /// The first folder of results, or file of runs
    #[arg(value_name = "A")]
    pub first: PathBuf,
    /// The second
    #[arg(value_name = "B")]
    pub second: PathBuf,
    /// Show all figures, including those that do not differ
    #[arg(long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Draw runs of stag bench: latencies by their share, rates over time
#[derive(Clone, Debug, Args)]
#[command(long_about = "Draw runs of stag bench: latencies by their share, rates over time.\n\n\
    Reads what stag bench --json or stag rdma-bench --json printed. Writes an SVG of the latencies of all runs, and of runs with --interval one of I/Os a second \
    and one of the 99th percentile over time. Several files are drawn into the same charts, which are named after the first.")]
#[command(
    after_long_help = "Examples:\n  stag bench URL --interval 1s --time 60 --json > run.json && stag lab chart run.json\n  stag lab chart before.json after.json --out charts --pgf"
)]
pub struct LabChart {
    /// Files of runs
    #[arg(value_name = "FILE.json", required = true)]
    pub files: Vec<PathBuf>,
    /// The charts' folder
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Also write each chart as a picture of pgfplots, for \input of LaTeX
    #[arg(long)]
    pub pgf: bool,
}

/// Calculate the gain of RDMA from avoided copies, for this machine and others
#[derive(Clone, Debug, Args)]
#[command(long_about = "Calculate the gain of RDMA from avoided copies, for this machine and others.\n\n\
    Uses equations 5.1 to 5.3 of a thesis on iSCSI over RDMA: throughput with copies = memory bandwidth / (memory clock / I/O clock + 2); \
    without copies, no + 2. Measures this machine's bandwidths (two or three seconds, each by twenty calls in a row), which stand for its clocks in words of \
    8 bytes. --results shows the measured gains of an experiment beside them.")]
#[command(
    after_long_help = "Examples:\n  stag lab equations\n  stag lab equations --results lab-results/thesis\n  stag lab equations --memory-clock 400 --io-clock 80"
)]
pub struct LabEquations {
    /// Memory bandwidth to assume, GB/s
    #[arg(long, value_name = "GB/s")]
    pub memory_bandwidth: Option<f64>,
    /// Memory clock to assume [default: from the bandwidth]
    #[arg(long, value_name = "MHz")]
    pub memory_clock: Option<f64>,
    /// I/O bus clock to assume
    #[arg(long, value_name = "MHz")]
    pub io_clock: Option<f64>,
    /// Results of `stag lab run thesis` or `thesis-equations`
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

fn only(text: &str) -> Result<(String, Vec<lab::Value>), String> {
    let wrong = || format!("write {text} as AXIS=VALUE or AXIS=VALUE,VALUE");
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
