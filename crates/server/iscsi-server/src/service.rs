//! iSCSI and iSER as a front end of [`server_core`]: the rules of a portal, and each connection
//! from its first bytes to its end.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use runtime::TcpStream;
use server_core::admission::Rules;
use server_core::audit::{self, Who};
use server_core::{Arrival, Service, Sniff};

use crate::config::Transports;
use crate::end::LoginFailure;
use crate::login::{self, Wire};
use crate::model::PortalEntry;
use crate::shared::{BoundPortal, Shared};

/// iSCSI and iSER at one portal.
struct AtPortal {
    shared: Arc<Shared>,
    portal: BoundPortal,
}

/// The service of a portal.
pub(crate) fn at(shared: &Arc<Shared>, portal: &PortalEntry) -> Arc<dyn Service> {
    Arc::new(AtPortal { shared: shared.clone(), portal: BoundPortal::of(portal) })
}

impl Service for AtPortal {
    fn rules(&self) -> Rules {
        self.shared.rules()
    }

    fn setup_time(&self) -> Duration {
        self.shared.limits().login_timeout
    }

    fn prepare(&self, stream: &TcpStream, peer: SocketAddr) {
        match self.shared.limits().congestion {
            Some(congestion) => {
                if let Err(error) = stream.set_congestion(congestion.name()) {
                    // The connection continues with the system's default.
                    tracing::warn!(%peer, %error, ?congestion, "the system does not have it, or not for everybody");
                }
            }
            None => stream.unpaced_within_machine(),
        }
    }

    fn takes_rdma(&self) -> Result<(), &'static str> {
        match self.portal.transports {
            Transports::Tcp => Err("RDMA, which this portal does not let in"),
            _ => Ok(()),
        }
    }

    fn sniff(&self, _: &[u8]) -> Sniff {
        match self.portal.transports {
            Transports::Iser => Sniff::No("no RDMA, which this portal is for"),
            // The login refuses bytes that are no login.
            _ => Sniff::Mine,
        }
    }

    fn serve(self: Arc<Self>, arrival: Arrival) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move { serve(&self.shared, self.portal, arrival).await })
    }
}

/// One connection, from its first bytes to its end.
async fn serve(shared: &Arc<Shared>, portal: BoundPortal, arrival: Arrival) {
    let Arrival { link, peer, core, mut place, deadline } = arrival;
    let post = place.core;
    let mut who = Who::default();
    let logged_in = {
        let (who, core) = (&mut who, &core);
        let dialog = async move {
            let mut wire = Wire::of(link, shared).await?;
            let logged_in = login::run(&mut wire, peer, portal, shared, (post, core), who).await?;
            Ok((wire, logged_in))
        };
        // Boxed, so that its memory is freed at the end of the login.
        runtime::timeout(deadline.saturating_duration_since(runtime::now()), Box::pin(dialog))
            .await
            .unwrap_or(Err(LoginFailure::TimedOut))
    };
    place.logged_in();
    let (wire, logged_in) = match logged_in {
        Ok(logged_in) => logged_in,
        Err(error) => return audit::refused(&shared.hub, peer, &who, &error),
    };
    let Ok((connection, seat, start)) = login::full_feature(logged_in, wire, shared, &core) else {
        return;
    };
    let session = &seat.session;
    let end = connection.run(start).await;
    // At ErrorRecoveryLevel 2 the session continues after a lost connection, unless commands were
    // lost with it that the initiator does not send again.
    if session.recovers_connections() && !session.stop_watching(seat.id) && session.has_lasting_gap().await {
        for member in session.end() {
            if member.remote.id != seat.id {
                member.remote.shut();
            }
        }
    }
    crate::audit::ended(peer, session, &end);
}
