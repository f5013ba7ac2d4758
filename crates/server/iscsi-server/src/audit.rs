//! Lines of the audit log that name a session: logins, ends of connections, reservations taken from
//! others. [`server_core::audit`] has the other lines, and the rules for all.

use std::net::SocketAddr;
use std::time::Duration;

use device::Deed;
use iscsi::login::target::Outcome;
use scsi::data::target_port_groups::AccessState;
pub use server_core::audit::TARGET;
use server_core::audit::Who;

use crate::end::End;
use crate::session::{Member, Session};

/// A connection has logged in.
pub(crate) fn login(address: SocketAddr, outcome: &Outcome, tsih: u16, iser: bool) {
    tracing::info!(
        target: TARGET,
        what = "login",
        initiator = outcome.initiator,
        target = outcome.target.as_deref().unwrap_or("(discovery)"),
        user = outcome.user.as_deref(),
        %address,
        tsih,
        cid = outcome.cid,
        iser,
        "logged in"
    );
}

/// A connection has ended.
pub(crate) fn ended(address: SocketAddr, session: &Session, end: &End) {
    tracing::info!(
        target: TARGET,
        what = "end",
        initiator = session.port.initiator,
        target = session.target_name().unwrap_or("(discovery)"),
        user = user(session),
        %address,
        tsih = session.tsih,
        reason = end.to_string(),
        "connection ended"
    );
}

/// An administrator has disconnected a session.
pub(crate) fn disconnected(session: &Session, members: &[Member], time: Duration) {
    let who = Who {
        initiator: Some(session.port.initiator.clone()),
        target: Some(session.target_name().unwrap_or("(discovery)").to_owned()),
        user: user(session).map(str::to_owned),
    };
    let addresses: Vec<_> = members.iter().map(|member| member.arrival.peer.to_string()).collect();
    server_core::audit::disconnected(&who, &addresses.join(" "), time);
}

/// An initiator has taken registrations or a reservation from others, or has set the state of a
/// target port group.
pub(crate) fn did(session: &Session, lun: Option<u16>, deed: Deed) {
    let address = session.connections().first().map(|member| member.arrival.peer.to_string());
    let (initiator, target, user) = (&session.port.initiator, &session.port.target, user(session));
    match deed {
        Deed::Preempted { by_clear, others } => tracing::warn!(
            target: TARGET,
            what = if by_clear { "clear" } else { "preempt" },
            initiator,
            target,
            user,
            address,
            lun,
            others,
            "reservations of others were taken"
        ),
        Deed::SetAccess(set) => tracing::info!(
            target: TARGET,
            what = "alua",
            initiator,
            target,
            user,
            address,
            lun,
            group = set.group_or_port,
            state = set.state.map_or("reserved", AccessState::name),
            "an initiator has set the state of a target port group"
        ),
    }
}

fn user(session: &Session) -> Option<&str> {
    session.nexus.principal.as_ref().map(|principal| principal.user.as_str())
}
