//! Files that a measure needs for one point, removed on drop, and folders for sockets. Files are
//! fully written, so that no measured request meets a hole.

use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, Mode, OFlags, fadvise};

use crate::context::{Context, SCRATCH_NAME, SHM, drop_scratch, make_scratch};
use crate::measure::Error;

/// The maximum length of a socket folder's path, bytes: the limit of a socket path (`sockaddr_un`,
/// 107) less the socket's own name.
const LONGEST: usize = 70;
/// The alignment of direct I/O, bytes.
const ALIGNED: usize = 4096;
/// Bytes per write.
const PIECE: usize = 1 << 20;

/// The types of file systems in memory (statfs(2)).
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Why a file cannot be read past the page cache.
fn direct_problem(path: &Path) -> Option<String> {
    let read = || {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?;
        // O_DIRECT wants memory at a multiple of the block size.
        let mut buffer = vec![0_u8; 2 * ALIGNED];
        let at = buffer.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        rustix::io::pread(&file, buffer.get_mut(at..at + ALIGNED).unwrap_or_default(), 0)
    };
    read().err().map(|error| format!("the file system of the results does not support O_DIRECT ({error})"))
}

/// A file that is removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A file of `len` nonzero bytes, in the point's folder, or in the system's in-memory file
    /// system.
    pub fn file(context: &Context, in_memory: bool, len: u64) -> Result<Self, Error> {
        let folder = if in_memory { Path::new(SHM) } else { context.folder.as_path() };
        if in_memory && !folder.is_dir() {
            return Err(Error::Missing(format!("there is no {SHM} to keep a file in memory")));
        }
        let path = folder.join(format!("{SCRATCH_NAME}{}-{}.img", std::process::id(), context.seed));
        let scratch = Self { path };
        scratch.fill(len).map_err(Error::io(scratch.path.display().to_string()))?;
        Ok(scratch)
    }

    fn fill(&self, len: u64) -> std::io::Result<()> {
        let mut file = make_scratch(&self.path, |path| File::create(path))?;
        let piece = vec![0xA5; PIECE];
        let mut left = len;
        while left > 0 {
            let here = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            file.write_all(piece.get(..here).unwrap_or(&piece))?;
            left -= here as u64;
        }
        Ok(())
    }

    /// Brings it to its medium and out of the page cache, for units that go past that.
    ///
    /// # Errors
    /// If it cannot be written; [`Error::Missing`] if its file system has no medium, or no
    /// O_DIRECT.
    pub fn settle(&self) -> Result<(), Error> {
        let settle = || {
            let file = File::open(&self.path)?;
            if [TMPFS, RAMFS].contains(&rustix::fs::fstatfs(&file)?.f_type) {
                return Ok(Some("the file system of the results keeps its files in memory".to_owned()));
            }
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            Ok(direct_problem(&self.path))
        };
        match settle().map_err(Error::io(self.path.display().to_string()))? {
            None => Ok(()),
            Some(why) => Err(Error::Missing(format!("{why}: name a disk's folder with --out"))),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop_scratch(&self.path);
    }
}

/// A folder for sockets with a short path without commas, accessible to this user alone. Removed
/// with its sockets on drop.
#[derive(Debug)]
pub struct Sockets {
    path: PathBuf,
}

impl Sockets {
    /// Makes the folder of this name, which must not exist.
    pub fn new(name: &str) -> Result<Self, Error> {
        let name = format!("{SCRATCH_NAME}{}-{name}", std::process::id());
        let mut path = std::env::temp_dir().join(&name);
        if path.as_os_str().len() > LONGEST || path.display().to_string().contains([',', ' ']) {
            path = Path::new("/tmp").join(&name);
        }
        make_scratch(&path, |path| DirBuilder::new().mode(0o700).create(path))
            .map_err(Error::io(path.display().to_string()))?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        drop_scratch(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::context::remove_scratch;

    /// Also when the lab ends without destructors.
    #[test]
    fn scratch_files_have_their_length_and_are_always_removed() {
        let folder = tempfile::tempdir().unwrap();
        let context =
            Context::new("stag".into(), folder.path().into(), Duration::from_secs(5), Default::default());
        let scratch = Scratch::file(&context, false, (PIECE + 7) as u64).unwrap();
        let path = scratch.path().to_owned();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == PIECE + 7 && bytes.iter().all(|byte| *byte == 0xA5));
        drop(scratch);
        assert!(!path.exists());
        // The cleanup of a lab that exits at once.
        let (scratch, sockets) = (Scratch::file(&context, false, 1).unwrap(), Sockets::new("test").unwrap());
        fs::write(sockets.path().join("socket"), "").unwrap();
        assert!(scratch.path().exists() && sockets.path().as_os_str().len() <= LONGEST);
        remove_scratch();
        assert!(!scratch.path().exists() && !sockets.path().exists());
    }

    #[test]
    fn a_file_in_memory_cannot_stand_for_a_disk() {
        let folder = tempfile::tempdir().unwrap();
        let context =
            Context::new("stag".into(), folder.path().into(), Duration::from_secs(5), Default::default());
        let file = Scratch::file(&context, true, 8192).unwrap();
        let error = file.settle().unwrap_err();
        assert!(matches!(&error, Error::Missing(why) if why.contains("memory")), "{error}");
        // A pipe has no blocks to read past a cache.
        assert!(direct_problem(Path::new("/proc/self/status")).is_some());
    }

    #[test]
    fn what_a_lab_left_that_was_killed_is_removed_once_it_is_old() {
        use crate::context::remove_what_others_left;
        // Beyond every process id (pid_max is 4194304 at most).
        let folder = Path::new("/tmp").join(format!("{SCRATCH_NAME}{}-test", 4_200_000 + std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        remove_what_others_left();
        assert!(folder.exists(), "it may be in use where processes have other ids");
        let old = std::time::SystemTime::now() - Duration::from_secs(7200);
        File::open(&folder).and_then(|file| file.set_modified(old)).unwrap();
        remove_what_others_left();
        assert!(!folder.exists());
    }
}
