//! The settings of a session.

use std::time::Duration;

use iscsi::initiator::Spread;
use iscsi::keys::{DigestChoice, Offer, Params};
use iscsi::login::initiator::Chap;
use iscsi::pdu::Isid;
use iser::UNTIL_FULL_FEATURE_DATA;
use rdma::{Crc, Provider};

use crate::tune::{MOST_CONNECTIONS, Tune};
use crate::url::Transport;

/// TargetRecvDataSegmentLength that a login over iSER offers, bytes: the highest legal value. The
/// result is the minimum of both sides (RFC 7145 §6.4), so a target that repeats the offer has not
/// declared the size of its receive buffers.
const ISER_SEGMENT_OFFERED: u32 = 0xff_ffff;
/// The longest data segment that is sent to a target over iSER, bytes.
const ISER_SEGMENT: u32 = 64 << 10;
/// The same to a target that repeats the offer. Linux's does, and its receive buffers hold 8 KiB.
const ISER_SEGMENT_UNSAID: u32 = 8 << 10;

/// Requested time for the target to keep the tasks of a lost connection, seconds.
const RETAIN_S: u16 = 20;

/// Settings for login, the number of outstanding commands, and recovery.
#[derive(Debug, Clone)]
pub struct Options {
    /// InitiatorName.
    pub initiator: String,
    /// ISID of the session; random if `None`. Sessions with the same one through different portal
    /// groups of a target are sessions of one initiator port (RFC 7143 §4.4.3).
    pub isid: Option<Isid>,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// CHAP, one-way or mutual. A credential in the URL replaces its name and secret. Without named
    /// algorithms all are offered, and a refused login is retried once with only MD5: some targets
    /// number them wrongly.
    pub chap: Option<Chap>,
    /// Header digests: wanted, allowed or required.
    pub header_digest: DigestChoice,
    /// Data digests.
    pub data_digest: DigestChoice,
    /// Connections of the session (MC/S), 1 to 64. Fewer if the target allows fewer.
    pub connections: u16,
    /// Further addresses of the target's portal group, host and port: the session's connections go
    /// to the URL's own and to these in turn, by their CID.
    pub portals: Vec<(String, u16)>,
    /// MaxConnections to negotiate, if more than the session starts with.
    pub allow_connections: u16,
    /// Distribution of commands over several connections.
    pub spread: Spread,
    /// The highest error recovery level to negotiate, 0 to 2. Over iSER it is 0.
    pub error_recovery_level: u8,
    /// Maximum commands outstanding or waiting, 1 to 32768; starting more waits.
    pub queue_depth: usize,
    /// Timeout for a TCP connection and its login.
    pub connect_timeout: Duration,
    /// Timeout for a command. After it the session counts as lost and reconnects.
    pub command_timeout: Duration,
    /// Idle time after which the target is pinged. It has the same time again to answer.
    pub ping_interval: Duration,
    /// Maximum duration of a reconnect; zero disables it. A permanent refusal ends it earlier. That
    /// is at once for authentication, authorization or removal; after three logins in a row with
    /// mismatched parameters; after a sixth of this time if the target is not found.
    pub reconnect_timeout: Duration,
    /// Maximum number of times to resend a command after its session was lost.
    pub max_replays: u8,
    /// The longest data segment that we accept, bytes.
    pub max_recv_data_segment_length: u32,
    /// FirstBurstLength: maximum unsolicited data per command, bytes.
    pub first_burst_length: u32,
    /// MaxBurstLength, bytes.
    pub max_burst_length: u32,
    /// Whether to request no unsolicited Data-Out (InitialR2T); the target may also require it.
    pub initial_r2t: bool,
    /// Whether commands may carry data (ImmediateData); the target may forbid it.
    pub immediate_data: bool,
    /// Maximum outstanding R2Ts per command, 1 to 65535.
    pub max_outstanding_r2t: u16,
    /// Over iSER, the longest write whose data is sent with its command, bytes, as far as the
    /// target accepts it. The target fetches longer ones by RDMA Read, which costs a round trip and
    /// saves it a copy. At most [`Options::first_burst_length`].
    pub iser_unsolicited: u32,
    /// Over iSER on software iWARP, whether FPDUs carry a CRC32C (RFC 5044 §4.4). It replaces
    /// header and data digests, which iSER does not have.
    pub iser_crc: Crc,
    /// Over iSER on software iWARP, whether to request markers from the target (RFC 5044 §4.3). The
    /// target gets them if it requests them.
    pub iser_markers: bool,
    /// Over iSER on software iWARP, the longest FPDU sent, bytes, including headers and CRC: 256 to
    /// 65544.
    pub iser_fpdu: usize,
    /// Over iSER, maximum outstanding RDMA Reads of the target per connection (IRD), 1 to 16383; it
    /// may request fewer.
    pub iser_reads: u16,
    /// Socket options: buffers, congestion control. Over TCP and software iWARP.
    pub path: runtime::PathOptions,
    /// Whether the session tunes itself while it runs.
    pub tune: Tune,
    /// Over iSER, the RDMA provider: software iWARP, or an RDMA device by rdma-core's verbs.
    pub iser_provider: Provider,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            initiator: "iqn.2026-01.org.stag:initiator".to_owned(),
            isid: None,
            alias: None,
            chap: None,
            header_digest: DigestChoice::Allow,
            data_digest: DigestChoice::Allow,
            connections: 1,
            portals: Vec::new(),
            allow_connections: 1,
            spread: Spread::default(),
            error_recovery_level: 2,
            queue_depth: 128,
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(60),
            max_replays: 5,
            max_recv_data_segment_length: 262_144,
            first_burst_length: 262_144,
            max_burst_length: 1 << 20,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 8,
            iser_unsolicited: 8192,
            iser_crc: Crc::Prefer,
            iser_markers: false,
            iser_fpdu: 65_536,
            iser_reads: 128,
            path: runtime::PathOptions::default(),
            tune: Tune::default(),
            iser_provider: Provider::Software,
        }
    }
}

