//! The state of a running daemon.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use gateway::Gateway;

use super::upgrade::Program;
use crate::audit::Audit;
use crate::config::Config;
use crate::door::Door;
use crate::earlier;
use crate::exports::Trees;
use crate::health;
use crate::health::monitor::Monitor;
use crate::managed::Document;
use crate::sandbox::Sandbox;
use crate::tokens::Tokens;
use crate::units::Units;

/// A running daemon as its verbs see it.
pub struct Daemon {
    pub started: Instant,
    /// The server of all protocols.
    pub core: server_core::Handle,
    pub server: iscsi_server::Handle,
    pub files: nfs_server::Handle,
    /// The program of this process.
    pub program: Program,
    /// The sandbox of this process.
    pub sandbox: Sandbox,
    /// Checks the health of units and exports.
    pub monitor: Monitor,
    /// Tokens of the HTTP API.
    pub tokens: Tokens,
    /// The log of changes.
    pub audit: Audit,
    /// The managed documents that were replaced.
    pub earlier: earlier::Listed,
    /// This daemon's part in a group of gateways.
    gateways: OnceLock<Gateway>,
    /// The socket of HTTP, and the configured address.
    pub http: OnceLock<(SocketAddr, OwnedFd)>,
    /// Where clients of the control socket that speak HTTP go.
    pub door: OnceLock<Door>,
    /// The configuration in force, and its open units.
    running: Mutex<Arc<Running>>,
    /// Held while `running` changes.
    changing: Mutex<()>,
    /// Another daemon has taken over.
    replaced: AtomicBool,
}

pub struct Running {
    /// The administrator's configuration, joined with the managed document.
    pub config: Config,
    pub units: Units,
    /// The trees that it exports.
    pub trees: Trees,
    pub parts: Parts,
}

/// The two parts of a configuration, and the number of the change that has made it.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The name of the administrator's file, for messages.
    pub file: String,
    /// The managed document; `None` if the daemon keeps none.
    pub managed: Option<Document>,
    /// Grows with every change, and from one start to the next.
    pub generation: u64,
}

impl Parts {
    /// Those of a daemon that starts.
    pub fn first(file: String, managed: Option<Document>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(0);
        Self { file, managed, generation: first_generation(now, earlier::latest()) }
    }
}

/// The generation of a daemon that starts at `now`, milliseconds since 1970: no daemon has changed
/// more often than that. After the clock was set back it follows that of the last change, before
/// which the document of `kept` was in force.
fn first_generation(now: u64, kept: Option<u64>) -> u64 {
    kept.map_or(now, |kept| now.max(kept.saturating_add(2)))
}

impl Running {
    /// All served media.
    pub fn members(&self) -> Vec<health::Member<'_>> {
        health::members(&self.config, &self.units, &self.trees)
    }
}

impl Daemon {
    /// A daemon that has just started to serve `config`.
    pub fn new(
        core: server_core::Handle,
        server: iscsi_server::Handle,
        files: nfs_server::Handle,
        sandbox: Sandbox,
        running: Running,
    ) -> Arc<Self> {
        let (monitor, listener) = Monitor::new();
        let daemon = Arc::new(Self {
            monitor,
            tokens: Tokens::load(),
            audit: Audit::new(),
            earlier: earlier::Listed::default(),
            gateways: OnceLock::new(),
            http: OnceLock::new(),
            door: OnceLock::new(),
            started: Instant::now(),
            core,
            server,
            files,
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

    /// The configuration in force, and its open units.
    pub fn running(&self) -> Arc<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces [`Self::running`]. The caller holds [`Self::changing`].
    pub fn set_running(&self, running: Running) {
        health::name_all(&running.members());
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

    /// The daemon has joined a group.
    pub fn set_gateways(&self, gateways: Gateway) {
        let _ = self.gateways.set(gateways);
    }

    /// This daemon's part in a group of gateways.
    pub fn gateways(&self) -> Option<&Gateway> {
        self.gateways.get()
    }

    /// Locks the configuration against other changes.
    pub fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_grow_over_a_start_whose_clock_was_set_back() {
        assert_eq!((first_generation(1000, None), first_generation(1000, Some(900))), (1000, 1000));
        // The change after 5000 made 5001, which was in force last.
        assert_eq!(first_generation(1000, Some(5000)), 5002);
    }
}
