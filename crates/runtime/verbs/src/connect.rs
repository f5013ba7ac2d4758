//! Connection setup: [`connect`], [`Listener`], [`Incoming`]. Every wait uses descriptors through
//! the ring, and ends with the timeout of the options.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use runtime::Readable;

use crate::abi::event;
use crate::cm::{Channel, Event, Id, Parameters};
use crate::error::Error;
use crate::options::Options;
use crate::queue::QueuePair;

/// The longest private data of a request, in bytes: the space in a REQ of InfiniBand's connection
/// manager.
pub const MAX_CONNECT_DATA: usize = 56;
/// The longest private data of an acceptance, in bytes.
pub const MAX_ACCEPT_DATA: usize = 196;
/// The longest private data of a rejection, in bytes.
pub const MAX_REJECT_DATA: usize = 148;

fn check_data(private_data: &[u8], limit: usize) -> Result<(), Error> {
    if private_data.len() <= limit {
        return Ok(());
    }
    Err(Error::TooMuch { what: "bytes of private data", asked: private_data.len(), limit })
}

/// Runs an operation of the setup with its timeout.
async fn in_time<T>(options: &Options, f: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    runtime::timeout(options.setup_timeout, f)
        .await
        .unwrap_or(Err(Error::Unreachable { status: -libc::ETIMEDOUT }))
}

/// Connects to a listener. Returns the queue pair and the listener's private data; InfiniBand pads
/// it with zeros.
///
/// # Errors
/// rdma-core is missing, no device has a route to the address, or the peer rejects or does not
/// answer.
pub async fn connect(
    address: SocketAddr,
    private_data: &[u8],
    options: &Options,
) -> Result<(QueuePair, Vec<u8>), Error> {
    connect_with(address, |_| private_data.to_vec(), options).await
}

/// Like [`connect`], with private data that depends on the device: whether the peer may invalidate
/// exposed memory ([`QueuePair::takes_invalidation`]).
pub async fn connect_with(
    address: SocketAddr,
    private_data: impl FnOnce(bool) -> Vec<u8>,
    options: &Options,
) -> Result<(QueuePair, Vec<u8>), Error> {
    in_time(options, async {
        let channel = Channel::open()?;
        let id = Id::new(&channel)?;
        let mut events = Readable::new(channel.fd()).map_err(|source| Error::Call { call: "dup", source })?;
        id.resolve_address(address)?;
        expect(&channel, &mut events, event::ADDR_RESOLVED).await?;
        id.resolve_route()?;
        expect(&channel, &mut events, event::ROUTE_RESOLVED).await?;
        drop(events);
        let mut pair = QueuePair::new(id, options)?;
        let (ird, ord) = (pair.ird(), pair.ord());
        let private_data = private_data(pair.takes_invalidation());
        check_data(&private_data, MAX_CONNECT_DATA)?;
        let parameters =
            Parameters { private_data: &private_data, responder_resources: ird, initiator_depth: ord };
        pair.with_id(|id| id.connect(&parameters))?;
        let answer = pair.next_event().await?;
        if answer.kind != event::ESTABLISHED {
            return Err(answer.into_error());
        }
        // This event has both numbers as limits of this side, already reduced to the peer's limits.
        let least = |ours: u8, said: u8| if said == 0 { ours } else { ours.min(said) };
        pair.begin(least(ird, answer.responder_resources), least(ord, answer.initiator_depth));
        Ok((pair, answer.private_data))
    })
    .await
}

/// Waits for one event, which must be `kind`.
async fn expect(channel: &Arc<Channel>, events: &mut Readable, kind: i32) -> Result<(), Error> {
    let event = next(channel, events).await?;
    if event.kind == kind { Ok(()) } else { Err(event.into_error()) }
}

async fn next(channel: &Arc<Channel>, events: &mut Readable) -> Result<Event, Error> {
    loop {
        if let Some(event) = channel.next()? {
            return Ok(event);
        }
        events.readable().await.map_err(|source| Error::Call { call: "poll", source })?;
    }
}

/// Listens for connections on all devices that own the address.
pub struct Listener {
    events: Readable,
    id: Id,
}

impl Listener {
    /// Listens at an address; its port may be 0.
    ///
    /// # Errors
    /// rdma-core is missing, no device owns the address, or the port is in use.
    pub fn bind(address: SocketAddr, backlog: u16) -> Result<Self, Error> {
        let channel = Channel::open()?;
        let id = Id::new(&channel)?;
        id.bind(address)?;
        id.listen(backlog)?;
        let events = Readable::new(channel.fd()).map_err(|source| Error::Call { call: "dup", source })?;
        Ok(Self { events, id })
    }

    pub fn local(&self) -> Option<SocketAddr> {
        self.id.local()
    }

    /// The next connection request.
    ///
    /// # Errors
    /// The device was removed, or the connection manager fails.
    pub async fn accept(&mut self) -> Result<Incoming, Error> {
        loop {
            let event = next(self.id.channel(), &mut self.events).await?;
            match (event.kind, event.request) {
                (event::CONNECT_REQUEST, Some(id)) => {
                    return Ok(Incoming {
                        id,
                        private_data: event.private_data,
                        reads_of_peer: event.responder_resources,
                        reads_of_ours: event.initiator_depth,
                    });
                }
                (event::DEVICE_REMOVAL, _) => return Err(Error::DeviceRemoved),
                // An event of a request that is not accepted yet.
                _ => {}
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local()).finish_non_exhaustive()
    }
}

/// A connection request. A core other than the listening one may accept it. Dropping it rejects it.
pub struct Incoming {
    id: Id,
    private_data: Vec<u8>,
    reads_of_peer: u8,
    reads_of_ours: u8,
}

impl Incoming {
    /// The peer's private data. InfiniBand pads it with zeros to 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    /// The local address of the request.
    pub fn local(&self) -> Option<SocketAddr> {
        self.id.local()
    }

    /// RDMA Reads that the peer wants to have outstanding.
    pub fn ird(&self) -> u8 {
        self.reads_of_peer
    }

    /// Maximum outstanding RDMA Reads of this side.
    pub fn ord(&self) -> u8 {
        self.reads_of_ours
    }

    /// Accepts it on this core, with private data.
    ///
    /// # Errors
    /// The device is out of resources, or the peer has given up.
    pub async fn accept(self, private_data: &[u8], options: &Options) -> Result<QueuePair, Error> {
        check_data(private_data, MAX_ACCEPT_DATA)?;
        in_time(options, async move {
            let Self { mut id, reads_of_peer, reads_of_ours, .. } = self;
            id.migrate()?;
            let mut pair = QueuePair::new(id, options)?;
            let (ird, ord) = (pair.ird().min(reads_of_peer), pair.ord().min(reads_of_ours));
            let parameters = Parameters { private_data, responder_resources: ird, initiator_depth: ord };
            pair.with_id(|id| id.accept(&parameters))?;
            let answer = pair.next_event().await?;
            if answer.kind != event::ESTABLISHED {
                return Err(answer.into_error());
            }
            pair.begin(ird, ord);
            Ok(pair)
        })
        .await
    }

    /// Rejects it, with private data.
    ///
    /// # Errors
    /// The peer has given up meanwhile.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        check_data(private_data, MAX_REJECT_DATA)?;
        self.id.reject(private_data)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer", &self.peer()).finish_non_exhaustive()
    }
}
