//! A wide-area link on one machine: two network namespaces, side A for servers and side B for
//! clients. A line with configured delay, rate, queue, loss and reordering in each direction joins
//! them. Needs no root: the namespaces belong to a user namespace of our own.
//!
//! A separate process is the link (`holder`). It makes the namespaces (`namespace`) and a TUN
//! device in each. It carries every packet (`line`) by the model (`shape`), which sees single
//! packets even where the kernel passes super-packets (`packet`). Where the kernel has netem and
//! netem supports the configuration, netem carries the packets instead (`netem`). When the creator
//! of the link drops it, ends or is killed, that process ends everything on the link and then
//! itself; nothing is left.
//!
//! That process, and the step that enters a namespace, are this same program, started anew with a
//! hidden first argument. So every program that uses links must call [`helper`] first in `main`.

mod arena;
mod child;
mod counters;
mod holder;
mod keeping;
mod lag;
mod line;
mod namespace;
mod netem;
mod netlink;
mod options;
mod packet;
mod probe;
mod pulse;
mod rates;
mod shape;
mod spec;

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use counters::{Counters, DirectionCounters};
pub use holder::Setup;
use holder::{Answer, Request};
use namespace::Door;
pub use options::{LineOptions, LinkOptions, RateStep};
pub use probe::{Measured, MeasuredDirection, Spread};
pub use spec::{
    Backend, Direction, ETHERNET_OVERHEAD, LinkSpec, MOST_IN_FLIGHT, PRESETS, Queue, RateChange, RatePlan,
    Side, SpecError,
};

pub(crate) use child::command as child;

/// The hidden first argument.
const HELPER: &str = "--lab-link-helper";

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The values are not a valid link.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The system refuses it or lacks a requirement; the text names a remedy.
    #[error("no link can be made here: {0}")]
    Unavailable(String),
    /// The process of the link has ended, or its answer is invalid.
    #[error("the link has broken: {0}")]
    Broken(String),
    /// The operation on the link failed.
    #[error("{0}")]
    Failed(String),
}

/// Runs the work of a link process if this program was started as one; else returns `None`. Must be
/// called first in `main`, while there is one thread.
#[must_use]
pub fn helper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != HELPER {
        return None;
    }
    let role = arguments.next()?;
    if role == "hold" {
        return Some(holder::hold());
    }
    let (error, what) = match role == "child" {
        true => (child::exec(arguments), "cannot run it"),
        false => (Door::exec(arguments), "cannot run it on the link"),
    };
    crate::progress::line(format_args!("{what}: {error}"));
    // The exit codes of shells for a command not found and one that cannot be run.
    Some(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }))
}

/// A link that is up. Dropping it ends it, with every process on it.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    setup: Setup,
    doors: [Door; 2],
    program: PathBuf,
    wire: Mutex<Wire>,
}

/// The process of the link, and the pipes to it.
#[derive(Debug)]
struct Wire {
    child: Child,
    /// `None` once the link was told to end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Link {
    /// Brings a link up by this program itself, whose `main` calls [`helper`].
    ///
    /// # Errors
    /// If the values are not a valid link, or the system refuses it; the text names a remedy.
    pub fn up(spec: &LinkSpec) -> Result<Self, LinkError> {
        let program = std::env::current_exe()
            .map_err(|error| LinkError::Unavailable(format!("where is this program? {error}")))?;
        Self::up_by(&program, spec)
    }

    /// Brings a link up by another program whose `main` calls [`helper`].
    ///
    /// # Errors
    /// As `up`.
    pub fn up_by(program: &Path, spec: &LinkSpec) -> Result<Self, LinkError> {
        spec.check()?;
        let mut child = Command::new(program)
            .args([HELPER, "hold"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is handled by the creator of the link.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                LinkError::Unavailable(format!("cannot start {}: {error}", program.display()))
            })?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let Some(answers) = answers else { return Err(LinkError::Broken("it cannot be heard".to_owned())) };
        let mut wire = Wire { child, requests, answers: BufReader::new(answers) };
        match wire.ask(spec) {
            Ok(Answer::Up { setup, doors }) => {
                let program = program.to_owned();
                Ok(Self { spec: spec.clone(), setup: *setup, doors, program, wire: Mutex::new(wire) })
            }
            Ok(Answer::Failed(why)) => Err(LinkError::Unavailable(why)),
            Ok(other) => Err(LinkError::Broken(format!("it answered {other:?}"))),
            Err(error) => Err(error),
        }
    }

