//! How long a run of objects is that are all there, or none of which is.

use std::ffi::{c_int, c_void};

/// The first run of a list of pieces with data, which come in order.
pub(crate) struct Run {
    at: u64,
    end: u64,
    /// Where the pieces that have come end.
    next: u64,
    mapped: bool,
    /// No later piece belongs to it.
    pub(crate) ended: bool,
}

impl Run {
    pub(crate) fn new(at: u64, len: u64) -> Self {
        Self { at, end: at + len, next: at, mapped: false, ended: false }
    }

    /// Whether it goes on behind a piece with data.
    fn take(&mut self, at: u64, len: u64) -> bool {
        if at > self.next {
            // A hole before this piece: it ends the data before, or is the run itself.
            self.end = if self.mapped { self.next } else { at };
            self.ended = true;
            return false;
        }
        self.mapped = true;
        self.next = self.next.max(at.saturating_add(len));
        true
    }

    pub(crate) fn result(&self) -> (u64, bool) {
        let end = if self.mapped { self.next.min(self.end) } else { self.end };
        (end - self.at, self.mapped)
    }
}

/// The callback of `rbd_diff_iterate2`.
///
/// # Safety
/// `argument` is a [`Run`] that nothing else uses.
pub(crate) unsafe extern "C" fn differs(at: u64, len: usize, exists: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    let run = unsafe { &mut *argument.cast::<Run>() };
    if exists == 0 || run.take(at, len as u64) { 0 } else { -libc::ECANCELED }
}

/// The callback of `rbd_diff_iterate2` that counts bytes with data.
///
/// # Safety
/// `argument` is an `u64` that nothing else uses.
pub(crate) unsafe extern "C" fn adds(_at: u64, len: usize, exists: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    let sum = unsafe { &mut *argument.cast::<u64>() };
    if exists != 0 {
        *sum += len as u64;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_run(at: u64, len: u64, pieces: &[(u64, u64)]) -> (u64, bool) {
        let mut run = Run::new(at, len);
        let _ = pieces.iter().all(|&(at, len)| run.take(at, len));
        run.result()
    }

    #[test]
    fn the_first_run_ends_where_data_begins_or_ends() {
        assert_eq!(first_run(10, 90, &[]), (90, false));
        assert_eq!(first_run(10, 90, &[(40, 10), (50, 10)]), (30, false));
        assert_eq!(first_run(10, 90, &[(10, 10), (20, 30)]), (40, true));
        assert_eq!(first_run(10, 90, &[(10, 10), (30, 10)]), (10, true));
        assert_eq!(first_run(10, 90, &[(10, 90)]), (90, true));
        assert_eq!(first_run(10, 90, &[(8, 200)]), (90, true), "pieces may be larger than what was asked");
    }
}
