//! The `stag` command: reads the command line, runs one subcommand, ends with one of the statuses of [`exit::Exit`].
#![forbid(unsafe_code)]

mod args;
mod config;
mod docs;
mod exit;
mod iqn;
mod log;
mod suggest;
mod unit;

use std::process::ExitCode;

use args::{CheckConfig, Cli, Command};
use clap::Parser;
use exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = cli.log.as_deref();
    let exit = match cli.command {
        Command::CheckConfig(args) => check_config(&args),
        Command::Completions(args) => docs::completions(args.shell),
        Command::Man(args) => docs::man(&args.dir),
        other => {
            log::start(log, "warn");
            eprintln!("stag: {other:?}");
            Exit::Failed
        }
    };
    exit.into()
}

fn check_config(args: &CheckConfig) -> Exit {
    match config::load(&args.file) {
        Ok((config, warnings)) => {
            for warning in warnings {
                eprintln!("{:?}", miette::Report::new(warning));
            }
            if !args.quiet {
                print!("{}", config::summary(&config));
            }
            Exit::Done
        }
        Err(error) => {
            eprintln!("{:?}", miette::Report::new(error));
            Exit::Config
        }
    }
}
