//! The daemon's sandbox: limits what a running `stag serve` can do to the machine.
//!
//! Three walls, each of which the kernel enforces for every thread:
//!
//! - [`directories`]: Landlock. Files are reached only in the directories of units, of the
//!   configuration and of the daemon's state. Raised before units are opened.
//! - [`calls`]: seccomp. No program is run, no other process is touched, nothing is mounted, no
//!   memory becomes writable and executable. Raised once the daemon serves.
//! - each io_uring takes only the operations that Stag submits: `op::restrictions` of the crate
//!   `runtime`.
//!
//! A wall that the kernel does not have is logged and left out: the daemon still serves.

mod calls;
mod directories;

use std::path::{Path, PathBuf};

pub use directories::Directories;

use crate::config::Config;

/// The sandbox of a running daemon.
#[derive(Debug, Default)]
pub struct Sandbox {
    /// The directories that Landlock permits; `None` if it is not enforced.
    directories: Option<Directories>,
    /// Whether system calls are filtered.
    filters_calls: bool,
}

impl Sandbox {
    /// Confines this thread, and all threads that it starts from now on, to certain directories:
    /// those of `config`, and those that the process itself writes to (`write`) and reads (`read`).
    pub fn enter(config: &Config, write: &[PathBuf], read: &[PathBuf]) -> Self {
        if !config.daemon.sandbox {
            tracing::info!("no sandbox, as configured");
            return Self::default();
        }
        let wanted = Directories::of(config, write, read);
        let enforced = wanted.enforce();
        match &enforced {
            Ok(()) => tracing::debug!(directories = ?wanted.writable(), "confined by Landlock"),
            Err(error) => tracing::warn!(%error, "Landlock does not confine the daemon to its directories"),
        }
        Self { directories: enforced.is_ok().then_some(wanted), filters_calls: false }
    }

    /// Denies all threads the system calls that serving does not need.
    pub fn close(&mut self, config: &Config) {
        if !config.daemon.sandbox {
            return;
        }
        match calls::filter() {
            Ok(()) => self.filters_calls = true,
            Err(error) => tracing::warn!(%error, "seccomp does not filter the daemon's system calls"),
        }
    }

    /// The first path of `config` that the sandbox denies until the next start. Those of `now`,
    /// which is in force, are in use already.
    pub fn out_of_reach<'a>(&self, config: &'a Config, now: &Config) -> Option<&'a Path> {
        self.directories.as_ref()?.first_outside(config, now)
    }

    /// The enforced mechanisms, for `stag status`.
    pub fn walls(&self) -> Vec<&'static str> {
        let landlock = self.directories.is_some().then_some("landlock");
        let seccomp = self.filters_calls.then_some("seccomp");
        landlock.into_iter().chain(seccomp).collect()
    }
}
