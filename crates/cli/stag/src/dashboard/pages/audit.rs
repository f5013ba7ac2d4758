//! What has changed, and by whom: the latest lines of the audit log.

use admin_http::Answer;
use serde_json::Value;

use super::super::Look;
use crate::shown::time;

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    let changes = look.get(&["audit"]);
    look.page("Changes", "/changes", |h| {
        let changes = match &changes {
            Ok(changes) => changes.as_array().map(Vec::as_slice).unwrap_or_default(),
            Err(refused) => return h.leaf("p", &[("class", "note mistake")], &refused.what),
        };
        h.p("The latest 100 changes, the newest first. audit.log of the state directory has those before.");
        let heads = ["when (UTC)", "who", "from", "what", "changed", "result"];
        h.table("Changes of this daemon", &heads, "Nothing has been changed.", changes, |row, change| {
            let text = |name: &str| change[name].as_str().unwrap_or("–").to_owned();
            row.cell(&time(change["time_unix_s"].as_f64().unwrap_or(0.0) as i64));
            row.cell(&text("who")).cell(&text("from")).cell(&text("what"));
            row.cell(&plan(&change["plan"]));
            row.cell(change["result"].as_str().unwrap_or("not known: under way, or the daemon ended"));
        });
    })
}

/// A plan in a line.
fn plan(plan: &Value) -> String {
    let changes = plan["changes"].as_array().into_iter().flatten();
    let words = changes
        .filter_map(|change| Some(format!("{} {}", change["kind"].as_str()?, change["what"].as_str()?)));
    let all: Vec<String> = words.collect();
    if all.is_empty() { "–".to_owned() } else { all.join("; ") }
}
