//! A counter that each core counts in a cache line of its own, so that counting never takes a line from another core.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many lines there are; threads beyond that many share them, which is slower and as right.
const LINES: usize = 64;

/// A count with a cache line (and its prefetched neighbour) to itself.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

/// This thread's line.
fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LINES;
    }
    MINE.with(|mine| *mine)
}

/// The sum of what all threads added since it was last taken. All of its operations are sequentially consistent, so that
/// what was added before is seen.
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

    /// The sum of what was added, each line as it was at some moment of the call.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, line| sum.saturating_add(line.0.load(Ordering::SeqCst)))
    }

    /// Makes it 0 again.
    pub(crate) fn clear(&self) {
        for line in &self.0 {
            // Looked at first: most lines belong to cores that wrote nothing.
            if line.0.load(Ordering::SeqCst) != 0 {
                line.0.swap(0, Ordering::SeqCst);
            }
        }
    }
}
