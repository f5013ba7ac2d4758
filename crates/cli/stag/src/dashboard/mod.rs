//! The dashboard: pages for people at the address of `[http]`. Owns what lies between a browser's
//! request and a page; all that a page changes goes through [`Api::ask`], as a request of the API.
//!
//! [`gate`] admits a request, [`sessions`] knows who has logged in, [`html`] writes markup,
//! [`frame`] is around all pages, [`pages`] show what there is, and [`changes`] plan and make
//! changes. Every page is whole without its script.

mod assets;
mod changes;
mod fields;
mod form;
mod frame;
mod gate;
mod history;
mod html;
mod pages;
mod sessions;
mod show;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin_http::{Answer, Head};
use serde_json::Value;

use crate::api::{Api, Asked, Looked, Refused};
use crate::control::daemon::Daemon;
use crate::control::status::{self, Status};
use crate::tokens::{Role, hash, is_equal};
use form::Form;
use frame::Frame;
use gate::{COOKIE, LIVE, LOGIN, Visitor};
use history::{History, Rates, Sample};
use html::Html;
use sessions::{LONGEST, Sessions};

pub use gate::Call;

/// Time for a core to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The dashboard of a daemon.
pub struct Dashboard {
    daemon: Arc<Daemon>,
    api: Arc<Api>,
    sessions: Sessions,
    history: History,
}

/// Makes a request of the API: method, path, how, and body.
type Ask<'a> = dyn Fn(&str, &[&str], Asked, &Value) -> Result<Looked, Refused> + 'a;

/// What a page is made of.
pub struct Look<'a> {
    pub visitor: &'a Visitor,
    pub status: &'a Status,
    /// What has happened in a second of the last minute, if somebody looked before.
    pub rates: Option<Rates>,
    /// What stands behind the `?` of a page's address.
    pub query: &'a Form,
    /// The name by which the browser knows this machine.
    pub host: &'a str,
    /// The administrator's file, for messages.
    pub file: &'a str,
    /// Makes a request of the API.
    pub ask: &'a Ask<'a>,
}

impl Look<'_> {
    /// What the API shows at a path.
    ///
    /// # Errors
    /// The API's.
    pub fn get(&self, path: &[&str]) -> Result<Value, Refused> {
        (self.ask)("GET", path, Asked::default(), &Value::Null).map(|looked| looked.value)
    }

    /// Whether the visitor may do what needs `role`.
    pub fn may(&self, role: Role) -> bool {
        self.visitor.caller.role >= role
    }

    /// Where a target or an export is kept.
    pub fn kept_in(&self, is_managed: bool) -> &str {
        match (is_managed, self.file) {
            (true, _) => "the managed document",
            (false, "") => "the command line",
            (false, file) => file,
        }
    }

    /// A page.
    pub fn page(&self, title: &str, here: &str, main: impl FnOnce(&mut Html)) -> Answer {
        self.frame(title, here, &[]).page(200, main)
    }

    /// A page without its content. `links`: paths and texts of links beside its title.
    pub fn frame<'f>(&'f self, title: &'f str, here: &'f str, links: &'f [(&'f str, &'f str)]) -> Frame<'f> {
        let in_group = self.status.gateways.is_some();
        Frame { title, here, visitor: Some(self.visitor), links, charts: false, in_group }
    }

    /// The page of a request that was refused.
    pub fn refused(&self, refused: &Refused) -> Answer {
        let title = match refused.status {
            403 => "Not permitted",
            404 => "Not found",
            _ => "This cannot be done",
        };
        self.frame(title, "", &[]).page(refused.status, |h| {
            h.leaf("p", &[("class", "note mistake"), ("role", "alert")], &refused.what);
        })
    }
}

impl Dashboard {
    /// The dashboard of `daemon`, whose changes are made by `api`.
    pub fn new(daemon: Arc<Daemon>, api: Arc<Api>) -> Self {
        Self { daemon, api, sessions: Sessions::default(), history: History::default() }
    }

    /// What a request asks for, and how many bytes its body may have.
    ///
    /// # Errors
    /// The answer to a client that gets nothing else.
    pub fn admit(&self, head: Head) -> Result<(Call, usize), Answer> {
        gate::admit(self, head)
    }

