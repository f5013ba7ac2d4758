//! Small files that survive a crash whole: replaced by renaming, with the directory synchronised.
//!
//! Owns the write procedure of such a file, and its mode, 0600; knows nothing of its content. It
//! blocks.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use runtime::{OpenOptions, files};

/// Makes `bytes` the content of the file at `path`. After a crash at any moment the file has the
/// old content or the new one.
///
/// # Errors
/// Those of the system; the file has the old content or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut aside = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
    aside.push(".new");
    let aside = path.with_file_name(aside);
    // An existing file may be left over from a crash, or a link that another user put there.
    match files::remove(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let new = OpenOptions { create_new: true, private: true, ..OpenOptions::default() };
    let file = files::open(&aside, new)?;
    let written = files::write(&file, bytes).and_then(|()| files::sync(&file));
    drop(file);
    if let Err(error) = written.and_then(|()| files::rename(&aside, path)) {
        let _ = files::remove(&aside);
        return Err(error);
    }
    sync_directory(path)
}

/// Removes the file at `path`, durably. A missing file is no error.
pub fn remove(path: &Path) -> io::Result<()> {
    match files::remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_directory(path),
    }
}

/// Removes other users' rights from a file that an earlier version created. Ignores a failure.
fn make_private(file: &File) {
    let others_may = file.metadata().is_ok_and(|about| about.permissions().mode() & 0o077 != 0);
    if others_may && let Err(error) = file.set_permissions(fs::Permissions::from_mode(0o600)) {
        tracing::debug!(%error, "a file that others may read stays as it is");
    }
}

/// The content of the file at `path`; `None` if there is no such file.
///
/// # Errors
/// Those of the system; `InvalidData` if the file holds more than `max` bytes.
pub fn read(path: &Path, max: usize) -> io::Result<Option<Vec<u8>>> {
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let file = match files::open(path, read_only) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    make_private(&file);
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some(bytes))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    files::sync_directory(directory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_last_content_is_read_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("unit.mark");
        assert_eq!(read(&path, 10).unwrap(), None);
        replace(&path, b"one").unwrap();
        replace(&path, b"three").unwrap();
        assert_eq!(read(&path, 10).unwrap().unwrap(), b"three");
        assert!(read(&path, 4).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_others_may_read_becomes_private_when_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("unit.reservations");
        fs::write(&path, b"keys").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&path, 10).unwrap().unwrap(), b"keys");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("mark"), directory.path().join("victim"));
        fs::write(&victim, b"mine").unwrap();
        symlink(&victim, directory.path().join("mark.new")).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_directory_that_is_missing_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(replace(&directory.path().join("gone").join("mark"), b"x").is_err());
    }
}
