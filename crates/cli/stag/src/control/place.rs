//! Where the control socket is, and which directory may hold it: one that nobody but its owner and root can write to.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::peer;

/// Where a daemon's control socket shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Where all commands look for it, if that is free.
    #[default]
    Usual,
    /// Nowhere: the daemon cannot be managed.
    Nowhere,
    At(PathBuf),
}

impl FromStr for Place {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "none" { Self::Nowhere } else { Self::At(text.into()) })
    }
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Others could put a socket of theirs there.
    #[error("the control socket is not looked for in {}: {why}", .directory.display())]
    Untrusted {
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    #[error("{}: {source}", .directory.display())]
    Io { directory: PathBuf, source: io::Error },
}

/// What to do about a directory that is not trusted.
pub const REMEDY: &str =
    "remove it, set XDG_RUNTIME_DIR to a directory of your own, or name another place with --control PATH";

/// The directory of the system's daemon.
const SYSTEM: &str = "/run/stag";
/// The socket's name in its directory.
const NAME: &str = "control.sock";
/// Bits of a mode by which others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// A directory that holds the socket if nobody says otherwise.
struct Usual {
    directory: PathBuf,
    /// Anybody may make one of that name: only the owner may enter it, and the group [`peer::GROUP`].
    in_public: bool,
}

impl Usual {
    fn new() -> Self {
        let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let user = rustix::process::geteuid();
        let (directory, in_public) = match (set("RUNTIME_DIRECTORY"), set("XDG_RUNTIME_DIR")) {
            // As systemd made it for the service (RuntimeDirectory=): the first of several.
            (Some(all), _) => {
                let first = all.as_encoded_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
                (PathBuf::from(OsStr::from_bytes(first)), false)
            }
            _ if user.is_root() => (PathBuf::from(SYSTEM), false),
            (None, Some(directory)) => (PathBuf::from(directory).join("stag"), false),
            (None, None) => (std::env::temp_dir().join(format!("stag-{}", user.as_raw())), true),
        };
        Self { directory, in_public }
    }

    /// Opens the directory, if it can be trusted.
    fn open(&self) -> Result<OwnedFd, PlaceError> {
        let directory = &self.directory;
        let untrusted = |why: String| PlaceError::Untrusted { directory: directory.clone(), why };
        let failed = |source: Errno| PlaceError::Io { directory: directory.clone(), source: source.into() };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let opened = match rustix::fs::open(directory, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(untrusted("it is no directory".into())),
            other => other.map_err(failed)?,
        };
        let about = rustix::fs::fstat(&opened).map_err(failed)?;
        let (mode, own) = (about.st_mode & 0o7777, rustix::process::geteuid());
        if about.st_uid != own.as_raw() {
            return Err(untrusted(format!(
                "it belongs to user {}, and not to {}",
                about.st_uid,
                own.as_raw()
            )));
        }
        let for_group = peer::group().is_some_and(|group| group.as_raw() == about.st_gid);
        let forbidden = match (self.in_public, for_group) {
            (false, _) => OTHERS_WRITE,
            (true, true) => 0o027,
            (true, false) => 0o077,
        };
        match mode & forbidden {
            0 => Ok(opened),
            _ => Err(untrusted(format!("others may enter it, or write to it (mode {mode:o})"))),
        }
    }

    /// Makes the directory if it is not there, and lets the group in.
    fn make(&self) -> Result<(), PlaceError> {
        let failed = |source| PlaceError::Io { directory: self.directory.clone(), source };
        let made = match std::fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(error)),
        };
        let opened = self.open()?;
        let system = self.directory == Path::new(SYSTEM);
        if let Some(group) = peer::group().filter(|_| made || system) {
            // What is made in it then has its group, and needs no change of owner by name.
            let given = rustix::fs::fchown(&opened, None, Some(group))
                .and_then(|()| rustix::fs::fchmod(&opened, Mode::from_raw_mode(0o2750)));
            if let Err(error) = given {
                tracing::debug!(%error, "the control socket is for its owner alone");
            }
        }
        Ok(())
    }
}

/// Where the socket of this process's own daemon is if nobody says otherwise, in a directory that is there and can be trusted.
///
/// # Errors
/// Why that directory cannot be used.
pub fn for_daemon() -> Result<PathBuf, PlaceError> {
    let usual = Usual::new();
    usual.make()?;
    Ok(usual.directory.join(NAME))
}

