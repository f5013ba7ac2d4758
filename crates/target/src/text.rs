//! Text requests in full-feature phase: SendTargets, and the keys that may be negotiated again (RFC 7143 §6.4, §11.10).

use std::net::SocketAddr;

use iscsi::discovery::SendTargets;
use iscsi::keys::{Negotiator, Params, Phase, Role};
use iscsi::login::SessionType;
use iscsi::target::TextExchange;
use iscsi::text::{Pair, Pairs, TextBuf};

use crate::connection::Connection;
use crate::login;

/// What a connection has agreed on, and where its peer reached it.
#[derive(Clone, Debug)]
pub(crate) struct Negotiated {
    pub params: Params,
    pub local: SocketAddr,
}

/// The answer to a whole text request.
pub(crate) fn answer(connection: &Connection, exchange: &TextExchange) -> Vec<u8> {
    let mut out = TextBuf::new();
    let Ok(pairs) = Pairs::new(&exchange.text).collect::<Result<Vec<_>, _>>() else {
        tracing::debug!(connection = connection.id.0, "malformed text request");
        return Vec::new();
    };
    let session = &connection.session;
    let own = session.target.as_deref();
    let (asks, keys): (Vec<Pair<'_>>, Vec<Pair<'_>>) =
        pairs.into_iter().partition(|pair| pair.key == "SendTargets");
    // Once: a key comes once in an exchange (§6.2), and answers a thousand times as long as what was asked are none.
    for ask in asks.into_iter().take(1) {
        // A normal session learns of its own target only (Appendix C).
        let local = connection.negotiated.borrow().local;
        match SendTargets::parse(ask.value) {
            Some(wanted) => {
                connection.shared.send_targets(wanted, &session.port.initiator, own, local, &mut out);
            }
            None => out.put("SendTargets", "Reject"),
        }
    }
    if !keys.is_empty() {
        let mut negotiated = connection.negotiated.borrow_mut();
        let kind = if own.is_some() { SessionType::Normal } else { SessionType::Discovery };
        let mut offer = login::offer(&connection.shared.limits, kind);
        if connection.is_iser() {
            offer = login::offer_iser(offer, &connection.shared.iser);
        }
        let mut negotiator =
            Negotiator::new(Role::Target, Phase::FullFeature, offer, negotiated.params.clone());
        let before = out.as_bytes().len();
        let agreed = negotiator.receive(&keys, &mut out).and_then(|()| negotiator.finish());
        match agreed {
            Ok(params) => {
                let segment = params.peer_max_recv_data_segment_length;
                // With iSER it stays what login has made it (RFC 7145 §6.2).
                if !connection.is_iser() {
                    connection.with(|state, _| state.set_peer_max_data_segment(segment));
                }
                negotiated.params = params;
            }
            // The old values stand.
            Err(error) => {
                tracing::debug!(connection = connection.id.0, %error, "text negotiation failed");
                return out.as_bytes()[..before].to_vec();
            }
        }
    }
    out.as_bytes().to_vec()
}
