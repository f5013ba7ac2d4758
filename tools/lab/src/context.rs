//! The context of one point for a measure: the binary, the path between target and client, a
//! folder, a deadline and a seed. Its helpers start processes that end with the deadline or the
//! lab. It knows nothing of the quantities measured.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
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

/// The interval at which processes are polled.
const LOOK: Duration = Duration::from_millis(3);
/// The time that a process has to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(3);
/// The exit status of a program that cannot run on this machine, as automake's tests have it. The
/// last line of its stderr says why.
const CANNOT_RUN_HERE: i32 = 77;
/// The maximum of a process's output that is read, bytes.
const MOST_OUTPUT: u64 = 64 << 20;

/// The user's request to end. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was requested.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The two ends of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Target,
    Client,
}

/// The path between target and client.
pub trait Between {
    /// A command that runs at that end.
    fn command(&self, role: Role, program: &OsStr) -> Command;
    /// The address of that end.
    fn address(&self, role: Role) -> IpAddr;
    /// Its addresses on all lines of the path.
    fn addresses(&self, role: Role) -> Vec<IpAddr> {
        vec![self.address(role)]
    }
}

/// The machine's loopback interface.
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

/// The processors of the two ends; empty means any.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize, PartialEq, Eq)]
pub struct Pinning {
    pub target: Vec<usize>,
    pub client: Vec<usize>,
}

/// The facts of an emulated link that a measure needs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LinkFacts {
    pub name: String,
    /// The rate from target to client, bits per second on the wire, in the mean of a plan that
    /// repeats, of all lines together; `None` without a limit, and for a plan that does not repeat.
    pub rate_bits: Option<f64>,
    /// The measured round trip, or else the requested one, ms.
    pub rtt_ms: f64,
    /// The requested round trip, ms.
    pub asked_ms: f64,
    /// The largest IP packet, bytes.
    pub mtu: u32,
}

/// The context of one point for a measure.
pub struct Context {
    /// The path of the `stag` binary.
    pub stag: PathBuf,
    /// An empty folder for this point alone, for logs and the measure's files. Removed after a
    /// successful point.
    pub folder: PathBuf,
    /// The seed of random numbers, the same for all points of a round.
    pub seed: u64,
    /// The number of the round, from 1.
    pub round: u32,
    /// The processors of both ends.
    pub pinning: Pinning,
    /// Whether both ends run before all other programs (SCHED_FIFO).
    pub realtime: bool,
    /// The path between target and client. The frame brings up the emulated link that the point's
    /// `link` names.
    pub between: Rc<dyn Between>,
    /// The facts of the link; `None` on loopback.
    pub link: Option<LinkFacts>,
    /// The number of the current link. A changed number tells the measure that processes on the
    /// previous link are cut off.
    pub path: u64,
    deadline: Instant,
    within: Duration,
    stop: Stop,
}

impl Context {
    /// The context of one point that begins now and ends within `within`.
    pub fn new(stag: PathBuf, folder: PathBuf, within: Duration, stop: Stop) -> Self {
        Self {
            stag,
            folder,
            seed: 1,
            round: 1,
            pinning: Pinning::default(),
            realtime: false,
            between: Rc::new(Loopback),
            link: None,
            path: 0,
            deadline: Instant::now() + within,
            within,
            stop,
        }
    }

    /// The time by which the point must be over.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The user's request to end.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// # Errors
    /// [`Error::Stopped`] after the user's request to end, [`Error::Late`] after the deadline.
    /// Measures call it wherever they wait.
    pub fn check(&self) -> Result<(), Error> {
        if self.stop.asked() {
            return Err(Error::Stopped);
        }
        if Instant::now() >= self.deadline {
            return Err(Error::Late(self.within.as_secs_f64()));
        }
        Ok(())
    }

    /// Sleeps for `time`, or until the point should end.
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

    /// The addresses of that end, one for each line of the path.
    pub fn addresses(&self, role: Role) -> Vec<IpAddr> {
        self.between.addresses(role)
    }

