//! What all pages have around them: the document's head, the navigation, and the fields of HTTP
//! that keep other pages and their scripts away.

use admin_http::Answer;

use super::gate::Visitor;
use super::html::Html;
use super::{assets, fields};

/// Only this daemon's own files may be loaded, forms go to it alone, and no page may frame it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Pages that the navigation leads to.
const PAGES: [(&str, &str); 9] = [
    ("/", "Overview"),
    ("/targets", "Targets"),
    ("/exports", "Exports"),
    ("/clients", "Clients"),
    ("/slow", "Why slow"),
    ("/drains", "Maintenance"),
    (GATEWAYS, "Gateways"),
    ("/changes", "Changes"),
    ("/support", "Support"),
];

/// The page that only a gateway of a group has.
pub const GATEWAYS: &str = "/gateways";

/// A page without its content.
pub struct Frame<'a> {
    pub title: &'a str,
    /// The page of the navigation that it belongs to.
    pub here: &'a str,
    pub visitor: Option<&'a Visitor>,
    /// Links beside the title: paths and texts.
    pub links: &'a [(&'a str, &'a str)],
    /// Whether it draws charts.
    pub charts: bool,
    /// Whether the daemon is a gateway of a group.
    pub in_group: bool,
}

impl Frame<'_> {
    /// The page, with what `main` writes below its title.
    pub fn page(&self, status: u16, main: impl FnOnce(&mut Html)) -> Answer {
        let mut h = Html::document();
        h.tag("html", &[("lang", "en")], |h| {
            h.tag("head", &[], |h| self.head(h));
            h.tag("body", &[], |h| {
                h.leaf("a", &[("class", "skip"), ("href", "#main")], "Skip to the content");
                h.tag("header", &[], |h| h.tag("div", &[("class", "bar")], |h| self.header(h)));
                h.tag("main", &[("id", "main"), ("tabindex", "-1")], |h| {
                    h.tag("div", &[("class", "top")], |h| {
                        h.leaf("h1", &[], self.title);
                        for (path, text) in self.links {
                            h.leaf("a", &[("class", "button"), ("href", path)], text);
                        }
                    });
                    main(h);
                });
                h.leaf("footer", &[], concat!("Stag ", env!("CARGO_PKG_VERSION")));
            });
        });
        answer(status, "text/html; charset=utf-8", h.finish())
    }

    fn head(&self, h: &mut Html) {
        h.void("meta", &[("charset", "utf-8")]);
        h.void("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
        h.leaf("title", &[], &format!("{} – Stag", self.title));
        h.void("link", &[("rel", "icon"), ("href", &assets::path("icon.svg"))]);
        h.void("link", &[("rel", "stylesheet"), ("href", &assets::path("style.css"))]);
        if self.charts {
            h.void("link", &[("rel", "stylesheet"), ("href", &assets::path("uPlot.css"))]);
            h.leaf("script", &[("src", &assets::path("uPlot.js")), ("defer", "")], "");
            h.leaf("script", &[("src", &assets::path("live.js")), ("defer", "")], "");
        }
    }

    fn header(&self, h: &mut Html) {
        h.tag("span", &[("class", "name")], |h| {
            let icon = assets::path("icon.svg");
            h.void("img", &[("src", &icon), ("alt", ""), ("width", "22"), ("height", "22")]);
            h.text("Stag");
        });
        let Some(visitor) = self.visitor else { return };
        h.tag("nav", &[("aria-label", "Pages")], |h| {
            h.tag("ul", &[], |h| {
                for (path, name) in PAGES.into_iter().filter(|(path, _)| self.in_group || *path != GATEWAYS) {
                    h.tag("li", &[], |h| match path == self.here {
                        true => h.leaf("a", &[("href", path), ("aria-current", "page")], name),
                        false => h.link(path, name),
                    });
                }
            });
        });
        fields::form(h, "/logout", visitor, |h| {
            let name = format!("{} ({})", visitor.caller.token, visitor.caller.role.name());
            h.leaf("span", &[("class", "quiet")], &name);
            h.leaf("button", &[("class", "small")], "Log out");
        });
    }
}

/// An answer with the fields that every answer of the dashboard has.
pub fn answer(status: u16, kind: &str, body: String) -> Answer {
    let fields = vec![
        ("content-type", kind.to_owned()),
        ("content-security-policy", POLICY.to_owned()),
        // With `no-referrer` browsers would not say which page sends a form: Origin is null then.
        ("referrer-policy", "same-origin".to_owned()),
        ("x-frame-options", "DENY".to_owned()),
        ("cross-origin-resource-policy", "same-origin".to_owned()),
    ];
    Answer { status, fields, body }
}

/// The file of the program at `path`.
pub fn file(path: &str) -> Option<Answer> {
    let file = assets::find(path)?;
    let mut answer = answer(200, file.kind, file.content.to_owned());
    if file.is_kept {
        answer.fields.push(("cache-control", "public, max-age=31536000, immutable".to_owned()));
    }
    Some(answer)
}

/// Keeps windows of other origins away from a page that a browser reaches as `host`. On the
/// loopback those of other ports have the session's cookie, too. Elsewhere browsers heed the field
/// behind TLS alone, and complain of it in their console.
pub fn keep_apart(mut answer: Answer, host: &str) -> Answer {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if is_loopback || name.eq_ignore_ascii_case("localhost") {
        answer.fields.push(("cross-origin-opener-policy", "same-origin".to_owned()));
    }
    answer
}

/// A line of text.
pub fn plain(status: u16, text: &str) -> Answer {
    let mut answer = answer(status, "text/plain; charset=utf-8", text.to_owned());
    if status == 405 {
        answer.fields.push(("allow", "GET, HEAD, POST".to_owned()));
    }
    answer
}

/// Sends a browser to another page.
pub fn see_other(path: &str) -> Answer {
    let mut answer = plain(303, "");
    answer.fields.push(("location", path.to_owned()));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_kept_apart_where_browsers_heed_it() {
        let is_apart = |host: &str| {
            let answer = keep_apart(plain(200, ""), host);
            answer.fields.iter().any(|(name, _)| *name == "cross-origin-opener-policy")
        };
        for host in ["localhost", "LOCALHOST:3261", "127.0.0.1:3261", "127.9.9.9", "[::1]:3261", "[::1]"] {
            assert!(is_apart(host), "{host}");
        }
        for host in ["", "192.0.2.1:3261", "stag.example", "[2001:db8::1]:3261", "localhost.example"] {
            assert!(!is_apart(host), "{host}");
        }
    }
}
