//! The results of a run: as text for people, as JSON for programs, as JUnit for CI.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::check::{Area, Check};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target meets the requirement.
    Pass,
    /// The target violates a requirement.
    Fail { seen: String, expected: String },
    /// The target violates a recommendation.
    Warning { seen: String, expected: String },
    /// The requirement does not apply to this target.
    NotApplicable(String),
    /// The check could not observe whether the target meets the requirement.
    Untested(String),
}

/// A check and its result.
#[derive(Clone, Debug)]
pub struct Record {
    pub check: Check,
    /// The result of the check.
    pub outcome: Outcome,
    /// Duration of the check.
    pub took: Duration,
}

impl Record {
    pub(crate) fn new(check: &Check, outcome: Outcome, took: Duration) -> Self {
        Self { check: *check, outcome, took }
    }

    fn word(&self) -> &'static str {
        match self.outcome {
            Outcome::Pass => "pass",
            Outcome::Fail { .. } => "FAIL",
            Outcome::Warning { .. } => "warn",
            Outcome::NotApplicable(_) => "n/a ",
            Outcome::Untested(_) => "?   ",
        }
    }
}

/// The number of checks by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub checks: usize,
    pub passed: usize,
    pub failed: usize,
    /// Checks with a warning.
    pub warnings: usize,
    /// Checks that do not apply.
    pub not_applicable: usize,
    /// Checks that could not be tested.
    pub untested: usize,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// URL of the tested unit or export.
    pub url: String,
    /// Each check, in the order of the run.
    pub records: Vec<Record>,
    /// Duration of the whole run.
    pub took: Duration,
    /// Why overwritten blocks were not restored, if that failed.
    pub left_behind: Option<String>,
}

#[derive(Serialize)]
struct JsonCheck<'a> {
    area: &'a str,
    name: &'a str,
    level: &'a str,
    clauses: &'a str,
    requires: &'a str,
    #[serde(flatten)]
    outcome: JsonOutcome<'a>,
    milliseconds: u64,
}

#[derive(Serialize)]
struct JsonOutcome<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

#[derive(Serialize)]
struct Json<'a> {
    suite: &'static str,
    version: &'static str,
    url: &'a str,
    seconds: f64,
    summary: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_behind: Option<&'a str>,
    checks: Vec<JsonCheck<'a>>,
}

impl Outcome {
    fn json(&self) -> JsonOutcome<'_> {
        let (outcome, seen, expected, why) = match self {
            Outcome::Pass => ("pass", None, None, None),
            Outcome::Fail { seen, expected } => ("fail", Some(seen), Some(expected), None),
            Outcome::Warning { seen, expected } => ("warning", Some(seen), Some(expected), None),
            Outcome::NotApplicable(why) => ("not-applicable", None, None, Some(why)),
            Outcome::Untested(why) => ("untested", None, None, Some(why)),
        };
        JsonOutcome {
            outcome,
            seen: seen.map(String::as_str),
            expected: expected.map(String::as_str),
            why: why.map(String::as_str),
        }
    }
}

impl Report {
    pub(crate) fn new(
        url: String,
        records: Vec<Record>,
        took: Duration,
        left_behind: Option<String>,
    ) -> Self {
        Self { url, records, took, left_behind }
    }

