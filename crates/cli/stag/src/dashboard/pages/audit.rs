//! What has changed, and by whom: the latest lines of the audit log; and the way back.

use admin_http::Answer;
use serde_json::Value;

use super::super::html::Html;
use super::super::{Look, fields, show};
use crate::earlier::Earlier;
use crate::shown::time;
use crate::tokens::Role;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let changes = look.get(&["audit"]);
    // A daemon that keeps no managed document has none.
    let earlier = look.get(&["document", "history"]).unwrap_or_default();
    let earlier: Vec<Earlier> = serde_json::from_value(earlier).unwrap_or_default();
    look.page("Changes", "/changes", |h| {
        match &changes {
            Ok(changes) => {
                audit(look, changes.as_array().map(Vec::as_slice).unwrap_or_default(), &earlier, h)
            }
            Err(refused) => h.leaf("p", &[("class", "note mistake")], &refused.what),
        }
        versions(look, &earlier, h);
    })
}

fn audit(look: &Look<'_>, changes: &[Value], earlier: &[Earlier], h: &mut Html) {
    h.p("The latest 100 changes. The file audit.log of the state directory has those before.");
    let heads = ["when (UTC)", "who", "from", "what", "changed", "result", ""];
    h.table("Changes of this daemon", &heads, "Nothing has been changed.", changes, |row, change| {
        let text = |name: &str| change[name].as_str().unwrap_or("–").to_owned();
        let when = time(change["time_unix_s"].as_f64().unwrap_or(0.0) as i64);
        row.with(|h| h.leaf("time", &[], &when));
        row.cell(&text("who")).cell(&text("from")).cell(&text("what"));
        row.cell(&plan(&change["plan"]));
        row.cell(change["result"].as_str().unwrap_or("not known: under way, or the daemon ended"));
        // In the generation before, the document was another one.
        let before = change["generation"].as_u64().and_then(|made| made.checked_sub(1));
        let kept = before.filter(|before| earlier.iter().any(|one| one.generation == *before));
        row.with(|h| {
            if let Some(before) = kept {
                go_back(look, before, "Undo from here", h);
            }
        });
    });
}

/// The documents that were replaced.
fn versions(look: &Look<'_>, earlier: &[Earlier], h: &mut Html) {
    h.leaf("h2", &[], "Earlier versions");
    h.p("What the API and these pages keep, as it was before each of the last changes.");
    let heads = ["written (UTC)", "#targets", "#exports", "#last generation", ""];
    h.table("Earlier versions", &heads, "Nothing has been replaced.", earlier, |row, one| {
        let when = time(i64::try_from(one.written_unix_s).unwrap_or(0));
        row.with(|h| h.leaf("time", &[], &when));
        row.number(&show::count(one.targets as u64)).number(&show::count(one.exports as u64));
        row.number(&one.generation.to_string());
        row.with(|h| go_back(look, one.generation, "Go back to it", h));
    });
}

fn go_back(look: &Look<'_>, to: u64, text: &str, h: &mut Html) {
    if look.may(Role::Admin) {
        let to = to.to_string();
        fields::small(h, "/change/undo", look.visitor, &[("to", &to)], text, &format!("to generation {to}"));
    }
}

/// A plan in a line.
fn plan(plan: &Value) -> String {
    let changes = plan["changes"].as_array().into_iter().flatten();
    let words = changes
        .filter_map(|change| Some(format!("{} {}", change["kind"].as_str()?, change["what"].as_str()?)));
    let all: Vec<String> = words.collect();
    if all.is_empty() { "–".to_owned() } else { all.join("; ") }
}
