//! Runs checks, one after the other: each starts without state of the one before, and ends in time.
//! It knows no protocol: a [`Subject`] does.

use std::time::{Duration, Instant};

use crate::check::{Check, Level};
use crate::finding::{Finding, Verdict};
use crate::report::{Outcome, Record, Report};

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    Begins {
        check: &'a Check,
        /// Number of checks done before.
        done: usize,
        /// Total number of checks.
        of: usize,
    },
    Ended(&'a Record),
}

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host name cannot be resolved.
    #[error("{host} cannot be resolved: {reason}")]
    Resolve { host: String, reason: String },
    /// iSER needs an io_uring.
    #[error("no io_uring: {0}")]
    NoRing(std::io::Error),
    /// No answer, or not that of a target.
    #[error("the target cannot be reached: {0}")]
    Unreachable(String),
    /// The login is refused, so every check would fail.
    #[error("the target refuses a plain login: {0}")]
    Refused(String),
}

/// A server that checks are run against.
pub(crate) trait Subject {
    /// The server's URL, for the report.
    fn url(&self) -> String;

    /// Starts a check's time.
    fn begin(&self);

    /// Whether the check's time has passed.
    fn is_over(&self) -> bool;

    /// Whether the server accepts connections.
    fn is_there(&self) -> bool;

    /// Why the check must not run, or cannot.
    fn forbids(&self, check: &Check) -> Option<String>;

    fn judge(&self, check: &Check) -> Verdict;

    /// Removes the files that checks left, or returns why that failed.
    fn tidy(&self) -> Option<String>;
}

/// Runs `checks`, in their order. `began` is the start of the run.
pub(crate) fn judge_all(
    subject: &dyn Subject,
    checks: &[&Check],
    began: Instant,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let mut records = Vec::new();
    let mut gone: Option<String> = None;
    for (done, check) in checks.iter().enumerate() {
        tell(Progress::Begins { check, done, of: checks.len() });
        let began = runtime::clock();
        let mut outcome = match (&gone, subject.forbids(check)) {
            (Some(since), _) => Outcome::Untested(format!("the target is gone since {since}")),
            (None, Some(why)) => Outcome::Untested(why),
            (None, None) => one(subject, check),
        };
        if gone.is_none() && !matches!(outcome, Outcome::Pass) && !is_there(subject) {
            gone = Some(check.full_name());
            outcome = Outcome::Fail {
                seen: "the target cannot be reached any more after this check".to_owned(),
                expected: "a target that lives on".to_owned(),
            };
        }
        let record = Record::new(check, outcome, began.elapsed());
        tell(Progress::Ended(&record));
        records.push(record);
    }
    let left_behind = subject.tidy();
    Report::new(subject.url(), records, began.elapsed(), left_behind)
}

/// Whether the server is there. Tries more than once, since it may be restarting.
fn is_there(subject: &dyn Subject) -> bool {
    (0..3).any(|attempt| {
        if attempt > 0 {
            runtime::nap(Duration::from_millis(500));
        }
        subject.begin();
        subject.is_there()
    })
}

fn one(subject: &dyn Subject, check: &Check) -> Outcome {
    subject.begin();
    let result = subject.judge(check);
    // A wait for a forbidden PDU may use up the check's time: then the result is unknown.
    if subject.is_over() && result.is_ok() {
        return Outcome::Untested("it took too long".to_owned());
    }
    match result {
        Ok(()) => Outcome::Pass,
        Err(Finding::Wrong { seen, expected }) => match check.level {
            Level::Must => Outcome::Fail { seen, expected },
            Level::Should => Outcome::Warning { seen, expected },
        },
        Err(Finding::Doubtful { seen, expected }) => Outcome::Warning { seen, expected },
        Err(Finding::NotApplicable(why)) => Outcome::NotApplicable(why),
        Err(Finding::Untested(why)) => Outcome::Untested(why),
    }
}
