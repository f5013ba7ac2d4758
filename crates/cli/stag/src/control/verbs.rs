//! Dispatch of the control socket's verbs.

use serde_json::Value;

use super::daemon::Daemon;
use super::protocol::{Fault, Kind, Progress, Request, json};
use super::{acknowledge, alua, apply, disconnect, drain, gateways, managed, slow, status, token, upgrade};
use crate::config::Text;

/// Executes `request`, on its client's thread.
///
/// # Errors
/// The verb's failure.
pub fn answer(
    daemon: &Daemon,
    request: &Request,
    body: Text,
    progress: Progress<'_>,
) -> Result<Value, Fault> {
    match request.verb.as_str() {
        "status" => request.arguments::<NoArguments>().and_then(|_| status::answer(daemon)),
        managed::VERB => request.arguments::<NoArguments>().and_then(|_| managed::answer(daemon)),
        managed::HISTORY => request.arguments::<NoArguments>().and_then(|_| managed::history(daemon)),
        managed::UNDO => managed::undo(daemon, request, progress),
        token::ADD | token::LIST | token::REMOVE => token::answer(daemon, request),
        slow::VERB => request.arguments::<NoArguments>().and_then(|_| slow::answer(daemon)),
        acknowledge::VERB => acknowledge::answer(daemon, request),
        "alua" => request.arguments().and_then(|wanted| alua::answer(daemon, wanted)),
        disconnect::VERB => disconnect::answer(daemon, request),
        gateways::VERB | gateways::MOVE | gateways::SPREAD => gateways::answer(daemon, request),
        "drain" => drain::drain(daemon, request, progress),
        "undrain" => drain::undrain(daemon, request),
        "drains" => request.arguments::<NoArguments>().and_then(|_| drain::drains(daemon)),
        upgrade::VERB => request.arguments::<NoArguments>().and_then(|_| json(&daemon.program.describe())),
        apply::VERB => apply::answer(daemon, request, body, progress),
        other => Err(Fault::new(Kind::Request, format!("this daemon does not know `{other}`"))),
    }
}

/// Arguments of verbs that take none.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}
