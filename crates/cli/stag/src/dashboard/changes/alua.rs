//! The state of a target port group: which paths initiators use.

use scsi::data::target_port_groups::AccessState;
use serde_json::{Value, json};

use super::super::form::Form;
use super::super::html::Html;
use super::super::{Look, fields};
use super::secret::Secret;
use super::{Change, Request, no_more};
use crate::tokens::Role;

pub const ALUA: Change = Change {
    name: "alua",
    title: "Change the state of paths",
    button: "Change the state",
    role: Role::Operate,
    back: "/drains",
    fields: &["target", "group", "state"],
    form,
    request,
    after: no_more,
};

fn form(_: &Look<'_>, form: &Form, h: &mut Html) {
    fields::hidden(h, "target", form.get("target"));
    fields::hidden(h, "group", form.get("group"));
    h.p(&format!("Target port group {} of {}.", form.get("group"), form.get("target")));
    let states = AccessState::NAMES.map(|(name, _)| (name.to_owned(), name.to_owned()));
    fields::choice(h, "state", "State", &states, form.get("state"));
}

fn request(_: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let target = form.needed("target", "The target")?;
    let group: u16 = form.needed("group", "The group")?.parse().map_err(|_| "A group is a number.")?;
    let state = form.needed("state", "The state")?;
    let body: Value = json!({ "target": target, "group": group, "state": state });
    let says = format!(
        "Initiators of {target} are told by a unit attention that group {group} is {state}. Initiators that know \
         ALUA use the paths whose state is best. Without another path, commands are refused in the states \
         standby, unavailable and offline."
    );
    Ok(Request::at_once("POST", &["alua"], body, says))
}
