//! `credentials`: a daemon that takes over gets the credentials of the service (systemd.exec(5),
//! LoadCredential=) from the running one.
//!
//! systemd 252 shows the directory of credentials to the processes of ExecStart= alone, and not to
//! those of ExecReload=, which start the daemon that takes over. So the running daemon hands over a
//! descriptor of the directory. Only root and the daemon's own user get it: whoever may read the
//! credentials, and may take the daemon's place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::{CallError, connect};
use super::handover::read_told;
use super::protocol::{Request, write_line};
use super::{passing, place};
use crate::credentials;

pub const VERB: &str = "credentials";
/// Time for the running daemon to answer. It opens nothing for it.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// Whether a descriptor comes along.
    given: bool,
}

/// The running daemon's side.
///
/// # Errors
/// The client is gone.
pub fn give(stream: &UnixStream) -> io::Result<()> {
    let directory: Vec<_> = credentials::held().into_iter().collect();
    passing::send(stream, &Told { given: !directory.is_empty() }, &directory)
}

/// The directory of the credentials of the daemon at `path`, or at the usual place; `None` if it
/// has none.
///
/// # Errors
/// No daemon answers, or an earlier version.
fn ask(path: Option<&Path>) -> Result<Option<OwnedFd>, CallError> {
    let path = path.map_or_else(place::of_own, |path| Ok(path.to_owned()))?;
    let (mut stream, _) = connect(Some(&path))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write_line(&mut stream, &Request::new(VERB, serde_json::Map::new()))?;
    let (line, mut fds) = passing::receive(&stream)?;
    let told: Told = read_told(&mut line.as_slice())?;
    Ok(fds.pop().filter(|_| told.given))
}

/// The credentials of the daemon at `path`, by the path by which this process reads them. Without
/// them, the configuration that names one tells of it.
pub fn taken(path: Option<&Path>) -> Option<(PathBuf, OwnedFd)> {
    let directory = ask(path).ok().flatten()?;
    let seen = PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()));
    credentials::is_seen(&seen).then_some((seen, directory))
}
