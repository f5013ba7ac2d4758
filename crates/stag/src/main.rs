//! The `stag` command: reads the command line, runs one subcommand, ends with one of the statuses of [`exit::Exit`].
#![forbid(unsafe_code)]

mod args;
mod client;
mod config;
mod convert;
mod demo;
mod docs;
mod exit;
mod iqn;
mod log;
mod serve;
mod suggest;
mod unit;

use std::process::ExitCode;

use args::{CheckConfig, Cli, Command};
use clap::Parser;
use exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = cli.log.as_deref();
    // `serve` starts its log itself, once it knows what the configuration says of it.
    if !matches!(cli.command, Command::Serve(_)) {
        log::start(filter, "warn");
    }
    let exit = match cli.command {
        Command::Serve(args) => serve::serve(args, filter),
        Command::CheckConfig(args) => check_config(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Ls(args) => client::ls(&args),
        Command::Info(args) => client::info(&args),
        Command::Read(args) => client::read(&args),
        Command::Write(args) => client::write(&args),
        Command::Cp(args) => client::cp(&args),
        Command::Completions(args) => docs::completions(args.shell),
        Command::Man(args) => docs::man(&args.dir),
    };
    exit.into()
}

fn check_config(args: &CheckConfig) -> Exit {
    match config::load_or_show(&args.file) {
        Ok(config) => {
            if !args.quiet {
                print!("{}", config::summary(&config));
            }
            Exit::Done
        }
        Err(exit) => exit,
    }
}
