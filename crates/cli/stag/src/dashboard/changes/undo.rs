//! The way back to an earlier managed document.

use serde_json::json;

use super::{Change, Request, carried, no_more};
use crate::tokens::Role;

pub const UNDO: Change = Change {
    name: "undo",
    title: "Go back",
    button: "Go back",
    role: Role::Admin,
    back: "/changes",
    fields: &["to"],
    form: |_, form, h| carried(form, h, &["to"]),
    request: |_, form, _| {
        let wrong = |_| "The generation to go back to is a number.".to_owned();
        let to: u64 = form.needed("to", "The generation to go back to")?.parse().map_err(wrong)?;
        let mut request = Request::planned("POST", &["document", "undo"], json!({ "to": to }));
        request.says =
            "What the dashboard and the API keep becomes what it was, CHAP secrets too: later changes are \
                        undone together. Files of units stay. This can be undone as well."
                .to_owned();
        Ok(request)
    },
    after: no_more,
};
