//! The command `stag-load`: see `--help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use stag_load::args::Args;
use stag_load::{LoadError, floor, hold, nfs, null, run};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.null_target, args.floor_target, args.hold) {
        _ if !args.between.is_empty() => {
            load::between::one_way_ns(args.between[0], args.between[1], Duration::from_secs(5))
                .map(|ns| println!("{ns:.0}"))
                .map_err(|error| LoadError::Io("measuring the cores", error))
        }
        (Some(address), ..) => null::listen(address, |bound| println!("iscsi://{bound}/{}/0", null::IQN)),
        (_, Some(address), _) => {
            floor::listen(address, (args.floor_mib as usize) << 20, |bound| println!("tcp://{bound}"), print)
        }
        (.., Some(count)) => hold::run(&args, count, print, print, std::io::stdin()),
        _ => match args.url.as_deref().unwrap_or_default().split_once("://") {
            Some(("tcp", portal)) => floor::run(&args, portal),
            Some(("nfs", rest)) => nfs::run(&args, rest),
            _ => run::run(&args),
        }
        .map(|report| print(&report)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stag-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(found: &impl serde::Serialize) {
    match serde_json::to_string(found) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("stag-load: {error}"),
    }
}
