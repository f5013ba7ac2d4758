//! State of memory units in the state directory: their identity and their persistent reservations.
//! Both are removed when `stag apply` removes the unit, or some time after a daemon has served it
//! last. Must never remove the state of a unit that a daemon serves.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use backing::durable;
use rustix::fs::FlockOperation;

use super::beside;
use crate::state;

/// Prefix of the keys of units in memory.
pub const PREFIX: &str = "memory:";
/// Records of a unit that no daemon serves are kept so long.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// The exclusive right to serve memory under a key of the state directory.
#[derive(Debug)]
pub struct Claim {
    /// The file of the identity.
    record: PathBuf,
    /// Its modification time is the last time that a daemon had the claim.
    lock: File,
    ends: AtomicBool,
}

impl Claim {
    /// Takes a key.
    ///
    /// # Errors
    /// Another daemon has it, or the system refuses.
    pub fn take(key: &str) -> Result<Self, String> {
        let record = state::path("identities", key)?;
        state::make_folder(&record)?;
        // A daemon that hands over, or was killed, may still be closing its files.
        for _ in 0..20 {
            match Self::try_take(record.clone()) {
                Ok(Some(claim)) => return Ok(claim),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(format!("{} cannot be locked: {error}", record.display())),
            }
        }
        Err("another daemon serves memory as the same unit of the same target".into())
    }

    /// `None`: another daemon has it.
    fn try_take(record: PathBuf) -> io::Result<Option<Self>> {
        let path = beside(&record, "lock");
        let lock =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let number = |about: fs::Metadata| (about.dev(), about.ino());
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        // The previous holder may have removed the file.
        if !locked || fs::metadata(&path).map(number).ok() != Some(number(lock.metadata()?)) {
            return Ok(None);
        }
        let claim = Self { record, lock, ends: AtomicBool::new(false) };
        claim.touch();
        Ok(Some(claim))
    }

    /// Called when the unit is removed: its records are removed with this claim.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    fn touch(&self) {
        if let Err(error) = self.lock.set_modified(SystemTime::now()) {
            tracing::debug!(path = %self.record.display(), %error, "when it was served last is not known");
        }
    }

    fn remove(&self) -> io::Result<()> {
        let name = self.record.file_name().unwrap_or_default();
        if let Some(state) = state::directory() {
            durable::remove(&state.join("reservations").join(name))?;
        }
        durable::remove(&self.record)?;
        fs::remove_file(beside(&self.record, "lock"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.ends.load(Ordering::Relaxed) {
            return self.touch();
        }
        if let Err(error) = self.remove() {
            tracing::warn!(path = %self.record.display(), %error, "the identity of memory that was taken out stays");
        }
    }
}

/// Removes the records of memory that no daemon has served for a long time.
pub fn sweep() {
    let Some(folder) = state::directory().map(|state| state.join("identities")) else { return };
    let Ok(entries) = fs::read_dir(&folder) else { return };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let Some(record) = name.starts_with(PREFIX).then(|| folder.join(name.trim_end_matches(".lock")))
        else {
            continue;
        };
        if is_old(&beside(&record, "lock")).unwrap_or_else(|| is_old(&record).unwrap_or(false))
            && let Ok(Some(claim)) = Claim::try_take(record)
        {
            tracing::info!(path = %claim.record.display(), days = KEPT.as_secs() / 86400, "no daemon has served this memory for so long: its identity is removed");
            claim.end();
        }
    }
}

/// `None` if it is not there.
fn is_old(path: &Path) -> Option<bool> {
    let modified = fs::metadata(path).and_then(|about| about.modified()).ok()?;
    Some(modified.elapsed().is_ok_and(|age| age > KEPT))
}
