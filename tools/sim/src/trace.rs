//! What happened, line by line: the newest lines for people, a digest of all of them for the proof that a seed repeats.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::rc::Rc;

use crate::clock::Clock;

/// Lines kept for a report.
const KEPT: usize = 600;

/// The record of a run.
pub struct Trace {
    clock: Rc<Clock>,
    lines: RefCell<VecDeque<String>>,
    digest: Cell<u64>,
    count: Cell<u64>,
    /// Print each line as it comes.
    loud: bool,
}

impl Trace {
    /// An empty record. `loud` prints it to standard error as it grows.
    pub fn new(clock: Rc<Clock>, loud: bool) -> Self {
        Self {
            clock,
            lines: RefCell::default(),
            digest: Cell::new(0xcbf2_9ce4_8422_2325),
            count: Cell::new(0),
            loud,
        }
    }

    /// Adds a line.
    pub fn line(&self, text: fmt::Arguments<'_>) {
        let now = self.clock.now();
        let mut lines = self.lines.borrow_mut();
        let mut line = match lines.len() < KEPT {
            true => String::new(),
            false => lines.pop_front().unwrap_or_default(),
        };
        line.clear();
        // Writing to a string does not fail.
        let _ = write!(line, "{:>10}.{:03} ms  {text}", now / 1000, now % 1000);
        let digest = line
            .bytes()
            .fold(self.digest.get(), |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        self.digest.set(digest);
        self.count.set(self.count.get() + 1);
        if self.loud {
            eprintln!("{line}");
        }
        lines.push_back(line);
    }

    /// A digest of all lines so far.
    pub fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// How many lines there were.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// The newest lines.
    pub fn tail(&self) -> Vec<String> {
        self.lines.borrow().iter().cloned().collect()
    }
}

/// Adds a line to a [`Trace`], as `format!` would make it.
macro_rules! note {
    ($trace:expr, $($text:tt)*) => { $trace.line(format_args!($($text)*)) };
}
pub(crate) use note;
