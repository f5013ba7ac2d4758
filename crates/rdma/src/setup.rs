//! Setting connections up, from either side: who wants what, private data, refusals. Nothing after the first message.

use std::net::SocketAddr;
use std::time::Duration;

use ring::{ListenOptions, TcpListener, TcpStream};

use crate::{Error, Options, QueuePair};

/// What the first bytes of a TCP connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The request that software iWARP begins with (RFC 5044 §7.1.1).
    Mpa,
    /// Something else.
    Other,
}

/// MPA's request begins with this (RFC 5044 §7.1.1).
const KEY: &[u8; 16] = b"MPA ID Req Frame";

/// Reads the first bytes of a connection, as many as tell what it is, and returns them for whoever speaks that protocol.
/// No bytes mean that the peer has closed the connection.
///
/// # Errors
/// Those of the socket, and [`Error::TimedOut`] after `patience`.
pub async fn sniff(stream: &TcpStream, patience: Duration) -> Result<(Protocol, Vec<u8>), Error> {
    let mut early = Vec::new();
    let reading = async {
        loop {
            let bytes = stream.recv_some(1024).await?;
            early.extend_from_slice(&bytes);
            let len = early.len().min(KEY.len());
            if early[..len] != KEY[..len] || bytes.is_empty() {
                return Ok(Protocol::Other);
            }
            if len == KEY.len() {
                return Ok(Protocol::Mpa);
            }
        }
    };
    let protocol: Result<Protocol, Error> =
        ring::timeout(patience, reading).await.map_err(|_| Error::TimedOut("the first bytes"))?;
    Ok((protocol?, early))
}

/// A connection that asks to be accepted.
pub struct Incoming {
    /* provider's side of it */
    stream: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
    private_data: Vec<u8>,
    ird: u16,
    ord: u16,
}

impl Incoming {
    /// What the peer's upper layer has sent along.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// RDMA Reads that the peer can answer at once, if it says.
    pub fn ird(&self) -> u16 {
        self.ird
    }

    /// RDMA Reads that the peer wants to have outstanding, if it says.
    pub fn ord(&self) -> u16 {
        self.ord
    }

    /// Accepts it, with at most 500 bytes of private data.
    ///
    /// # Errors
    /// If the peer demands what `options` forbid, it is refused and gone.
    pub async fn accept(self, private_data: &[u8], options: &Options) -> Result<QueuePair, Error> {
        let _ = (private_data, options, &self.stream);
        Err(Error::Unsupported("not yet"))
    }

    /// Refuses it, with at most 500 bytes of private data.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        let _ = private_data;
        Err(Error::Unsupported("not yet"))
    }
}

/// Takes software iWARP's request from a connection that was accepted, of which `early` has been received already.
///
/// # Errors
/// [`Error::Setup`] if it is none, [`Error::TimedOut`] after `patience`, and those of the socket.
pub async fn accept(stream: TcpStream, early: Vec<u8>, patience: Duration) -> Result<Incoming, Error> {
    let _ = (stream, early, patience);
    Err(Error::Unsupported("not yet"))
}

/// Connects to `address` with at most 500 bytes of private data; returns the peer's private data as well.
///
/// # Errors
/// [`Error::Connect`], [`Error::Rejected`], [`Error::Setup`], [`Error::TimedOut`].
pub async fn connect(
    address: SocketAddr,
    private_data: &[u8],
    options: &Options,
) -> Result<(QueuePair, Vec<u8>), Error> {
    let _ = (address, private_data, options);
    Err(Error::Unsupported("not yet"))
}

/// Listens for connections of one kind only. Accepting them is up to [`Incoming`].
pub struct Listener {
    listener: TcpListener,
    patience: Duration,
}

impl Listener {
    /// Listens at `address` for software iWARP.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(address, ListenOptions::default())?;
        Ok(Self { listener, patience: Duration::from_secs(10) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        Ok(self.listener.local_addr()?)
    }

    /// The next connection that asks to be accepted. One that asks nothing within 10 s is dropped.
    ///
    /// # Errors
    /// Those of accept(2), which may pass.
    pub async fn accept(&mut self) -> Result<Incoming, Error> {
        let stream = self.listener.accept().await?;
        accept(stream, Vec::new(), self.patience).await
    }
}
