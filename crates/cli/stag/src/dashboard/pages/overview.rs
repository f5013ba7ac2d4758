//! The first page: whether all is well, what happens now, what is served, and the room for it.

use admin_http::Answer;

use super::super::frame::Frame;
use super::super::html::Html;
use super::super::{Look, fields, show};
use crate::control::status::CoreStatus;
use crate::health::Served;
use crate::health::space::Level;
use crate::shown::{duration, time};
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    Frame { title: "Overview", here: "/", visitor: Some(look.visitor), charts: true }.page(200, |h| {
        health(look, h);
        activity(look, h);
        served(look, h);
        space(look, h);
        cores(look, h);
    })
}

/// The word of a level, and the class of its colour.
pub fn level(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::Ok => ("ok", "state ok"),
        Level::Warning => ("warning", "state warning"),
        Level::Critical => ("critical", "state critical"),
    }
}

fn health(look: &Look<'_>, h: &mut Html) {
    let status = look.status;
    h.leaf("h2", &[], "Health");
    if !status.complete {
        h.leaf("p", &[("class", "note mistake")], "Not all threads have answered: sums below are too small.");
    }
    let (word, class) = level(status.health.state);
    let text = match status.health.problems.len() {
        0 if status.health.state == Level::Ok => "No problems.".to_owned(),
        problems => format!("{word}: {problems} problems of units and exports"),
    };
    h.leaf("p", &[("class", class)], &text);
    if status.health.problems.is_empty() {
        return;
    }
    let heads = ["where", "state", "what", "#times", "first", ""];
    h.table("Problems of units and exports", &heads, "", &status.health.problems, |row, problem| {
        let (word, class) = level(problem.level);
        row.cell(&problem.served.to_string()).with(|h| h.leaf("span", &[("class", class)], word));
        row.cell(&problem.text).number(&show::count(problem.count));
        row.cell(&format!("{} UTC", time(i64::try_from(problem.since_unix_s).unwrap_or(0))));
        row.with(|h| {
            if !look.may(Role::Admin) {
                return;
            }
            let lun;
            let values = match &problem.served {
                Served::Unit { target, lun: number } => {
                    lun = number.to_string();
                    vec![("target", target.as_str()), ("lun", lun.as_str())]
                }
                Served::Export { export } => vec![("export", export.as_str())],
            };
            let about = problem.served.to_string();
            fields::small(h, "/change/acknowledge", look.visitor, &values, "Acknowledge", &about);
        });
    });
}

fn activity(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Activity");
    h.leaf("div", &[("id", "charts")], "");
    h.leaf("p", &[("id", "live"), ("class", "quiet"), ("role", "status")], "");
    let Some(rates) = look.rates else {
        return h.p("Rates are known once this page has been asked for twice within a minute.");
    };
    h.p(&format!("Means of the last {}:", duration(rates.over_s)));
    let latency = rates.latency_s.map_or_else(|| "–".to_owned(), show::latency);
    h.facts(&[
        ("Reads a second", show::per_second(rates.reads)),
        ("Writes a second", show::per_second(rates.writes)),
        ("Read", show::rate(rates.read_bytes)),
        ("Written", show::rate(rates.written_bytes)),
        ("Latency of iSCSI commands", latency),
        ("NFS calls a second", show::per_second(rates.calls)),
    ]);
}

fn served(look: &Look<'_>, h: &mut Html) {
    let status = look.status;
    h.leaf("h2", &[], "What is served");
    if look.may(Role::Admin) {
        h.tag("p", &[("class", "actions")], |h| {
            h.leaf("a", &[("class", "button"), ("href", "/change/disk")], "Make a disk");
            h.leaf("a", &[("class", "button"), ("href", "/change/export")], "Share a folder");
        });
    }
    let units: usize = status.targets.iter().map(|target| target.units.len()).sum();
    let number = |number: usize| show::count(number as u64);
    h.facts(&[
        ("Targets", number(status.targets.len())),
        ("Units", number(units)),
        ("iSCSI sessions", number(status.sessions.len())),
        ("Exports", number(status.nfs.exports.len())),
        ("NFS connections", number(status.nfs.clients.len())),
        ("Up for", duration(status.uptime_s)),
        ("Version", status.version.clone()),
        ("I/O by", status.runtime.clone()),
    ]);
    let mut portals: Vec<(String, String)> = status
        .portals
        .iter()
        .map(|one| (one.listen.clone(), format!("{}, group {}", one.transports, one.group)))
        .collect();
    portals.extend(status.nfs.listen.iter().map(|listen| (listen.clone(), "NFS".to_owned())));
    h.table("Portals", &["address", "serves"], "Nothing listens.", &portals, |row, (listen, what)| {
        row.cell(listen).cell(what);
    });
}

fn space(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Space");
    let heads = ["file system", "state", "#used", "#free", "#size", "#units take", "#of", "#promised beyond"];
    let none = "No unit and no export lies on a file system.";
    h.table(
        "File systems under units and exports",
        &heads,
        none,
        &look.status.health.file_systems,
        |row, one| {
            let (word, class) = level(one.state);
            row.cell(&one.mount).with(|h| h.leaf("span", &[("class", class)], word));
            row.number(&format!("{} %", one.used_percent));
            for bytes in [one.free, one.size, one.allocated, one.provisioned, one.overcommitted] {
                row.number(&show::bytes(bytes));
            }
        },
    );
}

fn cores(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Cores");
    let cores: Vec<(usize, Option<&CoreStatus>)> =
        look.status.cores.iter().map(Option::as_ref).enumerate().collect();
    let heads = ["core", "#connections", "#processor time", "#pool in use", "#most", "#limit", "#waits"];
    h.table(
        "Threads of the server, and their buffers",
        &heads,
        "There is no core.",
        &cores,
        |row, (at, core)| {
            row.cell(&at.to_string());
            let Some(core) = core else {
                row.cell("does not answer");
                return;
            };
            row.number(&show::count(core.connections as u64));
            row.number(&core.busy_s.map_or_else(|| "–".to_owned(), duration));
            for bytes in [core.pool_in_use, core.pool_high_water, core.pool_limit] {
                row.number(&show::bytes(bytes as u64));
            }
            row.number(&show::count(core.pool_waits));
        },
    );
}
