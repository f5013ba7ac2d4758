//! [`TcpListener`]: accepts connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::{opcode, types};

use super::addr::RawAddr;
use super::options::{check, local_addr, set, socket};
use super::path::unpaced;
use super::stream::TcpStream;
use crate::op::{Completion, Multi, Op, Watched};
use crate::sim::calls;

/// Options of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted; the system's `net.core.somaxconn` limits it.
    pub backlog: u32,
    /// Lets several listeners, one a core, share the address; the kernel spreads connections over
    /// them.
    pub reuse_port: bool,
    /// An IPv6 listener takes no IPv4 connections.
    pub v6only: bool,
    /// Accepted streams send small segments at once (TCP_NODELAY).
    pub nodelay: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 1024, reuse_port: false, v6only: true, nodelay: true }
    }
}

/// A TCP socket that accepts connections, on one core.
pub struct TcpListener {
    /// Dropped before the descriptor.
    state: Option<State>,
    fd: Watched,
    /// The kernel does not know multi-shot accept.
    single: bool,
}

/// What is in flight.
enum State {
    Accepts(Multi),
    /// The ring took the listener's being non-blocking for the accept's. Another process that
    /// shares the listener may need it to be: one without a ring.
    Waits(Op<()>),
}

impl TcpListener {
    /// Listens at `addr`. Errors are those of socket(2), bind(2) and listen(2).
    pub fn bind(addr: SocketAddr, options: ListenOptions) -> io::Result<Self> {
        let addr_raw = RawAddr::new(addr);
        let fd = socket(&addr_raw)?;
        let sock = fd.as_fd();
        set(sock, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        if options.reuse_port {
            set(sock, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        if addr.is_ipv6() {
            set(sock, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, options.v6only.into())?;
        }
        // Accepted sockets inherit both.
        set(sock, libc::IPPROTO_TCP, libc::TCP_NODELAY, options.nodelay.into())?;
        if addr.ip().is_loopback() {
            unpaced(sock);
        }
        if let Some(listens) = calls::listen(fd.as_raw_fd(), &addr_raw) {
            return listens.map(|()| Self::of(fd));
        }
        // SAFETY: the address outlives the call, and its length is its own.
        check(unsafe { libc::bind(fd.as_raw_fd(), addr_raw.as_ptr(), addr_raw.len()) })?;
        // SAFETY: takes numbers only.
        check(unsafe { libc::listen(fd.as_raw_fd(), i32::try_from(options.backlog).unwrap_or(i32::MAX)) })?;
        Ok(Self::of(fd))
    }

    fn of(fd: OwnedFd) -> Self {
        Self { state: None, fd: Watched::new(fd), single: false }
    }

    /// Takes over a socket that listens already, for example one from a service manager.
    /// Connections that it accepts from now on within the machine are not paced, like those of a
    /// socket that was bound here.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        if local_addr(fd.as_fd()).is_ok_and(|addr| addr.ip().is_loopback()) {
            unpaced(fd.as_fd());
        }
        Ok(Self::of(fd))
    }

    /// Gives the listening socket up, to be used on another core.
    pub fn into_fd(self) -> OwnedFd {
        drop(self.state);
        self.fd.into_fd()
    }

    /// Address on which it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.fd.as_fd())
    }

    /// Accepts a connection. Errors are those of accept(2): EMFILE, ENFILE, ENOBUFS and ENOMEM pass
    /// with time, and the caller should wait a little before the next call; ECONNABORTED is a peer
    /// that changed its mind and is skipped.
    pub async fn accept(&mut self) -> io::Result<TcpStream> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Accepts a connection, and with it all that have been accepted meanwhile, up to `max`: a
    /// caller that gets a whole burst knows to give its other tasks a turn.
    pub async fn accept_burst(&mut self, max: usize) -> io::Result<Vec<TcpStream>> {
        let mut burst = vec![self.accept().await?];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while burst.len() < max {
            match self.poll_accept(&mut cx) {
                Poll::Ready(Ok(stream)) => burst.push(stream),
                // A lasting error is reported again by the next call.
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        Ok(burst)
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        loop {
            let state = self.state.get_or_insert_with(|| State::Accepts(start(&self.fd, self.single)));
            let accept = match state {
                State::Accepts(accept) => accept,
                State::Waits(op) => {
                    // The next accept reports any error.
                    std::task::ready!(Pin::new(op).poll(cx));
                    self.state = None;
                    continue;
                }
            };
            let Some(completion) = std::task::ready!(accept.poll_next(cx)) else {
                self.state = None;
                continue;
            };
            match completion.result {
                fd if fd >= 0 => {
                    // SAFETY: accept returned the descriptor, and no other code has it.
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    return Poll::Ready(Ok(TcpStream::from_accepted(fd)));
                }
                error if -error == libc::EAGAIN => {
                    let fd = types::Fd(self.fd.as_raw_fd());
                    let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
                    // SAFETY: the entry points to nothing.
                    self.state = Some(State::Waits(unsafe { Op::start(entry, ()) }));
                }
                // Stopped because no task was accepting; now one is.
                error if [libc::ECANCELED, libc::ECONNABORTED, libc::EINTR].contains(&-error) => {}
                error if -error == libc::EINVAL && !self.single => self.single = true,
                error => return Poll::Ready(Err(io::Error::from_raw_os_error(-error))),
            }
        }
    }
}

/// Starts accepting.
fn start(fd: &OwnedFd, single: bool) -> Multi {
    let fd = types::Fd(fd.as_raw_fd());
    let entry = if single {
        let none = std::ptr::null_mut();
        opcode::Accept::new(fd, none, none.cast()).flags(libc::SOCK_CLOEXEC).build()
    } else {
        opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
    };
    // SAFETY: the entry points to nothing.
    unsafe { Multi::start(entry, close_accepted) }
}

/// Closes an accepted connection that no task waits for any more.
fn close_accepted(completion: Completion) {
    if completion.result >= 0 {
        // SAFETY: accept returned the descriptor, and no other code has it.
        drop(unsafe { OwnedFd::from_raw_fd(completion.result) });
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpListener({})", self.fd.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::{SystemLimits, congestion, set_congestion};
    use super::*;

    /// A socket that other code has made, with a congestion control that is not ours; `None` where
    /// the kernel has no other.
    fn foreign(addr: &str) -> Option<(std::net::TcpListener, String)> {
        let listener = std::net::TcpListener::bind(addr).unwrap();
        let mut names = SystemLimits::read().congestion_allowed.into_iter().filter(|name| name != "reno");
        let name = names.find(|name| set_congestion(listener.as_fd(), name).is_ok())?;
        Some((listener, name))
    }

    #[test]
    fn a_listener_on_loopback_that_is_taken_over_accepts_what_is_not_paced() {
        let Some((listener, _)) = foreign("127.0.0.1:0") else { return };
        let to = listener.local_addr().unwrap();
        let listener = TcpListener::from_fd(listener.into()).unwrap();
        let _client = std::net::TcpStream::connect(to).unwrap();
        let (accepted, _) = std::net::TcpListener::from(listener.into_fd()).accept().unwrap();
        assert_eq!(congestion(accepted.as_fd()).unwrap(), "reno");
    }

    #[test]
    fn a_listener_for_other_machines_that_is_taken_over_keeps_its_pace() {
        let Some((listener, name)) = foreign("0.0.0.0:0") else { return };
        let listener = TcpListener::from_fd(listener.into()).unwrap();
        assert_eq!(congestion(listener.into_fd().as_fd()).unwrap(), name);
    }
}
