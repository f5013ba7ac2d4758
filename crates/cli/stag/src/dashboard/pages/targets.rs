//! Targets, with what is behind each.

use std::collections::HashMap;

use admin_http::Answer;

use super::super::{Look, show};
use super::of_target;
use super::part::{part, search};
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let links: &[(&str, &str)] = if look.may(Role::Admin) { &[("/change/disk", "Make a disk")] } else { &[] };
    look.frame("Targets", "/targets", links).page(200, |h| {
        let targets = &look.status.targets;
        search(look, h, "/targets", targets.len());
        let shown = part(look, h, "/targets", "from", targets, |target| {
            vec![target.iqn.as_str(), target.alias.as_str()]
        });
        let mut sessions: HashMap<String, usize> = HashMap::new();
        for target in look.status.sessions.iter().filter_map(|session| session.target.as_ref()) {
            *sessions.entry(target.to_ascii_lowercase()).or_default() += 1;
        }
        let heads = ["target", "kept in", "#units", "#size", "#sessions", "#reads", "#writes", "#failed"];
        h.table("iSCSI targets", &heads, "There is no target.", &shown, |row, target| {
            let sum = |of: fn(&crate::control::status::UnitStatus) -> u64| {
                target.units.iter().map(of).fold(0, u64::saturating_add)
            };
            let sessions = sessions.get(&target.iqn.to_ascii_lowercase()).copied().unwrap_or(0);
            row.link(&of_target(&target.iqn), &target.iqn);
            row.cell(look.kept_in(target.managed)).number(&show::count(target.units.len() as u64));
            row.number(&show::bytes(sum(|unit| unit.size))).number(&show::count(sessions as u64));
            row.number(&show::count(sum(|unit| unit.io.reads)))
                .number(&show::count(sum(|unit| unit.io.writes)));
            row.number(&show::count(sum(|unit| unit.io.failed)));
        });
    })
}
