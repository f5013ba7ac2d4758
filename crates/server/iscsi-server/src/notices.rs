//! Async Messages (RFC 7143 §11.9), which the target sends of its own accord. Callers choose
//! receivers and times.

use std::time::Duration;

use iscsi::pdu::AsyncEvent;

use crate::remote::Remote;
use crate::session::{Member, Session};
use crate::shared::Shared;

/// Time2Retain of connections that are dropped with notice: their tasks end with them, so that none
/// can be reassigned.
const TIME2RETAIN: u16 = 0;

/// Whole seconds, at least one, for Parameter3.
pub(crate) fn seconds(time: Duration) -> u16 {
    u16::try_from(time.as_secs()).unwrap_or(u16::MAX).max(1)
}

impl Remote {
    /// Asks the initiator to log this connection out within `time` (event 1). Over iSER and TCP
    /// alike it goes on that connection itself.
    pub(crate) fn ask_for_logout(&self, time: Duration) {
        self.announce(AsyncEvent::LogoutRequest, [0, 0, seconds(time)]);
    }

    /// Announces on this connection that connection `cid` of its session is dropped (event 2).
    pub(crate) fn announce_connection_drop(&self, cid: u16, session: &Session) {
        self.announce(AsyncEvent::DropConnection, [cid, session.params.default_time2wait_s, TIME2RETAIN]);
    }

    /// Announces that all connections of the session are dropped (event 3).
    pub(crate) fn announce_session_drop(&self, session: &Session) {
        self.announce(AsyncEvent::DropSession, [0, session.params.default_time2wait_s, TIME2RETAIN]);
    }

    /// Asks the initiator to negotiate within `time` (event 4): the answer to its Text Request has
    /// the target's news.
    pub(crate) fn ask_to_negotiate(&self, time: Duration) {
        self.announce(AsyncEvent::NegotiationRequest, [0, 0, seconds(time)]);
    }
}

/// Ends a session with notice: it takes no new connection, and its connections, which are returned,
/// close.
pub(crate) fn drop_session(session: &Session) -> Vec<Member> {
    let members = session.end();
    for member in &members {
        member.remote.announce_session_drop(session);
        member.remote.shut();
    }
    members
}

/// Asks the initiators of a target, or of all, to negotiate anew within `time`, so that they learn
/// of another alias. Returns the number of connections asked.
pub(crate) fn request_negotiation(shared: &Shared, target: Option<&str>, time: Duration) -> usize {
    let of = |session: &&std::sync::Arc<Session>| {
        target.is_none_or(|name| session.target_name().is_some_and(|own| iscsi::name::eq(own, name)))
    };
    let all = shared.registry.all();
    let members = all.iter().filter(of).flat_map(|session| session.connections());
    members.map(|member| member.remote.ask_to_negotiate(time)).count()
}
