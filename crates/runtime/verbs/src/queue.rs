//! [`QueuePair`]: the operations of a connection, and its completions. `drive` executes them.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use runtime::Chain;

use crate::cm::{Event, Id};
use crate::drive::State;
use crate::error::Error;
use crate::exposure::{Buffers, Remote, Rights, Withdrawn};
use crate::options::Options;
use crate::work::{Head, MAX_HEAD, Op, Work};

/// A completed operation, or an arrived message. Sends, writes and reads complete in the order of
/// their posts.
#[derive(Debug)]
pub enum Completion {
    /// A Send of the peer has arrived.
    Received {
        /// Its bytes, in the receive buffer.
        message: Chain,
        /// Exposed memory that the peer has invalidated with it; [`QueuePair::withdraw`] returns
        /// it.
        invalidated: Option<u32>,
    },
    /// A posted Send is complete; its data is no longer in use.
    Sent {
        /// The id of the post.
        id: u64,
    },
    /// A posted RDMA Write is complete; its data is no longer in use.
    Written {
        /// The id of the post.
        id: u64,
    },
    /// An RDMA Read is complete.
    Read {
        /// The id of the post.
        id: u64,
        /// The data, of the requested length.
        data: Chain,
    },
    /// The connection ended before this post.
    Flushed {
        /// The id of the post.
        id: u64,
    },
}

/// One connection. It lives on the core that created it, and a task of that core drives it until it
/// is dropped.
///
/// Posts never wait: they are passed to the device together, when the posting task yields.
pub struct QueuePair {
    state: Rc<RefCell<State>>,
    ird: u8,
    ord: u8,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
}

impl QueuePair {
    /// Creates the queues for a connection through `id`, with its receives posted. The connection
    /// is not yet established.
    pub(crate) fn new(id: Id, options: &Options) -> Result<Self, Error> {
        let (peer, local) = (id.peer(), id.local());
        let state = State::new(id, options)?;
        let limits = state.endpoint.domain().limits();
        let (ird, ord) = (options.ird.min(limits.ird), options.ord.min(limits.ord));
        Ok(Self { state: Rc::new(RefCell::new(state)), ird, ord, peer, local })
    }

    /// Starts the established connection with the negotiated limits.
    pub(crate) fn begin(&mut self, ird: u8, ord: u8) {
        (self.ird, self.ord) = (ird, ord);
        let state: Weak<RefCell<State>> = Rc::downgrade(&self.state);
        // Ends with the connection, or with the queue pair, which wakes it once more.
        drop(runtime::spawn(std::future::poll_fn(move |cx| match state.upgrade() {
            Some(state) => state.borrow_mut().poll_drive(cx),
            None => Poll::Ready(()),
        })));
    }

    /// Runs `f` with the identifier.
    pub(crate) fn with_id<R>(&self, f: impl FnOnce(&Id) -> R) -> R {
        f(self.state.borrow().endpoint.id())
    }

