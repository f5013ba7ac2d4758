//! What a check is: a requirement of a standard, how to see whether a target keeps it, and what can come of looking.

use crate::lab::Lab;

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// Logging in: stages, statuses, what a request may be.
    Login,
    /// Every key of RFC 7143 §13: what may be answered to what.
    Keys,
    /// AuthMethod and CHAP.
    Security,
    /// SendTargets.
    Discovery,
    /// CmdSN, StatSN and their windows.
    Numbers,
    /// Pings.
    Nop,
    /// Text requests in the full feature phase.
    Text,
    /// Data to the initiator, statuses, residuals.
    DataIn,
    /// Data from the initiator: immediate, unsolicited, by R2T.
    DataOut,
    /// Task management.
    Task,
    /// Logout.
    Logout,
    /// Sessions and connections that take the place of others.
    Reinstatement,
    /// Several connections of one session (MC/S).
    Connections,
    /// Header and data digests.
    Digests,
    /// ErrorRecoveryLevels 0 and 1: SNACK, recovery R2T, retries.
    Recovery1,
    /// ErrorRecoveryLevel 2: connections lost and replaced.
    Recovery2,
    /// Redirection at login.
    Redirect,
    /// What breaks the protocol.
    Protocol,
    /// What SCSI asks of an iSCSI transport.
    Scsi,
    /// What RFC 7145 asks.
    Iser,
}

impl Area {
    /// All, in the order in which they run.
    pub const ALL: [Area; 20] = [
        Area::Login,
        Area::Keys,
        Area::Security,
        Area::Discovery,
        Area::Numbers,
        Area::Nop,
        Area::Text,
        Area::DataIn,
        Area::DataOut,
        Area::Task,
        Area::Logout,
        Area::Reinstatement,
        Area::Connections,
        Area::Digests,
        Area::Recovery1,
        Area::Recovery2,
        Area::Redirect,
        Area::Protocol,
        Area::Scsi,
        Area::Iser,
    ];

    /// The first part of its checks' names.
    pub fn name(self) -> &'static str {
        match self {
            Area::Login => "login",
            Area::Keys => "keys",
            Area::Security => "security",
            Area::Discovery => "discovery",
            Area::Numbers => "numbers",
            Area::Nop => "nop",
            Area::Text => "text",
            Area::DataIn => "data-in",
            Area::DataOut => "data-out",
            Area::Task => "task",
            Area::Logout => "logout",
            Area::Reinstatement => "reinstatement",
            Area::Connections => "connections",
            Area::Digests => "digests",
            Area::Recovery1 => "recovery-1",
            Area::Recovery2 => "recovery-2",
            Area::Redirect => "redirect",
            Area::Protocol => "protocol",
            Area::Scsi => "scsi",
            Area::Iser => "iser",
        }
    }

    /// What it is about, in a few words.
    pub fn title(self) -> &'static str {
        match self {
            Area::Login => "Logging in",
            Area::Keys => "Negotiation of keys",
            Area::Security => "Authentication",
            Area::Discovery => "Discovery (SendTargets)",
            Area::Numbers => "CmdSN, StatSN and their windows",
            Area::Nop => "Pings",
            Area::Text => "Text in the full feature phase",
            Area::DataIn => "Reads, statuses and residuals",
            Area::DataOut => "Writes: immediate, unsolicited and solicited data",
            Area::Task => "Task management",
            Area::Logout => "Logout",
            Area::Reinstatement => "Reinstatement of sessions and connections",
            Area::Connections => "Several connections of a session (MC/S)",
            Area::Digests => "Digests",
            Area::Recovery1 => "Recovery within a connection (ErrorRecoveryLevel 1)",
            Area::Recovery2 => "Recovery of connections (ErrorRecoveryLevel 2)",
            Area::Redirect => "Redirection",
            Area::Protocol => "What breaks the protocol",
            Area::Scsi => "SCSI over iSCSI",
            Area::Iser => "iSER",
        }
    }
}

/// How much a standard insists (RFC 2119).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A target that does otherwise fails.
    Must,
    /// A target that does otherwise is warned.
    Should,
}

