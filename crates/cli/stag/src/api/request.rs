//! A request before its body is read: Host, token and role, route, query, and conditions. All that
//! can be refused by the head is refused here, so that strangers cost no memory.

use std::net::IpAddr;

use admin_http::{Answer, Head, Peer};

use super::percent::decoded;
use super::problem::problem;
use super::routes::{Asked, BASE, Body, ROUTES, Route};
use crate::config::Http;
use crate::control::apply::How;
use crate::control::daemon::Daemon;
use crate::tokens::Role;

/// The largest body of one target, unit or export, bytes.
const MOST: usize = 256 << 10;
/// The largest managed document as JSON, bytes.
const MOST_OF_ALL: usize = 4 << 20;

/// A request that may be executed.
pub struct Call {
    pub route: &'static Route,
    pub names: Vec<String>,
    pub asked: Asked,
    /// The token, or the user, for the audit log.
    pub who: String,
    /// The client's address, or `control socket`.
    pub whence: String,
    /// Method and path.
    pub what: String,
}

/// Admits a request.
///
/// # Errors
/// The answer to a client that gets nothing else.
pub fn admit(daemon: &Daemon, http: &Http, head: &Head) -> Result<(Call, usize), Answer> {
    let is_local = matches!(head.from, Some(Peer::User { .. }));
    if !http.api && !is_local {
        return Err(problem(404, "the API is off: api = true of [http] switches it on"));
    }
    // No browser leads there.
    if !is_local {
        for_this_host(http, head)?;
    }
    // Strangers learn nothing of which routes there are.
    let (who, role) = authorized(daemon, head, Role::Metrics)?;
    let path = path(&head.path).ok_or_else(|| problem(400, "the path is not written as it should be"))?;
    let there: Vec<(&'static Route, Vec<String>)> =
        ROUTES.iter().filter_map(|route| Some((route, route.names(&path)?))).collect();
    if there.is_empty() {
        return Err(problem(404, &format!("there is nothing here: see {BASE}/openapi.json")));
    }
    let method = if head.method == "HEAD" { "GET" } else { head.method.as_str() };
    let allowed: Vec<&str> = there.iter().map(|(route, _)| route.method).collect();
    let Some((route, names)) = there.iter().find(|(route, _)| route.method == method) else {
        let mut answer = problem(405, &format!("there are {} here", allowed.join(", ")));
        answer.fields.push(("allow", allowed.join(", ")));
        return Err(answer);
    };
    may(route, &who, role).map_err(|what| problem(403, &what))?;
    let is_json = |kind: &str| {
        kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    };
    if route.body != Body::None && !head.content_type.as_deref().is_some_and(is_json) {
        return Err(problem(415, "the body is JSON: Content-Type: application/json"));
    }
    let mut asked = asked(route, &head.query).map_err(|what| problem(400, &what))?;
    if let Some(condition) = &head.if_match {
        let now = daemon.running().parts.generation;
        asked.how.generation = if_match(condition, now);
        is_in_force(route, asked, now).map_err(|what| problem(412, &what))?;
    }
    let most = match route.body {
        Body::None => 0,
        Body::Document => MOST_OF_ALL,
        _ => MOST,
    };
    let query = if head.query.is_empty() { String::new() } else { format!("?{}", head.query) };
    let call = Call {
        route,
        names: names.clone(),
        asked,
        who,
        whence: match head.from {
            Some(Peer::Address(address)) => address.to_string(),
            Some(Peer::User { .. }) => "control socket".to_owned(),
            None => "unknown".to_owned(),
        },
        what: format!("{} {}{query}", head.method, head.path),
    };
    Ok((call, most))
}

/// Whether a request names this daemon as its Host.
///
/// # Errors
/// The answer to a client that takes it for another host.
pub fn for_this_host(http: &Http, head: &Head) -> Result<(), Answer> {
    match head.host.as_deref() {
        None => Err(problem(400, "a request has one Host")),
        Some(host) if is_own(host, &http.hosts) => Ok(()),
        Some(_) => {
            let what = "this is not the host's name: use its address, or name it in hosts of [http]";
            Err(problem(421, what))
        }
    }
}

/// Whether `who`, with this role, may use the route.
///
/// # Errors
/// The reason why not.
pub fn may(route: &Route, who: &str, role: Role) -> Result<(), String> {
    let (own, wanted) = (role.name(), route.role.name());
    match role < route.role {
        true => Err(format!("this needs the role {wanted}, and {who} has {own}")),
        false => Ok(()),
    }
}

/// Checks that the generation `now` is the one that was asked for. `apply` compares that of a
/// change of the document.
///
/// # Errors
/// Another change came between.
pub fn is_in_force(route: &Route, asked: Asked, now: u64) -> Result<(), String> {
    match asked.how.generation.is_some_and(|wanted| wanted != now) && !route.is_edit() {
        true => Err(format!("another change came between: the generation is {now}")),
        false => Ok(()),
    }
}

/// Who asks, and the role: that of the request's token, or of the user of the control socket.
///
/// # Errors
/// The answer to a client without a token whose role is `least`.
pub fn authorized(daemon: &Daemon, head: &Head, least: Role) -> Result<(String, Role), Answer> {
    if let Some(Peer::User { uid, is_owner }) = head.from {
        return Ok((format!("user {uid}"), if is_owner { Role::Admin } else { Role::Operate }));
    }
    let text = head.authorization.as_deref().and_then(|said| {
        let (scheme, text) = said.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| text.trim())
    });
    match text.and_then(|text| daemon.tokens.find(text)) {
        Some((name, role)) if role >= least => Ok((format!("token {name}"), role)),
        Some((name, role)) => {
            let (own, wanted) = (role.name(), least.name());
            Err(problem(403, &format!("this needs the role {wanted}, and token {name} has {own}")))
        }
        None => {
            let what = "this needs a token: Authorization: Bearer TOKEN; `stag token add` makes one";
            let mut answer = problem(401, what);
            answer.fields.push(("www-authenticate", "Bearer realm=\"stag\"".to_owned()));
            Err(answer)
        }
    }
}

