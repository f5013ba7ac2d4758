//! All targets, with what is behind each.

use admin_http::Answer;

use super::super::{Look, show};
use super::of_target;
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    look.page("Targets", "/targets", |h| {
        if look.may(Role::Admin) {
            h.tag("p", &[("class", "actions")], |h| {
                h.leaf("a", &[("class", "button"), ("href", "/change/disk")], "Make a disk");
            });
        }
        let heads = ["target", "kept in", "#units", "#size", "#sessions", "#reads", "#writes", "#failed"];
        h.table("iSCSI targets", &heads, "There is no target.", &look.status.targets, |row, target| {
            let sum = |of: fn(&crate::control::status::UnitStatus) -> u64| {
                target.units.iter().map(of).fold(0, u64::saturating_add)
            };
            let is_here = |iqn: &String| iqn.eq_ignore_ascii_case(&target.iqn);
            let sessions = look.status.sessions.iter().filter(|one| one.target.as_ref().is_some_and(is_here));
            row.link(&of_target(&target.iqn), &target.iqn);
            row.cell(look.kept_in(target.managed)).number(&show::count(target.units.len() as u64));
            row.number(&show::bytes(sum(|unit| unit.size))).number(&show::count(sessions.count() as u64));
            row.number(&show::count(sum(|unit| unit.io.reads)))
                .number(&show::count(sum(|unit| unit.io.writes)));
            row.number(&show::count(sum(|unit| unit.io.failed)));
        });
    })
}
