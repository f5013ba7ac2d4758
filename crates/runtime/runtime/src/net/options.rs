//! Socket options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::addr::RawAddr;
use crate::sim::calls;

/// Parameters of TCP keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe; whole seconds, at least one.
    pub idle: Duration,
    /// Time between probes; whole seconds, at least one.
    pub interval: Duration,
    /// Unanswered probes after which the connection is lost.
    pub count: u32,
}

/// Sets one numeric option.
pub(super) fn set(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    if calls::is_simulated(fd.as_raw_fd()) {
        return Ok(());
    }
    // SAFETY: the value outlives the call, and its length is its own.
    let rc = unsafe {
        let value = &raw const value;
        libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), size_of::<i32>() as libc::socklen_t)
    };
    check(rc).map(drop)
}

pub(super) fn set_keepalive(fd: BorrowedFd<'_>, keepalive: Option<Keepalive>) -> io::Result<()> {
    let Some(keepalive) = keepalive else { return set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0) };
    let seconds = |d: Duration| i32::try_from(d.as_secs().max(1)).unwrap_or(i32::MAX);
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(keepalive.idle))?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(keepalive.interval))?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, i32::try_from(keepalive.count).unwrap_or(i32::MAX))?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
}

/// Turns -1 into the error in `errno`.
pub(crate) fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// A TCP socket for an address's family. Blocking as the kernel sees it: the ring waits by itself.
pub(super) fn socket(addr: &RawAddr) -> io::Result<OwnedFd> {
    if let Some(fd) = calls::socket() {
        // SAFETY: it was made for this call.
        return fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    }
    // SAFETY: takes numbers only, and the descriptor it returns is ours alone.
    unsafe {
        let fd =
            check(libc::socket(addr.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Makes a socket non-blocking, or blocking. The ring's sends and receives wait either way.
pub(crate) fn set_nonblocking(fd: &impl AsRawFd, on: bool) -> io::Result<()> {
    if calls::is_simulated(fd.as_raw_fd()) {
        return Ok(());
    }
    let mut on = libc::c_int::from(on);
    // SAFETY: the kernel reads one number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &raw mut on) }).map(drop)
}

pub(super) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    if let Some(addr) = calls::address(fd.as_raw_fd(), false) {
        return addr;
    }
    let mut addr = RawAddr::empty();
    let (ptr, len) = addr.parts_mut();
    // SAFETY: the kernel writes at most `len` bytes, which is the storage's size.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), ptr, len) })?;
    addr.parse()
}

pub(super) fn peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    if let Some(addr) = calls::address(fd.as_raw_fd(), true) {
        return addr;
    }
    let mut addr = RawAddr::empty();
    let (ptr, len) = addr.parts_mut();
    // SAFETY: the kernel writes at most `len` bytes, which is the storage's size.
    check(unsafe { libc::getpeername(fd.as_raw_fd(), ptr, len) })?;
    addr.parse()
}
