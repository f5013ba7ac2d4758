//! A server's configuration as plain data: portals, targets, their units and access to them.
//!
//! The caller fills it in; this module reads no file and checks no more than the types do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use device::PortGroups;
use iscsi::chap::{Credential, Hash};
use iscsi::discovery::TargetAddress;
use iscsi::name;

use crate::Unit;
pub use server_core::qos::{DEFAULT_BURST, Limiter, MAX_BURST, QosLimits, Rates};

pub use rdma::Crc;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Portals, with their addresses.
    pub portals: Vec<Portal>,
    /// Targets to serve.
    pub targets: Vec<TargetConfig>,
    /// Authentication of discovery sessions, which list the targets.
    pub discovery_auth: Auth,
    /// Bounds.
    pub limits: Limits,
    /// Whether to send a memory unit's read data by reference (zero-copy) instead of copying it.
    pub zero_copy: bool,
    /// Settings of iSER, for portals that allow it.
    pub iser: IserConfig,
}

/// The settings of iSER, each said once: name, type, default, range, meaning. Expands `$then` with
/// them.
#[macro_export]
macro_rules! iser_settings {
    ($then:path) => {
        $then! {
            /// How iSER is spoken (RFC 7145), over software iWARP.
            pub struct IserConfig in "[iser]", NewConnections {
                /// Whether FPDUs carry a CRC.
                "crc" crc: Crc = rdma::Options::default().crc, words(CRCS).flag("--iser-crc");
                /// The longest FPDU sent, bytes. RNICs may take no more than fits a TCP segment.
                // From the size of the headers and a little data to the end of a 16-bit length (RFC
                // 5044 §4.1).
                "fpdu" max_fpdu: usize = rdma::Options::default().max_fpdu, size(256, 65_544);
                /// Whether to demand markers of initiators (RFC 5044 §4.3). They get markers if
                /// they demand them.
                "markers" markers: bool = rdma::Options::default().markers, yes_no();
                /// RDMA Reads outstanding at once on one connection (ORD). The initiator may allow
                /// fewer.
                // 14 bits in the connection request (RFC 6581 §4.1).
                "reads" reads: u16 = rdma::Options::default().ord, number(1, 16_383);
                /// Whether initiators may send unsolicited data beyond the immediate data
                /// (InitialR2T=No). It saves a round trip on long distances. Data that RDMA Read
                /// fetches is placed directly.
                "unsolicited-data" unsolicited_data: bool = false, yes_no();
            }
        }
    };
}

