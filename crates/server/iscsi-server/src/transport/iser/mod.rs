//! iSCSI over RDMA (iSER, RFC 7145): PDUs are RDMA Sends, a read's data goes by RDMA Write, a
//! write's is fetched by RDMA Read.
//!
//! What is posted, and which memory of the initiator's belongs to which task, is in [`outgoing`];
//! how a connection request is answered and how its login comes in [`setup`]. Nothing here copies
//! payload, and nothing waits but for the queue pair.

mod outgoing;
pub(crate) mod setup;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use iscsi::target::TaskKey;
use rdma::QueuePair;
use runtime::{Chain, Notify};

pub(crate) use outgoing::Outgoing;

/// The longest RDMA Read, bytes. Long ones cost a wide network fewer turnarounds; they go side by
/// side, so that they need not be longer.
pub(crate) const LONGEST_READ: u32 = 512 << 10;

/// One connection's queue pair as its receive loop sees it.
pub(crate) struct Iser {
    /// `None` when the connection has ended: whoever still holds that does not hold its socket.
    pair: RefCell<Option<QueuePair>>,
    /// Somebody waits until the queue pair has room.
    pub waits_for_room: Cell<bool>,
    /// Somebody waits until little is queued.
    pub watches_queue: Cell<bool>,
    /// The connection has ended.
    ended: Notify,
    /// Bytes that the queue pair had sent, and its receives, when the peer was last looked at.
    moved: Cell<(u64, u64)>,
}

impl Iser {
    pub(crate) fn new(pair: QueuePair) -> Self {
        Self {
            pair: RefCell::new(Some(pair)),
            waits_for_room: Cell::new(false),
            watches_queue: Cell::new(false),
            ended: Notify::default(),
            moved: Cell::default(),
        }
    }

    /// Whether bytes have come, or the network has taken something while more was waiting, since this
    /// was asked last: a peer that moves data lives, though its answer to a ping has to wait for all
    /// that was queued before, on either side.
    pub(crate) fn has_progressed(&self) -> bool {
        let Some(pair) = self.pair() else { return false };
        let counters = pair.counters();
        let (sent, receives) = self.moved.replace((counters.sent, counters.receives));
        counters.receives != receives || (counters.sent != sent && pair.queued() > 0)
    }

    /// What the kernel knows of the path, where it is the kernel's.
    pub(crate) fn info(&self) -> Option<runtime::TcpInfo> {
        self.pair()?.tcp_info()
    }

    pub(crate) fn pair(&self) -> Option<QueuePair> {
        self.pair.borrow().clone()
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.pair.borrow().as_ref().map_or(0, QueuePair::queued)
    }

    /// Waits until fewer than `bytes` are queued. False: the connection has ended before. Who waits
    /// for a peer that takes nothing does not keep the socket beyond that.
    pub(crate) async fn drained_below(&self, bytes: usize) -> bool {
        let Some(pair) = self.pair() else { return false };
        let mut drained = pin!(pair.drained_below(bytes));
        let mut ended = pin!(self.ended.until(|| self.pair.borrow().is_none().then_some(())));
        let drained = poll_fn(|cx| match drained.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => ended.as_mut().poll(cx).map(|()| false),
        })
        .await;
        // Waiters are forgotten only when they are told: this one would stay there for as long as
        // the connection lives. The other one that may wait looks again.
        self.ended.notify();
        drained
    }

    /// Takes the queue pair from a connection that ends.
    pub(crate) fn take(&self) -> Option<QueuePair> {
        let pair = self.pair.take()?;
        self.ended.notify();
        Some(pair)
    }
}

/// Waits until all that is queued has been taken by the network, the connection is over, or
/// `patience` has passed.
pub(crate) async fn sent_or_over(pair: &QueuePair, patience: Duration) {
    let mut sent = pin!(pair.drained_below(1));
    // What still comes is of no use, but taking it lets the queue pair work.
    let mut over = pin!(async { while pair.next().await.is_ok() {} });
    let either = poll_fn(|cx| match sent.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => over.as_mut().poll(cx),
    });
    // A peer that takes nothing is left alone.
    let _ = runtime::timeout(patience, either).await;
}

/// The first bytes of a message: where they lie if they are in one piece, or else copied to
/// `space`, which is no longer than the message.
pub(crate) fn prefix<'a>(message: &'a Chain, space: &'a mut [u8]) -> &'a [u8] {
    let first = message.bufs().first().and_then(|buf| buf.as_slice());
    if let Some(bytes) = first.and_then(|bytes| bytes.get(..space.len())) {
        return bytes;
    }
    let mut at = 0;
    for piece in message.bufs() {
        let len = piece.len().min(space.len() - at);
        piece.slice(..len).copy_to(&mut space[at..at + len]);
        at += len;
    }
    space
}

/// The number of a task's RDMA Read that fetches what begins with byte `at` of its data-out.
fn id_of(task: TaskKey, at: u32) -> u64 {
    u64::from(at) << 32 | u64::from(task.tag())
}

/// The task whose RDMA Read has this number, and which byte of its data-out that begins with.
pub(crate) fn key_of(id: u64) -> (TaskKey, u32) {
    // Made by `id_of` from 32 bits each.
    (TaskKey::from_tag(id as u32), (id >> 32) as u32)
}
