//! `stag lab`: the command line of crate `lab` (docs/lab.md). It reads arguments and prints; what is measured and how is the
//! crate's.

mod compare;
mod list;
mod report;
mod run;

use std::io::{self, Write as _};

use crate::args::lab::{Lab, LabCommand};
use crate::exit::Exit;

/// Runs it.
pub fn lab(args: &Lab) -> Exit {
    match &args.command {
        LabCommand::List(args) => list::list(args),
        LabCommand::Run(args) => run::run(args),
        LabCommand::Report(args) => report::report(args),
        LabCommand::Compare(args) => compare::compare(args),
    }
}

fn failed(error: &dyn std::fmt::Display, exit: Exit) -> Exit {
    eprintln!("stag: {error}");
    exit
}

fn print(text: &str) -> Exit {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Exit::Done,
        // Whoever read it has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(error) => failed(&format!("stdout: {error}"), Exit::Failed),
    }
}
