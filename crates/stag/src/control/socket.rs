//! Where the control socket is, and who holds it.
//!
//! A file beside the socket, `PATH.lock`, is locked for as long as its daemon lives, whatever ends it. So the socket of a dead
//! daemon can be told from that of a live one, and is replaced.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FlockOperation;

/// Where a daemon's control socket shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Where all commands look for it, if that is free.
    #[default]
    Usual,
    /// Nowhere: the daemon cannot be managed.
    Nowhere,
    /// Here.
    At(PathBuf),
}

impl FromStr for Place {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "none" { Self::Nowhere } else { Self::At(text.into()) })
    }
}

/// Where the socket is if nobody says otherwise: below /run for root, and in the user's own runtime directory for others.
pub fn usual_path() -> PathBuf {
    let user = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if user.is_root() => PathBuf::from("/run/stag/control.sock"),
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("stag/control.sock"),
        _ => std::env::temp_dir().join(format!("stag-{}/control.sock", user.as_raw())),
    }
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon lives there.
    #[error("another daemon has the control socket {0}")]
    Taken(PathBuf),
    /// The system refuses.
    #[error("the control socket {path} cannot be made: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A control socket that listens. Removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    /// Listens.
    pub listener: UnixListener,
    path: PathBuf,
    /// Locked for as long as this lives, or what it is handed to.
    pub lock: OwnedFd,
    /// Another process has it.
    given_away: AtomicBool,
    /// Its name goes with this value.
    owned: AtomicBool,
}

impl ControlSocket {
    /// Takes `path` and listens there. What a dead daemon has left is replaced.
    ///
    /// # Errors
    /// When another daemon has it, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // One that is there keeps its mode.
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(beside(path, ".lock"))
            .map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SocketError::Taken(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        }
        // Under another name until nobody else may connect: the name is in its place at once and whole.
        let fresh = beside(path, ".new");
        let listen = || {
            match std::fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&fresh)?;
            std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&fresh, path)?;
            Ok(listener)
        };
        let listener = listen().map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            lock: lock.into(),
            given_away: AtomicBool::new(false),
            owned: AtomicBool::new(true),
        })
    }

    /// Listens with another process at `path`, whose it is until [`Self::claim`].
    pub fn adopt(path: &Path, listener: OwnedFd, lock: OwnedFd) -> Self {
        Self {
            listener: listener.into(),
            path: path.to_owned(),
            lock,
            given_away: AtomicBool::new(false),
            owned: AtomicBool::new(false),
        }
    }

    /// The other process has given it up.
    pub fn claim(&self) {
        self.owned.store(true, Ordering::Release);
    }

    /// Another process has it from now on: its name stays.
    pub fn give_away(&self) {
        self.owned.store(false, Ordering::Release);
        self.given_away.store(true, Ordering::Release);
    }

    /// Whether another process has it.
    pub fn is_given_away(&self) -> bool {
        self.given_away.load(Ordering::Acquire)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if !self.owned.load(Ordering::Acquire) {
            return;
        }
        // Still locked: it is ours. The lock's file stays, for a lock on a file that is gone would keep nobody out.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the other end is this user or root.
///
/// # Errors
/// When the system does not tell.
pub fn may_enter(peer: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(peer)?;
    Ok(peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_refused_and_a_dead_one_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/control.sock");
        let first = ControlSocket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Taken(_))));
        assert!(UnixStream::connect(&path).is_ok());
        drop(first);
        assert!(!path.exists());
        // As a daemon that was killed leaves it: a name, and nobody behind it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let second = ControlSocket::bind(&path).unwrap();
        assert!(may_enter(&UnixStream::connect(&path).unwrap()).unwrap());
        drop(second);
    }

    #[test]
    fn a_place_may_be_a_path_or_none() {
        assert_eq!("none".parse(), Ok(Place::Nowhere));
        assert_eq!("./none".parse(), Ok(Place::At("./none".into())));
    }
}