/// Where the socket of this user's own daemon is if nobody says otherwise, whether there is one or not.
///
/// # Errors
/// A directory that others could have made.
pub fn of_own() -> Result<PathBuf, PlaceError> {
    let usual = Usual::new();
    match usual.open() {
        Err(error @ PlaceError::Untrusted { .. }) => Err(error),
        // What cannot be opened has no socket either: to connect to it says why.
        Ok(_) | Err(PlaceError::Io { .. }) => Ok(usual.directory.join(NAME)),
    }
}

/// Where a command looks for the socket if nobody says otherwise: at this user's own daemon's, else at the system's.
///
/// # Errors
/// A directory that others could have made.
pub fn for_client() -> Result<PathBuf, PlaceError> {
    let system = Path::new(SYSTEM);
    if Usual::new().directory == system {
        // It may belong to the service's user. As with --control, the peer's identity is checked
        // before anything is sent.
        return Ok(system.join(NAME));
    }
    let own = of_own()?;
    Ok(if !own.exists() && system.exists() { system.join(NAME) } else { own })
}

/// Whether nobody but root and `user` can have put what is at `path` there: all directories on the way are theirs, and nobody else may
/// write to them.
pub fn is_of(path: &Path, user: Uid) -> bool {
    let Ok(absolute) = std::path::absolute(path) else { return false };
    // The names as they are written, and where symbolic links lead: each has to be safe.
    let Some(real) = absolute.parent().and_then(|parent| std::fs::canonicalize(parent).ok()) else {
        return false;
    };
    let written = absolute.parent().unwrap_or(Path::new("/"));
    let safe = |directory: &Path| {
        if directory.components().any(|part| part == Component::ParentDir) {
            return false;
        }
        let Ok(about) = std::fs::symlink_metadata(directory) else { return false };
        let owned = about.uid() == 0 || about.uid() == user.as_raw();
        // A symbolic link's mode says nothing.
        owned && (about.is_symlink() || about.mode() & OTHERS_WRITE == 0)
    };
    written.ancestors().all(safe) && real.ancestors().all(safe)
}

/// The group that what is made in the directory of `path` belongs to.
pub fn group_of(path: &Path) -> Option<Gid> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let about = std::fs::metadata(directory).ok()?;
    match about.mode() & 0o2000 {
        0 => Some(rustix::process::getegid()),
        _ => Some(Gid::from_raw(about.gid())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn public(directory: &Path) -> Usual {
        Usual { directory: directory.to_owned(), in_public: true }
    }

    fn why(usual: &Usual) -> String {
        match usual.open() {
            Err(PlaceError::Untrusted { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_made_or_may_enter_is_not_used() {
        let tmp = tempfile::tempdir().unwrap();
        let directory = tmp.path().join("stag-1");
        public(&directory).make().unwrap();
        assert_eq!(
            std::fs::metadata(&directory).unwrap().mode() & 0o077,
            0,
            "no group of that name, or its own"
        );
        for mode in [0o777, 0o755, 0o710, 0o701] {
            set_mode(&directory, mode);
            assert!(why(&public(&directory)).contains("others may"), "{mode:o}");
        }
        // As systemd makes one: others may look, not write.
        let by_systemd = Usual { in_public: false, ..public(&directory) };
        set_mode(&directory, 0o755);
        assert!(by_systemd.open().is_ok());
        set_mode(&directory, 0o775);
        assert!(by_systemd.open().is_err());
        set_mode(&directory, 0o700);
        let link = tmp.path().join("link");
        symlink(&directory, &link).unwrap();
        assert!(why(&public(&link)).contains("no directory"));
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(why(&public(&file)).contains("no directory"));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(4711), None).unwrap();
            assert!(why(&public(&directory)).contains("user 4711"));
            assert!(matches!(public(&directory).make(), Err(PlaceError::Untrusted { .. })));
        }
    }

    #[test]
    fn a_path_is_of_those_who_can_write_to_its_directories() {
        let (root, user) = (Uid::ROOT, Uid::from_raw(4711));
        assert!(is_of(Path::new("/run/stag/control.sock"), root) || !Path::new("/run/stag").exists());
        let tmp = tempfile::tempdir().unwrap();
        assert!(!is_of(&tmp.path().join("x"), user), "anybody may write to /tmp");
        assert!(!is_of(&tmp.path().join("../x"), root));
        assert!(is_of(Path::new("/usr/x"), root) && is_of(Path::new("/usr/x"), user));
    }

    #[test]
    fn a_place_may_be_a_path_or_none() {
        assert_eq!("none".parse(), Ok(Place::Nowhere));
        assert_eq!("./none".parse(), Ok(Place::At("./none".into())));
    }
}
