//! A running server: started, paused, and stopped again.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use server_core::{Applied, Change, Changing, CoresConfig, FrontEnd, Portals, Served, Services, audit};

use crate::config::{Portal, ServerConfig};
use crate::model::{Edition, Model, PortalEntry};
use crate::session::Standing;
use crate::shared::{BoundPortal, Shared};
use crate::{apply, notices, service};

/// A server that speaks iSCSI alone.
pub struct Server {
    core: server_core::Server,
    shared: Arc<Shared>,
}

/// Begins to serve iSCSI and iSER by `config`, as a front end of `server`.
///
/// # Errors
/// When an address cannot be bound.
pub fn begin(server: &server_core::Server, config: ServerConfig) -> io::Result<crate::Handle> {
    let mut change = server.change();
    let handle = prepare(server, &mut change, config)?;
    change.commit();
    Ok(handle)
}

/// Prepares a front end of `server` that serves iSCSI and iSER by `config` once `change` is
/// committed.
///
/// # Errors
/// When an address cannot be bound.
pub fn prepare(
    server: &server_core::Server,
    change: &mut Change<'_>,
    config: ServerConfig,
) -> io::Result<crate::Handle> {
    let nothing = ServerConfig { portals: Vec::new(), targets: Vec::new(), ..config.clone() };
    let handle = crate::Handle::new(Shared::new(server.hub().clone(), Model::new(nothing, None)));
    handle.prepare(change, config)?;
    server.add(handle.shared.clone());
    Ok(handle)
}

impl Server {
    /// Binds the portals, starts the cores and admits initiators.
    ///
    /// # Errors
    /// When an address cannot be bound, or a core has no io_uring.
    pub fn start(cores: CoresConfig, config: ServerConfig) -> io::Result<Self> {
        Self::start_with(cores, config, Vec::new())
    }

    /// [`Self::start`] with listening sockets: uses those of portals that ask for the same
    /// addresses, and closes the others.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub fn start_with(
        cores: CoresConfig,
        config: ServerConfig,
        inherited: Vec<(SocketAddr, OwnedFd)>,
    ) -> io::Result<Self> {
        let core = server_core::Server::start(cores, inherited)?;
        let shared = begin(&core, config)?.shared;
        shared.hub.drop_inherited();
        Ok(Self { core, shared })
    }

    /// The portals, with the actual ports.
    pub fn portals(&self) -> Vec<BoundPortal> {
        self.shared.portals()
    }

    /// The server's interface for administrators.
    pub fn handle(&self) -> crate::Handle {
        crate::Handle::new(self.shared.clone())
    }

    /// Its cores' interface for administrators.
    pub fn core(&self) -> server_core::Handle {
        self.core.handle()
    }

    /// Sessions that are logged in.
    pub fn sessions(&self) -> usize {
        self.shared.registry.all().len()
    }

    /// Asks the initiators of a target, or of all, to negotiate anew within `time` (RFC 7143 §11.9,
    /// event 4), so that they learn of changes. Returns the number of connections asked.
    pub fn request_negotiation(&self, target: Option<&str>, time: Duration) -> usize {
        notices::request_negotiation(&self.shared, target, time)
    }

    /// Refuses new logins, asks the initiators to log out, gives them `grace` to do so, closes the
    /// remaining connections and flushes every unit.
    ///
    /// # Errors
    /// The first unit that could not be flushed.
    pub fn stop(self, grace: Duration) -> io::Result<()> {
        self.core.stop(grace)
    }
}

impl FrontEnd for Shared {
    fn portals(&self) -> &dyn Portals {
        &self.served
    }

    fn quiesce(&self) {
        for session in self.registry.all() {
            session.end().iter().for_each(|member| member.remote.drain());
        }
    }

    fn has_clients(&self) -> bool {
        !self.registry.all().is_empty()
    }

    fn disconnect(&self) {
        let left = self.registry.all();
        left.iter().flat_map(|session| session.end()).for_each(|member| member.remote.shut());
        if left.is_empty() {
            return;
        }
        let (registry, (done, wait)) = (self.registry.clone(), runtime::channel());
        let ended = self.hub.first().run(move |_| async move {
            for session in left {
                registry.end(&session).await;
            }
            // Only a caller that has vanished does not listen.
            let _ = done.send(());
        });
        if ended.is_ok() {
            // A peer that does not read may hold its connection for some seconds.
            let _ = wait.recv_timeout(Duration::from_secs(6));
        }
    }

    fn let_go(&self) {
        self.served.replace(self.model().nothing());
    }

    fn wind_down(self: Arc<Self>, grace: Duration) -> Pin<Box<dyn Future<Output = io::Result<()>>>> {
        Box::pin(async move { wind_down(&self, grace).await })
    }
}

impl Changing for Shared {
    type Content = Model;
    type Asked = Portal;

    fn contents(&self) -> &Served<Model, Portal> {
        &self.served
    }

    fn services(self: &Arc<Self>, portal: &PortalEntry) -> Services {
        Arc::new([service::at(self, portal)])
    }

    fn announce(self: &Arc<Self>, before: &Model, next: &Model) {
        apply::connect_units(self, before, next);
    }

    /// From here on logins see the new model. Logins that have seen the old one check again when
    /// they have their place.
    fn follow(self: &Arc<Self>, before: &Model, now: &Edition) -> Applied {
        let applied = apply::renew_sessions(self, now);
        apply::retire_units(self, before, now);
        apply::forget_targets(self, before, now);
        apply::forget_stages(self, before, now);
        self.limits_changed();
        applied
    }
}

async fn wind_down(shared: &Arc<Shared>, grace: Duration) -> io::Result<()> {
    audit::suppressed(&shared.hub, true);
    for session in shared.registry.all() {
        for member in session.connections() {
            match member.standing {
                Standing::Alive => member.remote.ask_for_logout(grace),
                // Its tasks are not continued.
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
        notices::drop_session(session);
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
