//! The audit log: one line for each login, refusal, end and preemption. This module has the lines
//! that every protocol has; front ends add their own.
//!
//! All lines have the tracing target [`TARGET`], and fields `what`, `initiator`, `target`, `user`
//! and `address`. Text that comes from peers is recorded as strings, which every format escapes, so
//! that no peer can forge a line. Refusals are logged at a bounded rate ([`crate::admission`]) and
//! counted beyond it. The audit log contains no secrets and no line for an I/O.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Hub;
use crate::admission::{Dropped, Source};

/// The tracing target of audit lines: a filter such as `warn,stag::audit=info` keeps them.
pub const TARGET: &str = "stag::audit";

/// The identity that a login claims, as far as the login has come.
#[derive(Debug, Default)]
pub struct Who {
    /// The client's name.
    pub initiator: Option<String>,
    /// The target it asks for.
    pub target: Option<String>,
    /// The user whose secret was tried.
    pub user: Option<String>,
}

/// Logs that a login failed.
pub fn refused(hub: &Hub, address: SocketAddr, who: &Who, why: &dyn std::fmt::Display) {
    if !may_tell(hub, address) {
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

/// An administrator has disconnected a client, which is refused for `time` from now on.
pub fn disconnected(who: &Who, address: &dyn std::fmt::Display, time: Duration) {
    tracing::warn!(
        target: TARGET,
        what = "disconnected",
        initiator = who.initiator.as_deref(),
        target = who.target.as_deref(),
        user = who.user.as_deref(),
        %address,
        refused_s = time.as_secs(),
        "an administrator has disconnected it"
    );
}

/// A connection was dropped before its login began.
pub(crate) fn dropped(hub: &Hub, address: SocketAddr, why: Dropped) {
    if may_tell(hub, address) {
        tracing::warn!(target: TARGET, what = "dropped", %address, reason = why.to_string(), "dropped");
    }
}

/// Logs the number of suppressed refusals, of windows that are over or, at the server's end, of
/// all.
pub fn suppressed(hub: &Hub, ending: bool) {
    if let Some(left_out) = hub.admission.suppressed(runtime::now(), ending) {
        let (refusals, addresses) = (left_out.refusals, left_out.addresses);
        tracing::warn!(target: TARGET, what = "suppressed", refusals, addresses, "refusals that were not told");
    }
}

fn may_tell(hub: &Hub, address: SocketAddr) -> bool {
    suppressed(hub, false);
    hub.admission.may_tell(Source::from(address.ip()), runtime::now())
}
