//! `stag lab compare`: two folders of results side by side.

use lab::results;

use super::{failed, print};
use crate::args::lab::LabCompare;
use crate::exit::Exit;

pub fn compare(args: &LabCompare) -> Exit {
    let both = results::read_all(&args.first).and_then(|first| Ok((first, results::read_all(&args.second)?)));
    let (first, second) = match both {
        Ok(both) => both,
        Err(error) => return failed(&error, Exit::Failed),
    };
    let comparison = lab::compare::compare(&first, &second);
    if comparison.pairs.is_empty() {
        return failed(&"they have no experiment in common", Exit::Failed);
    }
    if !args.json {
        return print(&comparison.text(args.all));
    }
    match serde_json::to_string_pretty(&comparison) {
        Ok(text) => print(&(text + "\n")),
        Err(error) => failed(&error, Exit::Failed),
    }
}
