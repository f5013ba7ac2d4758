//! `stag bench`: loads units or files, measures, and checks what they keep. This file runs the runs
//! and prints; a run's threads are in [`run`].

mod directory;
mod drive;
mod ends;
mod file;
mod generations;
mod medium;
mod plan;
mod report;
mod run;
mod series;
mod stamp;
mod tally;
mod unit;
mod verify;

use std::fs::File;
use std::io::{IsTerminal, Write as _};
use std::path::Path;

use load::cpu;
use report::Report;
use runtime::pool;

use crate::args::{Bench, Remote};
use crate::exit::Exit;
use crate::interrupt;
use crate::out::{self, OutError};

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The load does not suit the units.
    #[error("{0}")]
    Usage(String),
    /// A session could not be opened, or has failed.
    #[error("{url}: {reason}")]
    Session {
        /// URL of the unit or file.
        url: String,
        reason: String,
        /// Whether the server could not be reached, or refused the login.
        unreachable: bool,
    },
    #[error("{0}")]
    System(String),
    /// stdout is closed or full.
    #[error(transparent)]
    Output(#[from] OutError),
}

impl BenchError {
    fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Session { unreachable: true, .. } => Exit::Unreachable,
            Self::Session { .. } | Self::System(_) | Self::Output(_) => Exit::Failed,
        }
    }
}

/// Runs every combination of the command line.
pub fn bench(args: &Bench) -> Exit {
    match bench_all(args) {
        Ok(exit) => exit,
        Err(BenchError::Output(error)) => error.show(),
        Err(error) => {
            say!("stag: {error}");
            error.exit()
        }
    }
}

fn bench_all(args: &Bench) -> Result<Exit, BenchError> {
    check(args)?;
    let target = match &args.limits.target_comm {
        Some(name) => Some(cpu::find(name).map_err(BenchError::Usage)?),
        None => args.limits.target_pid,
    };
    if let Some(pid) = target.filter(|pid| cpu::used(*pid).is_none()) {
        return Err(BenchError::Usage(format!("there is no process {pid}")));
    }
    interrupt::watch(|| (), || ()).map_err(|error| BenchError::System(format!("no io_uring: {error}")))?;
    // A progress line would overwrite the lines of intervals.
    let quiet = args.output.quiet || args.limits.interval.is_some() || !std::io::stderr().is_terminal();
    let mut histogram = histogram(args)?;
    let (mut reports, mut exit) = (Vec::new(), Exit::Done);
    out::write(head(args, target.is_some()).as_bytes())?;
    for run in plan::runs(args) {
        let ended = run::run(args, &run, target, quiet);
        // Reports of earlier runs are printed even if this run has failed.
        if ended.is_err() && args.output.json && !reports.is_empty() {
            out::write(report::json(&reports).as_bytes())?;
        }
        let run::Ran { report, latency, messages } = ended?;
        if interrupt::came() && report.is_empty() {
            say!("stag: interrupted before anything was measured");
            exit = Exit::Interrupted;
            break;
        }
        out::write(line(args, &report, target.is_some()).as_bytes())?;
        // The report is printed even if its file could not be written.
        if let Some((path, file)) = &mut histogram
            && let Err(error) = file.write_all(latency.percentile_log().as_bytes())
        {
            say!("stag: {}: {error}", path.display());
            exit = Exit::Failed;
        }
        for message in &messages {
            say!("stag: {message}");
        }
        if report.errors > messages.len() as u64 {
            say!("stag: {} errors in all", report.errors);
        }
        if report.errors > 0 {
            exit = Exit::Failed;
        }
        reports.push(report);
        if interrupt::came() {
            exit = Exit::Interrupted;
            break;
        }
    }
    if args.output.json {
        out::write(report::json(&reports).as_bytes())?;
    }
    Ok(exit)
}

/// The file of --histogram. It is made before the load begins, so that a run is not in vain.
fn histogram(args: &Bench) -> Result<Option<(&Path, File)>, BenchError> {
    let Some(path) = args.output.histogram.as_deref() else { return Ok(None) };
    let unmade = |error| BenchError::System(format!("{}: {error}", path.display()));
    File::create(path).map(|file| Some((path, file))).map_err(unmade)
}

