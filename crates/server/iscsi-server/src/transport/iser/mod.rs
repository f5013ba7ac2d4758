//! iSCSI over RDMA (iSER, RFC 7145): PDUs are RDMA Sends, a read's data goes by RDMA Write, a write's is fetched by RDMA Read.
//!
//! What is posted, and which memory of the initiator's belongs to which task, is in [`outgoing`]; how a connection request is
//! answered and how its login comes in [`setup`]; where in units' memory what RDMA Reads bring belongs in [`landing`]. Nothing here copies
//! payload, and nothing waits but for the queue pair.

mod landing;
mod outgoing;
pub(crate) mod setup;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use iscsi::pdu::{Bhs, Opcode};
use iscsi::target::{Event, TaskKey};
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout};
use rdma::{Completion, Flags, QueuePair};
use runtime::{Chain, Notify};
use server_core::backlog::STEP;

use super::Transport;
use crate::connection::{Connection, End, Inner};
use crate::wire::Pieces;
pub(crate) use outgoing::{NoStag, Outgoing};

/// The longest RDMA Read, bytes. Long ones cost a wide network fewer turnarounds; they go side by side, so that they need not be
/// longer.
pub(crate) const LONGEST_READ: u32 = 512 << 10;

/// One connection's queue pair as its receive loop sees it.
pub(crate) struct Iser {
    /// `None` when the connection has ended: whoever still holds that does not hold its socket.
    pair: RefCell<Option<QueuePair>>,
    /// Somebody waits until the queue pair has room.
    waits_for_room: Cell<bool>,
    /// Somebody waits until little is queued.
    watches_queue: Cell<bool>,
    /// The connection has ended.
    ended: Notify,
    /// What the queue pair had sent when the peer was last looked at.
    sent: Cell<u64>,
}

impl Iser {
    pub(crate) fn new(pair: QueuePair) -> Self {
        Self {
            pair: RefCell::new(Some(pair)),
            waits_for_room: Cell::new(false),
            watches_queue: Cell::new(false),
            ended: Notify::default(),
            sent: Cell::new(0),
        }
    }

    /// Whether the network has taken something while more was waiting, since this was asked last: a peer that takes data lives,
    /// though its answer to a ping has to wait for all that was queued before.
    pub(crate) fn has_progressed(&self) -> bool {
        let Some(pair) = self.pair() else { return false };
        let sent = pair.counters().sent;
        self.sent.replace(sent) != sent && pair.queued() > 0
    }

    /// What the kernel knows of the path, where it is the kernel's.
    pub(crate) fn info(&self) -> Option<runtime::TcpInfo> {
        self.pair()?.tcp_info()
    }

    fn pair(&self) -> Option<QueuePair> {
        self.pair.borrow().clone()
    }

    /// Takes in what the queue pair brings, until the peer closes, breaks the protocol or is lost.
    pub(crate) async fn receive_loop(&self, connection: &Rc<Connection>, mut hello: bool) -> End {
        let Some(pair) = self.pair() else { return End::Closed };
        let sink: Weak<dyn rdma::DataSink> = Rc::<Connection>::downgrade(connection);
        pair.set_data_sink(sink);
        let high_water = connection.send_high_water;
        loop {
            // A peer that does not read what it asked for is not listened to either.
            let queued = pair.queued();
            connection.backlog.account(queued);
            if queued >= STEP.min(high_water) {
                let mark = connection.backlog.mark(high_water);
                if queued >= mark {
                    pair.drained_below(mark).await;
                    connection.backlog.account(pair.queued());
                }
                connection.watch_backlog();
            }
            connection.start_deferred();
            let completion = match pair.next().await {
                Ok(completion) => completion,
                Err(error) => return error.into(),
            };
            connection.heard();
            match completion {
                Completion::Received { message, .. } => {
                    pair.post_receives(1);
                    let taken = match std::mem::take(&mut hello) {
                        true => answer_hello(&pair, connection, &message),
                        false => on_message(connection, message),
                    };
                    if let Err(end) = taken {
                        return end;
                    }
                }
                Completion::Read { id, data } => connection.read_done(key_of(id).0, Pieces(data)),
                // Only reads are posted with a number; one that was flushed brings nothing, and the error follows.
                _ => {}
            }
        }
    }

    /// Counts what is queued once it is little again, whether anything comes or not.
    pub(crate) fn watch_queue(&self, connection: &Rc<Connection>) {
        if self.watches_queue.replace(true) {
            return;
        }
        let connection = connection.clone();
        runtime::spawn(async move {
            let Transport::Iser(iser) = &connection.transport else { return };
            let drained = iser.drained_below(STEP).await;
            iser.watches_queue.set(false);
            connection.backlog.account(iser.queued());
            // A connection that is lost counts as drained, whatever is queued.
            if drained && iser.queued() < STEP {
                connection.start_deferred();
            }
        });
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.pair.borrow().as_ref().map_or(0, QueuePair::queued)
    }

