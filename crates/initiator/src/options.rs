//! How a session is set up.

use std::time::Duration;

use iscsi::initiator::Spread;
use iscsi::keys::{DigestChoice, Offer};
use iscsi::login::initiator::Chap;
use iser::UNTIL_FULL_FEATURE_DATA;
use rdma::{Crc, Provider};

use crate::tune::{MOST_CONNECTIONS, Tune};
use crate::url::Transport;

/// The longest data segment of a control-type PDU that we ask a target to take over iSER, bytes.
const ISER_TARGET_SEGMENT: u32 = 64 << 10;

/// How long a target is asked to keep the tasks of a lost connection, seconds.
const RETAIN_S: u16 = 20;

/// How to log in, how much to have under way, and what to do when the connection is lost.
#[derive(Debug, Clone)]
pub struct Options {
    /// InitiatorName.
    pub initiator: String,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// CHAP, one-way or mutual. A credential in the URL takes its name and secret from there. If no algorithms are named,
    /// all are offered, and a login that is refused is tried once more with MD5 alone: some targets number them wrongly.
    pub chap: Option<Chap>,
    /// Header digests: wanted, allowed or required.
    pub header_digest: DigestChoice,
    /// Data digests.
    pub data_digest: DigestChoice,
    /// Connections of the session (MC/S), 1 to 64. Fewer if the target allows no more.
    pub connections: u16,
    /// Connections that may be agreed on at login (MaxConnections), if more than the session begins with.
    pub allow_connections: u16,
    /// Which of several connections a command goes to.
    pub spread: Spread,
    /// The highest error recovery level to agree to, 0 to 2; the target's decides too. Over iSER it is 0.
    pub error_recovery_level: u8,
    /// Commands under way or waiting at most, 1 to 32768; starting more waits.
    pub queue_depth: usize,
    /// Time for a TCP connection and its login.
    pub connect_timeout: Duration,
    /// Time for a command. After it the session is taken for dead and made anew.
    pub command_timeout: Duration,
    /// Silence after which the target is asked whether it lives. It has the same time again to answer.
    pub ping_interval: Duration,
    /// How long a lost session is tried to be made anew; zero means not at all. A target that refuses us for good ends it before: at
    /// once by name (authentication, authorization, removal), after three logins in a row that do not fit, and after a sixth of this
    /// time in which it is not found.
    pub reconnect_timeout: Duration,
    /// How often a command is sent again, at most, because its session was lost.
    pub max_replays: u8,
    /// Longest data segment that we take, bytes.
    pub max_recv_data_segment_length: u32,
    /// Most unsolicited data of one command, bytes.
    pub first_burst_length: u32,
    /// Longest burst, bytes.
    pub max_burst_length: u32,
    /// Whether unsolicited Data-Out is renounced (InitialR2T); the target may demand it.
    pub initial_r2t: bool,
    /// Whether commands may carry data (ImmediateData); the target may forbid it.
    pub immediate_data: bool,
    /// R2Ts of one command that the target may have outstanding, 1 to 65535.
    pub max_outstanding_r2t: u16,
    /// Over iSER, the longest write of which data is sent with the command, bytes, as far as the target takes it: longer
    /// ones are fetched whole by RDMA Read, which costs a round trip and spares the target a copy. At most
    /// [`Options::first_burst_length`].
    pub iser_unsolicited: u32,
    /// Over iSER on software iWARP, whether FPDUs carry a CRC32C (RFC 5044 §4.4). It stands for header and data digests,
    /// which iSER does not have.
    pub iser_crc: Crc,
    /// Over iSER on software iWARP, whether to demand markers of the target (RFC 5044 §4.3). It gets them if it demands them.
    pub iser_markers: bool,
    /// Over iSER on software iWARP, the longest FPDU sent, bytes, headers and CRC included: 256 to 65544.
    pub iser_fpdu: usize,
    /// Over iSER, RDMA Reads that the target may have outstanding on a connection (IRD), 1 to 16383; it may want fewer.
    pub iser_reads: u16,
    /// What sockets are set up with: buffers, congestion control. Over TCP and software iWARP.
    pub path: ring::PathOptions,
    /// Whether the session tunes itself while it runs.
    pub tune: Tune,
    /// Over iSER, who moves the bytes: software iWARP, or an RDMA device by rdma-core's verbs.
    pub iser_provider: Provider,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            initiator: "iqn.2026-01.org.stag:initiator".to_owned(),
            alias: None,
            chap: None,
            header_digest: DigestChoice::Allow,
            data_digest: DigestChoice::Allow,
            connections: 1,
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
            path: ring::PathOptions::default(),
            tune: Tune::default(),
            iser_provider: Provider::Software,
        }
    }
}

impl Options {
    /// What a login brings to negotiation.
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

/// The same for the transport.
pub(crate) fn on_transport(offer: Offer, transport: Transport) -> Offer {
    match transport {
        Transport::Tcp => offer,
        Transport::Iser => Offer {
            error_recovery_level: 0,
            default_time2retain_s: 0,
            target_recv_data_segment_length: ISER_TARGET_SEGMENT,
            initiator_recv_data_segment_length: UNTIL_FULL_FEATURE_DATA as u32,
            ..offer.over_rdma()
        },
    }
}