/// Refuses arguments that contradict each other, before anything is sent.
fn check(args: &Bench) -> Result<(), BenchError> {
    let files = args.urls.iter().filter(|url| matches!(url, Remote::File(_))).count();
    if files > 0 && files < args.urls.len() {
        return Err(BenchError::Usage(
            "units and files are not of one kind: load them one after the other".into(),
        ));
    }
    if files > 0 && (args.connect.connections > 1 || args.load.initiators > 1) {
        let what = "--connections and --initiators are of units: load files over several --sessions";
        return Err(BenchError::Usage(what.into()));
    }
    let metadata = args.load.pattern.iter().filter(|pattern| pattern.is_metadata()).count();
    if metadata > 0 && files == 0 {
        let pattern = args.load.pattern.iter().find(|pattern| pattern.is_metadata());
        let name = pattern.map_or("", |pattern| pattern.name());
        return Err(BenchError::Usage(format!("{name} is of a directory of NFS")));
    }
    if metadata > 0 && metadata < args.load.pattern.len() {
        let what = "some of these patterns need a file and some a directory: run them one after the other";
        return Err(BenchError::Usage(what.into()));
    }
    if metadata > 0 && (args.load.fill || args.load.verify) {
        return Err(BenchError::Usage("--fill and --verify are of patterns that move data".into()));
    }
    let of_files = [
        ("--file-sync", args.load.file_sync),
        ("--call", args.load.call.is_some()),
        ("--rdma-reads", args.load.rdma_reads.is_some()),
        ("--rdma-segment", args.load.rdma_segment.is_some()),
        ("an I/O of more than 1M", args.load.bs.0.iter().any(|bs| *bs as usize > pool::MAX_ALLOC)),
    ];
    if let Some((what, _)) = of_files.iter().find(|(_, given)| files == 0 && *given) {
        return Err(BenchError::Usage(format!("{what} is of files")));
    }
    if args.load.verify && args.load.bs.0.iter().any(|bs| *bs as usize > pool::MAX_ALLOC) {
        return Err(BenchError::Usage("--verify takes I/Os of 1M at most".into()));
    }
    if metadata > 0 && plan::destroys(args) && !args.load.destroy {
        let what = "create makes files and removes them again: add --destroy if that may be";
        return Err(BenchError::Usage(what.into()));
    }
    if plan::destroys(args) && !args.load.destroy {
        let units = match (files, args.urls.len()) {
            (0, 1) => "the unit",
            (0, _) => "the units",
            (_, 1) => "the file",
            _ => "the files",
        };
        let what =
            format!("this writes over {units} and destroys what is there: add --destroy if that may be");
        return Err(BenchError::Usage(what));
    }
    if args.load.verify && !args.load.destroy {
        let what =
            "--verify checks what it has written itself: add --destroy, and a pattern that writes or --fill";
        return Err(BenchError::Usage(what.into()));
    }
    if args.load.verify && !plan::destroys(args) {
        let what = "--verify checks what it has written itself: use a pattern that writes, or --fill";
        return Err(BenchError::Usage(what.into()));
    }
    if args.output.histogram.is_some() && plan::runs(args).len() > 1 {
        let what = "--histogram is of one run: give one pattern, one size and one depth";
        return Err(BenchError::Usage(what.into()));
    }
    if args.load.zipf.is_some() && args.load.pattern.iter().any(|pattern| !pattern.is_random()) {
        return Err(BenchError::Usage(
            "--zipf needs random patterns: randread, randwrite, randrw, getattr or lookup".into(),
        ));
    }
    Ok(())
}

fn head(args: &Bench, target: bool) -> String {
    match (args.output.json, args.output.csv) {
        (true, _) => String::new(),
        (_, true) => report::csv_head().to_owned(),
        _ => report::table_head(target),
    }
}

fn line(args: &Bench, report: &Report, target: bool) -> String {
    match (args.output.json, args.output.csv) {
        (true, _) => String::new(),
        (_, true) => report::csv(report),
        _ => report::table(report, target),
    }
}
