//! Runs many seeds, or one of them aloud.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use sim::shipped::{self, Failure, Report};

const USAGE: &str = "usage: sim [WORLD] [--seeds A..B | --seed N]

  --shipped       the shipped server and client: reads and writes, whatever breaks
  --aborts        a session that aborts its writes on a path with losses
  --replacement   the same while a LUN's disk is replaced
  --reservations  persistent reservations of several initiators
  --copies        copies by the server between units, and by token
  (no WORLD)      drivers of the simulator's own instead of the shipped server and client

  --seeds A..B    run the seeds from A to B, B not included (default: 0..1000)
  --seed N        run one seed and print its record as it grows";

/// Runs a seed; `true` prints its record.
type Run = fn(u64, bool) -> Result<Report, Box<Failure>>;

const WORLDS: [(&str, Run); 5] = [
    ("--shipped", shipped::run),
    ("--aborts", shipped::aborts::run),
    ("--replacement", shipped::replacement::run),
    ("--reservations", shipped::reservations::run),
    ("--copies", shipped::copies::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let world = args.first().and_then(|first| WORLDS.iter().find(|(option, _)| option == first));
    let seeds = match &args[usize::from(world.is_some())..] {
        [] => Some((0, 1000, false)),
        ["--seed", seed] => seed.parse().ok().map(|seed| (seed, seed + 1, true)),
        ["--seeds", range] => range
            .split_once("..")
            .and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?, false))),
        _ => None,
    };
    match (world, seeds) {
        (_, None) => usage(),
        (Some((_, run)), Some((first, end, loud))) => in_world(*run, first, end, loud),
        (None, Some((seed, _, true))) => one(seed),
        (None, Some((first, end, false))) => many(first, end),
    }
}

/// Runs seeds in a world of the shipped server and client.
fn in_world(run: Run, first: u64, end: u64, loud: bool) -> ExitCode {
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
            let Report { commands, reconnects, recovered, restarts, aborted, refused, turns, .. } = sum;
            println!(
                "{done} of {} seeds in {} s: {commands} commands, {aborted} aborted, {refused} refused, {reconnects} sessions made anew, \
                 {recovered} connections mended, {restarts} restarts, {turns} turns, {failed} failures",
                end - first,
                began.elapsed().as_secs(),
            );
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn one(seed: u64) -> ExitCode {
    match sim::run(seed, true) {
        Ok(report) => {
            println!("{report:#?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            failure.state.iter().for_each(|line| println!("{line}"));
            println!("seed {seed}: {}", failure.what);
            ExitCode::FAILURE
        }
    }
}

fn many(first: u64, end: u64) -> ExitCode {
    let began = Instant::now();
    let (mut commands, mut losses, mut restarts, mut failed) = (0, 0, 0, Vec::new());
    let (mut connections, mut reassigns) = (0, 0);
    for seed in first..end {
        match sim::run(seed, false) {
            Ok(report) => {
                commands += report.commands;
                losses += report.losses;
                restarts += report.restarts;
                connections += report.connections;
                reassigns += report.reassigns;
            }
            Err(failure) => {
                println!("seed {seed}: {}", failure.what);
                failed.push(seed);
            }
        }
        let done = seed + 1 - first;
        if done % 100 == 0 || seed + 1 == end {
            println!(
                "{done} of {} seeds in {} s: {commands} commands, {losses} sessions lost, {connections} connections mended, \
                 {reassigns} tasks moved, {restarts} restarts, {} failures",
                end - first,
                began.elapsed().as_secs(),
                failed.len()
            );
        }
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
