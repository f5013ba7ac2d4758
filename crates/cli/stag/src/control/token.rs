//! `token-add`, `token-list`, `token-remove`: the tokens of the HTTP API.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::protocol::{Fault, Kind, Request};
use crate::args;
use crate::exit::Exit;
use crate::out;
use crate::shown::duration;
use crate::tokens::Role;

pub const ADD: &str = "token-add";
pub const LIST: &str = "token-list";
pub const REMOVE: &str = "token-remove";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Added {
    name: String,
    role: Role,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Removed {
    name: String,
}

/// A token, as it is listed.
#[derive(Serialize, Deserialize)]
struct Listed {
    name: String,
    role: Role,
    made_unix_s: u64,
}

/// The verbs.
///
/// # Errors
/// There is another token of that name or none, or the file cannot be read or written.
pub fn answer(daemon: &Daemon, request: &Request) -> Result<Value, Fault> {
    // A daemon that takes over reads the file after the one before has let go.
    let _alone = daemon.changing();
    let refused = |what: String| Fault::new(Kind::Refused, what);
    if daemon.is_replaced() {
        return Err(refused("another daemon has taken over: ask that one".into()));
    }
    match request.verb.as_str() {
        ADD => {
            let Added { name, role } = request.arguments()?;
            let token = daemon.tokens.add(&name, role).map_err(refused)?;
            Ok(json!({ "name": name, "role": role, "token": token }))
        }
        REMOVE => {
            let Removed { name } = request.arguments()?;
            match daemon.tokens.remove(&name).map_err(refused)? {
                true => Ok(json!({ "name": name })),
                false => Err(Fault::new(Kind::Missing, format!("there is no token {name}"))),
            }
        }
        _ => {
            let all = daemon.tokens.list().map_err(refused)?.into_iter();
            let shown = |token: crate::tokens::Token| json!({ "name": token.name, "role": token.role, "made_unix_s": token.made_unix_s });
            Ok(all.map(shown).collect())
        }
    }
}

pub fn command(args: &args::Token) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Token) -> Result<String, CallError> {
    let mut arguments = Map::new();
    let verb = match &args.what {
        args::TokenWhat::Add { name, role } => {
            arguments.insert("name".into(), name.as_str().into());
            arguments.insert("role".into(), role.name().into());
            ADD
        }
        args::TokenWhat::List => LIST,
        args::TokenWhat::Remove { name } => {
            arguments.insert("name".into(), name.as_str().into());
            REMOVE
        }
    };
    let value = Client::connect(args.at.control.as_deref())?.call(verb, arguments, |_| ())?;
    if args.json {
        return Ok(format!("{value:#}\n"));
    }
    Ok(match verb {
        ADD => format!("{}\n", value["token"].as_str().unwrap_or_default()),
        LIST => {
            let all: Vec<Listed> = serde_json::from_value(value)?;
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let line = |token: Listed| {
                let age = duration(now.as_secs().saturating_sub(token.made_unix_s) as f64);
                format!("{}: {}, {age} old\n", token.name, token.role.name())
            };
            all.into_iter().map(line).collect()
        }
        _ => String::new(),
    })
}
