//! `stag serve` as a process of a test.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

/// The state directory of this test process's daemons. An earlier run's mark of a device that
/// failed must not make this run fail.
fn state() -> &'static Path {
    static STATE: OnceLock<PathBuf> = OnceLock::new();
    STATE.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("state-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    })
}

/// Time for the daemon to get ready, or to end when asked to.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon. Killed when dropped.
pub struct Daemon {
    child: Child,
    pub portal: SocketAddr,
    pub target: String,
}

impl Daemon {
    /// Serves `units` (each `PATH[,option...]`) on a free port of the loopback, and waits until
    /// every one has its URL.
    pub fn serve(units: &[&str]) -> Self {
        Self::serve_under(&[], units).unwrap_or_else(|| panic!("stag serve {units:?} ended at once"))
    }

    /// The same, started by `wrapper`: a command that executes its further arguments. `None` if it
    /// ended before anything was served.
    pub fn serve_under(wrapper: &[&str], units: &[&str]) -> Option<Self> {
        let words = [wrapper, &[env!("CARGO_BIN_EXE_stag")]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--log", "error"])
            .args(units)
            .env("STAG_CONTROL", "none")
            .env("STATE_DIRECTORY", state())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let stdout = child.stdout.take().expect("a pipe");
        let (send, lines) = mpsc::channel();
        // Reads on after the URLs, so that the daemon never meets a closed pipe.
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        let deadline = Instant::now() + PATIENCE;
        let mut urls = Vec::new();
        while urls.len() < units.len() {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("iscsi://") => urls.push(line),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let _ = child.wait();
                    return None;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                    panic!("stag serve {units:?} was not ready in {PATIENCE:?}: {:?}", child.wait());
                }
            }
        }
        let (portal, target) = parse(&urls[0]);
        Some(Self { child, portal, target })
    }

    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }

    /// Asks it to end with SIGTERM, and waits until it has ended.
    pub fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("stag did not end within {PATIENCE:?} of SIGTERM");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `iscsi://HOST:PORT/IQN/LUN`
fn parse(url: &str) -> (SocketAddr, String) {
    let mut parts = url.trim_start_matches("iscsi://").split('/');
    let portal = parts.next().and_then(|portal| portal.to_socket_addrs().ok()?.next());
    let target = parts.next().map(str::to_owned);
    portal.zip(target).unwrap_or_else(|| panic!("no URL of a unit: {url}"))
}
