//! The HTTP API below `/api/v1`: who may ask for what, and what is executed for it. Every request
//! ends in a function of a control verb; nothing here changes a daemon by itself.
//!
//! [`routes`] is the table of all that can be asked for, [`request`] reads a request and admits it,
//! [`answer`] executes it, and [`openapi`] describes the table to programs.

mod answer;
mod openapi;
pub mod percent;
mod problem;
mod request;
mod routes;
mod seen;

use std::sync::Arc;

use admin_http::{Admitted, Answer, Head};
use serde_json::Value;

use crate::config::Http;
use crate::control::daemon::Daemon;
use crate::tokens::Role;

pub use problem::problem;
pub use request::Call;
pub use routes::Asked;
pub use seen::Looked;

/// Who asks, as a token has shown.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The token's name.
    pub token: String,
    pub role: Role,
    /// The client's address, for the audit log.
    pub whence: String,
}

/// A request that was refused, or has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status of HTTP that a client of the API gets.
    pub status: u16,
    pub what: String,
}

/// The API of a daemon.
pub struct Api {
    daemon: Arc<Daemon>,
    /// Whether it is on, and the names by which it is reached.
    http: Http,
}

impl Api {
    /// The API of `daemon`, as configured by `http`.
    pub fn new(daemon: Arc<Daemon>, mut http: Http) -> Self {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        http.hosts.extend(["localhost".to_owned(), own.trim().to_owned()]);
        Self { daemon, http }
    }

    /// Whether the request may read the metrics.
    ///
    /// # Errors
    /// The answer to a client that may not.
    pub fn may_scrape(&self, head: &Head) -> Result<(), Answer> {
        if !self.http.metrics_token {
            return Ok(());
        }
        request::authorized(&self.daemon, head, crate::tokens::Role::Metrics).map(drop)
    }

    /// What a request asks for, and how many bytes its body may have.
    ///
    /// # Errors
    /// The answer to a client that gets nothing else.
    pub fn admit(&self, head: Head) -> Result<Admitted<Call>, Answer> {
        let (call, most) = request::admit(&self.daemon, &self.http, &head)?;
        if !call.route.is_stream() {
            return Ok(Admitted::Call(call, most));
        }
        let (daemon, least) = (self.daemon.clone(), call.route.role);
        Ok(Admitted::Events(Box::new(move || request::authorized(&daemon, &head, least).is_ok())))
    }

    /// Whether a request names this daemon as its Host.
    ///
    /// # Errors
    /// The answer to a client that takes it for another host.
    pub fn for_this_host(&self, head: &Head) -> Result<(), Answer> {
        request::for_this_host(&self.http, head)
    }

    /// Executes a request that a page makes for `caller`, as a client of the API would. The parts
    /// of `path` are not encoded.
    ///
    /// # Errors
    /// What a client of the API would be told.
    pub fn ask(
        &self,
        caller: &Caller,
        method: &str,
        path: &[&str],
        asked: Asked,
        body: &Value,
    ) -> Result<Looked, Refused> {
        let refused = |status| move |what| Refused { status, what };
        let parts: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        let find = |route: &'static routes::Route| {
            (route.method == method).then(|| Some((route, route.names(&parts)?))).flatten()
        };
        let none = || Refused { status: 404, what: "there is nothing here".to_owned() };
        let (route, names) = routes::ROUTES.iter().find_map(find).ok_or_else(none)?;
        let who = format!("token {}", caller.token);
        request::may(route, &who, caller.role).map_err(refused(403))?;
        request::is_in_force(route, asked, self.daemon.running().parts.generation).map_err(refused(412))?;
        let path: Vec<String> = path.iter().map(|part| percent::encoded(part)).collect();
        let call = Call {
            route,
            names,
            asked,
            who,
            whence: caller.whence.clone(),
            what: format!("{method} {}/{}", routes::BASE, path.join("/")),
        };
        answer::carried_out(&self.daemon, &call, body)
            .map_err(|fault| Refused { status: answer::status(&fault), what: fault.words().to_owned() })
    }

    /// Executes a request.
    pub fn execute(&self, call: Call, body: &[u8]) -> Answer {
        answer::execute(&self.daemon, call, body)
    }
}
