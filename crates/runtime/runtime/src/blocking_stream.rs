//! [`BlockingStream`]: a TCP connection for a thread that is not a core.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::sim;

/// The shortest timeout of a socket: zero would be none.
const LEAST: Duration = Duration::from_millis(1);

/// A TCP connection whose calls block, each with a time limit. It needs no ring. In a simulated
/// world it waits in virtual time, on a thread that has no [`crate::Runtime`].
#[derive(Debug)]
pub struct BlockingStream(Socket);

#[derive(Debug)]
enum Socket {
    Kernel(TcpStream),
    World(sim::Socket),
}

/// The error of a call that reached its time limit.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl BlockingStream {
    /// Connects within `limit`, without Nagle's algorithm.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(to: SocketAddr, limit: Duration) -> io::Result<Self> {
        if let Some(connected) = sim::Socket::connect(to, limit) {
            return Ok(Self(Socket::World(connected?)));
        }
        let socket = TcpStream::connect_timeout(&to, limit.max(LEAST))?;
        socket.set_nodelay(true)?;
        Ok(Self(Socket::Kernel(socket)))
    }

    /// Sends all of `bytes`. The peer may let each part of them wait for `limit`.
    ///
    /// # Errors
    /// `TimedOut`, and those of send(2). The peer may have got a part.
    pub fn send(&mut self, bytes: &[u8], limit: Duration) -> io::Result<()> {
        match &mut self.0 {
            Socket::Kernel(socket) => {
                socket.set_write_timeout(Some(limit.max(LEAST)))?;
                socket.write_all(bytes).map_err(timed_out)
            }
            Socket::World(socket) => socket.send(bytes, limit),
        }
    }

    /// Receives up to `room.len()` bytes within `limit`; 0 at the end of the stream.
    ///
    /// # Errors
    /// `TimedOut`, and those of recv(2).
    pub fn receive(&mut self, room: &mut [u8], limit: Duration) -> io::Result<usize> {
        match &mut self.0 {
            Socket::Kernel(socket) => {
                socket.set_read_timeout(Some(limit.max(LEAST)))?;
                socket.read(room).map_err(timed_out)
            }
            Socket::World(socket) => socket.receive(room, limit),
        }
    }
}
