//! The mark file of a failed flush: the error and its time. Owns its format. Only the existence of
//! the file matters; its content is for people.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::durable;

/// The maximum size of a mark file to read, bytes.
const MAX: usize = 64 << 10;
const HEAD: &str = "stag flush-failed 1";

/// A flush that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub errno: i32,
    /// Time of the failure, seconds since 1970.
    pub unix_s: u64,
}

/// A file that stores a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// Whether to create its folder, with access for this user only, when there is a mark to store.
    pub make_folder: bool,
}

impl Mark {
    /// Writes the mark durably to the file at `place`. `path` is the medium's.
    pub(super) fn save(&self, Place { file: place, make_folder }: &Place, path: &str) -> io::Result<()> {
        let error = io::Error::from_raw_os_error(self.errno);
        // A path may contain line breaks.
        let path = path.escape_debug();
        let text = format!(
            "{HEAD}\nerrno {}\nunix_s {}\npath {path}\n# {error}. Acknowledged writes may be lost. \
             `stag acknowledge` removes this file.\n",
            self.errno, self.unix_s
        );
        if let Ok(Some(there)) = durable::read(place, MAX)
            && there == text.as_bytes()
        {
            return Ok(());
        }
        if let (true, Some(folder)) = (*make_folder, place.parent()) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        durable::replace(place, text.as_bytes())
    }
}

/// Whether this user has no access to the directory of `place`.
fn is_barred(place: &Path) -> bool {
    std::fs::symlink_metadata(place).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The mark in the file at `place`. An unreadable or invalid file counts as a mark.
pub(super) fn load(place: &Path) -> Option<Mark> {
    let unknown = || {
        let written = std::fs::metadata(place).and_then(|about| about.modified()).ok();
        let since = written.unwrap_or_else(SystemTime::now).duration_since(UNIX_EPOCH);
        Mark { errno: libc::EIO, unix_s: since.map_or(0, |since| since.as_secs()) }
    };
    let bytes = match durable::read(place, MAX) {
        Ok(bytes) => bytes?,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return None,
        // No access to the directory, so no daemon of this user can have stored a mark there.
        Err(_) if is_barred(place) => return None,
        Err(error) => {
            tracing::error!(at = %place.display(), %error, "whether a flush failed cannot be read: taken as failed");
            return Some(unknown());
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    let number = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse::<u64>().ok())
    };
    let errno = number("errno").and_then(|errno| i32::try_from(errno).ok()).filter(|errno| *errno > 0);
    Some(match (text.lines().next(), errno, number("unix_s")) {
        (Some(HEAD), Some(errno), Some(unix_s)) => Mark { errno, unix_s },
        _ => unknown(),
    })
}
