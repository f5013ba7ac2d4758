//! The results of a negotiation ([`Params`]), and our side's offer ([`Offer`]).

use crate::frame::Digests;
use crate::text;

/// A digest of PDU headers or data (RFC 7143 §13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Digest {
    /// No digest.
    #[default]
    None,
    /// CRC32C (Castagnoli).
    Crc32c,
}

impl Digest {
    /// Its name in a list of values.
    pub fn name(self) -> &'static str {
        match self {
            Digest::None => "None",
            Digest::Crc32c => "CRC32C",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Digest::None, Digest::Crc32c].into_iter().find(|d| d.name() == name)
    }
}

/// A side's supported digests, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestChoice {
    /// `None` only.
    Never,
    /// `None,CRC32C`: the peer's preference decides.
    #[default]
    Allow,
    /// `CRC32C,None`: preferred.
    Prefer,
    /// `CRC32C` only.
    Require,
}

impl DigestChoice {
    /// The list of values to offer.
    pub fn list(self) -> &'static str {
        match self {
            DigestChoice::Never => "None",
            DigestChoice::Allow => "None,CRC32C",
            DigestChoice::Prefer => "CRC32C,None",
            DigestChoice::Require => "CRC32C",
        }
    }

    /// Whether this side supports `digest`.
    pub fn supports(self, digest: Digest) -> bool {
        match digest {
            Digest::None => self != DigestChoice::Require,
            Digest::Crc32c => self != DigestChoice::Never,
        }
    }

    /// The responder's choice from the originator's list: the first supported digest (RFC 7143
    /// §6.2.1).
    pub fn pick(self, list: &str) -> Option<Digest> {
        text::parse_list(list)?.filter_map(Digest::from_name).find(|d| self.supports(*d))
    }
}

/// The reporting of aborts (RFC 7143 §13.23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TaskReporting {
    /// As in RFC 3720.
    #[default]
    Rfc3720,
    /// Response fences on behalf of other sessions' task management (RFC 7143 §4.2.2.3.3).
    ResponseFence,
    /// FastAbort multi-task abort semantics (RFC 7143 §4.2.3.4).
    FastAbort,
}

impl TaskReporting {
    /// Its name in a list of values.
    pub fn name(self) -> &'static str {
        match self {
            TaskReporting::Rfc3720 => "RFC3720",
            TaskReporting::ResponseFence => "ResponseFence",
            TaskReporting::FastAbort => "FastAbort",
        }
    }

    /// The value with this name in a list of values.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Rfc3720, Self::ResponseFence, Self::FastAbort].into_iter().find(|t| t.name() == name)
    }
}

/// The operational parameters of a connection and its session after login. Before negotiation, and
/// for keys that neither side offers, they are the defaults of RFC 7143 §13.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Header digest of this connection.
    pub header_digest: Digest,
    /// Data digest of this connection.
    pub data_digest: Digest,
    /// The maximum data segment that we receive, as declared, bytes. Connection.
    pub max_recv_data_segment_length: u32,
    /// The maximum data segment that the peer receives, as declared, bytes. Connection.
    pub peer_max_recv_data_segment_length: u32,
    /// The maximum number of connections of the session.
    pub max_connections: u16,
    /// Whether unsolicited Data-Out is forbidden.
    pub initial_r2t: bool,
    /// Whether commands may carry immediate data.
    pub immediate_data: bool,
    /// The maximum Data-In or solicited Data-Out sequence, bytes.
    pub max_burst_length: u32,
    /// The maximum unsolicited data of one command, including immediate data, bytes; at most
    /// `max_burst_length`.
    pub first_burst_length: u32,
    /// Seconds to wait before reconnecting after a loss.
    pub default_time2wait_s: u16,
    /// Seconds for which tasks are retained for reassignment after `default_time2wait_s`.
    pub default_time2retain_s: u16,
    /// Outstanding R2Ts per task.
    pub max_outstanding_r2t: u16,
    /// Whether PDUs within a sequence are in the order of their offsets.
    pub data_pdu_in_order: bool,
    /// Whether sequences are in the order of their offsets.
    pub data_sequence_in_order: bool,
    /// Error recovery level, 0 to 2.
    pub error_recovery_level: u8,
    /// The reporting of aborts.
    pub task_reporting: TaskReporting,
    /// `iSCSIProtocolLevel`: 1 is RFC 7143, 2 RFC 7144.
    pub protocol_level: u8,
    /// Whether the session uses iSER (RFC 7145).
    pub rdma_extensions: bool,
    /// iSER: the maximum data segment of a control-type PDU that the target receives, bytes.
    /// Connection.
    pub target_recv_data_segment_length: u32,
    /// iSER: the maximum data segment of a control-type PDU that the initiator receives, bytes.
    /// Connection.
    pub initiator_recv_data_segment_length: u32,
    /// iSER: the maximum number of outstanding unexpected PDUs at the peer; 0 means no limit.
    pub peer_max_outstanding_unexpected_pdus: u32,
    /// iSER: the maximum AHS bytes that the peer receives; 0 means no limit.
    pub peer_max_ahs_length: u32,
    /// iSER: whether the initiator requires a Hello exchange.
    pub iser_hello_required: bool,
    /// iSER: whether tagged buffers are used for solicited data only.
    pub tagged_buffer_for_solicited_data_only: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            header_digest: Digest::None,
            data_digest: Digest::None,
            max_recv_data_segment_length: 8192,
            peer_max_recv_data_segment_length: 8192,
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait_s: 2,
            default_time2retain_s: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
            rdma_extensions: false,
            target_recv_data_segment_length: 8192,
            initiator_recv_data_segment_length: 8192,
            peer_max_outstanding_unexpected_pdus: 0,
            peer_max_ahs_length: 256,
            iser_hello_required: false,
            tagged_buffer_for_solicited_data_only: false,
        }
    }
}

