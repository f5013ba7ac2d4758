//! Portals as they listen: bound before anything is changed, listened on by one task each, and taken down again while the server
//! runs. A portal that stays keeps its socket, and with it the connections that wait to be accepted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use runtime::{Handle, Notify, TcpListener};

use crate::config::{Portal, Transports};
use crate::server::{BoundPortal, Shared, bind, listen, listen_verbs};

/// A portal of the server.
#[derive(Clone, Debug)]
pub(crate) struct PortalEntry {
    /// What was asked for; its port may be 0.
    pub asked: Portal,
    /// What it has become.
    pub bound: BoundPortal,
    /// The listening socket; `None` of one that listens through RDMA devices.
    pub socket: Option<Arc<OwnedFd>>,
    /// The task that accepts, and its core.
    listener: u64,
    core: Handle,
}

/// Tells a listening task to stop.
#[derive(Default)]
struct Stop {
    asked: Cell<bool>,
    news: Notify,
    /// Dropped when the task has ended.
    ended: RefCell<Vec<runtime::Sender<()>>>,
}

thread_local! {
    /// The listening tasks of this core.
    static LISTENERS: RefCell<HashMap<u64, Rc<Stop>>> = RefCell::default();
}

/// Gives every listening task its number.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Shared {
    /// Entries for the portals that are `asked` for: those of `before` with their sockets, the others bound. Says which of them have no
    /// task that listens yet.
    ///
    /// # Errors
    /// When one cannot be bound; nothing has changed then.
    pub(crate) fn prepare_portals(
        &self,
        before: &[PortalEntry],
        asked: &[Portal],
    ) -> io::Result<(Vec<PortalEntry>, Vec<u64>)> {
        let mut taken = vec![false; before.len()];
        let (mut entries, mut fresh) = (Vec::new(), Vec::new());
        for (at, portal) in asked.iter().enumerate() {
            let same = |old: &PortalEntry| {
                let verbs = |transports| transports == Transports::Verbs;
                old.asked.listen == portal.listen && verbs(old.asked.transports) == verbs(portal.transports)
            };
            let old = (0..before.len()).find(|i| !taken[*i] && same(&before[*i]));
            if let Some(old) = old {
                taken[old] = true;
                // What is paused has no task that listens.
                if before[old].asked == *portal && !self.paused.load(Ordering::Acquire) {
                    entries.push(before[old].clone());
                    continue;
                }
            }
            let old = old.map(|old| &before[old]);
            let entry = self.prepare_portal(portal, old, asked, at)?;
            fresh.push(entry.listener);
            entries.push(entry);
        }
        Ok((entries, fresh))
    }

    fn prepare_portal(
        &self,
        portal: &Portal,
        old: Option<&PortalEntry>,
        all: &[Portal],
        at: usize,
    ) -> io::Result<PortalEntry> {
        let (address, socket) = match old {
            Some(old) => (old.bound.address, old.socket.clone()),
            // Its core binds it.
            None if portal.transports == Transports::Verbs => (portal.listen, None),
            None => {
                let listener = match self.take_inherited(portal.listen) {
                    Some(socket) => TcpListener::from_fd(socket),
                    None => bind(portal.listen, all),
                };
                let listener = listener
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", portal.listen)))?;
                (listener.local_addr()?, Some(Arc::new(listener.into_fd())))
            }
        };
        let cores: Vec<Handle> = self.core_handles().collect();
        Ok(PortalEntry {
            asked: *portal,
            bound: BoundPortal { address, group: portal.group, transports: portal.transports },
            socket,
            listener: NEXT.fetch_add(1, Ordering::Relaxed),
            core: cores[at % cores.len()],
        })
    }

    /// The socket that listens already for `asked`.
    fn take_inherited(&self, asked: SocketAddr) -> Option<OwnedFd> {
        let mut inherited = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        let at = inherited.iter().position(|(address, _)| *address == asked)?;
        Some(inherited.swap_remove(at).1)
    }

    /// Stops listening where `now` does not, and begins where tasks are `fresh`.
    pub(crate) fn settle_portals(
        self: &Arc<Self>,
        before: &[PortalEntry],
        now: &[PortalEntry],
        fresh: Vec<u64>,
    ) {
        for old in before.iter().filter(|old| now.iter().all(|one| one.listener != old.listener)) {
            drop(stop(old));
        }
        for entry in now.iter().filter(|entry| fresh.contains(&entry.listener)) {
            if let Err(error) = self.start_portal(entry) {
                tracing::error!(%error, portal = %entry.bound.address, "cannot listen");
            }
        }
    }

    /// Starts the task that accepts.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) fn start_portal(self: &Arc<Self>, entry: &PortalEntry) -> io::Result<()> {
        let (shared, bound, number) = (self.clone(), entry.bound, entry.listener);
        let run = match &entry.socket {
            Some(socket) => {
                let socket = socket.try_clone()?;
                entry.core.run(move || until_stopped(number, listen(socket, bound, shared)))
            }
            None => {
                let (say, hear) = runtime::channel();
                let run = entry.core.run(move || until_stopped(number, listen_verbs(bound, shared, say)));
                hear.recv().unwrap_or_else(|_| Err(io::Error::other("a core has ended before its time")))?;
                run
            }
        };
        run.map_err(io::Error::other)
    }
}

/// Stops the task that accepts at `entry`. What is given hears of its end: its sender is gone.
pub(crate) fn stop(entry: &PortalEntry) -> runtime::Receiver<()> {
    let number = entry.listener;
    let (ended, end) = runtime::channel();
    // A core that has stopped listens nowhere.
    let _ = entry.core.run(move || async move {
        let stop = LISTENERS.with(|all| all.borrow_mut().remove(&number));
        if let Some(stop) = stop {
            stop.ended.borrow_mut().push(ended);
            stop.asked.set(true);
            stop.news.notify();
        }
    });
    end
}

/// Runs a listening task of this core until it ends or is stopped.
async fn until_stopped(number: u64, task: impl Future<Output = ()>) {
    let stop = Rc::new(Stop::default());
    LISTENERS.with(|all| all.borrow_mut().insert(number, stop.clone()));
    {
        let mut task = pin!(task);
        let mut stopped = pin!(stop.news.until(|| stop.asked.get().then_some(())));
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => task.as_mut().poll(cx),
        })
        .await;
    }
    LISTENERS.with(|all| all.borrow_mut().remove(&number));
    stop.ended.borrow_mut().clear();
}
