//! Runs many seeds, or one of them aloud.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use sim::{Failure, Report, aborts, copies, gateways, nfs_state, replacement, reservations, tasks, world};

const USAGE: &str = "usage: sim [WORLD] [--seeds A..B | --seed N]

  (no WORLD)      reads and writes, whatever breaks
  --files         the same on a disk that is a file
  --tasks         task attributes, and limits of service that change
  --aborts        a session that aborts its writes on a path with losses
  --replacement   the same while a LUN's disk is replaced
  --reservations  persistent reservations of several initiators
  --copies        copies by the server between units, and by token
  --nfs-state     opens, locks and delegations of several clients of NFSv4
  --gateways      gateways that serve a cluster's images as one, while they and it fail

  --seeds A..B    run the seeds from A to B, B not included (default: 0..1000)
  --seed N        run one seed and print its record as it grows; with RUST_LOG=debug
                  also what the server and the client log";

/// Runs a seed; `true` prints its record.
type Run = fn(u64, bool) -> Result<Report, Box<Failure>>;

const WORLDS: [(&str, Run); 8] = [
    ("--tasks", tasks::run),
    ("--files", world::run_on_files),
    ("--aborts", aborts::run),
    ("--replacement", replacement::run),
    ("--reservations", reservations::run),
    ("--copies", copies::run),
    ("--nfs-state", nfs_state::run),
    ("--gateways", gateways::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let named = args.first().and_then(|first| WORLDS.iter().find(|(option, _)| option == first));
    let seeds = match &args[usize::from(named.is_some())..] {
        [] => Some((0, 1000, false)),
        ["--seed", seed] => seed.parse().ok().map(|seed| (seed, seed + 1, true)),
        ["--seeds", range] => range
            .split_once("..")
            .and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?, false))),
        _ => None,
    };
    let Some((first, end, loud)) = seeds else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let (true, Ok(filter)) = (loud, std::env::var("RUST_LOG")) {
        tracing_subscriber::fmt().without_time().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    seeds_of(named.map_or(world::run as Run, |(_, run)| *run), first, end, loud)
}

/// Runs seeds in a world.
fn seeds_of(run: Run, first: u64, end: u64, loud: bool) -> ExitCode {
    let began = Instant::now();
    let (mut sum, mut failed) = (Report::default(), 0);
    for seed in first..end {
        match run(seed, loud) {
            Ok(report) => {
                sum.commands += report.commands;
                sum.reconnects += report.reconnects;
                sum.recovered += report.recovered;
                sum.restarts += report.restarts;
                sum.aborted += report.aborted;
                sum.refused += report.refused;
                sum.touched += report.touched;
                sum.reclaimed += report.reclaimed;
                sum.turns += report.turns;
                if loud {
                    println!("{report:?}");
                }
            }
            Err(failure) => {
                println!("{failure}");
                failed += 1;
            }
        }
        let done = seed + 1 - first;
        if done % 100 == 0 || seed + 1 == end {
            let Report {
                commands,
                reconnects,
                recovered,
                restarts,
                aborted,
                refused,
                touched,
                reclaimed,
                turns,
                ..
            } = sum;
            println!(
                "{done} of {} seeds in {} s: {commands} commands, {aborted} aborted, {refused} refused, {reconnects} sessions made anew, \
                 {recovered} connections mended, {restarts} restarts, {reclaimed} things reclaimed, {touched} PDUs lost or repeated, {turns} turns, {failed} failures",
                end - first,
                began.elapsed().as_secs(),
            );
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
