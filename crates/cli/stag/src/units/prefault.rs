//! `prefault`: allocates a unit's memory, or its file's blocks, before it is served, so that no
//! write has to wait for them.

use std::fs::File;
use std::time::{Duration, Instant};

use backing::Io;
use backing::size::Size;
use rustix::fs::FallocateFlags;

use super::open::OpenDisk;
use crate::unit::{Backing, UnitSpec};

/// Bytes between two checks of the clock: of a memory unit zeroed at once, of a file allocated at
/// once.
const OF_MEMORY: u64 = 4 << 20;
const OF_FILE: u64 = 256 << 20;
/// Time before the first progress message, and between two of them.
const SILENT: Duration = Duration::from_secs(1);

/// Allocates all of a unit that is not in use yet. Reports progress on stderr.
///
/// # Errors
/// Not all of it can be allocated.
pub fn prefault(spec: &UnitSpec, disk: &OpenDisk) -> Result<(), String> {
    let (size, name) = (disk.opened.store.size(), spec.backing.to_string());
    let failed =
        |error: &dyn std::fmt::Display| format!("{name} cannot be prefaulted ({error}): leave prefault out");
    let file = match &spec.backing {
        Backing::Path(path) => Some(File::options().write(true).open(path).map_err(|error| failed(&error))?),
        _ => None,
    };
    // A device has all of its blocks.
    if file.as_ref().is_some_and(is_device) {
        return Ok(());
    }
    let (mut said, mut done) = (Instant::now(), 0);
    while done < size {
        let len = if file.is_some() { OF_FILE } else { OF_MEMORY }.min(size - done);
        match &file {
            // Existing data stays.
            Some(file) => rustix::fs::fallocate(file, FallocateFlags::empty(), done, len)
                .map_err(|error| failed(&error))?,
            None => match disk.opened.store.write_zeros(done, len, false) {
                Io::Ready(Some(Err(error))) => return Err(failed(&error)),
                Io::Ready(_) => {}
                Io::Running(_) => return Err(failed(&"it is no memory")),
            },
        }
        done += len;
        if said.elapsed() > SILENT {
            said = Instant::now();
            say!("stag: {name}: {} of {} prefaulted", Size(done), Size(size));
        }
    }
    Ok(())
}

fn is_device(file: &File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.metadata().is_ok_and(|about| about.file_type().is_block_device())
}
