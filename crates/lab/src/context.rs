//! What a measure is given for one point: where the binary is, the path between target and client, a folder, a deadline, a
//! seed, and helpers that start processes which end with the deadline or the lab. It knows nothing of what they measure.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::measure::Error;

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(3);
/// How long a process may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(3);
/// Of what a process printed, the most that is read, bytes.
const MOST_OUTPUT: u64 = 64 << 20;

/// Says that the user wants it to end. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for the end.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody did.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The two ends of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who serves.
    Target,
    /// Who loads.
    Client,
}

/// What lies between target and client.
pub trait Between {
    /// A command that will run at that end.
    fn command(&self, role: Role, program: &OsStr) -> Command;
    /// The address of that end.
    fn address(&self, role: Role) -> IpAddr;
}

/// The machine's own loopback.
#[derive(Clone, Copy, Debug)]
pub struct Loopback;

impl Between for Loopback {
    fn command(&self, _: Role, program: &OsStr) -> Command {
        Command::new(program)
    }

    fn address(&self, _: Role) -> IpAddr {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    }
}

/// Which processors the two ends run on; empty: any.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize, PartialEq, Eq)]
pub struct Pinning {
    /// The target's.
    pub target: Vec<usize>,
    /// The client's.
    pub client: Vec<usize>,
}

/// An emulated link, as far as a measure has to know it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LinkFacts {
    /// The preset's name.
    pub name: String,
    /// What it passes from target to client, bits per second on the wire; none without a limit.
    pub rate_bits: Option<f64>,
    /// The round trip that was measured, or else the one that was asked for, ms.
    pub rtt_ms: f64,
    /// The largest IP packet, bytes.
    pub mtu: u32,
}

/// What a measure is given for one point.
pub struct Context {
    /// The `stag` binary.
    pub stag: PathBuf,
    /// An empty folder for this point alone: logs, and whatever the measure keeps on files. Removed after a point that went well.
    pub folder: PathBuf,
    /// Random numbers begin here; the same for all points of a round.
    pub seed: u64,
    /// Which round, from 1.
    pub round: u32,
    /// Processors.
    pub pinning: Pinning,
    /// Where target and client are. The frame brings the emulated link up that the point's `link` names.
    pub between: Rc<dyn Between>,
    /// Of the link; none on loopback.
    pub link: Option<LinkFacts>,
    /// The same number as long as the link is the same: what a measure keeps running on another is cut off.
    pub path: u64,
    deadline: Instant,
    within: Duration,
    stop: Stop,
}

impl Context {
    /// For one point that begins now and may take `within`.
    pub fn new(stag: PathBuf, folder: PathBuf, within: Duration, stop: Stop) -> Self {
        Self {
            stag,
            folder,
            seed: 1,
            round: 1,
            pinning: Pinning::default(),
            between: Rc::new(Loopback),
            link: None,
            path: 0,
            deadline: Instant::now() + within,
            within,
            stop,
        }
    }

    /// When the point has to be over.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the user wants it to end.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// # Errors
    /// [`Error::Stopped`] and [`Error::Late`], if it is so. To be asked wherever a measure waits.
    pub fn check(&self) -> Result<(), Error> {
        if self.stop.asked() {
            return Err(Error::Stopped);
        }
        if Instant::now() >= self.deadline {
            return Err(Error::Late(self.within.as_secs_f64()));
        }
        Ok(())
    }

    /// Sleeps, unless it should end.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn sleep(&self, time: Duration) -> Result<(), Error> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// The address of that end of the path.
    pub fn address(&self, role: Role) -> IpAddr {
        self.between.address(role)
    }

    /// A TCP port that nobody uses on this machine's own addresses just now. On an emulated link any port is free.
    ///
    /// # Errors
    /// If there is none.
    pub fn free_port(&self) -> Result<u16, Error> {
        let found = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        found.map(|address| address.port()).map_err(Error::io("a free port"))
    }

