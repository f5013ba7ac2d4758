//! The transport of one connection: messages of RPC in both directions, over TCP with record marks
//! (RFC 5531 §11). It knows no calls. Another transport replaces this file.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rpc::record::{Cutter, Limits, Piece};
use rpc::xdr::padding;
use runtime::{Chain, Gather, Keepalive, PathOptions, TcpStream};

use crate::options::Options;

/// Bytes per receive.
const RECEIVE: usize = 64 << 10;
/// The most fragments of a reply. libtirpc sends several, of 8 KiB or more.
const MAX_FRAGMENTS: u32 = 1 << 12;

/// A message to send: its record mark, header and arguments, then the payload of a WRITE.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Everything before the payload, with a mark that counts the payload and its padding.
    pub head: Vec<u8>,
    /// The payload, without padding.
    pub payload: Chain,
}

/// A connection.
pub(crate) struct Link(TcpStream);

impl Link {
    /// Connects, to the first of the addresses that accepts.
    pub async fn connect(addresses: &[SocketAddr], options: &Options) -> io::Result<Self> {
        let path = PathOptions { reserved_port: options.reserved_port, ..PathOptions::default() };
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_over(*address, options.connect_timeout, &path).await {
                Ok(stream) => {
                    let keepalive = Keepalive {
                        idle: Duration::from_secs(10),
                        interval: Duration::from_secs(5),
                        count: 3,
                    };
                    stream.set_keepalive(Some(keepalive))?;
                    return Ok(Link(stream));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Sends messages. After an error the link is of no more use.
    pub async fn send(&self, messages: impl Iterator<Item = Message>) -> io::Result<()> {
        let mut gather = Gather::new();
        for message in messages {
            let padding = padding(message.payload.len());
            gather.push(message.head.into());
            gather.push_chain(message.payload);
            gather.push_copy(padding);
        }
        self.0.send(gather).await.0
    }

    /// What takes received messages of at most `limit` bytes apart.
    pub fn receiver(&self, limit: usize) -> Receiver<'_> {
        let limits = Limits { record: limit, fragments: MAX_FRAGMENTS };
        Receiver { stream: &self.0, cutter: Cutter::new(limits), message: Vec::new() }
    }
}

/// The receiving side of a [`Link`]. It holds at most one message that is not whole.
pub(crate) struct Receiver<'l> {
    stream: &'l TcpStream,
    cutter: Cutter,
    message: Vec<u8>,
}

impl Receiver<'_> {
    /// Waits for messages, and gives each to `take`.
    ///
    /// # Errors
    /// How the connection ended.
    pub async fn receive(&mut self, mut take: impl FnMut(Vec<u8>) -> Result<(), String>) -> String {
        loop {
            let bytes = match self.stream.recv_some(RECEIVE).await {
                Ok(bytes) if bytes.is_empty() => return "the server closed the connection".to_owned(),
                Ok(bytes) => bytes,
                Err(error) => return error.to_string(),
            };
            let mut input = &bytes[..];
            loop {
                match self.cutter.next_piece(&mut input) {
                    Ok(None) => break,
                    Ok(Some(Piece::Data(piece))) => {
                        self.message.reserve_exact(piece.len() + self.cutter.fragment_left());
                        self.message.extend_from_slice(piece);
                    }
                    Ok(Some(Piece::End)) => {
                        if let Err(why) = take(std::mem::take(&mut self.message)) {
                            return why;
                        }
                    }
                    Err(error) => return error.to_string(),
                }
            }
        }
    }
}
