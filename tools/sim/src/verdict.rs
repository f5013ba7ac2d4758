//! [`Verdict`]: the first rule that a run has broken, and its record.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;

/// The defect of a run, if there is one. Prints the record of a loud run.
#[derive(Debug)]
pub(crate) struct Verdict {
    wrong: RefCell<Option<String>>,
    loud: bool,
}

impl Verdict {
    pub(crate) fn new(loud: bool) -> Self {
        Self { wrong: RefCell::default(), loud }
    }

    /// A line of the record.
    pub(crate) fn note(&self, line: fmt::Arguments<'_>) {
        if self.loud {
            // A closed stderr is not an error.
            let _ = writeln!(std::io::stderr(), "{:?} {line}", runtime::clock());
        }
    }

    /// Records a defect. The first one is reported.
    pub(crate) fn fail(&self, what: String) {
        self.note(format_args!("WRONG: {what}"));
        self.wrong.borrow_mut().get_or_insert(what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.wrong.borrow().is_some()
    }

    /// The first defect that was recorded.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.wrong.borrow().clone()
    }
}
