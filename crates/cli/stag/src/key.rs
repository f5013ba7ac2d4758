//! Keys of this machine that outlive the daemon: made once, kept in the state directory, readable by
//! the daemon's user alone. Knows nothing of their use.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::state;

/// The key in `file`, made if it is missing. `of`: the use of the key; `lost`: the consequence of a
/// new one; both for errors.
///
/// # Errors
/// It can be neither read nor kept.
pub fn kept<const N: usize>(file: &Path, of: &str, lost: &str) -> Result<[u8; N], String> {
    let failed = |error: std::io::Error| {
        let help = "set STATE_DIRECTORY to a directory that can be written";
        format!("{}, the key of {of}: {error}; {help}", file.display())
    };
    state::make_folder(file)?;
    // Daemons that start at the same time make one key.
    let folder = File::open(file.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    let mut key = [0; N];
    match backing::durable::read(file, key.len()).map_err(failed)? {
        Some(bytes) => bytes
            .try_into()
            .map_err(|_| format!("{} is no key of {N} bytes: remove it, {lost}", file.display())),
        None => {
            runtime::random(&mut key).and_then(|()| backing::durable::replace(file, &key)).map_err(failed)?;
            Ok(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(file: &Path) -> Result<[u8; 16], String> {
        kept(file, "tests", "which loses nothing")
    }

    #[test]
    fn daemons_that_start_together_have_one_key() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20 {
            let file = dir.path().join(format!("{n}/handle-key"));
            let start = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                let make = || {
                    start.wait();
                    at(&file).unwrap()
                };
                let made: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
                let keys: Vec<_> = made.into_iter().map(|made| made.join().unwrap()).collect();
                assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
            });
        }
    }

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nfs/handle-key");
        let key = at(&file).unwrap();
        assert_eq!(at(&file), Ok(key));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(at(&dir.path().join("other/handle-key")).unwrap(), key);
        std::fs::write(&file, "short").unwrap();
        assert!(at(&file).unwrap_err().contains("no key"));
    }
}
