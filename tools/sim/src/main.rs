//! Runs many seeds, or one of them aloud.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: sim [--shipped | --replacement] [--seeds A..B | --seed N]

  --replacement  run the world in which a LUN's disk is replaced (with --seed)
  --shipped      run the shipped server and client, not drivers of the simulator's own
  --seeds A..B   run the seeds from A to B, B not included (default: 0..1000)
  --seed N       run one seed and print its record as it grows";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] => many(0, 1000),
        ["--shipped", "--seed", seed] => match seed.parse() {
            Ok(seed) => shipped(seed, seed + 1, true),
            Err(_) => usage(),
        },
        ["--shipped", "--seeds", range] => {
            match range.split_once("..").map(|(a, b)| (a.parse(), b.parse())) {
                Some((Ok(first), Ok(end))) => shipped(first, end, false),
                _ => usage(),
            }
        }
        ["--replacement", "--seed", seed] => match seed.parse() {
            Ok(seed) => match sim::shipped::replacement::run(seed) {
                Ok(good) => {
                    println!("seed {seed}: {good} writes ended with GOOD, none on the wrong disk");
                    ExitCode::SUCCESS
                }
                Err(failure) => {
                    println!("{failure}");
                    ExitCode::FAILURE
                }
            },
            Err(_) => usage(),
        },
        ["--seeds", range] => match range.split_once("..").map(|(a, b)| (a.parse(), b.parse())) {
            Some((Ok(first), Ok(end))) => many(first, end),
            _ => usage(),
        },
        ["--seed", seed] => match seed.parse() {
            Ok(seed) => one(seed),
            Err(_) => usage(),
        },
        _ => usage(),
    }
}

/// Runs seeds in the world of the shipped server and client.
fn shipped(first: u64, end: u64, loud: bool) -> ExitCode {
    let began = Instant::now();
    let (mut commands, mut reconnects, mut recovered, mut restarts, mut turns, mut failed) =
        (0, 0, 0, 0, 0, 0);
    for seed in first..end {
        match sim::shipped::run(seed, loud) {
            Ok(report) => {
                commands += report.commands;
                reconnects += report.reconnects;
                recovered += report.recovered;
                restarts += report.restarts;
                turns += report.turns;
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
            println!(
                "{done} of {} seeds in {} s: {commands} commands, {reconnects} sessions made anew, {recovered} connections \
                 mended, {restarts} restarts, {turns} turns, {failed} failures",
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
