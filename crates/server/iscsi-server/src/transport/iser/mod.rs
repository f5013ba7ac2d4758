//! iSCSI over RDMA (iSER, RFC 7145): PDUs are RDMA Sends, a read's data goes by RDMA Write, a
//! write's is fetched by RDMA Read.
//!
//! [`outgoing`] posts to the queue pair and knows the initiator's memory by task; [`setup`] answers
//! connection requests and receives logins. Nothing here copies payload, and nothing waits except
//! for the queue pair.

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

/// The longest RDMA Read, bytes. Longer ones cost a wide network fewer turnarounds, but several are
/// outstanding at once, so that this length suffices.
pub(crate) const LONGEST_READ: u32 = 512 << 10;

/// One connection's queue pair as its receive loop sees it.
pub(crate) struct Iser {
    /// `None` when the connection has ended: a holder of this value does not hold the socket.
    pair: RefCell<Option<QueuePair>>,
    /// A task waits until the queue pair has room.
    pub waits_for_room: Cell<bool>,
    /// A task waits until few bytes are queued.
    pub watches_queue: Cell<bool>,
    /// The connection has ended.
    ended: Notify,
    /// The initiator has logged out of it.
    pub logged_out: Cell<bool>,
    /// Bytes sent and receives of the queue pair at the last check of the peer.
    moved: Cell<(u64, u64)>,
}

impl Iser {
    pub(crate) fn new(pair: QueuePair) -> Self {
        Self {
            pair: RefCell::new(Some(pair)),
            waits_for_room: Cell::new(false),
            watches_queue: Cell::new(false),
            ended: Notify::default(),
            logged_out: Cell::new(false),
            moved: Cell::default(),
        }
    }

    /// Whether, since the last call, bytes have come, or the network has taken some while more were
    /// waiting. A peer that moves data is alive, though its answer to a ping waits for all that was
    /// queued before, on either side.
    pub(crate) fn has_progressed(&self) -> bool {
        let Some(pair) = self.pair() else { return false };
        let counters = pair.counters();
        let (sent, receives) = self.moved.replace((counters.sent, counters.receives));
        counters.receives != receives || (counters.sent != sent && pair.queued() > 0)
    }

    /// The kernel's figures on the path, if the kernel runs the connection.
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

    /// Waits until fewer than `bytes` are queued. False: the connection has ended before. A waiter
    /// whose peer takes nothing does not keep the socket beyond that.
    pub(crate) async fn drained_below(&self, bytes: usize) -> bool {
        let Some(pair) = self.pair() else { return false };
        let mut drained = pin!(pair.drained_below(bytes));
        let mut ended = pin!(self.ended.until(|| self.pair.borrow().is_none().then_some(())));
        let drained = poll_fn(|cx| match drained.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => ended.as_mut().poll(cx).map(|()| false),
        })
        .await;
        // A [`Notify`] forgets waiters only when it wakes them: this one would stay there for the
        // connection's life. Another possible waiter checks again.
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

/// Waits until the network has taken all queued bytes, the connection is over, or `patience` has
/// passed.
pub(crate) async fn sent_or_over(pair: &QueuePair, patience: Duration) {
    let mut sent = pin!(pair.drained_below(1));
    // Further completions are of no use, but taking them lets the queue pair work.
    let mut over = pin!(async { while pair.next().await.is_ok() {} });
    let either = poll_fn(|cx| match sent.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => over.as_mut().poll(cx),
    });
    // After `patience`, a peer that takes nothing is given up.
    let _ = runtime::timeout(patience, either).await;
}

/// Waits until the peer closes the connection, or `patience` has passed.
pub(crate) async fn closed(pair: &QueuePair, patience: Duration) {
    let _ = runtime::timeout(patience, async { while pair.next().await.is_ok() {} }).await;
}

/// The first bytes of a message: in place if they are contiguous, or else copied to `space`, which
/// is no longer than the message.
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

/// The number of a task's RDMA Read that begins at byte `at` of its data-out.
fn id_of(task: TaskKey, at: u32) -> u64 {
    u64::from(at) << 32 | u64::from(task.tag())
}

/// The task whose RDMA Read has this number, and its first byte in the task's data-out.
pub(crate) fn key_of(id: u64) -> (TaskKey, u32) {
    // Made by `id_of` from 32 bits each.
    (TaskKey::from_tag(id as u32), (id >> 32) as u32)
}
