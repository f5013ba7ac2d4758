//! What a server is to serve, as plain data: portals, targets, their units and who may use them.
//!
//! Whoever starts a server fills this in; nothing here reads a file or checks more than types do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use device::PortGroups;
use iscsi::chap::{Credential, Hash};
use iscsi::discovery::TargetAddress;
use iscsi::name;

use crate::Unit;
pub use crate::qos::{DEFAULT_BURST, Limiter, MAX_BURST, QosLimits, Rates};

pub use rdma::Crc;

/// Everything that a server is started with.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// What to serve.
    pub targets: Vec<TargetConfig>,
    /// Who may ask for the list of targets (discovery sessions).
    pub discovery_auth: Auth,
    /// Bounds.
    pub limits: Limits,
    /// Threads, each pinned to a core of its own; 0 means one for every core that the process may use.
    pub cores: usize,
    /// How long a core looks for new work before it sleeps, at most, µs. More makes lone commands faster; it is done only where
    /// what came before says that it pays.
    pub spin_us: u32,
    /// Whether a memory unit's read data may be sent by reference, its pages lent to the network, instead of copied.
    pub zero_copy: bool,
    /// Pool memory for payload buffers, bytes a core.
    pub pool_bytes: usize,
    /// How iSER is spoken where portals let it in.
    pub iser: IserConfig,
}

/// How iSER is spoken (RFC 7145), over software iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IserConfig {
    /// Whether FPDUs carry a CRC.
    pub crc: Crc,
    /// The longest FPDU sent, bytes. RNICs may take no more than fits a TCP segment.
    pub max_fpdu: usize,
    /// Whether to demand markers of initiators (RFC 5044 §4.3); they get them if they demand them.
    pub markers: bool,
    /// RDMA Reads outstanding at once on one connection (ORD), 1 to 16383. The initiator may allow fewer.
    pub reads: u16,
    /// Whether writes may bring data unasked beyond what comes with the command (InitialR2T=No). It spares a wide network a
    /// turnaround; fetched by RDMA Read data comes straight to where it belongs.
    pub unsolicited_data: bool,
}

impl Default for IserConfig {
    fn default() -> Self {
        let options = rdma::Options::default();
        Self {
            crc: options.crc,
            max_fpdu: options.max_fpdu,
            markers: options.markers,
            reads: options.ord,
            unsolicited_data: false,
        }
    }
}

/// A listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Target portal group tag, 1 to 65535: connections of one session may spread over the portals of one group
    /// (RFC 7143 §4.4.1). It is the RELATIVE TARGET PORT IDENTIFIER too.
    pub group: u16,
    /// What it lets in.
    pub transports: Transports,
}

/// What initiators may speak at a portal. All but the last begin with a TCP connection to its port; the first bytes tell iSCSI and
/// iWARP apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transports {
    /// iSCSI over TCP, and iSER over iWARP.
    #[default]
    All,
    /// iSCSI over TCP only.
    Tcp,
    /// iSER over iWARP only.
    Iser,
    /// iSER through the RDMA devices that have the address, by rdma-core: InfiniBand, RoCE, and iWARP that cards or the kernel
    /// speak.
    Verbs,
}

/// A target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Its iSCSI name, e.g. `iqn.2026-01.org.example:disks`.
    pub name: String,
    /// Its alias, shown to people; empty for none.
    pub alias: String,
    /// Portal groups that serve it; empty for all.
    pub groups: Vec<u16>,
    /// How initiators prove who they are, where their ACL entry does not say otherwise.
    pub auth: Auth,
    /// Its logical units.
    pub units: Vec<LunConfig>,
    /// Who may log in. `None`: everybody, to all units.
    pub acls: Option<Vec<Acl>>,
    /// Where it is instead: whoever may log in is sent there.
    pub redirect: Option<Redirect>,
    /// Its target port groups (asymmetric access), made of portal group tags. `None`: all in one, always active/optimized.
    pub ports: Option<Arc<PortGroups>>,
}

/// Where initiators are sent (RFC 7143 §11.13.5, Status-Class 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The other portal; its portal group tag is not told (§13.8).
    pub address: TargetAddress,
    /// Whether for good (0102h): then an initiator may forget this address. Otherwise (0101h) its next login comes here again.
    pub permanent: bool,
    /// Whether initiators learn of it only once they have proved who they are.
    pub after_auth: bool,
}

impl TargetConfig {
    /// Whether `initiator` may log in.
    pub fn admits(&self, initiator: &str) -> bool {
        self.acl(initiator).is_some()
    }

    /// Whether `initiator` may log in, and under which entry: `None` if not, `Some(None)` if everybody may. The entry
    /// with the longest match counts.
    pub(crate) fn acl(&self, initiator: &str) -> Option<Option<&Acl>> {
        let Some(acls) = &self.acls else { return Some(None) };
        let initiator = name::normalize(initiator);
        let matching = acls.iter().filter_map(|acl| {
            let pattern = name::normalize(&acl.initiator);
            let length = match pattern.strip_suffix('*') {
                Some(start) if initiator.starts_with(start) => start.len(),
                None if pattern == initiator => usize::MAX,
                _ => return None,
            };
            Some((length, acl))
        });
        matching.max_by_key(|(length, _)| *length).map(|(_, acl)| Some(acl))
    }
}

