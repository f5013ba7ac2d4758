//! [`Core`]: the state of one core of a server. [`Post`]: access to it for other threads.
//!
//! A connection gets its core when it begins, and keeps it: the data path never looks it up. A
//! message arrives at a thread, so [`HERE`] lists the cores of this thread by their server. It has
//! no other use.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use runtime::{CoreGone, Handle};

use crate::backlog::Held;
use crate::grants::Granted;
use crate::pings::Pinger;
use crate::portals::Listeners;
use crate::retention::Retention;
use crate::tally::Ended;

thread_local! {
    /// The cores of this thread, one for each server that runs here.
    static HERE: RefCell<Vec<Rc<Core>>> = RefCell::default();
}

/// State of one core of a server.
pub struct Core {
    /// Number of the server.
    server: u64,
    /// Data that its connections hold for slow clients.
    pub backlog: Rc<Held>,
    /// Data that it has requested from clients.
    pub grants: Rc<Granted>,
    /// Pings silent clients.
    pub pings: Rc<Pinger>,
    /// Counts of connections that have ended.
    pub ended: Rc<Ended>,
    /// Data that its connections keep until it is acknowledged.
    pub retention: Rc<Retention>,
    /// Payload that came over TCP.
    pub tcp: Rc<TcpAccount>,
    pub(crate) listeners: Listeners,
    /// The front ends' own state, one value of each type.
    own: RefCell<Vec<Rc<dyn Any>>>,
}

impl Core {
    /// This thread's core of a server.
    fn here(server: u64) -> Rc<Self> {
        HERE.with(|here| {
            let known = here.borrow().iter().find(|core| core.server == server).cloned();
            known.unwrap_or_else(|| {
                let core = Rc::new(Self::new(server));
                here.borrow_mut().push(core.clone());
                core
            })
        })
    }

    fn new(server: u64) -> Self {
        Self {
            server,
            backlog: Rc::default(),
            grants: Rc::default(),
            pings: Rc::default(),
            ended: Rc::default(),
            retention: Rc::default(),
            tcp: Rc::default(),
            listeners: Listeners::default(),
            own: RefCell::default(),
        }
    }

    /// The front end's own state on this core, created at the first call. Not for the data path: a
    /// connection keeps the result.
    pub fn own<T: Default + 'static>(&self) -> Rc<T> {
        let known = self.own.borrow().iter().find_map(|one| one.clone().downcast().ok());
        known.unwrap_or_else(|| {
            let made = Rc::<T>::default();
            self.own.borrow_mut().push(made.clone());
            made
        })
    }
}

/// Reference to one core of a server, for any thread.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    handle: Handle,
    server: u64,
}

impl Post {
    pub(crate) fn new(handle: Handle, server: u64) -> Self {
        Self { handle, server }
    }

    /// Index of the core.
    pub fn index(&self) -> usize {
        self.handle.index()
    }

    /// Makes a future on that core and runs it there as a task.
    ///
    /// # Errors
    /// When the core has stopped.
    pub fn run<F, Fut>(&self, make: F) -> Result<(), CoreGone>
    where
        F: FnOnce(Rc<Core>) -> Fut + Send + 'static,
        Fut: Future + 'static,
    {
        let server = self.server;
        self.handle.run(move || make(Core::here(server)))
    }

    /// Makes a future on that core, runs it there, and waits for its output. Dropping the returned
    /// future does not end the other one. The output is an error if the core stops, or the future
    /// panics, before it is ready.
    pub fn call<F, Fut>(
        &self,
        make: F,
    ) -> impl Future<Output = Result<Fut::Output, CoreGone>> + Send + use<F, Fut>
    where
        F: FnOnce(Rc<Core>) -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let server = self.server;
        self.handle.call(move || make(Core::here(server)))
    }
}

/// Payload that came over TCP, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Data segments of all kinds.
    pub received: u64,
    /// Bytes of `received` that were placed directly at their destination.
    pub landed: u64,
}

/// One core's [`TcpCounters`].
#[derive(Debug, Default)]
pub struct TcpAccount(Cell<TcpCounters>);

impl TcpAccount {
    /// Counts data segments that are whole, bytes.
    #[inline]
    pub fn count(&self, received: usize, landed: usize) {
        let before = self.0.get();
        self.0.set(TcpCounters {
            received: before.received + received as u64,
            landed: before.landed + landed as u64,
        });
    }

    /// Payload received so far.
    pub fn counters(&self) -> TcpCounters {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_of_one_thread_have_a_core_each_and_keep_what_is_theirs() {
        let (one, other) = (Core::here(u64::MAX), Core::here(u64::MAX - 1));
        one.own::<Cell<u32>>().set(7);
        assert_eq!((one.own::<Cell<u32>>().get(), other.own::<Cell<u32>>().get()), (7, 0));
        assert!(Rc::ptr_eq(&one, &Core::here(u64::MAX)));
    }
}
