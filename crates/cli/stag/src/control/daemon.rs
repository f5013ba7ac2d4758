//! What a running daemon knows of itself, and which verb of the control socket is answered where.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::protocol::{Fault, Kind, Request};
use super::upgrade::Program;
use super::{acknowledge, alua, apply, drain, status, upgrade};
use crate::config::{Config, Text};
use crate::health;
use crate::health::monitor::Monitor;
use crate::sandbox::Sandbox;
use crate::units::Units;

/// Receives what a long verb has to say while it is at work.
pub type Progress<'a> = &'a mut dyn FnMut(Value);

/// A running daemon as its verbs see it.
pub struct Daemon {
    /// When it started.
    pub started: Instant,
    /// The server.
    pub server: iscsi_server::Handle,
    /// What this process runs.
    pub program: Program,
    /// What this process has taken from itself.
    pub sandbox: Sandbox,
    /// Looks after the health of units.
    pub monitor: Monitor,
    /// What is served, and by which units.
    running: Mutex<Arc<Running>>,
    /// Held while that changes.
    changing: Mutex<()>,
    /// Another daemon has taken over.
    replaced: AtomicBool,
}

/// What is served.
pub struct Running {
    /// As it is configured.
    pub config: Config,
    /// Its units.
    pub units: Units,
}

impl Daemon {
    /// A daemon that has just started to serve what `config` says.
    pub fn new(server: iscsi_server::Handle, sandbox: Sandbox, running: Running) -> Arc<Self> {
        let (monitor, listener) = Monitor::new();
        let daemon = Arc::new(Self {
            monitor,
            started: Instant::now(),
            server,
            program: Program::running(),
            sandbox,
            running: Mutex::new(Arc::new(running)),
            changing: Mutex::default(),
            replaced: AtomicBool::new(false),
        });
        if let Err(error) = listener.start(&daemon) {
            tracing::error!(%error, "nobody looks after full file systems");
        }
        daemon
    }

    /// What is served now.
    pub fn running(&self) -> Arc<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what is served from now on. Whoever calls this holds [`Self::changing`].
    pub fn set_running(&self, running: Running) {
        health::name_units(&running.units);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(running);
    }

    /// Another daemon has taken over: this one ends.
    pub fn set_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Whether another daemon has taken over.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Keeps others from changing what is served.
    pub fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what `request` asks, on the thread of the client that asks.
    ///
    /// # Errors
    /// What to tell the client.
    pub fn answer(&self, request: &Request, body: Text, progress: Progress<'_>) -> Result<Value, Fault> {
        match request.verb.as_str() {
            "status" => request.arguments::<NoArguments>().and_then(|_| status::answer(self)),
            acknowledge::VERB => acknowledge::answer(self, request),
            "alua" => request.arguments().and_then(|wanted| alua::answer(self, wanted)),
            "drain" => drain::drain(self, request, progress),
            "undrain" => drain::undrain(self, request),
            "drains" => request.arguments::<NoArguments>().and_then(|_| drain::drains(self)),
            upgrade::VERB => request.arguments::<NoArguments>().and_then(|_| json(&self.program.describe())),
            apply::VERB => apply::answer(self, request, body, progress),
            other => Err(Fault::new(Kind::Request, format!("this daemon does not know `{other}`"))),
        }
    }
}

/// For verbs that want to know nothing besides.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

/// The answer of a verb as JSON.
///
/// # Errors
/// Never, for what verbs answer.
pub fn json(answer: &impl serde::Serialize) -> Result<Value, Fault> {
    serde_json::to_value(answer).map_err(|error| Fault::new(Kind::Failed, error.to_string()))
}
