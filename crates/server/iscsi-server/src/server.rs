//! A running server: its cores, its portals, and the connections that come in.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iscsi::discovery::{Record, SendTargets, TargetAddress};
use iscsi::name;
use iscsi::target::recovery::Recovered;
use iscsi::text::TextBuf;
use rdma::{VerbsListener, VerbsRequest};
use runtime::{Cores, Handle, ListenOptions, TcpListener, TcpStream};

use crate::admission::{Admission, Rules, Source};
use crate::audit::{self, Who};
use crate::config::{Auth, Portal, ServerConfig, Transports};
use crate::connection::{ConnectionId, End};
use crate::drain::Drains;
use crate::login::{self, LoginFailure, Wire};
use crate::model::Model;
use crate::node::Target;
use crate::notices;
pub(crate) use crate::portals::PortalEntry;
use crate::qos::Initiators;
use crate::session::{Registry, Standing};

/// What all cores share. Changed by atomics, or behind the registry's mutex.
pub(crate) struct Shared {
    /// What is served; replaced by [`Shared::apply`] only.
    pub(crate) model: Mutex<Arc<Model>>,
    /// Held while a change is applied.
    pub(crate) applying: Mutex<()>,
    /// Nobody is let in until the next change.
    pub(crate) paused: AtomicBool,
    /// Listening sockets of another daemon or of the service manager, by what they were asked to listen on.
    pub(crate) inherited: Mutex<Vec<(SocketAddr, OwnedFd)>>,
    pub registry: Registry,
    pub drains: Drains,
    pub initiators: Initiators,
    cores: Vec<CoreLoad>,
    /// Who may begin to log in.
    pub admission: Admission,
    /// Makes names into numbers that others do not foresee.
    pub names: RandomState,
    next_connection: AtomicU64,
    stopping: AtomicBool,
    /// What recovery had to do on connections that have ended.
    recovered: Mutex<Recovered>,
}

/// A portal as it listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundPortal {
    /// The address, with the port that was really taken.
    pub address: SocketAddr,
    /// Target portal group tag.
    pub group: u16,
    /// What it lets in.
    pub transports: Transports,
}

struct CoreLoad {
    handle: Handle,
    connections: AtomicUsize,
}

impl Shared {
    /// What recovery had to do on connections that have ended.
    pub(crate) fn recovered(&self) -> Recovered {
        *self.recovered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection ends, on which recovery had to do this.
    pub(crate) fn keep_recovered(&self, of: &Recovered) {
        if *of != Recovered::default() {
            self.recovered.lock().unwrap_or_else(PoisonError::into_inner).add(of);
        }
    }

    /// Whether somebody is logging in.
    pub(crate) fn has_logins(&self) -> bool {
        self.admission.logins() > 0
    }

    /// Bounds on those who log in, of now.
    pub(crate) fn rules(&self) -> Rules {
        let limits = self.limits();
        Rules {
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            logins: limits.logins,
            logins_per_address: limits.logins_per_address,
            login_memory: limits.login_memory,
        }
    }

    /// Whether the server lets nobody in any more.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire) || self.paused.load(Ordering::Acquire)
    }

    /// The portals, as they listen.
    pub(crate) fn portals(&self) -> Vec<BoundPortal> {
        self.model().portals.iter().map(|portal| portal.bound).collect()
    }

    /// The cores.
    pub(crate) fn core_handles(&self) -> impl Iterator<Item = Handle> {
        self.cores.iter().map(|core| core.handle)
    }

    /// How many connections live on each core.
    pub(crate) fn core_connections(&self) -> impl Iterator<Item = usize> {
        self.cores.iter().map(|core| core.connections.load(Ordering::Relaxed))
    }

    /// A number for a new connection.
    pub(crate) fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// The answer to SendTargets (RFC 7143 Appendix C) from `initiator`, who came through `local`. One who has not `proved` who he
    /// is does not learn by it which names the ACLs of protected targets have.
    pub(crate) fn send_targets(
        &self,
        wanted: SendTargets<'_>,
        (initiator, proved): (&str, bool),
        own: Option<&Target>,
        local: SocketAddr,
        out: &mut TextBuf,
    ) {
        let model = self.model();
        for target in &model.targets {
            // A normal session learns of its own target only.
            let has_session = own.is_some();
            let own = own.is_none_or(|own| own.config.name == target.config.name);
            let named = match wanted {
                SendTargets::All | SendTargets::This => true,
                SendTargets::Named(wanted) => name::eq(&target.config.name, wanted),
            };
            if !(own && named) || target.acl(initiator).is_none() {
                continue;
            }
            if !(proved || has_session)
                && target.config.acls.is_some()
                && matches!(model.demand(Some(&target.config.name), initiator), Some((Auth::Chap(_), _)))
            {
                continue;
            }
            let portals = model.portals.iter().map(|portal| portal.bound);
            let portals = portals.filter(|portal| {
                target.serves(portal.group)
                    && self.drains.offers(portal.address)
                    && is_on_the_way(portal.address, local)
            });
            let addresses = portals
                .map(|portal| {
                    // A wildcard is no address to connect to: what the initiator used is.
                    let mut address = portal.address;
                    if address.ip().is_unspecified() {
                        address.set_ip(local.ip().to_canonical());
                    }
                    TargetAddress::new(address, portal.group)
                })
                .collect();
            Record { name: target.config.name.clone(), addresses }.put(out);
        }
    }
}

