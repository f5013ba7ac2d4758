//! Drains: what initiators are being taken off, and the form that begins one.

use admin_http::Answer;

use super::super::{Look, fields};
use crate::control::drain::DrainStatus;
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let drains = look
        .get(&["drain"])
        .map(|value| serde_json::from_value::<Vec<DrainStatus>>(value).unwrap_or_default());
    look.page("Drains", "/drains", |h| {
        h.p("A drain asks initiators to log out, and lets nobody in until it is undone: before maintenance, and before a disk moves.");
        let drains = match drains {
            Ok(drains) => drains,
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
                    fields::small(h, "/change/undrain", look.visitor, &[(name, value)], "Let them in again", place);
                }
            });
        });
        if look.may(Role::Operate) {
            h.tag("p", &[("class", "actions")], |h| {
                h.leaf("a", &[("class", "button"), ("href", "/change/drain")], "Drain");
            });
        }
        h.leaf("h2", &[], "Upgrade");
        h.p("An upgrade needs no drain: install the new version, and run stag upgrade on the server. Sessions go on.");
    })
}
