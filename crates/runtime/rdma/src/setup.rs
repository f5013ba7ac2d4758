//! Connection setup on both sides: negotiation, private data, rejection. Ends before the first
//! message.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use iwarp::mpa::{self, CrcPolicy, MAX_DEPTH, REQUEST_KEY, Reply, Request, Requester, Responder};
use runtime::{Gather, ListenOptions, TcpListener, TcpStream};

use crate::hardware::{self, VerbsRequest};
use crate::software::Handle;
use crate::{Crc, Error, Options, Provider, QueuePair};

/// The protocol of a TCP connection, from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The request that software iWARP begins with (RFC 5044 §7.1.1).
    Mpa,
    /// Something else.
    Other,
}

/// Reads the first bytes of a connection until the protocol is known, and returns them for its
/// implementation. No bytes mean that the peer has closed the connection.
///
/// # Errors
/// Those of the socket, and [`Error::TimedOut`] after `patience`.
pub async fn sniff(stream: &TcpStream, patience: Duration) -> Result<(Protocol, Vec<u8>), Error> {
    let mut early = Vec::new();
    let reading = async {
        loop {
            let bytes = stream.recv_some(1024).await?;
            early.extend_from_slice(&bytes);
            let len = early.len().min(REQUEST_KEY.len());
            if early[..len] != REQUEST_KEY[..len] || bytes.is_empty() {
                return Ok(Protocol::Other);
            }
            if len == REQUEST_KEY.len() {
                return Ok(Protocol::Mpa);
            }
        }
    };
    let protocol: Result<Protocol, Error> = within(patience, "the first bytes", reading).await;
    Ok((protocol?, early))
}

/// Runs a future with a timeout.
async fn within<T>(
    patience: Duration,
    what: &'static str,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    runtime::timeout(patience, future).await.unwrap_or(Err(Error::TimedOut(what)))
}

/// A connection request.
pub struct Incoming {
    asking: Ask,
}

/// The provider of the request.
enum Ask {
    Software {
        stream: TcpStream,
        ends: (SocketAddr, SocketAddr),
        request: Request,
    },
    #[cfg(feature = "verbs")]
    Verbs(VerbsRequest),
}

impl From<VerbsRequest> for Incoming {
    #[cfg(feature = "verbs")]
    fn from(request: VerbsRequest) -> Self {
        Self { asking: Ask::Verbs(request) }
    }

    #[cfg(not(feature = "verbs"))]
    fn from(_request: VerbsRequest) -> Self {
        unreachable!("nobody can make one")
    }
}

impl Incoming {
    /// The private data of the peer's upper layer. InfiniBand and RoCE pad it with zeros.
    pub fn private_data(&self) -> &[u8] {
        match &self.asking {
            Ask::Software { request, .. } => request.private_data(),
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => asking.request.private_data(),
        }
    }

    /// Whether it is software iWARP's, where receives use no memory until data arrives.
    pub fn is_software(&self) -> bool {
        matches!(self.asking, Ask::Software { .. })
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.asking {
            Ask::Software { ends, .. } => ends.0,
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => asking.request.peer().unwrap_or_else(hardware::nowhere),
        }
    }

