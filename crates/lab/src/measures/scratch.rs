//! Files that a measure needs for one point: written whole, so that nothing measured meets a hole, and gone when they are dropped.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::context::Context;
use crate::measure::Error;

/// Where files are kept in memory.
const SHM: &str = "/dev/shm";
/// Bytes written at once.
const PIECE: usize = 1 << 20;

/// A file that is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A file of `len` bytes, none of them zero, in the point's folder, or where the system keeps files in memory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn file(context: &Context, in_memory: bool, len: u64) -> Result<Self, Error> {
        let folder = if in_memory { Path::new(SHM) } else { context.folder.as_path() };
        if in_memory && !folder.is_dir() {
            return Err(Error::Missing(format!("there is no {SHM} to keep a file in memory")));
        }
        let path = folder.join(format!("stag-lab-{}-{}.img", std::process::id(), context.seed));
        let scratch = Self { path };
        scratch.fill(len).map_err(Error::io(scratch.path.display().to_string()))?;
        Ok(scratch)
    }

    fn fill(&self, len: u64) -> std::io::Result<()> {
        let mut file = File::create(&self.path)?;
        let piece = vec![0xA5; PIECE];
        let mut left = len;
        while left > 0 {
            let here = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            file.write_all(piece.get(..here).unwrap_or(&piece))?;
            left -= here as u64;
        }
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever is left of it is in a folder for such things.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_as_long_as_was_asked_for_and_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let context =
            Context::new("stag".into(), folder.path().into(), Duration::from_secs(5), Default::default());
        let scratch = Scratch::file(&context, false, (PIECE + 7) as u64).unwrap();
        let path = scratch.path().to_owned();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == PIECE + 7 && bytes.iter().all(|byte| *byte == 0xA5));
        drop(scratch);
        assert!(!path.exists());
    }
}
