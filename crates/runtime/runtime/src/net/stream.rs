//! [`TcpStream`]: one connection.

use std::cell::Cell;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::{opcode, squeue, types};

use super::addr::RawAddr;
use super::options::{self, Keepalive, check, set};
use super::path::{self, PathOptions, TcpInfo};
use super::{Gather, Lender, Lent, Scatter};
use crate::buf::{Bytes, RegionRange, pool};
use crate::copies::{count_dropped, count_received, count_sent};
use crate::op::{Completion, IGNORED, Op, RECV_BUFFER, Watched, is_transient};
use crate::runtime::Core;
use crate::sim::calls;

/// Wait for data before the first try (IORING_RECVSEND_POLL_FIRST).
const POLL_FIRST: u16 = 1;

/// A TCP connection. Its operations run on the ring of the core that calls them.
///
/// One task may send while another receives; two sends (or two receives) at a time have no order,
/// and are the caller's mistake. Dropping the future of an operation cancels it: a send may have
/// gone out in part, and a receive may have taken bytes that are lost. So the caller can usually
/// only drop the stream then. Buffers of a cancelled operation return to their pool when the kernel
/// has released them.
///
/// Dropping the stream closes it after the operations submitted before; sent data still reaches the
/// peer.
pub struct TcpStream {
    /// `None` only while it is dropped.
    fd: Option<Watched>,
    /// Whether the last receive left something in the socket.
    more: Cell<bool>,
    /// Whether the socket was made non-blocking, as lending needs it. The ring's own operations
    /// wait on such a socket as on any other.
    nonblocking: Cell<bool>,
}

impl TcpStream {
    pub(super) fn from_accepted(fd: OwnedFd) -> Self {
        Self { fd: Some(Watched::new(fd)), more: Cell::new(true), nonblocking: Cell::new(false) }
    }