/// Whether a Host names this daemon: an address, or one of `names`.
/// So a page of a foreign name that leads here (DNS rebinding) gets nothing.
fn is_own(host: &str, names: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let is = |own: &String| !own.is_empty() && own.eq_ignore_ascii_case(name);
    name.parse::<IpAddr>().is_ok() || names.iter().any(is)
}

/// The segments of a path below [`BASE`], decoded.
fn path(path: &str) -> Option<Vec<String>> {
    let below = path.strip_prefix(BASE)?;
    below.strip_prefix('/')?.split('/').map(decoded).collect()
}

fn asked(route: &Route, query: &str) -> Result<Asked, String> {
    let mut asked = Asked::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (name, value) {
            ("plan", "1" | "true") if route.is_change() => asked.how = How { dry_run: true, ..asked.how },
            ("plan", "0" | "false") if route.is_change() => {}
            ("plan", _) if !route.is_change() => return Err("this cannot be planned".to_owned()),
            ("plan", _) => return Err("plan is 1 or 0".to_owned()),
            ("refuse", value) if route.is_disconnect() => {
                let seconds = value.parse().ok().filter(|seconds| *seconds <= 3600);
                asked.refuse = Some(seconds.ok_or("refuse is 0 to 3600 seconds")?);
            }
            _ => return Err(format!("there is no `{}` here", name.escape_default())),
        }
    }
    Ok(asked)
}

/// The generation that If-Match demands, of which `now` is in force. Only strong tags match (RFC
/// 9110 §13.1.1); a tag that is none matches nothing.
fn if_match(condition: &str, now: u64) -> Option<u64> {
    if condition.trim() == "*" {
        return None;
    }
    let tag = |text: &str| text.trim().strip_prefix('"')?.strip_suffix('"')?.parse::<u64>().ok();
    let all: Vec<u64> = condition.split(',').filter_map(tag).collect();
    Some(if all.contains(&now) { now } else { all.first().copied().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_name_of_this_machine() {
        let names = ["stag.example".to_owned(), "localhost".to_owned(), String::new()];
        for own in
            ["127.0.0.1:3261", "192.0.2.1", "[::1]:3261", "localhost", "LOCALHOST:1", "Stag.Example:3261"]
        {
            assert!(is_own(own, &names), "{own}");
        }
        for other in ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::1", "a, 127.0.0.1"]
        {
            assert!(!is_own(other, &names), "{other}");
        }
    }

    #[test]
    fn a_name_with_slashes_is_one_segment() {
        let of = |text: &str| path(&format!("/api/v1{text}"));
        assert_eq!(of("/exports/%2Fdata%2fa"), Some(vec!["exports".into(), "/data/a".into()]));
        assert_eq!(of("/targets/iqn.x:y/units/0").unwrap().len(), 4);
        for wrong in ["", "x", "/%", "/%2", "/%zz", "/%ff"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let find = |text: &str| ROUTES.iter().find_map(|route| route.names(&of(text)?));
        assert_eq!(find("/exports/%2Fdata"), Some(vec!["/data".into()]));
        assert_eq!(find("/targets/"), None);
        assert_eq!(find("/targets/a/b"), None);
    }

    #[test]
    fn only_strong_tags_match() {
        assert_eq!((if_match("*", 7), if_match("\"7\"", 7)), (None, Some(7)));
        assert_eq!(if_match("\"6\", \"7\"", 7), Some(7));
        for other in ["\"6\"", "W/\"7\"", "7", "\"x\"", ""] {
            assert_ne!(if_match(other, 7).unwrap(), 7, "{other}");
        }
    }
}
