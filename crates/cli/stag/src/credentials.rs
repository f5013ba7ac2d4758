//! The directory of the service manager's credentials (systemd.exec(5), LoadCredential=), as this
//! process reaches it. A daemon holds it open, for one that takes over
//! ([`crate::control::credentials`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

/// The environment variable that names it.
const VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// The directory that this daemon holds open, and the path by which it reads it.
static HELD: OnceLock<(PathBuf, OwnedFd)> = OnceLock::new();

/// How a process that sees none gets it.
static ELSEWHERE: OnceLock<Elsewhere> = OnceLock::new();

type Elsewhere = Box<dyn Fn() -> Option<(PathBuf, OwnedFd)> + Send + Sync>;

/// Its path in this process, for one that needs a credential; `None` if there are none.
pub fn directory() -> Option<PathBuf> {
    let own = known();
    if !own.as_deref().is_some_and(is_seen)
        && let Some((path, directory)) = ELSEWHERE.get().and_then(|get| get())
    {
        hold(path, directory);
        return known();
    }
    own
}

/// Its path in this process, as far as that is known by now.
pub fn known() -> Option<PathBuf> {
    let held = HELD.get().map(|(path, _)| path.clone());
    held.or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from))
}

/// Has a process that sees none get it by `get`, once it needs a credential.
pub fn or_else(get: impl Fn() -> Option<(PathBuf, OwnedFd)> + Send + Sync + 'static) {
    // The first one stays.
    let _ = ELSEWHERE.set(Box::new(get));
}

/// Whether this process sees credentials in `directory`. The service manager hides it from some of
/// the processes that have its name in their environment.
pub fn is_seen(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok()))
}

/// Holds the directory that the environment names, if there is one. Call it before the sandbox
/// keeps the process from it.
pub fn hold_own() {
    let Some(path) = known().filter(|path| is_seen(path)) else { return };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(opened) = rustix::fs::open(&path, flags, Mode::empty()) {
        hold(path, opened);
    }
}

/// Holds `directory`, which this process reads as `path`, until it ends.
fn hold(path: PathBuf, directory: OwnedFd) {
    // The first one stays.
    let _ = HELD.set((path, directory));
}

/// The directory that this daemon holds.
pub fn held() -> Option<BorrowedFd<'static>> {
    HELD.get().map(|(_, directory)| directory.as_fd())
}
