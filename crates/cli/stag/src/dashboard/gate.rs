//! A browser's request before its body is read: Host, session, and whose page sends it. A stranger
//! gets the login page and nothing else.

use std::time::Instant;

use admin_http::{Answer, Head};

use super::form::Form;
use super::sessions::proof;
use super::{Dashboard, frame};
use crate::api::{Caller, percent};
use crate::tokens::Role;

/// The name of the cookie. It cannot have the prefix `__Host-`, which browsers take over TLS alone.
pub const COOKIE: &str = "stag-session";
/// Where people log in.
pub const LOGIN: &str = "/login";
/// What charts ask for.
pub const LIVE: &str = "/live.json";
/// The largest form, bytes.
const MOST: usize = 16 << 10;

/// Who has logged in.
pub struct Visitor {
    /// The session's id.
    pub id: String,
    /// What its forms carry.
    pub proof: String,
    pub caller: Caller,
}

/// A request that may be executed.
pub struct Call {
    /// Who asks; `None` only for the login page.
    pub visitor: Option<Visitor>,
    /// Whether it is a POST.
    pub posts: bool,
    /// The path's segments, decoded.
    pub path: Vec<String>,
    pub query: Form,
    /// The name by which the browser knows this machine.
    pub host: String,
    /// Whether the browser reached it through TLS.
    pub is_tls: bool,
    /// The client's address.
    pub whence: String,
}

/// Admits a request.
///
/// # Errors
/// The answer to a client that gets nothing else: files that never change, too.
pub fn admit(dashboard: &Dashboard, head: Head) -> Result<(Call, usize), Answer> {
    dashboard.api.for_this_host(&head)?;
    let posts = head.method == "POST";
    if !posts && !["GET", "HEAD"].contains(&head.method.as_str()) {
        return Err(frame::plain(405, "there are GET and POST here\n"));
    }
    if let Some(answer) = frame::file(&head.path) {
        return Err(answer);
    }
    if posts && !is_own_page(&head) {
        return Err(frame::plain(403, "a page of another host has sent this\n"));
    }
    let is_form =
        |kind: &str| kind.split(';').next().unwrap_or_default().trim() == "application/x-www-form-urlencoded";
    if posts && !head.content_type.as_deref().is_some_and(is_form) {
        return Err(frame::plain(415, "the body is a form\n"));
    }
    let visitor = visitor(dashboard, &head);
    if visitor.is_none() && head.path != LOGIN {
        return Err(match head.path.as_str() {
            LIVE => frame::plain(401, "the session has ended\n"),
            _ => frame::see_other(LOGIN),
        });
    }
    let wrong = || frame::plain(400, "the address is not written as it should be\n");
    let path: Option<Vec<String>> =
        head.path.split('/').filter(|part| !part.is_empty()).map(percent::decoded).collect();
    let call = Call {
        visitor,
        posts,
        path: path.ok_or_else(wrong)?,
        query: Form::read(&head.query).map_err(|_| wrong())?,
        is_tls: head.origin.as_deref().is_some_and(|origin| origin.starts_with("https://")),
        whence: whence(&head),
        host: head.host.unwrap_or_default(),
    };
    Ok((call, if posts { MOST } else { 0 }))
}

fn whence(head: &Head) -> String {
    head.from.map_or_else(|| "unknown".to_owned(), |from| from.to_string())
}

/// Who asks, if the session and its token are still there.
fn visitor(dashboard: &Dashboard, head: &Head) -> Option<Visitor> {
    let id = cookie(head.cookie.as_deref()?)?;
    let hash = dashboard.sessions.find(id, Instant::now(), head.path != LIVE)?;
    let (token, role) =
        dashboard.daemon.tokens.find_by_hash(&hash).filter(|(_, role)| *role >= Role::Read)?;
    let caller = Caller { token, role, whence: whence(head) };
    Some(Visitor { id: id.to_owned(), proof: proof(id), caller })
}

/// The session's id in a Cookie field.
fn cookie(field: &str) -> Option<&str> {
    let pairs = field.split([';', ',']).filter_map(|pair| pair.trim().split_once('='));
    let mut found = pairs.filter(|(name, _)| *name == COOKIE).map(|(_, id)| id);
    let id = found.next()?;
    // Two of one name: another program on this machine has set one of them.
    (found.next().is_none() && id.len() == 64).then_some(id)
}

/// Whether a page of this daemon has sent the request. Browsers say so themselves where they reach
/// it through TLS or on the loopback; elsewhere Origin has to be the Host.
fn is_own_page(head: &Head) -> bool {
    match (head.fetch_site.as_deref(), head.origin.as_deref(), head.host.as_deref()) {
        (Some(site), ..) => site == "same-origin",
        (None, Some(origin), Some(host)) => {
            let name = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            name.is_some_and(|name| name.eq_ignore_ascii_case(host))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fetch_site: Option<&str>, origin: Option<&str>) -> Head {
        Head {
            method: "POST".into(),
            path: "/login".into(),
            query: String::new(),
            host: Some("127.0.0.1:3261".into()),
            authorization: None,
            if_match: None,
            last_event_id: None,
            content_type: None,
            cookie: None,
            origin: origin.map(str::to_owned),
            fetch_site: fetch_site.map(str::to_owned),
            from: None,
        }
    }

    #[test]
    fn only_pages_of_this_host_send_forms() {
        for (site, origin) in [
            (Some("same-origin"), None),
            (None, Some("http://127.0.0.1:3261")),
            (None, Some("https://127.0.0.1:3261")),
        ] {
            assert!(is_own_page(&head(site, origin)), "{site:?} {origin:?}");
        }
        for (site, origin) in [
            (None, None),
            (None, Some("null")),
            (None, Some("http://127.0.0.1")),
            (None, Some("http://127.0.0.1:3261.evil.example")),
            (None, Some("http://evil.example")),
            (Some("cross-site"), Some("http://127.0.0.1:3261")),
            (Some("same-site"), None),
            (Some("none"), None),
        ] {
            assert!(!is_own_page(&head(site, origin)), "{site:?} {origin:?}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others_and_two_are_none() {
        let id = "a".repeat(64);
        assert_eq!(cookie(&format!("x=y; {COOKIE}={id}")), Some(id.as_str()));
        for none in [
            "",
            "x",
            &format!("{COOKIE}=short"),
            &format!("x{COOKIE}={id}"),
            &format!("{COOKIE}={id}; {COOKIE}={id}"),
        ] {
            assert_eq!(cookie(none), None, "{none}");
        }
    }
}
