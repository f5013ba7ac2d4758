//! RPC over TCP, with record marks (RFC 5531 §11).

use std::net::SocketAddr;
use std::time::Duration;

use rpc::record::{Cutter, Limits, Piece};
use rpc::xdr::padding;
use runtime::{Gather, Keepalive, PathOptions, TcpStream};

use crate::message::{Message, Received};
use crate::options::Options;

/// Bytes per receive.
const RECEIVE: usize = 64 << 10;
/// The most fragments of a reply. libtirpc sends several, of 8 KiB or more.
const MAX_FRAGMENTS: u32 = 1 << 12;
/// When a server that vanished is noticed.
pub(super) const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), count: 3 };

/// A connection.
pub(crate) struct Link(TcpStream);

/// The socket options of a connection.
pub(super) fn path(options: &Options) -> PathOptions {
    PathOptions { reserved_port: options.reserved_port, ..PathOptions::default() }
}

impl Link {
    /// Connects.
    pub async fn connect(address: SocketAddr, options: &Options) -> Result<Self, String> {
        let connected = TcpStream::connect_over(address, options.connect_timeout, &path(options)).await;
        let stream = connected.map_err(|error| error.to_string())?;
        stream.set_keepalive(Some(KEEPALIVE)).map_err(|error| error.to_string())?;
        Ok(Link(stream))
    }

    /// Sends messages.
    pub async fn send(&self, messages: impl Iterator<Item = Message>) -> Result<(), String> {
        let mut gather = Gather::new();
        for message in messages {
            let padding = padding(message.payload.len());
            gather.push(message.head.into());
            gather.push_chain(message.payload);
            gather.push_copy(padding);
        }
        self.0.send(gather).await.0.map_err(|error| error.to_string())
    }

    /// Gives each message of at most `limit` bytes to `take`. Holds at most one that is not whole.
    /// Returns how the connection ended.
    pub async fn receive(
        &self,
        limit: usize,
        mut take: impl FnMut(Received) -> Result<(), String>,
    ) -> String {
        let mut cutter = Cutter::new(Limits { record: limit, fragments: MAX_FRAGMENTS });
        let mut message = Vec::new();
        loop {
            let bytes = match self.0.recv_some(RECEIVE).await {
                Ok(bytes) if bytes.is_empty() => return "the server closed the connection".to_owned(),
                Ok(bytes) => bytes,
                Err(error) => return error.to_string(),
            };
            let mut input = &bytes[..];
            loop {
                match cutter.next_piece(&mut input) {
                    Ok(None) => break,
                    Ok(Some(Piece::Data(piece))) => {
                        message.reserve_exact(piece.len() + cutter.fragment_left());
                        message.extend_from_slice(piece);
                    }
                    Ok(Some(Piece::End)) => {
                        if let Err(why) = take(Received::Record(std::mem::take(&mut message).into())) {
                            return why;
                        }
                    }
                    Err(error) => return error.to_string(),
                }
            }
        }
    }
}
