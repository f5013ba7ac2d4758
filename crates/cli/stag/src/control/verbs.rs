//! Which verb of the control socket is answered where.

use serde_json::Value;

use super::daemon::Daemon;
use super::protocol::{Fault, Kind, Progress, Request, json};
use super::{acknowledge, alua, apply, drain, status, upgrade};
use crate::config::Text;

/// Does what `request` asks, on the thread of the client that asks.
///
/// # Errors
/// What to tell the client.
pub fn answer(
    daemon: &Daemon,
    request: &Request,
    body: Text,
    progress: Progress<'_>,
) -> Result<Value, Fault> {
    match request.verb.as_str() {
        "status" => request.arguments::<NoArguments>().and_then(|_| status::answer(daemon)),
        acknowledge::VERB => acknowledge::answer(daemon, request),
        "alua" => request.arguments().and_then(|wanted| alua::answer(daemon, wanted)),
        "drain" => drain::drain(daemon, request, progress),
        "undrain" => drain::undrain(daemon, request),
        "drains" => request.arguments::<NoArguments>().and_then(|_| drain::drains(daemon)),
        upgrade::VERB => request.arguments::<NoArguments>().and_then(|_| json(&daemon.program.describe())),
        apply::VERB => apply::answer(daemon, request, body, progress),
        other => Err(Fault::new(Kind::Request, format!("this daemon does not know `{other}`"))),
    }
}

/// For verbs that want to know nothing besides.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}
