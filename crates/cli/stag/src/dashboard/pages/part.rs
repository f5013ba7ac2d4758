//! Long lists, a part on a page: so that no page grows with what is served. Knows no list's rows.

use super::super::html::Html;
use super::super::{Look, fields, show};
use crate::api::percent::encoded;

/// Rows of one list on a page.
pub const ROWS: usize = 100;
/// What a search sends.
const FIND: &str = "find";

/// Writes the field by which the lists of the page at `path` are searched, if one of them is long;
/// `rows` says how long the longest is.
pub fn search(look: &Look<'_>, h: &mut Html, path: &str, rows: usize) {
    let find = look.query.get(FIND);
    if rows <= ROWS && find.is_empty() {
        return;
    }
    h.tag("form", &[("class", "search"), ("role", "search"), ("method", "get"), ("action", path)], |h| {
        fields::text(h, FIND, "Show those with", "", find, &[("type", "search")]);
        h.leaf("button", &[("class", "small")], "Search");
    });
}

/// The rows of `all` that this page shows, of those that have what is searched for in one of their
/// `texts`. Writes links to the others. `key` tells this list from others of the page.
pub fn part<'a, T>(
    look: &Look<'_>,
    h: &mut Html,
    path: &str,
    key: &'static str,
    all: impl IntoIterator<Item = &'a T>,
    texts: impl Fn(&T) -> Vec<&str>,
) -> Vec<&'a T> {
    let find = look.query.get(FIND).to_lowercase();
    let has = |row: &&T| texts(row).iter().any(|text| text.to_lowercase().contains(&find));
    let mut found: Vec<&T> = all.into_iter().filter(|row| find.is_empty() || has(row)).collect();
    let rows = found.len();
    // The first row of a part.
    let asked = look.query.get(key).parse().unwrap_or(0_usize);
    let first = asked.min(rows.saturating_sub(1)) / ROWS * ROWS;
    if rows > ROWS {
        let last = (first + ROWS).min(rows);
        let count = |number: usize| show::count(number as u64);
        let link = |h: &mut Html, from: usize, text: &str| {
            let find = if find.is_empty() { String::new() } else { format!("&{FIND}={}", encoded(&find)) };
            h.link(&format!("{path}?{key}={from}{find}"), text);
        };
        h.tag("p", &[("class", "parts")], |h| {
            h.text(&format!("{} to {} of {}", count(first + 1), count(last), count(rows)));
            if first > 0 {
                link(h, first - ROWS, "Those before");
            }
            if last < rows {
                link(h, last, "Those behind");
            }
        });
    }
    found.drain(..first);
    found.truncate(ROWS);
    found
}
