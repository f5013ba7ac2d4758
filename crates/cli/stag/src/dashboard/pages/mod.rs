//! Pages that show what there is. Each is made of a [`Look`], and changes nothing.

mod audit;
mod clients;
mod drains;
mod exports;
mod gateways;
pub mod login;
mod overview;
mod part;
mod slow;
mod support;
mod target;
mod targets;
mod unit;

use admin_http::Answer;

use super::Look;
use crate::api::Refused;
use crate::api::percent::encoded;

/// The page at a path.
pub fn answer(look: &Look<'_>, path: &[&str]) -> Answer {
    match path {
        [] => overview::page(look),
        ["targets"] => targets::page(look),
        ["targets", iqn] => target::page(look, iqn),
        ["targets", iqn, "units", lun] => unit::page(look, iqn, lun),
        ["exports"] => exports::page(look),
        ["exports", name] => exports::one(look, name),
        ["clients"] => clients::page(look),
        ["slow"] => slow::page(look),
        ["drains"] => drains::page(look),
        ["gateways"] => gateways::page(look),
        ["changes"] => audit::page(look),
        ["support"] => support::page(look),
        ["support", "bundle.json"] => support::bundle(look),
        _ => missing(look, "There is no such page."),
    }
}

fn missing(look: &Look<'_>, what: &str) -> Answer {
    look.refused(&Refused { status: 404, what: what.to_owned() })
}

/// The page of a target.
pub fn of_target(iqn: &str) -> String {
    format!("/targets/{}", encoded(iqn))
}

/// The page of a unit.
pub fn of_unit(iqn: &str, lun: u16) -> String {
    format!("/targets/{}/units/{lun}", encoded(iqn))
}

/// The page of an export.
pub fn of_export(name: &str) -> String {
    format!("/exports/{}", encoded(name))
}

/// The page that begins a change, with values for its form.
pub fn of_change(name: &str, values: &[(&str, &str)]) -> String {
    let values: Vec<String> =
        values.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    match values.as_slice() {
        [] => format!("/change/{name}"),
        values => format!("/change/{name}?{}", values.join("&")),
    }
}
