//! `stag lab`: the command line of crate `lab` (docs/src/lab/lab.md). It reads arguments and prints; what is measured and how is the
//! crate's.

mod compare;
mod equations;
mod link;
mod list;
mod report;
mod run;

use std::process::ExitCode;

use crate::args::lab::{Lab, LabCommand};
use crate::exit::Exit;
use crate::out::print;

/// Runs it. Only a command on a link ends with a status of its own.
pub fn lab(args: &Lab) -> ExitCode {
    match &args.command {
        LabCommand::List(args) => list::list(args).into(),
        LabCommand::Run(args) => run::run(args).into(),
        LabCommand::Report(args) => report::report(args).into(),
        LabCommand::Compare(args) => compare::compare(args).into(),
        LabCommand::Link(args) => link::link(args),
        LabCommand::Equations(args) => equations::equations(args).into(),
    }
}

fn failed(error: &dyn std::fmt::Display, exit: Exit) -> Exit {
    say!("stag: {error}");
    exit
}