/// The limits, each said once: name, type, default, range, meaning. Expands `$then` with them.
#[macro_export]
macro_rules! limits {
    ($then:path) => {
        $then! {
            /// Bounds on what peers may cost. Memory per session is at most `queue_depth ×
            /// (first_burst + 1 KiB) + connections × (send_high_water + max_recv_data_segment × 2)`
            /// bytes, besides the data of running commands, which comes out of the cores' pools.
            pub struct Limits in "[limits]", NewLogins {
                /// Connections at once, logging in or logged in. One more is closed at once.
                "connections" connections: usize = 65536, number(1, (1 << 20) - 1);
                /// Connections of one address at once: an IPv4 address, or an IPv6 network of 64
                /// bits. 0 is no limit.
                "connections-per-address" connections_per_address: usize = usize::MAX, number(0, (1 << 20) - 1);
                /// Connections that have not finished their login, all together, as far as the
                /// login memory suffices. From half of them on some are dropped by chance.
                "logins" logins: usize = 1024, number(1, (1 << 20) - 1);
                /// Connections of one address that have not finished their login. From a quarter on
                /// some are dropped by chance.
                "logins-per-address" logins_per_address: usize = 256, number(1, (1 << 20) - 1);
                /// Memory of all connections that have not finished their login, bytes, with the
                /// text that they have sent.
                "login-memory" login_memory: usize = 16 << 20, size(1 << 20, (1 << 32) - 1);
                /// Sessions at once.
                "sessions" sessions: usize = 16384, number(1, (1 << 20) - 1);
                /// MaxConnections offered: connections of one session.
                "connections-per-session" connections_per_session: u16 = 8, number(1, 65535);
                /// Commands of a session outstanding at once (the CmdSN window).
                "queue-depth" queue_depth: u32 = 128, number(1, 16384);
                /// MaxRecvDataSegmentLength that the target declares, bytes.
                // One buffer of the pool receives a data segment with its padding and digest: 1 MiB
                // at most (`runtime::pool`).
                "max-recv-data-segment" max_recv_data_segment: u32 = 262_144, size(512, (1 << 20) - 4096);
                /// MaxBurstLength offered, bytes.
                // The ranges of the sizes are those of their keys (RFC 7143 §13.12 to §13.17).
                "max-burst" max_burst: u32 = 1 << 20, size(512, (1 << 24) - 1);
                /// FirstBurstLength offered, bytes; at most MaxBurstLength.
                "first-burst" first_burst: u32 = 262_144, size(512, (1 << 24) - 1);
                /// MaxOutstandingR2T offered.
                "max-outstanding-r2t" max_outstanding_r2t: u16 = 8, number(1, 65535);
                /// Time for a whole login.
                "login-timeout" login_timeout: Duration = Duration::from_secs(15), number(1, 3600).unit("s");
                /// Silence after which the target pings with NOP-In; 0 is never. Each core sends at
                /// most 100 pings a second to connections that are idle, so with more of them the
                /// interval is longer.
                "nop-interval" nop_interval: Duration = Duration::from_secs(10), number(0, 86400).unit("s");
                /// Time for the answer to a ping. Without one the connection is dropped.
                "nop-timeout" nop_timeout: Duration = Duration::from_secs(10), number(1, 3600).unit("s");
                /// Bytes queued to one connection's socket above which its commands wait.
                "send-high-water" send_high_water: usize = 4 << 20, size(65536, (1 << 31) - 1);
                /// ErrorRecoveryLevel offered; the smaller of both sides' counts. Over iSER it is
                /// 0.
                "error-recovery-level" error_recovery_level: u8 = 2, number(0, 2);
                /// DefaultTime2Wait offered, seconds; the larger of both sides' counts.
                "default-time2wait" default_time2wait_s: u16 = 2, number(0, 3600).unit("s");
                /// DefaultTime2Retain offered, seconds; the smaller of both sides' counts. At level
                /// 2 the target keeps the tasks of a lost connection for so long, after Time2Wait.
                "default-time2retain" default_time2retain_s: u16 = 20, number(0, 3600).unit("s");
                /// ErrorRecoveryLevel 1 and 2: bytes of one connection that may wait for their
                /// acknowledgement. Above it no read begins another burst.
                "unacknowledged" unacknowledged: usize = 8 << 20, size(65536, (1 << 31) - 1);
                /// ErrorRecoveryLevel 1 and 2: how long a sequence of Data-Out may pause before it
                /// counts as lost.
                "data-timeout" data_timeout: Duration = Duration::from_secs(5), number(1, 3600).unit("s");
                /// TCP's congestion control, by its name in the kernel. It is set when a connection
                /// is accepted.
                "congestion-control" congestion: Option<Congestion> = None,
                    text("the name of a congestion control").otherwise("the system's; within the machine none that paces");
            }
        }
    };
}

