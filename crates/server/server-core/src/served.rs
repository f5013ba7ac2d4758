//! Content of front ends, as all cores see it, and its replacement at run time.
//!
//! A front end keeps its content in a [`Served`]: one immutable [`Edition`] at a time, numbered,
//! and replaced whole together with its portals. A [`Change`] first prepares everything that can
//! fail, for all front ends that take part, and then publishes all of it. A change dropped before
//! that has changed nothing.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::listen::Services;
use crate::portals::{self, Asked, Fresh, Portal};
use crate::{FrontEnd, Hub};

/// Content of a front end from one change to the next. Dereferences to that content.
pub struct Edition<C, A> {
    /// Counts the editions of a front end.
    pub generation: u64,
    /// The portals that serve it.
    pub portals: Vec<Portal<A>>,
    content: Arc<C>,
}

impl<C, A> Edition<C, A> {
    fn next(&self, portals: Vec<Portal<A>>, content: Arc<C>) -> Arc<Self> {
        Arc::new(Self { generation: self.generation + 1, portals, content })
    }
}

impl<C, A> Deref for Edition<C, A> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.content
    }
}

/// Holds a front end's current edition.
pub struct Served<C, A> {
    now: Mutex<Arc<Edition<C, A>>>,
    generation: AtomicU64,
}

impl<C, A: Asked> Served<C, A> {
    /// `content`, at no portal yet.
    pub fn new(content: C) -> Self {
        let first = Edition { generation: 0, portals: Vec::new(), content: Arc::new(content) };
        Self { now: Mutex::new(Arc::new(first)), generation: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Edition<C, A>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current edition.
    pub fn now(&self) -> Arc<Edition<C, A>> {
        self.lock().clone()
    }

    /// The number of the current edition. Takes no lock.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the content and keeps the portals: for a server that is paused, or ends.
    pub fn replace(&self, content: C) {
        let before = self.now();
        self.set(before.next(before.portals.clone(), Arc::new(content)));
    }

    fn set(&self, next: Arc<Edition<C, A>>) {
        let mut now = self.lock();
        self.generation.store(next.generation, Ordering::Release);
        *now = next;
    }
}

/// The portals of a front end, whatever its protocol.
pub trait Portals {
    /// The listening sockets, each with the address that it was requested for.
    fn listening_sockets(&self) -> Vec<(SocketAddr, Arc<OwnedFd>)>;

    /// Stops the accepting tasks; the sockets stay open. Each returned receiver reports the end of
    /// one task.
    fn stop_listening(&self) -> Vec<runtime::Receiver<()>>;

    /// Closes the sockets, once no task accepts any more.
    fn close(&self);
}

impl<C, A: Asked> Portals for Served<C, A> {
    fn listening_sockets(&self) -> Vec<(SocketAddr, Arc<OwnedFd>)> {
        let now = self.now();
        now.portals
            .iter()
            .filter_map(|portal| Some((portal.asked.address(), portal.socket.clone()?)))
            .collect()
    }

    fn stop_listening(&self) -> Vec<runtime::Receiver<()>> {
        self.now().portals.iter().map(Portal::stop).collect()
    }

    fn close(&self) {
        let before = self.now();
        self.set(before.next(Vec::new(), before.content.clone()));
    }
}

/// A front end whose content changes while it serves.
pub trait Changing: FrontEnd + Sized {
    /// The content that it serves.
    type Content: Send + Sync + 'static;
    /// Its request for a portal.
    type Asked: Asked + Send + Sync + 'static;

    /// Its current and future content.
    fn contents(&self) -> &Served<Self::Content, Self::Asked>;

    /// The services behind a portal ([`Services`]).
    fn services(self: &Arc<Self>, portal: &Portal<Self::Asked>) -> Services;

    /// Prepares the parts of `next`, which is about to be published. No core sees it yet.
    fn announce(self: &Arc<Self>, before: &Self::Content, next: &Self::Content) {
        let _ = (before, next);
    }

    /// `now` has replaced `before`: brings existing clients up to date.
    fn follow(
        self: &Arc<Self>,
        before: &Self::Content,
        now: &Edition<Self::Content, Self::Asked>,
    ) -> Applied {
        let _ = (before, now);
        Applied::default()
    }
}

/// Effects of a change on clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Clients that see different content.
    pub changed: usize,
    /// Clients that were asked to leave, and are disconnected otherwise: by the number that their
    /// front end gives them, for iSCSI the TSIH of the session.
    pub leaving: Vec<u64>,
}

/// A change of a server's content. Only one exists at a time.
pub struct Change<'h> {
    hub: &'h Arc<Hub>,
    parts: Vec<Box<dyn Part>>,
    _alone: MutexGuard<'h, ()>,
}

impl<'h> Change<'h> {
    /// Waits until no other change is in progress. Blocks, and must not be called on a core.
    pub fn begin(hub: &'h Arc<Hub>) -> Self {
        Self { hub, parts: Vec::new(), _alone: hub.alone() }
    }

    /// Prepares `front` to serve `content` at the `asked` portals, and changes nothing yet.
    /// Existing portals keep listening.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub fn prepare<F: Changing>(
        &mut self,
        front: &Arc<F>,
        content: F::Content,
        asked: &[F::Asked],
    ) -> io::Result<()> {
        let before = front.contents().now();
        let (portals, fresh) = portals::prepare(self.hub, &before.portals, asked)?;
        let next = before.next(portals, Arc::new(content));
        self.parts.push(Box::new(PartOf { front: front.clone(), before, next, fresh }));
        Ok(())
    }

    /// Publishes everything that was prepared, which cannot fail. A server that was paused admits
    /// clients again.
    pub fn commit(mut self) -> Applied {
        self.parts.iter().for_each(|part| part.publish());
        self.hub.set_paused(false);
        self.parts.iter_mut().for_each(|part| part.listen(self.hub));
        let mut all = Applied::default();
        for part in &self.parts {
            let Applied { changed, leaving } = part.follow();
            all.changed += changed;
            all.leaving.extend(leaving);
        }
        all
    }
}

/// Prepared change of one front end.
trait Part {
    fn publish(&self);
    fn listen(&mut self, hub: &Arc<Hub>);
    fn follow(&self) -> Applied;
}

struct PartOf<F: Changing> {
    front: Arc<F>,
    before: Arc<Edition<F::Content, F::Asked>>,
    next: Arc<Edition<F::Content, F::Asked>>,
    fresh: Vec<Fresh>,
}

impl<F: Changing> Part for PartOf<F> {
    fn publish(&self) {
        self.front.announce(&self.before, &self.next);
        self.front.contents().set(self.next.clone());
    }

    fn listen(&mut self, hub: &Arc<Hub>) {
        for old in self.before.portals.iter().filter(|old| !self.next.portals.iter().any(|new| new.is(old))) {
            drop(old.stop());
        }
        self.next.portals.iter().for_each(|portal| portal.serve(self.front.services(portal)));
        self.fresh.drain(..).for_each(|fresh| fresh.start(hub));
    }

    fn follow(&self) -> Applied {
        self.front.follow(&self.before, &self.next)
    }
}