    #[must_use]
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Set-up of the link: backend, buffers, addresses. For the record.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// A side's IPv4 address.
    #[must_use]
    pub fn address(&self, side: Side) -> Ipv4Addr {
        self.setup.addresses[index(side)]
    }

    /// A side's IPv4 addresses, one for each line.
    #[must_use]
    pub fn addresses(&self, side: Side) -> Vec<Ipv4Addr> {
        let others = self.setup.other_addresses.iter().map(|addresses| addresses[index(side)]);
        std::iter::once(self.address(side)).chain(others).collect()
    }

    /// A side's IPv6 address, if there is IPv6.
    #[must_use]
    pub fn address6(&self, side: Side) -> Option<Ipv6Addr> {
        self.setup.addresses6.map(|addresses| addresses[index(side)])
    }

    /// A command that runs a program on one side, in its network namespace. The program is root
    /// there if the namespaces belong to a user namespace of our own. The started process becomes
    /// the program, so its id and its exit status are the program's; status 126 or 127 if it cannot
    /// be run. Sets `STAG_LAB_SIDE`, `STAG_LAB_ADDRESS` (this side's), `STAG_LAB_PEER` (the
    /// other's) and `STAG_LAB_PEERS` (the other's on all lines, with commas).
    #[must_use]
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.program);
        command.args([HELPER, "enter"]).args(self.doors[index(side)].arguments()).arg(program);
        command.env("STAG_LAB_SIDE", side.name());
        command.env("STAG_LAB_ADDRESS", self.address(side).to_string());
        command.env("STAG_LAB_PEER", self.address(side.other()).to_string());
        let peers = self.addresses(side.other());
        command.env("STAG_LAB_PEERS", peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        if let (Some(here), Some(there)) = (self.address6(side), self.address6(side.other())) {
            command.env("STAG_LAB_ADDRESS6", here.to_string());
            command.env("STAG_LAB_PEER6", there.to_string());
        }
        command
    }

    /// The counters since the link came up, was measured, or was reset.
    pub fn counters(&self) -> Result<Counters, LinkError> {
        match self.ask(&Request::Counters)? {
            Answer::Counters(counters) => Ok(*counters),
            other => Err(unexpected(other)),
        }
    }

    /// Counts from now on. Plans of rates begin now.
    ///
    /// # Errors
    /// If the link has broken.
    pub fn reset_counters(&self) -> Result<(), LinkError> {
        match self.ask(&Request::Reset)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Measures the path: round trip, one way, loss, rate. Takes half a second and a few round
    /// trips, during which nothing else should use the link. Then resets the counters.
    pub fn measure(&self) -> Result<Measured, LinkError> {
        match self.ask(&Request::Measure)? {
            Answer::Measured(measured) => Ok(*measured),
            other => Err(unexpected(other)),
        }
    }

    fn ask(&self, request: &Request) -> Result<Answer, LinkError> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner).ask(request)
    }
}

fn index(side: Side) -> usize {
    match side {
        Side::A => 0,
        Side::B => 1,
    }
}

fn unexpected(answer: Answer) -> LinkError {
    match answer {
        Answer::Failed(why) => LinkError::Failed(why),
        other => LinkError::Broken(format!("it answered {other:?}")),
    }
}

impl Wire {
    fn ask<T: serde::Serialize>(&mut self, what: &T) -> Result<Answer, LinkError> {
        let broken = |error: io::Error| LinkError::Broken(error.to_string());
        let Some(requests) = &mut self.requests else {
            return Err(LinkError::Broken("it has ended".to_owned()));
        };
        holder::say(requests, what).map_err(broken)?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(broken)? == 0 {
            return Err(LinkError::Broken("its process has ended".to_owned()));
        }
        serde_json::from_str(&line).map_err(|error| LinkError::Broken(error.to_string()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The end of its input ends it. It has two seconds to end the processes on the link.
        self.requests = None;
        for _ in 0..400 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let broken = {
            let mut wire = self.wire.lock().unwrap_or_else(PoisonError::into_inner);
            matches!(wire.child.try_wait(), Ok(Some(_)))
        };
        // If the link's process was killed, the processes on the link still run.
        if broken {
            namespace::sweep(&self.doors);
        }
    }
}
