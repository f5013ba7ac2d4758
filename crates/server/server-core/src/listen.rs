//! From accept to a front end: a connection gets its place and its core, and its first bytes tell
//! its protocol.
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
    /// The bounds on connections and logins, as they are now.
    fn rules(&self) -> Rules;

    /// Time from accept until a connection is set up ([`Place::logged_in`]).
    fn setup_time(&self) -> Duration;

    /// Prepares a TCP connection that was accepted: its congestion control, say.
    fn prepare(&self, stream: &TcpStream, peer: SocketAddr);

    /// Whether RDMA is let in here.
    ///
    /// # Errors
    /// Why not.
    fn takes_rdma(&self) -> Result<(), &'static str>;

    /// Whether it serves a connection that begins with these bytes. They are not those of RDMA.
    fn sniff(&self, first: &[u8]) -> Sniff;

    /// Serves a connection until its end, on its core.
    fn serve(self: Arc<Self>, arrival: Arrival) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// The services behind a portal. One alone serves all that comes. Of several, the first that does not
/// refuse a connection's first bytes decides; RDMA goes to the first that takes it.
pub type Services = Arc<[Arc<dyn Service>]>;

/// A front end's answer to a connection's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// It serves the connection.
    Mine,
    /// It has to see more of them, up to [`MOST`].
    More,
    /// It does not serve it, for this reason.
    No(&'static str),
}

/// No service is behind the portal.
const NOBODY: &str = "nobody serves here";

/// First bytes that a front end sees at most.
pub const MOST: usize = 4096;

/// How a connection came, and the bytes that were read from it.
pub enum Link {
    /// TCP, and the bytes that have been received.
    Stream(TcpStream, Vec<u8>),
    /// A request for a queue pair.
    Rdma(Incoming),
}

/// A new connection, on its core.
pub struct Arrival {
    /// How it came.
    pub link: Link,
    /// Its other end.
    pub peer: SocketAddr,
    /// The core that it lives on.
    pub core: Rc<Core>,
    /// Its place among all. The connection counts for as long as this is kept.
    pub place: Place,
    /// When it has to be set up.
    pub deadline: Instant,
}

/// How a new connection came.
enum Accepted {
    Tcp(OwnedFd),
    Verbs(VerbsRequest),
}

/// Why a connection did not get to its front end.
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

/// Accepts through RDMA devices.
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

/// Accepts on a socket that listens.
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
                // The peer has reset the connection already. Others must not wait for that.
                Err(_) => continue,
            },
            Err(error) => {
                // Out of descriptors or memory: what exists goes on, new ones wait in the backlog.
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

/// Gives a connection its place, and hands it to the core that has the fewest. False if that has
/// stopped.
fn hand_over(accepted: Accepted, peer: SocketAddr, hub: &Arc<Hub>, accepting: &Accepting) -> bool {
    let services = accepting.services();
    let widest = services.iter().map(|service| service.rules()).reduce(Rules::widest);
    let Some(place) = widest.and_then(|rules| Place::take(hub, peer, &rules)) else { return true };
    let core = place.core;
    core.run(move |core| serve(accepted, peer, services, core, place)).is_ok()
}

/// A connection's place among those that the server may have. Given back when it is dropped,
/// whatever ended the connection.
pub struct Place {
    hub: Arc<Hub>,
    /// Where it comes from.
    pub source: Source,
    /// The core that has the connection: the one with the fewest.
    pub core: Post,
    /// Whether it counts among those that log in.
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

    /// Whether the connection keeps to the bounds of its service too, where there are several.
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
    // Boxed: what it takes is given back when it is over.
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
        Accepted::Verbs(request) => return Ok((Link::Rdma(Incoming::from(request)), over_rdma(services)?)),
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
        // Where all refuse, the last has the word.
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

/// The service that RDMA is for.
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
