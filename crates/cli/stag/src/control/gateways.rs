//! `gateways`: the group that a daemon is a gateway of, and moves of its units.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use ceph::ImageName;
use cluster::record::{Next, Standing};
use cluster::{GatewayId, Place, Request as Change, UnitId};
use gateway::Gateway;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::apply::Outcome;
use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::plan::{Kind::Changed, Plan};
use super::protocol::{Fault, Kind, Request, json as to_json};
use crate::args::{self, At};
use crate::config::gateways::unit_number;
use crate::exit::Exit;
use crate::out;
use crate::unit::Backing;

pub const VERB: &str = "gateways";
pub const MOVE: &str = "move";
pub const SPREAD: &str = "spread";

/// The standing of a member that is silent.
pub const FENCING: &str = "being taken out";

/// The group, as one gateway knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The gateway that was asked.
    pub gateway: u16,
    /// How many lives it has begun in the group.
    pub life: u64,
    /// What does not work now.
    pub problem: Option<String>,
    pub members: Vec<Member>,
    /// Gateways of the configuration that are not in the group.
    #[serde(default)]
    pub missing: Vec<u16>,
    pub units: Vec<SharedUnit>,
    /// The last gateways that were taken out, the latest first.
    pub fences: Vec<Fence>,
    #[serde(default)]
    pub counts: Counts,
}

/// What has happened at the gateway that was asked, since its daemon has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Units that came here from a gateway that handed them over.
    pub moves: u64,
    /// Units that came here from a gateway that was taken out.
    pub takeovers: u64,
    /// Gateways that it has taken out, earlier lives of its own among them.
    pub fences: u64,
    /// Commands that it has forwarded to the owners of their units.
    pub forwarded: u64,
    /// Data of these commands to initiators, bytes.
    pub forwarded_read_bytes: u64,
    /// Data of these commands from initiators, bytes.
    pub forwarded_written_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Whether the connections by which commands are forwarded to it are up; none if there are none
    /// to forward.
    #[serde(default)]
    pub link: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedUnit {
    pub image: String,
    /// The gateway that owns it; none while it is moved, or no gateway can.
    pub owner: Option<u16>,
    /// The gateway that it is moved to.
    pub moving_to: Option<u16>,
    /// The gateway that was asked executes its commands.
    pub here: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
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
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spread {
    #[serde(default)]
    dry_run: bool,
}

fn group(daemon: &Daemon) -> Result<&Gateway, Fault> {
    let none = "this daemon is in no group: add [gateways] to its configuration, and start it again";
    daemon.gateways().ok_or_else(|| Fault::new(Kind::Missing, none))
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
            let Move { unit, gateway, dry_run } = request.arguments()?;
            let image = image(daemon, &unit)?;
            let unit = unit_number(&image);
            let plan = planned(group, Change::Move(UnitId(unit), GatewayId(gateway)))?;
            let done = || group.move_unit(unit, gateway).map_err(refused);
            let mut outcome = outcome(daemon, plan, dry_run, done)?;
            outcome["image"] = image.to_string().into();
            outcome["gateway"] = gateway.into();
            Ok(outcome)
        }
        SPREAD => {
            let Spread { dry_run } = request.arguments()?;
            let plan = planned(group, Change::Spread)?;
            outcome(daemon, plan, dry_run, || group.ask(Change::Spread).map_err(refused))
        }
        _ => to_json(&status(group)),
    }
}

/// What a change of owners would do.
fn planned(group: &Gateway, asked: Change) -> Result<Plan, Fault> {
    const DISTURBS: &str =
        "its commands wait for some milliseconds, and initiators are told of other path states";
    let moves = group.plan(asked).map_err(|why| Fault::new(Kind::Refused, why))?;
    let mut plan = Plan::default();
    let images = group.images();
    for (unit, from, to) in moves {
        let what = format!("{}: from gateway {from} to gateway {to}", name(&images, unit));
        plan.add(Changed, what, Some(DISTURBS.to_owned()));
    }
    Ok(plan)
}

/// Does what is planned, unless it is only planned.
fn outcome(
    daemon: &Daemon,
    plan: Plan,
    dry_run: bool,
    act: impl FnOnce() -> Result<(), Fault>,
) -> Result<Value, Fault> {
    if dry_run {
        return to_json(&Outcome::planned(plan, daemon.running().parts.generation));
    }
    let began = Instant::now();
    act()?;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    Ok(json!({ "plan": to_json(&plan)?, "applied": true, "took_ms": took_ms }))
}

