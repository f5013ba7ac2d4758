//! Maintenance: drains with the form that begins one, and the states of paths.

use admin_http::Answer;

use super::super::html::Html;
use super::super::{Look, fields};
use super::part::{part, search};
use super::{of_change, of_target};
use crate::control::alua::{Group, TargetGroups};
use crate::control::drain::DrainStatus;
use crate::tokens::Role;

/// Its path.
const HERE: &str = "/drains";

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let links: &[(&str, &str)] = if look.may(Role::Operate) { &[("/change/drain", "Drain")] } else { &[] };
    look.frame("Maintenance", HERE, links).page(200, |h| {
        drains(look, h);
        paths(look, h);
        h.leaf("h2", &[], "Upgrade");
        h.p("An upgrade needs no drain: install the new version, and run stag upgrade on the server. Sessions go on.");
    })
}

fn drains(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Drains");
    h.p("A drain asks initiators to log out, and lets nobody in until it is undone: before maintenance, and before a disk moves.");
    let found = look.get(&["drain"]);
    let drains: Vec<DrainStatus> = match found {
        Ok(value) => serde_json::from_value(value).unwrap_or_default(),
        Err(refused) => return h.leaf("p", &[("class", "note mistake")], &refused.what),
    };
    let heads = ["what", "state", "#asked", "#dropped", "#left", ""];
    h.table("Drains", &heads, "Nothing is being drained.", &drains, |row, drain| {
        let portal = drain.portal.map(|portal| portal.to_string());
        let (name, value) = match (&drain.target, &portal) {
            (Some(target), _) => ("target", target.as_str()),
            (None, Some(portal)) => ("portal", portal.as_str()),
            (None, None) => ("all", "yes"),
        };
        let place = if name == "all" { "everything" } else { value };
        row.cell(place).cell(&drain.state);
        for number in [drain.asked, drain.dropped, drain.left] {
            row.number(&number.to_string());
        }
        row.with(|h| {
            if look.may(Role::Operate) {
                let values = [(name, value)];
                fields::small(h, "/change/undrain", look.visitor, &values, "Let them in again", place);
            }
        });
    });
}

/// The states of target port groups, where a target has them.
fn paths(look: &Look<'_>, h: &mut Html) {
    let targets: Vec<TargetGroups> = match look.get(&["alua"]) {
        Ok(value) => serde_json::from_value(value).unwrap_or_default(),
        Err(refused) => return h.leaf("p", &[("class", "note mistake")], &refused.what),
    };
    if targets.is_empty() {
        return;
    }
    h.leaf("h2", &[], "Paths");
    h.p("Initiators with several paths use those whose target port group has the best state (ALUA).");
    let rows: Vec<(&str, &Group)> = targets
        .iter()
        .flat_map(|target| target.groups.iter().map(|group| (target.iqn.as_str(), group)))
        .collect();
    search(look, h, HERE, rows.len());
    let shown = part(look, h, HERE, "from", &rows, |(iqn, group)| vec![*iqn, group.state.as_str()]);
    let heads = ["target", "#group", "portal groups", "state", "changed by", ""];
    h.table("Target port groups", &heads, "", &shown, |row, (iqn, group)| {
        let portals: Vec<String> = group.portal_groups.iter().map(u16::to_string).collect();
        let preferred = if group.preferred { ", preferred" } else { "" };
        row.link(&of_target(iqn), iqn).number(&group.id.to_string()).cell(&portals.join(", "));
        row.cell(&format!("{}{preferred}", group.state)).cell(group.changed_by.as_deref().unwrap_or("–"));
        row.with(|h| {
            if look.may(Role::Operate) {
                let id = group.id.to_string();
                let values = [("target", *iqn), ("group", id.as_str()), ("state", group.state.as_str())];
                let about = format!("Change group {id} of {iqn}");
                h.leaf("a", &[("href", &of_change("alua", &values)), ("aria-label", &about)], "Change");
            }
        });
    });
}
