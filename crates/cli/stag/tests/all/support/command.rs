//! The `stag` command as a process: a server that ends with its test, and commands whose result is
//! checked.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

#[path = "../../../../../client/iscsi-client/tests/all/ports/mod.rs"]
mod ports;

pub const STAG: &str = env!("CARGO_BIN_EXE_stag");
/// The state directory of commands, and of servers that are not given another.
pub const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

/// A `stag serve` that ends with the test.
pub struct Server {
    child: Child,
    /// The URL of each unit, by iSCSI over TCP.
    pub urls: Vec<String>,
}

impl Server {
    /// Starts it, and waits until it has printed the URLs of so many units.
    pub fn start(args: &[&str], units: usize) -> Self {
        Self::start_logging("warn", Stdio::inherit(), args, units)
    }

    /// The same, with its log filter and its stderr.
    pub fn start_logging(filter: &str, stderr: Stdio, args: &[&str], units: usize) -> Self {
        Self::spawn(
            Command::new(STAG).args(["--log", filter]).stderr(stderr).env("STATE_DIRECTORY", STATE),
            args,
            units,
        )
    }

    /// On a machine whose state directory is `state`.
    pub fn start_on(state: &Path, args: &[&str], units: usize) -> Self {
        Self::spawn(Command::new(STAG).args(["--log", "warn"]).env("STATE_DIRECTORY", state), args, units)
    }

    /// The same, with a command that executes its further arguments as `stag` does.
    pub fn spawn(command: &mut Command, args: &[&str], units: usize) -> Self {
        let mut child = command
            .arg("serve")
            .args(args)
            // Servers that are to be managed name their socket.
            .env("STAG_CONTROL", "none")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let urls: Vec<String> = lines.take(units).map(|line| line.unwrap()).collect();
        assert_eq!(urls.len(), units, "the server printed {urls:?}");
        Self { child, urls }
    }

    /// The URL of a unit by iSCSI over TCP.
    pub fn iscsi(&self, unit: usize) -> &str {
        &self.urls[unit]
    }

    /// The URL of a unit by iSER.
    pub fn iser(&self, unit: usize) -> String {
        self.urls[unit].replace("iscsi://", "iser://")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn portal(&self) -> &str {
        self.urls[0].split('/').nth(2).unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it `signal`.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends it with `signal`; its exit status.
    pub fn end(self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        self.ended()
    }

    /// Its exit status, when it ends by itself.
    pub fn ended(mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Number of reads and of writes of all units of the daemon with this control socket.
pub fn reads_and_writes(socket: &str) -> (u64, u64) {
    let status: serde_json::Value =
        serde_json::from_str(&said(&["status", "--control", socket, "--json"])).unwrap();
    let units =
        status["targets"].as_array().unwrap().iter().flat_map(|target| target["units"].as_array().unwrap());
    let count = |unit: &serde_json::Value, what: &str| unit["io"][what].as_u64().unwrap();
    units.fold((0, 0), |(reads, writes), unit| (reads + count(unit, "reads"), writes + count(unit, "writes")))
}

/// Waits until something is so.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A portal for a server that is to restart at the same address. No server listens there, and no
/// other test of this process gets it. While the server is away, the kernel does not use its port
/// for outgoing connections, as it may use those above 32767.
pub fn free_portal() -> String {
    format!("127.0.0.1:{}", ports::free())
}

/// Runs `stag` with `input` on its stdin.
pub fn stag_with(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(STAG)
        .args(args)
        .env("STATE_DIRECTORY", STATE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that fails early does not read it all.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

pub fn stag(args: &[&str]) -> Output {
    stag_with(args, b"")
}

/// Runs `stag`, which must succeed. Returns its stdout.
pub fn done(args: &[&str]) -> Vec<u8> {
    let output = stag(args);
    assert!(output.status.success(), "stag {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The same for a command that prints text.
pub fn said(args: &[&str]) -> String {
    String::from_utf8(done(args)).unwrap()
}

/// Runs `stag`, which must fail with `status`. Returns its stderr.
pub fn fails(args: &[&str], status: i32) -> String {
    let output = stag(args);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "stag {args:?}: {complaint}");
    assert!(!complaint.contains("panicked"), "{complaint}");
    complaint
}

pub fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 42u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}
