//! Socket system calls in a simulated world. `None` outside of a world, or for a descriptor that is
//! no simulated socket: the caller then makes the kernel's call.
//!
//! Arguments and errors are those of the call of the same name.

use std::io;
use std::os::fd::RawFd;

use super::with;
use crate::net::RawAddr;

/// The pieces of memory of a message.
///
/// # Safety
/// The header's vectors are valid.
unsafe fn pieces<'a>(header: *const libc::msghdr) -> &'a [libc::iovec] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts((*header).msg_iov, (*header).msg_iovlen) }
}

/// recvmsg(2) with MSG_DONTWAIT.
///
/// # Safety
/// The header's vectors point to memory that may be written.
pub(crate) unsafe fn recvmsg(fd: RawFd, header: *mut libc::msghdr) -> Option<io::Result<usize>> {
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(header) };
    with(|state, _| {
        let id = state.net.id(fd)?;
        Some(state.receive(id, pieces, false))
    })?
}

/// recv(2) with MSG_DONTWAIT.
///
/// # Safety
/// `ptr` may be written for `len` bytes. A null pointer discards the bytes.
pub(crate) unsafe fn recv(fd: RawFd, ptr: *mut u8, len: usize) -> Option<io::Result<usize>> {
    let piece = [libc::iovec { iov_base: ptr.cast(), iov_len: len }];
    with(|state, _| {
        let id = state.net.id(fd)?;
        Some(state.receive(id, &piece, false))
    })?
}

/// sendmsg(2) with MSG_DONTWAIT.
///
/// # Safety
/// The header's vectors point to memory that may be read.
pub(crate) unsafe fn sendmsg(fd: RawFd, header: *const libc::msghdr) -> Option<io::Result<usize>> {
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(header) };
    with(|state, _| {
        let id = state.net.id(fd)?;
        Some(state.send(id, pieces, 0))
    })?
}

/// FIONREAD: bytes received and not read.
pub(crate) fn pending(fd: RawFd) -> Option<usize> {
    with(|state, _| state.net.id(fd).map(|id| state.net.pending(id)))?
}

/// shutdown(2).
pub(crate) fn shutdown(fd: RawFd, how: libc::c_int) -> Option<()> {
    with(|state, _| {
        let id = state.net.id(fd)?;
        state.shut(id, how != libc::SHUT_WR, how != libc::SHUT_RD);
        Some(())
    })?
}

/// SO_LINGER with zero seconds: closing the socket resets its connection.
pub(crate) fn linger_not(fd: RawFd) -> Option<()> {
    with(|state, _| state.net.id(fd).map(|id| state.net.resets_when_closed(id)))?
}

/// socket(2).
pub(crate) fn socket() -> Option<io::Result<RawFd>> {
    with(|state, core| state.net.socket(core))
}

/// Whether the descriptor is a simulated socket.
pub(crate) fn is_simulated(fd: RawFd) -> bool {
    with(|state, _| state.net.has(fd)).unwrap_or(false)
}

/// bind(2) and listen(2).
pub(crate) fn listen(fd: RawFd, addr: &RawAddr) -> Option<io::Result<()>> {
    with(|state, _| {
        let id = state.net.id(fd)?;
        Some(addr.parse().and_then(|addr| state.net.listen(id, addr)))
    })?
}

/// getsockname(2), or getpeername(2).
pub(crate) fn address(fd: RawFd, of_peer: bool) -> Option<io::Result<std::net::SocketAddr>> {
    with(|state, _| state.net.id(fd).map(|id| state.net.address(id, of_peer)))?
}

/// The most bytes that a connection has in flight, each way.
pub(crate) fn window() -> Option<usize> {
    with(|state, _| state.net.window())
}

/// Wakes the core that owns a mailbox. Returns false outside of a world.
pub(crate) fn wake(mailbox: u16) -> bool {
    with(|state, _| state.mail(mailbox)).is_some()
}
