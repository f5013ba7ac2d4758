//! [`Server`]: cores, and the front ends that serve on them, started and ended together.
//! [`Handle`]: the same for administrators.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use runtime::Cores;

use crate::served::{Change, Portals};
use crate::{CoreStatus, Hub};

/// Time that logins in progress have to end before a server is paused.
const LOGINS: Duration = Duration::from_secs(1);

/// The threads of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoresConfig {
    /// Threads, each pinned to a core of its own; 0 means one for every core that the process may
    /// use.
    pub count: usize,
    /// Time for which an idle core polls for new work before it sleeps, at most, µs. More lowers
    /// the latency of single requests. A core polls only while recent work shows that it pays.
    pub spin_us: u32,
    /// Pool memory for payload buffers, bytes a core.
    pub pool_bytes: usize,
}

/// A protocol's front end, as the whole server sees it. None of this is on the data path.
pub trait FrontEnd: Send + Sync + 'static {
    /// Its portals.
    fn portals(&self) -> &dyn Portals;

    /// Makes the clients' connections end, each when its commands in flight have ended.
    fn quiesce(&self);

    /// Whether any client is connected.
    fn has_clients(&self) -> bool;

    /// Closes the connections that are left. Blocks until they have ended, or for some seconds.
    fn disconnect(&self);

    /// Forgets all that it serves, and keeps its portals. For a server that is paused, or has
    /// ended.
    fn let_go(&self);

    /// Ends: has clients leave within `grace`, closes the rest, and makes everything durable. Runs
    /// on a core.
    fn wind_down(self: Arc<Self>, grace: Duration) -> Pin<Box<dyn Future<Output = io::Result<()>>>>;
}

/// A server that runs until [`Self::stop`].
pub struct Server {
    cores: Cores,
    handle: Handle,
}

/// A running server, for its administrators. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    hub: Arc<Hub>,
    front_ends: Arc<RwLock<Vec<Arc<dyn FrontEnd>>>>,
}

impl Server {
    /// Starts the cores. Front ends are added by [`Self::add`]. Portals that request the addresses
    /// of `inherited` sockets use those.
    ///
    /// # Errors
    /// When a core has no ring, or what stands in for it.
    pub fn start(config: CoresConfig, inherited: Vec<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        let count = if config.count == 0 { runtime::available_cores().len() } else { config.count };
        let config = runtime::Config {
            spin_us: config.spin_us,
            pool_bytes: config.pool_bytes,
            ..runtime::Config::default()
        };
        let (hub, cores) = Hub::start(count, config, inherited)?;
        Ok(Self { cores, handle: Handle { hub: Arc::new(hub), front_ends: Arc::default() } })
    }

    /// The cores, for a front end.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.handle.hub
    }

    /// Begins a change of the content: front ends are added by one.
    pub fn change(&self) -> Change<'_> {
        Change::begin(&self.handle.hub)
    }

    /// Adds a front end, which serves already or begins to.
    pub fn add(&self, front_end: Arc<dyn FrontEnd>) {
        self.handle.front_ends.write().unwrap_or_else(PoisonError::into_inner).push(front_end);
    }

    /// The server as its administrators reach it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops admitting clients, asks them to leave within `grace`, closes the remaining connections
    /// and makes everything durable.
    ///
    /// # Errors
    /// The first failure to make something durable.
    pub fn stop(self, grace: Duration) -> io::Result<()> {
        let Self { cores, handle } = self;
        handle.hub.close();
        let front_ends = handle.front_ends();
        let wound_down = handle.hub.wait_for({
            let front_ends = front_ends.clone();
            move || async move {
                let ends: Vec<_> =
                    front_ends.into_iter().map(|one| runtime::spawn(one.wind_down(grace))).collect();
                let mut result = Ok(());
                for end in ends {
                    let end = end
                        .await
                        .unwrap_or_else(|_| Err(io::Error::other("a front end has ended before its time")));
                    result = result.and(end);
                }
                result
            }
        });
        let result = wound_down.and_then(|result| result);
        cores.stop();
        let result = result.and(cores.join());
        for one in front_ends {
            one.let_go();
            one.portals().close();
        }
        result
    }
}

impl Handle {
    /// The cores, for a front end.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Begins a change of the content. Blocks while another is in progress, and must not be called
    /// on a core.
    pub fn change(&self) -> Change<'_> {
        Change::begin(&self.hub)
    }

    fn front_ends(&self) -> Vec<Arc<dyn FrontEnd>> {
        self.front_ends.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The listening sockets of all portals except those of RDMA devices, each with the address
    /// that it was requested for.
    pub fn listening_sockets(&self) -> Vec<(SocketAddr, Arc<OwnedFd>)> {
        self.front_ends().iter().flat_map(|one| one.portals().listening_sockets()).collect()
    }

    /// Closes all connections, each when its commands in flight have ended, but after `patience` at
    /// the latest. Admits no client until a front end is given content again. The listening sockets
    /// stay open: clients that connect meanwhile wait.
    ///
    /// Blocks, and must not be called on a core.
    pub fn pause(&self, patience: Duration) {
        let _alone = self.hub.alone();
        let front_ends = self.front_ends();
        // Let accepted connections log in first, and then ask them to reconnect: not every
        // initiator retries a refused login.
        let stopping: Vec<_> = front_ends.iter().flat_map(|one| one.portals().stop_listening()).collect();
        let deadline = runtime::clock() + LOGINS;
        for listener in stopping {
            let _ = listener.recv_timeout(deadline.saturating_duration_since(runtime::clock()));
        }
        while self.hub.admission.logins() > 0 && runtime::clock() < deadline {
            runtime::nap(Duration::from_millis(1));
        }
        self.hub.set_paused(true);
        front_ends.iter().for_each(|one| one.quiesce());
        let deadline = runtime::clock() + patience;
        while front_ends.iter().any(|one| one.has_clients()) && runtime::clock() < deadline {
            runtime::nap(Duration::from_millis(1));
        }
        front_ends.iter().for_each(|one| one.disconnect());
    }

    /// Drops all content, which is closed when its last other user is gone. For a server that is
    /// paused.
    pub fn let_go(&self) {
        self.front_ends().iter().for_each(|one| one.let_go());
    }

    /// The use of each core; `None` for a core that does not answer within `patience`.
    pub fn cores(&self, patience: Duration) -> Vec<Option<CoreStatus>> {
        self.hub.status(patience)
    }

    /// What carries out the cores' operations.
    pub fn backend(&self) -> runtime::Backend {
        self.hub.backend
    }

    /// Whether every core answers within `patience`.
    ///
    /// Blocks, and must not be called on a core.
    pub fn answers(&self, patience: Duration) -> bool {
        self.hub.on_each_core(patience, |_| ()).iter().all(Option::is_some)
    }
}
