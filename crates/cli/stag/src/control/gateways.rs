//! `gateways`: the group that a daemon is a gateway of, and moves of its units.

use std::fmt::Write;
use std::time::Instant;

use ceph::ImageName;
use cluster::record::{Next, Standing};
use cluster::{Place, Request as Change};
use gateway::Gateway;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::protocol::{Fault, Kind, Request, json as to_json};
use crate::args;
use crate::config::gateways::unit_number;
use crate::exit::Exit;
use crate::out;
use crate::unit::Backing;

pub const VERB: &str = "gateways";
pub const MOVE: &str = "move";
pub const SPREAD: &str = "spread";

/// The group, as one gateway knows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The gateway that was asked.
    pub gateway: u16,
    /// How many lives it has begun in the group.
    pub life: u64,
    /// What does not work now.
    pub problem: Option<String>,
    pub members: Vec<Member>,
    pub units: Vec<SharedUnit>,
    /// The last gateways that were taken out, the latest first.
    pub fences: Vec<Fence>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Member {
    pub number: u16,
    /// Its life: 16 hexadecimal digits.
    pub instance: String,
    /// `serving`, `leaving` or `being taken out`.
    pub standing: String,
    /// How long its counter has stood still, as the gateway that was asked has seen it.
    pub silent_ms: u64,
    /// Units that it owns.
    pub units: usize,
    /// It is the gateway that was asked.
    pub own: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SharedUnit {
    pub image: String,
    /// The gateway that owns it; none while it is moved, or no gateway can.
    pub owner: Option<u16>,
    /// The gateway that it is moved to.
    pub moving_to: Option<u16>,
    /// The gateway that was asked executes its commands.
    pub here: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Fence {
    pub gateway: u16,
    pub instance: String,
    /// The gateway that took it out.
    pub by: u16,
    /// From this OSD map on it is refused.
    pub epoch: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    /// `POOL/IMAGE`, or a target's name and a LUN: `IQN/LUN`.
    unit: String,
    gateway: u16,
}

fn group(daemon: &Daemon) -> Result<&Gateway, Fault> {
    let none = "this daemon is in no group: add [gateways] to its configuration, and start it again";
    daemon.gateways().ok_or_else(|| Fault::new(Kind::Refused, none))
}

/// The verbs.
///
/// # Errors
/// The daemon is in no group, or the group refuses.
pub fn answer(daemon: &Daemon, request: &Request) -> Result<Value, Fault> {
    let group = group(daemon)?;
    let refused = |why: String| Fault::new(Kind::Refused, why);
    match request.verb.as_str() {
        MOVE => {
            let Move { unit, gateway } = request.arguments()?;
            let image = image(daemon, &unit)?;
            let began = Instant::now();
            group.move_unit(unit_number(&image), gateway).map_err(refused)?;
            let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            Ok(json!({ "image": image.to_string(), "gateway": gateway, "ms": ms }))
        }
        SPREAD => group.ask(Change::Spread).map(|()| json!({})).map_err(refused),
        _ => to_json(&status(group)),
    }
}

/// The image of a unit.
fn image(daemon: &Daemon, unit: &str) -> Result<ImageName, Fault> {
    let running = daemon.running();
    let units = running.config.targets.iter().flat_map(|target| {
        target.units.iter().map(move |lun| (format!("{}/{}", target.iqn, lun.lun), &lun.spec.backing))
    });
    let images = units.filter_map(|(place, backing)| match backing {
        Backing::Rbd(name) => Some((place, name)),
        _ => None,
    });
    let mut found = images.filter(|(place, name)| {
        place.eq_ignore_ascii_case(unit) || name.to_string() == unit.trim_start_matches("rbd:")
    });
    let none = || Fault::new(Kind::Missing, format!("no unit is {unit}: write POOL/IMAGE, or IQN/LUN"));
    found.next().map(|(_, name)| name.clone()).ok_or_else(none)
}

pub fn status(group: &Gateway) -> GroupStatus {
    let status = group.status();
    let (view, images) = (status.view.unwrap_or_default(), group.images());
    let hex = |instance: cluster::InstanceId| format!("{:016x}", instance.0);
    let member = |row: &cluster::view::Row| Member {
        number: row.gateway.0,
        instance: hex(row.instance),
        standing: match row.standing {
            Standing::Serving => "serving",
            Standing::Leaving => "leaving",
            Standing::Fencing { .. } => "being taken out",
        }
        .into(),
        silent_ms: u64::try_from(row.silent.as_millis()).unwrap_or(u64::MAX),
        units: row.units,
        own: row.own,
    };
    let unit = |(unit, place): &(cluster::UnitId, Place)| {
        let (owner, moving_to) = match place {
            Place::Owned { by } => (Some(by.0), None),
            Place::Moving { to: Next::Gateway(to), .. } => (None, Some(to.0)),
            Place::Moving { .. } | Place::Vacant => (None, None),
        };
        let image = images.get(&unit.0);
        SharedUnit {
            // One that this gateway's configuration does not have.
            image: image.map_or_else(|| format!("unit {}", unit.0), ToString::to_string),
            owner,
            moving_to,
            here: view.here.contains(unit),
        }
    };
    let fence = |fence: &cluster::record::Fence| Fence {
        gateway: fence.gateway.0,
        instance: hex(fence.instance),
        by: fence.by.0,
        epoch: fence.epoch.0,
    };
    GroupStatus {
        gateway: group.number(),
        life: status.life,
        problem: status.problem,
        members: view.gateways.iter().map(member).collect(),
        units: view.units.iter().map(unit).collect(),
        fences: view.fences.iter().map(fence).collect(),
    }
}

fn text(status: &GroupStatus) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    if let Some(problem) = &status.problem {
        writeln!(out, "problem: {problem}")?;
    }
    for member in &status.members {
        let own = if member.own { ", this one" } else { "" };
        let silent = if member.silent_ms > 1000 {
            format!(", silent for {} ms", member.silent_ms)
        } else {
            String::new()
        };
        let Member { number, instance, standing, units, .. } = member;
        writeln!(out, "gateway {number}: {standing}, owns {units}{silent}{own} ({instance})")?;
    }
    for unit in &status.units {
        let owner = match (unit.owner, unit.moving_to) {
            (Some(owner), _) => format!("gateway {owner}"),
            (None, Some(to)) => format!("moving to gateway {to}"),
            (None, None) => "no gateway".into(),
        };
        writeln!(out, "{}: {owner}", unit.image)?;
    }
    for Fence { gateway, instance, by, epoch } in status.fences.iter().take(5) {
        writeln!(out, "taken out: gateway {gateway} ({instance}), by gateway {by}, from map {epoch} on")?;
    }
    if status.members.is_empty() {
        writeln!(out, "this gateway is not in the group now")?;
    }
    Ok(out)
}

pub fn command(args: &args::Gateways) -> Exit {
    match &args.action {
        None => show(run(args)),
        Some(args::GatewaysAction::Spread(spread)) => {
            show(call(spread.at.control.as_deref(), SPREAD, Map::new()).map(|_| String::new()))
        }
        Some(args::GatewaysAction::Secret(secret)) => {
            match crate::gateways::secret::lines(secret.after.as_deref()) {
                Ok(lines) => out::print(&lines),
                Err(error) => {
                    say!("stag: {error}");
                    Exit::Failed
                }
            }
        }
    }
}

pub fn move_command(args: &args::Move) -> Exit {
    let arguments = [("unit", json!(args.unit)), ("gateway", json!(args.gateway))];
    let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    show(call(args.at.control.as_deref(), MOVE, arguments).map(|done| {
        format!(
            "{} is at gateway {} after {} ms\n",
            done["image"].as_str().unwrap_or_default(),
            done["gateway"],
            done["ms"]
        )
    }))
}

fn show(done: Result<String, CallError>) -> Exit {
    match done {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn call(
    control: Option<&std::path::Path>,
    verb: &str,
    arguments: Map<String, Value>,
) -> Result<Value, CallError> {
    Client::connect(control)?.call(verb, arguments, |_| {})
}

fn run(args: &args::Gateways) -> Result<String, CallError> {
    let answer = call(args.at.control.as_deref(), VERB, Map::new())?;
    if args.json {
        return Ok(format!("{answer:#}\n"));
    }
    let status: GroupStatus = serde_json::from_value(answer).map_err(std::io::Error::other)?;
    text(&status).map_err(|error| CallError::from(std::io::Error::other(error)))
}