    /// A TCP port that is free now on this machine's own addresses. On an emulated link every port
    /// is free.
    ///
    /// # Errors
    /// If no port is free.
    pub(crate) fn free_port(&self) -> Result<u16, Error> {
        let found = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        found.map(|address| address.port()).map_err(Error::io("a free port"))
    }

    /// A command that runs at that end of the path, on the processors of that end.
    pub fn command(&self, role: Role, program: impl AsRef<OsStr>) -> Command {
        let cores = match role {
            Role::Target => &self.pinning.target,
            Role::Client => &self.pinning.client,
        };
        let mut words: Vec<OsString> = Vec::new();
        if self.realtime {
            words.extend(["chrt", "--fifo", "50"].map(OsString::from));
        }
        if !cores.is_empty() {
            let list = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            words.extend(["taskset".into(), "-c".into(), list.into()]);
        }
        words.push(program.as_ref().to_owned());
        let mut words = words.into_iter();
        let mut command = self.between.command(role, &words.next().unwrap_or_default());
        command.args(words);
        command
    }

    /// `stag` at that end of the path.
    pub fn stag(&self, role: Role) -> Command {
        self.command(role, &self.stag)
    }

    /// Starts a process that runs until it is dropped. Its output goes into `NAME.out` and
    /// `NAME.err` of the folder.
    pub fn start(&self, command: Command, name: &str) -> Result<Running, Error> {
        self.launch(command, name, Stdio::null())
    }

    /// Starts a process as [`start`](Self::start) does, and gives it lines of input by
    /// [`Running::tell`].
    pub(crate) fn start_with_input(&self, command: Command, name: &str) -> Result<Running, Error> {
        self.launch(command, name, Stdio::piped())
    }

    fn launch(&self, mut command: Command, name: &str, input: Stdio) -> Result<Running, Error> {
        self.check()?;
        let file = |end: &str| {
            let path = self.folder.join(format!("{name}.{end}"));
            File::create(&path)
                .map(|file| (path.clone(), file))
                .map_err(Error::io(path.display().to_string()))
        };
        let (out, out_file) = file("out")?;
        let (err, err_file) = file("err")?;
        // In a process group of its own: the lab alone handles Ctrl-C, and the process's children
        // end with it.
        command.stdin(input).stdout(out_file).stderr(err_file).process_group(0);
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

    /// Waits until `running` has printed a line that contains `text` on stdout or stderr, and
    /// returns that line.
    ///
    /// # Errors
    /// If the process ends first, or the point's deadline passes.
    pub fn wait_for(&self, running: &mut Running, text: &str) -> Result<String, Error> {
        self.wait_for_line(running, self.deadline, |line| line.contains(text))
    }

    /// Waits as [`wait_for`](Self::wait_for) does, until `until` at most.
    pub(crate) fn wait_for_line(
        &self,
        running: &mut Running,
        until: Instant,
        fits: impl Fn(&str) -> bool,
    ) -> Result<String, Error> {
        loop {
            let over = running.status()?.is_some();
            for path in [&running.out, &running.err] {
                let printed = read(path)?;
                if let Some(line) = whole_lines(&printed).find(|line| fits(line)) {
                    return Ok(line.to_owned());
                }
            }
            if over {
                return Err(running.failure());
            }
            self.check()?;
            if Instant::now() > until {
                return Err(Error::Failed(format!("{} is not ready in time", running.name)));
            }
            thread::sleep(LOOK);
        }
    }

    /// Runs a process to its end and returns its stdout.
    ///
    /// # Errors
    /// If it ends with a status other than 0, or after the deadline.
    pub fn output(&self, command: Command, name: &str) -> Result<String, Error> {
        self.finish(self.start(command, name)?)
    }

    /// Waits until `running` has ended and returns its stdout.
    ///
    /// # Errors
    /// As those of [`output`](Self::output).
    pub(crate) fn finish(&self, mut running: Running) -> Result<String, Error> {
        loop {
            if let Some(status) = running.status()? {
                return if status.success() { read(&running.out) } else { Err(running.failure()) };
            }
            self.check()?;
            thread::sleep(LOOK);
        }
    }
}

/// A process that is ended on drop together with its children: by SIGTERM, and by SIGKILL after 3
/// s.
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
    /// Its process id. (`taskset`, or the helper that enters a namespace, becomes the process
    /// itself.)
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, once it has ended.
    pub fn status(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().map_err(Error::io(self.name.clone()))?;
        }
        Ok(self.ended)
    }

    /// Writes to its stdin.
    ///
    /// # Errors
    /// If it has none, or has closed it.
    pub fn tell(&mut self, bytes: &[u8]) -> Result<(), Error> {
        use std::io::Write as _;
        let told = self.child.stdin.as_mut().map_or(Ok(()), |input| input.write_all(bytes));
        told.map_err(Error::io(self.name.clone()))
    }

    /// Its stdout until now.
    pub fn printed(&self) -> Result<String, Error> {
        read(&self.out)
    }

    /// Why it ended: the last line of its stderr, or else its exit status. [`Error::Missing`] if it
    /// cannot run here.
    pub fn failure(&self) -> Error {
        let said = read(&self.err).unwrap_or_default();
        // On a usage error a program prints the error first, then a pointer to its help.
        let usage = said.lines().map(str::trim).find(|line| line.starts_with("error:"));
        let words = usage.or_else(|| said.lines().map(str::trim).rfind(|line| !line.is_empty()));
        let words = words.map(|line| line.chars().take(400).collect::<String>());
        if let (Some(CANNOT_RUN_HERE), Some(words)) = (self.ended.and_then(|status| status.code()), &words) {
            return Error::Missing(words.clone());
        }
        let status = self.ended.map_or_else(|| "it runs on".to_owned(), |status| status.to_string());
        Error::Failed(format!("{}: {}", self.name, words.unwrap_or(status)))
    }

    /// Kills it at once with all its children: for processes that have no state to save.
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
            // An error means that the whole group has ended already.
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
        // Its children may still run.
        let _ = kill_process_group(group, Signal::KILL);
        live().remove(&group.as_raw_nonzero().get());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts it with SIGTERM unblocked: the lab blocks signals to wait for them, and programs inherit
