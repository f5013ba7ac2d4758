//! iSCSI's part of [`server_core::drain`]: the sessions that a drain concerns, the request to log
//! out, and the drop (RFC 7143 §11.9, events 1 to 3).

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use iscsi::login::target::{Claim, Grant, Refusal};
use iscsi::name;
use iscsi::pdu::LoginStatus;
use server_core::ConnectionId;
use server_core::drain::{Audience, Drains, Scope};

use crate::config::Redirect;
use crate::redirect;
use crate::session::{Member, Session};
use crate::shared::Shared;

fn covers(scope: &Scope, target: Option<&str>, portal: SocketAddr) -> bool {
    match scope {
        Scope::All => true,
        Scope::Target(name) => target.is_some_and(|target| name::eq(target, name)),
        Scope::Portal(address) => *address == portal,
    }
}

/// Whether a login through the portal at `portal` may continue. If it is redirected after
/// authentication, the grant says where to.
///
/// # Errors
/// The refusal, or the redirection.
pub(crate) fn check(
    drains: &Drains<Redirect>,
    claim: &Claim<'_>,
    portal: SocketAddr,
    grant: &mut Grant,
) -> Result<(), Refusal> {
    match drains.covering(|scope| covers(scope, claim.target, portal)) {
        None => Ok(()),
        Some(Some(to)) => redirect::send(&to, grant),
        Some(None) => Err(Refusal::Status(LoginStatus::ServiceUnavailable)),
    }
}

/// Connections of one session that a drain concerns.
pub(crate) struct Affected {
    session: Arc<Session>,
    members: Vec<Member>,
    /// Whether these are all connections of the session.
    whole: bool,
}

/// A session that a drain concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Its number.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The target's name; `None` in a discovery session.
    pub target: Option<String>,
    /// How many of its connections have to go.
    pub connections: usize,
    /// Whether these are all of its connections.
    pub whole: bool,
}

/// The sessions that a drain of `scope` would concern now.
pub(crate) fn leaving(shared: &Shared, scope: &Scope) -> Vec<Leaving> {
    let of = |affected: Affected| Leaving {
        tsih: affected.session.tsih,
        initiator: affected.session.port.initiator.clone(),
        target: affected.session.target_name().map(str::to_owned),
        connections: affected.members.len(),
        whole: affected.whole,
    };
    shared.affected(scope).into_iter().map(of).collect()
}

impl Audience for Shared {
    type Group = Affected;

    fn affected(&self, scope: &Scope) -> Vec<Affected> {
        let of = |session: Arc<Session>| {
            let target = session.target_name();
            let mut members = session.connections();
            let all = members.len();
            members.retain(|member| covers(scope, target, member.arrival.portal));
            let whole = members.len() == all;
            (!members.is_empty()).then_some(Affected { session, members, whole })
        };
        self.registry.all().into_iter().filter_map(of).collect()
    }

    fn connections(&self, group: &Affected) -> Vec<ConnectionId> {
        group.members.iter().map(|member| member.remote.id).collect()
    }

    fn ask_to_leave(&self, group: &Affected, connection: ConnectionId, time: Duration) {
        let members = group.members.iter().filter(|member| member.remote.id == connection);
        members.for_each(|member| member.remote.ask_for_logout(time));
    }

    fn drop_with_notice(&self, group: &Affected, scope: &Scope) -> Pin<Box<dyn Future<Output = ()>>> {
        let Affected { session, members, whole } = group;
        tracing::info!(initiator = session.port.initiator, tsih = session.tsih, %scope,
            connections = members.len(), "dropped: it has not logged out in time");
        if *whole {
            session.end();
        }
        for member in members {
            match whole {
                true => member.remote.announce_session_drop(session),
                false => member.remote.announce_connection_drop(member.cid, session),
            }
            member.remote.shut();
        }
        let members = members.clone();
        Box::pin(async move {
            for member in members {
                member.remote.close().await;
            }
        })
    }

    fn login_time(&self) -> Duration {
        self.limits().login_timeout
    }
}
