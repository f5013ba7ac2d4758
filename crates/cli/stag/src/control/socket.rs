//! The control socket, and its lock.
//!
//! A file beside the socket, `PATH.lock`, is locked as long as its daemon lives, however it ends.
//! So a dead daemon's socket is recognised and replaced. Nothing here follows a symbolic link that
//! another user put in place of a file, or changes a file by name once it is there.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::peer;
use super::place::{self, PlaceError};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The reason why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon has it.
    #[error("another daemon has the control socket {0}")]
    Taken(PathBuf),
    /// The usual directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("the control socket {path} cannot be made: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// A control socket that listens. Removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    pub listener: UnixListener,
    path: PathBuf,
    /// Locked as long as this process has it open, or another one that it was handed to.
    pub lock: OwnedFd,
    /// Whether another process has it.
    given_away: AtomicBool,
    /// Whether the socket's file is removed with this value.
    owned: AtomicBool,
}

impl ControlSocket {
    /// Listens at the usual path.
    ///
    /// # Errors
    /// Another daemon has it, its directory cannot be trusted, or the system refuses.
    pub fn bind_usual() -> Result<Self, SocketError> {
        Self::bind(&place::for_daemon()?)
    }

    /// Locks `path` and listens there. Replaces a dead daemon's socket.
    ///
    /// # Errors
    /// Another daemon has it, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // An existing directory keeps its mode.
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        }
        let lock = lock_file(&beside(path, ".lock")).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SocketError::Taken(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        }
        // Created under another name, then renamed: this replaces a dead daemon's socket
        // atomically.
        let fresh = beside(path, ".new");
        let listen = || {
            match std::fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let group = peer::group().is_some_and(|group| place::group_of(path) == Some(group));
            let listener = bind(&fresh, group)?;
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

    /// Listens with another process at `path`, which owns it until [`Self::claim`].
    pub fn adopt(path: &Path, listener: OwnedFd, lock: OwnedFd) -> Self {
        Self {
            listener: listener.into(),
            path: path.to_owned(),
            lock,
            given_away: AtomicBool::new(false),
            owned: AtomicBool::new(false),
        }
    }

    /// Takes over the ownership, after the other process has given it up.
    pub fn claim(&self) {
        self.owned.store(true, Ordering::Release);
    }

    /// Leaves the socket's file to another process.
    pub fn give_away(&self) {
        self.owned.store(false, Ordering::Release);
        self.given_away.store(true, Ordering::Release);
    }

    /// Whether another process has it.
    pub fn is_given_away(&self) -> bool {
        self.given_away.load(Ordering::Acquire)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if !self.owned.load(Ordering::Acquire) {
            return;
        }
        // Still locked, so the file is ours. The lock's file stays: a lock on a deleted file
        // excludes nobody.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens at `path`, which does not exist. The mode is set before bind(2), so the socket has it
/// from the first moment.
fn bind(path: &Path, for_group: bool) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(if for_group { 0o660 } else { 0o600 }))?;
    // The umask would remove the group's right to connect. At the start no other thread creates
    // files.
    let mask = for_group.then(|| rustix::process::umask(Mode::from_raw_mode(0o007)));
    let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(path)?);
    mask.map(rustix::process::umask);
    bound?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Opens the file to lock, which is made if it is not there.
fn lock_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is no file", path.display()))),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixStream;

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
        // As a killed daemon leaves it: a file on which no process listens.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let second = ControlSocket::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        assert_eq!(peer::rights(&client).unwrap(), Some(peer::Rights::Own));
        assert!(peer::believe(&client, &path).is_ok());
        drop(second);
    }

    #[test]
    fn a_symbolic_link_in_place_of_the_lock_makes_no_file_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("control.sock"), dir.path().join("elsewhere"));
        symlink(&elsewhere, dir.path().join("control.sock.lock")).unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Io { .. })));
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_symbolic_link_at_the_sockets_path_is_replaced_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("control.sock"), dir.path().join("elsewhere"));
        std::fs::write(&elsewhere, "mine").unwrap();
        std::fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o644)).unwrap();
        for name in ["control.sock", "control.sock.new"] {
            symlink(&elsewhere, dir.path().join(name)).unwrap();
        }
        drop(ControlSocket::bind(&path).unwrap());
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"mine");
        assert_eq!(std::fs::metadata(&elsewhere).unwrap().permissions().mode() & 0o777, 0o644);
    }
}
