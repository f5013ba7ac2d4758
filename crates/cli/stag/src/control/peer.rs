//! Access control of the control socket by the peer's credentials: the rights that a daemon gives a
//! client, and the daemons that a command trusts.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;

use nix::unistd::Group;
use rustix::fs::{Gid, Uid};
use rustix::net::sockopt::socket_peercred;

use super::place;

/// The group whose members may manage a daemon, within [`Rights::Operate`].
pub const GROUP: &str = "stag";

/// Rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// Read state, and move clients: `status`, `drain`, `disconnect`, `alua`.
    Operate,
    /// Everything. A configuration names files that the daemon opens with its own rights, so
    /// `apply` needs the same rights.
    Own,
}

/// The id of [`GROUP`], if that group exists. Looked up once: in its sandbox the daemon may not
/// reach the group database.
pub fn group() -> Option<Gid> {
    static FOUND: OnceLock<Option<Gid>> = OnceLock::new();
    let find = || Some(Gid::from_raw(Group::from_name(GROUP).ok().flatten()?.gid.as_raw()));
    *FOUND.get_or_init(find)
}

/// The user at the other end.
///
/// # Errors
/// The system does not tell the peer's credentials.
pub fn user(stream: &UnixStream) -> io::Result<Uid> {
    Ok(socket_peercred(stream)?.uid)
}

/// The rights of the client at the other end; `None` if it has none.
///
/// # Errors
/// The system does not tell the peer's credentials.
pub fn rights(stream: &UnixStream) -> io::Result<Option<Rights>> {
    let peer = socket_peercred(stream)?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(Some(Rights::Own));
    }
    let Some(group) = group() else { return Ok(None) };
    // The process's groups come from the kernel: a lookup in the user database could block.
    let member = peer.gid == group || runtime::peer_groups(stream.as_fd())?.contains(&group.as_raw());
    Ok(member.then_some(Rights::Operate))
}

/// Whether to trust the daemon behind the socket at `path`. It must be root's, this user's, or that
/// of the only user who can have put a socket there.
///
/// # Errors
/// The reason why it is not trusted.
pub fn believe(stream: &UnixStream, path: &Path) -> Result<(), String> {
    let daemon = user(stream).map_err(|error| error.to_string())?;
    if daemon.is_root() || daemon == rustix::process::geteuid() || place::is_of(path, daemon) {
        return Ok(());
    }
    Err(format!(
        "{} is served by user {}, who is neither root nor you, in a directory that others may write to",
        path.display(),
        daemon.as_raw()
    ))
}