/// Makes a struct of settings, with their defaults.
macro_rules! with_defaults {
    (
        $(#[doc = $about:literal])+ pub struct $group:ident in $header:literal, $applies:ident {
            $($(#[doc = $doc:literal])+ $name:literal $field:ident: $type:ty = $default:expr, $rule:expr;)*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $group {
            $($(#[doc = $doc])+ pub $field: $type,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

iser_settings!(with_defaults);
limits!(with_defaults);

/// A listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Target portal group tag, 1 to 65535: connections of one session may spread over the portals
    /// of one group (RFC 7143 §4.4.1). It is the RELATIVE TARGET PORT IDENTIFIER too.
    pub group: u16,
    /// Transports that initiators may use at this portal.
    pub transports: Transports,
}

impl server_core::portals::Asked for Portal {
    fn address(&self) -> SocketAddr {
        self.listen
    }

    fn by_device(&self) -> bool {
        self.transports == Transports::Verbs
    }
}

/// Transports that a portal accepts. All but [`Self::Verbs`] begin with a TCP connection to its
/// port; the first bytes tell iSCSI from iWARP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transports {
    /// iSCSI over TCP, and iSER over iWARP.
    #[default]
    All,
    /// iSCSI over TCP only.
    Tcp,
    /// iSER over iWARP only.
    Iser,
    /// iSER through the RDMA devices that have the address, by rdma-core: InfiniBand, RoCE, and
    /// iWARP that cards or the kernel speak.
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
    /// Authentication of initiators whose ACL entry names none.
    pub auth: Auth,
    /// Its logical units.
    pub units: Vec<LunConfig>,
    /// Initiators that may log in. `None`: every initiator, to all units.
    pub acls: Option<Vec<Acl>>,
    /// Redirection to another portal, for initiators that may log in.
    pub redirect: Option<Redirect>,
    /// Its target port groups (asymmetric access), made of portal group tags. `None`: all ports in
    /// one group, always active/optimized.
    pub ports: Option<Arc<PortGroups>>,
    /// Portals of other gateways that serve it too, for SendTargets.
    pub elsewhere: Vec<TargetAddress>,
}

/// A redirection of initiators (RFC 7143 §11.13.5, Status-Class 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The other portal. The answer contains no portal group tag (§13.8).
    pub address: TargetAddress,
    /// Whether the target has moved permanently (0102h): then an initiator may forget this address.
    /// Otherwise (0101h) its next login comes here again.
    pub permanent: bool,
    /// Whether initiators learn of it only after they have authenticated.
    pub after_auth: bool,
}

impl TargetConfig {
    /// Whether `initiator` may log in, or stay, having proved to be `user`.
    pub fn admits(&self, initiator: &str, user: Option<&str>) -> bool {
        self.acl(initiator).is_some_and(|acl| acl.is_none_or(|acl| acl.admits(user)))
    }

    /// Whether `initiator` may log in, and under which entry: `None` if not, `Some(None)` if
    /// everybody may. The entry with the longest match counts.
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
    /// Its limits of service, shared by all initiators.
    pub limiter: Arc<Limiter>,
    /// Whether the times of its commands' stages are counted for it, besides for its target.
    pub stages: bool,
}

/// Access of one initiator.
#[derive(Clone, Debug)]
pub struct Acl {
    /// Its iSCSI name; a trailing `*` matches any ending.
    pub initiator: String,
    /// Authentication of the initiator; `None` for the target's.
    pub auth: Option<Auth>,
    /// The only user who may log in under that name; `None` for all users known to the
    /// authentication.
    pub user: Option<String>,
    /// The units that it sees, each once, and the LUNs it sees them at. `None`: all units at their
    /// own LUNs.
    pub luns: Option<Vec<AclLun>>,
    /// Limits of service of each initiator of that name, for all its sessions with the target
    /// together.
    pub limits: QosLimits,
}

impl Acl {
    /// Whether an initiator that has proved to be `user` may have this entry.
    pub(crate) fn admits(&self, user: Option<&str>) -> bool {
        self.user.as_deref().is_none_or(|bound| user == Some(bound))
    }
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

/// Authentication of an initiator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Not at all.
    #[default]
    None,
    /// CHAP (RFC 7143 §12.1).
    Chap(Chap),
}

/// Names and secrets for CHAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// Names and secrets by which initiators authenticate to the target.
    pub users: Vec<Credential>,
    /// Name and secret by which the target authenticates to initiators that demand it (mutual
    /// CHAP).
    pub mutual: Option<Credential>,
    /// Hashes that may be used; the initiator's order decides among them.
    pub hashes: Vec<Hash>,
}

/// TCP's congestion control, by its name in the kernel: 1 to 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Congestion {
    name: [u8; 15],
    len: u8,
}

impl Congestion {
    /// Of that name; `None` if no kernel has one like that. Whether this one has it shows when it
    /// is chosen.
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
