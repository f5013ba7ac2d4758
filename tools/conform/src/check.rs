//! A check: a requirement of a standard, and a test whether a server meets it.

use crate::finding::Verdict;
use crate::lab::Lab;
use crate::share;

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// Login: stages, statuses, valid requests.
    Login,
    /// Every key of RFC 7143 §13 and its valid answers.
    Keys,
    /// AuthMethod and CHAP.
    Security,
    Discovery,
    /// CmdSN, StatSN and their windows.
    Numbers,
    Nop,
    /// Text requests in the full feature phase.
    Text,
    /// Data to the initiator, statuses, residuals.
    DataIn,
    /// Data from the initiator: immediate, unsolicited, by R2T.
    DataOut,
    Task,
    Logout,
    /// Sessions and connections that replace others.
    Reinstatement,
    /// Several connections of one session (MC/S).
    Connections,
    /// Header and data digests.
    Digests,
    /// ErrorRecoveryLevels 0 and 1: SNACK, recovery R2T, retries.
    Recovery1,
    /// ErrorRecoveryLevel 2: lost and replaced connections.
    Recovery2,
    Redirect,
    Protocol,
    /// SCSI's requirements on an iSCSI transport.
    Scsi,
    /// The requirements of RFC 7145.
    Iser,
    /// Record marks, versions, credentials and retransmissions of RPC.
    Rpc,
    /// MOUNT and the portmapper.
    Mount,
    /// Version 3: names and directories.
    V3Names,
    /// Version 3: attributes, access and limits.
    V3Attributes,
    /// Version 3: reads, writes and COMMIT.
    V3Data,
    /// Version 3: READDIR and READDIRPLUS.
    V3Listing,
    /// Version 4: clients, sessions and slots.
    V4Sessions,
    /// Version 4: COMPOUND, filehandles and the current stateid.
    V4Compound,
    /// Version 4: names and attributes.
    V4Names,
    /// Version 4: OPEN, shares and stateids.
    V4Opens,
    /// Version 4: byte-range locks.
    V4Locks,
    /// Version 4: reads and writes.
    V4Data,
    /// Version 4.2 and extended attributes.
    V42,
}

impl Area {
    /// All areas, in the order in which they run.
    pub const ALL: [Area; 33] = [
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
        Area::Rpc,
        Area::Mount,
        Area::V3Names,
        Area::V3Attributes,
        Area::V3Data,
        Area::V3Listing,
        Area::V4Sessions,
        Area::V4Compound,
        Area::V4Names,
        Area::V4Opens,
        Area::V4Locks,
        Area::V4Data,
        Area::V42,
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
            Area::Rpc => "rpc",
            Area::Mount => "mount",
            Area::V3Names => "v3-names",
            Area::V3Attributes => "v3-attributes",
            Area::V3Data => "v3-data",
            Area::V3Listing => "v3-listing",
            Area::V4Sessions => "v4-sessions",
            Area::V4Compound => "v4-compound",
            Area::V4Names => "v4-names",
            Area::V4Opens => "v4-opens",
            Area::V4Locks => "v4-locks",
            Area::V4Data => "v4-data",
            Area::V42 => "v42",
        }
    }

    /// The subject in a few words.
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
            Area::Rpc => "RPC",
            Area::Mount => "MOUNT and the portmapper",
            Area::V3Names => "NFSv3: names",
            Area::V3Attributes => "NFSv3: attributes, access and limits",
            Area::V3Data => "NFSv3: data",
            Area::V3Listing => "NFSv3: listings",
            Area::V4Sessions => "NFSv4.1: clients and sessions",
            Area::V4Compound => "NFSv4.1: COMPOUND",
            Area::V4Names => "NFSv4.1: names and attributes",
            Area::V4Opens => "NFSv4.1: OPEN and stateids",
            Area::V4Locks => "NFSv4.1: byte-range locks",
            Area::V4Data => "NFSv4.1: data",
            Area::V42 => "NFSv4.2 and extended attributes",
        }
    }
}

/// The requirement level of the standard (RFC 2119).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A target that violates it fails.
    Must,
    /// A target that violates it gets a warning.
    Should,
}

impl Level {
    /// The keyword in standards.
    pub fn name(self) -> &'static str {
        match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
        }
    }
}

/// The effects of a check on a target beyond logging in and reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Only logs in and reads.
    Reading,
    /// Writes to the unit, within the configured area.
    Writing,
    /// Resets units and targets, and aborts tasks of other sessions.
    Destruction,
}

/// The transports that a check applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// TCP and iSER.
    Both,
    /// Only TCP: iSER has no digests, Data-In, R2T and Data-Out.
    Tcp,
    /// Only iSER.
    Iser,
    /// None of them: the check is one of NFS.
    Nfs,
}

/// A requirement, and a test whether a target meets it.
#[derive(Clone, Copy)]
pub struct Check {
    pub area: Area,
    /// Its name within the area: words joined by hyphens.
    pub name: &'static str,
    pub level: Level,
    /// The clauses of the standard.
    pub clauses: &'static str,
    /// The requirement, as a sentence.
    pub requires: &'static str,
    /// Why it matters: the problem with a target that violates it.
    pub why: &'static str,
    /// The actions that the check needs.
    pub needs: Needs,
    /// The transports that the check applies to.
    pub over: Over,
    pub(crate) test: Test,
}

/// The function of a check, by the kind of server.
#[derive(Clone, Copy)]
pub(crate) enum Test {
    /// Against an iSCSI target.
    Iscsi(fn(&Lab) -> Verdict),
    /// Against an NFS server.
    Nfs(fn(&share::Lab) -> Verdict),
}

impl Check {
    /// A requirement of the standard that only needs reading, over any transport.
    pub(crate) const fn must(
        area: Area,
        name: &'static str,
        clauses: &'static str,
        requires: &'static str,
        why: &'static str,
        run: fn(&Lab) -> Verdict,
    ) -> Self {
        let (level, needs, over) = (Level::Must, Needs::Reading, Over::Both);
        Self { area, name, level, clauses, requires, why, needs, over, test: Test::Iscsi(run) }
    }

    /// A recommendation of the standard.
    pub(crate) const fn should(
        area: Area,
        name: &'static str,
        clauses: &'static str,
        requires: &'static str,
        why: &'static str,
        run: fn(&Lab) -> Verdict,
    ) -> Self {
        let (level, needs, over) = (Level::Should, Needs::Reading, Over::Both);
        Self { area, name, level, clauses, requires, why, needs, over, test: Test::Iscsi(run) }
    }

    /// A requirement on an NFS server.
    pub(crate) const fn nfs(
        area: Area,
        name: &'static str,
        clauses: &'static str,
        requires: &'static str,
        why: &'static str,
        run: fn(&share::Lab) -> Verdict,
    ) -> Self {
        // It only changes files of its own.
        let (level, needs, over) = (Level::Must, Needs::Reading, Over::Nfs);
        Self { area, name, level, clauses, requires, why, needs, over, test: Test::Nfs(run) }
    }

    pub(crate) const fn recommended(mut self) -> Self {
        self.level = Level::Should;
        self
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
