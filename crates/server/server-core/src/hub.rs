//! [`Hub`]: the state of a server that all of its cores share. It changes by atomics, or behind a
//! mutex off the data path.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runtime::Cores;

use crate::admission::Admission;
use crate::{ConnectionId, Core, Post, TcpCounters};

/// Gives every server its number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A server's cores, and its admission.
pub struct Hub {
    cores: Vec<Load>,
    /// Shares of connections and logins by address.
    pub admission: Admission,
    next_connection: AtomicU64,
    /// Set once: the server accepts no more connections.
    stopping: AtomicBool,
    /// The server accepts no connections until this is undone.
    paused: AtomicBool,
    /// What carries out the cores' operations.
    pub(crate) backend: runtime::Backend,
    /// Held during a change of the server's content.
    changing: Mutex<()>,
    /// Listening sockets of another daemon or of the service manager, by requested address.
    inherited: Mutex<Vec<(SocketAddr, OwnedFd)>>,
}

/// Use of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreStatus {
    /// Connections on the core, including those that are logging in.
    pub connections: usize,
    /// Its buffer pool.
    pub pool: runtime::pool::Stats,
    /// Bytes that are kept because initiators may ask for them again (ErrorRecoveryLevel 1 and 2).
    pub kept: usize,
    /// Number of times that a connection's kept data was discarded because the core kept too much.
    pub kept_given_up: u64,
    /// Payload that came over TCP.
    pub tcp: TcpCounters,
    /// RDMA counters.
    pub rdma: rdma::Counters,
    /// Bytes that were copied on their way through sockets, and that were not.
    pub copies: runtime::Copies,
    /// Pings sent to silent initiators, including those of connections that have ended.
    pub pings: u64,
    /// Connections whose pings are delayed because too many connections are silent.
    pub pings_waiting: usize,
    /// Turns of its loop in which all else on the core waited for too long.
    pub stalls: runtime::Stalls,
}

struct Load {
    post: Post,
    connections: AtomicUsize,
}

impl Hub {
    /// Starts `count` cores. Portals that request the addresses of `inherited` sockets use those
    /// ([`Self::take_inherited`]).
    ///
    /// # Errors
    /// When a core has no ring, or what stands in for it.
    pub fn start(
        count: usize,
        config: runtime::Config,
        inherited: Vec<(SocketAddr, OwnedFd)>,
    ) -> io::Result<(Self, Cores)> {
        let cores = Cores::start(count, config)?;
        let server = NEXT.fetch_add(1, Ordering::Relaxed);
        let load = |handle: &runtime::Handle| Load {
            post: Post::new(*handle, server),
            connections: AtomicUsize::new(0),
        };
        let hub = Self {
            cores: cores.handles().iter().map(load).collect(),
            admission: Admission::new(RandomState::new().hash_one(0)),
            next_connection: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            backend: cores.backend(),
            changing: Mutex::new(()),
            inherited: Mutex::new(inherited),
        };
        Ok((hub, cores))
    }

    /// The cores.
    pub fn posts(&self) -> impl Iterator<Item = Post> {
        self.cores.iter().map(|core| core.post)
    }

    /// A core for work that is not bound to one.
    pub fn first(&self) -> Post {
        self.cores[0].post
    }

    /// Number of connections on each core.
    pub fn connections(&self) -> impl Iterator<Item = usize> {
        self.cores.iter().map(|core| core.connections.load(Ordering::Relaxed))
    }

    /// Places one more connection on the core with the fewest connections.
    pub(crate) fn place(&self) -> Post {
        let load = |core: &&Load| core.connections.load(Ordering::Relaxed);
        let core = self.cores.iter().min_by_key(load).unwrap_or(&self.cores[0]);
        core.connections.fetch_add(1, Ordering::Relaxed);
        core.post
    }

    /// A connection of this core has ended.
    pub(crate) fn vacate(&self, core: Post) {
        self.cores[core.index()].connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// A number for a new connection.
    pub fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the server accepts no connections now.
    pub fn is_closed(&self) -> bool {
        self.stopping.load(Ordering::Acquire) || self.is_paused()
    }

    /// Whether the server accepts no connections until [`Self::set_paused`].
    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Stops accepting connections for a while, or accepts them again.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }

    /// Excludes other changes of the server's content while the guard lives.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops accepting connections for good.
    pub fn close(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The inherited socket that listens on `asked` already.
    pub(crate) fn take_inherited(&self, asked: SocketAddr) -> Option<OwnedFd> {
        let mut inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        let at = inherited.iter().position(|(address, _)| *address == asked)?;
        Some(inherited.swap_remove(at).1)
    }

    /// Closes the inherited sockets that no portal has requested.
    pub fn drop_inherited(&self) {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The use of each core; `None` for a core that does not answer within `patience`. Blocks, and
    /// must not be called on a core.
    pub fn status(&self, patience: Duration) -> Vec<Option<CoreStatus>> {
        let cores = self.on_each_core(patience, |core| {
            let (kept, kept_given_up) = core.retention.figures();
            let (pings, pings_waiting) = core.pings.counted();
            CoreStatus {
                connections: 0,
                pool: runtime::pool::stats(),
                kept,
                kept_given_up,
                tcp: core.tcp.counters(),
                rdma: rdma::counters(),
                copies: runtime::copies(),
                pings,
                pings_waiting,
                stalls: runtime::stalls(),
            }
        });
        let with =
            |(core, connections): (Option<CoreStatus>, usize)| Some(CoreStatus { connections, ..core? });
        cores.into_iter().zip(self.connections()).map(with).collect()
    }

    /// Runs `ask` on every core and waits for the answers, each for `patience` at most. Blocks, and
    /// must not be called on a core.
    pub fn on_each_core<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl Fn(&Rc<Core>) -> T + Clone + Send + 'static,
    ) -> Vec<Option<T>> {
        let answers: Vec<_> = self
            .posts()
            .map(|core| {
                let (say, hear) = runtime::channel();
                let ask = ask.clone();
                // The receiver is gone if the caller has stopped waiting.
                let asked = core.run(move |core| async move { drop(say.send(ask(&core))) });
                asked.is_ok().then_some(hear)
            })
            .collect();
        let deadline = runtime::clock() + patience;
        let hear = |hear: runtime::Receiver<T>| {
            hear.recv_timeout(deadline.saturating_duration_since(runtime::clock())).ok()
        };
        answers.into_iter().map(|answer| answer.and_then(hear)).collect()
    }

    /// Runs `task` on a core and waits for its end. Blocks, and must not be called on a core.
    ///
    /// # Errors
    /// When the core ends before.
    pub fn wait_for<T, Fut>(&self, task: impl FnOnce() -> Fut + Send + 'static) -> io::Result<T>
    where
        T: Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (done, wait) = runtime::channel();
        let ran = self.first().run(move |_| async move {
            // The receiver is gone only if the caller has vanished.
            let _ = done.send(task().await);
        });
        match (ran, wait.recv()) {
            (Ok(()), Ok(result)) => Ok(result),
            _ => Err(io::Error::other("a core has ended before its time")),
        }
    }
}
