//! What front ends serve, as all cores see it, and how that changes while they serve.
//!
//! A front end keeps its content in a [`Served`]: one immutable [`Edition`] at a time, numbered, and
//! replaced whole together with its portals. A [`Change`] first prepares all that can fail, for all
//! front ends that take part, and then puts all of it into force. Dropped before that, it has
//! changed nothing.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::listen::Services;
use crate::portals::{self, Asked, Fresh, Portal};
use crate::{FrontEnd, Hub};

/// What a front end serves from one change to the next. Dereferences to its content.
pub struct Edition<C, A> {
    /// Counts the editions of a front end.
    pub generation: u64,
    /// Where it is served.
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

/// The edition of now.
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

    /// What is served now.
    pub fn now(&self) -> Arc<Edition<C, A>> {
        self.lock().clone()
    }

    /// The number of what is served now. Takes no lock.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Serves other content at the same portals: for a server that is paused, or ends.
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
    /// The listening sockets, and what each was asked to listen on.
    fn listening_sockets(&self) -> Vec<(SocketAddr, Arc<OwnedFd>)>;

    /// Stops the tasks that accept; the sockets stay open. Each of what it returns hears of the end
    /// of one.
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
    /// What it serves.
    type Content: Send + Sync + 'static;
    /// What is asked for at a portal.
    type Asked: Asked + Send + Sync + 'static;

    /// The edition of now.
    fn contents(&self) -> &Served<Self::Content, Self::Asked>;

    /// The services behind a portal ([`Services`]).
    fn services(self: &Arc<Self>, portal: &Portal<Self::Asked>) -> Services;

    /// `next` is about to be served: prepares what it is made of. Nobody sees it yet.
    fn announce(self: &Arc<Self>, before: &Self::Content, next: &Self::Content) {
        let _ = (before, next);
    }

    /// `now` is served in place of `before`: clients that are there follow.
    fn follow(
        self: &Arc<Self>,
        before: &Self::Content,
        now: &Edition<Self::Content, Self::Asked>,
    ) -> Applied {
        let _ = (before, now);
        Applied::default()
    }
}

/// What a change has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Clients that see something else than before.
    pub changed: usize,
    /// Clients that were asked to leave, and are disconnected if they do not: by the number that
    /// their front end gives them. Of iSCSI's sessions it is the TSIH.
    pub leaving: Vec<u64>,
}

/// A change of what a server serves. While there is one, nobody else can change it.
pub struct Change<'h> {
    hub: &'h Arc<Hub>,
    parts: Vec<Box<dyn Part>>,
    _alone: MutexGuard<'h, ()>,
}

impl<'h> Change<'h> {
    /// Waits until nobody else changes the server. Blocks, and must not be called on a core.
    pub fn begin(hub: &'h Arc<Hub>) -> Self {
        Self { hub, parts: Vec::new(), _alone: hub.alone() }
    }

    /// Prepares `front` to serve `content` at the portals that are `asked` for, and changes nothing
    /// yet. Portals that are there already go on.
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

    /// Puts all that was prepared into force. Nothing of it can fail. A server that was paused lets
    /// clients in again.
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

/// What one front end has prepared.
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
