//! A running server: started, and stopped again.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use runtime::Cores;
use server_core::{Hub, audit};

use crate::config::ServerConfig;
use crate::model::Model;
use crate::session::Standing;
use crate::shared::{BoundPortal, Shared};
use crate::{apply, notices, service};

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

    /// [`Self::start`] with sockets that listen already: those of portals that ask for the same
    /// addresses are used. The others are closed.
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
        apply::connect_units(&shared, &model, None);
        shared.set_model(model.clone());
        for portal in &model.portals {
            portal.start(&shared.hub, service::at(&shared, portal))?;
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

    /// Asks the initiators of a target, or of all, to negotiate anew within `time` (RFC 7143 §11.9,
    /// event 4): to learn of what has changed. Says how many connections were asked.
    pub fn request_negotiation(&self, target: Option<&str>, time: Duration) -> usize {
        notices::request_negotiation(&self.shared, target, time)
    }

    /// Lets nobody in any more, asks the initiators to log out, gives them `grace` to do so, closes
    /// what is left and flushes every unit.
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
        apply::serve_nothing(&self.shared);
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
