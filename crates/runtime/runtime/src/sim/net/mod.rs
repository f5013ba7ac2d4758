//! The network of a world: sockets that are connected by links with latency, resets, silence and
//! damage.
//!
//! A connection behaves as TCP does for a program: a byte stream each way, in order, in segments of
//! any length, with a limited window. A lost segment arrives late instead.

mod faults;
mod operations;
mod transfer;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::State;
use super::machine::{self, Machine};
use crate::op::sqe::{Kind, MORE, Offered, Sqe};
use crate::op::{Completion, WOKEN};
pub use faults::{
    Link, Middlebox, cut, deafen, flip_a_bit, links, pause, reset, set_middlebox, set_network, stall,
};

/// The properties of all links. A change holds for segments sent after it.
#[derive(Clone, Debug)]
pub struct Network {
    /// The least time that a segment takes, one way.
    pub latency: Duration,
    /// The most that is added at random.
    pub jitter: Duration,
    /// Bytes a second of all links together, each way: a segment waits for those before it.
    pub rate: u64,
    /// Lost segments in a million. They arrive [`Self::retransmission`] later.
    pub lost_per_million: u64,
    /// The delay of a lost segment.
    pub retransmission: Duration,
    /// Segments in a million that reset their connection.
    pub reset_per_million: u64,
    /// The most bytes sent and not yet read, each way.
    pub window: usize,
    /// The longest segment, bytes. Segments may be as short as one byte.
    pub segment: usize,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(20),
            jitter: Duration::from_micros(20),
            rate: 1_250_000_000,
            lost_per_million: 0,
            retransmission: Duration::from_millis(200),
            reset_per_million: 0,
            window: 256 << 10,
            segment: 64 << 10,
        }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Something that happens at a time.
pub(super) enum Event {
    /// An operation ends.
    Ends(usize, Sqe, i32),
    /// An operation on a file, by its number, takes place.
    File(u64),
    /// A client's first segment comes to the listener, if there is one.
    Arrives { client: usize, to: SocketAddr },
    /// The client learns the result.
    Connected { client: usize, result: i32 },
    /// A segment arrives.
    Segment { to: usize, bytes: Vec<u8> },
    /// The peer's FIN arrives.
    Fin { to: usize },
    /// The peer's RST arrives.
    Reset { to: usize },
}

/// An operation that waits for its socket.
struct Parked {
    core: usize,
    kind: Kind,
    sqe: Sqe,
    /// Bytes of it that have been sent already.
    done: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Just made, or connecting.
    Fresh,
    Listening,
    Connected,
}

struct Socket {
    phase: Phase,
    machine: Machine,
    local: SocketAddr,
    remote: SocketAddr,
    /// The other end.
    peer: Option<usize>,
    /// Whether this end has connected.
    is_client: bool,
    inbox: VecDeque<u8>,
    /// Bytes that its program has read.
    received: u64,
    /// Bytes that the peer has sent and that have not arrived.
    in_flight: usize,
    /// Arrival time of the latest of them: later segments do not overtake.
    last_arrival: u64,
    /// Nothing arrives before then.
    stalled_until: u64,
    /// Flip a bit of the next segment.
    damage: bool,
    eof: bool,
    error: Option<i32>,
    shut_read: bool,
    shut_write: bool,
    resets: bool,
    closed: bool,
    /// Connections not yet accepted.
    backlog: VecDeque<usize>,
    parked: Vec<Parked>,
    /// Hangs up when all of the socket's descriptors are closed.
    probe: Option<OwnedFd>,
}

/// The number of the pipe that a descriptor belongs to.
fn pipe_of(fd: RawFd) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the structure is plain numbers, which the call writes and for which zeros are valid.
    let stat = unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFIFO).then_some(stat.st_ino)
}

/// Whether all writing ends of a pipe are closed.
fn is_hung_up(probe: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: probe.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, which outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & libc::POLLHUP != 0 }
}

/// The sockets of a world, and the state of its cores' rings.
pub(super) struct Net {
    network: Network,
    middlebox: Option<Middlebox>,
    /// Time at which the path to servers, and the one to clients, is free again, ns.
    free: [u64; 2],
    sockets: Vec<Socket>,
    /// By the number of the pipe that stands for the socket: descriptors are duplicated and passed
    /// on.
    by_pipe: BTreeMap<u64, usize>,
    next_port: u16,
    /// By core.
    provided: BTreeMap<usize, Offered>,
    mailboxes: BTreeMap<u16, usize>,
    /// The polls by which cores notice mail.
    watches: BTreeMap<usize, Sqe>,
}

impl Net {
    pub(super) fn new(network: Network) -> Self {
        Self {
            network,
            middlebox: None,
            free: [0; 2],
            sockets: Vec::new(),
            by_pipe: BTreeMap::new(),
            next_port: 20_000,
            provided: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            watches: BTreeMap::new(),
        }
    }

    pub(super) fn has(&self, fd: RawFd) -> bool {
        self.id(fd).is_some()
    }

    pub(super) fn id(&self, fd: RawFd) -> Option<usize> {
        self.by_pipe.get(&pipe_of(fd)?).copied()
    }

    pub(super) fn own(&mut self, core: usize, mailbox: u16) {
        self.mailboxes.insert(mailbox, core);
    }