/// the mask.
fn spawn(command: &mut Command) -> std::io::Result<std::process::Child> {
    let terminate = SigSet::from(nix::sys::signal::Signal::SIGTERM);
    let before = SigSet::thread_get_mask()?;
    terminate.thread_unblock()?;
    let child = command.spawn();
    before.thread_set_mask()?;
    child
}

static LIVE: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Files and folders outside the results that exist for one point.
static SCRATCH: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> std::sync::MutexGuard<'static, BTreeSet<i32>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all started processes and removes all scratch files: for a lab that exits without its
/// destructors.
pub fn kill_all() {
    for group in live().iter().filter_map(|group| Pid::from_raw(*group)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    remove_scratch();
}

/// Makes a file or folder at `path` by `make`. It is removed when the lab ends, even without its
/// destructors.
pub(crate) fn make_scratch<T>(
    path: &Path,
    make: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    // Held until it exists: `remove_scratch` then sees every file.
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

/// The prefix of scratch names, followed by the process id of the lab that made them.
pub(crate) const SCRATCH_NAME: &str = ".stag-lab-scratch-";
/// A file system in memory.
pub(crate) const SHM: &str = "/dev/shm";
/// Longer than any point: older scratch files belong to no running point.
const LONG_AGO: Duration = Duration::from_secs(1800);

/// Removes the scratch files of labs that were ended by SIGKILL.
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

/// Removes all scratch files of this lab.
pub(crate) fn remove_scratch() {
    scratch().iter().for_each(|path| remove(path));
}

fn scratch() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    SCRATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) {
    // Errors are ignored: remains lie in a temporary folder.
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

fn read(path: &Path) -> Result<String, Error> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(Error::io(path.display().to_string()))?;
    file.take(MOST_OUTPUT).read_to_end(&mut bytes).map_err(Error::io(path.display().to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The complete lines of `text`; a line still being written is left out.
fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim_end)
}
