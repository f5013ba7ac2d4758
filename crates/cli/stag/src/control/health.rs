//! The health section of `status`: problems of units, exports and file systems as JSON, as text, and
//! as the exit status of `stag status --check`. The names in it are stable:
//! docs/src/reference/control.md lists them.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use backing::health::{Kind, Problem, State};
use backing::size::Size;
use serde::{Deserialize, Serialize};

use super::daemon::Running;
use super::gateways::GroupStatus;
use crate::exit::Exit;
use crate::health::space::{FileSystem, Level, Spaces};
use crate::health::{Member, Served};
use crate::managed::Document;
use crate::shown::duration;

/// The health of all units and exports, and of their file systems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// The worst state of all.
    pub state: Level,
    /// Problems of units and exports.
    pub problems: Vec<ServedProblem>,
    /// File systems that units and exports lie on, and exports in memory.
    pub file_systems: Vec<FileSystem>,
    /// What is wrong with the group of gateways, a warning each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<String>,
    /// Parts of the managed document that are not served, a critical problem each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_served: Vec<String>,
}

/// One kind of failure of one unit or export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedProblem {
    /// `warning` or `critical`.
    pub level: Level,
    #[serde(flatten)]
    pub served: Served,
    /// Its path, or `mem:SIZE`.
    pub path: String,
    /// `full`, `read`, `write`, `gone`, `flush`, `shrunk`, `replaced` or `unusable`.
    pub kind: String,
    /// Time of the first occurrence, seconds since 1970.
    pub since_unix_s: u64,
    /// Time of the last occurrence, seconds since 1970.
    pub last_unix_s: u64,
    /// Number of failed operations.
    pub count: u64,
    /// errno of the latest; 0 for none.
    pub errno: i32,
    /// Text of `errno`.
    pub error: Option<String>,
    /// First LBA of the latest.
    pub lba: Option<u64>,
    pub text: String,
}

/// The health of one unit or export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedHealth {
    /// `ok`, `degraded` or `failed`.
    pub state: String,
    /// Time of the first problem, seconds since 1970; none if it is ok.
    pub since_unix_s: Option<u64>,
    /// Operations that have failed since then.
    pub refused: u64,
    pub last_error: Option<String>,
    /// Whether SYNCHRONIZE CACHE and other flushes are refused.
    pub refuses_flushes: bool,
}

impl Default for ServedHealth {
    fn default() -> Self {
        Self {
            state: State::Ok.name().to_owned(),
            since_unix_s: None,
            refused: 0,
            last_error: None,
            refuses_flushes: false,
        }
    }
}

/// The health of a unit or an export; `None` stands for a medium that cannot fail.
pub fn of(health: Option<&Arc<backing::Health>>) -> ServedHealth {
    let Some(report) = health.map(|health| health.look()) else { return ServedHealth::default() };
    let latest = report.problems.iter().max_by_key(|problem| problem.last_unix_s);
    ServedHealth {
        state: report.state.name().to_owned(),
        since_unix_s: report.problems.iter().map(|problem| problem.since_unix_s).min(),
        refused: report.problems.iter().map(|problem| problem.count).sum(),
        last_error: latest.map(words),
        refuses_flushes: report.refuses_flushes,
    }
}

pub fn all(running: &Running, spaces: &Spaces, group: Option<&GroupStatus>) -> Health {
    let mut problems = Vec::new();
    for member in running.members() {
        let report = member.medium.health().map(|health| health.look()).unwrap_or_default();
        problems.extend(report.problems.iter().map(|found| problem(found, &member)));
    }
    let file_systems = spaces.file_systems.clone();
    let levels = problems.iter().map(|problem| problem.level);
    let group = group.map(GroupStatus::problems).unwrap_or_default();
    let levels = levels.chain(file_systems.iter().map(|system| system.state));
    let levels = levels.chain(group.iter().map(|_| Level::Warning));
    let not_served: Vec<String> = running.parts.managed.iter().flat_map(Document::not_served).collect();
    let state = levels.chain(not_served.iter().map(|_| Level::Critical)).max().unwrap_or_default();
    Health { state, problems, file_systems, group, not_served }
}

fn problem(found: &Problem, member: &Member<'_>) -> ServedProblem {
    let errno = found.fault.errno;
    ServedProblem {
        level: match found.kind.state() {
            State::Ok => Level::Ok,
            State::Degraded => Level::Warning,
            State::Failed => Level::Critical,
        },
        served: member.served.clone(),
        path: member.path.clone(),
        kind: found.kind.name().to_owned(),
        since_unix_s: found.since_unix_s,
        last_unix_s: found.last_unix_s,
        count: found.count,
        errno,
        error: (errno != 0).then(|| std::io::Error::from_raw_os_error(errno).to_string()),
        lba: found.fault.lba,
        text: words(found),
    }
}

