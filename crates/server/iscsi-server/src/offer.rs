//! The target's offers in negotiation, by its limits.

use iscsi::keys::{DigestChoice, Offer};
use iscsi::login::SessionType;

use crate::config::{IserConfig, Limits};
use crate::transport::iser::setup;

/// The target's offer in negotiation.
pub(crate) fn offer(limits: &Limits, session_type: SessionType) -> Offer {
    match session_type {
        SessionType::Discovery => Offer::discovery(),
        SessionType::Normal => Offer {
            header_digest: DigestChoice::Allow,
            data_digest: DigestChoice::Allow,
            max_recv_data_segment_length: limits.max_recv_data_segment,
            max_connections: limits.connections_per_session,
            max_burst_length: limits.max_burst,
            first_burst_length: limits.first_burst,
            max_outstanding_r2t: limits.max_outstanding_r2t,
            initial_r2t: false,
            immediate_data: true,
            // `iscsi::target::inbound` relies on data in order.
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: limits.error_recovery_level,
            default_time2wait_s: limits.default_time2wait_s,
            default_time2retain_s: limits.default_time2retain_s,
            ..Offer::default()
        },
    }
}

/// The same over iSER. Connections of a session share no queue pair, so a session has one of them.
/// `segment` is the result of [`setup::segment`] for their queue pair.
pub(crate) fn offer_iser(offer: Offer, config: &IserConfig, segment: usize) -> Offer {
    Offer {
        initial_r2t: !config.unsolicited_data,
        max_recv_data_segment_length: iser::UNTIL_FULL_FEATURE_DATA as u32,
        target_recv_data_segment_length: segment as u32,
        max_outstanding_unexpected_pdus: setup::UNEXPECTED,
        max_ahs_length: setup::MAX_AHS as u32,
        // RDMA's own checks leave nothing to recover within a connection (RFC 7145 §10.1).
        error_recovery_level: 0,
        ..offer.over_rdma()
    }
}
