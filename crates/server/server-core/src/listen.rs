//! From accept to a front end: a connection gets its place and its core, and its first bytes
//! determine its protocol.
//!
//! A connection never waits for another: each reads its first bytes in a task of its own.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::{Incoming, Protocol, VerbsListener, VerbsRequest};
use runtime::{TcpListener, TcpStream};

use crate::admission::{Rules, Source};
use crate::audit::{self, Who};
use crate::portals::Accepting;
use crate::{Core, Hub, Post};

/// A front end at one portal.
pub trait Service: Send + Sync + 'static {
    /// The current bounds on connections and logins.
    fn rules(&self) -> Rules;

    /// Time from accept until a connection is set up ([`Place::logged_in`]).
    fn setup_time(&self) -> Duration;

    /// Prepares an accepted TCP connection: its congestion control, for example.
    fn prepare(&self, stream: &TcpStream, peer: SocketAddr);

    /// Whether RDMA is admitted here.
    ///
    /// # Errors
    /// The reason why not.
    fn takes_rdma(&self) -> Result<(), &'static str>;

    /// Whether it serves a connection that begins with these bytes. They are not those of RDMA
    /// (iWARP).
    fn sniff(&self, first: &[u8]) -> Sniff;

    /// Serves a connection until its end, on its core.
    fn serve(self: Arc<Self>, arrival: Arrival) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// The services behind a portal. One alone serves all that comes. Of several, the first that does
/// not refuse a connection's first bytes decides; RDMA goes to the first that takes it.
pub type Services = Arc<[Arc<dyn Service>]>;

/// A front end's answer to a connection's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// It serves the connection.
    Mine,
    /// It needs more of them to decide, up to [`MOST`].
    More,
    /// It does not serve it, for this reason.
    No(&'static str),
}

/// No service is behind the portal.
const NOBODY: &str = "nobody serves here";

/// Most first bytes that a front end sees.
pub const MOST: usize = 4096;

/// Transport of a new connection, and the bytes read from it so far.
pub enum Link {
    /// TCP, and the bytes received so far.
    Stream(TcpStream, Vec<u8>),
    /// A request for a queue pair.
    Rdma(Incoming),
}

/// A new connection, on its core.
pub struct Arrival {
    /// Its transport.
    pub link: Link,
    /// Address of its peer.
    pub peer: SocketAddr,
    /// The core that it runs on.
    pub core: Rc<Core>,
    /// Its place in the admission counts. The connection counts for as long as this value lives.
    pub place: Place,
    /// Time by which it has to be set up.
    pub deadline: Instant,
}

/// A connection as it was accepted.
enum Accepted {
    Tcp(OwnedFd),
    Verbs(VerbsRequest),
}