impl Options {
    /// The parameters to offer in a login.
    pub(crate) fn offer(&self, transport: Transport) -> Offer {
        let offer = Offer {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            max_recv_data_segment_length: self.max_recv_data_segment_length,
            max_connections: match self.tune {
                Tune::Off => self.connections.max(self.allow_connections).clamp(1, 64),
                Tune::Auto => self.connections.max(self.allow_connections).clamp(MOST_CONNECTIONS, 64),
            },
            initial_r2t: self.initial_r2t,
            immediate_data: self.immediate_data,
            max_burst_length: self.max_burst_length,
            first_burst_length: self.first_burst_length,
            error_recovery_level: self.error_recovery_level.min(2),
            // Tasks do not outlive a connection at lower levels.
            default_time2wait_s: 0,
            default_time2retain_s: if self.error_recovery_level >= 2 { RETAIN_S } else { 0 },
            max_outstanding_r2t: self.max_outstanding_r2t.max(1),
            ..Offer::default()
        };
        on_transport(offer, transport)
    }
}

/// Adjusts the offer for the transport.
pub(crate) fn on_transport(offer: Offer, transport: Transport) -> Offer {
    match transport {
        Transport::Tcp => offer,
        Transport::Iser => Offer {
            error_recovery_level: 0,
            default_time2retain_s: 0,
            target_recv_data_segment_length: ISER_SEGMENT_OFFERED,
            initiator_recv_data_segment_length: UNTIL_FULL_FEATURE_DATA as u32,
            ..offer.over_rdma()
        },
    }
}

/// Bytes of a data segment that a target takes over iSER, by its answer to the offer.
pub(crate) fn iser_segment(answered: u32) -> u32 {
    if answered >= ISER_SEGMENT_OFFERED { ISER_SEGMENT_UNSAID } else { answered.min(ISER_SEGMENT) }
}

/// Bytes of a write that a target takes over iSER before it requests data. At most one PDU, unless
/// the target agrees to unsolicited Data-Out: only then it has receives for more (RFC 7145 §8.1.1).
pub(crate) fn most_unsolicited(params: &Params) -> u32 {
    match params.initial_r2t {
        true => params.target_recv_data_segment_length.min(params.first_burst_length),
        false => params.first_burst_length,
    }
}
