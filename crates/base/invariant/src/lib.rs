//! Conditions that hold unless the program has a defect.
//!
//! A silent `else { return }` for a case that cannot happen hides the defect that makes it happen.
//! [`invariant!`] and [`broken!`] make it speak. With debug assertions (in tests, in the simulator
//! and in fuzz targets) a broken invariant panics. Without them the first one at each place is
//! passed to the function that the program has set by [`report_to`], and the caller goes on with
//! its fallback.
//!
//! Never use them for what a peer, a user or the kernel can cause: that is input, and has an error
//! of its own. Message and arguments are formatted only when the invariant is broken.
//!
//! ```
//! # struct Task { room: usize }
//! # fn take(task: Option<&mut Task>, len: usize) {
//! let Some(task) = task else {
//!     invariant::broken!("a task without a slot, {len} bytes");
//!     return;
//! };
//! let len = if invariant::invariant!(len <= task.room, "{len} of {} bytes", task.room) {
//!     len
//! } else {
//!     task.room
//! };
//! # task.room -= len;
//! # }
//! # take(Some(&mut Task { room: 4 }), 3);
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether `condition` holds. If not, as [`broken!`] with the rest, the format and its arguments.
#[macro_export]
macro_rules! invariant {
    ($condition:expr, $($what:tt)+) => {
        if $condition {
            true
        } else {
            $crate::broken!($($what)+);
            false
        }
    };
}

/// An invariant is broken here; the arguments are those of `format!`. The caller goes on with a
/// fallback.
#[macro_export]
macro_rules! broken {
    ($($what:tt)+) => {{
        static PLACE: $crate::Place = $crate::Place::new(::std::file!(), ::std::line!());
        PLACE.broken(::std::format_args!($($what)+))
    }};
}

/// A broken invariant.
#[derive(Clone, Copy, Debug)]
pub struct Broken<'a> {
    /// The source file.
    pub file: &'static str,
    /// The line in it.
    pub line: u32,
    /// What is wrong.
    pub what: fmt::Arguments<'a>,
}

impl fmt::Display for Broken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken invariant at {}:{}: {}", self.file, self.line, self.what)
    }
}

static REPORT: OnceLock<fn(&Broken<'_>)> = OnceLock::new();
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Sets, once a process, what is told of broken invariants without debug assertions: of the first
/// one at each place. Until then they are silent.
pub fn report_to(report: fn(&Broken<'_>)) {
    // A second one is of no use, and no harm.
    let _ = REPORT.set(report);
}

/// How often invariants were broken in this process. A runtime that catches the panics of its tasks
/// hides them from a test; this does not.
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// A place in the sources where an invariant is checked.
#[derive(Debug)]
#[doc(hidden)]
pub struct Place {
    file: &'static str,
    line: u32,
    reported: AtomicBool,
}

impl Place {
    #[doc(hidden)]
    pub const fn new(file: &'static str, line: u32) -> Self {
        Self { file, line, reported: AtomicBool::new(false) }
    }

    #[doc(hidden)]
    #[cold]
    pub fn broken(&self, what: fmt::Arguments<'_>) {
        let broken = Broken { file: self.file, line: self.line, what };
        COUNT.fetch_add(1, Ordering::Relaxed);
        // A panic while another one unwinds would abort the process without a word about either.
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("{broken}");
        }
        self.report(&broken, REPORT.get());
    }

    fn report(&self, broken: &Broken<'_>, to: Option<&fn(&Broken<'_>)>) {
        if let Some(report) = to
            && !self.reported.swap(true, Ordering::Relaxed)
        {
            report(broken);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn note(broken: &Broken<'_>) {
        SEEN.lock().unwrap().push(broken.to_string());
    }

    #[test]
    fn a_place_is_reported_once() {
        let place = Place::new("a.rs", 7);
        let report: fn(&Broken<'_>) = note;
        for number in 1..4 {
            let what = format_args!("number {number}");
            place.report(&Broken { file: place.file, line: place.line, what }, Some(&report));
        }
        assert_eq!(*SEEN.lock().unwrap(), ["broken invariant at a.rs:7: number 1"]);
    }

    #[test]
    fn what_holds_formats_nothing() {
        struct Never;
        impl fmt::Display for Never {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("formatted")
            }
        }
        assert!(invariant!(true, "{Never}"));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_broken_invariant_panics_and_is_counted() {
        let before = count();
        let panic = std::panic::catch_unwind(|| invariant!(1 > 2, "{} is not more than {}", 1, 2));
        let panic = panic.expect_err("a panic");
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(text.contains("invariant/src/lib.rs:") && text.ends_with("1 is not more than 2"), "{text}");
        assert!(count() > before);
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn a_broken_invariant_is_false_and_counted() {
        let before = count();
        assert!(!invariant!(1 > 2, "{} is not more than {}", 1, 2));
        assert!(count() > before);
    }
}
