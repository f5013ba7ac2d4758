//! Exports of NFS, and one of them.

use admin_http::Answer;
use serde_json::Value;

use super::super::changes::commands;
use super::super::{Look, fields, show};
use super::part::{part, search};
use super::{missing, of_export};
use crate::tokens::Role;

/// All exports.
pub fn page(look: &Look<'_>) -> Answer {
    let links: &[(&str, &str)] =
        if look.may(Role::Admin) { &[("/change/export", "Share a folder")] } else { &[] };
    look.frame("Exports", "/exports", links).page(200, |h| {
        let exports = &look.status.nfs.exports;
        search(look, h, "/exports", exports.len());
        let shown = part(look, h, "/exports", "from", exports, |export| {
            vec![export.name.as_str(), export.path.as_str()]
        });
        let heads = ["export", "shows", "kept in", "state", "#calls", "#read", "#written", "#failed"];
        h.table("Exports of NFS", &heads, "There is no export.", &shown, |row, export| {
            row.link(&of_export(&export.name), &export.name).cell(&export.path);
            row.cell(look.kept_in(export.managed)).cell(&export.health.state);
            row.number(&show::count(export.calls)).number(&show::bytes(export.read_bytes));
            row.number(&show::bytes(export.written_bytes)).number(&show::count(export.errors));
        });
        h.leaf("h2", &[], "Operations since the start");
        let heads = ["operation", "#version", "#done", "#refused", "#told to wait", "#failed"];
        h.table(
            "Operations of NFS since the start",
            &heads,
            "There were none.",
            &look.status.nfs.operations,
            |row, one| {
                row.cell(&one.name).number(&one.version.to_string());
                for count in [one.done, one.refused, one.delayed, one.failed] {
                    row.number(&show::count(count));
                }
            },
        );
    })
}

/// The export `name`.
pub fn one(look: &Look<'_>, name: &str) -> Answer {
    let Some(export) = look.status.nfs.exports.iter().find(|export| export.name == name) else {
        return missing(look, "There is no such export.");
    };
    look.page(&format!("Export {name}"), "/exports", |h| {
        h.details(&[
            ("Shows", export.path.clone()),
            ("Kept in", look.kept_in(export.managed).to_owned()),
            ("State", export.health.state.clone()),
            ("Last error", export.health.last_error.clone().unwrap_or_else(|| "none".to_owned())),
            ("Calls", show::count(export.calls)),
            ("Read", show::bytes(export.read_bytes)),
            ("Written", show::bytes(export.written_bytes)),
        ]);
        h.leaf("h2", &[], "Who may mount it");
        match look.get(&["exports", name]).map(|mut found| found["configuration"].take()) {
            _ if !export.managed => {
                h.p(&format!("See {}: exports that are kept there are changed there.", look.kept_in(false)));
            }
            Err(refused) => h.leaf("p", &[("class", "note mistake")], &refused.what),
            Ok(configuration) => {
                let rules = configuration["client"].as_array().cloned().unwrap_or_default();
                let none = "Everybody may mount it and write.";
                h.table("Networks of clients", &["network", "may"], none, &rules, |row, rule| {
                    let only = rule["ro"] == Value::Bool(true);
                    row.cell(rule["network"].as_str().unwrap_or_default());
                    row.cell(if only { "read" } else { "read and write" });
                });
            }
        }
        h.leaf("h2", &[], "Mount it");
        commands::export(look, name, h);
        if export.managed && look.may(Role::Admin) {
            h.leaf("h2", &[], "Remove it");
            h.p("Its clients' handles become stale. Its files stay.");
            fields::small(
                h,
                "/change/remove-export",
                look.visitor,
                &[("export", name)],
                "Remove this export",
                "",
            );
        }
    })
}