/// Whether an initiator that reached this machine at `local` can reach a portal: at a link-local address, if it is on that link. Such an
/// address is told without its zone, which would name an interface of this machine.
fn is_on_the_way(portal: SocketAddr, local: SocketAddr) -> bool {
    let link = |address: SocketAddr| match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(v6.scope_id()),
        _ => None,
    };
    link(portal).is_none_or(|scope| link(local) == Some(scope))
}

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
        let cores = Cores::start(count, ring_config)?;
        let handles = cores.handles().to_vec();
        let nothing = ServerConfig { portals: Vec::new(), targets: Vec::new(), ..config.clone() };
        let shared = Arc::new(Shared {
            model: Mutex::new(Arc::new(Model::new(nothing, Vec::new(), None))),
            applying: Mutex::new(()),
            paused: AtomicBool::new(false),
            inherited: Mutex::new(inherited),
            registry: Registry::default(),
            drains: Drains::default(),
            initiators: Initiators::default(),
            cores: handles
                .iter()
                .map(|handle| CoreLoad { handle: *handle, connections: AtomicUsize::new(0) })
                .collect(),
            admission: Admission::new(RandomState::new().hash_one(0)),
            names: RandomState::new(),
            next_connection: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            recovered: Mutex::default(),
        });
        let (portals, _) = shared.prepare_portals(&[], &config.portals)?;
        let model = Arc::new(Model::new(config, portals, None));
        model.connect_units(&shared, None);
        *shared.model.lock().unwrap_or_else(PoisonError::into_inner) = model.clone();
        for portal in &model.portals {
            shared.start_portal(portal)?;
        }
        shared.inherited.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
        self.shared.stopping.store(true, Ordering::Release);
        let shared = self.shared.clone();
        let (done, wait) = runtime::channel();
        let wound_down = self.shared.cores[0].handle.run(move || async move {
            // Only a caller that has vanished does not listen.
            let _ = done.send(wind_down(&shared, grace).await);
        });
        let result = match (wound_down, wait.recv()) {
            (Ok(()), Ok(result)) => result,
            _ => Err(io::Error::other("a core has ended before its time")),
        };
        self.cores.stop();
        let result = result.and(self.cores.join());
        self.shared.serve_nothing();
        result
    }
}

