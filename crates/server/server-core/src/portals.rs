//! Listening portals: bound before anything is changed, served by one accepting task each, and
//! removed again while the server runs. A portal that stays keeps its socket, and with it the
//! connections that wait to be accepted, and its task, which gets the new services.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use rdma::VerbsListener;
use runtime::{ListenOptions, Notify, TcpListener};

use crate::listen::{self, Services};
use crate::{Core, Hub, Post};

/// A front end's request for a portal.
pub trait Asked: Copy + PartialEq {
    /// The address; port 0 requests a free one.
    fn address(&self) -> SocketAddr;
    /// Whether to listen through RDMA devices, instead of a socket.
    fn by_device(&self) -> bool;
}

/// A portal of the server.
#[derive(Clone)]
pub struct Portal<A> {
    /// The request.
    pub asked: A,
    /// The address, with the port actually bound.
    pub address: SocketAddr,
    /// The listening socket; `None` for a portal that listens through RDMA devices.
    pub socket: Option<Arc<OwnedFd>>,
    listener: Arc<Listener>,
}

/// An accepting task, and its core.
struct Listener {
    number: u64,
    core: Post,
    /// Whether it is to keep listening.
    listens: AtomicBool,
    /// Weak, since the task owns it: services reach their front end, and the front end its portals.
    accepting: Weak<Accepting>,
}

/// State of a task that accepts connections.
pub(crate) struct Accepting {
    pub(crate) address: SocketAddr,
    /// Services for the connections that it accepts from now on.
    services: Mutex<Services>,
}

impl Accepting {
    fn lock(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Services for connections accepted now.
    pub(crate) fn services(&self) -> Services {
        self.lock().clone()
    }
}

/// The listening tasks of one core, by their numbers.
#[derive(Default)]
pub(crate) struct Listeners {
    tasks: RefCell<HashMap<u64, Rc<Stop>>>,
    /// Devices bound for tasks that have not begun.
    bound: RefCell<HashMap<u64, VerbsListener>>,
}

/// Stops a listening task.
#[derive(Default)]
struct Stop {
    asked: Cell<bool>,
    news: Notify,
    /// Dropped when the task has ended.
    ended: RefCell<Vec<runtime::Sender<()>>>,
}

/// Gives every listening task its number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A bound address that no task listens on yet.
pub(crate) struct Fresh {
    listener: Arc<Listener>,
    accepting: Arc<Accepting>,
    /// `None`: its core has bound it through RDMA devices.
    socket: Option<OwnedFd>,
}

/// The `asked` portals: those that exist in `before` with their sockets, the others newly bound.
///
/// # Errors
/// When one cannot be bound; nothing has changed then.
pub(crate) fn prepare<A: Asked>(
    hub: &Hub,
    before: &[Portal<A>],
    asked: &[A],
) -> io::Result<(Vec<Portal<A>>, Vec<Fresh>)> {
    let cores: Vec<Post> = hub.posts().collect();
    let mut taken = vec![false; before.len()];
    let (mut portals, mut fresh) = (Vec::new(), Vec::new());
    for (at, wanted) in asked.iter().enumerate() {
        let same = |old: &Portal<A>| {
            old.asked.address() == wanted.address() && old.asked.by_device() == wanted.by_device()
        };
        let old = (0..before.len()).find(|i| !taken[*i] && same(&before[*i]));
        old.iter().for_each(|old| taken[*old] = true);
        let old = old.map(|old| &before[old]);
        // A paused portal has no listening task.
        if let Some(old) = old.filter(|old| old.listener.listens.load(Ordering::Acquire)) {
            portals.push(Portal { asked: *wanted, ..old.clone() });
            continue;
        }
        let name = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", wanted.address()));
        let (address, socket) = match old {
            Some(old) => (old.address, old.socket.clone()),
            None if wanted.by_device() => (wanted.address(), None),
            None => {
                let listener = match hub.take_inherited(wanted.address()) {
                    Some(socket) => TcpListener::from_fd(socket),
                    None => bind(wanted.address(), asked),
                };
                let listener = listener.map_err(name)?;
                (listener.local_addr()?, Some(Arc::new(listener.into_fd())))
            }
        };
        let accepting = Arc::new(Accepting { address, services: Mutex::new(Arc::new([])) });
        let listener = Arc::new(Listener {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            core: cores[at % cores.len()],
            listens: AtomicBool::new(true),
            accepting: Arc::downgrade(&accepting),
        });
        fresh.push(Fresh::new(&listener, accepting, socket.as_deref())?);
        portals.push(Portal { asked: *wanted, address, socket, listener });
    }
    Ok((portals, fresh))
}

impl Fresh {
    fn new(
        listener: &Arc<Listener>,
        accepting: Arc<Accepting>,
        socket: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        let socket = socket.map(OwnedFd::try_clone).transpose()?;
        let fresh = Self { listener: listener.clone(), accepting, socket };
        if fresh.socket.is_none() {
            let (number, address) = (listener.number, fresh.accepting.address);
            let (say, hear) = runtime::channel();
            let asked = listener.core.run(move |core| async move {
                let bound = VerbsListener::bind(address)
                    .map(|device| drop(core.listeners.bound.borrow_mut().insert(number, device)))
                    .map_err(|error| io::Error::other(format!("{address} over RDMA: {error}")));
                // The receiver is gone only if the caller has vanished.
                let _ = say.send(bound);
            });
            asked.map_err(io::Error::other)?;
            hear.recv().unwrap_or_else(|_| Err(io::Error::other("a core has ended before its time")))?;
        }
        Ok(fresh)
    }