    /// Counts the checks by result.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { checks: self.records.len(), ..Counts::default() };
        for record in &self.records {
            *match record.outcome {
                Outcome::Pass => &mut counts.passed,
                Outcome::Fail { .. } => &mut counts.failed,
                Outcome::Warning { .. } => &mut counts.warnings,
                Outcome::NotApplicable(_) => &mut counts.not_applicable,
                Outcome::Untested(_) => &mut counts.untested,
            } += 1;
        }
        counts
    }

    /// The last line of the text.
    pub fn summary(&self) -> String {
        let counts = self.counts();
        format!(
            "{} checks in {:.1} s: {} passed, {} failed, {} warnings, {} not applicable, {} could not be tested",
            counts.checks,
            self.took.as_secs_f64(),
            counts.passed,
            counts.failed,
            counts.warnings,
            counts.not_applicable,
            counts.untested
        )
    }

    /// The report for people: by area, one line per check, followed by the details.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.url);
        for area in Area::ALL {
            let records: Vec<&Record> = self.records.iter().filter(|r| r.check.area == area).collect();
            if records.is_empty() {
                continue;
            }
            // Writing to a String does not fail.
            let _ = writeln!(out, "\n{}", area.title());
            for record in records {
                let name = record.check.full_name();
                let _ = match &record.outcome {
                    Outcome::Pass => writeln!(out, "  pass  {name}"),
                    Outcome::Fail { seen, expected } | Outcome::Warning { seen, expected } => {
                        let check = &record.check;
                        writeln!(
                            out,
                            "  {}  {name}\n        {} ({}, {})\n        seen:     {seen}\n        expected: {expected}",
                            record.word(),
                            check.requires,
                            check.level.name(),
                            check.clauses,
                        )
                    }
                    Outcome::NotApplicable(why) => writeln!(out, "  n/a   {name}: {why}"),
                    Outcome::Untested(why) => writeln!(out, "  ?     {name}: not tested: {why}"),
                };
            }
        }
        if let Some(why) = &self.left_behind {
            let _ = writeln!(out, "\nAttention: {why}");
        }
        let _ = writeln!(out, "\n{}", self.summary());
        out
    }

    /// The report for programs.
    pub fn json(&self) -> String {
        let checks = self.records.iter().map(|record| JsonCheck {
            area: record.check.area.name(),
            name: record.check.name,
            level: record.check.level.name(),
            clauses: record.check.clauses,
            requires: record.check.requires,
            outcome: record.outcome.json(),
            milliseconds: record.took.as_millis() as u64,
        });
        let json = Json {
            suite: "stag conform",
            version: env!("CARGO_PKG_VERSION"),
            url: &self.url,
            seconds: (self.took.as_secs_f64() * 1000.0).round() / 1000.0,
            summary: self.counts(),
            left_behind: self.left_behind.as_deref(),
            checks: checks.collect(),
        };
        // Only strings and numbers: serialization cannot fail.
        serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
    }

    /// The report for CI: one test suite per area. A warning passes, with its text as output.
    pub fn junit(&self) -> String {
        let counts = self.counts();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"stag conform\" tests=\"{}\" failures=\"{}\" time=\"{:.3}\">\n",
            counts.checks,
            counts.failed,
            self.took.as_secs_f64()
        );
        for area in Area::ALL {
            let records: Vec<&Record> = self.records.iter().filter(|r| r.check.area == area).collect();
            if records.is_empty() {
                continue;
            }
            let count = |wanted: fn(&Outcome) -> bool| records.iter().filter(|r| wanted(&r.outcome)).count();
            let failed = count(|outcome| matches!(outcome, Outcome::Fail { .. }));
            let skipped = count(|o| matches!(o, Outcome::NotApplicable(_) | Outcome::Untested(_)));
            let took: f64 = records.iter().map(|record| record.took.as_secs_f64()).sum();
            let _ = writeln!(
                out,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\" time=\"{took:.3}\">",
                area.name(),
                records.len()
            );
            for record in records {
                let check = &record.check;
                let inner = match &record.outcome {
                    Outcome::Pass => String::new(),
                    Outcome::Fail { seen, expected } => format!(
                        "<failure message=\"{}\">{}</failure>",
                        xml(seen),
                        xml(&format!("{} ({}). Expected: {expected}.", check.requires, check.clauses))
                    ),
                    Outcome::Warning { seen, expected } => format!(
                        "<system-out>{}</system-out>",
                        xml(&format!(
                            "warning: {} ({}). Seen: {seen}. Expected: {expected}.",
                            check.requires, check.clauses
                        ))
                    ),
                    Outcome::NotApplicable(why) => {
                        format!("<skipped message=\"{}\"/>", xml(&format!("not applicable: {why}")))
                    }
                    Outcome::Untested(why) => format!("<skipped message=\"{}\"/>", xml(why)),
                };
                let _ = writeln!(
                    out,
                    "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">{inner}</testcase>",
                    area.name(),
                    check.name,
                    record.took.as_secs_f64()
                );
            }
            out.push_str("  </testsuite>\n");
        }
        out.push_str("</testsuites>\n");
        out
    }
}

/// Escapes text for XML. A target's data may contain anything: characters that XML forbids become
/// question marks.
fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Options, Transport};

    fn report() -> Report {
        let checks = crate::checks();
        let outcomes = [
            Outcome::Pass,
            Outcome::Fail { seen: "a \"<b>\" & \u{1}".to_owned(), expected: "c".to_owned() },
            Outcome::Warning { seen: "d".to_owned(), expected: "e".to_owned() },
            Outcome::NotApplicable("f".to_owned()),
            Outcome::Untested("g".to_owned()),
        ];
        let records =
            checks.iter().zip(outcomes).map(|(check, outcome)| Record::new(check, outcome, Duration::ZERO));
        let options = Options::new(Transport::Tcp, "::1", 3260, "iqn.2026-01.org.example:t", 3);
        Report::new(options.url(), records.collect(), Duration::from_millis(1500), None)
    }

    #[test]
    fn every_form_counts_the_same() {
        let report = report();
        let counts = report.counts();
        assert_eq!((counts.checks, counts.passed, counts.failed, counts.warnings), (5, 1, 1, 1));
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["summary"]["failed"], 1);
        assert_eq!(json["checks"][1]["outcome"], "fail");
        assert_eq!(json["checks"][3]["why"], "f");
        assert_eq!(json["url"], "iscsi://[::1]:3260/iqn.2026-01.org.example:t/3");
        assert_eq!(report.junit().matches("<failure").count(), 1);
        assert_eq!(report.junit().matches("<skipped").count(), 2);
        assert!(
            report.text().contains("5 checks in 1.5 s: 1 passed, 1 failed, 1 warnings"),
            "{}",
            report.text()
        );
    }

    #[test]
    fn what_a_target_sent_cannot_break_out_of_xml() {
        let junit = report().junit();
        assert!(junit.contains("a &quot;&lt;b&gt;&quot; &amp; ?"), "{junit}");
    }
}