fn words(problem: &Problem) -> String {
    let mut text = match &problem.fault.reason {
        Some(reason) if problem.kind == Kind::Unusable => reason.clone(),
        Some(reason) => format!("{}: {reason}", problem.kind.text()),
        None => problem.kind.text().to_owned(),
    };
    if problem.fault.errno != 0 {
        let _ = write!(text, ": {}", std::io::Error::from_raw_os_error(problem.fault.errno));
    }
    if let Some(lba) = problem.fault.lba {
        let _ = write!(text, ", at block {lba}");
    }
    text
}

impl Health {
    /// The section of `stag status`: one line for each problem and each file system.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if self.problems.is_empty() && self.group.is_empty() && self.not_served.is_empty() {
            out.push_str("\nhealth: no problems\n");
        } else {
            let _ = writeln!(out, "\nhealth: {}", level(self.state));
        }
        for problem in &self.problems {
            let _ = writeln!(out, "  {}", problem.line());
        }
        for line in self.not_served.iter().chain(&self.group) {
            let _ = writeln!(out, "  {line}");
        }
        for system in &self.file_systems {
            let _ = writeln!(out, "  {}", line(system));
        }
        out
    }

    /// The output of `stag status --check`: one line for each problem, or one that reports none.
    pub fn check(&self) -> String {
        let mut lines: Vec<(Level, String)> =
            self.problems.iter().map(|problem| (problem.level, problem.line())).collect();
        let systems = self.file_systems.iter().filter(|system| system.state > Level::Ok);
        lines.extend(systems.map(|system| (system.state, line(system))));
        lines.extend(self.group.iter().map(|line| (Level::Warning, line.clone())));
        lines.extend(self.not_served.iter().map(|line| (Level::Critical, line.clone())));
        lines.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
        match lines.as_slice() {
            [] => format!("OK: no problems, {} file systems with room\n", self.file_systems.len()),
            lines => {
                lines.iter().map(|(at, line)| format!("{}: {line}\n", level(*at).to_uppercase())).collect()
            }
        }
    }

    /// The exit status of `stag status --check`: that of monitoring plugins.
    pub fn exit(&self) -> Exit {
        match self.state {
            Level::Ok => Exit::Done,
            Level::Warning => Exit::CheckWarning,
            Level::Critical => Exit::CheckCritical,
        }
    }
}

impl ServedProblem {
    fn line(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let age = duration(now.saturating_sub(self.since_unix_s) as f64);
        let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
        let Self { served, path, text, .. } = self;
        format!("{served} ({path}): {text}; {times}, first {age} ago")
    }
}

fn line(system: &FileSystem) -> String {
    let FileSystem { mount, used_percent, provisioned, overcommitted, .. } = system;
    let free = Size(system.free);
    let what = if mount.starts_with('/') { "file system " } else { "" };
    let mut line = format!("{what}{mount}: {used_percent} % used, {free} free");
    if *provisioned > 0 {
        let _ = write!(line, "; units take {} of {}", Size(system.allocated), Size(*provisioned));
    }
    if *overcommitted > 0 {
        let _ = write!(line, ", {} more than there is", Size(*overcommitted));
    }
    line
}

const fn level(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warning => "warning",
        Level::Critical => "critical",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(level: Level) -> ServedProblem {
        ServedProblem {
            level,
            served: Served::Unit { target: "iqn.2026-01.org.example:t".into(), lun: 3 },
            path: "/srv/a".into(),
            kind: "flush".into(),
            since_unix_s: 0,
            last_unix_s: 0,
            count: 2,
            errno: 5,
            error: None,
            lba: None,
            text: "a flush failed".into(),
        }
    }

    #[test]
    fn a_check_says_the_worst_first_and_ends_with_it() {
        let full = FileSystem { mount: "/srv".into(), state: Level::Critical, ..FileSystem::default() };
        let health = Health {
            state: Level::Critical,
            problems: vec![found(Level::Warning)],
            file_systems: vec![full, FileSystem::default()],
            group: vec!["gateway 2 is not in the group".into()],
            not_served: vec!["/x is not served".into()],
        };
        let text = health.check();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("CRITICAL: file system /srv"), "{text}");
        assert_eq!(lines[1], "CRITICAL: /x is not served");
        assert!(
            lines[2]
                .starts_with("WARNING: iqn.2026-01.org.example:t LUN 3 (/srv/a): a flush failed; 2 times")
        );
        assert_eq!(lines[3], "WARNING: gateway 2 is not in the group");
        assert!(health.text().contains("\n  gateway 2 is not in the group\n"));
        assert_eq!(health.exit(), Exit::CheckCritical);
        let well = Health::default();
        assert_eq!((well.exit(), well.check().lines().count()), (Exit::Done, 1));
        assert!(well.check().starts_with("OK: "));
    }
}
