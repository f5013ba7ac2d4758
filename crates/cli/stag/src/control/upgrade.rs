//! `stag upgrade`: this program replaces the running daemon, which may be an older version.
//!
//! The daemon reports the arguments it was started with ([`Program`]). The command starts itself
//! with the same arguments and `--takeover`, in a process group of its own. It waits until the new
//! daemon answers at the control socket. [`super::handover`] moves sessions and units.
//!
//! Run by a service manager's reload command, the new daemon stays within the service and its
//! sandbox. The old one names it as the service's main process before it ends. Any other process
//! would start it outside of both, so a service is only upgraded from within.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::client::{CallError, Client};
use super::protocol::{Fault, Kind};
use crate::args;
use crate::exit::Exit;

/// The verb that asks for a daemon's [`Described`].
pub const VERB: &str = "program";
/// Time for the new daemon to serve: the old one has a minute to hand over, and opening media takes
/// time too.
const PATIENCE: Duration = Duration::from_secs(150);

/// The program of this process, as it was when it started.
#[derive(Debug)]
pub struct Program {
    path: Option<PathBuf>,
    file: Option<(u64, u64)>,
    /// The control group in which a service manager has started it.
    service: Option<String>,
}

/// A running daemon's program, as it describes it.
#[derive(Debug, Serialize, Deserialize)]
struct Described {
    pid: u32,
    /// Whether another file is where the program was.
    replaced: bool,
    /// Its arguments, without the program's name.
    arguments: Vec<String>,
    /// The directory that relative paths start from.
    directory: PathBuf,
    /// Timeout of its service manager's watchdog (WATCHDOG_USEC), µs.
    watchdog_us: Option<String>,
    /// The control group in which a service manager has started it.
    #[serde(default)]
    service: Option<String>,
}

fn file(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

impl Program {
    /// The program of this process.
    pub fn running() -> Self {
        let path = std::env::current_exe().ok();
        // The running file itself, even if another file has its name by now.
        let file = std::fs::metadata("/proc/self/exe").ok().map(|about| file(&about));
        let service = std::env::var_os("NOTIFY_SOCKET").and_then(|_| control_group());
        Self { path, file, service }
    }

    fn is_replaced(&self) -> bool {
        let Some(path) = &self.path else { return false };
        let now = std::fs::metadata(path).ok().map(|about| file(&about));
        now.is_some() && now != self.file
    }

    pub fn describe(&self) -> impl Serialize {
        Described {
            pid: std::process::id(),
            replaced: self.is_replaced(),
            arguments: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
            directory: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            watchdog_us: std::env::var("WATCHDOG_USEC").ok(),
            service: self.service.clone(),
        }
    }
}

/// The control group of this process: that of version 2, or of systemd's own hierarchy.
fn control_group() -> Option<String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let of =
        |hierarchy: &str| groups.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(hierarchy));
    of("name=systemd:").or_else(|| of(":")).map(str::to_owned)
}

/// Whether a process of the control group `own` belongs to `service`: its reload command, or a
/// process started by one of its processes.
fn is_within(own: &str, service: &str) -> bool {
    own.strip_prefix(service).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || service == "/")
}

pub fn command(args: &args::Upgrade) -> Exit {
    match upgrade(args) {
        Ok(exit) => exit,
        Err(error) => error.show(),
    }
}

fn upgrade(args: &args::Upgrade) -> Result<Exit, CallError> {
    let at = args.at.control.as_deref();
    let old: Described = Client::connect(at)?.ask(VERB)?;
    if args.if_replaced && !old.replaced {
        return Ok(Exit::Done);
    }
    if let Some(service) =
        old.service.as_deref().filter(|service| !control_group().is_some_and(|own| is_within(&own, service)))
    {
        let unit = service.rsplit('/').find(|part| part.ends_with(".service")).unwrap_or("UNIT");
        say!(
            "stag: the daemon is a service ({service}); a daemon started here would leave it and its sandbox. \
             Run: systemctl reload {unit} (it upgrades after the program was replaced)"
        );
        return Ok(Exit::Failed);
    }
    let new = start(args, &old);
    let mut new =
        new.map_err(|error| Fault::new(Kind::Failed, format!("a new daemon cannot be started: {error}")))?;
    let started = Instant::now();
    loop {
        if let Some(status) = new.try_wait()? {
            say!("stag: the new daemon could not serve ({status}); the one that was there goes on");
            return Ok(Exit::Failed);
        }
        if answers(at, new.id()) {
            say!("stag: process {} has taken the place of process {}", new.id(), old.pid);
            return Ok(Exit::Done);
        }
        if started.elapsed() > PATIENCE {
            say!("stag: process {} does not serve after {} s: see its log", new.id(), PATIENCE.as_secs());
            return Ok(Exit::Failed);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts this program as the old daemon was started, to take its place.
fn start(args: &args::Upgrade, old: &Described) -> std::io::Result<Child> {
    let own = ["--takeover", "--lose-memory-units"];
    let mut command = Command::new(std::env::current_exe()?);
    command.args(old.arguments.iter().filter(|word| !own.contains(&word.as_str())));
    command.arg("--takeover");
    if args.lose_memory_units {
        command.arg("--lose-memory-units");
    }
    if let Some(path) = &args.at.control {
        command.env("STAG_CONTROL", path);
    }
    if let Some(limit) = &old.watchdog_us {
        command.env("WATCHDOG_USEC", limit).env_remove("WATCHDOG_PID");
    }
    command.current_dir(&old.directory).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}

fn answers(at: Option<&Path>, pid: u32) -> bool {
    let asked = Client::connect(at).and_then(|mut client| client.ask::<Described>(VERB));
    asked.is_ok_and(|described| described.pid == pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_of_a_service_if_its_control_group_is_or_lies_below() {
        let service = "/system.slice/stag.service";
        for (own, within) in [
            ("/system.slice/stag.service", true),
            ("/system.slice/stag.service/.control", true),
            ("/system.slice/stag.service2", false),
            ("/user.slice/user-0.slice", false),
            ("/", false),
        ] {
            assert_eq!(is_within(own, service), within, "{own}");
        }
        assert!(is_within("/user.slice", "/"));
    }
}
