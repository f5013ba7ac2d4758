//! A TCP connection that ends every wait in time, and keeps the bytes that have come.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use runtime::BlockingStream;

use crate::lost::Lost;

/// Maximum bytes per receive.
const RECEIVE: usize = 64 << 10;

pub(crate) struct Stream {
    socket: BlockingStream,
    /// The time for each part of a send.
    send: Duration,
    /// The bytes received and not yet consumed.
    pub received: Vec<u8>,
}

impl Stream {
    /// Connects within `limit`. A send ends within `send`.
    pub fn connect(address: SocketAddr, limit: Duration, send: Duration) -> Result<Self, Lost> {
        let socket = BlockingStream::connect(address, limit);
        let socket = socket.map_err(|error| Lost::NotConnected(error.to_string()))?;
        Ok(Self { socket, send, received: Vec::new() })
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.socket.send(bytes, self.send).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Lost::NotReading,
            _ => Lost::Closed,
        })
    }

    /// Receives more bytes, at the latest at `until`.
    pub fn more(&mut self, until: Instant) -> Result<(), Lost> {
        let left = until.saturating_duration_since(runtime::clock());
        if left.is_zero() {
            return Err(Lost::Silent);
        }
        let at = self.received.len();
        self.received.resize(at + RECEIVE, 0);
        let got = self.socket.receive(self.received.get_mut(at..).unwrap_or_default(), left);
        self.received.truncate(at + got.as_ref().map_or(0, |got| *got));
        match got {
            Ok(0) => Err(Lost::Closed),
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                io::ErrorKind::TimedOut => Err(Lost::Silent),
                _ => Err(Lost::Closed),
            },
        }
    }
}
