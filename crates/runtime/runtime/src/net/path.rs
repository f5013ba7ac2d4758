//! Socket options for the path of a TCP connection ([`PathOptions`]), and the kernel's information
//! about it ([`TcpInfo`], [`SystemLimits`]). This module decides nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::addr::RawAddr;
use super::options::{check, set};
use crate::sim::calls;

/// Ports that only root may use, and that Linux's own NFS client uses.
const RESERVED: RangeInclusive<u16> = 665..=1023;

/// Options that a socket gets before it connects. `None` leaves the choice to the system, which for
/// buffers means that they grow with use, up to [`SystemLimits::send_auto`] and
/// [`SystemLimits::recv_auto`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathOptions {
    /// Bytes in flight or queued, at most (SO_SNDBUF; the kernel doubles it for its own overhead).
    /// A fixed size: the buffer grows no more.
    pub send_buffer: Option<usize>,
    /// Bytes that the peer may have in flight (SO_RCVBUF; the kernel doubles it). A fixed size.
    pub recv_buffer: Option<usize>,
    /// Congestion control by its name in the kernel: `bbr`, `cubic`, `reno`… (TCP_CONGESTION).
    /// `None` within the machine is one that does not pace.
    pub congestion: Option<String>,
    /// Connect from a port below 1024, where this process may: servers of NFS can ask for that.
    /// Else the system chooses one.
    pub reserved_port: bool,
}

impl PathOptions {
    /// Sets all given options, to reach `peer`. Before connect(2): the first segment carries the
    /// window scale.
    pub(super) fn apply(&self, fd: BorrowedFd<'_>, peer: IpAddr) -> io::Result<()> {
        let number = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        if let Some(bytes) = self.send_buffer {
            set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, number(bytes))?;
        }
        if let Some(bytes) = self.recv_buffer {
            set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, number(bytes))?;
        }
        if self.reserved_port {
            bind_reserved(fd, peer)?;
        }
        match &self.congestion {
            Some(name) => set_congestion(fd, name).map_err(|error| {
                io::Error::new(error.kind(), format!("congestion control `{name}`: {error}"))
            }),
            None => {
                if peer.is_loopback() {
                    unpaced(fd);
                }
                Ok(())
            }
        }
    }
}

/// Binds a socket that will connect to `peer` to a free port that only root may use. If this
/// process may not, or none is free, the socket stays as it is.
fn bind_reserved(fd: BorrowedFd<'_>, peer: IpAddr) -> io::Result<()> {
    if calls::is_simulated(fd.as_raw_fd()) {
        return Ok(());
    }
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    for port in RESERVED.rev() {
        let addr = RawAddr::new(SocketAddr::new(any, port));
        // SAFETY: the address outlives the call, and its length is its own.
        let bound = check(unsafe { libc::bind(fd.as_raw_fd(), addr.as_ptr(), addr.len()) });
        match bound.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::EACCES), _)) => return Ok(()),
            Err((Some(libc::EADDRINUSE), _)) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}

/// Disables pacing of a socket whose peer is on this machine, where there is no congestion. A
/// congestion control that paces, as `bbr` does, arms a timer for every 64 KiB there, which costs
/// more than sending them. `reno` is in every kernel and every process may use it. Best before
/// connect(2) and accept(2): pacing that has begun does not end, it only gets faster.
pub(super) fn unpaced(fd: BorrowedFd<'_>) {
    // On failure everything still works, at the system's pace.
    let _ = set_congestion(fd, "reno");
}

/// Whether data from `local` to `peer` never leaves the machine, as far as addresses can tell.
pub(super) fn within_machine(local: IpAddr, peer: IpAddr) -> bool {
    peer.is_loopback() || peer == local
}

/// ENOENT: the kernel has none of that name. EPERM: it is not among
/// `net.ipv4.tcp_allowed_congestion_control`.
pub(super) fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    if calls::is_simulated(fd.as_raw_fd()) {
        return Ok(());
    }
    // SAFETY: the kernel reads as many bytes as `len` gives, which are the name's.
    let rc = unsafe {
        let (value, len) = (name.as_ptr().cast(), name.len() as libc::socklen_t);
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, value, len)
    };
    check(rc).map(drop)
}

/// The name of a socket's congestion control.
pub(super) fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    // TCP_CA_NAME_MAX.
    let mut name = [0u8; 16];
    let len = get(fd, libc::TCP_CONGESTION, &mut name)?;
    let name = &name[..len.min(name.len())];
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Reads a TCP option. Returns the number of bytes that the kernel wrote.
fn get(fd: BorrowedFd<'_>, option: i32, into: &mut [u8]) -> io::Result<usize> {
    if calls::is_simulated(fd.as_raw_fd()) {
        return Ok(0);
    }
    let mut len = into.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which are the slice's.
    let rc = unsafe {
        let (value, len) = (into.as_mut_ptr().cast(), &raw mut len);
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, option, value, len)
    };
    check(rc)?;
    Ok(len as usize)
}

