//! A counter with one cache line per core, so that counting never takes a line from another core.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of lines; with more threads some share a line, which is slower but still correct.
const LINES: usize = 64;

/// A count on a cache line (and its prefetched neighbour) of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LINES;
    }
    MINE.with(|mine| *mine)
}

/// The sum of all threads' additions since it was last taken. All operations are sequentially
/// consistent, so earlier additions are visible.
#[derive(Debug)]
pub(crate) struct Sharded(Box<[Line]>);

impl Sharded {
    /// A sum of 0.
    pub(crate) fn new() -> Self {
        Self((0..LINES).map(|_| Line::default()).collect())
    }

    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0[line()].0.fetch_add(n, Ordering::SeqCst);
    }

    /// The sum, with each line read at some moment of the call.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, line| sum.saturating_add(line.0.load(Ordering::SeqCst)))
    }

    /// Resets the sum to 0.
    pub(crate) fn clear(&self) {
        for line in &self.0 {
            // Read first: most lines belong to cores that wrote nothing.
            if line.0.load(Ordering::SeqCst) != 0 {
                line.0.swap(0, Ordering::SeqCst);
            }
        }
    }
}
