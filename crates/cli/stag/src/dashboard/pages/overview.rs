//! The first page: whether all is well, what happens now, what is served, and the room for it.

use admin_http::Answer;

use super::super::frame::Frame;
use super::super::history::Rates;
use super::super::html::Html;
use super::super::{Look, fields, show};
use crate::control::status::CoreStatus;
use crate::health::Served;
use crate::health::space::Level;
use crate::shown::{duration, time};
use crate::tokens::Role;

/// Problems that are shown at most.
const PROBLEMS: usize = 100;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let links: &[(&str, &str)] = match look.may(Role::Admin) {
        true => &[("/change/disk", "Make a disk"), ("/change/export", "Share a folder")],
        false => &[],
    };
    Frame { charts: true, ..look.frame("Overview", "/", links) }.page(200, |h| {
        health(look, h);
        served(look, h);
        activity(look, h);
        space(look, h);
        portals(look, h);
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
    if !status.complete {
        h.leaf("p", &[("class", "note mistake")], "Not all threads have answered: sums below are too small.");
    }
    for what in &status.health.not_served {
        h.leaf("p", &[("class", "note mistake")], what);
    }
    let problems = &status.health.problems;
    let text = match (status.health.state, problems.len()) {
        (Level::Ok, 0) => "Healthy: units, exports and their file systems have no problem.".to_owned(),
        (state, 0) if !status.health.not_served.is_empty() => {
            format!("{}: a part of the managed document is not served.", level(state).0)
        }
        (state, 0) if !status.health.group.is_empty() => {
            format!("{}: the group of gateways has a problem, see Gateways.", level(state).0)
        }
        (state, 0) => format!("A file system is {}: see Space.", level(state).0),
        (state, 1) => format!("{}: a unit or an export has a problem.", level(state).0),
        (state, number) => format!("{}: units and exports have {number} problems.", level(state).0),
    };
    let class = match status.health.state {
        Level::Ok => "banner ok",
        Level::Warning => "banner warning",
        Level::Critical => "banner critical",
    };
    h.leaf("p", &[("class", class)], &text);
    if problems.is_empty() {
        return;
    }
    let shown = problems.get(..PROBLEMS).unwrap_or(problems);
    let heads = ["where", "state", "what", "#times", "first", ""];
    h.table("Problems of units and exports", &heads, "", shown, |row, problem| {
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
    if problems.len() > shown.len() {
        h.p(&format!("These are the first {PROBLEMS} of {}.", show::count(problems.len() as u64)));
    }
}

/// The script keeps the values of now in these tiles, and puts charts above them.
fn activity(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Activity");
    h.leaf("div", &[("id", "charts")], "");
    let (rates, about) = match &look.rates {
        Some(rates) => (Some(rates), format!("Means of the last {}.", duration(rates.over_s))),
        None => (None, "Load this page again within a minute to see what happens.".to_owned()),
    };
    let of = |value: fn(&Rates) -> String| rates.map_or_else(|| "–".to_owned(), value);
    h.live(&[
        ("Reads a second", "1", of(|rates| show::per_second(rates.reads))),
        ("Writes a second", "2", of(|rates| show::per_second(rates.writes))),
        ("NFS calls a second", "3", of(|rates| show::per_second(rates.calls))),
        ("Read", "4", of(|rates| show::rate(rates.read_bytes))),
        ("Written", "5", of(|rates| show::rate(rates.written_bytes))),
        (
            "Mean latency of iSCSI commands",
            "6",
            of(|rates| rates.latency_s.map_or_else(|| "–".to_owned(), show::latency)),
        ),
    ]);
    h.leaf("p", &[("id", "live"), ("class", "hint"), ("role", "status")], &about);
}

fn served(look: &Look<'_>, h: &mut Html) {
    let status = look.status;
    let units: usize = status.targets.iter().map(|target| target.units.len()).sum();
    let number = |number: usize| show::count(number as u64);
    h.facts(&[
        ("Targets", number(status.targets.len())),
        ("Units", number(units)),
        ("iSCSI sessions", number(status.sessions.len())),
        ("Exports", number(status.nfs.exports.len())),
        ("NFS connections", number(status.nfs.clients.len())),
        ("Up for", duration(status.uptime_s)),
    ]);
}

fn portals(look: &Look<'_>, h: &mut Html) {
    let status = look.status;
    h.leaf("h2", &[], "Portals");
    let mut portals: Vec<(String, String)> = status
        .portals
        .iter()
        .map(|one| (one.listen.clone(), format!("{}, group {}", one.transports, one.group)))
        .collect();
    portals.extend(status.nfs.listen.iter().map(|listen| (listen.clone(), "NFS".to_owned())));
    h.table(
        "Addresses that serve",
        &["address", "serves"],
        "Nothing listens.",
        &portals,
        |row, (listen, what)| {
            row.cell(listen).cell(what);
        },
    );
}

fn space(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Space");
    let heads = [
        "file system",
        "state",
        "used",
        "#free",
        "#size",
        "#units take",
        "#promised to units",
        "#beyond what is free",
    ];
    let none = "No unit and no export lies on a file system.";
    h.table(
        "File systems under units and exports",
        &heads,
        none,
        &look.status.health.file_systems,
        |row, one| {
            let (word, class) = level(one.state);
            row.cell(&one.mount).with(|h| h.leaf("span", &[("class", class)], word));
            row.with(|h| {
                let used = format!("{:.1}", one.used_percent);
                let about = format!("{} is {used} % full", one.mount);
                h.leaf(
                    "meter",
                    &[("min", "0"), ("max", "100"), ("value", &used), ("aria-label", &about)],
                    "",
                );
                h.text(&format!(" {used} %"));
            });
            for bytes in [one.free, one.size, one.allocated, one.provisioned, one.overcommitted] {
                row.number(&show::bytes(bytes));
            }
        },
    );
}

fn cores(look: &Look<'_>, h: &mut Html) {
    h.leaf("h2", &[], "Cores");
    h.p(&format!("Stag {}, I/O by {}.", look.status.version, look.status.runtime));
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
