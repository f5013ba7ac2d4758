//! `acknowledge`: clears the problems of a unit or an export that an administrator knows of. After
//! a failed flush, SYNCHRONIZE CACHE may succeed again.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::apply::Outcome;
use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::plan::{
    Kind::{Changed, Removed},
    Plan,
};
use super::protocol::{Fault, Kind, Request, json};
use crate::args;
use crate::exit::Exit;
use crate::health::{self, Served};
use crate::out;
use crate::units;

pub const VERB: &str = "acknowledge";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    target: Option<String>,
    lun: Option<u16>,
    export: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

/// The verb's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Acknowledged {
    #[serde(flatten)]
    served: Served,
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
/// There is no such unit or export, or the mark of its failed flush cannot be removed.
pub fn answer(daemon: &Daemon, request: &Request) -> Result<Value, Fault> {
    let asked: Wanted = request.arguments()?;
    let dry_run = asked.dry_run;
    let wanted = match asked {
        Wanted { target: Some(target), lun: Some(lun), export: None, .. } => Served::Unit { target, lun },
        Wanted { target: None, lun: None, export: Some(export), .. } => Served::Export { export },
        _ => return Err(Fault::new(Kind::Request, "`target` and `lun`, or `export`, are needed")),
    };
    let running = daemon.running();
    let health = match &wanted {
        Served::Unit { target, lun } => {
            running.units.open.get(&units::place(target, *lun)).map(|unit| health::of(unit))
        }
        Served::Export { export: name } => {
            let export = running.config.exports.iter().find(|export| export.name == *name);
            export.map(|export| running.trees.health(export))
        }
    };
    let missing = || match &wanted {
        Served::Unit { target, lun } => format!("there is no LUN {lun} of {target}"),
        Served::Export { export } => format!("there is no export {export}"),
    };
    let health = health.ok_or_else(|| Fault::new(Kind::Missing, missing()))?;
    let names = |report: &backing::health::Report| -> Vec<String> {
        report.problems.iter().map(|problem| problem.kind.name().to_owned()).collect()
    };
    if dry_run {
        let report = health.as_ref().map(|health| health.look());
        let plan = planned(&wanted, report.as_ref());
        return json(&Outcome::planned(plan, daemon.running().parts.generation));
    }
    let Some(health) = health else {
        return json(&Acknowledged {
            served: wanted,
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
        target: iscsi_server::audit::TARGET,
        what = "acknowledge",
        served = %wanted,
        path = health.path(),
        ?problems,
        "an administrator acknowledged problems"
    );
    json(&Acknowledged {
        problems,
        refused_flushes: before.refuses_flushes,
        remaining: names(&after),
        served: wanted,
    })
}

/// The problems that an acknowledgement clears. One that persists is reported again.
fn planned(served: &Served, report: Option<&backing::health::Report>) -> Plan {
    let mut plan = Plan::default();
    for problem in report.iter().flat_map(|report| &report.problems) {
        plan.add(Removed, format!("{served}: {}", problem.kind.name()), None);
    }
    if report.is_some_and(|report| report.refuses_flushes) {
        let what = "what was lost stays lost, and initiators no longer hear of it".to_owned();
        plan.add(Changed, format!("{served}: flushes may succeed again"), Some(what));
    }
    plan
}

pub fn command(args: &args::Acknowledge) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Acknowledge) -> Result<String, CallError> {
    let mut arguments = Map::new();
    match &args.served {
        Served::Unit { target, lun } => {
            arguments.insert("target".into(), target.as_str().into());
            arguments.insert("lun".into(), (*lun).into());
        }
        Served::Export { export } => {
            arguments.insert("export".into(), export.as_str().into());
        }
    }
    if args.dry_run {
        arguments.insert("dry_run".into(), true.into());
    }
    let value = Client::connect(args.at.control.as_deref())?.call(VERB, arguments, |_| ())?;
    if args.json {
        return Ok(format!("{value:#}\n"));
    }
    if args.dry_run {
        return Outcome::shown(value);
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
