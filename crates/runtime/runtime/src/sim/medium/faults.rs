//! Faults of the medium for a run to cause, and its content. A path that does not exist is left
//! alone.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::super::with;
use super::{Disturbed, Medium};

fn medium<T>(f: impl FnOnce(&mut Medium) -> T) -> T {
    with(|state, _| f(&mut state.medium)).expect("in a world")
}

fn disturb(path: &Path, f: impl FnOnce(&mut Disturbed)) {
    medium(|medium| {
        if let Some(id) = medium.names.get(path) {
            f(&mut medium.contents[*id].disturbed);
        }
    });
}

/// Cuts the power of the medium. Every operation fails until [`power_on`].
pub fn cut_power() {
    medium(Medium::cut_power);
}

/// Cuts the power at the operation of this number from now on, counted from 1.
pub fn cut_power_after(operations: u64) {
    medium(|medium| medium.cut_after = Some(operations));
}

/// Whether the medium has power.
pub fn is_powered() -> bool {
    medium(|medium| medium.powered)
}

/// Starts the machine again after a power cut. Files that were open are no more.
///
/// # Errors
/// The machine has no memory for them.
pub fn power_on() -> std::io::Result<()> {
    medium(Medium::power_on)
}

/// This number of reads of a file fail with EIO.
pub fn fail_reads(path: &Path, times: u64) {
    disturb(path, |disturbed| disturbed.reads += times);
}

/// This number of writes of a file fail with EIO, perhaps after a part of them.
pub fn fail_writes(path: &Path, times: u64) {
    disturb(path, |disturbed| disturbed.writes += times);
}

/// Writing a file back fails once, and its dirty pages are clean then: in the next flush, or in the
/// background before it.
pub fn fail_flush(path: &Path) {
    disturb(path, |disturbed| disturbed.flush = true);
}

/// Limits the bytes that can still be allocated for a file.
pub fn limit_space(path: &Path, bytes: Option<u64>) {
    disturb(path, |disturbed| disturbed.room = bytes);
}

/// Forgets all clean pages: those that could not be written back show what is on the medium.
/// Returns whether there were any.
///
/// # Errors
/// The machine fails.
pub fn drop_caches() -> std::io::Result<bool> {
    medium(|medium| medium.contents.iter_mut().try_fold(false, |any, content| Ok(content.evict()? || any)))
}

/// Sets the range of an operation's duration.
pub fn set_delay(delay: Range<Duration>) {
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4);
    medium(|medium| medium.delay = nanoseconds(delay.start)..nanoseconds(delay.end));
}

/// Content of a file on the medium, under the name that a power cut would leave it.
pub fn on_medium(path: &Path) -> Option<Vec<u8>> {
    medium(|medium| Some(medium.contents[*medium.durable_names.get(path)?].medium()))
}
