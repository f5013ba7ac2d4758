//! What a configuration says, as plain data that has been checked.

use std::net::SocketAddr;
use std::path::PathBuf;

use scsi::data::target_port_groups::AccessState;
pub use target::config::{Crc, Redirect, Transports};

use crate::unit::UnitSpec;

/// A whole configuration. What is `None` was left to the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Threads, one a core; 0 for every core that the process may use.
    pub cores: Option<u16>,
    /// Microseconds that a core looks for new work before it sleeps.
    pub spin_us: Option<u32>,
    /// Whether read data may be sent by reference.
    pub zero_copy: Option<bool>,
    /// Bytes of payload buffers a core.
    pub pool_bytes: Option<u64>,
    /// What to log, as `--log` takes it.
    pub log: Option<String>,
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// Bounds.
    pub limits: Limits,
    /// iSER.
    pub iser: Iser,
    /// With whom targets are registered.
    pub isns: Option<Isns>,
    /// Who may ask which targets there are.
    pub discovery: Auth,
    /// What is served.
    pub targets: Vec<Target>,
}

/// Addresses of one portal group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub listen: SocketAddr,
    /// Target portal group tag, 1 to 65535.
    pub group: u16,
    /// What it lets in.
    pub transports: Transports,
}

/// The iSNS server that the targets are registered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isns {
    /// `HOST:PORT`.
    pub server: String,
    /// The entity's identifier; `None` for the host's name.
    pub entity: Option<String>,
    /// Seconds for which a registration is asked to hold.
    pub period_s: Option<u32>,
    /// Seconds between the server's inquiries; none if 0 or `None`.
    pub esi_interval_s: Option<u32>,
}

/// How iSER is spoken, where that is not left to the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iser {
    /// Whether FPDUs carry a CRC.
    pub crc: Option<Crc>,
    /// The longest FPDU sent, bytes.
    pub fpdu: Option<u32>,
    /// Whether initiators are to put markers into what they send.
    pub markers: Option<bool>,
    /// RDMA Reads outstanding on a connection.
    pub reads: Option<u16>,
    /// Whether writes may bring data unasked besides what comes with the command.
    pub unsolicited_data: Option<bool>,
}

/// Bounds that replace the daemon's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: Option<u32>,
    /// Connections that have not finished their login.
    pub logins: Option<u32>,
    /// Sessions at once.
    pub sessions: Option<u32>,
    /// MaxConnections.
    pub connections_per_session: Option<u16>,
    /// Commands of a session at once.
    pub queue_depth: Option<u32>,
    /// MaxRecvDataSegmentLength, bytes.
    pub max_recv_data_segment: Option<u32>,
    /// MaxBurstLength, bytes.
    pub max_burst: Option<u32>,
    /// FirstBurstLength, bytes.
    pub first_burst: Option<u32>,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: Option<u16>,
    /// Seconds for a whole login.
    pub login_timeout: Option<u32>,
    /// Seconds of silence before a ping; 0 for never.
    pub nop_interval: Option<u32>,
    /// Seconds for the answer to a ping.
    pub nop_timeout: Option<u32>,
    /// Bytes queued on a connection above which its commands wait.
    pub send_high_water: Option<u32>,
    /// ErrorRecoveryLevel, 0 to 2.
    pub error_recovery_level: Option<u16>,
    /// DefaultTime2Wait, seconds.
    pub default_time2wait: Option<u16>,
    /// DefaultTime2Retain, seconds.
    pub default_time2retain: Option<u16>,
    /// Bytes of a connection that may wait to be acknowledged, at ErrorRecoveryLevel 1 and 2.
    pub unacknowledged: Option<u32>,
    /// Seconds for which Data-Out may pause before it counts as lost, at ErrorRecoveryLevel 1 and 2.
    pub data_timeout: Option<u32>,
    /// TCP's congestion control.
    pub congestion: Option<target::config::Congestion>,
}

/// One target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its iSCSI name.
    pub iqn: String,
    /// What people call it; empty for nothing.
    pub alias: String,
    /// Portal groups that serve it; empty for all.
    pub groups: Vec<u16>,
    /// How initiators prove who they are.
    pub auth: Auth,
    /// Its logical units.
    pub units: Vec<Lun>,
    /// Who may log in; `None` for everybody.
    pub acls: Option<Vec<Acl>>,
    /// Where it is instead.
    pub redirect: Option<Redirect>,
    /// Asymmetric access; `None` for one target port group that is always active/optimized.
    pub alua: Option<Alua>,
}

/// Asymmetric access to a target's units (SPC-4 §5.15).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alua {
    /// Whether initiators may change states (SET TARGET PORT GROUPS).
    pub explicit: bool,
    /// Whether the target itself may.
    pub implicit: bool,
    /// IMPLICIT TRANSITION TIME told to initiators, seconds; 0 says nothing.
    pub transition_hint_s: u8,
    /// How long groups are in transition when their state changes, milliseconds.
    pub transition_ms: u32,
    /// The file that keeps what initiators have set.
    pub keep: Option<PathBuf>,
    /// The target port groups.
    pub groups: Vec<AluaGroup>,
}

/// A target port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AluaGroup {
    /// TARGET PORT GROUP, 1 to 65535.
    pub id: u16,
    /// The portal groups that are its ports.
    pub portal_groups: Vec<u16>,
    /// The state that it begins in.
    pub state: AccessState,
    /// PREF.
    pub preferred: bool,
    /// The states that it can be in.
    pub states: Vec<AccessState>,
}

/// A logical unit under its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lun {
    /// 0 to 16383.
    pub lun: u16,
    /// The unit.
    pub spec: UnitSpec,
}

/// What one initiator may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Its iSCSI name, or the beginning of names and a `*`.
    pub initiator: String,
    /// How it proves who it is; `None` for the target's way.
    pub auth: Option<Auth>,
    /// What it sees; `None` for everything as it is.
    pub luns: Option<Vec<AclLun>>,
    /// What it is served at most.
    pub limits: crate::unit::limits::Limits,
}

/// One unit as one initiator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclLun {
    /// The unit's number in the target.
    pub lun: u16,
    /// The number that the initiator uses.
    pub seen_as: u16,
    /// Whether it may only read.
    pub read_only: bool,
}

/// How an initiator proves who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Not at all.
    #[default]
    None,
    /// With CHAP.
    Chap(Chap),
}

/// Names and secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// Whom the target lets in.
    pub users: Vec<Credential>,
    /// What the target answers when it is asked who it is.
    pub mutual: Option<Credential>,
    /// Hashes that it takes, the most wanted first.
    pub hashes: Vec<ChapHash>,
}

/// A name and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// CHAP_N.
    pub name: String,
    /// The secret, 12 to 255 bytes.
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credential({:?}, …)", self.name)
    }
}

/// A hash that CHAP can use (RFC 7143 §12.1.3; numbers from IANA's registry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChapHash {
    /// MD5, 5.
    Md5,
    /// SHA-1, 6.
    Sha1,
    /// SHA-256, 7.
    Sha256,
    /// SHA3-256, 8.
    Sha3_256,
}

impl ChapHash {
    /// All, the strongest first, by the names that people write.
    pub const ALL: [(&'static str, Self); 4] =
        [("sha3-256", Self::Sha3_256), ("sha256", Self::Sha256), ("sha1", Self::Sha1), ("md5", Self::Md5)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, hash)| *hash == self).map_or("", |(name, _)| name)
    }
}