    /// Address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.asking {
            Ask::Software { ends, .. } => ends.1,
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => asking.request.local().unwrap_or_else(hardware::nowhere),
        }
    }

    /// Maximum RDMA Reads that the peer answers at a time, if it states it.
    pub fn ird(&self) -> Option<u16> {
        match &self.asking {
            Ask::Software { request, .. } => request.ird(),
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => Some(asking.request.ord().into()),
        }
    }

    /// RDMA Reads that the peer wants to have outstanding, if it states it.
    pub fn ord(&self) -> Option<u16> {
        match &self.asking {
            Ask::Software { request, .. } => request.ord(),
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => Some(asking.request.ird().into()),
        }
    }

    /// Accepts it, with at most 508 bytes of private data; Linux's siw takes 252, other devices
    /// 196.
    ///
    /// # Errors
    /// [`Error::Setup`] if the private data is too long, [`Error::TimedOut`], [`Error::Verbs`], and
    /// those of the socket.
    pub async fn accept(self, private_data: &[u8], options: &Options) -> Result<QueuePair, Error> {
        match self.asking {
            Ask::Software { stream, ends, request } => {
                let (reply, agreed) = request.accept(&mpa_options(options), private_data).map_err(setup)?;
                within(options.setup_timeout, "the reply", send(&stream, &reply)).await?;
                Ok(QueuePair::software(Handle::new(stream, ends, agreed, Vec::new(), options)?))
            }
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => asking.accept(private_data, options).await,
        }
    }

    /// Rejects it, with at most 508 bytes of private data; devices other than siw take 148.
    ///
    /// # Errors
    /// [`Error::Setup`] if the private data is too long, [`Error::TimedOut`], [`Error::Verbs`], and
    /// those of the socket.
    pub async fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        match self.asking {
            Ask::Software { stream, request, .. } => {
                let reply = request.reject(private_data).map_err(setup)?;
                within(SETUP, "the reply", send(&stream, &reply)).await
            }
            #[cfg(feature = "verbs")]
            Ask::Verbs(asking) => asking.reject(private_data),
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incoming({})", self.peer_addr())
    }
}

/// Default timeout for a peer's request.
const SETUP: Duration = Duration::from_secs(10);

/// Reads software iWARP's request from an accepted connection; `early` was already received.
///
/// # Errors
/// [`Error::Setup`] if it is not a request, [`Error::TimedOut`] after `patience`,
/// [`Error::Closed`], and those of the socket.
pub async fn accept(stream: TcpStream, early: Vec<u8>, patience: Duration) -> Result<Incoming, Error> {
    let ends = (stream.peer_addr()?, stream.local_addr()?);
    stream.set_nodelay(true)?;
    let mut responder = Responder::new();
    let receiving = async {
        let mut input = &early[..];
        let mut bytes;
        loop {
            match responder.receive(&mut input) {
                Ok(Some(request)) => return Ok(request),
                Ok(None) => {}
                Err(error) => {
                    if let mpa::Error::Revision(_) = error {
                        send(&stream, &Responder::refusal()).await?;
                    }
                    return Err(setup(error));
                }
            }
            bytes = stream.recv_some(mpa::MAX_FRAME_LEN).await?;
            if bytes.is_empty() {
                return Err(Error::Closed);
            }
            input = &bytes;
        }
    };
    let request = within(patience, "the request", receiving).await?;
    Ok(Incoming { asking: Ask::Software { stream, ends, request } })
}

/// Delay between the reply and the first FPDU. Linux's siw sends its reply first and listens for
/// FPDUs after that. An earlier FPDU stays unnoticed until more bytes arrive, and a login would
/// wait for its answer until it times out.
const SETTLE: Duration = Duration::from_millis(20);

/// Connects to `address` with at most 508 bytes of private data (Linux's siw takes 252, verbs carry
/// 56). Also returns the peer's private data.
///
/// # Errors
/// [`Error::Connect`], [`Error::Rejected`], [`Error::Setup`], [`Error::TimedOut`],
/// [`Error::Closed`], [`Error::Verbs`].
pub async fn connect(
    address: SocketAddr,
    private_data: &[u8],
    options: &Options,
) -> Result<(QueuePair, Vec<u8>), Error> {
    connect_with(address, |_| private_data.to_vec(), options).await
}