/// A unit's image, or its number if this gateway's configuration does not have it.
fn name(images: &BTreeMap<u32, ImageName>, unit: u32) -> String {
    images.get(&unit).map_or_else(|| format!("unit {unit}"), ToString::to_string)
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
    let is_in = status.view.is_some();
    let (view, links, images) = (status.view.unwrap_or_default(), group.links(), group.images());
    let is_member = |number: &u16| view.gateways.iter().any(|row| row.gateway.0 == *number);
    // Who is not in the group does not know of others.
    let is_missing = |number: &u16| if is_in { !is_member(number) } else { *number == group.number() };
    let hex = |instance: cluster::InstanceId| format!("{:016x}", instance.0);
    let member = |row: &cluster::view::Row| Member {
        number: row.gateway.0,
        instance: hex(row.instance),
        standing: match row.standing {
            Standing::Serving => "serving",
            Standing::Leaving => "leaving",
            Standing::Fencing { .. } => FENCING,
        }
        .into(),
        silent_ms: u64::try_from(row.silent.as_millis()).unwrap_or(u64::MAX),
        units: row.units,
        own: row.own,
        link: links.get(&row.instance.0).copied(),
    };
    let unit = |(unit, place): &(cluster::UnitId, Place)| {
        let (owner, moving_to) = match place {
            Place::Owned { by } => (Some(by.0), None),
            Place::Moving { to: Next::Gateway(to), .. } => (None, Some(to.0)),
            Place::Moving { .. } | Place::Vacant => (None, None),
        };
        SharedUnit {
            image: name(&images, unit.0),
            owner,
            moving_to,
            here: view.here.binary_search(unit).is_ok(),
        }
    };
    let fence = |fence: &cluster::record::Fence| Fence {
        gateway: fence.gateway.0,
        instance: hex(fence.instance),
        by: fence.by.0,
        epoch: fence.epoch.0,
    };
    let (counts, forwarded) = (group.counts(), group.forwarded());
    GroupStatus {
        gateway: group.number(),
        life: status.life,
        problem: status.problem,
        members: view.gateways.iter().map(member).collect(),
        missing: group.configured().filter(is_missing).collect(),
        units: view.units.iter().map(unit).collect(),
        fences: view.fences.iter().map(fence).collect(),
        counts: Counts {
            moves: counts.moves,
            takeovers: counts.takeovers,
            fences: counts.fences,
            forwarded: forwarded.commands,
            forwarded_read_bytes: forwarded.bytes_in,
            forwarded_written_bytes: forwarded.bytes_out,
        },
    }
}

impl GroupStatus {
    /// What is wrong with the group: a sentence each.
    pub fn problems(&self) -> Vec<String> {
        let leaves = |member: &&Member| member.standing == FENCING;
        let fenced = self.members.iter().filter(leaves).map(|member| member.number);
        let down = self.members.iter().filter(|member| member.link == Some(false));
        let of = |number: u16, what: &str| format!("gateway {number} {what}");
        let all = self.problem.iter().cloned();
        all.chain(self.missing.iter().map(|number| of(*number, "is not in the group")))
            .chain(fenced.map(|number| of(number, "is being taken out of the group")))
            .chain(down.map(|member| of(member.number, "cannot be reached by its peer link")))
            .collect()
    }
}

impl SharedUnit {
    /// Who owns it.
    pub fn owner_text(&self) -> String {
        match (self.owner, self.moving_to) {
            (Some(owner), _) => format!("gateway {owner}"),
            (None, Some(to)) => format!("moving to gateway {to}"),
            (None, None) => "no gateway".into(),
        }
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
        let link = if member.link == Some(false) { ", its peer link is down" } else { "" };
        let Member { number, instance, standing, units, .. } = member;
        writeln!(out, "gateway {number}: {standing}, owns {units}{silent}{link}{own} ({instance})")?;
    }
    for number in status.missing.iter().filter(|_| !status.members.is_empty()) {
        writeln!(out, "gateway {number}: not in the group")?;
    }
    for unit in &status.units {
        writeln!(out, "{}: {}", unit.image, unit.owner_text())?;
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
            show(change(&spread.at, SPREAD, json!({ "dry_run": spread.dry_run }), |_| String::new()))
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
    let asked = json!({ "unit": args.unit, "gateway": args.gateway, "dry_run": args.dry_run });
    show(change(&args.at, MOVE, asked, |done| {
        format!(
            "{} is at gateway {} after {:.0} ms\n",
            done["image"].as_str().unwrap_or_default(),
            done["gateway"],
            done["took_ms"].as_f64().unwrap_or_default()
        )
    }))
}

/// Changes owners, or plans it: what is printed.
fn change(at: &At, verb: &str, asked: Value, done: impl Fn(Value) -> String) -> Result<String, CallError> {
    let is_plan = asked["dry_run"] == true;
    let Value::Object(arguments) = asked else { return Ok(String::new()) };
    let said = call(at.control.as_deref(), verb, arguments)?;
    if is_plan { Outcome::shown(said) } else { Ok(done(said)) }
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
