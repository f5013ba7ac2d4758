//! What the target tells initiators of its own accord: Async Messages (RFC 7143 §11.9). Who is
//! told, and when, is for others to decide.

use std::time::Duration;

use iscsi::pdu::AsyncEvent;

use crate::remote::Remote;
use crate::session::Session;
use crate::shared::Shared;

/// Time2Retain of what is dropped with notice: its tasks end with it, so that none can be taken up
/// again.
const TIME2RETAIN: u16 = 0;

/// Whole seconds, at least one, as Parameter3 has them.
pub(crate) fn seconds(time: Duration) -> u16 {
    u16::try_from(time.as_secs()).unwrap_or(u16::MAX).max(1)
}

impl Remote {
    /// Asks the initiator to log this connection out within `time` (event 1). Over iSER and TCP
    /// alike it goes on the connection that it is about.
    pub(crate) fn ask_for_logout(&self, time: Duration) {
        self.announce(AsyncEvent::LogoutRequest, [0, 0, seconds(time)]);
    }

    /// Says on this connection that connection `cid` of its session is dropped (event 2).
    pub(crate) fn announce_connection_drop(&self, cid: u16, session: &Session) {
        self.announce(AsyncEvent::DropConnection, [cid, session.params.default_time2wait_s, TIME2RETAIN]);
    }

    /// Says that all connections of the session are dropped (event 3).
    pub(crate) fn announce_session_drop(&self, session: &Session) {
        self.announce(AsyncEvent::DropSession, [0, session.params.default_time2wait_s, TIME2RETAIN]);
    }

    /// Asks the initiator to negotiate within `time` (event 4): its Text Request is answered with
    /// what there is to tell.
    pub(crate) fn ask_to_negotiate(&self, time: Duration) {
        self.announce(AsyncEvent::NegotiationRequest, [0, 0, seconds(time)]);
    }
}

/// Asks the initiators of a target, or of all, to negotiate anew within `time`: to learn of another
/// alias. Says how many connections were asked.
pub(crate) fn request_negotiation(shared: &Shared, target: Option<&str>, time: Duration) -> usize {
    let of = |session: &&std::sync::Arc<Session>| {
        target.is_none_or(|name| session.target_name().is_some_and(|own| iscsi::name::eq(own, name)))
    };
    let all = shared.registry.all();
    let members = all.iter().filter(of).flat_map(|session| session.connections());
    members.map(|member| member.remote.ask_to_negotiate(time)).count()
}
