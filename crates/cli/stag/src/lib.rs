//! The `stag` command: reads the command line, runs one subcommand, ends with one of the statuses
//! of `exit::Exit`. It is a library so that tests can reach what parses input; it is no interface
//! for other programs.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

#[macro_use]
mod out;

mod advice;
#[cfg(feature = "http")]
mod api;
mod args;
mod audit;
mod bench;
mod block_device;
mod client;
mod config;
mod conformance;
mod control;
mod convert;
mod credentials;
#[cfg(feature = "http")]
mod dashboard;
mod demo;
mod docs;
mod doctor;
mod door;
mod earlier;
#[cfg(feature = "http")]
mod events;
mod exit;
mod export;
mod exports;
mod gateways;
mod health;
mod identity;
mod image;
mod import;
mod interrupt;
mod iqn;
mod key;
#[cfg(feature = "lab")]
mod lab;
mod lock;
mod log;
mod machine;
mod managed;
mod metrics;
mod naming;
mod osd;
mod overview;
mod progress;
mod rdma_bench;
mod release;
mod rpcbind;
mod sandbox;
mod secret;
mod serve;
mod shown;
mod state;
mod suggest;
mod supervisor;
mod terminal;
mod tokens;
#[cfg(feature = "top")]
mod top;
mod tune;
mod unit;
mod units;
mod work;

use std::path::Path;
use std::process::ExitCode;

use args::{CheckConfig, Cli, Command};
use clap::Parser;
use exit::Exit;

/// The whole command: from the arguments of the process to its status.
pub fn run() -> ExitCode {
    // The emulated link starts this program with arguments of its own, and needs a single-threaded
    // process.
    #[cfg(feature = "lab")]
    if let Some(status) = ::lab::link::helper() {
        return status;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return no_command(&answer).into(),
    };
    let filter = cli.log.as_deref();
    // Before the log is started, since mistakes in the configuration come first.
    out::for_journal(cli.log_format.map_or_else(log::is_journal, |format| format == log::Format::Journald));
    // `serve` starts its log itself, once it has read the configuration.
    if !matches!(cli.command, Command::Serve(_)) {
        log::start(filter, "warn", cli.log_format);
    }
    let exit = match cli.command {
        Command::Serve(args) => serve::serve(args, filter, cli.log_format),
        Command::CheckConfig(args) => check_config(&args),
        Command::Doctor(args) => doctor::command(&args),
        Command::Import(args) => import::command(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Disconnect(args) => control::disconnect::command(&args),
        Command::Drain(args) => control::drain::command(&args),
        Command::Gateways(args) => control::gateways::command(&args),
        Command::Move(args) => control::gateways::move_command(&args),
        Command::Apply(args) => control::apply::command(&args),
        Command::Managed(args) => control::managed::command(&args),
        Command::Token(args) => control::token::command(&args),
        Command::Upgrade(args) => control::upgrade::command(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::command(&args),
        Command::Slow(args) => control::slow::command(&args),
        Command::Status(args) => control::status::command(&args),
        Command::Acknowledge(args) => control::acknowledge::command(&args),
        Command::Alua(args) => control::alua::command(&args),
        Command::Identity(args) => identity::command::command(&args),
        Command::Lock(args) => lock::command(&args),
        Command::Ls(args) => client::ls(&args),
        Command::Info(args) => client::info(&args),
        Command::Read(args) => client::read(&args),
        Command::Write(args) => client::write(&args),
        Command::Cp(args) => client::cp(&args),
        Command::Cat(args) => client::cat(&args),
        Command::Rm(args) => client::rm(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::RdmaBench(args) => rdma_bench::rdma_bench(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Osd(args) => osd::osd(&args),
        Command::Conform(args) => conformance::conform(&args),
        #[cfg(feature = "lab")]
        Command::Lab(_) => lab::hand_over(),
        Command::Completions(args) => docs::completions(args.shell),
        Command::Man(args) => docs::man(&args.dir),
    };
    exit.into()
}

/// `stag-lab`: `stag lab` as a program of its own. So `stag`, the daemon, does not contain the code
/// that draws the lab's reports.
#[cfg(feature = "lab")]
pub fn run_lab() -> ExitCode {
    if let Some(status) = ::lab::link::helper() {
        return status;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return no_command(&answer).into(),
    };
    log::start(cli.log.as_deref(), "warn", cli.log_format);
    let Command::Lab(args) = cli.command else {
        say!("stag-lab: this is `stag lab` alone; stag does the rest");
        return Exit::Usage.into();
    };
    lab::lab(&args)
}

/// Shows clap's output: help and the version on stdout, mistakes on stderr.
fn no_command(answer: &clap::Error) -> Exit {
    match answer.print() {
        _ if answer.use_stderr() => Exit::Usage,
        Ok(()) => Exit::Done,
        Err(error) => out::OutError::from(error).show(),
    }
}

/// Reads a configuration file's text as `stag check-config` does. Relative paths of secrets start
/// from `directory`.
///
/// # Errors
/// Every mistake, as shown to the user.
pub fn check_config_text(text: &str, directory: &Path) -> Result<String, String> {
    match config::load_text(
        "stag.toml",
        text,
        &config::Place { serves: false, ..config::Place::new(directory) },
    ) {
        Ok((config, warnings)) => {
            let shown: String =
                warnings.into_iter().map(|warning| format!("{:?}", miette::Report::new(warning))).collect();
            Ok(shown + &config::summary(&config))
        }
        Err(errors) => Err(format!("{:?}", miette::Report::new(errors))),
    }
}

/// Reads lines as the daemon reads its control socket. Returns the numbers of requests and of
/// refused lines.
pub fn read_control_requests(lines: &[u8]) -> (usize, usize) {
    control::protocol::read_requests(lines)
}

/// Reads the lines of a daemon that is replaced, and returns its units' reservations.
///
/// # Errors
/// The lines are incomplete or wrong.
pub fn read_takeover(lines: &[u8]) -> Result<Vec<device::HandedOver>, String> {
    control::handover::read_takeover(lines).map_err(|error| error.to_string())
}

fn check_config(args: &CheckConfig) -> Exit {
    let Some(file) = &args.file else {
        return match args.keys {
            true => out::print(&config::reference::page()),
            false => out::print(&format!("{:#}\n", config::reference::schema())),
        };
    };
    match config::load_or_show(file, false) {
        Ok(config) => {
            advice::warnings(&config).iter().for_each(|warning| say!("warning: {warning}"));
            if args.quiet { Exit::Done } else { out::print(&config::summary(&config)) }
        }
        Err(exit) => exit,
    }
}
