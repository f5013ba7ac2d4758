//! `stag lab compare`: two folders of results side by side, or two files of runs.

use lab::compare::Comparison;
use lab::results::Error;
use lab::{printed, results};

use super::{failed, print};
use crate::args::lab::LabCompare;
use crate::exit::Exit;

pub fn compare(args: &LabCompare) -> Exit {
    // A file of runs has few figures.
    let files = args.first.is_file() && args.second.is_file();
    let comparison = match if files { of_files(args) } else { of_folders(args) } {
        Ok(comparison) => comparison,
        Err(error) => return failed(&error, Exit::Failed),
    };
    if comparison.pairs.is_empty() {
        return failed(&"they have no experiment in common", Exit::Failed);
    }
    if !args.json {
        return print(&comparison.text(args.all || files));
    }
    match serde_json::to_string_pretty(&comparison) {
        Ok(text) => print(&(text + "\n")),
        Err(error) => failed(&error, Exit::Failed),
    }
}

fn of_files(args: &LabCompare) -> Result<Comparison, Error> {
    Ok(printed::compare(&printed::read(&args.first)?, &printed::read(&args.second)?))
}

fn of_folders(args: &LabCompare) -> Result<Comparison, Error> {
    Ok(lab::compare::compare(&results::read_all(&args.first)?, &results::read_all(&args.second)?))
}
