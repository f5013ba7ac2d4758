//! From a URI to a connection in its transmission phase.

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nbd::{Address, DISCONNECT, Export, Handshake, HandshakeError, Uri};
use runtime::{Buf, Bytes, Gather, Keepalive, TcpStream, blocking, timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with,
};

/// Bytes per receive.
const RECEIVE: usize = 16 << 10;
/// By which a server that has vanished is noticed without a request.
const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), count: 3 };

/// Where an export is, and how it is opened.
#[derive(Clone, Debug)]
pub struct Source {
    pub uri: Uri,
    /// Nothing is written, even if the server would take it.
    pub read_only: bool,
    /// How long an operation may wait for the server.
    pub op_timeout: Duration,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("it cannot be reached: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the server closed the connection before the export was open")]
    Closed,
    #[error("the server has not opened the export within {} s", .0.as_secs())]
    Late(Duration),
    #[error("{0}")]
    Other(String),
}

/// A connection in its transmission phase.
pub(crate) struct Dialled {
    pub stream: TcpStream,
    pub export: Export,
    /// What the server has sent beyond the handshake.
    pub rest: Bytes,
}

/// A connection that was made on another thread than it is used on.
pub(crate) struct Idle {
    socket: OwnedFd,
    export: Export,
    rest: Vec<u8>,
}

impl Dialled {
    /// Leaves this thread.
    pub(crate) fn into_idle(self) -> Idle {
        Idle { socket: self.stream.into_fd(), export: self.export, rest: self.rest.to_vec() }
    }
}

impl Idle {
    pub(crate) fn export(&self) -> &Export {
        &self.export
    }

    /// Comes to this core.
    pub(crate) fn into_dialled(self) -> io::Result<Dialled> {
        let stream = TcpStream::from_fd(self.socket)?;
        let rest = Buf::from(self.rest).into_bytes().unwrap_or_default();
        Ok(Dialled { stream, export: self.export, rest })
    }

    /// Ends it, unused.
    pub(crate) fn end(self) {
        // A server that does not take it sees the connection end.
        let _ = UnixStream::from(self.socket).write(&DISCONNECT);
    }
}

/// Connects and opens the export, all within `limit`.
pub(crate) async fn dial(uri: &Uri, limit: Duration) -> Result<Dialled, DialError> {
    let open = async {
        let stream = connect(&uri.address, limit).await?;
        shake_hands(stream, &uri.export).await
    };
    timeout(limit, open).await.unwrap_or(Err(DialError::Late(limit)))
}

async fn connect(address: &Address, limit: Duration) -> Result<TcpStream, DialError> {
    let (host, port) = match address {
        Address::Unix(path) => {
            return Ok(TcpStream::from_fd(unix(path)?)?);
        }
        Address::Tcp { host, port } => (host.clone(), *port),
    };
    let found = blocking(move || (host, port).to_socket_addrs().map(Iterator::collect)).await;
    let found: Vec<SocketAddr> = found?;
    let mut last = io::Error::other("its name has no address");
    let each = limit / found.len().max(1) as u32;
    for address in found {
        match TcpStream::connect(address, each).await {
            Ok(stream) => {
                stream.set_keepalive(Some(KEEPALIVE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Does not wait where the server accepts no connection: there is another try later.
fn unix(path: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect_to(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

async fn shake_hands(stream: TcpStream, export: &str) -> Result<Dialled, DialError> {
    let mut handshake = Handshake::open(export)?;
    let mut out = Vec::new();
    loop {
        let mut bytes = stream.recv_some(RECEIVE).await?;
        if bytes.is_empty() {
            return Err(DialError::Closed);
        }
        let mut input = &bytes[..];
        let result = handshake.advance(&mut input, &mut out);
        let left = input.len();
        bytes.advance(bytes.len() - left);
        if !out.is_empty() {
            let mut gather = Gather::new();
            gather.push_copy(&std::mem::take(&mut out));
            let sent = stream.send(gather).await.0;
            // An error of the handshake says more than one of its farewell.
            if result.is_ok() {
                sent?;
            }
        }
        match result? {
            None => {}
            Some(export) => return Ok(Dialled { stream, export, rest: bytes }),
        }
    }
}
