//! The place of the control socket, and the check of its directory: only its owner and root may
//! write to it.

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

/// The configured place of a daemon's control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// At the usual path, where all commands look, if that is free.
    #[default]
    Usual,
    /// None: the daemon cannot be managed.
    Nowhere,
    At(PathBuf),
}

impl Place {
    /// The path that was chosen.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::At(path) => Some(path),
            Self::Usual | Self::Nowhere => None,
        }
    }
}

impl FromStr for Place {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "none" { Self::Nowhere } else { Self::At(text.into()) })
    }
}

/// The reason why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Other users could put a socket of theirs there.
    #[error("the control socket is not looked for in {}: {why}", .directory.display())]
    Untrusted {
        directory: PathBuf,
        /// The reason.
        why: String,
    },
    #[error("{}: {source}", .directory.display())]
    Io { directory: PathBuf, source: io::Error },
}

/// Advice about a directory that is not trusted.
pub const REMEDY: &str =
    "remove it, set XDG_RUNTIME_DIR to a directory of your own, or name another place with --control PATH";

/// The directory of the system's daemon.
const SYSTEM: &str = "/run/stag";
/// The socket's name in its directory.
const NAME: &str = "control.sock";
/// Bits of a mode by which others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// The default directory of the socket.
struct Usual {
    directory: PathBuf,
    /// Whether any user may create a directory of this name. Then only the owner and the group
    /// [`peer::GROUP`] may enter it.
    in_public: bool,
}

impl Usual {
    fn new() -> Self {
        let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let user = rustix::process::geteuid();
        let (directory, in_public) = match (set("RUNTIME_DIRECTORY"), set("XDG_RUNTIME_DIR")) {
            // systemd made it for the service (RuntimeDirectory=). Of several, the first.
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

    /// Creates the directory if it is missing, and gives the group access.
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
            // With set-group-ID, new files get the group without a chown by name.
            let given = rustix::fs::fchown(&opened, None, Some(group))
                .and_then(|()| rustix::fs::fchmod(&opened, Mode::from_raw_mode(0o2750)));
            if let Err(error) = given {
                tracing::debug!(%error, "the control socket is for its owner alone");
            }
        }
        Ok(())
    }
}

/// The default socket path of this process's daemon. Creates its directory, and checks that it can
/// be trusted.
///
/// # Errors
/// The directory cannot be used.
pub fn for_daemon() -> Result<PathBuf, PlaceError> {
    let usual = Usual::new();
    usual.make()?;
    Ok(usual.directory.join(NAME))
}

/// The default socket path of this user's own daemon, whether it exists or not.
///
/// # Errors
/// Other users could have made the directory.
pub fn of_own() -> Result<PathBuf, PlaceError> {
    let usual = Usual::new();
    match usual.open() {
        Err(error @ PlaceError::Untrusted { .. }) => Err(error),
        // A directory that cannot be opened has no socket: connecting will report why.
        Ok(_) | Err(PlaceError::Io { .. }) => Ok(usual.directory.join(NAME)),
    }
}

/// The default socket path for a command: this user's own daemon's, else the system's.
///
/// # Errors
/// Other users could have made the directory.
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

/// Whether only root and `user` can have put the file at `path` there. They must own all
/// directories on the way, and no other user may write to them.
pub fn is_of(path: &Path, user: Uid) -> bool {
    let Ok(absolute) = std::path::absolute(path) else { return false };
    // Both the path as written and the resolved one have to be safe.
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

/// The group of new files in the directory of `path`.
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
        // As systemd makes one: others may read, not write.
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
