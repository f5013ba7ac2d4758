//! `drain` and `undrain`: move initiators off a target, a portal or the whole daemon. `drains`:
//! report progress.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iscsi::discovery::TargetAddress;
use iscsi_server::config::Redirect;
use iscsi_server::{DrainOptions, DrainScope, DrainState, Leaving};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::apply::Outcome;
use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::plan::{Kind as Change, Plan};
use super::protocol::{Fault, Kind, Progress, Request, json};
use crate::args;
use crate::exit::Exit;
use crate::out;

/// Interval of progress messages to a client.
const STEP: Duration = Duration::from_millis(200);
/// Extra time for a drain beyond its timeout, in which dropped connections end.
const LAST: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default)]
    target: Option<String>,
    #[serde(default)]
    portal: Option<SocketAddr>,
    #[serde(default)]
    all: bool,
    /// Seconds that initiators have to log out.
    #[serde(default = "half_a_minute")]
    timeout: u16,
    /// Address to which new logins are redirected.
    #[serde(default)]
    redirect: Option<String>,
    /// Whether to answer only once all connections have ended.
    #[serde(default)]
    wait: bool,
    /// Whether only to say whom it would disturb.
    #[serde(default)]
    dry_run: bool,
}

fn half_a_minute() -> u16 {
    30
}

impl Wanted {
    fn scope(&self) -> Result<DrainScope, Fault> {
        match (&self.target, self.portal, self.all) {
            (Some(target), None, false) => Ok(DrainScope::Target(target.clone())),
            (None, Some(portal), false) => Ok(DrainScope::Portal(portal)),
            (None, None, true) => Ok(DrainScope::All),
            _ => Err(Fault::new(Kind::Request, "drain: one of target, portal and all is wanted")),
        }
    }
}

/// A drain as clients see it.
#[derive(Debug, Serialize, Deserialize)]
pub struct DrainStatus {
    /// The target's name, if a target is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The portal's address, if a portal is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal: Option<SocketAddr>,
    /// `asking`, `dropping` or `drained`.
    pub state: String,
    /// Connections that were asked to log out.
    pub asked: usize,
    /// Connections that had to be dropped.
    pub dropped: usize,
    /// Connections that are left.
    pub left: usize,
    /// Seconds since it began.
    pub age: f64,
    /// Seconds that initiators still have.
    pub remaining: f64,
    /// Address to which new logins are redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<String>,
}

impl DrainStatus {
    fn of(status: &iscsi_server::DrainStatus) -> Self {
        let (target, portal) = match &status.scope {
            DrainScope::All => (None, None),
            DrainScope::Target(name) => (Some(name.clone()), None),
            DrainScope::Portal(address) => (None, Some(*address)),
        };
        let state = match status.state {
            DrainState::Asking => "asking",
            DrainState::Dropping => "dropping",
            DrainState::Drained => "drained",
        };
        Self {
            target,
            portal,
            state: state.to_owned(),
            asked: status.asked,
            dropped: status.dropped,
            left: status.left,
            age: status.age.as_secs_f64(),
            remaining: status.remaining.as_secs_f64(),
            redirect: status.redirect.as_ref().map(|to| to.address.to_string()),
        }
    }

    fn place(&self) -> String {
        match (&self.target, self.portal) {
            (Some(target), _) => target.clone(),
            (_, Some(portal)) => portal.to_string(),
            _ => "everything".to_owned(),
        }
    }

    fn line(&self) -> String {
        let went = format!("{} asked to log out, {} dropped", self.asked, self.dropped);
        let place = self.place();
        match self.state.as_str() {
            "drained" => format!("{place}: drained, {went}"),
            "dropping" => format!("{place}: {} connections being dropped", self.left),
            _ => format!("{place}: {} connections left, {:.0} s to log out", self.left, self.remaining),
        }
    }
}

/// Answers `drain`.
///
/// # Errors
/// There is no such target or portal, or it is being drained already.
pub fn drain(daemon: &Daemon, request: &Request, progress: Progress<'_>) -> Result<Value, Fault> {
    let wanted: Wanted = request.arguments()?;
    let scope = wanted.scope()?;
    let redirect = wanted.redirect.as_deref().map(|text| {
        let address = TargetAddress::parse(text);
        let bad =
            || Fault::new(Kind::Request, format!("drain: \"{text}\" is no place to send initiators to"));
        Ok::<_, Fault>(Redirect { address: address.ok_or_else(bad)?, permanent: false, after_auth: false })
    });
    let options =
        DrainOptions { timeout: Duration::from_secs(wanted.timeout.into()), redirect: redirect.transpose()? };
    let patience = Instant::now() + options.timeout + LAST;
    let refused = |error: iscsi_server::DrainError| Fault::new(Kind::Refused, error.to_string());
    if wanted.dry_run {
        let leaving = daemon.server.would_drain(&scope).map_err(refused)?;
        let plan = planned(&scope, &wanted, &leaving);
        return json(&Outcome::planned(plan, daemon.running().parts.generation));
    }
    daemon.server.drain(scope.clone(), options).map_err(refused)?;
    loop {
        let status = daemon.server.drains().into_iter().find(|drain| drain.scope == scope);
        let Some(status) = status else {
            return Err(Fault::new(Kind::Failed, "the drain was undone"));
        };
        let told = DrainStatus::of(&status);
        if !wanted.wait || status.state == DrainState::Drained {
            return json(&told);
        }
        if Instant::now() >= patience {
            let what = format!("{} connections do not end", told.left);
            return Err(Fault::new(Kind::Failed, what));
        }
        progress(json(&told)?);
        std::thread::sleep(STEP);
    }
}

