//! The audit log: who came, was refused, left or took something from another, one line each with
//! who, whence and what.
//!
//! All lines have the tracing target [`TARGET`], and fields `what`, `initiator`, `target`, `user`
//! and `address`. Text that comes from peers is recorded as strings, which every format escapes, so
//! that no peer can forge a line. What is refused is told at a bounded rate ([`crate::admission`]);
//! what is not told is counted. It never logs a secret, nor anything for an I/O.

use std::net::SocketAddr;

use iscsi::login::target::Outcome;

use crate::admission::{Dropped, Source};
use crate::connection::End;
use crate::login::LoginFailure;
use crate::server::Shared;
use crate::session::Session;

/// The tracing target of audit lines: a filter such as `warn,stag::audit=info` keeps them.
pub const TARGET: &str = "stag::audit";

/// Who a login claims to be, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Who {
    pub initiator: Option<String>,
    pub target: Option<String>,
    /// The CHAP user that was tried.
    pub user: Option<String>,
}

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

/// A login has come to nothing.
pub(crate) fn refused(shared: &Shared, address: SocketAddr, who: &Who, why: &LoginFailure) {
    if !may_tell(shared, address) {
        return;
    }
    tracing::warn!(
        target: TARGET,
        what = "refused",
        initiator = who.initiator.as_deref(),
        target = who.target.as_deref(),
        user = who.user.as_deref(),
        %address,
        reason = why.to_string(),
        "no login"
    );
}

/// A connection was dropped before its login began.
pub(crate) fn dropped(shared: &Shared, address: SocketAddr, why: Dropped) {
    if may_tell(shared, address) {
        tracing::warn!(target: TARGET, what = "dropped", %address, reason = why.to_string(), "dropped");
    }
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

/// An initiator has taken registrations, or a reservation, from `others`.
pub(crate) fn preempted(session: &Session, lun: Option<u16>, how: &'static str, others: usize) {
    let address = session.connections().first().map(|member| member.arrival.peer.to_string());
    tracing::warn!(
        target: TARGET,
        what = how,
        initiator = session.port.initiator,
        target = session.port.target,
        user = user(session),
        address,
        lun,
        others,
        "reservations of others were taken"
    );
}

/// Says how many refusals were not told, in windows that are over or, at the server's end, in all.
pub(crate) fn suppressed(shared: &Shared, ending: bool) {
    if let Some(left_out) = shared.admission.suppressed(runtime::now(), ending) {
        let (refusals, addresses) = (left_out.refusals, left_out.addresses);
        tracing::warn!(target: TARGET, what = "suppressed", refusals, addresses, "refusals that were not told");
    }
}

fn may_tell(shared: &Shared, address: SocketAddr) -> bool {
    suppressed(shared, false);
    shared.admission.may_tell(Source::from(address.ip()), runtime::now())
}

fn user(session: &Session) -> Option<&str> {
    session.nexus.principal.as_ref().map(|principal| principal.user.as_str())
}