/// Reason why a connection did not reach its front end.
#[derive(Debug, thiserror::Error)]
enum Unserved {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    #[error("{0}")]
    Refused(&'static str),
    #[error("it took too long")]
    TimedOut,
}

/// Accepts connections through RDMA devices.
pub(crate) async fn devices(mut device: VerbsListener, accepting: Arc<Accepting>, hub: Arc<Hub>) {
    let address = accepting.address;
    while !hub.is_closed() {
        let request = match device.accept().await {
            Ok(request) => request,
            Err(error) => {
                return tracing::error!(%error, portal = %address, "cannot listen any more");
            }
        };
        let peer = request.peer_addr().unwrap_or(address);
        if !hand_over(Accepted::Verbs(request), peer, &hub, &accepting) {
            return;
        }
    }
}

/// Accepts connections on a listening socket.
pub(crate) async fn sockets(socket: OwnedFd, accepting: Arc<Accepting>, hub: Arc<Hub>) {
    let address = accepting.address;
    let mut socket = match TcpListener::from_fd(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(%error, portal = %address, "cannot listen"),
    };
    while !hub.is_closed() {
        let (peer, stream) = match socket.accept().await {
            Ok(stream) => match stream.peer_addr() {
                Ok(peer) => (peer, stream.into_fd()),
                // The peer has reset the connection already. Others must not be delayed by that.
                Err(_) => continue,
            },
            Err(error) => {
                // Out of descriptors or memory: existing connections stay, new ones wait in the
                // backlog.
                tracing::warn!(%error, portal = %address, "accept failed");
                runtime::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if !hand_over(Accepted::Tcp(stream), peer, &hub, &accepting) {
            return;
        }
    }
}

/// Gives a connection its place, and hands it to the core with the fewest connections. False if
/// that core has stopped.
fn hand_over(accepted: Accepted, peer: SocketAddr, hub: &Arc<Hub>, accepting: &Accepting) -> bool {
    let services = accepting.services();
    let widest = services.iter().map(|service| service.rules()).reduce(Rules::widest);
    let Some(place) = widest.and_then(|rules| Place::take(hub, peer, &rules)) else { return true };
    let core = place.core;
    core.run(move |core| serve(accepted, peer, services, core, place)).is_ok()
}

/// A connection's place in the server's counts. Returned on drop, whatever ended the connection.
pub struct Place {
    hub: Arc<Hub>,
    /// Address or network that it comes from.
    pub source: Source,
    /// The core of the connection: the one with the fewest connections.
    pub core: Post,
    /// Whether it counts as a login in progress.
    login: bool,
}

impl Place {
    /// `None` if a connection from `peer` is dropped.
    fn take(hub: &Arc<Hub>, peer: SocketAddr, rules: &Rules) -> Option<Self> {
        audit::suppressed(hub, false);
        let source = Source::from(peer.ip());
        if let Err(why) = hub.admission.enter(source, rules) {
            audit::dropped(hub, peer, why);
            return None;
        }
        Some(Self { hub: hub.clone(), source, core: hub.place(), login: true })
    }

    /// Whether the connection stays within the bounds of its own service too, if there are several.
    fn fits(&self, services: &Services, service: &dyn Service) -> Result<(), Unserved> {
        match services.len() > 1 && !self.hub.admission.holds(self.source, &service.rules()) {
            true => Err(Unserved::Refused("too many connections for its protocol")),
            false => Ok(()),
        }
    }

    /// The connection is set up, or will never be.
    pub fn logged_in(&mut self) {
        if std::mem::take(&mut self.login) {
            self.hub.admission.logged_in(self.source);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.logged_in();
        self.hub.vacate(self.core);
        self.hub.admission.leave(self.source);
    }
}

/// One connection, from accept to its end.
async fn serve(accepted: Accepted, peer: SocketAddr, services: Services, core: Rc<Core>, place: Place) {
    let began = runtime::now();
    let time = services.iter().map(|service| service.setup_time()).max().unwrap_or_default();
    // Boxed, so that its memory is freed when it is done.
    let found = runtime::timeout(time, Box::pin(link(accepted, peer, &services, &place, time)))
        .await
        .unwrap_or(Err(Unserved::TimedOut));
    match found {
        Ok((link, service)) => {
            let deadline = began + service.setup_time();
            service.serve(Arrival { link, peer, core, place, deadline }).await;
        }
        Err(error) => audit::refused(&place.hub.clone(), peer, &Who::default(), &error),
    }
}

/// Reads a new connection's first bytes, and finds the service that they are for.
async fn link(
    accepted: Accepted,
    peer: SocketAddr,
    services: &Services,
    place: &Place,
    patience: Duration,
) -> Result<(Link, Arc<dyn Service>), Unserved> {
    let stream = match accepted {
        Accepted::Tcp(socket) => TcpStream::from_fd(socket)?,
        Accepted::Verbs(request) => {
            let service = over_rdma(services)?;
            place.fits(services, &*service)?;
            return Ok((Link::Rdma(Incoming::from(request)), service));
        }
    };
    stream.set_nodelay(true)?;
    let (protocol, mut first) = rdma::sniff(&stream, patience).await?;
    if protocol == Protocol::Mpa {
        let service = over_rdma(services)?;
        place.fits(services, &*service)?;
        service.prepare(&stream, peer);
        return Ok((Link::Rdma(rdma::accept(stream, first, patience).await?), service));
    }
    if first.is_empty() {
        return Err(Unserved::Closed);
    }
    loop {
        // If all services refuse, the last one's reason counts.
        let answers = services.iter().map(|service| (service, service.sniff(&first)));
        let decided = answers.reduce(|before, next| if let Sniff::No(_) = before.1 { next } else { before });
        match decided {
            Some((service, Sniff::Mine)) => {
                place.fits(services, &**service)?;
                service.prepare(&stream, peer);
                return Ok((Link::Stream(stream, first), service.clone()));
            }
            Some((_, Sniff::No(why))) => return Err(Unserved::Refused(why)),
            None => return Err(Unserved::Refused(NOBODY)),
            Some((_, Sniff::More)) if first.len() >= MOST => {
                return Err(Unserved::Refused("its first bytes tell nothing"));
            }
            Some((_, Sniff::More)) => {}
        }
        let more = stream.recv_some(MOST - first.len()).await?;
        if more.is_empty() {
            return Err(Unserved::Closed);
        }
        first.extend_from_slice(&more);
    }
}

/// The service that takes RDMA.
fn over_rdma(services: &Services) -> Result<Arc<dyn Service>, Unserved> {
    let mut refused = NOBODY;
    for service in services.iter() {
        match service.takes_rdma() {
            Ok(()) => return Ok(service.clone()),
            Err(why) => refused = why,
        }
    }
    Err(Unserved::Refused(refused))
}
