//! `disconnect`: throws one iSCSI session, or one NFS client, out, and refuses it for a while.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::apply::Outcome;
use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::drain::counted;
use super::plan::{Kind as Change, Plan};
use super::protocol::{Fault, Kind, Request, json};
use crate::args;
use crate::exit::Exit;
use crate::out;

pub const VERB: &str = "disconnect";

/// Time for a core to answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The session's TSIH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<u16>,
    /// The NFS client: an address, or one connection's address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// Seconds for which it is refused.
    #[serde(default = "ten")]
    refuse: u16,
    /// Whether only to say whom it would disturb.
    #[serde(default)]
    dry_run: bool,
}

fn ten() -> u16 {
    10
}

/// The verb.
///
/// # Errors
/// There is no such session or client.
pub fn answer(daemon: &Daemon, request: &Request) -> Result<Value, Fault> {
    let Wanted { session, client, refuse, dry_run } = request.arguments()?;
    let time = Duration::from_secs(refuse.into());
    let planned = |what, whom| {
        let mut plan = Plan::default();
        let then = if refuse == 0 { String::new() } else { format!("; {whom} refused for {refuse} seconds") };
        plan.add(Change::Removed, what, Some(format!("dropped at once{then}")));
        json(&Outcome::planned(plan, daemon.running().parts.generation))
    };
    match (session, client.as_deref().map(|text| (text, place(text)))) {
        (Some(tsih), None) => {
            let none = || Fault::new(Kind::Missing, format!("there is no session {tsih}"));
            if dry_run {
                let all = daemon.server.sessions();
                let found = all.iter().find(|session| session.tsih == tsih).ok_or_else(none)?;
                let target = found.target.as_deref().unwrap_or("discovery");
                let connections = counted(found.connections.len());
                let what = format!("session {tsih} of {} with {target} ({connections})", found.initiator);
                return planned(what, "the initiator's logins there are");
            }
            let gone = daemon.server.disconnect(tsih, time).ok_or_else(none)?;
            Ok(serde_json::json!({
                "session": tsih,
                "initiator": gone.initiator,
                "target": gone.target,
                "connections": gone.connections,
                "refused_s": refuse,
            }))
        }
        (None, Some((text, Some((address, port))))) => {
            let none = || Fault::new(Kind::Missing, format!("there is no NFS client {text}"));
            if dry_run {
                let connections = daemon.files.connections(address, port, PATIENCE).ok_or_else(none)?;
                let what = format!("NFS client {text} ({})", counted(connections.get()));
                return planned(what, "its address is");
            }
            let connections = daemon.files.disconnect(address, port, time, PATIENCE).ok_or_else(none)?;
            Ok(serde_json::json!({"client": text, "connections": connections.get(), "refused_s": refuse}))
        }
        _ => Err(Fault::new(
            Kind::Request,
            "`session` or `client` is needed: a session's number, or an address",
        )),
    }
}

/// The address and port of an NFS client, as `status` shows them.
pub fn place(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let whole = text.parse().map(|peer: SocketAddr| (peer.ip(), Some(peer.port())));
    whole.or_else(|_| text.parse().map(|address| (address, None))).ok()
}

pub fn command(args: &args::Disconnect) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Disconnect) -> Result<String, CallError> {
    let (session, client) = match args.client.parse::<u16>() {
        Ok(tsih) => (Some(tsih), None),
        Err(_) => (None, Some(args.client.clone())),
    };
    let wanted = Wanted { session, client, refuse: args.refuse, dry_run: args.dry_run };
    let Value::Object(arguments) = serde_json::to_value(&wanted)? else { return Ok(String::new()) };
    let said = Client::connect(args.at.control.as_deref())?.call(VERB, arguments, |_| ())?;
    if args.json {
        return Ok(format!("{said:#}\n"));
    }
    if args.dry_run {
        return Outcome::shown(said);
    }
    let word = |name: &str| said[name].as_str().unwrap_or_default();
    let what = match session {
        Some(tsih) => format!("session {tsih} of {}", word("initiator")),
        None => format!("NFS client {}", args.client),
    };
    let whom = match (session, word("target")) {
        (None, _) => "its address is",
        (Some(_), "") => "its initiator's discovery is",
        (Some(_), _) => "its initiator's logins to the target are",
    };
    let connections = counted(said["connections"].as_u64().unwrap_or(0) as usize);
    Ok(match args.refuse {
        0 => format!("disconnected {what} ({connections})\n"),
        time => format!("disconnected {what} ({connections}); {whom} refused for {time} s\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_as_status_shows_it() {
        let v4 = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(place("192.0.2.7:901"), Some((v4, Some(901))));
        assert_eq!(place("192.0.2.7"), Some((v4, None)));
        let v6 = "2001:db8::7".parse().unwrap();
        assert_eq!(
            (place("[2001:db8::7]:901"), place("2001:db8::7")),
            (Some((v6, Some(901))), Some((v6, None)))
        );
        assert_eq!((place("4711"), place("host:901"), place("")), (None, None, None));
    }
}
