//! The failures of one unit by kind, and the choice of those that deserve a log line. Reads no
//! clock: the caller passes the time.
//!
//! It must never produce more than one line per kind and minute, nor lose count of suppressed
//! failures.

use std::time::Duration;

/// Interval between two log lines of one kind.
pub const LINE_EVERY: Duration = Duration::from_secs(60);
/// How long a full medium counts as full after the last failure.
pub(crate) const FULL_FOR: Duration = Duration::from_secs(600);

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The medium is full (ENOSPC), or over quota (EDQUOT).
    Full,
    Read,
    Write,
    /// The device or the file system under the unit disappeared (ENODEV, ENXIO, ESTALE).
    Gone,
    /// A flush failed; acknowledged writes may be lost.
    Flush,
    /// The file or device is shorter than the unit.
    Shrunk,
    /// The path names another file, or none. The medium is intact, but the next start will not find
    /// it.
    Replaced,
    /// The unit is unusable: its file was removed, or its journal is broken.
    Unusable,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Full,
        Self::Read,
        Self::Write,
        Self::Gone,
        Self::Flush,
        Self::Shrunk,
        Self::Replaced,
        Self::Unusable,
    ];

    /// The name in logs and in JSON. It never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Read => "read",
            Self::Write => "write",
            Self::Gone => "gone",
            Self::Flush => "flush",
            Self::Shrunk => "shrunk",
            Self::Replaced => "replaced",
            Self::Unusable => "unusable",
        }
    }

    /// The text for an administrator.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Full => "the medium is full: writes are refused",
            Self::Read => "the medium failed to read",
            Self::Write => "the medium failed to write",
            Self::Gone => "the device is gone",
            Self::Flush => {
                "a flush failed: acknowledged writes may be lost, and every later flush is refused until \
                 it is acknowledged (stag acknowledge)"
            }
            Self::Shrunk => "the medium is shorter than the unit",
            Self::Replaced => {
                "the path names another file, or none: the daemon serves the file that it opened, and the next \
                 start does not find it"
            }
            Self::Unusable => "the medium cannot be used as it is",
        }
    }

    /// The state of a unit with this problem.
    pub const fn state(self) -> State {
        match self {
            Self::Full | Self::Read | Self::Write | Self::Replaced => State::Degraded,
            Self::Gone | Self::Flush | Self::Shrunk | Self::Unusable => State::Failed,
        }
    }

    /// The kind of an errno of a read or a write.
    pub const fn of_errno(errno: i32, write: bool) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT => Self::Full,
            libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESTALE | libc::ESHUTDOWN => Self::Gone,
            _ if write => Self::Write,
            _ => Self::Read,
        }
    }
}

/// The state of a unit's medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    #[default]
    Ok,
    /// Some commands have failed.
    Degraded,
    /// Data may be lost, or is inaccessible.
    Failed,
}

impl State {
    /// The name in JSON. It never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// A point in time: monotonic for differences, and wall clock for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since any fixed moment.
    pub monotonic: Duration,
    /// Seconds since 1970.
    pub unix_s: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The system's errno; 0 for none.
    pub errno: i32,
    /// The first logical block of the operation, if it has one.
    pub lba: Option<u64>,
    pub reason: Option<String>,
}

/// The failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    /// When it was first seen, seconds since 1970.
    pub since_unix_s: u64,
    /// When it was last seen, seconds since 1970.
    pub last_unix_s: u64,
    /// Number of failed operations.
    pub count: u64,
    pub fault: Fault,
    seen: Duration,
    logged: Duration,
    unlogged: u64,
}

/// A log line to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The kind of failure.
    pub kind: Kind,
    pub fault: Fault,
    /// Number of failures since the previous line, which were not logged.
    pub suppressed: u64,
}

/// All problems of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems([Option<Problem>; Kind::ALL.len()]);

impl Problems {
    /// Records a failure. Returns a log line if one is due.
    pub fn note(&mut self, now: Now, kind: Kind, fault: Fault) -> Option<Line> {
        let slot = &mut self.0[kind as usize];
        let Some(problem) = slot else {
            *slot = Some(Problem {
                kind,
                since_unix_s: now.unix_s,
                last_unix_s: now.unix_s,
                count: 1,
                fault: fault.clone(),
                seen: now.monotonic,
                logged: now.monotonic,
                unlogged: 0,
            });
            return Some(Line { kind, fault, suppressed: 0 });
        };
        problem.last_unix_s = now.unix_s;
        problem.seen = now.monotonic;
        problem.count += 1;
        problem.fault = fault;
        problem.unlogged += 1;
        // The line reports this failure: only those before it were suppressed.
        problem.line(now).map(|line| Line { suppressed: line.suppressed - 1, ..line })
    }

