//! The `stag` command: reads the command line, runs one subcommand, ends with one of the statuses of `exit::Exit`. A library
//! so that what reads configurations can be tested from outside; it is no interface for others.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod client;
mod config;
mod conformance;
mod control;
mod convert;
mod demo;
mod docs;
mod exit;
mod iqn;
mod lab;
mod log;
mod naming;
mod object_units;
mod osd;
mod rdma_bench;
mod serve;
mod suggest;
mod supervisor;
mod tune;
mod unit;
mod units;

use std::path::Path;
use std::process::ExitCode;

use args::{CheckConfig, Cli, Command};
use clap::Parser;
use exit::Exit;

/// The whole command: from the arguments of the process to its status.
pub fn run() -> ExitCode {
    // What an emulated link starts this program for has its own arguments, and needs a process of one thread.
    if let Some(status) = ::lab::link::helper() {
        return status;
    }
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
        Command::Drain(args) => control::drain::command(&args),
        Command::Apply(args) => control::apply::command(&args),
        Command::Top(args) => control::top::command(&args),
        Command::Status(args) => control::status::command(&args),
        Command::Alua(args) => control::alua::command(&args),
        Command::Ls(args) => client::ls(&args),
        Command::Info(args) => client::info(&args),
        Command::Read(args) => client::read(&args),
        Command::Write(args) => client::write(&args),
        Command::Cp(args) => client::cp(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::RdmaBench(args) => rdma_bench::rdma_bench(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Osd(args) => osd::osd(&args),
        Command::Conform(args) => conformance::conform(&args),
        Command::Lab(args) => return lab::lab(&args),
        Command::Completions(args) => docs::completions(args.shell),
        Command::Man(args) => docs::man(&args.dir),
    };
    exit.into()
}

/// Reads the text of a configuration file as `stag check-config` does. Files of secrets are looked for in `directory`.
///
/// # Errors
/// Every mistake, as it is shown to the user.
pub fn check_config_text(text: &str, directory: &Path) -> Result<String, String> {
    match config::load_text("stag.toml", text.to_owned(), directory, false) {
        Ok((config, warnings)) => {
            let shown: String =
                warnings.into_iter().map(|warning| format!("{:?}", miette::Report::new(warning))).collect();
            Ok(shown + &config::summary(&config))
        }
        Err(errors) => Err(format!("{:?}", miette::Report::new(errors))),
    }
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
