//! The HTTP API below `/api/v1`: who may ask for what, and what is executed for it. Every request
//! ends in a function of a control verb; nothing here changes a daemon by itself.
//!
//! [`routes`] is the table of all that can be asked for, [`request`] reads a request and admits it,
//! [`answer`] executes it, and [`openapi`] describes the table to programs.

mod answer;
mod openapi;
mod problem;
mod request;
mod routes;
mod seen;

use std::sync::Arc;

use admin_http::{Answer, Head};

use crate::config::Http;
use crate::control::daemon::Daemon;

pub use problem::problem;
pub use request::Call;

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
    pub fn admit(&self, head: Head) -> Result<(Call, usize), Answer> {
        request::admit(&self.daemon, &self.http, head)
    }

    /// Executes a request.
    pub fn execute(&self, call: Call, body: &[u8]) -> Answer {
        answer::execute(&self.daemon, call, body)
    }
}
