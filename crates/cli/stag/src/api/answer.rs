//! Execution of an admitted request, its lines in the audit log, and its answer as JSON: what was
//! asked for, or a problem.

use admin_http::Answer;
use serde_json::{Map, Value};

use super::problem::problem;
use super::request::{self, Call};
use super::routes::{self, Body, Does};
use super::seen::{Changed, Looked};
use crate::control::daemon::Daemon;
use crate::control::protocol::{Fault, Kind};
use crate::managed;

/// Executes a request.
pub fn execute(daemon: &Daemon, call: Call, body: &[u8]) -> Answer {
    let mut json = match read(&call, body) {
        Ok(json) => json,
        Err(answer) => return answer,
    };
    let answer = match carried_out(daemon, &call, &json) {
        Ok(looked) => said(looked.generation, &looked.value),
        Err(fault) => problem(status(&fault), fault.words()),
    };
    managed::wipe(&mut json);
    answer
}

/// Does what a request asks for. A change is in the audit log before it is made.
///
/// # Errors
/// It is refused, or has failed.
pub fn carried_out(daemon: &Daemon, call: &Call, json: &Value) -> Result<Looked, Fault> {
    let changed = match call.route.does {
        Does::Look(look) => return look(daemon, &call.names),
        _ if call.asked.how.dry_run || !call.route.is_change() => changed(daemon, call, json)?,
        _ => recorded(daemon, call, json)?,
    };
    Ok(Looked { generation: changed.generation, value: changed.value })
}

/// Makes a change that the audit log has.
fn recorded(daemon: &Daemon, call: &Call, json: &Value) -> Result<Changed, Fault> {
    let asked = daemon.audit.asked(&call.who, &call.whence, &call.what).map_err(|error| {
        let what = format!("the change cannot be recorded: {error}; nothing has been changed");
        Fault::new(Kind::Failed, what)
    })?;
    let done = changed(daemon, call, json);
    match &done {
        Ok(done) => daemon.audit.ended(&asked, "done", done.plan.as_ref(), done.made),
        Err(fault) => daemon.audit.ended(&asked, fault.words(), None, None),
    }
    done
}

fn changed(daemon: &Daemon, call: &Call, json: &Value) -> Result<Changed, Fault> {
    match call.route.does {
        Does::Edit(edit) => routes::edited(daemon, edit, &call.names, call.asked, json),
        Does::Verb(verb) => {
            let mut members = json.as_object().cloned().unwrap_or_default();
            if call.asked.how.dry_run {
                members.insert("dry_run".into(), true.into());
            }
            // With other changes locked out: one may have come since the request was admitted.
            let _alone = call.asked.how.generation.map(|_| daemon.changing());
            let now = daemon.running().parts.generation;
            request::is_in_force(call.route, call.asked, now)
                .map_err(|what| Fault::new(Kind::Conflict, what))?;
            routes::executed(daemon, &verb(&call.names, call.asked, members)?)
        }
        Does::Look(_) | Does::Follow => Err(Fault::new(Kind::Request, "this changes nothing")),
    }
}

/// The body as JSON: an object, where the route has one.
fn read(call: &Call, body: &[u8]) -> Result<Value, Answer> {
    if call.route.body == Body::None {
        return match body {
            [] => Ok(Value::Null),
            _ => Err(problem(400, "this request has no body")),
        };
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(members)) => match mistake(call.route.body, &members) {
            None => Ok(Value::Object(members)),
            Some(what) => Err(problem(400, &what)),
        },
        Ok(mut other) => {
            managed::wipe(&mut other);
            Err(problem(400, "the body is a JSON object"))
        }
        Err(error) => Err(problem(400, &format!("the body is no JSON: {error}"))),
    }
}

/// What is wrong with the members of a verb's body. The configuration checks its own.
fn mistake(body: Body, members: &Map<String, Value>) -> Option<String> {
    let Body::Members(all) = body else { return None };
    let known = |name: &str| all.iter().any(|(known, ..)| *known == name);
    let unknown = members.keys().find(|name| !known(name));
    let missing = all.iter().find(|(name, _, needed)| *needed && !members.contains_key(*name));
    match (unknown, missing) {
        (Some(name), _) => Some(format!("there is no `{}` here", name.escape_default())),
        (None, Some((name, ..))) => Some(format!("`{name}` is missing")),
        (None, None) => None,
    }
}

fn said(generation: u64, value: &Value) -> Answer {
    let fields = vec![("content-type", "application/json".to_owned()), ("etag", format!("\"{generation}\""))];
    Answer { status: 200, fields, body: format!("{value}\n") }
}

/// The status of HTTP for a fault.
pub fn status(fault: &Fault) -> u16 {
    match fault.kind {
        Kind::Request => 400,
        Kind::Missing => 404,
        Kind::Refused => 409,
        Kind::Conflict => 412,
        Kind::Config => 422,
        Kind::Failed => 500,
    }
}
