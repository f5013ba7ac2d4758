//! `managed`: shows the managed document of a daemon, without secrets. `managed-history` lists
//! those that were replaced, and `managed-undo` puts one of them in force again.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::apply::{self, Change, How, Outcome};
use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::protocol::{Fault, Kind, Progress, Request, json};
use crate::args;
use crate::earlier::{self, Earlier};
use crate::exit::Exit;
use crate::managed::Document;
use crate::out;
use crate::shown::time;

pub const VERB: &str = "managed";
pub const HISTORY: &str = "managed-history";
pub const UNDO: &str = "managed-undo";

/// The verb's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Shown {
    /// The generation in force.
    generation: u64,
    /// `target` and `export`, as in a configuration.
    document: Value,
}

/// Arguments of the undo.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Undo {
    /// The generation whose document comes back; that before the last change if it is left out.
    #[serde(default)]
    to: Option<u64>,
    #[serde(default)]
    dry_run: bool,
    /// The generation that it was planned on; any if it is left out.
    #[serde(default)]
    generation: Option<u64>,
}

fn none() -> Fault {
    Fault::new(Kind::Missing, "this daemon keeps no managed document (managed = true)")
}

/// The verb.
///
/// # Errors
/// The daemon keeps no such document.
pub fn answer(daemon: &Daemon) -> Result<Value, Fault> {
    let running = daemon.running();
    let document = running.parts.managed.as_ref().ok_or_else(none)?.shown();
    json(&Shown { generation: running.parts.generation, document })
}

/// The documents that were replaced, the latest first.
///
/// # Errors
/// The daemon keeps no such document.
pub fn history(daemon: &Daemon) -> Result<Value, Fault> {
    daemon.running().parts.managed.as_ref().ok_or_else(none)?;
    json(&daemon.earlier.list().map_err(|what| Fault::new(Kind::Failed, what))?)
}

/// Makes an earlier document this one: that of the generation `to`.
///
/// # Errors
/// It is not kept.
pub fn put_back(document: &mut Document, to: Option<u64>) -> Result<(), Fault> {
    *document = earlier::find(to).map_err(|what| Fault::new(Kind::Missing, what))?;
    Ok(())
}

/// Puts an earlier document in force again, as `apply` does with a new one.
///
/// # Errors
/// It is not kept, or cannot be applied; nothing has changed.
pub fn undo(daemon: &Daemon, request: &Request, progress: Progress<'_>) -> Result<Value, Fault> {
    let Undo { to, dry_run, generation } = request.arguments()?;
    let edit = |document: &mut Document| put_back(document, to);
    let how = How { dry_run, generation, ..How::default() };
    json(&apply::apply(daemon, Change::Managed(&edit), how, progress)?)
}

pub fn command(args: &args::Managed) -> Exit {
    match run(args) {
        Ok((text, exit)) => exit.or(out::print(&text)),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Managed) -> Result<(String, Exit), CallError> {
    let mut client = Client::connect(args.at.control.as_deref())?;
    if args.undo {
        let wanted = Undo { to: args.to, dry_run: args.dry_run, generation: args.generation };
        let arguments = match serde_json::to_value(wanted)? {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let value = client.call(UNDO, arguments, |_| ())?;
        let outcome: Outcome = serde_json::from_value(value.clone())?;
        let exit = if outcome.plan.refused.is_empty() { Exit::Done } else { Exit::Failed };
        return Ok((if args.json { format!("{value:#}\n") } else { outcome.text() }, exit));
    }
    let value = client.call(if args.history { HISTORY } else { VERB }, Map::new(), |_| ())?;
    if args.json {
        return Ok((format!("{value:#}\n"), Exit::Done));
    }
    if args.history {
        let all: Vec<Earlier> = serde_json::from_value(value)?;
        return Ok((all.iter().map(line).collect(), Exit::Done));
    }
    let shown: Shown = serde_json::from_value(value)?;
    let document = Document::from_json(shown.document);
    let text = document.and_then(|document| document.text()).map_err(std::io::Error::other)?;
    Ok((String::clone(&text), Exit::Done))
}

fn line(earlier: &Earlier) -> String {
    let written = time(i64::try_from(earlier.written_unix_s).unwrap_or(0));
    let Earlier { generation, targets, exports, .. } = earlier;
    format!("{generation}: written {written} UTC, {targets} targets, {exports} exports\n")
}
