//! One target: its units, who may log in, who has, and how its commands ended.

use admin_http::Answer;
use serde_json::Value;

use super::super::html::Html;
use super::super::{Look, fields, show};
use super::part::{part, search};
use super::{clients, missing, of_change, of_target, of_unit, slow};
use crate::control::status::TargetStatus;
use crate::tokens::Role;

/// The page of the target `iqn`.
pub fn page(look: &Look<'_>, iqn: &str) -> Answer {
    let found = look.status.targets.iter().find(|target| target.iqn.eq_ignore_ascii_case(iqn));
    let Some(target) = found else { return missing(look, "There is no such target.") };
    look.page(&target.iqn, "/targets", |h| {
        let groups: Vec<String> = target.groups.iter().map(u16::to_string).collect();
        h.details(&[
            ("Kept in", look.kept_in(target.managed).to_owned()),
            ("Alias", if target.alias.is_empty() { "–".to_owned() } else { target.alias.clone() }),
            ("Portal groups", if groups.is_empty() { "all".to_owned() } else { groups.join(", ") }),
        ]);
        let path = of_target(&target.iqn);
        search(look, h, &path, target.units.len());
        units(look, target, &path, h);
        access(look, target, h);
        h.leaf("h2", &[], "Who is logged in");
        clients::sessions(look, h, &path, |session| {
            session.target.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(&target.iqn))
        });
        h.leaf("h2", &[], "How its commands ended");
        h.table(
            "Commands by status",
            &["status", "sense key", "#commands"],
            "None has ended.",
            &target.work.outcomes,
            |row, one| {
                row.cell(&one.status).cell(&one.sense_key).number(&show::count(one.commands));
            },
        );
        slow::stages(&target.work, h);
        if target.managed && look.may(Role::Admin) {
            h.leaf("h2", &[], "Remove it");
            h.p("Initiators are logged out. The files of its units stay.");
            let values = [("target", target.iqn.as_str())];
            fields::small(h, "/change/remove-target", look.visitor, &values, "Remove this target", "");
        }
    })
}

fn units(look: &Look<'_>, target: &TargetStatus, path: &str, h: &mut Html) {
    h.leaf("h2", &[], "Units");
    let shown = part(look, h, path, "units", &target.units, |unit| vec![unit.path.as_str()]);
    let heads = ["LUN", "medium", "state", "#size", "#takes", "#reads", "#writes", "#mean latency", "may be"];
    h.table("Logical units", &heads, "It has no unit.", &shown, |row, unit| {
        let name = unit.lun.to_string();
        row.link(&of_unit(&target.iqn, unit.lun), &name).cell(&unit.path).cell(&unit.health.state);
        row.number(&show::bytes(unit.size));
        row.number(&unit.allocated.map_or_else(|| "–".to_owned(), show::bytes));
        row.number(&show::count(unit.io.reads)).number(&show::count(unit.io.writes));
        row.number(&latency(&unit.io));
        row.cell(if unit.read_only { "read" } else { "read and written" });
    });
}

/// The mean latency of commands.
pub fn latency(io: &crate::control::status::Io) -> String {
    match io.timed {
        0 => "–".to_owned(),
        timed => show::latency(io.time_ns as f64 / timed as f64 / 1e9),
    }
}

fn access(look: &Look<'_>, target: &TargetStatus, h: &mut Html) {
    h.leaf("h2", &[], "Who may log in");
    if !target.managed {
        return h.p(&format!("See {}: targets that are kept there are changed there.", look.kept_in(false)));
    }
    let configuration = match look.get(&["targets", &target.iqn]) {
        Ok(mut found) => found["configuration"].take(),
        Err(refused) => return h.leaf("p", &[("class", "note mistake")], &refused.what),
    };
    let users = users(&configuration["auth"]);
    if !users.is_empty() {
        h.p(&format!("Whoever has no rule of their own below proves to be one of: {}.", users.join(", ")));
    }
    match configuration["acl"].as_array() {
        None => h.leaf(
            "p",
            &[("class", "state warning")],
            "Every initiator that reaches a portal sees all units.",
        ),
        Some(rules) => {
            let heads = ["initiator", "CHAP user", "sees", "may", ""];
            let none = "Nobody: the list of initiators is empty.";
            h.table("Initiators that may log in", &heads, none, rules, |row, rule| {
                let initiator = rule["initiator"].as_str().unwrap_or_default();
                let own = self::users(&rule["auth"]);
                row.cell(initiator).cell(&if own.is_empty() { "–".to_owned() } else { own.join(", ") });
                row.cell(
                    &rule.get("luns").map_or_else(|| "all units".to_owned(), |luns| format!("LUNs {luns}")),
                );
                row.cell(if rule["ro"] == Value::Bool(true) { "read" } else { "read and write" });
                row.with(|h| {
                    if look.may(Role::Admin) {
                        let values = [("target", target.iqn.as_str()), ("initiator", initiator)];
                        fields::small(h, "/change/expel", look.visitor, &values, "Shut out", initiator);
                    }
                });
            });
        }
    }
    if !look.may(Role::Admin) {
        return;
    }
    h.tag("div", &[("class", "actions")], |h| {
        let path = of_change("admit", &[("target", &target.iqn)]);
        h.leaf("a", &[("class", "button"), ("href", &path)], "Let an initiator in");
        for user in all_users(&configuration) {
            let values = [("target", target.iqn.as_str()), ("user", user.as_str())];
            let text = format!("New CHAP secret for {user}");
            fields::small(h, "/change/secret", look.visitor, &values, &text, "");
        }
    });
}

/// Names of the CHAP users of an `auth`.
fn users(auth: &Value) -> Vec<String> {
    let users = auth["users"].as_array().into_iter().flatten();
    users.filter_map(|user| user["name"].as_str().map(str::to_owned)).collect()
}

/// Names of the CHAP users of a target and its rules, each once.
fn all_users(configuration: &Value) -> Vec<String> {
    let rules = configuration["acl"].as_array().into_iter().flatten();
    let mut all: Vec<String> = users(&configuration["auth"]);
    all.extend(rules.flat_map(|rule| users(&rule["auth"])));
    all.sort();
    all.dedup();
    all
}
