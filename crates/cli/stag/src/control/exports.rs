//! NFS in `status`: its addresses, exports and clients.

use std::fmt::Write;
use std::time::Duration;

use backing::size::Size;
use serde::{Deserialize, Serialize};

use super::daemon::Daemon;
use super::health::{self, ServedHealth};
use crate::managed::Document;

/// NFS as it is now.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NfsStatus {
    /// Addresses and ports that it listens at.
    pub listen: Vec<String>,
    pub exports: Vec<ExportStatus>,
    pub clients: Vec<ClientStatus>,
    /// Operations since the daemon's start, of those that there were.
    #[serde(default)]
    pub operations: Vec<OperationStatus>,
}

/// Counts of a procedure of NFS version 3, or of an operation of version 4.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperationStatus {
    pub version: u32,
    /// Its name in RFC 1813 or RFC 8881, in small letters.
    pub name: String,
    /// How often it was done.
    pub done: u64,
    /// Times that the client asked for something that is not there, or that it may not do.
    pub refused: u64,
    /// Times that the client was told to ask again later.
    pub delayed: u64,
    /// Times that the medium or the server failed, or that there was no space.
    pub failed: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportStatus {
    /// The path by which clients mount it.
    pub name: String,
    pub path: String,
    /// Whether it is in the managed document. Otherwise it is in the administrator's configuration.
    #[serde(default)]
    pub managed: bool,
    /// Calls, since it was first exported.
    pub calls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that failed because of the medium, or because it is full.
    pub errors: u64,
    /// READs, WRITEs and COPYs that waited for a limit of service.
    #[serde(default)]
    pub limit_waits: u64,
    /// How long they waited, seconds.
    #[serde(default)]
    pub limit_wait_s: f64,
    #[serde(default)]
    pub health: ServedHealth,
}

#[cfg(any(feature = "http", feature = "top"))]
impl ExportStatus {
    /// Its counts in a unit's form. Calls count as other commands.
    pub fn io(&self) -> iscsi_server::Counts {
        iscsi_server::Counts {
            others: self.calls,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            failed: self.errors,
            ..Default::default()
        }
    }
}

/// A connection of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientStatus {
    pub peer: String,
    /// Its core.
    pub core: usize,
    /// Seconds since it connected.
    pub age_s: f64,
    /// Calls that it has made.
    pub calls: u64,
}

impl NfsStatus {
    /// The current state of NFS, and whether every core answered within `patience`. Omits the counts
    /// of those that did not.
    pub fn now(daemon: &Daemon, patience: Duration) -> (Self, bool) {
        let running = daemon.running();
        let managed = running.parts.managed.as_ref().map(Document::exports).unwrap_or_default();
        let configured = |name: &str| running.config.exports.iter().find(|export| export.name == name);
        let export = |one: nfs_server::ExportStatus| ExportStatus {
            path: configured(&one.name).map_or_else(String::new, |export| export.shown.to_string()),
            health: health::of(configured(&one.name).and_then(|export| running.trees.health(export))),
            managed: managed.contains(&one.name),
            name: one.name,
            calls: one.counts.calls,
            read_bytes: one.counts.read_bytes,
            written_bytes: one.counts.written_bytes,
            errors: one.counts.errors,
            limit_waits: one.counts.limit_waits,
            limit_wait_s: one.counts.limit_wait_ns as f64 / 1e9,
        };
        let client = |one: nfs_server::ClientStatus| ClientStatus {
            peer: one.peer.to_string(),
            core: one.core,
            age_s: one.age.as_secs_f64(),
            calls: one.calls,
        };
        let operation = |one: nfs_server::OperationCounts| {
            let [done, refused, delayed, failed] = one.outcomes;
            OperationStatus { version: one.version, name: one.name, done, refused, delayed, failed }
        };
        let nfs_server::Activity { exports, operations, complete } = daemon.files.activity(patience);
        let now = Self {
            listen: daemon.files.portals().iter().map(ToString::to_string).collect(),
            exports: exports.into_iter().map(export).collect(),
            clients: daemon.files.clients(patience).into_iter().map(client).collect(),
            operations: operations.into_iter().map(operation).collect(),
        };
        (now, complete)
    }

    /// As `stag status` prints it.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for export in &self.exports {
            let (read, written) = (Size(export.read_bytes), Size(export.written_bytes));
            // A string takes everything.
            let _ = writeln!(
                out,
                "\nexport {}{}: {}, {}{} calls, {read} read, {written} written",
                export.name,
                if export.managed { " (managed)" } else { "" },
                export.path,
                if export.health.state == "ok" {
                    String::new()
                } else {
                    export.health.state.to_uppercase() + ", "
                },
                export.calls
            );
            if export.errors > 0 {
                let _ = writeln!(out, "  {} calls failed because of the medium", export.errors);
            }
        }
        if !self.clients.is_empty() {
            let _ = writeln!(out, "\nNFS clients");
        }
        for client in &self.clients {
            let _ = writeln!(out, "  {} on core {}, {} calls", client.peer, client.core, client.calls);
        }
        out
    }
}
