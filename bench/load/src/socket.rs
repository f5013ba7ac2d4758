//! Sockets like those of the targets within a machine: unpaced. A congestion control that paces, as
//! the system's may, arms a timer for every 64 KiB, and that would be measured instead of the
//! target.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::error::LoadError;

/// Connects to `portal` (`HOST:PORT`): to the first of its addresses that accepts.
///
/// # Errors
/// The last address's, and that of a name that has none.
pub fn connect(portal: &str) -> Result<TcpStream, LoadError> {
    let io = |error| LoadError::Io("connecting", error);
    let mut failed = std::io::ErrorKind::AddrNotAvailable.into();
    for address in portal.to_socket_addrs().map_err(io)? {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let connected =
            rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))
                .and_then(|socket| {
                    if address.ip().is_loopback() {
                        unpaced(&socket);
                    }
                    rustix::net::connect(&socket, &address).map(|()| socket)
                });
        match connected {
            Ok(socket) => return Ok(socket.into()),
            Err(errno) => failed = errno.into(),
        }
    }
    Err(io(failed))
}

/// Disables pacing of `socket`. Before it connects or accepts: pacing that has begun does not end.
pub fn unpaced(socket: impl AsFd) {
    // `reno` is in every kernel, and any process may use it. If it cannot be set, the system's
    // pacing is measured too.
    let _ = sockopt::set_tcp_congestion(socket, "reno");
}
