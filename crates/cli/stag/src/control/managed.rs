//! `managed`: shows the managed document of a daemon, without secrets.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::protocol::{Fault, Kind, json};
use crate::args;
use crate::exit::Exit;
use crate::managed::Document;
use crate::out;

pub const VERB: &str = "managed";

/// The verb's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Shown {
    /// The generation in force.
    generation: u64,
    /// `target` and `export`, as in a configuration.
    document: Value,
}

/// The verb.
///
/// # Errors
/// The daemon keeps no such document.
pub fn answer(daemon: &Daemon) -> Result<Value, Fault> {
    let running = daemon.running();
    let none = || Fault::new(Kind::Missing, "this daemon keeps no managed document (managed = true)");
    let document = running.parts.managed.as_ref().ok_or_else(none)?.shown();
    json(&Shown { generation: running.parts.generation, document })
}

pub fn command(args: &args::Managed) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Managed) -> Result<String, CallError> {
    let value = Client::connect(args.at.control.as_deref())?.call(VERB, Map::new(), |_| ())?;
    if args.json {
        return Ok(format!("{value:#}\n"));
    }
    let shown: Shown = serde_json::from_value(value)?;
    let document = Document::from_json(shown.document);
    let text = document.and_then(|document| document.text()).map_err(std::io::Error::other)?;
    Ok(String::clone(&text))
}
