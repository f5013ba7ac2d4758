//! One conversation with an iSNS server over TCP: requests and their answers, with a time limit for
//! each.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use isns::query::{self, Found};
use isns::{Joiner, Malformed, Message, Numbers, Status};

/// Time for the server to take a connection, and for each of its answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why a request to the server failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Not reached, or lost.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the iSNS server says: {}", show(.0))]
    Refused(u32),
    /// The server sent an invalid message.
    #[error("the iSNS server sends nonsense: {0}")]
    Malformed(#[from] Malformed),
}

fn show(status: &u32) -> String {
    Status::from_code(*status).map_or_else(|| format!("status {status}"), |status| status.to_string())
}

/// A connection to a server.
pub struct Link {
    stream: TcpStream,
    joiner: Joiner,
    numbers: Numbers,
}

impl Link {
    /// Connects to `HOST:PORT`.
    pub fn connect(server: &str) -> Result<Self, LinkError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        for address in server.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    return Ok(Self { stream, joiner: Joiner::new(), numbers: Numbers::default() });
                }
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    /// This machine's address on the connection to the server.
    pub fn local(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Sends a request, made with a number for it, and waits for its answer; its status must be
    /// success.
    pub fn ask(&mut self, make: impl FnOnce(u16) -> Option<Message>) -> Result<Message, LinkError> {
        let number = self.numbers.next_id();
        let Some(request) = make(number) else { return Err(Malformed::Missing("the source").into()) };
        self.stream.write_all(&request.encode())?;
        let deadline = Instant::now() + PATIENCE;
        let mut piece = [0; 16 << 10];
        loop {
            while let Some(message) = self.joiner.next_message()? {
                // Skips answers to earlier requests that timed out, and unsolicited messages.
                if !message.is_response() || message.transaction != number {
                    continue;
                }
                return match message.response()?.0 {
                    0 => Ok(message),
                    status => Err(LinkError::Refused(status)),
                };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(len) => self.joiner.feed(&piece[..len])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Asks a server for all targets, as initiator `source`. Blocks.
pub fn discover(server: &str, source: &str) -> Result<Vec<Found>, LinkError> {
    let mut link = Link::connect(server)?;
    match link.ask(|number| Some(query::targets(source, number))) {
        Ok(answer) => Ok(query::found(&answer)?),
        // The server only answers registered nodes: registers the initiator for the duration of the
        // query.
        Err(LinkError::Refused(status))
            if matches!(
                Status::from_code(status),
                Some(Status::SourceUnknown | Status::SourceUnauthorized)
            ) =>
        {
            link.ask(|number| Some(query::register_initiator(source, source, number)))?;
            let answer = link.ask(|number| Some(query::targets(source, number)));
            if let Err(error) = link.ask(|number| Some(query::deregister_initiator(source, source, number))) {
                tracing::debug!(%error, "the initiator stays registered until its time is up");
            }
            Ok(query::found(&answer?)?)
        }
        Err(error) => Err(error),
    }
}

/// The portal's address for hosts that reach this machine at `local`. A wildcard becomes `local`;
/// `None` for an address that is only valid on this machine or one link.
pub fn reachable(portal: SocketAddr, local: IpAddr) -> Option<SocketAddr> {
    let ip = match portal.ip() {
        ip if ip.is_unspecified() => local,
        ip => ip.to_canonical(),
    };
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let fits = !link_local && (!ip.is_loopback() || local.is_loopback());
    fits.then(|| SocketAddr::new(ip, portal.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_others_reach_are_registered() {
        let seen = |portal: &str, local: &str| {
            reachable(portal.parse().unwrap(), local.parse().unwrap()).map(|address| address.to_string())
        };
        assert_eq!(seen("0.0.0.0:3260", "192.0.2.1").as_deref(), Some("192.0.2.1:3260"));
        assert_eq!(seen("[::]:3260", "2001:db8::1").as_deref(), Some("[2001:db8::1]:3260"));
        assert_eq!(seen("198.51.100.1:1", "192.0.2.1").as_deref(), Some("198.51.100.1:1"));
        assert_eq!(seen("127.0.0.1:1", "192.0.2.1"), None);
        assert_eq!(seen("127.0.0.1:1", "127.0.0.1").as_deref(), Some("127.0.0.1:1"));
        assert_eq!(seen("[fe80::1%2]:1", "2001:db8::1"), None);
    }
}
