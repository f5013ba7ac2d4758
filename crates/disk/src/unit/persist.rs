//! Where a unit keeps what must outlive the daemon: the reservations that APTPL asks for. Owns the one small file's
//! durability; knows nothing of its content.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

pub use device::Persist;
use ring::Pooled;

/// Keeps the bytes in a file, replaced by renaming: written aside, synchronised, renamed, and the directory synchronised.
#[derive(Clone, Debug)]
pub struct FilePersist {
    path: PathBuf,
}

impl FilePersist {
    /// In the file at `path`; its directory has to exist when something is saved.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut aside = name.to_os_string();
        aside.push(".new");
        let aside = path.with_file_name(aside);
        let mut file = File::create(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&aside, path)?;
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    }
}

impl Persist for FilePersist {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let path = self.path.clone();
        Pooled::new(async move {
            if ring::is_running() {
                ring::blocking(move || Self::replace(&path, &bytes)).await
            } else {
                Self::replace(&path, &bytes)
            }
        })
    }

    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(max as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > max {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn save(persist: &FilePersist, bytes: &[u8]) -> io::Result<()> {
        match pin!(persist.save(bytes.to_vec())).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    #[test]
    fn the_last_bytes_saved_are_the_bytes_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let persist = FilePersist::new(directory.path().join("unit.pr"));
        assert_eq!(persist.load(10).unwrap(), None);
        save(&persist, b"one").unwrap();
        save(&persist, b"three").unwrap();
        assert_eq!(persist.load(10).unwrap().unwrap(), b"three");
        assert!(persist.load(4).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_save_that_cannot_be_done_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let persist = FilePersist::new(directory.path().join("gone").join("unit.pr"));
        assert!(save(&persist, b"x").is_err());
    }
}
