//! Messages to and from the service manager (`sd_notify(3)`): readiness, the end, and listening
//! sockets. The manager keeps the sockets for the next daemon, so that no client is refused in
//! between.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Prefix of a kept socket's name, before its configured address.
const NAME: &str = "portal";

/// The manager of this process, if it has one.
pub struct Supervisor(Option<UnixDatagram>);

impl Supervisor {
    /// The manager that the environment names.
    pub fn find() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let path = path.into_encoded_bytes();
            let address = match path.strip_prefix(b"@") {
                Some(name) => UnixAddr::from_abstract_name(name),
                None => UnixAddr::from_pathname(std::ffi::OsStr::new(std::str::from_utf8(&path).ok()?)),
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect_addr(&address.ok()?).ok()?;
            Some(socket)
        });
        Self(socket)
    }

    /// Tells it `state`: `READY=1`, `STOPPING=1`, `RELOADING=1`.
    pub fn tell(&self, state: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(state.as_bytes())
        {
            tracing::debug!(%error, state, "the service manager does not hear");
        }
    }

    /// If it has a watchdog (WatchdogSec=), regularly tells it that this process works, as long as
    /// every core answers. If a core hangs, the manager restarts the process. Ends with the
    /// returned value.
    pub fn watchdog(&self, server: server_core::Handle) -> Option<Watchdog> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|limit| meant && *limit > 0).map(Duration::from_micros)?;
        self.watchdog_of(limit, server)
    }

    /// [`Self::watchdog`] of a manager that waits for so long.
    fn watchdog_of(&self, limit: Duration, server: server_core::Handle) -> Option<Watchdog> {
        let socket = self.0.as_ref()?.try_clone().ok()?;
        let (end, ended) = mpsc::channel();
        let work = move || {
            let interval = limit / 3;
            while ended.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
                match server.answers(interval) {
                    true => Self(socket.try_clone().ok()).tell("WATCHDOG=1"),
                    false => tracing::error!(
                        "a core does not answer: the service manager is not told that all is well"
                    ),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("watchdog".into()).spawn(work) {
            tracing::error!(%error, "no thread for the service manager's watchdog, which will end this process");
        }
        Some(Watchdog(end))
    }

    /// Has it keep listening sockets, named by their configured addresses. Needs
    /// FileDescriptorStoreMax= in the unit.
    pub fn keep(&self, sockets: &[(SocketAddr, Arc<OwnedFd>)]) {
        let Some(socket) = &self.0 else { return };
        // An older socket of the same name belongs to this daemon now, or is closed.
        for (asked, listener) in sockets {
            self.forget(*asked);
            let state = format!("FDSTORE=1\nFDNAME={}", name(*asked));
            if let Err(error) = send(socket, &state, listener.as_fd()) {
                tracing::debug!(%error, %asked, "the service manager does not keep the socket");
            }
        }
    }

    /// Has it close its copies of the sockets of `before` that are of no portal `now`: they would
    /// listen, and clients wait there for an answer that never comes.
    pub fn let_go(&self, before: impl IntoIterator<Item = SocketAddr>, now: &[(SocketAddr, Arc<OwnedFd>)]) {
        let is_gone = |asked: &SocketAddr| now.iter().all(|(other, _)| other != asked);
        before.into_iter().filter(is_gone).for_each(|asked| self.forget(asked));
    }

    /// Has it keep the sockets of `now`, where it has kept those of `before`.
    pub fn follow(&self, before: &[(SocketAddr, Arc<OwnedFd>)], now: &[(SocketAddr, Arc<OwnedFd>)]) {
        self.let_go(before.iter().map(|(asked, _)| *asked), now);
        let is_kept = |socket: &Arc<OwnedFd>| before.iter().any(|(_, other)| Arc::ptr_eq(socket, other));
        let new: Vec<_> = now.iter().filter(|(_, socket)| !is_kept(socket)).cloned().collect();
        self.keep(&new);
    }

    fn forget(&self, asked: SocketAddr) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={}", name(asked)));
    }
}

/// Tells the service manager that this process works, until dropped.
pub struct Watchdog(
    #[expect(dead_code, reason = "the thread ends when its sender is dropped")] mpsc::Sender<()>,
);

