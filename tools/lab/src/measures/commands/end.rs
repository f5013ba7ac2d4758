//! Where a program of an experiment's file runs: at an end of the path on this machine, or on
//! another machine by `ssh`.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::super::scratch::{Scratch, Sockets};
use super::super::servers::need;
use crate::context::{Context, Role, Running};
use crate::experiment::program::{Host, Program};
use crate::measure::Error;

/// The longest that a command at the end of a point may take.
const LAST: Duration = Duration::from_secs(5);

/// Runs the words after it, and ends them, their children too, when its input ends: with the
/// connection, then, whatever cuts that.
const WATCHED: &str = "PATH=$PATH:/usr/sbin:/sbin; exec 3<&0 </dev/null; setsid \"$@\" & p=$!; \
    (cat <&3; kill -TERM -$p; sleep 3; kill -KILL -$p) >/dev/null 2>&1 & w=$!; \
    wait $p; s=$?; kill -KILL $w 2>/dev/null; exit $s";

/// An end of the path, with a folder for one program.
pub(super) struct End<'a> {
    name: &'static str,
    context: &'a Context,
    place: Place<'a>,
    /// Without commas and short enough for the names of sockets.
    folder: String,
    /// The environment of what runs there, beyond the lab's.
    pub env: Vec<(String, String)>,
}

/// The number of folders made, for names of their own.
static FOLDERS: AtomicU32 = AtomicU32::new(0);

enum Place<'a> {
    Here { role: Role, _folder: Sockets, unit: Option<Scratch> },
    There(&'a Host),
}

impl<'a> End<'a> {
    /// The place of a program, with an empty folder.
    ///
    /// # Errors
    /// [`Error::Missing`] if it lacks a program that is needed.
    pub fn at(
        name: &'static str,
        program: &'a Program,
        role: Role,
        context: &'a Context,
    ) -> Result<Self, Error> {
        let Some(host) = &program.host else {
            program.needs.iter().try_for_each(|(program, package)| need(program, package).map(drop))?;
            let sockets = Sockets::new(&format!("{name}-{}", FOLDERS.fetch_add(1, Ordering::Relaxed)))?;
            let folder = sockets.path().display().to_string();
            let place = Place::Here { role, _folder: sockets, unit: None };
            return Ok(Self { name, context, place, folder, env: Vec::new() });
        };
        need("ssh", "openssh-client")?;
        let (place, folder) = (Place::There(host), String::new());
        let mut end = Self { name, context, place, folder, env: Vec::new() };
        for (program, package) in &program.needs {
            let look = format!("command -v {} || true", quoted(program));
            if end.output(["sh", "-c", &look].map(str::to_owned).into(), "needs")?.trim().is_empty() {
                let host = host.ssh.list().last().map_or("", String::as_str);
                return Err(Error::Missing(format!("{program} ({package}) is not installed on {host}")));
            }
        }
        let made = ["mktemp", "-d", "/tmp/stag-lab-XXXXXX"].map(str::to_owned);
        let folder = end.output(made.into(), "folder")?.trim().to_owned();
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric());
        if !folder.strip_prefix("/tmp/stag-lab-").is_some_and(plain) {
            return Err(Error::Failed(format!("mktemp printed {folder:?}, which is no folder of the lab's")));
        }
        end.folder = folder;
        Ok(end)
    }

    /// The folder's path there.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    pub fn is_here(&self) -> bool {
        matches!(self.place, Place::Here { .. })
    }

    /// Makes the unit, a file of `size` bytes that are not zero, and returns its path.
    pub fn make_unit(&mut self, in_memory: bool, size: u64) -> Result<String, Error> {
        let path = format!("{}/unit", self.folder);
        match &mut self.place {
            Place::Here { unit, .. } => {
                let scratch = unit.insert(Scratch::file(self.context, in_memory, size)?);
                // By a name without commas.
                std::path::absolute(scratch.path())
                    .and_then(|file| std::os::unix::fs::symlink(file, &path))
                    .map_err(Error::io(path.clone()))?;
            }
            Place::There(_) => {
                let folder = if in_memory { "/dev/shm" } else { self.folder.as_str() };
                let make = format!(
                    "f=$(mktemp {folder}/stag-lab-XXXXXX) && ln -s $f {path} && head -c {size} /dev/zero | tr '\\0' '\\245' > $f"
                );
                self.output(["sh", "-c", &make].map(str::to_owned).into(), "unit")?;
            }
        }
        Ok(path)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = format!("{}/{name}", self.folder);
        match &self.place {
            Place::Here { .. } => fs::write(&path, text).map_err(Error::io(path)),
            Place::There(_) => {
                let write = ["sh", "-c", "printf %s \"$1\" > \"$2\"", "sh", text, &path];
                self.output(write.map(str::to_owned).into(), "write").map(drop)
            }
        }
    }

    /// Starts a command that runs until what is returned is dropped.
    pub fn start(&self, words: Vec<String>, name: &str) -> Result<Running, Error> {
        let name = format!("{}-{name}", self.name);
        match &self.place {
            Place::Here { .. } => self.context.start(self.command(&words), &name),
            Place::There(_) => self.context.start_with_input(self.command(&words), &name),
        }
    }

    /// Runs a command to its end and returns what it prints.
    pub fn output(&self, words: Vec<String>, name: &str) -> Result<String, Error> {
        self.context.finish(self.start(words, name)?)
    }

    /// Runs a command now that the point is over, successful or not.
    pub fn last(&self, words: Vec<String>) {
        let mut command = self.command(&words);
        // Over there, the end of the input is the end of the command.
        let input = if self.is_here() { Stdio::null() } else { Stdio::piped() };
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let Ok(mut child) = command.spawn() else { return };
        let until = Instant::now() + LAST;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                // Its children, too.
                let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                let _ = group.map(|group| kill_process_group(group, Signal::KILL));
                let _ = child.wait();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn command(&self, words: &[String]) -> Command {
        let program = words.first().map_or("", String::as_str);
        match &self.place {
            Place::Here { role, .. } => {
                // Also from the administrator's folders.
                let found = need(program, "").unwrap_or_else(|_| Path::new(program).to_owned());
                let mut command = self.context.command(*role, found);
                command.args(words.iter().skip(1)).envs(self.env.iter().cloned());
                command
            }
            Place::There(host) => {
                let mut all = ["sh", "-c", WATCHED, "sh", "env"].map(str::to_owned).to_vec();
                all.extend(self.env.iter().map(|(name, value)| format!("{name}={value}")));
                all.extend_from_slice(words);
                ssh(host, &all)
            }
        }
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if let Place::There(_) = self.place {
            if !self.folder.is_empty() {
                let remove = format!("rm -f \"$(readlink {0}/unit)\"; rm -rf {0}", self.folder);
                self.last(["sh", "-c", &remove].map(str::to_owned).into());
            }
        }
    }
}

/// A command on `host`.
fn ssh(host: &Host, words: &[String]) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-T", "-o", "BatchMode=yes"]).args(host.ssh.list());
    command.arg(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    command
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
