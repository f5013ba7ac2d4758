//! One unit: its medium, its identity and its counts, and what its clients type.

use admin_http::Answer;

use super::super::changes::commands;
use super::super::{Look, fields, show};
use super::target::latency;
use super::{missing, of_change, of_target};
use crate::control::gateways::SharedUnit;
use crate::tokens::Role;

/// The page of the unit `lun` of the target `iqn`.
pub fn page(look: &Look<'_>, iqn: &str, lun: &str) -> Answer {
    let found = look.status.targets.iter().find(|target| target.iqn.eq_ignore_ascii_case(iqn));
    let unit = found
        .and_then(|target| Some((target, target.units.iter().find(|unit| unit.lun.to_string() == lun)?)));
    let Some((target, unit)) = unit else { return missing(look, "There is no such unit.") };
    look.page(&format!("LUN {lun} of {}", target.iqn), "/targets", |h| {
        h.tag("p", &[], |h| h.link(&of_target(&target.iqn), "The target and its other units"));
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        h.details(&[
            ("Medium", unit.path.clone()),
            ("Size", show::bytes(unit.size)),
            ("Takes", unit.allocated.map_or_else(|| "–".to_owned(), show::bytes)),
            ("Owner", unit.shared.as_ref().map_or_else(|| "this server".to_owned(), SharedUnit::owner_text)),
            ("State", unit.health.state.clone()),
            ("Last error", unit.health.last_error.clone().unwrap_or_else(|| "none".to_owned())),
            ("Block", show::bytes(unit.block.into())),
            ("Thin", yes(unit.thin)),
            ("Write cache", yes(unit.write_cache)),
            ("Read-only", yes(unit.read_only)),
            ("Serial number", unit.serial.clone()),
            ("Worldwide name (NAA)", unit.naa.clone()),
            ("Reads", show::count(unit.io.reads)),
            ("Writes", show::count(unit.io.writes)),
            ("Failed commands", show::count(unit.io.failed)),
            ("Mean latency", latency(&unit.io)),
            ("Longest", show::latency(unit.io.longest_ns as f64 / 1e9)),
        ]);
        if target.managed && look.may(Role::Admin) {
            let values = [("target", target.iqn.as_str()), ("lun", lun)];
            h.tag("div", &[("class", "actions")], |h| {
                h.leaf("a", &[("class", "button"), ("href", &of_change("grow", &values))], "Grow it");
                fields::small(h, "/change/remove-unit", look.visitor, &values, "Remove this unit", "");
            });
        }
        h.leaf("h2", &[], "Attach it");
        commands::disk(look, look.status, &target.iqn, unit.lun, None, h);
    })
}
