//! RPC over TCP, with record marks (RFC 5531 §11).

use std::net::SocketAddr;
use std::time::Duration;

use rpc::record::{Cutter, Limits, Piece};
use rpc::xdr::padding;
use runtime::{Bytes, Chain, Destination, Gather, Keepalive, PathOptions, Scatter, TcpStream, pool};

use crate::message::{Message, Received, Record};
use crate::options::Options;

/// Bytes per receive.
const RECEIVE: usize = 64 << 10;
/// The most fragments of a reply. libtirpc sends several, of 8 KiB or more.
const MAX_FRAGMENTS: u32 = 1 << 12;
/// Bytes of a reply received in one piece, at most: more than precede the data of a READ.
const HEAD: usize = 1 << 10;
/// Length from which on the rest of a reply is received directly into the buffers that keep it.
const DIRECT: usize = 32 << 10;
/// Keepalive by which a vanished server is noticed.
pub(super) const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), count: 3 };

/// Why a connection has ended.
const CLOSED: &str = "the server closed the connection";

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

    /// Passes each message of at most `limit` bytes to `take`. Holds at most one incomplete
    /// message. Returns the reason why the connection ended.
    pub async fn receive(
        &self,
        limit: usize,
        mut take: impl FnMut(Received) -> Result<(), String>,
    ) -> String {
        let mut cutter = Cutter::new(Limits { record: limit, fragments: MAX_FRAGMENTS });
        let mut record = Record::default();
        loop {
            let rest = cutter.fragment_left();
            let direct = (record.bytes.len() >= HEAD && rest >= DIRECT).then(|| buffers(rest)).flatten();
            let received = match direct {
                Some(buffers) => {
                    self.fill(buffers, &mut cutter, &mut record.apart).await.map(|()| Bytes::new())
                }
                None => match self.0.recv_some(RECEIVE).await {
                    Ok(bytes) if bytes.is_empty() => Err(CLOSED.to_owned()),
                    other => other.map_err(|error| error.to_string()),
                },
            };
            let bytes = match received {
                Ok(bytes) => bytes,
                Err(why) => return why,
            };
            let mut input = &bytes[..];
            loop {
                match cutter.next_piece(&mut input) {
                    Ok(None) => break,
                    Ok(Some(Piece::Data(piece))) => {
                        // Small pieces do not become buffers of their own, however many there are.
                        record.join();
                        record.bytes.reserve_exact(piece.len() + cutter.fragment_left().min(DIRECT));
                        record.bytes.extend_from_slice(piece);
                    }
                    Ok(Some(Piece::End)) => {
                        if let Err(why) = take(Received::Record(std::mem::take(&mut record))) {
                            return why;
                        }
                    }
                    Err(error) => return error.to_string(),
                }
            }
        }
    }

    /// Receives as much of a fragment as `buffers` hold, and appends them to `to`.
    async fn fill(&self, buffers: Scatter, cutter: &mut Cutter, to: &mut Chain) -> Result<(), String> {
        let len = buffers.len();
        let (received, mut buffers) = self.0.recv_into(buffers, len).await;
        if received.map_err(|error| error.to_string())? < len {
            return Err(CLOSED.to_owned());
        }
        for filled in buffers.take() {
            let Destination::Pool { buf, .. } = filled else { continue };
            let bytes = buf.freeze_bytes();
            // These bytes did not pass the cutter.
            let mut input = &bytes[..];
            cutter.next_piece(&mut input).map_err(|error| error.to_string())?;
            to.push(bytes);
        }
        Ok(())
    }
}

/// Buffers for so many bytes, if the pool has them.
fn buffers(len: usize) -> Option<Scatter> {
    let mut buffers = Scatter::new();
    for at in (0..len).step_by(pool::MAX_ALLOC) {
        buffers.push(pool::alloc((len - at).min(pool::MAX_ALLOC))?);
    }
    Some(buffers)
}
