//! Managed documents that were replaced. The latest are kept beside the document, so that a change
//! can be undone. Owns their files, `managed.GENERATION.toml`, and how many there are. Each is
//! named after the last generation in which it was in force.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::managed::{self, Document};

/// Documents that are kept.
const MOST: usize = 32;

/// A document that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    /// The last generation in which it was in force.
    pub generation: u64,
    /// When it was written, seconds since 1970.
    pub written_unix_s: u64,
    /// Its targets and exports.
    pub targets: usize,
    pub exports: usize,
}

/// Keeps the document at `path`, which is about to be replaced, and was in force in `generation`.
/// The new file is no copy, and costs no wait for a medium: a power cut may lose it.
///
/// # Errors
/// The system's.
pub fn keep(path: &Path, generation: u64) -> Result<(), String> {
    let kept = file(path, generation);
    let failed = |error: io::Error| format!("{} cannot be kept: {error}", kept.display());
    match fs::remove_file(&kept) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    match fs::hard_link(path, &kept) {
        // The first document: before it there was none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Document::default().write(&kept)?,
        linked => linked.map_err(failed)?,
    }
    for old in generations(path).into_iter().skip(MOST) {
        if let Err(error) = fs::remove_file(file(path, old)) {
            tracing::warn!(%error, "an old managed document stays");
        }
    }
    Ok(())
}

/// Takes back what [`keep`] has done, after the document that was to replace the one at `path` could
/// not be written. The old document is at `path` then, though the new one may have got there: a
/// rename whose directory could not be synchronised.
pub fn restore(path: &Path, generation: u64) {
    let kept = file(path, generation);
    // Two names of one file both stay: rename(2).
    let restored = fs::rename(&kept, path).and_then(|()| match fs::remove_file(&kept) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    if let Err(error) = restored {
        tracing::error!(path = %path.display(), %error, "the managed document may be that of a change that failed");
    }
}

/// The documents that are kept, as they were listed last, each with its inode: each is read once.
#[derive(Default)]
pub struct Listed(Mutex<Vec<(u64, Earlier)>>);

impl Listed {
    /// The documents that are kept, the latest first. Reads those that were not listed before.
    ///
    /// # Errors
    /// There is no state directory.
    pub fn list(&self) -> Result<Vec<Earlier>, String> {
        Ok(self.of(&managed::path()?))
    }

    fn of(&self, path: &Path) -> Vec<Earlier> {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |generation| {
            let path = file(path, generation);
            let about = fs::metadata(&path).ok()?;
            let written = about.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let is_it = |(inode, one): &&(u64, Earlier)| {
                (*inode, one.generation, one.written_unix_s) == (about.ino(), generation, written)
            };
            if let Some(known) = before.iter().find(is_it) {
                return Some(known.clone());
            }
            let document = Document::read(&path).ok()?;
            let found = Earlier {
                generation,
                written_unix_s: written,
                targets: document.targets().len(),
                exports: document.exports().len(),
            };
            Some((about.ino(), found))
        };
        let all: Vec<(u64, Earlier)> = generations(path).into_iter().filter_map(one).collect();
        before.clone_from(&all);
        all.into_iter().map(|(_, one)| one).collect()
    }
}

/// The latest generation whose document is kept.
pub fn latest() -> Option<u64> {
    generations(&managed::path().ok()?).first().copied()
}

/// The document that was in force in `generation`; without it, the latest.
///
/// # Errors
/// It is not kept, or cannot be read.
pub fn find(generation: Option<u64>) -> Result<Document, String> {
    found(&managed::path()?, generation)
}

fn found(path: &Path, generation: Option<u64>) -> Result<Document, String> {
    let all = generations(path);
    let generation = match generation {
        None => *all.first().ok_or("no managed document was replaced: there is nothing to undo")?,
        Some(wanted) if all.contains(&wanted) => wanted,
        Some(wanted) => return Err(format!("the managed document of generation {wanted} is not kept")),
    };
    Document::read(&file(path, generation)).map_err(|error| error.lines())
}

/// The file of a generation, beside the document at `path`.
fn file(path: &Path, generation: u64) -> PathBuf {
    path.with_extension(format!("{generation}.toml"))
}

/// Generations whose documents are kept, the latest first.
fn generations(path: &Path) -> Vec<u64> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let number = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let number = name.strip_prefix(stem.as_ref())?.strip_prefix('.')?.strip_suffix(".toml")?;
        number.parse().ok()
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<u64> = entries.filter_map(number).collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn document(name: u64) -> Document {
        let target = json!({ "iqn": format!("iqn.2026-01.org.example:{name}"), "unit": [] });
        Document::from_json(json!({ "target": [target] })).unwrap()
    }

    #[test]
    fn the_latest_documents_are_kept_and_found_by_their_generation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.toml");
        assert_eq!(Listed::default().of(&path), []);
        assert!(found(&path, None).unwrap_err().contains("nothing to undo"));
        for generation in 0..40 {
            keep(&path, generation).unwrap();
            document(generation).write(&path).unwrap();
        }
        let all = Listed::default().of(&path);
        assert_eq!((all.len(), all[0].generation, all[MOST - 1].generation), (MOST, 39, 8));
        assert_eq!((all[0].targets, all[0].exports), (1, 0));
        // In generation 39 that of the change before was in force.
        assert_eq!(found(&path, Some(39)).unwrap(), document(38));
        assert_eq!(found(&path, None).unwrap(), document(38));
        assert_eq!(Document::read(&path).unwrap(), document(39));
        assert!(found(&path, Some(7)).unwrap_err().contains("generation 7 is not kept"));
        let kept = fs::metadata(file(&path, 39)).unwrap();
        assert_eq!(kept.permissions().mode() & 0o777, 0o600, "it has secrets");
    }

    #[test]
    fn a_document_that_could_not_be_written_leaves_the_one_before_and_nothing_to_undo() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.toml");
        keep(&path, 1).unwrap();
        document(1).write(&path).unwrap();
        for new_is_there in [false, true] {
            keep(&path, 2).unwrap();
            if new_is_there {
                document(2).write(&path).unwrap();
            }
            restore(&path, 2);
            assert_eq!(Document::read(&path).unwrap(), document(1));
            assert_eq!(generations(&path), [1]);
        }
    }

    #[test]
    fn a_document_is_read_once_to_be_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.toml");
        document(1).write(&path).unwrap();
        keep(&path, 1).unwrap();
        let listed = Listed::default();
        let all = listed.of(&path);
        assert_eq!((all.len(), all[0].targets), (1, 1));
        let kept = file(&path, 1);
        let modified = fs::metadata(&kept).unwrap().modified().unwrap();
        fs::write(&kept, "[[").unwrap();
        fs::File::options().write(true).open(&kept).unwrap().set_modified(modified).unwrap();
        assert_eq!(listed.of(&path), all);
        document(2).write(&path).unwrap();
        keep(&path, 2).unwrap();
        let all = listed.of(&path);
        assert_eq!(all.iter().map(|one| one.generation).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn before_the_first_change_the_document_was_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.toml");
        keep(&path, 5).unwrap();
        document(5).write(&path).unwrap();
        assert_eq!(found(&path, Some(5)).unwrap(), Document::default());
        // A change that failed after this has left a file: the next one replaces it.
        keep(&path, 5).unwrap();
        assert_eq!(found(&path, Some(5)).unwrap(), document(5));
        fs::write(dir.path().join("managed.x.toml"), "").unwrap();
        fs::write(dir.path().join("managed.6.toml.new"), "").unwrap();
        assert_eq!(Listed::default().of(&path).len(), 1);
    }
}
