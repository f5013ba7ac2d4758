//! A connection over iSER: receives from its queue pair, waits for room in it, and places data of
//! long WRITEs that RDMA Reads fetch directly in units' memory.
//!
//! The queue pair asks anew for the place of each piece. So a task that was aborted, or a unit that
//! refuses data now, gets no more of it. A unit lends its memory only while a piece is put in its
//! place; see [`super::landing`]. The queue pair chooses the pieces: without a CRC, the part of an
//! FPDU's payload that has arrived; with one, all of it, after its CRC was checked.

use std::rc::{Rc, Weak};
use std::time::Duration;

use device::{LEAST_LANDING, Landing, LandingStep};
use invariant::broken;
use iscsi::pdu::{Bhs, Opcode};
use iscsi::target::Event;
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout};
use rdma::{Completion, DataSink, Fill, Flags, Next, QueuePair};
use runtime::{Buf, Chain};
use server_core::backlog::STEP;

use super::{Connection, Inner};
use crate::end::End;
use crate::transport::Transport;
use crate::transport::iser::{Iser, closed, key_of, prefix, sent_or_over, setup};
use crate::wire::Pieces;

/// Handles completions of the queue pair, until the peer closes, breaks the protocol or is lost.
pub(super) async fn receive_loop(iser: &Iser, connection: &Rc<Connection>, mut hello: bool) -> End {
    let Some(pair) = iser.pair() else { return End::Closed };
    let sink: Weak<dyn rdma::DataSink> = Rc::<Connection>::downgrade(connection);
    pair.set_data_sink(sink);
    let high_water = connection.send_high_water;
    loop {
        // Backpressure: while a peer does not read the responses it asked for, nothing is received
        // from it.
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
        connection.room_moved();
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
            // Only reads are posted with a number. A flushed one has no data, and the error
            // follows.
            _ => {}
        }
    }
}

/// Counts the queued bytes again once they are few, even if nothing arrives.
pub(super) fn watch_queue(iser: &Iser, connection: &Rc<Connection>) {
    if iser.watches_queue.replace(true) {
        return;
    }
    let connection = connection.clone();
    runtime::spawn(async move {
        let Transport::Iser(iser) = &connection.transport else {
            broken!("a queue of RDMA over TCP");
            return;
        };
        let drained = iser.drained_below(STEP).await;
        iser.watches_queue.set(false);
        connection.backlog.account(iser.queued());
        // A lost connection counts as drained, even with bytes queued.
        if drained && iser.queued() < STEP {
            connection.room_moved();
        }
    });
}

/// Wakes `connection`'s waiters for room when there is some.
pub(super) fn watch_room(iser: &Iser, connection: &Rc<Connection>) {
    if iser.waits_for_room.replace(true) {
        return;
    }
    let connection = connection.clone();
    runtime::spawn(async move {
        let Transport::Iser(iser) = &connection.transport else {
            broken!("a queue of RDMA over TCP");
            return;
        };
        let drained = iser.drained_below(connection.backlog.mark(connection.send_high_water)).await;
        iser.waits_for_room.set(false);
        // Otherwise the loss of the connection wakes them, and until then there is no room.
        if drained {
            connection.room.notify();
        }
    });
}

/// Time for an initiator that has logged out to close the connection itself. Linux's siw takes its
/// logout for a failure (`QP fatal error`) if the target's FIN comes before its send has returned.
const FAREWELL: Duration = Duration::from_millis(500);

/// Ends the connection. After a `clean` end queued PDUs are still sent, if the peer takes them
/// within `patience`.
pub(super) async fn wind_down(iser: &Iser, connection: &Connection, clean: bool, patience: Duration) {
    let Some(pair) = iser.take() else { return };
    // Counters of copied and uncopied bytes: the lab reads this event.
    tracing::debug!(moved = ?pair.counters(), "iSER connection ended");
    if clean {
        sent_or_over(&pair, patience).await;
        if iser.logged_out.get() {
            closed(&pair, FAREWELL).await;
        }
    }
    pair.disconnect();
    connection.inner.borrow_mut().outbox.iser = None;
}

/// Answers the first message of an initiator that declared iSERHelloRequired (RFC 7145 §5.1.3).
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
    // `Layout` has checked that there is a BHS and that the AHSs are within the head.
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
        connection.acknowledged(expected);
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
        // The command waits for its turn, or was refused.
        _ => inner.state.find(itt),
    };
    if let (Some(task), Some(outgoing)) = (task, &mut inner.outbox.iser) {
        outgoing.remember(task, control);
    }
}

impl Connection {
    /// The place for the bytes from `offset` of an RDMA Read on, and the offset of the first of
    /// them in the command's data-out.
    fn place_of_read(&self, id: u64, offset: u64) -> Option<(Landing, u64)> {
        let (task, at) = key_of(id);
        Some((self.place_fetched(task)?, u64::from(at) + offset))
    }
}

impl DataSink for Connection {
    fn next(&self, id: u64, offset: u64, wanted: usize, there: usize, any: bool) -> Next {
        let Some((landing, offset)) = self.place_of_read(id, offset) else { return Next::Rest };
        let least = if any { landing.block as usize } else { LEAST_LANDING };
        match landing.step(offset, wanted, there, least) {
            LandingStep::Land(_, len) => Next::Place(len),
            LandingStep::Aside(len) => Next::Buffer(len),
            LandingStep::Rest => Next::Rest,
        }
    }

    fn place(&self, id: u64, offset: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        let (landing, offset) = self.place_of_read(id, offset)?;
        landing.unit.land(landing.at + offset, len, fill)
    }
}