async fn wind_down(shared: &Arc<Shared>, grace: Duration) -> io::Result<()> {
    audit::suppressed(shared, true);
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

pub(crate) fn bind(address: SocketAddr, portals: &[Portal]) -> io::Result<TcpListener> {
    // An IPv6 wildcard takes IPv4 connections too, unless a portal of their own is there for them.
    let own_v4 = portals.iter().any(|p| p.listen.is_ipv4() && p.listen.port() == address.port());
    TcpListener::bind(address, ListenOptions { backlog: 4096, v6only: own_v4, ..ListenOptions::default() })
}

/// What a new connection came by.
enum Arrived {
    Tcp(OwnedFd),
    Verbs(VerbsRequest),
}

/// [`listen`] through RDMA devices. Says first whether it could be bound.
pub(crate) async fn listen_verbs(
    portal: BoundPortal,
    shared: Arc<Shared>,
    bound: runtime::Sender<io::Result<()>>,
) {
    let name = |error: rdma::Error| io::Error::other(format!("{} over RDMA: {error}", portal.address));
    let mut listener = match VerbsListener::bind(portal.address).map_err(name) {
        Ok(listener) => {
            // Only a caller that has vanished does not listen.
            let _ = bound.send(Ok(()));
            listener
        }
        Err(error) => {
            let _ = bound.send(Err(error));
            return;
        }
    };
    while !shared.is_stopping() {
        let request = match listener.accept().await {
            Ok(request) => request,
            Err(error) => {
                return tracing::error!(%error, portal = %portal.address, "cannot listen any more");
            }
        };
        let peer = request.peer_addr().unwrap_or(portal.address);
        let Some(place) = Place::take(&shared, peer) else { continue };
        let core = shared.cores[place.core].handle;
        if core.run(move || serve(Arrived::Verbs(request), peer, portal, core, place)).is_err() {
            return;
        }
    }
}

/// Accepts on one portal and hands each connection to the core that has the fewest.
pub(crate) async fn listen(socket: OwnedFd, portal: BoundPortal, shared: Arc<Shared>) {
    let mut listener = match TcpListener::from_fd(socket) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, portal = %portal.address, "cannot listen"),
    };
    while !shared.is_stopping() {
        let (peer, socket) = match listener.accept().await {
            Ok(stream) => match stream.peer_addr() {
                Ok(peer) => (peer, stream.into_fd()),
                // The peer has reset the connection already. Others must not wait for that.
                Err(_) => continue,
            },
            Err(error) => {
                // Out of descriptors or memory: what exists goes on, new ones wait in the backlog.
                tracing::warn!(%error, portal = %portal.address, "accept failed");
                runtime::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = Place::take(&shared, peer) else { continue };
        let core = shared.cores[place.core].handle;
        if core.run(move || serve(Arrived::Tcp(socket), peer, portal, core, place)).is_err() {
            return;
        }
    }
}

/// A connection's place among those that the server may have. Given back when it is dropped, whatever ended the connection.
struct Place {
    shared: Arc<Shared>,
    /// Where it comes from.
    source: Source,
    /// The core that has the connection: the one with the fewest.
    core: usize,
    /// Whether it counts among those that log in.
    login: bool,
}

impl Place {
    /// `None` if a connection from `peer` is dropped.
    fn take(shared: &Arc<Shared>, peer: SocketAddr) -> Option<Self> {
        audit::suppressed(shared, false);
        let source = Source::from(peer.ip());
        if let Err(why) = shared.admission.enter(source, &shared.rules()) {
            audit::dropped(shared, peer, why);
            return None;
        }
        let loads = shared.cores.iter().map(|core| core.connections.load(Ordering::Relaxed));
        let (core, _) = loads.enumerate().min_by_key(|(_, connections)| *connections)?;
        shared.cores[core].connections.fetch_add(1, Ordering::Relaxed);
        Some(Self { shared: shared.clone(), source, core, login: true })
    }

    /// The login is over.
    fn logged_in(&mut self) {
        if std::mem::take(&mut self.login) {
            self.shared.admission.logged_in(self.source);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.logged_in();
        self.shared.cores[self.core].connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.admission.leave(self.source);
    }
}

/// One connection, from accept to its end.
async fn serve(arrived: Arrived, peer: SocketAddr, portal: BoundPortal, core: Handle, mut place: Place) {
    let shared = &place.shared.clone();
    let mut who = Who::default();
    let logged_in = async {
        let who = &mut who;
        let dialog = async move {
            let mut wire = match arrived {
                Arrived::Tcp(socket) => {
                    let stream = TcpStream::from_fd(socket)?;
                    stream.set_nodelay(true)?;
                    match shared.limits().congestion {
                        Some(congestion) => {
                            if let Err(error) = stream.set_congestion(congestion.name()) {
                                // It goes on with what the system has.
                                tracing::warn!(%peer, %error, ?congestion, "the system does not have it, or not for everybody");
                            }
                        }
                        None => stream.unpaced_within_machine(),
                    }
                    Wire::of(stream, portal.transports, shared).await?
                }
                Arrived::Verbs(request) => Wire::of_verbs(request, shared).await?,
            };
            let logged_in = login::run(&mut wire, peer, portal, shared, core, who).await?;
            Ok((wire, logged_in))
        };
        // Boxed: what it takes is given back when it is over.
        runtime::timeout(shared.limits().login_timeout, Box::pin(dialog))
            .await
            .unwrap_or(Err(LoginFailure::TimedOut))
    }
    .await;
    place.logged_in();
    let (wire, logged_in) = match logged_in {
        Ok(logged_in) => logged_in,
        Err(error) => return audit::refused(shared, peer, &who, &error),
    };
    let Ok((connection, seat, start)) = login::full_feature(logged_in, wire, shared) else {
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
    audit::ended(peer, session, &end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_portals_are_told_to_those_on_their_link_only() {
        let told = |portal: &str, local: &str| {
            is_on_the_way(portal.parse().expect("an address"), local.parse().expect("an address"))
        };
        assert!(told("[fe80::1%2]:3260", "[fe80::1%2]:3260"));
        assert!(!told("[fe80::1%2]:3260", "[fe80::1%3]:3260"));
        assert!(!told("[fe80::1%2]:3260", "192.0.2.1:3260"));
        assert!(told("192.0.2.1:3260", "[fe80::1%2]:3260"));
        assert!(told("[::]:3260", "[2001:db8::1]:3260"));
    }
}
