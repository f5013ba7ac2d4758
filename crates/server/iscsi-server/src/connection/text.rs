//! Text requests in full-feature phase: SendTargets, and the keys that may be negotiated again (RFC
//! 7143 §6.4, §11.10).
//!
//! An exchange may take several requests. Its results take effect when it ends; an aborted exchange
//! changes nothing.

use std::net::SocketAddr;

use iscsi::discovery::SendTargets;
use iscsi::keys::{Key, Negotiator, Params, Phase, Role};
use iscsi::login::SessionType;
use iscsi::pdu::RejectReason;
use iscsi::target::TextExchange;
use iscsi::text::{Pair, Pairs, TextBuf};

use super::Connection;
use crate::offer::{offer, offer_iser};

/// Parameters that a connection has agreed on, and the local address that its peer connected to.
#[derive(Clone, Debug)]
pub(crate) struct Negotiated {
    pub params: Params,
    pub local: SocketAddr,
    /// The exchange in progress.
    talk: Option<Box<Talk>>,
    /// The target has asked the initiator to negotiate (Async Message 4), and makes its offers when
    /// the initiator does.
    asked: bool,
}

/// One exchange.
#[derive(Clone, Debug)]
struct Talk {
    negotiator: Negotiator,
    /// SendTargets has been answered: a key comes once (§6.4), and its answer is a thousand times
    /// as long.
    listed: bool,
}

impl Negotiated {
    pub(crate) fn new(params: Params, local: SocketAddr) -> Self {
        Self { params, local, talk: None, asked: false }
    }

    /// The initiator is being asked to negotiate.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }
}

/// Answers a whole text request.
pub(crate) fn answer(connection: &Connection, exchange: &TextExchange) {
    let mut negotiated = connection.negotiated.borrow_mut();
    let mut talk = match negotiated.talk.take().filter(|_| !exchange.begins) {
        Some(talk) => talk,
        None => Box::new(begin(connection, &negotiated)),
    };
    let mut out = TextBuf::new();
    if let Err(reason) = reply(connection, &mut talk, negotiated.local, exchange, &mut out) {
        // The exchange has failed, and the old values stand (RFC 7143 §7.12).
        return connection.with(|state, outbox| state.text_reject(exchange, reason, outbox));
    }
    if std::mem::take(&mut negotiated.asked) {
        if let Some(target) = connection.session.target().filter(|t| !t.config.alias.is_empty()) {
            out.put(Key::TargetAlias.name(), &target.config.alias);
        }
        if !connection.is_iser() {
            talk.negotiator.originate(Key::MaxRecvDataSegmentLength, &mut out);
        }
    }
    let reply = out.as_bytes().to_vec();
    connection.with(|state, outbox| state.text_response(exchange, reply, outbox));
    if !exchange.is_final {
        negotiated.talk = Some(talk);
        return;
    }
    match talk.negotiator.finish() {
        Ok(params) => {
            // Over iSER the value of the login stays (RFC 7145 §6.2).
            if !connection.is_iser() {
                let segment = params.peer_max_recv_data_segment_length;
                connection.with(|state, _| state.set_peer_max_data_segment(segment));
            }
            negotiated.params = params;
        }
        Err(error) => tracing::debug!(connection = connection.id.0, %error, "text negotiation failed"),
    }
}

fn begin(connection: &Connection, negotiated: &Negotiated) -> Talk {
    let normal = connection.session.target_name().is_some();
    let kind = if normal { SessionType::Normal } else { SessionType::Discovery };
    let mut ours = offer(&connection.shared.limits(), kind);
    if connection.is_iser() {
        // Login's results stay.
        let segment = iser::UNTIL_FULL_FEATURE_DATA;
        ours = offer_iser(ours, &connection.shared.model().iser, segment);
    }
    let params = negotiated.params.clone();
    Talk { negotiator: Negotiator::new(Role::Target, Phase::FullFeature, ours, params), listed: false }
}

/// Writes the answer to one request.
///
/// # Errors
/// Reason to reject the request.
fn reply(
    connection: &Connection,
    talk: &mut Talk,
    local: SocketAddr,
    exchange: &TextExchange,
    out: &mut TextBuf,
) -> Result<(), RejectReason> {
    let Ok(pairs) = Pairs::new(&exchange.text).collect::<Result<Vec<_>, _>>() else {
        tracing::debug!(connection = connection.id.0, "malformed text request");
        return Err(RejectReason::InvalidPduField);
    };
    let session = &connection.session;
    let target = session.target();
    let own = target.as_deref();
    let (asks, keys): (Vec<Pair<'_>>, Vec<Pair<'_>>) =
        pairs.into_iter().partition(|pair| pair.key == Key::SendTargets.name());
    for ask in asks {
        if std::mem::replace(&mut talk.listed, true) {
            return Err(RejectReason::ProtocolError);
        }
        // Appendix C: All is for discovery sessions alone, nothing at all for normal ones.
        let wanted = SendTargets::parse(ask.value).filter(|wanted| match wanted {
            SendTargets::All => own.is_none(),
            SendTargets::This => own.is_some(),
            SendTargets::Named(_) => true,
        });
        match wanted {
            Some(wanted) => {
                let initiator = (session.port.initiator.as_str(), session.nexus.principal.is_some());
                connection.shared.send_targets(wanted, initiator, own, local, out);
            }
            None => out.put(Key::SendTargets.name(), "Reject"),
        }
    }
    let mut said = TextBuf::new();
    if let Err(error) = talk.negotiator.receive(&keys, &mut said) {
        tracing::debug!(connection = connection.id.0, %error, "text negotiation failed");
        // RFC 7143 §6.4: a key that comes again within a negotiation is a protocol error.
        return Err(RejectReason::ProtocolError);
    }
    out.append(&said);
    Ok(())
}
