//! Portals as they listen: bound before anything is changed, listened on by one task each, and
//! taken down again while the server runs. A portal that stays keeps its socket, and with it the
//! connections that wait to be accepted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use runtime::{ListenOptions, Notify, TcpListener};

use crate::listen::{self, Service};
use crate::{Core, Hub, Post};

/// What a front end asks for at a portal. Another value than before gets another listening task.
pub trait Asked: Copy + PartialEq {
    /// The address; port 0 takes a free one.
    fn address(&self) -> SocketAddr;
    /// Whether to listen through RDMA devices, instead of a socket.
    fn by_device(&self) -> bool;
}

/// A portal of the server.
#[derive(Clone, Debug)]
pub struct Portal<A> {
    /// What was asked for.
    pub asked: A,
    /// The address, with the port that was really taken.
    pub address: SocketAddr,
    /// The listening socket; `None` of one that listens through RDMA devices.
    pub socket: Option<Arc<OwnedFd>>,
    /// The task that accepts, and its core.
    listener: u64,
    core: Post,
    /// Whether that task is meant to go on.
    listens: Arc<AtomicBool>,
}

/// The listening tasks of one core, by their numbers.
#[derive(Default)]
pub(crate) struct Listeners(RefCell<HashMap<u64, Rc<Stop>>>);

/// Tells a listening task to stop.
#[derive(Default)]
struct Stop {
    asked: Cell<bool>,
    news: Notify,
    /// Dropped when the task has ended.
    ended: RefCell<Vec<runtime::Sender<()>>>,
}

/// Gives every listening task its number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Portals that have no task that listens yet, by the numbers of their tasks.
pub struct Fresh(Vec<u64>);

/// Portals that are `asked` for: those of `before` with their sockets, the others bound.
///
/// # Errors
/// When one cannot be bound; nothing has changed then.
pub fn prepare<A: Asked>(
    hub: &Hub,
    before: &[Portal<A>],
    asked: &[A],
) -> io::Result<(Vec<Portal<A>>, Fresh)> {
    let mut taken = vec![false; before.len()];
    let (mut portals, mut fresh) = (Vec::new(), Vec::new());
    for (at, wanted) in asked.iter().enumerate() {
        let same = |old: &Portal<A>| {
            old.asked.address() == wanted.address() && old.asked.by_device() == wanted.by_device()
        };
        let old = (0..before.len()).find(|i| !taken[*i] && same(&before[*i]));
        if let Some(old) = old {
            taken[old] = true;
            // What was paused has no task that listens.
            if before[old].asked == *wanted && before[old].listens.load(Ordering::Acquire) {
                portals.push(before[old].clone());
                continue;
            }
        }
        let portal = prepare_one(hub, *wanted, old.map(|old| &before[old]), asked, at)?;
        fresh.push(portal.listener);
        portals.push(portal);
    }
    Ok((portals, Fresh(fresh)))
}

fn prepare_one<A: Asked>(
    hub: &Hub,
    wanted: A,
    old: Option<&Portal<A>>,
    all: &[A],
    at: usize,
) -> io::Result<Portal<A>> {
    let asked = wanted.address();
    let (address, socket) = match old {
        Some(old) => (old.address, old.socket.clone()),
        // Its core binds it.
        None if wanted.by_device() => (asked, None),
        None => {
            let listener = match hub.take_inherited(asked) {
                Some(socket) => TcpListener::from_fd(socket),
                None => bind(asked, all),
            };
            let listener =
                listener.map_err(|error| io::Error::new(error.kind(), format!("{asked}: {error}")))?;
            (listener.local_addr()?, Some(Arc::new(listener.into_fd())))
        }
    };
    let cores: Vec<Post> = hub.posts().collect();
    let core = cores[at % cores.len()];
    let listener = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(Portal { asked: wanted, address, socket, listener, core, listens: Arc::new(AtomicBool::new(true)) })
}

fn bind<A: Asked>(address: SocketAddr, all: &[A]) -> io::Result<TcpListener> {
    // An IPv6 wildcard takes IPv4 connections too, unless a portal of their own is there for them.
    let own_v4 = all.iter().any(|p| p.address().is_ipv4() && p.address().port() == address.port());
    TcpListener::bind(address, ListenOptions { backlog: 4096, v6only: own_v4, ..ListenOptions::default() })
}

/// Stops listening where `now` does not, and begins where portals are `fresh`, for the services
/// that `service` gives.
pub fn settle<A: Asked>(
    hub: &Arc<Hub>,
    before: &[Portal<A>],
    now: &[Portal<A>],
    fresh: &Fresh,
    service: impl Fn(&Portal<A>) -> Arc<dyn Service>,
) {
    for old in before.iter().filter(|old| now.iter().all(|one| one.listener != old.listener)) {
        drop(old.stop());
    }
    for portal in now.iter().filter(|portal| fresh.0.contains(&portal.listener)) {
        if let Err(error) = portal.start(hub, service(portal)) {
            tracing::error!(%error, portal = %portal.address, "cannot listen");
        }
    }
}

impl<A> Portal<A> {
    /// Starts the task that accepts for `service`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(&self, hub: &Arc<Hub>, service: Arc<dyn Service>) -> io::Result<()> {
        let (hub, address, number) = (hub.clone(), self.address, self.listener);
        let run = match &self.socket {
            Some(socket) => {
                let socket = socket.try_clone()?;
                self.core.run(move |core| async move {
                    until_stopped(&core, number, listen::sockets(socket, address, hub, service)).await;
                })
            }
            None => {
                let (say, hear) = runtime::channel();
                let run = self.core.run(move |core| async move {
                    until_stopped(&core, number, listen::devices(address, hub, service, say)).await;
                });
                hear.recv().unwrap_or_else(|_| Err(io::Error::other("a core has ended before its time")))?;
                run
            }
        };
        run.map_err(io::Error::other)
    }

    /// Stops the task that accepts. What is given hears of its end: its sender is gone.
    pub fn stop(&self) -> runtime::Receiver<()> {
        self.listens.store(false, Ordering::Release);
        let number = self.listener;
        let (ended, end) = runtime::channel();
        // A core that has stopped listens nowhere.
        let _ = self.core.run(move |core| async move {
            let stop = core.listeners.0.borrow_mut().remove(&number);
            if let Some(stop) = stop {
                stop.ended.borrow_mut().push(ended);
                stop.asked.set(true);
                stop.news.notify();
            }
        });
        end
    }
}

/// Runs a listening task of this core until it ends or is stopped.
async fn until_stopped(core: &Core, number: u64, task: impl Future<Output = ()>) {
    let stop = Rc::new(Stop::default());
    core.listeners.0.borrow_mut().insert(number, stop.clone());
    {
        let mut task = pin!(task);
        let mut stopped = pin!(stop.news.until(|| stop.asked.get().then_some(())));
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => task.as_mut().poll(cx),
        })
        .await;
    }
    core.listeners.0.borrow_mut().remove(&number);
    stop.ended.borrow_mut().clear();
}