    /// Executes a request.
    pub fn execute(&self, call: Call, body: &[u8]) -> Answer {
        frame::keep_apart(self.executed(&call, body), &call.host)
    }

    fn executed(&self, call: &Call, body: &[u8]) -> Answer {
        let form = std::str::from_utf8(body).map_err(|_| "this is no text".to_owned()).and_then(Form::read);
        let form = match form {
            Ok(form) => form,
            Err(what) => return frame::plain(400, &format!("{what}\n")),
        };
        let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
        let Some(visitor) = &call.visitor else {
            return if call.posts { self.log_in(call, &form) } else { pages::login::page(200, None) };
        };
        let is_proved = is_equal(form.get("proof").as_bytes(), visitor.proof.as_bytes());
        match (call.posts, path.as_slice()) {
            // Somebody else may log in where one has forgotten to log out.
            (true, ["login"]) => self.log_in(call, &form),
            (true, _) if !is_proved => frame::plain(403, "no page of this session has sent this\n"),
            (true, ["logout"]) => {
                self.sessions.end(&visitor.id, Instant::now());
                let mut answer = frame::see_other(LOGIN);
                answer
                    .fields
                    .push(("set-cookie", format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")));
                answer
            }
            (false, ["login"]) => frame::see_other("/"),
            (false, _) if format!("/{}", path.join("/")) == LIVE => self.live(&call.query),
            (posts, path) => self.page(visitor, call, posts, path, if posts { &form } else { &call.query }),
        }
    }

    fn log_in(&self, call: &Call, form: &Form) -> Answer {
        let text = form.get("token");
        let found = self.daemon.tokens.find(text).filter(|(_, role)| *role >= Role::Read);
        let Some((token, role)) = found else {
            let from = call.whence.as_str();
            tracing::warn!(target: iscsi_server::audit::TARGET, what = "page-refused", from, "dashboard: a login was refused");
            let what =
                "This is no token that may look. `stag token add NAME --role read` makes one on the server.";
            return pages::login::page(401, Some(what));
        };
        let id = match self.sessions.begin(hash(text), Instant::now()) {
            Ok(id) => id,
            Err(what) => return frame::plain(500, &format!("{what}\n")),
        };
        if let Some(before) = &call.visitor {
            self.sessions.end(&before.id, Instant::now());
        }
        let (from, role) = (call.whence.as_str(), role.name());
        tracing::info!(target: iscsi_server::audit::TARGET, what = "page-login", from, token, role, "dashboard: logged in");
        let mut answer = frame::see_other("/");
        let secure = if call.is_tls { "; Secure" } else { "" };
        let cookie = format!(
            "{COOKIE}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
            LONGEST.as_secs()
        );
        answer.fields.push(("set-cookie", cookie));
        answer
    }

    /// Samples for charts.
    fn live(&self, query: &Form) -> Answer {
        if !self.history.is_fresh(now_ms()) {
            self.look();
        }
        let samples = self.history.json(query.get("since").parse().unwrap_or(0));
        frame::answer(200, "application/json", format!("{samples}\n"))
    }

    /// The status now, of which a sample is kept, and the rates before that.
    fn look(&self) -> (Status, Option<Rates>) {
        let status = status::status(&self.daemon, PATIENCE);
        let sample = Sample::of(&status, now_ms());
        let rates = self.history.rates(&sample);
        self.history.keep(sample);
        (status, rates)
    }

    fn page(&self, visitor: &Visitor, call: &Call, posts: bool, path: &[&str], form: &Form) -> Answer {
        let (status, rates) = self.look();
        let running = self.daemon.running();
        let ask = |method: &str, path: &[&str], asked: Asked, body: &Value| {
            self.api.ask(&visitor.caller, method, path, asked, body)
        };
        let (file, query, host) = (&running.parts.file, &call.query, &call.host);
        let look = Look { visitor, status: &status, rates, query, host, file, ask: &ask };
        match (posts, path) {
            (false, ["change", name]) => changes::begin(&look, name, form),
            (true, ["change", name]) => {
                // What a change has made is not in the status from before.
                let again = || self.look().0;
                changes::go_on(&look, name, form, &again)
            }
            (false, path) => pages::answer(&look, path),
            (true, _) => {
                look.refused(&Refused { status: 404, what: "There is nothing to send here.".to_owned() })
            }
        }
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
