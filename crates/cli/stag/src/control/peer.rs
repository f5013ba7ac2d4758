//! Who is at the other end of the control socket: whom a daemon lets in and what for, and which daemon a command believes.

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

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// Look, and move initiators about: `status`, `drain`, `alua`.
    Operate,
    /// Everything. A configuration names files that the daemon then opens with its own rights: who may apply one has those rights.
    Own,
}

/// The number of [`GROUP`], if there is such a group. It is looked up once: later the daemon may see the group database no more.
pub fn group() -> Option<Gid> {
    static FOUND: OnceLock<Option<Gid>> = OnceLock::new();
    let find = || Some(Gid::from_raw(Group::from_name(GROUP).ok().flatten()?.gid.as_raw()));
    *FOUND.get_or_init(find)
}

/// The user at the other end.
///
/// # Errors
/// When the system does not tell.
pub fn user(stream: &UnixStream) -> io::Result<Uid> {
    Ok(socket_peercred(stream)?.uid)
}

/// What the client at the other end may do; nothing, if it is not let in.
///
/// # Errors
/// When the system does not tell who it is.
pub fn rights(stream: &UnixStream) -> io::Result<Option<Rights>> {
    let peer = socket_peercred(stream)?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(Some(Rights::Own));
    }
    let Some(group) = group() else { return Ok(None) };
    // What the kernel says of the process, and not what a database says of its user: nothing is asked that could keep it waiting.
    let member = peer.gid == group || runtime::peer_groups(stream.as_fd())?.contains(&group.as_raw());
    Ok(member.then_some(Rights::Operate))
}

/// Whether the daemon behind the socket at `path` is to be believed: it is root's, this user's, or that of the only user who can have
/// put a socket there.
///
/// # Errors
/// Why it is not.
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
