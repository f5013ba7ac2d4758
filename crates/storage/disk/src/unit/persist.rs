//! Storage for state that must outlive the daemon: the reservations of APTPL, and the record of a
//! sanitize. Knows nothing of its content.

use std::io;
use std::path::{Path, PathBuf};

use backing::durable;
pub use device::Persist;
use runtime::Pooled;

/// Stores the bytes in a file: see [`durable`].
#[derive(Clone, Debug)]
pub struct FilePersist {
    path: PathBuf,
}

impl FilePersist {
    /// Uses the file at `path`; its directory must exist at the first save.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Persist for FilePersist {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let path = self.path.clone();
        Pooled::new(async move {
            if runtime::is_running() {
                runtime::blocking(move || durable::replace(&path, &bytes)).await
            } else {
                durable::replace(&path, &bytes)
            }
        })
    }

    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        durable::read(&self.path, max)
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
    fn a_save_that_cannot_be_done_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let persist = FilePersist::new(directory.path().join("gone").join("unit.pr"));
        assert!(save(&persist, b"x").is_err());
    }
}