    /// A command that runs at that end of the path, on the processors of that end.
    pub fn command(&self, role: Role, program: impl AsRef<OsStr>) -> Command {
        let cores = match role {
            Role::Target => &self.pinning.target,
            Role::Client => &self.pinning.client,
        };
        if cores.is_empty() {
            return self.between.command(role, program.as_ref());
        }
        let list = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = self.between.command(role, OsStr::new("taskset"));
        command.arg("-c").arg(list).arg(program);
        command
    }

    /// `stag` at that end of the path.
    pub fn stag(&self, role: Role) -> Command {
        self.command(role, &self.stag)
    }

    /// Starts a process that goes on until it is dropped. What it prints goes into `NAME.out` and `NAME.err` of the folder.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, mut command: Command, name: &str) -> Result<Running, Error> {
        self.check()?;
        let file = |end: &str| {
            let path = self.folder.join(format!("{name}.{end}"));
            File::create(&path)
                .map(|file| (path.clone(), file))
                .map_err(Error::io(path.display().to_string()))
        };
        let (out, out_file) = file("out")?;
        let (err, err_file) = file("err")?;
        // A group of its own: Ctrl-C is the lab's to handle, and what the process has started ends with it.
        command.stdin(Stdio::null()).stdout(out_file).stderr(err_file).process_group(0);
        let child = spawn(&mut command).map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            match error.kind() {
                std::io::ErrorKind::NotFound => Error::Missing(format!("{program} is not installed")),
                _ => Error::Io { what: program, error },
            }
        })?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            live().insert(group.as_raw_nonzero().get());
        }
        Ok(Running { name: name.to_owned(), child, group, out, err, ended: None })
    }

    /// Waits until what `running` has printed on stdout or stderr has a line with `text` in it, and returns that line.
    ///
    /// # Errors
    /// If the process ends before, or the point's time does.
    pub fn wait_for(&self, running: &mut Running, text: &str) -> Result<String, Error> {
        loop {
            let over = running.status()?.is_some();
            for path in [&running.out, &running.err] {
                let printed = read(path)?;
                if let Some(line) = whole_lines(&printed).find(|line| line.contains(text)) {
                    return Ok(line.to_owned());
                }
            }
            if over {
                return Err(running.failure());
            }
            self.check()?;
            thread::sleep(LOOK);
        }
    }

    /// Runs a process to its end and returns what it printed on stdout.
    ///
    /// # Errors
    /// If it does not end with status 0, or not in time.
    pub fn output(&self, command: Command, name: &str) -> Result<String, Error> {
        let mut running = self.start(command, name)?;
        loop {
            if let Some(status) = running.status()? {
                return if status.success() { read(&running.out) } else { Err(running.failure()) };
            }
            self.check()?;
            thread::sleep(LOOK);
        }
    }
}

/// A process that is ended when this is dropped: with all that it has started, by SIGTERM, and SIGKILL after 3 s.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: std::process::Child,
    group: Option<Pid>,
    out: PathBuf,
    err: PathBuf,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Its process id. (Of `taskset`, or what puts it into a namespace, which then become it.)
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status, once it has ended.
    ///
    /// # Errors
    /// If the system cannot tell.
    pub fn status(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().map_err(Error::io(self.name.clone()))?;
        }
        Ok(self.ended)
    }

    /// What it has printed on stdout until now.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn printed(&self) -> Result<String, Error> {
        read(&self.out)
    }

    /// Why it ended, in its own words: the last line on stderr, or else its status.
    pub fn failure(&self) -> Error {
        let said = read(&self.err).unwrap_or_default();
        // A program that is called wrongly says so first, and then where to read on.
        let usage = said.lines().map(str::trim).find(|line| line.starts_with("error:"));
        let words = usage.or_else(|| said.lines().map(str::trim).rfind(|line| !line.is_empty()));
        let words = words.map(|line| line.chars().take(400).collect::<String>());
        let status = self.ended.map_or_else(|| "it runs on".to_owned(), |status| status.to_string());
        Error::Failed(format!("{}: {}", self.name, words.unwrap_or(status)))
    }

    /// Ends it at once, with all that it has started: for what has nothing to put in order.
    pub fn kill(mut self) {
        self.end_by(Signal::KILL);
    }

    fn end(&mut self) {
        self.end_by(Signal::TERM);
    }

    fn end_by(&mut self, mut signal: Signal) {
        let Some(group) = self.group.take() else { return };
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            // The group is gone when the last of it is, which is no mistake.
            let _ = kill_process_group(group, signal);
            let until =
                Instant::now() + if signal == Signal::TERM { PATIENCE } else { Duration::from_millis(50) };
            while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(LOOK);
            }
            signal = Signal::KILL;
            if began.elapsed() > 2 * PATIENCE {
                break;
            }
        }
        // What it has started may still be there.
        let _ = kill_process_group(group, Signal::KILL);
        live().remove(&group.as_raw_nonzero().get());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts it with SIGTERM let through: the lab keeps signals from itself to hear of them, and a program inherits that.
