//! The server's side of the conversation: Entity Status Inquiries and State Change Notifications
//! that it sends to a port of ours (RFC 4171 §5.7.5.13, §5.7.5.8). All is answered; notices mean
//! nothing to a target, so that they are only logged.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use isns::{Function, Joiner, Message, Status};

/// Connections at once; one more takes the oldest one's place.
const MAX: usize = 8;
/// Reads of a connection in one call, of [`PIECE`] bytes at most: a peer that sends without end
/// must not keep the agent from its registration.
const READS: usize = 16;
const PIECE: usize = 4096;

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

    /// Whether it listens at `ip`.
    pub fn is_at(&self, ip: IpAddr) -> bool {
        self.address().is_ok_and(|address| address.ip() == ip)
    }

    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd())
            .chain(self.streams.iter().map(|(stream, _)| stream.as_fd()))
            .collect()
    }

    /// Answers what has come, up to a bound.
    pub fn serve(&mut self) {
        for _ in 0..MAX {
            let Ok((stream, peer)) = self.listener.accept() else { break };
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

/// Answers messages that have arrived on a connection; false at its end.
fn answer(stream: &mut TcpStream, joiner: &mut Joiner) -> io::Result<bool> {
    let mut piece = [0; PIECE];
    for _ in 0..READS {
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
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_peer_that_floods_the_port_is_served_piece_by_piece() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut inquiries = Inquiries::listen(ip).unwrap();
        assert!(inquiries.is_at(ip) && !inquiries.is_at(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let mut peer = TcpStream::connect(inquiries.address().unwrap()).unwrap();
        // Responses are dropped; the request behind them is answered.
        let request = isns::query::targets("iqn.2026-01.org.example:i", 7);
        let response = Message::answer(&request, Status::Success).encode();
        let count = (READS + 1) * PIECE / response.len();
        peer.write_all(&response.repeat(count)).unwrap();
        peer.write_all(&request.encode()).unwrap();
        peer.set_nonblocking(true).unwrap();
        inquiries.serve();
        let mut answer = [0; 256];
        assert_eq!(peer.read(&mut answer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let answered = (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            inquiries.serve();
            peer.read(&mut answer).is_ok_and(|len| len > 0)
        });
        assert!(answered);
    }
}