    /// Starts the accepting task.
    pub(crate) fn start(mut self, hub: &Arc<Hub>) {
        let (hub, accepting, number) = (hub.clone(), self.accepting.clone(), self.listener.number);
        // A core that has stopped listens on no socket.
        let _ = match self.socket.take() {
            Some(socket) => self.listener.core.run(move |core| async move {
                until_stopped(&core, number, listen::sockets(socket, accepting, hub)).await;
            }),
            None => self.listener.core.run(move |core| async move {
                let device = core.listeners.bound.borrow_mut().remove(&number);
                if let Some(device) = device {
                    until_stopped(&core, number, listen::devices(device, accepting, hub)).await;
                }
            }),
        };
    }
}

impl Drop for Fresh {
    /// Closes the device listener if no task has begun to use it.
    fn drop(&mut self) {
        let number = self.listener.number;
        if self.socket.is_none() {
            let _ = self.listener.core.run(move |core| async move {
                core.listeners.bound.borrow_mut().remove(&number);
            });
        }
    }
}

fn bind<A: Asked>(address: SocketAddr, all: &[A]) -> io::Result<TcpListener> {
    // An IPv6 wildcard takes IPv4 connections too, unless a portal of their own exists for them.
    let own_v4 = all.iter().any(|p| p.address().is_ipv4() && p.address().port() == address.port());
    TcpListener::bind(address, ListenOptions { backlog: 4096, v6only: own_v4, ..ListenOptions::default() })
}

impl<A> Portal<A> {
    /// Whether the same task accepts on both.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.listener, &other.listener)
    }

    /// Makes `services` serve the connections accepted from now on.
    pub(crate) fn serve(&self, services: Services) {
        if let Some(accepting) = self.listener.accepting.upgrade() {
            *accepting.lock() = services;
        }
    }

    /// Stops the accepting task. When the task has ended, its sender is dropped, which the returned
    /// receiver reports.
    pub(crate) fn stop(&self) -> runtime::Receiver<()> {
        let Listener { number, core, listens, .. } = &*self.listener;
        listens.store(false, Ordering::Release);
        let number = *number;
        let (ended, end) = runtime::channel();
        // A core that has stopped listens to no socket.
        let _ = core.run(move |core| async move {
            let stop = core.listeners.tasks.borrow_mut().remove(&number);
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
    core.listeners.tasks.borrow_mut().insert(number, stop.clone());
    {
        let mut task = pin!(task);
        let mut stopped = pin!(stop.news.until(|| stop.asked.get().then_some(())));
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => task.as_mut().poll(cx),
        })
        .await;
    }
    core.listeners.tasks.borrow_mut().remove(&number);
    stop.ended.borrow_mut().clear();
}