    /// Returns the due lines for failures since the previous ones, and clears an expired full
    /// medium.
    pub fn tick(&mut self, now: Now) -> Vec<Line> {
        let lines = self.0.iter_mut().flatten().filter_map(|problem| problem.line(now)).collect();
        let full = &mut self.0[Kind::Full as usize];
        full.take_if(|full| now.monotonic.saturating_sub(full.seen) >= FULL_FOR);
        lines
    }

    /// Clears one kind. Returns whether it was present.
    pub fn clear(&mut self, kind: Kind) -> bool {
        self.0[kind as usize].take().is_some()
    }

    /// Adds a failure known from before: a failed flush of an earlier run.
    pub fn restore(&mut self, now: Now, kind: Kind, since_unix_s: u64, fault: Fault) {
        if self.note(now, kind, fault).is_some() {
            if let Some(problem) = &mut self.0[kind as usize] {
                problem.since_unix_s = since_unix_s.min(problem.since_unix_s);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter().flatten()
    }

    /// The worst state of all problems.
    pub fn state(&self) -> State {
        self.iter().map(|problem| problem.kind.state()).max().unwrap_or_default()
    }
}

impl Problem {
    fn line(&mut self, now: Now) -> Option<Line> {
        if self.unlogged == 0 || now.monotonic.saturating_sub(self.logged) < LINE_EVERY {
            return None;
        }
        self.logged = now.monotonic;
        let suppressed = std::mem::take(&mut self.unlogged);
        Some(Line { kind: self.kind, fault: self.fault.clone(), suppressed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now { monotonic: Duration::from_secs(seconds), unix_s: 1_000_000 + seconds }
    }

    fn fault(errno: i32) -> Fault {
        Fault { errno, lba: Some(8), reason: None }
    }

    #[test]
    fn a_flood_of_failures_is_one_line_a_minute_and_kind() {
        let mut problems = Problems::default();
        let mut lines = Vec::new();
        for millisecond in 0..600_000 {
            let now = Now { monotonic: Duration::from_millis(millisecond), unix_s: millisecond / 1000 };
            lines.extend(problems.note(now, Kind::Write, fault(5)));
            lines.extend(problems.note(now, Kind::Full, fault(28)));
        }
        for kind in [Kind::Write, Kind::Full] {
            let of_kind: Vec<_> = lines.iter().filter(|line| line.kind == kind).collect();
            assert_eq!(of_kind.len(), 10, "{kind:?}: one each minute");
            let suppressed: u64 = of_kind.iter().map(|line| line.suppressed).sum();
            let last_minute = 59_999;
            assert_eq!(suppressed + 10 + last_minute, 600_000, "{kind:?}: each failure is counted once");
        }
        assert_eq!(problems.iter().map(|problem| problem.count).sum::<u64>(), 1_200_000);
        // The rest is logged once its minute has passed, without another failure.
        assert_eq!(problems.tick(at(599)), []);
        let rest: Vec<u64> = problems.tick(at(600)).iter().map(|line| line.suppressed).collect();
        assert_eq!(rest, [59_999, 59_999]);
        assert_eq!(problems.tick(at(700)), []);
    }

    #[test]
    fn a_unit_is_as_bad_as_its_worst_problem() {
        let mut problems = Problems::default();
        assert_eq!(problems.state(), State::Ok);
        problems.note(at(0), Kind::Full, fault(28));
        assert_eq!(problems.state(), State::Degraded);
        problems.note(at(1), Kind::Flush, fault(5));
        assert_eq!(problems.state(), State::Failed);
        assert!(problems.clear(Kind::Flush) && !problems.clear(Kind::Flush));
        assert_eq!(problems.state(), State::Degraded);
    }

    #[test]
    fn a_full_medium_is_forgotten_ten_minutes_later_and_a_failed_read_is_not() {
        let mut problems = Problems::default();
        problems.note(at(0), Kind::Full, fault(28));
        problems.note(at(0), Kind::Read, fault(5));
        problems.note(at(100), Kind::Full, fault(28));
        problems.tick(at(699));
        assert_eq!(problems.iter().count(), 2);
        problems.tick(at(700));
        assert_eq!(problems.iter().map(|problem| problem.kind).collect::<Vec<_>>(), [Kind::Read]);
    }

    #[test]
    fn an_errno_tells_a_full_medium_from_a_gone_one() {
        assert_eq!(Kind::of_errno(libc::ENOSPC, true), Kind::Full);
        assert_eq!(Kind::of_errno(libc::EDQUOT, true), Kind::Full);
        assert_eq!(Kind::of_errno(libc::ENODEV, false), Kind::Gone);
        assert_eq!(Kind::of_errno(libc::ENXIO, true), Kind::Gone);
        assert_eq!(Kind::of_errno(libc::EIO, true), Kind::Write);
        assert_eq!(Kind::of_errno(libc::EIO, false), Kind::Read);
    }
}
