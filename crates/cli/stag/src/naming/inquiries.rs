//! The server's side of the conversation: Entity Status Inquiries and State Change Notifications
//! that it sends to a port of ours (RFC 4171 §5.7.5.13, §5.7.5.8). All is answered; notices mean
//! nothing to a target, so that they are only logged.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use isns::{Function, Joiner, Message, Status};

/// Connections at once; one more takes the oldest one's place.
const MAX: usize = 8;

/// A port that answers.
pub struct Inquiries {
    listener: TcpListener,
    streams: Vec<(TcpStream, Joiner)>,
}

impl Inquiries {
    /// Listens at a free port of `ip`.
    pub fn listen(ip: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, streams: Vec::new() })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd())
            .chain(self.streams.iter().map(|(stream, _)| stream.as_fd()))
            .collect()
    }

    /// Answers all that has come.
    pub fn serve(&mut self) {
        while let Ok((stream, peer)) = self.listener.accept() {
            tracing::debug!(%peer, "the iSNS server inquires");
            if stream.set_nonblocking(true).is_ok() {
                if self.streams.len() >= MAX {
                    self.streams.remove(0);
                }
                self.streams.push((stream, Joiner::new()));
            }
        }
        self.streams.retain_mut(|(stream, joiner)| match answer(stream, joiner) {
            Ok(open) => open,
            Err(error) => {
                tracing::debug!(%error, "an inquiry of the iSNS server");
                false
            }
        });
    }
}

/// Answers the messages that have arrived on a connection; false at its end.
fn answer(stream: &mut TcpStream, joiner: &mut Joiner) -> io::Result<bool> {
    let mut piece = [0; 4096];
    loop {
        let len = match stream.read(&mut piece) {
            Ok(0) => return Ok(false),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        joiner.feed(&piece[..len]).map_err(io::Error::other)?;
        while let Some(message) = joiner.next_message().map_err(io::Error::other)? {
            if message.is_response() {
                continue;
            }
            let status = match message.function() {
                Some(Function::Esi | Function::Scn | Function::Heartbeat) => Status::Success,
                _ => Status::NotSupported,
            };
            tracing::debug!(function = message.function, %status, "answered the iSNS server");
            // Some hundred bytes fit into an empty send buffer. If not, the peer misbehaves.
            stream.write_all(&Message::answer(&message, status).encode())?;
        }
    }
}
