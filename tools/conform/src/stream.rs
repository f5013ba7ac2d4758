//! A TCP connection that ends every wait in time, and keeps the bytes that have come.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::lost::Lost;

/// Maximum bytes per receive.
const RECEIVE: usize = 64 << 10;

pub(crate) struct Stream {
    socket: TcpStream,
    /// The bytes that nobody has taken yet.
    pub received: Vec<u8>,
}

impl Stream {
    /// Connects within `limit`. A send ends within `send`.
    pub fn connect(address: SocketAddr, limit: Duration, send: Duration) -> Result<Self, Lost> {
        let connecting = || -> io::Result<TcpStream> {
            let socket = TcpStream::connect_timeout(&address, limit.max(Duration::from_millis(1)))?;
            socket.set_nodelay(true)?;
            socket.set_write_timeout(Some(send))?;
            Ok(socket)
        };
        let socket = connecting().map_err(|error| Lost::NotConnected(error.to_string()))?;
        Ok(Self { socket, received: Vec::new() })
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.socket.write_all(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Lost::NotReading,
            _ => Lost::Closed,
        })
    }

    /// Receives more bytes, at the latest at `until`.
    pub fn more(&mut self, until: Instant) -> Result<(), Lost> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Lost::Silent);
        }
        let at = self.received.len();
        self.received.resize(at + RECEIVE, 0);
        let got = self
            .socket
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .and_then(|()| self.socket.read(self.received.get_mut(at..).unwrap_or_default()));
        self.received.truncate(at + got.as_ref().map_or(0, |got| *got));
        match got {
            Ok(0) => Err(Lost::Closed),
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(Lost::Silent),
                _ => Err(Lost::Closed),
            },
        }
    }
}