impl Level {
    /// As it stands in standards.
    pub fn name(self) -> &'static str {
        match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
        }
    }
}

/// What a check may do to a target beyond logging in and reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Nothing.
    Reading,
    /// To write to the unit, within the area that it was given.
    Writing,
    /// To reset units and targets, and to abort tasks of other sessions.
    Destruction,
}

/// Over which transport a check makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// TCP and iSER.
    Both,
    /// TCP: digests, Data-In, R2T and Data-Out are nowhere else.
    Tcp,
    /// iSER.
    Iser,
}

/// A check that ended otherwise than by passing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// What the standard asks for was not seen: a failure, or a warning where it only should be.
    Wrong {
        /// What was seen.
        seen: String,
        /// What had to be seen.
        expected: String,
    },
    /// What was seen is allowed and not as it should be: a warning, whatever the check's level.
    Doubtful {
        /// What was seen.
        seen: String,
        /// What should be seen.
        expected: String,
    },
    /// The requirement does not apply to this target as it is.
    NotApplicable(String),
    /// Whether the target keeps it cannot be seen from here.
    Untested(String),
}

/// What a check ends with.
pub(crate) type Verdict<T = ()> = Result<T, Finding>;

/// Fails unless `holds`. `seen` is asked only then.
pub(crate) fn expect(holds: bool, expected: impl Into<String>, seen: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Finding::Wrong { seen: seen(), expected: expected.into() }) }
}

/// Warns unless `holds`.
pub(crate) fn should(holds: bool, expected: impl Into<String>, seen: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Finding::Doubtful { seen: seen(), expected: expected.into() }) }
}

/// A failure.
pub(crate) fn wrong<T>(seen: impl Into<String>, expected: impl Into<String>) -> Verdict<T> {
    Err(Finding::Wrong { seen: seen.into(), expected: expected.into() })
}

/// The requirement does not apply.
pub(crate) fn not_applicable<T>(why: impl Into<String>) -> Verdict<T> {
    Err(Finding::NotApplicable(why.into()))
}

/// It cannot be seen.
pub(crate) fn untested<T>(why: impl Into<String>) -> Verdict<T> {
    Err(Finding::Untested(why.into()))
}

/// A requirement, and how to see whether a target keeps it.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it is about.
    pub area: Area,
    /// Its name within the area: words joined by hyphens.
    pub name: &'static str,
    /// How much the standard insists.
    pub level: Level,
    /// Where it says so.
    pub clauses: &'static str,
    /// What it requires, as a sentence.
    pub requires: &'static str,
    /// Why that matters: what goes wrong with a target that does otherwise.
    pub why: &'static str,
    /// What it may do.
    pub needs: Needs,
    /// Over which transport.
    pub over: Over,
    pub(crate) run: fn(&Lab) -> Verdict,
}

impl Check {
    /// One that the standard insists on, that only reads, over any transport.
    pub(crate) const fn must(
        area: Area,
        name: &'static str,
        clauses: &'static str,
        requires: &'static str,
        why: &'static str,
        run: fn(&Lab) -> Verdict,
    ) -> Self {
        let (level, needs, over) = (Level::Must, Needs::Reading, Over::Both);
        Self { area, name, level, clauses, requires, why, needs, over, run }
    }

    /// One that the standard recommends.
    pub(crate) const fn should(
        area: Area,
        name: &'static str,
        clauses: &'static str,
        requires: &'static str,
        why: &'static str,
        run: fn(&Lab) -> Verdict,
    ) -> Self {
        let (level, needs, over) = (Level::Should, Needs::Reading, Over::Both);
        Self { area, name, level, clauses, requires, why, needs, over, run }
    }

    pub(crate) const fn tcp(mut self) -> Self {
        self.over = Over::Tcp;
        self
    }

    pub(crate) const fn iser(mut self) -> Self {
        self.over = Over::Iser;
        self
    }

    pub(crate) const fn writing(mut self) -> Self {
        self.needs = Needs::Writing;
        self
    }

    pub(crate) const fn destructive(mut self) -> Self {
        self.needs = Needs::Destruction;
        self
    }

    /// `AREA/NAME`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.area.name(), self.name)
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.full_name())
    }
}
