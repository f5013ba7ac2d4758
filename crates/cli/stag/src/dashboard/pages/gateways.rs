//! The group of gateways that the daemon is one of: its members, the owners of units, and who was
//! taken out.

use std::collections::HashMap;

use admin_http::Answer;

use super::super::frame::GATEWAYS;
use super::super::html::Html;
use super::super::{Look, show};
use super::part::{part, search};
use super::{missing, of_change, of_unit};
use crate::control::gateways::GroupStatus;
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let Some(group) = &look.status.gateways else {
        return missing(look, "This daemon is no gateway of a group.");
    };
    let links: &[(&str, &str)] =
        if look.may(Role::Operate) { &[("/change/spread", "Spread the units")] } else { &[] };
    look.frame("Gateways", GATEWAYS, links).page(200, |h| {
        h.p("The gateways of a group serve the same images. One of them owns an image and executes its commands; the others hand commands on to it.");
        for problem in group.problems() {
            h.leaf("p", &[("class", "note mistake")], &problem);
        }
        members(group, h);
        units(look, group, h);
        fences(group, h);
        h.leaf("h2", &[], "Since this daemon has started");
        let counts = &group.counts;
        h.facts(&[
            ("Units moved here", show::count(counts.moves)),
            ("Units taken over", show::count(counts.takeovers)),
            ("Gateways taken out by this one", show::count(counts.fences)),
            ("Lives in the group", show::count(group.life)),
            ("Commands forwarded", show::count(counts.forwarded)),
            ("Data forwarded, read", show::bytes(counts.forwarded_read_bytes)),
            ("Data forwarded, written", show::bytes(counts.forwarded_written_bytes)),
        ]);
    })
}

fn members(group: &GroupStatus, h: &mut Html) {
    h.leaf("h2", &[], "Members");
    let heads = ["gateway", "state", "#units", "#silent", "link to it", "life"];
    h.table("Members", &heads, "This gateway is not in the group now.", &group.members, |row, member| {
        let own = if member.own { ", this one" } else { "" };
        row.cell(&member.number.to_string()).cell(&format!("{}{own}", member.standing));
        row.number(&member.units.to_string()).number(&format!("{} ms", member.silent_ms));
        row.cell(match member.link {
            Some(true) => "up",
            Some(false) => "down",
            None => "–",
        });
        row.cell(&member.instance);
    });
}

/// Who owns each unit, with what moves it.
fn units(look: &Look<'_>, group: &GroupStatus, h: &mut Html) {
    h.leaf("h2", &[], "Units");
    let served = look.status.targets.iter().flat_map(|target| {
        target.units.iter().filter_map(move |unit| Some((&unit.shared.as_ref()?.image, (target, unit.lun))))
    });
    let places: HashMap<&String, _> = served.collect();
    search(look, h, GATEWAYS, group.units.len());
    let shown = part(look, h, GATEWAYS, "from", &group.units, |unit| vec![unit.image.as_str()]);
    let heads = ["image", "unit", "owner", ""];
    h.table("Units of the group", &heads, "The group has no unit.", &shown, |row, unit| {
        row.cell(&unit.image);
        match places.get(&unit.image) {
            Some((target, lun)) => {
                row.link(&of_unit(&target.iqn, *lun), &format!("LUN {lun} of {}", target.iqn))
            }
            None => row.cell("–"),
        };
        row.cell(&unit.owner_text());
        row.with(|h| {
            if look.may(Role::Operate) {
                let about = format!("Move {}", unit.image);
                let path = of_change("move", &[("unit", unit.image.as_str())]);
                h.leaf("a", &[("href", &path), ("aria-label", &about)], "Move");
            }
        });
    });
}

fn fences(group: &GroupStatus, h: &mut Html) {
    h.leaf("h2", &[], "Taken out");
    h.p("A gateway that was silent is kept from the cluster, and then its units get other owners. It comes back in another life.");
    let heads = ["gateway", "by gateway", "#from map", "life"];
    h.table(
        "Taken out, the latest first",
        &heads,
        "No gateway was taken out.",
        &group.fences,
        |row, fence| {
            row.cell(&fence.gateway.to_string()).cell(&fence.by.to_string());
            row.number(&fence.epoch.to_string()).cell(&fence.instance);
        },
    );
}