/// Like [`connect`], with private data that depends on whether the peer may invalidate exposed
/// memory ([`QueuePair::takes_invalidation`]). That is known only once the device is.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with(
    address: SocketAddr,
    private_data: impl FnOnce(bool) -> Vec<u8>,
    options: &Options,
) -> Result<(QueuePair, Vec<u8>), Error> {
    if options.provider == Provider::Verbs {
        return hardware::connect(address, private_data, options).await;
    }
    let mut requester = Requester::new(mpa_options(options), &private_data(true)).map_err(setup)?;
    let connecting = async {
        let stream = TcpStream::connect_over(address, options.setup_timeout, &options.path)
            .await
            .map_err(|source| Error::Connect { address, source })?;
        let ends = (stream.peer_addr()?, stream.local_addr()?);
        send(&stream, requester.request()).await?;
        loop {
            let bytes = stream.recv_some(usize::MAX).await?;
            if bytes.is_empty() {
                return Err(Error::Closed);
            }
            let mut input = &bytes[..];
            let reply = match requester.receive(&mut input) {
                Ok(reply) => reply,
                Err(error) => {
                    // The peer may consider the connection established.
                    if let Some(farewell) = requester.farewell(&error) {
                        send(&stream, &farewell).await?;
                    }
                    return Err(setup(error));
                }
            };
            match reply {
                None => {}
                Some(Reply::Rejected { private_data }) => return Err(Error::Rejected(private_data)),
                Some(Reply::Accepted { agreed, private_data }) => {
                    runtime::sleep(SETTLE).await;
                    let handle = Handle::new(stream, ends, agreed, input.to_vec(), options)?;
                    return Ok((QueuePair::software(handle), private_data));
                }
            }
        }
    };
    within(options.setup_timeout, "setting up", connecting).await
}

fn mpa_options(options: &Options) -> mpa::Options {
    mpa::Options {
        crc: match options.crc {
            Crc::Never => CrcPolicy::Never,
            Crc::Prefer => CrcPolicy::Prefer,
            Crc::Require => CrcPolicy::Require,
        },
        markers: options.markers,
        ird: options.ird.clamp(1, MAX_DEPTH),
        ord: options.ord.clamp(1, MAX_DEPTH),
        ..mpa::Options::default()
    }
}

fn setup(error: mpa::Error) -> Error {
    Error::Setup(error.to_string())
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> Result<(), Error> {
    let mut gather = Gather::new();
    gather.push_copy(bytes);
    Ok(stream.send(gather).await.0?)
}

/// Maximum number of connections without a request; further ones are dropped.
const ASKING: usize = 256;

/// Listens for connections of one kind only. Accept them with [`Incoming`].
pub struct Listener {
    listener: TcpListener,
    asking: Rc<RefCell<Asking>>,
}

/// Connections that wait for their request or for a caller of `accept`.
#[derive(Default)]
struct Asking {
    count: usize,
    ready: VecDeque<Incoming>,
    waiter: Option<std::task::Waker>,
}

impl Listener {
    /// Listens at `address` for software iWARP.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(address, ListenOptions::default())?;
        Ok(Self { listener, asking: Rc::default() })
    }

    /// The listening address.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        Ok(self.listener.local_addr()?)
    }

    /// The next connection request. A connection without a valid request within 10 s is dropped,
    /// without delaying others. Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of accept(2), which may be temporary.
    pub async fn accept(&mut self) -> Result<Incoming, Error> {
        let Self { listener, asking } = self;
        loop {
            let mut accepting = std::pin::pin!(listener.accept());
            let accepted = std::future::poll_fn(|cx| {
                let mut state = asking.borrow_mut();
                if let Some(incoming) = state.ready.pop_front() {
                    return std::task::Poll::Ready(Ok(Err(incoming)));
                }
                state.waiter = Some(cx.waker().clone());
                drop(state);
                accepting.as_mut().poll(cx).map(|accepted| accepted.map(Ok))
            });
            let stream = match accepted.await? {
                Ok(stream) => stream,
                Err(incoming) => return Ok(incoming),
            };
            if asking.borrow().count >= ASKING {
                continue;
            }
            asking.borrow_mut().count += 1;
            let asking = asking.clone();
            runtime::spawn(async move {
                let incoming = accept(stream, Vec::new(), SETUP).await;
                let mut state = asking.borrow_mut();
                state.count -= 1;
                match incoming {
                    Ok(incoming) => state.ready.push_back(incoming),
                    Err(error) => tracing::debug!(%error, "a connection asked for nothing that is here"),
                }
                if let Some(waiter) = state.waiter.take() {
                    waiter.wake();
                }
            });
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({:?})", self.listener)
    }
}
