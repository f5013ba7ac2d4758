//! `stag lab record`: takes in what another program measured.

use lab::machine::Machine;
use lab::recorded::{self, Given};

use super::{failed, run};
use crate::args::lab::LabRecord;
use crate::exit::Exit;

pub fn record(args: &LabRecord) -> Exit {
    let sources = match run::sources(std::slice::from_ref(&args.experiment)) {
        Ok(sources) => sources,
        Err(why) => return failed(&why, Exit::Usage),
    };
    let path = args.runs.display();
    let given = std::fs::read_to_string(&args.runs).map_err(|error| format!("{path}: {error}"));
    let given = given
        .and_then(|text| serde_json::from_str::<Given>(&text).map_err(|error| format!("{path}: {error}")));
    let (given, stag) = match (given, run::stag()) {
        (Ok(given), Ok(stag)) => (given, stag),
        (Err(why), _) | (_, Err(why)) => return failed(&why, Exit::Failed),
    };
    let machine = Machine::look(&stag, &args.out);
    for source in &sources {
        let out = args.out.join(&source.experiment.name);
        if let Err(error) = recorded::save(&out, source, machine.clone(), given.clone()) {
            return failed(&error, Exit::Failed);
        }
    }
    Exit::Done
}
