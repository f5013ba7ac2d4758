//! The support bundle: one JSON file with what somebody who helps asks for, without secrets.

use admin_http::Answer;
use serde_json::{Map, Value, json};

use super::super::{Look, frame};

/// Parts of the bundle: paths of the API that have no secret, and what each is.
const PARTS: [(&str, &str); 7] = [
    ("status", "what stag status --json shows: version, health, targets, sessions, counts"),
    ("slow", "the slowest commands"),
    ("drain", "drains"),
    ("alua", "target port groups"),
    ("document", "the managed document, without secrets"),
    ("audit", "the latest changes, by whom"),
    ("doctor", "what stag doctor finds out: kernel, limits, network, and what to do"),
];

/// The page that says what the bundle has.
pub fn page(look: &Look<'_>) -> Answer {
    look.page("Support", "/support", |h| {
        h.p("The bundle is one JSON file. It has names and addresses of initiators, and paths of this machine, but no secret and no data:");
        h.tag("ul", &[], |h| {
            for (name, about) in PARTS {
                h.tag("li", &[], |h| {
                    h.leaf("code", &[], name);
                    h.text(&format!(": {about}"));
                });
            }
        });
        h.tag("p", &[("class", "actions")], |h| {
            let attributes = [("class", "button"), ("href", "/support/bundle.json"), ("download", "stag-support.json")];
            h.leaf("a", &attributes, "Download the bundle");
        });
    })
}

/// The bundle.
pub fn bundle(look: &Look<'_>) -> Answer {
    let mut all = Map::new();
    all.insert("stag".into(), json!(look.status.version));
    for (name, _) in PARTS {
        let part = look.get(&[name]).unwrap_or_else(|refused| json!({ "error": refused.what }));
        all.insert(name.into(), part);
    }
    let mut answer = frame::answer(200, "application/json", format!("{:#}\n", Value::Object(all)));
    answer.fields.push(("content-disposition", "attachment; filename=\"stag-support.json\"".to_owned()));
    answer
}