/// The kernel's information about a connection's path (TCP_INFO). Fields that the kernel does not
/// provide are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// The shortest recent round trip.
    pub min_rtt: Duration,
    /// Bytes of a segment that is sent, headers not counted.
    pub segment: u32,
    /// Segments that the congestion control allows in flight.
    pub congestion_window: u32,
    /// Segments retransmitted over the connection's life.
    pub retransmitted: u32,
    /// Segments sent, including retransmissions.
    pub sent: u32,
    /// Rate at which the peer acknowledged data recently, bytes a second.
    pub delivery_rate: u64,
    /// Time for which there was something to send.
    pub busy: Duration,
    /// The part of it for which the peer's window was the limit.
    pub limited_by_window: Duration,
    /// The part of it for which the send buffer was the limit.
    pub limited_by_buffer: Duration,
}

impl TcpInfo {
    /// Reads `struct tcp_info` of linux/tcp.h, as far as the kernel wrote it: newer kernels append
    /// fields.
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map_or(0, u32::from_ne_bytes)
        };
        let long = |at: usize| {
            let bytes = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        let micros = |us: u32| Duration::from_micros(us.into());
        Self {
            rtt: micros(word(68)),
            // The kernel gives all ones before the first measurement.
            min_rtt: micros(Some(word(148)).filter(|us| *us != u32::MAX).unwrap_or(0)),
            segment: word(16),
            congestion_window: word(80),
            retransmitted: word(100),
            sent: word(136),
            delivery_rate: long(160),
            busy: Duration::from_micros(long(168)),
            limited_by_window: Duration::from_micros(long(176)),
            limited_by_buffer: Duration::from_micros(long(184)),
        }
    }
}

/// The kernel's information about a socket's path.
pub(super) fn info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut bytes = [0; 256];
    let len = get(fd, libc::TCP_INFO, &mut bytes)?;
    Ok(TcpInfo::parse(&bytes[..len.min(bytes.len())]))
}

/// Limits of this machine for sockets, from /proc/sys/net.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemLimits {
    /// Limit of a send buffer's automatic growth, bytes (net.ipv4.tcp_wmem).
    pub send_auto: usize,
    /// Limit of a receive buffer's automatic growth, bytes (net.ipv4.tcp_rmem).
    pub recv_auto: usize,
    /// The largest [`PathOptions::send_buffer`] that the kernel accepts, bytes (net.core.wmem_max).
    pub send_max: usize,
    /// The largest [`PathOptions::recv_buffer`] that the kernel accepts, bytes (net.core.rmem_max).
    pub recv_max: usize,
    /// Default congestion control of connections.
    pub congestion: String,
    /// Congestion controls that any process may choose (net.ipv4.tcp_allowed_congestion_control).
    pub congestion_allowed: Vec<String>,
}

impl SystemLimits {
    /// Reads them. Values that cannot be read are zero or empty. It reads files: not for a data
    /// path.
    pub fn read() -> Self {
        if let Some(window) = calls::window() {
            // Limits of a simulated connection: buffers of twice its window, none of which grows.
            return Self { send_auto: window, recv_auto: 2 * window, ..Self::default() };
        }
        let text = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
        let number = |text: &str| text.trim().parse().unwrap_or(0);
        let last = |text: &str| text.split_whitespace().nth(2).map_or(0, number);
        Self {
            send_auto: last(&text("ipv4/tcp_wmem")),
            recv_auto: last(&text("ipv4/tcp_rmem")),
            // Missing outside the first network namespace: the first one's limits apply then, which
            // are unknown here.
            send_max: number(&text("core/wmem_max")),
            recv_max: number(&text("core/rmem_max")),
            congestion: text("ipv4/tcp_congestion_control").trim().to_owned(),
            congestion_allowed: text("ipv4/tcp_allowed_congestion_control")
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_a_kernel_did_not_write_is_zero() {
        assert_eq!(TcpInfo::parse(&[]), TcpInfo::default());
        let mut bytes = [0; 104];
        bytes[68..72].copy_from_slice(&23_000u32.to_ne_bytes());
        bytes[100..104].copy_from_slice(&7u32.to_ne_bytes());
        let info = TcpInfo::parse(&bytes);
        assert_eq!((info.rtt, info.retransmitted), (Duration::from_millis(23), 7));
        assert_eq!((info.min_rtt, info.delivery_rate), (Duration::ZERO, 0));
    }

    #[test]
    fn an_unknown_congestion_control_is_named_and_a_known_one_set() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = [192, 0, 2, 1].into();
        let own = congestion(socket.as_fd()).unwrap();
        assert!(!own.is_empty());
        let options = PathOptions { congestion: Some(own.clone()), ..PathOptions::default() };
        options.apply(socket.as_fd(), peer).unwrap();
        let options = PathOptions { congestion: Some("nobodys".into()), ..PathOptions::default() };
        let error = options.apply(socket.as_fd(), peer).unwrap_err().to_string();
        assert!(error.contains("nobodys"), "{error}");
    }

    #[test]
    fn a_connection_over_loopback_has_a_round_trip() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut two, _) = listener.accept().unwrap();
        one.write_all(b"x").unwrap();
        two.read_exact(&mut [0]).unwrap();
        two.write_all(b"y").unwrap();
        one.read_exact(&mut [0]).unwrap();
        let info = info(one.as_fd()).unwrap();
        assert!(info.rtt > Duration::ZERO && info.segment > 0, "{info:?}");
    }
}
