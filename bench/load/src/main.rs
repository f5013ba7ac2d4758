//! The command `stag-load`: see `--help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use stag_load::args::Args;
use stag_load::{LoadError, between, null, run};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.null_target {
        None if !args.between.is_empty() => {
            between::one_way_ns(args.between[0], args.between[1]).map(|ns| println!("{ns:.0}"))
        }
        Some(address) => null::listen(address, |bound| println!("iscsi://{bound}/{}/0", null::IQN)),
        None => run::run(&args).and_then(|report| {
            let line = serde_json::to_string(&report).map_err(|e| LoadError::Usage(e.to_string()))?;
            println!("{line}");
            Ok(())
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stag-load: {error}");
            ExitCode::FAILURE
        }
    }
}
