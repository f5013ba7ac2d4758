//! Another length for units' files. Initiators see a longer file only when nothing can fail any
//! more: what they write behind its old end would be lost if it were cut off again. A file is made
//! shorter last, when no command can write behind its new end, which would make it longer again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::size::Size;
use disk::unit::DiskUnit;

use super::open::OpenDisk;

/// Files that get another length. Dropped without [`Self::finish`], they have their old one.
#[derive(Default)]
pub struct Resizing(Vec<Resize>);

struct Resize {
    path: PathBuf,
    /// `None` for a device, whose size is its own.
    file: Option<File>,
    /// Its length before and afterwards, bytes.
    before: u64,
    after: u64,
    /// The size that initiators see until then, bytes.
    shown: u64,
    disk: OpenDisk,
}

impl Resizing {
    /// Makes the file of `disk` longer, or prepares to make it `bytes` long by `force`. `limit` has
    /// the unit limited ([`DiskUnit::limit`]), and waits for that.
    ///
    /// # Errors
    /// The file cannot be changed; it is as it was.
    pub fn begin(
        &mut self,
        path: &Path,
        disk: &OpenDisk,
        bytes: u64,
        force: bool,
        limit: impl Fn(Arc<DiskUnit>, u64) -> io::Result<()>,
    ) -> Result<(), String> {
        let failed = |error: io::Error| format!("{} cannot be resized: {error}", path.display());
        let about = std::fs::metadata(path).map_err(failed)?;
        let (before, is_device) = (about.len(), about.file_type().is_block_device());
        if before > bytes && !force && !is_device {
            return Err(format!(
                "{} has {} and would lose data: --force does it",
                path.display(),
                Size(before)
            ));
        }
        let file = match is_device {
            true => None,
            false => Some(OpenOptions::new().write(true).open(path).map_err(failed)?),
        };
        let shown = disk.opened.store.size();
        // Dropped on an error.
        let one = Resize { path: path.to_owned(), file, before, after: bytes, shown, disk: disk.clone() };
        match &one.file {
            Some(_) if before > bytes => {
                // It is smaller on purpose.
                one.expect(bytes);
                limit(disk.unit.clone(), bytes).map_err(failed)?;
            }
            Some(file) => {
                disk.opened.store.limit(Some(shown));
                file.set_len(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
            }
            None => {}
        }
        self.0.push(one);
        Ok(())
    }

    /// Makes files shorter, and has initiators see all of the others.
    ///
    /// # Errors
    /// Which files could not be made shorter. All others have their length.
    pub fn finish(self) -> Result<(), String> {
        let failed: Vec<String> = self.0.into_iter().filter_map(|one| one.finish().err()).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}

impl Resize {
    fn finish(mut self) -> Result<(), String> {
        // Dropping it has nothing to undo.
        let file = self.file.take();
        if let Some(file) = file.filter(|_| self.before > self.after)
            && let Err(error) = file.set_len(self.after).and_then(|()| file.sync_all())
        {
            self.expect(self.shown);
            let what = format!("{} could not be made shorter: {error}", self.path.display());
            tracing::error!("{what}");
            return Err(what);
        }
        self.expect(self.after);
        Ok(())
    }

    /// Sets the size without which the medium counts as shrunk.
    fn expect(&self, bytes: u64) {
        if let Some(health) = self.disk.opened.store.health() {
            health.expect_size(bytes);
        }
    }
}

impl Drop for Resize {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            if self.before < self.after {
                // Nothing was written there: the store has let no change through.
                if let Err(error) = file.set_len(self.before) {
                    tracing::warn!(path = %self.path.display(), %error, "has grown and stays as it is");
                }
            } else {
                self.expect(self.shown);
            }
        }
        self.disk.opened.store.limit(None);
        self.disk.unit.revalidate();
    }
}