fn spawn(command: &mut Command) -> std::io::Result<std::process::Child> {
    let terminate = SigSet::from(nix::sys::signal::Signal::SIGTERM);
    let before = SigSet::thread_get_mask()?;
    terminate.thread_unblock()?;
    let child = command.spawn();
    before.thread_set_mask()?;
    child
}

static LIVE: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Files and folders outside of the results that are there for one point.
static SCRATCH: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> std::sync::MutexGuard<'static, BTreeSet<i32>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends at once all that was started and still runs, and removes what is there for one point: for a lab that ends without its
/// destructors.
pub fn kill_all() {
    for group in live().iter().filter_map(|group| Pid::from_raw(*group)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    remove_scratch();
}

/// Makes something by `make` at `path` that is gone when the lab ends, also without its destructors.
pub(crate) fn make_scratch<T>(
    path: &Path,
    make: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    // Held until it is there: what is removed is all that there will be.
    let mut all = scratch();
    let made = make(path)?;
    all.insert(path.to_owned());
    Ok(made)
}

/// Removes what [`make_scratch`] made.
pub(crate) fn drop_scratch(path: &Path) {
    remove(path);
    scratch().remove(path);
}

/// What such things are called before the process id of the lab that made them.
pub(crate) const SCRATCH_NAME: &str = ".stag-lab-scratch-";
/// Where files are kept in memory.
pub(crate) const SHM: &str = "/dev/shm";
/// No point takes as long: what is older belongs to none that is under way.
const LONG_AGO: Duration = Duration::from_secs(1800);

/// Removes what labs have left that were ended by SIGKILL.
pub fn remove_what_others_left() {
    for place in [PathBuf::from(SHM), PathBuf::from("/tmp"), std::env::temp_dir()] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let starter = name.to_str().and_then(|name| name.strip_prefix(SCRATCH_NAME)?.split_once('-'));
            let Some(starter) = starter.and_then(|(pid, _)| pid.parse::<u32>().ok()) else { continue };
            let changed = entry.metadata().and_then(|about| about.modified()).ok();
            let old = changed.is_some_and(|at| at.elapsed().is_ok_and(|age| age > LONG_AGO));
            if old && !Path::new(&format!("/proc/{starter}")).exists() {
                remove(&entry.path());
            }
        }
    }
}

/// Removes all that is left of it.
pub(crate) fn remove_scratch() {
    scratch().iter().for_each(|path| remove(path));
}

fn scratch() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    SCRATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) {
    // Whatever is left of it is in a folder for such things.
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

fn read(path: &Path) -> Result<String, Error> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(Error::io(path.display().to_string()))?;
    file.take(MOST_OUTPUT).read_to_end(&mut bytes).map_err(Error::io(path.display().to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Lines that have ended: one that is being written does not count yet.
fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim_end)
}
