//! Owners of units in a group of gateways: one unit moves, or all are spread.

use serde_json::{Value, json};

use super::super::form::Form;
use super::super::frame::GATEWAYS;
use super::super::html::Html;
use super::super::{Look, fields};
use super::{Change, Request, no_more};
use crate::tokens::Role;

pub const MOVE: Change = Change {
    name: "move",
    title: "Move a unit",
    button: "Move it",
    role: Role::Operate,
    back: GATEWAYS,
    fields: &["unit", "gateway"],
    form: move_form,
    request: |_, form, _| {
        let unit = form.needed("unit", "The unit")?;
        let gateway: u16 =
            form.needed("gateway", "The gateway")?.parse().map_err(|_| "A gateway is a number.")?;
        Ok(Request::planned("POST", &["gateways", "move"], json!({ "unit": unit, "gateway": gateway })))
    },
    after: no_more,
};

pub const SPREAD: Change = Change {
    name: "spread",
    title: "Spread the units",
    button: "Spread them",
    fields: &[],
    form: |_, _, h| {
        h.p("Units move from gateways that own many to those that own few, until all own about as many.");
    },
    request: |_, _, _| Ok(Request::planned("POST", &["gateways", "spread"], Value::Null)),
    ..MOVE
};

fn move_form(look: &Look<'_>, form: &Form, h: &mut Html) {
    let unit = form.get("unit");
    fields::hidden(h, "unit", unit);
    let Some(group) = &look.status.gateways else { return };
    let owner = group.units.iter().find(|one| one.image == unit).and_then(|one| one.owner);
    h.p(&match owner {
        Some(owner) => format!("{unit} is owned by gateway {owner}."),
        None => format!("{unit} has no owner now."),
    });
    let others = group.members.iter().filter(|member| Some(member.number) != owner);
    let choices: Vec<(String, String)> = others
        .map(|member| (member.number.to_string(), format!("{}: owns {} units", member.number, member.units)))
        .collect();
    fields::choice(h, "gateway", "To gateway", &choices, form.get("gateway"));
}