    /// Waits until fewer than `bytes` are queued. False: the connection has ended before. Who waits for a peer that takes nothing does
    /// not keep the socket beyond that.
    async fn drained_below(&self, bytes: usize) -> bool {
        let Some(pair) = self.pair() else { return false };
        let mut drained = pin!(pair.drained_below(bytes));
        let mut ended = pin!(self.ended.until(|| self.pair.borrow().is_none().then_some(())));
        let drained = poll_fn(|cx| match drained.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => ended.as_mut().poll(cx).map(|()| false),
        })
        .await;
        // Waiters are forgotten only when they are told: this one would stay there for as long as the connection lives. The other one that
        // may wait looks again.
        self.ended.notify();
        drained
    }

    /// Has `connection`'s waiters for room told when there is some.
    pub(crate) fn watch_room(&self, connection: &Rc<Connection>) {
        if self.waits_for_room.replace(true) {
            return;
        }
        let connection = connection.clone();
        runtime::spawn(async move {
            let Transport::Iser(iser) = &connection.transport else { return };
            let drained = iser.drained_below(connection.backlog.mark(connection.send_high_water)).await;
            iser.waits_for_room.set(false);
            // Otherwise they are told when the connection is lost, and until then there is none.
            if drained {
                connection.room.notify();
            }
        });
    }

    /// Ends the connection: after a `clean` end what is queued is still sent, if the peer takes it within `patience`.
    pub(crate) async fn wind_down(&self, connection: &Connection, clean: bool, patience: Duration) {
        let Some(pair) = self.pair.take() else { return };
        self.ended.notify();
        // What was copied, and what was not: bench/rdma reads it.
        tracing::debug!(moved = ?pair.counters(), "iSER connection ended");
        if clean {
            sent_or_over(&pair, patience).await;
        }
        pair.disconnect();
        connection.inner.borrow_mut().outbox.iser = None;
    }
}

/// Waits until all that is queued has been taken by the network, the connection is over, or `patience` has passed.
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

/// The first message of an initiator that declared iSERHelloRequired (RFC 7145 §5.1.3).
fn answer_hello(pair: &QueuePair, connection: &Connection, message: &Chain) -> Result<(), End> {
    let mut head = [0; HEADER_LEN];
    let len = message.len().min(HEADER_LEN);
    let Header::Hello(hello) = Header::decode(prefix(message, &mut head[..len]))? else {
        return Err(End::NoHello);
    };
    let reply = hello.answer(pair.ord());
    let flags = Flags { invalidate: None, solicited: true };
    pair.post_send(&reply.encode(), Chain::new(), flags, None);
    if reply.rejected || reply.ord == 0 {
        pair.flush();
        return Err(End::NoHello);
    }
    if let Some(outgoing) = &mut connection.inner.borrow_mut().outbox.iser {
        outgoing.limit_reads(reply.ord);
    }
    Ok(())
}

/// One message of the full-feature phase.
fn on_message(connection: &Rc<Connection>, mut message: Chain) -> Result<(), End> {
    let mut space = [0; HEAD_LEN + setup::MAX_AHS];
    let len = message.len().min(space.len());
    let head = prefix(&message, &mut space[..len]);
    let Header::Control(control) = Header::decode(head)? else { return Err(End::NoHello) };
    let agreed = connection.negotiated.borrow().params.target_recv_data_segment_length as usize;
    let limits = iser::Limits { data: agreed.max(setup::LIMITS.data), ..setup::LIMITS };
    let layout = Layout::of(head, message.len(), limits)?;
    // `Layout` has seen to it that there is a BHS and that the AHSs are within the head.
    let Some(bhs) = head.get(HEADER_LEN..HEAD_LEN).and_then(Bhs::ref_from).copied() else {
        return Err(End::NoHello);
    };
    let mut ahs = [0; setup::MAX_AHS];
    let ahs = &mut ahs[..layout.ahs.len()];
    ahs.copy_from_slice(&head[layout.ahs.clone()]);
    message.truncate(layout.data.end);
    message.advance(layout.data.start);
    let data = Pieces(message);
    if let Some(expected) = bhs.exp_stat_sn() {
        let Inner { state, outbox } = &mut *connection.inner.borrow_mut();
        if let Some(outgoing) = &mut outbox.iser {
            outgoing.confirm(state.stat_sn(), expected);
        }
    }
    connection.on_pdu(&bhs, ahs, data, |inner, event| {
        if bhs.opcode() == Some(Opcode::ScsiCommand) {
            remember(inner, control, bhs.itt(), event);
        }
    })
}

/// Keeps a command's steering tags by its task.
fn remember(inner: &mut Inner, control: Control, itt: u32, event: Option<&Event>) {
    let task = match event {
        Some(Event::Command(command)) => Some(command.task),
        // It waits for its turn, or was refused.
        _ => inner.state.find(itt),
    };
    if let (Some(task), Some(outgoing)) = (task, &mut inner.outbox.iser) {
        outgoing.remember(task, control);
    }
}

/// The first bytes of a message: where they lie if they are in one piece, or else copied to `space`, which is no longer than the
/// message.
fn prefix<'a>(message: &'a Chain, space: &'a mut [u8]) -> &'a [u8] {
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
fn key_of(id: u64) -> (TaskKey, u32) {
    // Made by `id_of` from 32 bits each.
    (TaskKey::from_tag(id as u32), (id >> 32) as u32)
}
