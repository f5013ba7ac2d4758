//! `stag lab`: the command line of crate `lab` (docs/src/lab/lab.md). It reads arguments and
//! prints; the crate measures.

mod chart;
mod compare;
mod equations;
mod link;
mod list;
mod record;
mod report;
mod run;
mod verify;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::args::lab::{Lab, LabCommand};
use crate::exit::Exit;
use crate::out::print;

/// Becomes `stag-lab`, which lies beside this program, with the same arguments. Returns only where
/// that fails.
pub fn hand_over() -> Exit {
    let beside = std::env::current_exe().map(|stag| stag.with_file_name("stag-lab"));
    let error = match &beside {
        Ok(lab) => Command::new(lab).args(std::env::args_os().skip(1)).exec(),
        Err(_) => std::io::ErrorKind::NotFound.into(),
    };
    let place = beside.unwrap_or_else(|_| "stag-lab".into());
    failed(
        &format!("{}: {error}; install it beside stag (cargo build -p stag makes both)", place.display()),
        Exit::Startup,
    )
}

/// Runs it. Only a command on a link ends with a status of its own.
pub fn lab(args: &Lab) -> ExitCode {
    match &args.command {
        LabCommand::List(args) => list::list(args).into(),
        LabCommand::Run(args) => run::run(args).into(),
        LabCommand::Record(args) => record::record(args).into(),
        LabCommand::Report(args) => report::report(args).into(),
        LabCommand::Verify(args) => verify::check(args).into(),
        LabCommand::Chart(args) => chart::chart(args).into(),
        LabCommand::Compare(args) => compare::compare(args).into(),
        LabCommand::Link(args) => link::link(args),
        LabCommand::Equations(args) => equations::equations(args).into(),
    }
}

fn failed(error: &dyn std::fmt::Display, exit: Exit) -> Exit {
    say!("stag: {error}");
    exit
}