    /// Waits for the next event of the connection manager, before [`Self::begin`].
    pub(crate) async fn next_event(&self) -> Result<Event, Error> {
        std::future::poll_fn(|cx| self.state.borrow_mut().poll_event(cx)).await
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The address on this side.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Maximum outstanding RDMA Reads of the peer.
    pub fn ird(&self) -> u8 {
        self.ird
    }

    /// Maximum outstanding RDMA Reads of this side. Further ones wait in the device's queue, and so
    /// do later posts.
    pub fn ord(&self) -> u8 {
        self.ord
    }

    /// Whether the peer may invalidate exposed memory. If not, an attempt may end the connection.
    pub fn takes_invalidation(&self) -> bool {
        self.state.borrow().endpoint.domain().has_windows()
    }

    /// Bytes of Sends and RDMA Writes that are posted and not complete.
    pub fn queued(&self) -> usize {
        self.state.borrow().queued
    }

    /// Number of exposed keys.
    pub fn exposed(&self) -> usize {
        self.state.borrow().exposures.len()
    }

    /// Posts a Send of `head`, which is copied, and `data`. With `notify` it has a completion.
    /// Memory of a region is copied when the device takes it.
    ///
    /// # Errors
    /// `head` is longer than [`MAX_HEAD`].
    pub fn post_send(
        &self,
        head: &[u8],
        data: impl Into<Chain>,
        invalidate: Option<u32>,
        solicited: bool,
        notify: Option<u64>,
    ) -> Result<(), Error> {
        if head.len() > MAX_HEAD {
            return Err(Error::TooMuch {
                what: "bytes before a Send's data",
                asked: head.len(),
                limit: MAX_HEAD,
            });
        }
        let op = Op::Send { head: Head::from_slice(head), data: data.into(), invalidate, solicited };
        self.post(op, notify);
        Ok(())
    }

    /// Posts an RDMA Write. With `notify` it has a completion. Memory of a region is copied when
    /// the device takes it.
    pub fn post_write(&self, remote: Remote, data: impl Into<Chain>, notify: Option<u64>) {
        let data = data.into();
        if !data.is_empty() || notify.is_some() {
            self.post(Op::Write { stag: remote.stag, offset: remote.offset, data }, notify);
        }
    }

    /// Posts an RDMA Read of `len` bytes, which [`Completion::Read`] returns.
    pub fn post_read(&self, remote: Remote, len: usize, id: u64) {
        self.post(Op::Read { stag: remote.stag, offset: remote.offset, len }, Some(id));
    }

    /// Posts `n` more receives for the peer's Sends.
    pub fn post_receives(&self, n: u32) {
        self.state.borrow_mut().want_receives(n);
    }

    /// Passes posts to the device now, instead of at the end of the turn.
    pub fn flush(&self) {
        self.state.borrow_mut().flush();
    }

    /// Exposes buffers to the peer.
    ///
    /// # Errors
    /// Too much memory is exposed, or the device is out of resources.
    pub fn expose(&self, buffers: Buffers, rights: Rights) -> Result<Remote, Error> {
        self.state.borrow_mut().with_exposures(|exposures, waiting, _| {
            exposures.expose(buffers, rights, |op| waiting.push_back(Work::plain(op)))
        })
    }

    /// Exposes data for the peer to read.
    pub fn expose_source(&self, data: Chain) -> Result<Remote, Error> {
        self.state.borrow_mut().with_exposures(|exposures, waiting, _| {
            exposures.expose_source(data, |op| waiting.push_back(Work::plain(op)))
        })
    }

    /// Lets the peer write `len` bytes that are never read.
    pub fn expose_sink(&self, len: usize) -> Result<Remote, Error> {
        self.state.borrow_mut().with_exposures(|exposures, waiting, _| {
            exposures.expose_sink(len, |op| waiting.push_back(Work::plain(op)))
        })
    }

    /// The address of an exposure's first byte; `None` if it is not exposed.
    pub fn origin(&self, stag: u32) -> Option<u64> {
        self.state.borrow().exposures.origin(stag)
    }

    /// Ends an exposure and returns its buffers. If the peer has not invalidated it and could still
    /// write, they are copies with the same content.
    ///
    /// # Errors
    /// [`Error::UnknownStag`].
    pub fn withdraw(&self, stag: u32) -> Result<Withdrawn, Error> {
        self.state.borrow_mut().with_exposures(|exposures, waiting, ended| {
            exposures.withdraw(stag, ended, |op, leaving| {
                waiting.push_back(Work { leaving: Some(leaving), ..Work::plain(op) });
            })
        })
    }

    /// Ends the connection once everything posted is complete and the peer has closed too, after 5 s
    /// in any case. [`Self::next`] reports the end.
    pub fn disconnect(&self) {
        self.state.borrow_mut().close();
    }

    /// The next completion.
    ///
    /// # Errors
    /// Why the connection has ended, after all completions.
    pub async fn next(&self) -> Result<Completion, Error> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`Self::next`] as a poll function; one waiter at a time.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        let state = &mut *self.state.borrow_mut();
        if let Some(completion) = state.ready.pop_front() {
            return Poll::Ready(Ok(completion));
        }
        if let Some(end) = &state.end {
            return Poll::Ready(Err(end.error()));
        }
        if !state.waiter.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waiter = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until fewer than `bytes` bytes are queued, or the connection has ended.
    pub async fn drained_below(&self, bytes: usize) {
        std::future::poll_fn(|cx| self.poll_drained(bytes, cx)).await
    }

    /// [`Self::drained_below`] as a poll function.
    pub fn poll_drained(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        let bytes = bytes.max(1);
        if state.queued < bytes || state.end.is_some() {
            return Poll::Ready(());
        }
        if !state.drained.iter().any(|(most, waker)| *most == bytes && waker.will_wake(cx.waker())) {
            state.drained.push((bytes, cx.waker().clone()));
        }
        Poll::Pending
    }

    fn post(&self, op: Op, notify: Option<u64>) {
        self.state.borrow_mut().post(Work { notify, ..Work::plain(op) });
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("peer", &self.peer)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}