    pub(super) fn provide(&mut self, core: usize, provided: Offered) {
        self.provided.insert(core, provided);
    }

    /// Drops the state of a core that has ended.
    pub(super) fn forget(&mut self, core: usize) {
        self.provided.remove(&core);
        self.watches.remove(&core);
        self.mailboxes.retain(|_, owner| *owner != core);
        for socket in &mut self.sockets {
            socket.parked.retain(|parked| parked.core != core);
        }
    }

    /// Closes all sockets that are still open.
    pub(super) fn end(&mut self) {
        self.sockets.clear();
        self.by_pipe.clear();
    }

    fn add(&mut self, machine: Machine, local: SocketAddr, remote: SocketAddr) -> usize {
        self.sockets.push(Socket {
            phase: Phase::Fresh,
            machine,
            local,
            remote,
            peer: None,
            is_client: false,
            inbox: VecDeque::new(),
            received: 0,
            in_flight: 0,
            last_arrival: 0,
            stalled_until: 0,
            damage: false,
            eof: false,
            error: None,
            shut_read: false,
            shut_write: false,
            resets: false,
            closed: false,
            backlog: VecDeque::new(),
            parked: Vec::new(),
            probe: None,
        });
        self.sockets.len() - 1
    }

    /// A descriptor for a socket: the writing end of a pipe. It can be duplicated and closed
    /// anywhere; the reading end tells when all copies are closed.
    fn descriptor(&mut self, id: usize) -> io::Result<RawFd> {
        let (probe, handle) = io::pipe()?;
        let fd = OwnedFd::from(handle).into_raw_fd();
        self.by_pipe.extend(pipe_of(fd).map(|pipe| (pipe, id)));
        self.sockets[id].probe = Some(probe.into());
        Ok(fd)
    }

    /// Listeners whose descriptors are all closed.
    fn orphans(&self) -> Vec<usize> {
        let listening = |socket: &Socket| socket.phase == Phase::Listening && !socket.closed;
        let closed = |socket: &Socket| socket.probe.as_ref().is_some_and(is_hung_up);
        let sockets = self.sockets.iter().enumerate();
        sockets.filter(|(_, socket)| listening(socket) && closed(socket)).map(|(id, _)| id).collect()
    }

    pub(super) fn socket(&mut self, core: usize) -> io::Result<RawFd> {
        let [high, low] = (core as u16 + 1).to_be_bytes();
        let ip = Ipv4Addr::new(10, high, 0, low);
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let id = self.add(machine::current(), SocketAddr::new(ip.into(), 0), nowhere);
        self.descriptor(id)
    }

    fn port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(20_001);
        self.next_port
    }

    pub(super) fn listen(&mut self, id: usize, mut addr: SocketAddr) -> io::Result<()> {
        if addr.port() == 0 {
            addr.set_port(self.port());
        }
        if self.listener(addr).is_some_and(|other| !self.orphans().contains(&other)) {
            return Err(error(libc::EADDRINUSE));
        }
        self.sockets[id].local = addr;
        self.sockets[id].phase = Phase::Listening;
        Ok(())
    }

    fn listener(&self, to: SocketAddr) -> Option<usize> {
        self.sockets.iter().position(|socket| {
            socket.phase == Phase::Listening
                && !socket.closed
                && socket.local.port() == to.port()
                && (socket.local.ip() == to.ip()
                    || socket.local.ip().is_unspecified()
                    || to.ip().is_unspecified())
        })
    }

    pub(super) fn address(&self, id: usize, of_peer: bool) -> io::Result<SocketAddr> {
        let socket = &self.sockets[id];
        match of_peer {
            false => Ok(socket.local),
            true if socket.phase == Phase::Connected => Ok(socket.remote),
            true => Err(error(libc::ENOTCONN)),
        }
    }

    pub(super) fn pending(&self, id: usize) -> usize {
        self.sockets[id].inbox.len()
    }

    pub(super) fn resets_when_closed(&mut self, id: usize) {
        self.sockets[id].resets = true;
    }

    /// The most bytes that a connection has in flight, each way.
    pub(super) fn window(&self) -> usize {
        self.network.window
    }

    /// Bytes that an end may send now.
    fn room(&self, id: usize) -> usize {
        let peer = self.sockets[id].peer.and_then(|peer| self.sockets.get(peer));
        peer.map_or(0, |peer| self.network.window.saturating_sub(peer.in_flight + peer.inbox.len()))
    }
}

impl State {
    /// Completes an operation later.
    pub(super) fn later(&mut self, core: usize, sqe: Sqe, result: i32, nanoseconds: u64) {
        self.turns.at(self.now + nanoseconds, Event::Ends(core, sqe, result));
    }

    pub(super) fn watch_mail(&mut self, core: usize, sqe: Sqe) {
        self.net.watches.insert(core, sqe);
    }

    /// Wakes the core that owns a mailbox.
    pub(super) fn mail(&mut self, mailbox: u16) {
        let Some(&core) = self.net.mailboxes.get(&mailbox) else { return };
        if self.net.watches.contains_key(&core) {
            let said = Completion { result: i32::from(libc::POLLIN), flags: MORE };
            self.turns.complete(core, WOKEN, said);
        }
    }
}
