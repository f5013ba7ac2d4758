//! Mistakes in a configuration file, shown with the line, the offending text and the text to write
//! instead.

use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, Severity, SourceCode};
use toml::de::DeValue;

/// One thing that is wrong, or worth a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Bytes of the file.
    pub span: Range<usize>,
    pub what: String,
    /// The advice: text to write instead.
    pub instead: String,
    /// Whether the file can be used all the same.
    pub warning: bool,
}

/// Collects problems, so that one run tells of all of them.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

impl Problems {
    pub fn error(&mut self, span: &Range<usize>, what: impl Into<String>, instead: impl Into<String>) {
        self.0.push(Problem {
            span: span.clone(),
            what: what.into(),
            instead: instead.into(),
            warning: false,
        });
    }

    pub fn warn(&mut self, span: &Range<usize>, what: impl Into<String>, instead: impl Into<String>) {
        self.0.push(Problem {
            span: span.clone(),
            what: what.into(),
            instead: instead.into(),
            warning: true,
        });
    }

    /// Whether any of them is an error.
    pub fn fatal(&self) -> bool {
        self.0.iter().any(|problem| !problem.warning)
    }

    /// All, in the order of the file.
    pub fn into_sorted(mut self) -> Vec<Problem> {
        self.0.sort_by_key(|problem| (problem.span.start, problem.span.end));
        self.0
    }
}

/// A problem together with the file that has it: what miette shows.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .problem.what)]
pub struct Shown {
    problem: Problem,
    source_code: Arc<NamedSource<String>>,
}

impl Shown {
    pub fn new(problem: Problem, source: &Arc<NamedSource<String>>) -> Self {
        Self { problem, source_code: source.clone() }
    }
}

impl Diagnostic for Shown {
    fn severity(&self) -> Option<Severity> {
        Some(if self.problem.warning { Severity::Warning } else { Severity::Error })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        (!self.problem.instead.is_empty())
            .then(|| Box::new(&self.problem.instead) as Box<dyn std::fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&*self.source_code)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(
            Some("here".into()),
            self.problem.span.clone(),
        ))))
    }
}

/// Everything that is wrong with a file.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{path}: {}", count(.errors.iter().filter(|shown| !shown.problem.warning).count()))]
pub struct ConfigErrors {
    pub path: String,
    /// The mistakes; at least one.
    pub errors: Vec<Shown>,
}

impl Diagnostic for ConfigErrors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.errors.iter().map(|error| error as &dyn Diagnostic)))
    }
}

impl ConfigErrors {
    /// One line for each mistake: what is wrong, and what to write instead.
    pub fn lines(&self) -> Vec<String> {
        let errors = self.errors.iter().map(|shown| &shown.problem).filter(|problem| !problem.warning);
        let line = |Problem { what, instead, .. }: &Problem| match instead.as_str() {
            "" => what.clone(),
            instead => format!("{what}: {instead}"),
        };
        errors.map(line).collect()
    }
}

fn count(errors: usize) -> String {
    if errors == 1 {
        "the configuration has an error".into()
    } else {
        format!("the configuration has {errors} errors")
    }
}

/// Complains that `key` holds `found` where `wanted` belongs.
pub fn mismatch<T>(
    key: &str,
    wanted: &str,
    found: &DeValue<'_>,
    span: Range<usize>,
    problems: &mut Problems,
) -> Option<T> {
    problems.error(&span, format!("{key} is {wanted}, and not {}", kind(found)), format!("write {wanted}"));
    None
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a decimal point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
