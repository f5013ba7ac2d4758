//! Changes that pages make: a form, then the plan, then the change itself and what follows from it.
//! Each is one request of the API, planned by `?plan=1` and made with If-Match of the plan's
//! generation. What cannot be planned is said in words before it is done.
//!
//! Nothing is kept between the steps: the page of a plan carries the form's values. A CHAP secret
//! is made by the daemon in the last step, so that no page carries one but the last.

mod alua;
mod clients;
pub mod commands;
mod disk;
mod export;
mod gateways;
mod secret;
mod target;
mod undo;
mod unit;

use admin_http::Answer;
use serde_json::Value;

use super::form::Form;
use super::html::Html;
use super::{Look, fields};
use crate::api::{Asked, Looked, Refused};
use crate::control::apply::How;
use crate::control::plan::{Kind, Plan};
use crate::control::status::Status;
use crate::tokens::Role;
use secret::Secret;

/// A kind of change.
struct Change {
    /// Its part of the path, `/change/NAME`.
    name: &'static str,
    title: &'static str,
    /// The text of the button that makes it.
    button: &'static str,
    role: Role,
    /// The page that it belongs to.
    back: &'static str,
    /// Fields of its form, which the page of the plan carries on.
    fields: &'static [&'static str],
    /// Writes the form's fields, with the values that it has already.
    form: fn(&Look<'_>, &Form, &mut Html),
    /// The request that it is.
    request: fn(&Look<'_>, &Form, &Secret) -> Result<Request, String>,
    /// Writes what follows once it has been made.
    after: fn(&Look<'_>, &Form, &Secret, &Status, &mut Html),
}

/// A request of the API.
struct Request {
    method: &'static str,
    /// Parts of the path, not encoded.
    path: Vec<String>,
    body: Value,
    /// Whether it can be planned.
    is_planned: bool,
    /// Seconds for which a client that is disconnected is refused.
    refuse: Option<u16>,
    /// What people should know before they agree; may be empty.
    says: String,
}

impl Request {
    /// A change of the managed document.
    fn planned(method: &'static str, path: &[&str], body: Value) -> Self {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        Self { method, path, body, is_planned: true, refuse: None, says: String::new() }
    }

    /// Something that cannot be planned. `says` tells what happens.
    fn at_once(method: &'static str, path: &[&str], body: Value, says: String) -> Self {
        let mut request = Self::planned(method, path, body);
        (request.is_planned, request.says) = (false, says);
        request
    }

    fn ask(&self, look: &Look<'_>, how: How) -> Result<Looked, Refused> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        (look.ask)(self.method, &path, Asked { how, refuse: self.refuse }, &self.body)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        crate::managed::wipe(&mut self.body);
    }
}

const CHANGES: &[Change] = &[
    disk::MAKE,
    export::MAKE,
    export::REMOVE,
    target::ADMIT,
    target::EXPEL,
    target::SECRET,
    target::REMOVE,
    unit::GROW,
    unit::REMOVE,
    clients::DISCONNECT,
    clients::DRAIN,
    clients::UNDRAIN,
    clients::ACKNOWLEDGE,
    undo::UNDO,
    alua::ALUA,
    gateways::MOVE,
    gateways::SPREAD,
];

fn find(look: &Look<'_>, name: &str) -> Result<&'static Change, Refused> {
    let none = || Refused { status: 404, what: "There is no such change.".to_owned() };
    let change = CHANGES.iter().find(|change| change.name == name).ok_or_else(none)?;
    let (own, wanted) = (look.visitor.caller.role.name(), change.role.name());
    match look.may(change.role) {
        true => Ok(change),
        false => {
            Err(Refused { status: 403, what: format!("This needs the role {wanted}; your token has {own}.") })
        }
    }
}

/// The page with the form of the change `name`.
pub fn begin(look: &Look<'_>, name: &str, form: &Form) -> Answer {
    match find(look, name) {
        Ok(change) => change.ask(look, form, None),
        Err(refused) => look.refused(&refused),
    }
}

/// The page after a form was sent: with the plan, or once it was agreed to, with what was done.
/// `now` looks at the status again.
pub fn go_on(look: &Look<'_>, name: &str, form: &Form, now: &dyn Fn() -> Status) -> Answer {
    let change = match find(look, name) {
        Ok(change) => change,
        Err(refused) => return look.refused(&refused),
    };
    let secret = match Secret::new() {
        Ok(secret) => secret,
        Err(what) => return look.refused(&Refused { status: 500, what }),
    };
    let request = match (change.request)(look, form, &secret) {
        Ok(request) => request,
        Err(what) => return change.ask(look, form, Some(&what)),
    };
    let agreed = form.get("generation").parse().ok();
    let Some(generation) = agreed else { return change.plan(look, form, &request) };
    match request.ask(look, How { generation: Some(generation), ..How::default() }) {
        Ok(_) => look.page(&format!("{}: done", change.title), change.back, |h| {
            h.leaf(
                "p",
                &[("class", "note ok"), ("role", "status")],
                "It has been done, and recorded in the audit log.",
            );
            (change.after)(look, form, &secret, &now(), h);
            h.tag("p", &[], |h| h.link(change.back, "Go back"));
        }),
        // Among them: what was agreed to is no longer what would be done.
        Err(refused) => change.ask(look, form, Some(&refused.what)),
    }
}

impl Change {
    fn path(&self) -> String {
        format!("/change/{}", self.name)
    }

    /// The page with the form, with what was wrong with it.
    fn ask(&self, look: &Look<'_>, form: &Form, mistake: Option<&str>) -> Answer {
        let mut answer = look.page(self.title, self.back, |h| {
            if let Some(what) = mistake {
                h.leaf("p", &[("class", "note mistake"), ("role", "alert")], what);
            }
            fields::page(h, &self.path(), look.visitor, |h| {
                (self.form)(look, form, h);
                fields::button(h, "Show what would change");
            });
        });
        if mistake.is_some() {
            answer.status = 422;
        }
        answer
    }

    /// The page that says what would be done, with the button that does it.
    fn plan(&self, look: &Look<'_>, form: &Form, request: &Request) -> Answer {
        let planned = match request.is_planned {
            false => Ok((look.status.generation, Plan::default())),
            true => request.ask(look, How { dry_run: true, ..How::default() }).map(|looked| {
                let plan = serde_json::from_value(looked.value["plan"].clone());
                (looked.generation, plan.unwrap_or_default())
            }),
        };
        let (generation, plan) = match planned {
            Ok(planned) => planned,
            Err(refused) => return self.ask(look, form, Some(&refused.what)),
        };
        look.page(&format!("{}?", self.title), self.back, |h| {
            if !request.says.is_empty() {
                h.leaf("p", &[("class", "note")], &request.says);
            }
            if request.is_planned {
                h.leaf("h2", &[], "What would change");
                lines(&plan, h);
            }
            if !plan.refused.is_empty() {
                return h.tag("p", &[], |h| h.link(self.back, "Go back"));
            }
            fields::page(h, &self.path(), look.visitor, |h| {
                for name in self.fields {
                    fields::hidden(h, name, form.get(name));
                }
                fields::hidden(h, "generation", &generation.to_string());
                h.tag("p", &[("class", "actions")], |h| {
                    h.leaf("button", &[("class", "go")], self.button);
                    h.link(self.back, "Leave it as it is");
                });
            });
        })
    }
}

fn lines(plan: &Plan, h: &mut Html) {
    if plan.is_empty() && plan.at_next_start.is_empty() {
        return h.p("Nothing: it is like that already.");
    }
    h.tag("ul", &[("class", "plan")], |h| {
        for change in &plan.changes {
            let kind = match change.kind {
                Kind::Added => "Added: ",
                Kind::Removed => "Removed: ",
                Kind::Changed => "Changed: ",
            };
            h.tag("li", &[], |h| {
                h.leaf("strong", &[], kind);
                h.text(&change.what);
                if let Some(disturbs) = &change.disturbs {
                    h.leaf("p", &[("class", "hint")], disturbs);
                }
            });
        }
        for line in &plan.at_next_start {
            h.leaf("li", &[], &format!("From the daemon's next start on: {line}"));
        }
        for line in &plan.refused {
            h.leaf("li", &[("class", "mistake")], &format!("Not possible: {line}"));
        }
    });
}

/// No fields but those that came with the button.
fn carried(form: &Form, h: &mut Html, names: &[&str]) {
    for name in names.iter().filter(|name| !form.get(name).is_empty()) {
        fields::hidden(h, name, form.get(name));
        h.p(&format!("{name}: {}", form.get(name)));
    }
}

/// Nothing follows.
fn no_more(_: &Look<'_>, _: &Form, _: &Secret, _: &Status, _: &mut Html) {}

/// The configuration of what the managed document has at a path of the API.
///
/// # Errors
/// It is kept elsewhere, or nowhere.
fn configuration(look: &Look<'_>, path: &[&str]) -> Result<Value, String> {
    let mut found = look.get(path).map_err(|refused| refused.what)?;
    match found["configuration"].take() {
        Value::Null => Err(format!("This is kept in {}: change it there.", look.kept_in(false))),
        configuration => Ok(configuration),
    }
}
