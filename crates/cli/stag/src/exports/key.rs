//! The key that proves file handles: made once, kept in the state directory, since handles outlive
//! the daemon.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::state;

/// The key of this machine's handles, made if it is missing.
///
/// # Errors
/// It can be neither read nor kept. Handles that become stale with the next start lose what clients
/// still have to write, so nothing is exported then.
pub fn kept() -> Result<[u8; 16], String> {
    at(&state::path("nfs", "handle-key")?)
}

fn at(file: &Path) -> Result<[u8; 16], String> {
    let failed = |what: &str, error: std::io::Error| {
        format!(
            "the key of file handles {what} ({}: {error}): set STATE_DIRECTORY to a directory that can be written",
            file.display()
        )
    };
    match fs::read(file) {
        Ok(bytes) => bytes.try_into().map_err(|_| {
            format!("{} is no key of 16 bytes: remove it, which makes every handle stale", file.display())
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            state::make_folder(file)?;
            let mut key = [0; 16];
            runtime::random(&mut key).map_err(|error| failed("cannot be made", error))?;
            let beside = file.with_extension("new");
            let written =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside);
            written
                .and_then(|mut open| {
                    open.write_all(&key)?;
                    open.sync_all()?;
                    fs::rename(&beside, file)?;
                    fs::File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
                })
                .map_err(|error| failed("cannot be kept", error))?;
            Ok(key)
        }
        Err(error) => Err(failed("cannot be read", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nfs/handle-key");
        let key = at(&file).unwrap();
        assert_eq!(at(&file), Ok(key));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(at(&dir.path().join("other/handle-key")).unwrap(), key);
        fs::write(&file, "short").unwrap();
        assert!(at(&file).unwrap_err().contains("no key"));
    }
}
