//! The page on which people log in, by a token of the API.

use admin_http::Answer;

use super::super::fields;
use super::super::frame::Frame;

/// The page; `mistake` says why a login was refused.
pub fn page(status: u16, mistake: Option<&str>) -> Answer {
    Frame { title: "Log in", here: "", visitor: None, links: &[], charts: false, in_group: false }.page(
        status,
        |h| {
            if let Some(what) = mistake {
                h.leaf("p", &[("class", "note mistake"), ("role", "alert")], what);
            }
            h.tag("form", &[("class", "page"), ("method", "post"), ("action", "/login")], |h| {
            let hint =
                "The server's administrator makes one: stag token add NAME --role read, operate or admin.";
            fields::text(
                h,
                "token",
                "Token",
                hint,
                "",
                &[("type", "password"), ("required", ""), ("autofocus", "")],
            );
            fields::button(h, "Log in");
        });
        },
    )
}