/// What a drain would do, and to whom.
fn planned(scope: &DrainScope, wanted: &Wanted, leaving: &[Leaving]) -> Plan {
    let mut plan = Plan::default();
    let logins = wanted.redirect.as_ref().map_or("refused".to_owned(), |to| format!("redirected to {to}"));
    plan.add(Change::Changed, format!("{scope}: logins are {logins} until the drain is undone"), None);
    for Leaving { tsih, initiator, target, connections, whole } in leaving {
        let target = target.as_deref().unwrap_or("discovery");
        let part = if *whole { "" } else { "a part of " };
        let what = format!("{part}session {tsih} of {initiator} with {target} ({})", counted(*connections));
        let how = match wanted.timeout {
            0 => "dropped at once".to_owned(),
            time => format!("asked to log out, and dropped after {time} seconds"),
        };
        plan.add(Change::Removed, what, Some(how));
    }
    plan
}

/// A number of connections in words.
pub fn counted(connections: usize) -> String {
    if connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") }
}

/// Answers `undrain`.
///
/// # Errors
/// It is not being drained.
pub fn undrain(daemon: &Daemon, request: &Request) -> Result<Value, Fault> {
    let wanted: Wanted = request.arguments()?;
    let scope = wanted.scope()?;
    let is_drained = if wanted.dry_run {
        daemon.server.drains().iter().any(|drain| drain.scope == scope)
    } else {
        daemon.server.undrain(&scope)
    };
    if !is_drained {
        return Err(Fault::new(Kind::Refused, format!("{scope} is not being drained")));
    }
    if !wanted.dry_run {
        return Ok(json!({}));
    }
    let mut plan = Plan::default();
    plan.add(Change::Changed, format!("{scope}: logins are accepted again"), None);
    json(&Outcome::planned(plan, daemon.running().parts.generation))
}

/// Answers `drains`.
///
/// # Errors
/// Never.
pub fn drains(daemon: &Daemon) -> Result<Value, Fault> {
    json(&daemon.server.drains().iter().map(DrainStatus::of).collect::<Vec<_>>())
}

pub fn command(args: &args::Drain) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Drain) -> Result<String, CallError> {
    let mut client = Client::connect(args.at.control.as_deref())?;
    if args.target.is_none() && args.portal.is_none() && !args.all {
        let value: Value = client.ask("drains")?;
        if args.json {
            return Ok(format!("{value:#}\n"));
        }
        let drains: Vec<DrainStatus> = serde_json::from_value(value)?;
        return Ok(match drains.as_slice() {
            [] => "nothing is being drained\n".to_owned(),
            drains => drains.iter().map(|drain| drain.line() + "\n").collect(),
        });
    }
    let wanted = Wanted {
        target: args.target.clone(),
        portal: args.portal,
        all: args.all,
        timeout: args.timeout,
        redirect: args.redirect.clone(),
        wait: !args.no_wait && !args.undo,
        dry_run: args.dry_run,
    };
    let Value::Object(arguments) = serde_json::to_value(&wanted)? else {
        return Ok(String::new());
    };
    let verb = if args.undo { "undrain" } else { "drain" };
    if args.undo && !args.dry_run {
        client.call(verb, arguments, |_| ())?;
        return Ok(String::new());
    }
    if args.dry_run {
        let value = client.call(verb, arguments, |_| ())?;
        return Ok(if args.json { format!("{value:#}\n") } else { Outcome::shown(value)? });
    }
    let mut last = String::new();
    let value = call(&mut client, arguments, |status| {
        let line = status.line();
        if line != last {
            say!("{line}");
            last = line;
        }
    })?;
    if args.json {
        return Ok(format!("{value:#}\n"));
    }
    let status: DrainStatus = serde_json::from_value(value)?;
    Ok(status.line() + "\n")
}

fn call(
    client: &mut Client,
    arguments: Map<String, Value>,
    mut hear: impl FnMut(DrainStatus),
) -> Result<Value, CallError> {
    client.call("drain", arguments, |step| {
        if let Ok(status) = serde_json::from_value(step) {
            hear(status);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_who_has_to_leave_and_how() {
        let scope = DrainScope::Portal("192.0.2.1:3260".parse().unwrap());
        let leaving = |target: Option<&str>, connections, whole| Leaving {
            tsih: 7,
            initiator: "iqn.i:a".into(),
            target: target.map(str::to_owned),
            connections,
            whole,
        };
        let wanted = |timeout: u16, redirect: Option<&str>| Wanted {
            target: None,
            portal: None,
            all: false,
            timeout,
            redirect: redirect.map(str::to_owned),
            wait: false,
            dry_run: true,
        };
        let all = [leaving(Some("iqn.t:b"), 2, false), leaving(None, 1, true)];
        assert_eq!(
            planned(&scope, &wanted(30, None), &all).text(),
            "~ portal 192.0.2.1:3260: logins are refused until the drain is undone\n\
             - a part of session 7 of iqn.i:a with iqn.t:b (2 connections)\n    asked to log out, and dropped after 30 seconds\n\
             - session 7 of iqn.i:a with discovery (1 connection)\n    asked to log out, and dropped after 30 seconds\n"
        );
        let at_once = planned(&scope, &wanted(0, Some("192.0.2.2:3260")), &all[1..]).text();
        assert!(
            at_once.contains("redirected to 192.0.2.2:3260 until") && at_once.contains("dropped at once"),
            "{at_once}"
        );
    }
}
