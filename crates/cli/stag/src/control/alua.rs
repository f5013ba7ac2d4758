//! `alua`: the target port groups of a daemon's targets, and changes of their access states.

use std::fmt::Write;

use scsi::data::target_port_groups::AccessState;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::apply::Outcome;
use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::plan::{Kind::Changed, Plan};
use super::protocol::{Fault, Kind, json};
use crate::args;
use crate::exit::Exit;
use crate::out;

/// The verb's arguments: target, group and state for a change, none to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    target: Option<String>,
    group: Option<u16>,
    state: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetGroups {
    pub iqn: String,
    /// Whether initiators may change states.
    pub explicit: bool,
    /// Whether the target may.
    pub implicit: bool,
    pub groups: Vec<Group>,
}

/// One target port group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// TARGET PORT GROUP.
    pub id: u16,
    /// The portal groups that are its ports.
    pub portal_groups: Vec<u16>,
    pub state: String,
    /// PREF.
    pub preferred: bool,
    /// The side that changed the state last: `initiator`, `target`, or `None` for neither.
    pub changed_by: Option<String>,
}

/// Changes a state if asked to, and returns all target port groups.
///
/// # Errors
/// The arguments are incomplete or wrong, or the server refuses the change.
pub fn answer(daemon: &Daemon, wanted: Wanted) -> Result<Value, Fault> {
    match (wanted.target, wanted.group, wanted.state) {
        (None, None, None) => {}
        (Some(target), Some(group), Some(state)) => {
            let state = AccessState::named(&state)
                .ok_or_else(|| Fault::new(Kind::Request, format!("alua: {state} is no state")))?;
            let refused = |error: iscsi_server::SetAccessError| Fault::new(Kind::Refused, error.to_string());
            if wanted.dry_run {
                let before = daemon.server.would_set_access(&target, group, state).map_err(refused)?;
                let mut plan = Plan::default();
                if let Some(before) = before {
                    let (from, to) = (before.name(), state.name());
                    let what = format!("{target}: target port group {group} from {from} to {to}");
                    plan.add(Changed, what, Some("initiators are told of other path states".to_owned()));
                }
                return json(&Outcome::planned(plan, daemon.running().parts.generation));
            }
            daemon.server.set_access(&target, group, state).map_err(refused)?;
            tracing::info!(
                target: iscsi_server::audit::TARGET,
                what = "alua",
                target,
                group,
                state = state.name(),
                "target port group changed"
            );
        }
        _ => return Err(Fault::new(Kind::Request, "alua: target, group and state belong together")),
    }
    let targets = daemon.server.targets();
    let groups = targets.into_iter().filter_map(|target| {
        let ports = daemon.server.port_groups(&target.name)?;
        let group = |group: scsi::data::target_port_groups::TargetPortGroup| Group {
            id: group.id,
            state: group.state.name().into(),
            preferred: group.preferred,
            changed_by: match group.status {
                scsi::alua::STATUS_EXPLICIT => Some("initiator".into()),
                scsi::alua::STATUS_IMPLICIT => Some("target".into()),
                _ => None,
            },
            portal_groups: group.ports,
        };
        let groups = ports.groups().into_iter().map(group).collect();
        let (explicit, implicit) = (ports.tpgs() & 2 != 0, ports.tpgs() & 1 != 0);
        Some(TargetGroups { iqn: target.name, explicit, implicit, groups })
    });
    json(&groups.collect::<Vec<_>>())
}

pub fn command(args: &args::Alua) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Alua) -> Result<String, CallError> {
    let mut client = Client::connect(args.at.control.as_deref())?;
    let mut wanted = Map::new();
    if let (Some(target), Some(group), Some(state)) = (&args.target, args.group, &args.state) {
        wanted.insert("target".into(), target.clone().into());
        wanted.insert("group".into(), group.into());
        wanted.insert("state".into(), state.clone().into());
    }
    if args.dry_run {
        wanted.insert("dry_run".into(), true.into());
    }
    let answer = client.call("alua", wanted, |_| {})?;
    if args.dry_run && !args.json {
        return Outcome::shown(answer);
    }
    if args.json {
        return Ok(format!("{answer:#}\n"));
    }
    let targets: Vec<TargetGroups> = serde_json::from_value(answer).map_err(std::io::Error::other)?;
    let mut out = String::new();
    let _ = write_text(&mut out, &targets);
    Ok(out)
}

fn write_text(out: &mut String, targets: &[TargetGroups]) -> std::fmt::Result {
    for target in targets {
        writeln!(out, "target {}", target.iqn)?;
        for group in &target.groups {
            let preferred = if group.preferred { ", preferred" } else { "" };
            let by = group.changed_by.as_ref().map_or_else(String::new, |by| format!(", set by an {by}"));
            let by = by.replace("an target", "the target");
            let (id, ports, state) = (group.id, &group.portal_groups, &group.state);
            writeln!(out, "  group {id} (portal groups {ports:?}): {state}{preferred}{by}")?;
        }
    }
    Ok(())
}
