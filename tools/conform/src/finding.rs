//! The result of a check: the target meets the requirement, or deviates from it.

/// A result other than a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The target does not meet the requirement: a failure, or a warning for a recommendation.
    Wrong { seen: String, expected: String },
    /// The observed behavior is allowed but not recommended: a warning, whatever the check's level.
    Doubtful { seen: String, expected: String },
    /// The requirement does not apply to this target.
    NotApplicable(String),
    /// The check cannot observe whether the target meets the requirement.
    Untested(String),
}

/// The result of a check.
pub(crate) type Verdict<T = ()> = Result<T, Finding>;

/// Fails unless `holds`; calls `seen` only then.
pub(crate) fn expect(holds: bool, expected: impl Into<String>, seen: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Finding::Wrong { seen: seen(), expected: expected.into() }) }
}

/// Warns unless `holds`.
pub(crate) fn should(holds: bool, expected: impl Into<String>, seen: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Finding::Doubtful { seen: seen(), expected: expected.into() }) }
}

pub(crate) fn wrong<T>(seen: impl Into<String>, expected: impl Into<String>) -> Verdict<T> {
    Err(Finding::Wrong { seen: seen.into(), expected: expected.into() })
}

/// Returns that the requirement does not apply.
pub(crate) fn not_applicable<T>(why: impl Into<String>) -> Verdict<T> {
    Err(Finding::NotApplicable(why.into()))
}

/// Returns that the requirement cannot be tested.
pub(crate) fn untested<T>(why: impl Into<String>) -> Verdict<T> {
    Err(Finding::Untested(why.into()))
}

/// The text of a finding before the first check.
pub(crate) fn told(finding: Finding) -> String {
    match finding {
        Finding::Wrong { seen, .. } | Finding::Doubtful { seen, .. } => seen,
        Finding::NotApplicable(why) | Finding::Untested(why) => why,
    }
}

/// Turns a finding before the actual test into "untested": it is not a finding of that check.
pub(crate) fn setup<T>(result: Verdict<T>, whereto: &str) -> Verdict<T> {
    result.map_err(|finding| match finding {
        Finding::Wrong { seen, expected } | Finding::Doubtful { seen, expected } => {
            Finding::Untested(format!("the check did not get {whereto}: {seen} instead of {expected}"))
        }
        Finding::NotApplicable(why) | Finding::Untested(why) => {
            Finding::Untested(format!("the check did not get {whereto}: {why}"))
        }
    })
}
