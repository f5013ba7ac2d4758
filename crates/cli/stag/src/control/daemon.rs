//! The state of a running daemon.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::upgrade::Program;
use crate::config::Config;
use crate::exports::Trees;
use crate::health;
use crate::health::monitor::Monitor;
use crate::sandbox::Sandbox;
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
    /// The socket of HTTP, and the configured address.
    pub http: OnceLock<(SocketAddr, OwnedFd)>,
    /// The configuration in force, and its open units.
    running: Mutex<Arc<Running>>,
    /// Held while `running` changes.
    changing: Mutex<()>,
    /// Another daemon has taken over.
    replaced: AtomicBool,
}

pub struct Running {
    pub config: Config,
    pub units: Units,
    /// The trees that it exports.
    pub trees: Trees,
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
            http: OnceLock::new(),
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

    /// Locks the configuration against other changes.
    pub fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