impl Params {
    /// The digests that PDUs carry in the full feature phase.
    pub fn digests(&self) -> Digests {
        let on = |digest| digest == Digest::Crc32c;
        Digests { header: on(self.header_digest), data: on(self.data_digest) }
    }

    /// The initial parameters of a further connection: the session's values, and a connection's
    /// defaults.
    pub(crate) fn for_further_connection(&self) -> Params {
        let d = Params::default();
        Params {
            header_digest: d.header_digest,
            data_digest: d.data_digest,
            max_recv_data_segment_length: d.max_recv_data_segment_length,
            peer_max_recv_data_segment_length: d.peer_max_recv_data_segment_length,
            target_recv_data_segment_length: d.target_recv_data_segment_length,
            initiator_recv_data_segment_length: d.initiator_recv_data_segment_length,
            ..self.clone()
        }
    }
}

/// The supported and preferred values of one side. Numbers are clamped to their range when they are
/// offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Supported header digests.
    pub header_digest: DigestChoice,
    /// Supported data digests.
    pub data_digest: DigestChoice,
    /// The maximum data segment that we receive, bytes.
    pub max_recv_data_segment_length: u32,
    /// The maximum number of connections of a session.
    pub max_connections: u16,
    /// Whether we request InitialR2T=Yes: no unsolicited Data-Out.
    pub initial_r2t: bool,
    /// Whether we support immediate data.
    pub immediate_data: bool,
    /// The maximum burst, bytes.
    pub max_burst_length: u32,
    /// The maximum unsolicited data, bytes.
    pub first_burst_length: u32,
    /// DefaultTime2Wait, seconds.
    pub default_time2wait_s: u16,
    /// DefaultTime2Retain, seconds.
    pub default_time2retain_s: u16,
    /// Outstanding R2Ts per task.
    pub max_outstanding_r2t: u16,
    /// Whether we require PDUs in order.
    pub data_pdu_in_order: bool,
    /// Whether we require sequences in order.
    pub data_sequence_in_order: bool,
    /// The highest supported error recovery level.
    pub error_recovery_level: u8,
    /// Supported values besides RFC3720, in order of preference as initiator.
    pub task_reporting: &'static [TaskReporting],
    /// The highest supported protocol level.
    pub protocol_level: u8,
    /// Whether this connection is on RDMA. A normal session then requires `RDMAExtensions=Yes`, and
    /// digests are off regardless of the choices above (RFC 7145 §6.1, §6.3).
    pub rdma_extensions: bool,
    /// iSER: the maximum data segment of a control-type PDU that the target receives, bytes.
    pub target_recv_data_segment_length: u32,
    /// iSER: the maximum data segment of a control-type PDU that the initiator receives, bytes.
    pub initiator_recv_data_segment_length: u32,
    /// iSER: the maximum number of outstanding unexpected PDUs; 0, the default of RFC 7145 §6.7,
    /// means no limit and is not declared.
    pub max_outstanding_unexpected_pdus: u32,
    /// iSER: the maximum AHS bytes that we receive; 256 is the default of RFC 7145 §6.8 and is not
    /// declared.
    pub max_ahs_length: u32,
    /// iSER, initiator: whether we require a Hello exchange (RFC 7145 §6.10).
    pub iser_hello_required: bool,
}

impl Default for Offer {
    fn default() -> Self {
        Offer {
            header_digest: DigestChoice::Allow,
            data_digest: DigestChoice::Allow,
            max_recv_data_segment_length: 262_144,
            max_connections: 8,
            initial_r2t: false,
            immediate_data: true,
            max_burst_length: 1 << 20,
            first_burst_length: 262_144,
            default_time2wait_s: 2,
            default_time2retain_s: 20,
            max_outstanding_r2t: 8,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: &[TaskReporting::Rfc3720],
            protocol_level: 1,
            rdma_extensions: false,
            target_recv_data_segment_length: 8192,
            initiator_recv_data_segment_length: 262_144,
            max_outstanding_unexpected_pdus: 0,
            max_ahs_length: 256,
            iser_hello_required: false,
        }
    }
}

impl Offer {
    /// The same offer on RDMA: iSER, one connection per session, and no digests, which RDMA's own
    /// checks replace.
    pub fn over_rdma(self) -> Self {
        let (header_digest, data_digest) = (DigestChoice::Never, DigestChoice::Never);
        Offer { header_digest, data_digest, max_connections: 1, rdma_extensions: true, ..self }
    }

    /// The offer of a discovery session.
    pub fn discovery() -> Self {
        Offer { max_recv_data_segment_length: 65_536, max_connections: 1, ..Offer::default() }
    }
}
