//! Generations of descriptors' numbers: they tell a file from the one that had its number before. A
//! number's generation changes when operations begin to wait for another file.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of descriptors that are this far apart share a generation. One that changes too often
/// costs a registration.
const APART: usize = 4096;

static GENERATIONS: [AtomicU32; APART] = [const { AtomicU32::new(0) }; APART];

fn number(fd: RawFd) -> &'static AtomicU32 {
    &GENERATIONS[fd as usize % APART]
}

/// The generation of a descriptor's number.
pub(super) fn generation(fd: RawFd) -> u32 {
    number(fd).load(Ordering::Relaxed)
}

/// The number belongs to another file from now on.
pub(super) fn begin(fd: RawFd) {
    number(fd).fetch_add(1, Ordering::Relaxed);
}
