//! A running server: started, stopped, and each connection served from its first bytes to its end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use runtime::{Cores, TcpStream};
use server_core::admission::Rules;
use server_core::audit::{self, Who};
use server_core::{Arrival, Hub, Service, Sniff};

use crate::config::{ServerConfig, Transports};
use crate::connection::End;
use crate::login::{self, LoginFailure, Wire};
use crate::model::{Model, PortalEntry};
use crate::notices;
use crate::session::Standing;
use crate::shared::{BoundPortal, Shared};

/// A server that runs until it is told to stop.
pub struct Server {
    shared: Arc<Shared>,
    cores: Cores,
}

impl Server {
    /// Binds the portals, starts the cores and lets initiators in.
    ///
    /// # Errors
    /// When an address cannot be bound, or a core has no io_uring.
    pub fn start(config: ServerConfig) -> io::Result<Self> {
        Self::start_with(config, Vec::new())
    }

    /// [`Self::start`] with sockets that listen already: those of portals that ask for the same addresses are used. The others are
    /// closed.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub fn start_with(config: ServerConfig, inherited: Vec<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        let count = if config.cores == 0 { runtime::available_cores().len() } else { config.cores };
        let ring_config = runtime::Config {
            spin_us: config.spin_us,
            pool_bytes: config.pool_bytes,
            ..runtime::Config::default()
        };
        let (hub, cores) = Hub::start(count, ring_config, inherited)?;
        let nothing = ServerConfig { portals: Vec::new(), targets: Vec::new(), ..config.clone() };
        let shared = Shared::new(hub, Model::new(nothing, Vec::new(), None));
        let (portals, _) = server_core::portals::prepare(&shared.hub, &[], &config.portals)?;
        let model = Arc::new(Model::new(config, portals, None));
        shared.connect_units(&model, None);
        shared.set_model(model.clone());
        for portal in &model.portals {
            portal.start(&shared.hub, service(&shared, portal))?;
        }
        shared.hub.drop_inherited();
        Ok(Self { shared, cores })
    }

    /// The portals, with the ports that were really taken.
    pub fn portals(&self) -> Vec<BoundPortal> {
        self.shared.portals()
    }

    /// The server as its administrators reach it.
    pub fn handle(&self) -> crate::Handle {
        crate::Handle::new(self.shared.clone())
    }

    /// Sessions that are logged in.
    pub fn sessions(&self) -> usize {
        self.shared.registry.all().len()
    }

    /// Asks the initiators of a target, or of all, to negotiate anew within `time` (RFC 7143 §11.9, event 4): to learn of what has
    /// changed. Says how many connections were asked.
    pub fn request_negotiation(&self, target: Option<&str>, time: Duration) -> usize {
        notices::request_negotiation(&self.shared, target, time)
    }

    /// Lets nobody in any more, asks the initiators to log out, gives them `grace` to do so, closes what is left and flushes
    /// every unit.
    ///
    /// # Errors
    /// The first unit that could not be flushed.
    pub fn stop(self, grace: Duration) -> io::Result<()> {
        self.shared.hub.close();
        let shared = self.shared.clone();
        let wound_down = self.shared.hub.wait_for(move || async move { wind_down(&shared, grace).await });
        let result = wound_down.and_then(|result| result);
        self.cores.stop();
        let result = result.and(self.cores.join());
        self.shared.serve_nothing();
        result
    }
}

async fn wind_down(shared: &Arc<Shared>, grace: Duration) -> io::Result<()> {
    audit::suppressed(&shared.hub, true);
    for session in shared.registry.all() {
        for member in session.connections() {
            match member.standing {
                Standing::Alive => member.remote.ask_for_logout(grace),
                // Its tasks will not go on.
                Standing::Lost | Standing::Removed => member.remote.shut(),
            }
        }
    }
    let deadline = runtime::now() + grace;
    while !shared.registry.all().is_empty() && runtime::now() < deadline {
        runtime::sleep(Duration::from_millis(20)).await;
    }
    let left = shared.registry.all();
    for session in &left {
        for member in session.end() {
            member.remote.announce_session_drop(session);
            member.remote.shut();
        }
    }
    for session in left {
        shared.registry.end(&session).await;
    }
    let mut result = Ok(());
    for target in &shared.model().targets {
        for lun in &target.config.units {
            if let Err(error) = lun.unit.flush().await {
                let error = io::Error::other(format!("{} LUN {}: {error}", target.config.name, lun.lun));
                tracing::error!(%error, "could not be flushed");
                result = result.and(Err(error));
            }
        }
    }
    result
}

/// iSCSI and iSER at one portal.
struct AtPortal {
    shared: Arc<Shared>,
    portal: BoundPortal,
}

/// The service of a portal.
pub(crate) fn service(shared: &Arc<Shared>, portal: &PortalEntry) -> Arc<dyn Service> {
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
                    // It goes on with what the system has.
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
            // What is no login is told so.
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
        // Boxed: what it takes is given back when it is over.
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
    // Below ErrorRecoveryLevel 2 a connection that is lost takes its session along (RFC 7143 §7.1.4.4), with those that are
    // about to join it. At level 2 a session goes on without it, unless the connection took commands along that nobody sends again.
    let fails = match session.recovers_connections() {
        false => !matches!(end, End::Closed),
        true => !session.stop_watching(seat.id) && session.has_lasting_gap().await,
    };
    if fails {
        for member in session.end() {
            if member.remote.id != seat.id {
                member.remote.shut();
            }
        }
    }
    crate::audit::ended(peer, session, &end);
}
