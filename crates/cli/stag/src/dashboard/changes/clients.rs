//! What is done to clients at once: disconnecting one, drains, and the acknowledgement of a
//! problem.

use serde_json::{Value, json};

use super::super::form::Form;
use super::super::html::Html;
use super::super::{Look, fields};
use super::secret::Secret;
use super::{Change, Request, carried, no_more};
use crate::tokens::Role;

/// Targets of which a list is one to choose from.
const CHOICES: usize = 200;

pub const DISCONNECT: Change = Change {
    name: "disconnect",
    title: "Disconnect a client",
    button: "Disconnect it",
    role: Role::Operate,
    back: "/clients",
    fields: &["session", "initiator", "client", "refuse"],
    form: |_, form, h| carried(form, h, &["session", "initiator", "client"]),
    request: disconnect,
    after: no_more,
};

pub const DRAIN: Change = Change {
    name: "drain",
    title: "Drain",
    button: "Begin the drain",
    back: "/drains",
    fields: &["target", "timeout"],
    form: drain_form,
    request: drain,
    ..DISCONNECT
};

pub const UNDRAIN: Change = Change {
    name: "undrain",
    title: "Let initiators in again",
    button: "Let them in",
    back: "/drains",
    fields: &["target", "portal", "all"],
    form: |_, form, h| carried(form, h, &["target", "portal", "all"]),
    request: |_, form, _| {
        let body = match (form.get("target"), form.get("portal")) {
            ("", "") => json!({ "all": true }),
            ("", portal) => json!({ "portal": portal }),
            (target, _) => json!({ "target": target }),
        };
        let says = "Initiators may log in again from now on.".to_owned();
        Ok(Request::at_once("POST", &["undrain"], body, says))
    },
    ..DISCONNECT
};

pub const ACKNOWLEDGE: Change = Change {
    name: "acknowledge",
    title: "Acknowledge problems",
    button: "Acknowledge them",
    role: Role::Admin,
    back: "/",
    fields: &["target", "lun", "export"],
    form: |_, form, h| carried(form, h, &["target", "lun", "export"]),
    request: acknowledge,
    ..DISCONNECT
};

fn disconnect(look: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let (session, client) = (form.get("session"), form.get("client"));
    let refuse = match form.get("refuse") {
        "" => 10,
        text => text
            .parse()
            .ok()
            .filter(|seconds| *seconds <= 3600)
            .ok_or("It is refused for 0 to 3600 seconds.")?,
    };
    let path = match (session, client) {
        ("", "") => return Err("The client is missing.".to_owned()),
        ("", client) => ["clients", client],
        (session, _) => {
            let found = look.status.sessions.iter().find(|one| one.tsih.to_string() == session);
            let found = found.ok_or_else(|| format!("There is no session {session} any more."))?;
            // Numbers of sessions that have ended are given again.
            if !form.get("initiator").is_empty() && form.get("initiator") != found.initiator {
                return Err(format!(
                    "Session {session} is of {} by now: look at the clients again.",
                    found.initiator
                ));
            }
            ["sessions", session]
        }
    };
    let mut request = Request::planned("DELETE", &path, Value::Null);
    request.refuse = Some(refuse);
    request.says = "Then it may come back: shut it out of the target, or drain, to keep it away.\n\
         Its commands in flight end; what it has not written is in its own memory."
        .to_owned();
    Ok(request)
}

fn drain_form(look: &Look<'_>, form: &Form, h: &mut Html) {
    let targets = &look.status.targets;
    if targets.len() > CHOICES {
        let hint = "A target's name; nothing for everything that is served.";
        fields::text(h, "target", "Take initiators off", hint, form.get("target"), &[]);
    } else {
        let mut all = vec![(String::new(), "Everything that is served".to_owned())];
        all.extend(targets.iter().map(|target| (target.iqn.clone(), target.iqn.clone())));
        fields::choice(h, "target", "Take initiators off", &all, form.get("target"));
    }
    let timeout = if form.get("timeout").is_empty() { "30" } else { form.get("timeout") };
    let hint = "After this time, connections that are left are dropped.";
    fields::text(
        h,
        "timeout",
        "Seconds to log out",
        hint,
        timeout,
        &[("inputmode", "numeric"), ("required", "")],
    );
}

fn drain(_: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let timeout: u16 =
        form.get("timeout").parse().map_err(|_| "The time to log out is 0 to 65535 seconds.")?;
    let body = match form.get("target") {
        "" => json!({ "all": true, "timeout": timeout }),
        target => json!({ "target": target, "timeout": timeout }),
    };
    Ok(Request::planned("POST", &["drain"], body))
}

fn acknowledge(_: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let (target, export) = (form.get("target"), form.get("export"));
    let (body, place) = match (target, export) {
        ("", "") => return Err("The unit or export is missing.".to_owned()),
        ("", export) => (json!({ "export": export }), format!("export {export}")),
        (target, _) => {
            let lun: u16 = form.get("lun").parse().map_err(|_| "The unit's number is missing.")?;
            (json!({ "target": target, "lun": lun }), format!("LUN {lun} of {target}"))
        }
    };
    let says = format!(
        "The problems of {place} are forgotten, and flushes are no longer refused. First make sure that nothing is lost: \
         after a failed flush, check the file system on it, or restore it."
    );
    Ok(Request::at_once("POST", &["acknowledge"], body, says))
}