/// Listening sockets that the manager hands to this process, with their configured addresses: those
/// that it kept, and those of a socket unit.
pub fn handed() -> Vec<(SocketAddr, OwnedFd)> {
    let address = |(fd, name): (OwnedFd, String)| {
        let asked = match name.strip_prefix(NAME) {
            Some(_) => asked(&name),
            None => rustix::net::getsockname(&fd).ok().and_then(|address| SocketAddr::try_from(address).ok()),
        };
        Some((asked?, fd))
    };
    runtime::handed_sockets().into_iter().filter_map(address).collect()
}

/// A kept socket's name. Names may not have colons.
fn name(asked: SocketAddr) -> String {
    format!("{NAME}-{}", asked.to_string().replace(':', "_"))
}

fn asked(name: &str) -> Option<SocketAddr> {
    name.strip_prefix(NAME)?.strip_prefix('-')?.replace('_', ":").parse().ok()
}

fn send(socket: &UnixDatagram, state: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let state = [IoSlice::new(state.as_bytes())];
    rustix::net::sendmsg(socket, &state, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use server_core::{CoresConfig, Server};

    use super::*;

    #[test]
    fn the_watchdog_is_silent_while_one_core_hangs() {
        let cores = CoresConfig { count: 2, spin_us: 0, pool_bytes: 32 << 20 };
        let server = Server::start(cores, Vec::new()).unwrap();
        let (manager, own) = UnixDatagram::pair().unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let ping = || {
            let mut text = [0; 64];
            let len = manager.recv(&mut text).unwrap();
            assert_eq!(&text[..len], b"WATCHDOG=1");
        };
        let limit = Duration::from_millis(150);
        let watchdog = Supervisor(Some(own)).watchdog_of(limit, server.handle());
        ping();
        let (tell, hangs) = mpsc::channel();
        let (go_on, until) = mpsc::channel::<()>();
        let core = server.hub().posts().last().unwrap();
        let asked = core.run(move |_| async move {
            tell.send(()).unwrap();
            // Blocks the thread of the core, until the sender is dropped.
            let _ = until.recv();
        });
        assert!(asked.is_ok());
        hangs.recv().unwrap();
        let pings = || std::iter::from_fn(|| manager.recv(&mut [0; 64]).ok()).count();
        manager.set_nonblocking(true).unwrap();
        pings();
        std::thread::sleep(10 * limit);
        // All cores may have answered before one of them hung, and the ping came later.
        assert!(pings() <= 1, "pings while a core hangs");
        manager.set_nonblocking(false).unwrap();
        drop(go_on);
        ping();
        ping();
        drop(watchdog);
        server.stop(Duration::ZERO).unwrap();
    }

    #[test]
    fn the_manager_keeps_the_sockets_of_the_portals_that_there_are() {
        let (manager, own) = UnixDatagram::pair().unwrap();
        let socket = |port: u16| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            (SocketAddr::from(([127, 0, 0, 1], port)), Arc::new(OwnedFd::from(listener)))
        };
        let [gone, stays, new] = [1, 2, 3].map(socket);
        Supervisor(Some(own)).follow(&[gone, stays.clone()], &[stays, new]);
        manager.set_nonblocking(true).unwrap();
        let told = std::iter::from_fn(|| {
            let mut text = [0; 64];
            let len = manager.recv(&mut text).ok()?;
            Some(String::from_utf8_lossy(&text[..len]).into_owned())
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "FDSTOREREMOVE=1\nFDNAME=portal-127.0.0.1_1",
                "FDSTOREREMOVE=1\nFDNAME=portal-127.0.0.1_3",
                "FDSTORE=1\nFDNAME=portal-127.0.0.1_3"
            ]
        );
    }

    #[test]
    fn a_kept_socket_is_found_by_what_it_was_asked_for() {
        for address in ["127.0.0.1:3260", "[::]:0", "[2001:db8::1]:3260"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(asked(&name(address)), Some(address));
            assert!(!name(address).contains(':'));
        }
        assert_eq!(asked("portal"), None);
    }
}