    /// Takes over a connected socket, such as one that was accepted on another core.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        options::set_nonblocking(&fd, false)?;
        Ok(Self::from_accepted(fd))
    }

    /// Connects to `addr`. Errors are those of connect(2), and `TimedOut` after `timeout`.
    /// TCP_NODELAY is set.
    pub async fn connect(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::connect_over(addr, timeout, &PathOptions::default()).await
    }

    /// As [`Self::connect`], with a socket that is set up for its path. Errors are those of
    /// setsockopt(2) too: ENOENT and EPERM for a congestion control that is not there or not
    /// allowed.
    pub async fn connect_over(addr: SocketAddr, timeout: Duration, path: &PathOptions) -> io::Result<Self> {
        let ip = addr.ip();
        let addr = Box::new(RawAddr::new(addr));
        let stream = Self::from_accepted(options::socket(&addr)?);
        stream.set_nodelay(true)?;
        path.apply(stream.fd().as_fd(), ip)?;
        let entry = opcode::Connect::new(stream.raw(), addr.as_ptr(), addr.len()).build();
        // SAFETY: the entry points to the boxed address, which the operation owns.
        let op = unsafe { Op::start(entry, addr) };
        let (completion, _) = crate::time::timeout(timeout, op).await?;
        completion.count()?;
        if path.congestion.is_none() {
            stream.unpaced_within_machine();
        }
        Ok(stream)
    }

    fn fd(&self) -> &OwnedFd {
        self.fd.as_ref().expect("there until it is dropped")
    }

    fn raw(&self) -> types::Fd {
        types::Fd(self.fd().as_raw_fd())
    }

    /// Waits until data has arrived and returns it, up to `max` bytes and at most 64 KiB; no bytes
    /// mean that the peer has sent its last. No buffer is tied up while it waits.
    ///
    /// The result pins a pool buffer of up to 64 KiB for as long as any slice of it lives: copy
    /// bytes that are kept for long. When the pool is exhausted this waits until buffers have come
    /// back.
    pub async fn recv_some(&self, max: usize) -> io::Result<Bytes> {
        let len = max.clamp(1, RECV_BUFFER) as u32;
        let mut refused = 0;
        loop {
            let entry = opcode::Recv::new(self.raw(), std::ptr::null_mut(), len);
            let entry = entry.buf_group(0).ioprio(self.ioprio()).build().flags(squeue::Flags::BUFFER_SELECT);
            // SAFETY: the entry points to nothing: the kernel chooses one of the provided buffers,
            // which are kept until it gives them back.
            let op = unsafe { Op::start(entry, ()) };
            let (completion, ()) = op.await;
            self.more.set(completion.socket_nonempty());
            match completion.count() {
                Ok(n) => {
                    count_received(n);
                    let Some(id) = completion.buffer() else { return Ok(Bytes::new()) };
                    return Ok(Core::current().provided.borrow_mut().take(id, n));
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.more.set(true);
                    wait_for_buffers().await;
                    refused += 1;
                    if refused > 2 {
                        // All buffers lie in receives that have ended and that no task has polled
                        // yet.
                        crate::time::sleep(Duration::from_micros(100)).await;
                    }
                }
                Err(e) => {
                    put_back(completion);
                    if !is_transient(&e) {
                        return Err(e);
                    }
                    self.after(&e, libc::POLLIN).await;
                }
            }
        }
    }

    /// Receives into `scatter`, in one system call if enough data is there, until at least
    /// `at_least` bytes have arrived (at least one, in any case). Returns the number of bytes:
    /// fewer than `at_least` mean that the peer has sent its last. Destinations are filled in
    /// order; [`Scatter::take`] returns them.
    pub async fn recv_into(&self, mut scatter: Scatter, at_least: usize) -> (io::Result<usize>, Scatter) {
        let at_least = at_least.min(scatter.len());
        let mut received = 0;
        while !scatter.is_empty() {
            let entry = scatter.entry(self.raw(), self.ioprio());
            // SAFETY: the entry points to memory that the scatter owns and that does not move with
            // it.
            let op = unsafe { Op::start(entry, scatter) };
            let (completion, back) = op.await;
            scatter = back;
            self.more.set(completion.socket_nonempty());
            match completion.count() {
                Ok(0) => break,
                Ok(n) => {
                    count_received(n);
                    scatter.advance(n);
                    received += n;
                    if received >= at_least {
                        break;
                    }
                }
                Err(e) if is_transient(&e) => self.after(&e, libc::POLLIN).await,
                Err(e) => return (Err(e), scatter),
            }
        }
        (Ok(received), scatter)
    }

    /// Receives available data into `scatter`, with a system call of its own that never waits,
    /// otherwise as [`Self::recv_into`] does. Errors are those of recvmsg(2), `WouldBlock` among
    /// them.
    pub fn try_recv_scatter(&self, scatter: &mut Scatter) -> io::Result<usize> {
        let room = scatter.len();
        let header = scatter.header();
        // SAFETY: the header points to memory that the scatter owns.
        let got = unsafe { self.recvmsg_now(room, header) }?;
        scatter.advance(got);
        Ok(got)
    }

    /// Receives up to `len` bytes and throws them away in the kernel, which copies nothing. Returns
    /// how many; none mean that the peer has sent its last.
    pub async fn discard(&self, len: usize) -> io::Result<usize> {
        let len = len.clamp(1, 1 << 30) as u32;
        loop {
            // recv(2): for a TCP socket, MSG_TRUNC takes the bytes without storing them. Not
            // together with MSG_WAITALL: after a short receive the ring continues at its iterator's
            // position, which does not move here.
            let entry = opcode::Recv::new(self.raw(), std::ptr::null_mut(), len);
            let entry = entry.flags(libc::MSG_TRUNC).ioprio(self.ioprio()).build();
            // SAFETY: nothing is written to the place that the entry names.
            let op = unsafe { Op::start(entry, ()) };
            let (completion, ()) = op.await;
            self.more.set(completion.socket_nonempty());
            match completion.count() {
                Ok(n) => {
                    count_dropped(n);
                    return Ok(n);
                }
                Err(e) if is_transient(&e) => self.after(&e, libc::POLLIN).await,
                Err(e) => return Err(e),
            }
        }
    }

    /// [`Self::discard`] of available data, with a system call of its own that never waits. Errors
    /// are those of recv(2), `WouldBlock` among them.
    pub fn try_discard(&self, len: usize) -> io::Result<usize> {
        let len = len.min(1 << 30);
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: recv(2): of a TCP socket, MSG_TRUNC takes the bytes without storing them.
        let got = self.now(len, |fd| unsafe {
            let null = std::ptr::null_mut();
            calls::recv(fd, null, len).unwrap_or_else(|| count(libc::recv(fd, null.cast(), len, flags)))
        })?;
        count_dropped(got);
        Ok(got)
    }

    /// Bytes that have come and that no receive has taken (SIOCINQ): a system call. 0 also when the
    /// peer has sent its last.
    pub fn pending(&self) -> io::Result<usize> {
        if let Some(bytes) = calls::pending(self.fd().as_raw_fd()) {
            return Ok(bytes);
        }
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int, which outlives the call.
        check(unsafe { libc::ioctl(self.fd().as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    /// Receives available data, as far as there is room, with a system call of its own that never
    /// waits; no other receive may be in flight. No bytes mean that the peer has sent its last, or
    /// that there is no room. Errors are those of recv(2), `WouldBlock` among them.
    pub fn try_recv(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the slice is writable, and exclusively borrowed, until the call is over.
        unsafe { self.recv_now(into.as_mut_ptr(), into.len()) }
    }

    /// [`Self::try_recv`] into a region: when it returns the kernel has done with that memory.
    pub fn try_recv_into(&self, into: &mut RegionRange) -> io::Result<usize> {
        // SAFETY: the range is mapped while it is borrowed, and a region's memory may be written at
        // any time.
        unsafe { self.recv_now(into.as_mut_ptr(), into.len()) }
    }

    /// [`Self::try_recv`] into three places, one after the other, in one system call.
    pub fn try_recv_around(
        &self,
        before: &mut [u8],
        into: &mut RegionRange,
        behind: &mut [u8],
    ) -> io::Result<usize> {
        let mut vectors = [
            libc::iovec { iov_base: before.as_mut_ptr().cast(), iov_len: before.len() },
            libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() },
            libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() },
        ];
        let room = before.len() + into.len() + behind.len();
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len();
        // SAFETY: both slices are writable and exclusively borrowed, and the range is mapped while
        // it is borrowed; a region's memory may be written at any time.
        unsafe { self.recvmsg_now(room, &raw mut header) }
    }

    /// # Safety
    /// `ptr` may be written for `len` bytes, by the kernel, until this returns.
    unsafe fn recv_now(&self, ptr: *mut u8, len: usize) -> io::Result<usize> {
        // SAFETY: the caller's.
        let got = self.now(len, |fd| unsafe {
            calls::recv(fd, ptr, len)
                .unwrap_or_else(|| count(libc::recv(fd, ptr.cast(), len, libc::MSG_DONTWAIT)))
        })?;
        count_received(got);
        Ok(got)
    }

    /// # Safety
    /// The header's vectors may be written, by the kernel, until this returns.
    unsafe fn recvmsg_now(&self, room: usize, header: *mut libc::msghdr) -> io::Result<usize> {
        // SAFETY: the caller's.
        let got = self.now(room, |fd| unsafe {
            calls::recvmsg(fd, header).unwrap_or_else(|| count(libc::recvmsg(fd, header, libc::MSG_DONTWAIT)))
        })?;
        count_received(got);
        Ok(got)
    }

    /// Calls `receive` for up to `room` bytes, and again if a signal interrupted it.
    fn now(&self, room: usize, mut receive: impl FnMut(RawFd) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match receive(self.fd().as_raw_fd()) {
                Ok(got) => {
                    self.more.set(got == room);
                    return Ok(got);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() == io::ErrorKind::WouldBlock {
                        self.more.set(false);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Whether the last receive left something in the socket, as far as is known.
    pub fn has_more(&self) -> bool {
        self.more.get()
    }

    /// Waits until there is something to receive, the peer has sent its last, or the socket has
    /// failed.
    pub async fn readable(&self) -> io::Result<()> {
        self.poll(libc::POLLIN).await
    }

    /// Before an operation is tried again that ended with the transient `error`: waits for the
    /// socket if a kernel should take its being non-blocking for the operation's.
    #[cold]
    async fn after(&self, error: &io::Error, events: libc::c_short) {
        if error.kind() == io::ErrorKind::WouldBlock {
            // The next attempt reports any error of the socket.
            let _ = self.poll(events).await;
        }
    }

    /// Whether to try at once or to wait for data first.
    fn ioprio(&self) -> u16 {
        if self.more.get() { 0 } else { POLL_FIRST }
    }

    /// Lets a receive that finds its bytes in the socket already come first: waits for one round of
    /// the ring if the last receive left something there. Whether it did.
    pub async fn receives_first(&self) -> bool {
        if !self.more.get() {
            return false;
        }
        crate::round().await;
        true
    }

    /// Sends everything in `gather` and returns it, empty. After an error it holds the unsent data,
    /// and the stream is unusable.
    pub async fn send(&self, mut gather: Gather) -> (io::Result<()>, Gather) {
        while gather.is_held() {
            match self.try_send(&mut gather) {
                Ok(true) => return (Ok(()), gather),
                Ok(false) if gather.settled().await => {}
                Ok(false) => {
                    if let Err(error) = self.writable().await {
                        return (Err(error), gather);
                    }
                }
                Err(error) => return (Err(error), gather),
            }
        }
        while !gather.is_empty() {
            let entry = gather.entry(self.raw());
            // SAFETY: the entry points to memory that the gather owns and that does not move with
            // it.
            let op = unsafe { Op::start(entry, gather) };
            let (completion, back) = op.await;
            gather = back;
            match completion.count() {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), gather),
                Ok(n) => {
                    count_sent(n);
                    gather.advance(n);
                }
                Err(e) if is_transient(&e) => self.after(&e, libc::POLLOUT).await,
                Err(e) => return (Err(e), gather),
            }
        }
        gather.clear();
        (Ok(()), gather)
    }

    /// Sends as much as the socket takes at once, with a system call of its own, and returns
    /// whether that was everything; otherwise `gather` holds the rest. For data that should leave
    /// before the caller does other work; no [`Self::send`] may be in flight. Bytes of a guarded
    /// region that a writer is changing are not sent. Errors are those of sendmsg(2) but EAGAIN.
    pub fn try_send(&self, gather: &mut Gather) -> io::Result<bool> {
        while !gather.is_empty() {
            match gather.send_now(self.fd().as_fd()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
        gather.clear();
        Ok(true)
    }

    /// Sends as much of `gather` as the socket takes at once, by reference where that pays.
    /// Payload goes by reference only if it was given to [`Gather::push_lent`]; no [`Self::send`]
    /// may be in flight. Errors are those of splice(2) but EAGAIN.
    pub fn try_lend(&self, lender: &mut Lender, gather: &mut Gather) -> io::Result<Lent> {
        let socket = self.fd().as_fd();
        if !self.nonblocking.get() && lender.takes(gather) {
            options::set_nonblocking(&socket, true)?;
            self.nonblocking.set(true);
        }
        lender.send(socket, gather)
    }

    /// Waits until the socket has room to send, or has failed.
    pub async fn writable(&self) -> io::Result<()> {
        self.poll(libc::POLLOUT).await
    }

    /// Waits until the socket has one of `events`, or has failed.
    async fn poll(&self, events: libc::c_short) -> io::Result<()> {
        let entry = opcode::PollAdd::new(self.raw(), events as u32).build();
        // SAFETY: the entry points to nothing.
        let op = unsafe { Op::start(entry, ()) };
        let (completion, ()) = op.await;
        completion.count().map(drop)
    }

    /// Ends one or both directions. Receives in flight end with no bytes, sends with EPIPE.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        if calls::shutdown(self.fd().as_raw_fd(), how).is_some() {
            return Ok(());
        }
        // SAFETY: takes numbers only.
        check(unsafe { libc::shutdown(self.fd().as_raw_fd(), how) }).map(drop)
    }

    /// Closes the connection at once with a RST, dropping unsent data.
    pub fn reset(self) {
        if calls::linger_not(self.fd().as_raw_fd()).is_some() {
            return;
        }
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the value outlives the call, and its length is its own. If it fails the stream is
        // closed as usual.
        unsafe {
            libc::setsockopt(
                self.fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            );
        }
    }

    /// Gives the socket up, to be used elsewhere. Received data stays with its owners.
    pub fn into_fd(mut self) -> OwnedFd {
        if self.nonblocking.get() {
            // The next owner expects the mode of a new socket. The call fails for no socket.
            let _ = options::set_nonblocking(self.fd(), false);
        }
        self.fd.take().expect("there until it is dropped").into_fd()
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        options::peer_addr(self.fd().as_fd())
    }

    /// Address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        options::local_addr(self.fd().as_fd())
    }

    /// Whether small segments are sent at once (TCP_NODELAY).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        set(self.fd().as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, nodelay.into())
    }

    /// Sets TCP keepalive; `None` disables it.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        options::set_keepalive(self.fd().as_fd(), keepalive)
    }

    /// Time for which sent data may stay unacknowledged before the connection is lost
    /// (TCP_USER_TIMEOUT).
    pub fn set_user_timeout(&self, timeout: Duration) -> io::Result<()> {
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        set(self.fd().as_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms)
    }

    /// The kernel's information about the path to the peer: a system call, for occasional use.
    pub fn info(&self) -> io::Result<TcpInfo> {
        path::info(self.fd().as_fd())
    }

    /// The congestion control in use, by its name in the kernel.
    pub fn congestion(&self) -> io::Result<String> {
        path::congestion(self.fd().as_fd())
    }

    /// Chooses the congestion control of data sent from now on.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        path::set_congestion(self.fd().as_fd(), name)
    }

    /// Disables pacing if the peer is on this machine, whatever congestion control the system has:
    /// nothing is congested there, and pacing costs more than sending. Listeners and
    /// [`Self::connect_over`] do so for loopback addresses, before anything is paced; this is for
    /// connections accepted at another one. It does not report a peer that has gone meanwhile: the
    /// next operation does.
    pub fn unpaced_within_machine(&self) {
        if let (Ok(local), Ok(peer)) = (self.local_addr(), self.peer_addr())
            && path::within_machine(local.ip(), peer.ip())
        {
            path::unpaced(self.fd().as_fd());
        }
    }

    /// Size of the kernel's receive buffer in bytes (SO_RCVBUF; the kernel doubles it).
    pub fn set_recv_buffer(&self, bytes: usize) -> io::Result<()> {
        set(self.fd().as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    /// Size of the kernel's send buffer in bytes (SO_SNDBUF; the kernel doubles it).
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        set(self.fd().as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, i32::try_from(bytes).unwrap_or(i32::MAX))
    }
}

/// Result of a call: a count, or its error.
fn count(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Puts back the buffer of a receive that failed. Linux 5.19 takes one all the same, and later
/// kernels do if a thread of theirs received.
#[cold]
fn put_back(failed: Completion) {
    if let Some(id) = failed.buffer() {
        Core::current().provided.borrow_mut().put_back(id);
    }
}

/// Waits until the ring has a buffer to receive into.
async fn wait_for_buffers() {
    let core = Core::current();
    core.provided.borrow_mut().grow();
    while core.provided.borrow().is_exhausted() {
        let buffer = pool::alloc_wait(RECV_BUFFER).await;
        let given = core.provided.borrow_mut().give(buffer);
        if given {
            return;
        }
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take().map(Watched::into_fd) else { return };
        // On the ring, where it costs no system call of its own; otherwise at once.
        Core::with_current(|core| {
            if let Some(core) = core {
                let entry = opcode::Close::new(types::Fd(fd.into_raw_fd())).build();
                // SAFETY: the entry points to nothing, and no other code owns the descriptor.
                unsafe { core.uring.push(&entry.user_data(IGNORED).flags(squeue::Flags::SKIP_SUCCESS)) };
            }
        });
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpStream({})", self.fd().as_raw_fd())
    }
}
