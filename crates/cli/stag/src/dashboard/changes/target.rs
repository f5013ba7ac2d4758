//! Who may log in to a target of the managed document, and the end of a target.

use serde_json::{Value, json};

use super::super::form::Form;
use super::super::html::Html;
use super::super::{Look, fields};
use super::secret::Secret;
use super::{Change, Request, carried, commands, configuration, no_more};
use crate::control::status::Status;
use crate::tokens::Role;

/// A change of targets; the others say what differs.
const LIKE: Change = Change {
    name: "",
    title: "",
    button: "",
    role: Role::Admin,
    back: "/targets",
    fields: &["target"],
    form: |_, form, h| carried(form, h, &["target"]),
    request: |_, form, _| {
        let iqn = form.needed("target", "The target")?;
        Ok(Request::planned("DELETE", &["targets", iqn], json!(null)))
    },
    after: no_more,
};

pub const REMOVE: Change =
    Change { name: "remove-target", title: "Remove a target", button: "Remove it", ..LIKE };

pub const ADMIT: Change = Change {
    name: "admit",
    title: "Let an initiator in",
    button: "Let it in",
    fields: &["target", "initiator", "chap", "ro"],
    form: admission,
    request: admit,
    after: |look, form, secret, status, h| {
        let user = form.ticked("chap").then(|| (user(form.get("initiator")), secret.text()));
        first_unit(look, form, user, status, h);
    },
    ..LIKE
};

pub const EXPEL: Change = Change {
    name: "expel",
    title: "Shut an initiator out",
    button: "Shut it out",
    fields: &["target", "initiator"],
    form: |_, form, h| carried(form, h, &["target", "initiator"]),
    request: expel,
    ..LIKE
};

pub const SECRET: Change = Change {
    name: "secret",
    title: "Make a new CHAP secret",
    button: "Make the secret",
    fields: &["target", "user"],
    form: |_, form, h| carried(form, h, &["target", "user"]),
    request: change_secret,
    after: |look, form, secret, status, h| {
        first_unit(look, form, Some((form.get("user"), secret.text())), status, h);
    },
    ..LIKE
};

fn first_unit(look: &Look<'_>, form: &Form, user: Option<(&str, &str)>, status: &Status, h: &mut Html) {
    let iqn = form.get("target");
    let found = status.targets.iter().find(|target| target.iqn.eq_ignore_ascii_case(iqn));
    let lun = found.and_then(|target| target.units.first()).map_or(0, |unit| unit.lun);
    commands::disk(look, status, iqn, lun, user, h);
}

fn admission(_: &Look<'_>, form: &Form, h: &mut Html) {
    let is_first = form.get("initiator").is_empty();
    fields::hidden(h, "target", form.get("target"));
    h.p(&format!("Target: {}", form.get("target")));
    let hint =
        "Its iSCSI name: on Linux in /etc/iscsi/initiatorname.iscsi. A * at the end stands for any ending.";
    fields::text(h, "initiator", "Initiator", hint, form.get("initiator"), &[("required", "")]);
    fields::tick(h, "chap", "It proves by CHAP who it is (recommended)", is_first || form.ticked("chap"));
    fields::tick(h, "ro", "It may only read", form.ticked("ro"));
}

/// The CHAP user of an initiator: the part of its name behind the last colon.
fn user(initiator: &str) -> &str {
    let last = initiator.trim_end_matches('*').rsplit(':').find(|part| !part.is_empty());
    last.unwrap_or("initiator")
}

/// The target's name, and its configuration.
fn current(look: &Look<'_>, form: &Form) -> Result<(String, Value), String> {
    let iqn = form.needed("target", "The target")?;
    Ok((iqn.to_owned(), configuration(look, &["targets", iqn])?))
}

fn is_of(rule: &Value, initiator: &str) -> bool {
    rule["initiator"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(initiator))
}

fn admit(look: &Look<'_>, form: &Form, secret: &Secret) -> Result<Request, String> {
    let (iqn, mut target) = current(look, form)?;
    let initiator = form.needed("initiator", "The initiator")?;
    let mut says = String::new();
    if target["acl"].is_null() {
        says =
            "Until now every initiator may log in. From now on only those that were let in may.".to_owned();
        target["acl"] = json!([]);
    }
    let Some(rules) = target["acl"].as_array_mut() else {
        return Err("This target has one rule, in a form that this page does not change.".to_owned());
    };
    if rules.iter().any(|rule| is_of(rule, initiator)) {
        return Err(format!("{initiator} has been let in already."));
    }
    let mut rule = json!({ "initiator": initiator });
    if form.ticked("chap") {
        rule["auth"] = json!({ "users": [{ "name": user(initiator), "secret": secret.text() }] });
    }
    if form.ticked("ro") {
        rule["ro"] = json!(true);
    }
    rules.push(rule);
    let mut request = Request::planned("PUT", &["targets", &iqn], target);
    request.says = says;
    Ok(request)
}

fn expel(look: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let (iqn, mut target) = current(look, form)?;
    let initiator = form.needed("initiator", "The initiator")?;
    let rules = target["acl"].as_array_mut().ok_or("Every initiator may log in to this target.")?;
    let before = rules.len();
    rules.retain(|rule| !is_of(rule, initiator));
    if rules.len() == before {
        return Err(format!("{initiator} has not been let in."));
    }
    let is_last = rules.is_empty();
    let mut request = Request::planned("PUT", &["targets", &iqn], target);
    if is_last {
        request.says = "No initiator is left that may log in to this target.".to_owned();
    }
    Ok(request)
}

fn change_secret(look: &Look<'_>, form: &Form, secret: &Secret) -> Result<Request, String> {
    let (iqn, mut target) = current(look, form)?;
    let name = form.needed("user", "The CHAP user")?;
    let mut changed = 0;
    let mut change = |auth: &mut Value| {
        for user in auth.get_mut("users").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(user) = user.as_object_mut().filter(|user| user.get("name") == Some(&json!(name))) {
                user.remove("secret-file");
                user.insert("secret".into(), json!(secret.text()));
                changed += 1;
            }
        }
    };
    if let Some(auth) = target.get_mut("auth") {
        change(auth);
    }
    for rule in target.get_mut("acl").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(auth) = rule.get_mut("auth") {
            change(auth);
        }
    }
    if changed == 0 {
        return Err(format!("There is no CHAP user {name} of {iqn}."));
    }
    let mut request = Request::planned("PUT", &["targets", &iqn], target);
    request.says =
        "Sessions go on. From now on logins need the new secret, which the next page shows once.".to_owned();
    Ok(request)
}