/// A unit under its number.
#[derive(Clone, Debug)]
pub struct LunConfig {
    /// Logical unit number, 0 to 16383.
    pub lun: u16,
    /// The unit.
    pub unit: Unit,
    /// What it serves at most, all initiators together.
    pub limiter: Arc<Limiter>,
}

/// What one initiator may do.
#[derive(Clone, Debug)]
pub struct Acl {
    /// Its iSCSI name; a trailing `*` matches any ending.
    pub initiator: String,
    /// How it proves who it is; `None` for the target's way.
    pub auth: Option<Auth>,
    /// The units that it sees, under the numbers that it sees them at. `None`: all, as they are.
    pub luns: Option<Vec<AclLun>>,
    /// What each initiator of that name is served at most, all its sessions with the target together.
    pub limits: QosLimits,
}

/// One unit as one initiator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclLun {
    /// The number that the initiator uses.
    pub seen_as: u16,
    /// The unit's number in the target.
    pub unit: u16,
    /// Whether it may only read.
    pub read_only: bool,
}

/// How an initiator proves who it is.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    /// Not at all.
    #[default]
    None,
    /// CHAP (RFC 7143 §12.1).
    Chap(Chap),
}

/// Names and secrets for CHAP.
#[derive(Clone, Debug)]
pub struct Chap {
    /// Whom the target lets in.
    pub users: Vec<Credential>,
    /// What the target answers when it is asked to prove itself too (mutual CHAP).
    pub mutual: Option<Credential>,
    /// Hashes that may be used, the most wanted first.
    pub hashes: Vec<Hash>,
}

/// Bounds on what peers may cost. Memory per session is at most
/// `queue_depth × (first_burst + 1 KiB) + connections × (send_high_water + max_recv_data_segment × 2)` bytes, besides the
/// data of running commands, which comes out of the cores' pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, logging in or logged in. One more is closed at once.
    pub connections: usize,
    /// Connections that have not finished their login, all together.
    pub logins: usize,
    /// Sessions at once.
    pub sessions: usize,
    /// MaxConnections offered: connections of one session, 1 to 65535.
    pub connections_per_session: u16,
    /// Commands of a session outstanding at once (the CmdSN window).
    pub queue_depth: u32,
    /// MaxRecvDataSegmentLength that the target declares, bytes (512 to 2²⁴−1).
    pub max_recv_data_segment: u32,
    /// MaxBurstLength offered, bytes.
    pub max_burst: u32,
    /// FirstBurstLength offered, bytes.
    pub first_burst: u32,
    /// MaxOutstandingR2T offered.
    pub max_outstanding_r2t: u16,
    /// Time for a whole login.
    pub login_timeout: Duration,
    /// Silence after which the target pings with NOP-In; zero for never. Where so many connections of a core are silent, and nothing
    /// waits for them, that this made more than [`crate::PINGS_PER_SECOND`], they take turns at that rate.
    pub nop_interval: Duration,
    /// Time for the answer to a ping; after it the connection is dropped.
    pub nop_timeout: Duration,
    /// Bytes queued to one connection's socket above which its commands wait.
    pub send_high_water: usize,
    /// ErrorRecoveryLevel offered, 0 to 2; the smaller of both sides' counts. Over iSER it is 0.
    pub error_recovery_level: u8,
    /// DefaultTime2Wait offered, seconds (0 to 3600); the larger of both sides' counts.
    pub default_time2wait_s: u16,
    /// DefaultTime2Retain offered, seconds (0 to 3600); the smaller of both sides' counts. At level 2 the tasks of a connection that
    /// is lost wait for a new one for so long, after Time2Wait.
    pub default_time2retain_s: u16,
    /// ErrorRecoveryLevel 1 and 2: bytes of one connection that may wait for their acknowledgement; above it no read begins another
    /// burst.
    pub unacknowledged: usize,
    /// ErrorRecoveryLevel 1 and 2: how long a sequence of Data-Out may pause before it counts as lost.
    pub data_timeout: Duration,
    /// What decides how fast a connection sends; `None`: what the system has for all. It is chosen as a connection is accepted.
    pub congestion: Option<Congestion>,
}

/// TCP's congestion control, by its name in the kernel: 1 to 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Congestion {
    name: [u8; 15],
    len: u8,
}

impl Congestion {
    /// Of that name; `None` if no kernel has one like that. Whether this one has it shows when it is chosen.
    pub fn new(name: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let mut bytes = [0; 15];
        let room = bytes.get_mut(..name.len()).filter(|room| !room.is_empty())?;
        room.copy_from_slice(name.as_bytes());
        // No longer than its room.
        name.bytes().all(plain).then_some(Self { name: bytes, len: name.len() as u8 })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.name[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl std::fmt::Debug for Congestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Congestion({})", self.name())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65536,
            logins: 32768,
            sessions: 16384,
            connections_per_session: 8,
            queue_depth: 128,
            max_recv_data_segment: 262_144,
            max_burst: 1 << 20,
            first_burst: 262_144,
            max_outstanding_r2t: 8,
            login_timeout: Duration::from_secs(15),
            nop_interval: Duration::from_secs(10),
            nop_timeout: Duration::from_secs(10),
            send_high_water: 4 << 20,
            error_recovery_level: 2,
            default_time2wait_s: 2,
            default_time2retain_s: 20,
            unacknowledged: 8 << 20,
            data_timeout: Duration::from_secs(5),
            congestion: None,
        }
    }
}
