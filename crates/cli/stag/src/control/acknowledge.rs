//! `acknowledge`: clears the problems of a unit that an administrator knows of. After a failed
//! flush, SYNCHRONIZE CACHE may succeed again.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::protocol::{Fault, Kind, Request, json};
use crate::args;
use crate::exit::Exit;
use crate::health;
use crate::out;
use crate::units::place;

pub const VERB: &str = "acknowledge";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    target: String,
    lun: u16,
}

/// The verb's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Acknowledged {
    target: String,
    lun: u16,
    /// The kinds of problems that were cleared.
    problems: Vec<String>,
    /// Whether flushes had been refused.
    refused_flushes: bool,
    /// Problems that persist.
    remaining: Vec<String>,
}

/// The verb.
///
/// # Errors
/// There is no such unit, or the mark of its failed flush cannot be removed.
pub fn answer(daemon: &Daemon, request: &Request) -> Result<Value, Fault> {
    let wanted: Wanted = request.arguments()?;
    let Wanted { target, lun } = &wanted;
    let running = daemon.running();
    let open = running.units.open.get(&place(target, *lun));
    let open = open.ok_or_else(|| Fault::new(Kind::Refused, format!("there is no LUN {lun} of {target}")))?;
    let names = |report: &backing::health::Report| -> Vec<String> {
        report.problems.iter().map(|problem| problem.kind.name().to_owned()).collect()
    };
    let Some(health) = health::of(open) else {
        return json(&Acknowledged {
            target: wanted.target,
            lun: wanted.lun,
            problems: Vec::new(),
            refused_flushes: false,
            remaining: Vec::new(),
        });
    };
    let before = health.acknowledge().map_err(|(at, error)| {
        let what = format!(
            "the mark of its failed flush, {}, cannot be removed: {error}; nothing has been changed",
            at.display()
        );
        Fault::new(Kind::Failed, what)
    })?;
    let after = health.look();
    let problems = names(&before);
    tracing::warn!(
        target,
        lun,
        path = health.path(),
        ?problems,
        "an administrator acknowledged the problems of a unit"
    );
    json(&Acknowledged {
        problems,
        refused_flushes: before.refuses_flushes,
        remaining: names(&after),
        target: wanted.target,
        lun: wanted.lun,
    })
}

pub fn command(args: &args::Acknowledge) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Acknowledge) -> Result<String, CallError> {
    let (target, lun) = args.unit.clone();
    let mut arguments = Map::new();
    arguments.insert("target".into(), target.into());
    arguments.insert("lun".into(), lun.into());
    let value = Client::connect(args.at.control.as_deref())?.call(VERB, arguments, |_| ())?;
    if args.json {
        return Ok(format!("{value:#}\n"));
    }
    let done: Acknowledged = serde_json::from_value(value)?;
    let mut text = match done.problems.as_slice() {
        [] => "there was nothing to acknowledge\n".to_owned(),
        problems => format!("acknowledged: {}\n", problems.join(", ")),
    };
    match (done.remaining.is_empty(), done.refused_flushes) {
        (false, _) => text += &format!("not over: {} (see stag status)\n", done.remaining.join(", ")),
        (true, true) => {
            text +=
                "flushes may succeed again; what was lost stays lost: check the data from its initiators\n"
        }
        (true, false) => {}
    }
    Ok(text)
}
