//! The two tasks of an iSER connection (RFC 7145 §7). One exposes each command's memory and sends
//! the command. The other receives from the target, and withdraws the memory before returning it to
//! its owner.
//!
//! The target must have no access to a command's memory once the owner knows of its end.

use std::rc::Rc;

use invariant::broken;
use iscsi::initiator::{Buffers as Command, ConnectionId, Datamover, Event, Segment};
use iscsi::pdu::Bhs;
use iscsi::target::Payload;
use iser::{Control, Remote};
use rdma::{Completion, QueuePair, Rights, Stag};
use runtime::Chain;

use super::event::{act, follow_up, heard};
use super::state::{Buffers, Core, Inner, Task};
use crate::bell::Bell;
use crate::error::Error;
use crate::payload::{Data, Destination};
use crate::wire::iser::{Iser, foreign, post};

/// Approximate bytes per round of posts; later ones join the next round.
const BATCH: usize = 1 << 20;

/// Posts until the connection ends.
pub(super) async fn send(inner: Rc<Inner>, pair: QueuePair, on: ConnectionId, serial: u64, bell: Rc<Bell>) {
    loop {
        bell.heard().await;
        loop {
            let mut mover = Mover { pair: &pair, on, error: None };
            let written = {
                let mut core = inner.core.borrow_mut();
                let written = core.protocol.transmit_messages(on, BATCH, &mut mover);
                // Waiting commands may have moved to other connections.
                core.ring_links();
                written
            };
            if let Some(error) = mover.error {
                inner.lose_link(serial, error);
                return;
            }
            if written == 0 {
                break;
            }
            // Do not wait for answers to the target's RDMA Reads: there are always some while it
            // reads, and waiting for their end would leave the path idle for a round trip.
            pair.posts_drained_below(BATCH).await;
        }
    }
}

/// Exposes memory and posts commands.
struct Mover<'a> {
    pair: &'a QueuePair,
    on: ConnectionId,
    error: Option<Error>,
}

impl Datamover<Data, Task> for Mover<'_> {
    fn send_control(&mut self, header: &Bhs, ahs: &[u8], data: Option<Data>) {
        post(self.pair, Control::default(), header, ahs, data.map(|data| data.0));
    }

    fn send_command(
        &mut self,
        header: &Bhs,
        ahs: &[u8],
        data: Option<Data>,
        command: Command<'_, Data, Task>,
    ) {
        match self.expose(command) {
            Ok(control) => post(self.pair, control, header, ahs, data.map(|data| data.0)),
            Err(error) => self.error = Some(error),
        }
    }
}

impl Mover<'_> {
    fn expose(&self, command: Command<'_, Data, Task>) -> Result<Control, Error> {
        let mut control = Control::default();
        let Some(Buffers { destination, reach, .. }) = command.token.buffers_mut() else {
            broken!("a command without memory for its data");
            return Ok(control);
        };
        reach.on = Some(self.on);
        let pair = |error: rdma::Error| Error::of_pair(&error);
        if command.read_len > 0 {
            if let Destination::Lent(len) = *destination {
                // The network was still writing to it when the connection was lost.
                let again = Destination::in_pieces(len);
                *destination = again.ok_or_else(|| Error::Lost("no memory for a read".to_owned()))?;
            }
            let stag = match destination.lend() {
                Some(buffers) => self.pair.expose(buffers, Rights::Write).map_err(pair)?,
                None => self.pair.expose_sink(command.read_len.into()).map_err(pair)?,
            };
            reach.read = Some(stag);
            control.read = Some(Remote { stag: stag.0, offset: self.pair.origin(stag) });
        }
        if let Some(data) = command.write {
            // Expose only the solicited part: unsolicited data is not fetched.
            let mut rest = data.clone();
            let sent = (command.unsolicited as usize).min(rest.len());
            rest.split_to(sent);
            if !rest.is_empty() {
                let stag = self.pair.expose_source(rest.0).map_err(pair)?;
                reach.write = Some(stag);
                control.write = Some(Remote { stag: stag.0, offset: self.pair.origin(stag) });
            }
        }
        Ok(control)
    }
}

/// Receives until the connection ends.
pub(super) async fn receive(inner: Rc<Inner>, mut wire: Iser, on: ConnectionId, serial: u64) {
    loop {
        if wire.pair.receives_many() && inner.core.borrow().has_queue {
            // Send the results of the collected completions before the next receive copies up to 64
            // KiB, so that the target can work meanwhile. One turn for the queue's owner, one for
            // the sender.
            runtime::yield_now().await;
            runtime::yield_now().await;
            wire.pair.flush();
        }
        let outcome = match wire.pair.next().await {
            Ok(Completion::Received { message, invalidated, .. }) => {
                wire.pair.post_receives(1);
                take(&inner, &mut wire, on, &message, invalidated)
            }
            // No other completion was requested.
            Ok(_) => Ok(()),
            Err(error) => Err(Error::of_pair(&error)),
        };
        if let Err(error) = outcome {
            inner.lose_link(serial, error);
            return;
        }
    }
}

/// Handles one message.
fn take(
    inner: &Inner,
    wire: &mut Iser,
    on: ConnectionId,
    message: &Chain,
    invalidated: Option<Stag>,
) -> Result<(), Error> {
    let mut core = inner.core.borrow_mut();
    let core = &mut *core;
    heard(core, on);
    let event = wire.read(message, |bhs, data| Ok(core.protocol.handle(on, bhs, Segment::Here(data))?))?;
    let event = match (event, invalidated) {
        (Some(event), invalidated) => settle(inner, core, &wire.pair, event, invalidated)?,
        (None, Some(stag)) => return Err(foreign(stag)),
        (None, None) => None,
    };
    act(inner, core, on, event)?;
    follow_up(inner, core);
    Ok(())
}

/// Withdraws an ended command's memory from the target. A command with an implausible end fails.
fn settle(
    inner: &Inner,
    core: &mut Core,
    pair: &QueuePair,
    mut event: Event<Task>,
    invalidated: Option<Stag>,
) -> Result<Option<Event<Task>>, Error> {
    let buffers = match &mut event {
        Event::Done(_, task, _) | Event::Rejected(_, Some((_, task))) => task.buffers_mut(),
        _ => None,
    };
    let Some(Buffers { destination, reach, .. }) = buffers else {
        return invalidated.map_or(Ok(Some(event)), |stag| Err(foreign(stag)));
    };
    let stray = invalidated.filter(|stag| !reach.owns(*stag));
    let placed = reach.withdraw(pair, destination);
    let fault = match stray {
        Some(stag) => Some(foreign(stag)),
        None if matches!(destination, Destination::Lent(_)) => {
            Some(Error::Lost("the target goes on writing after its response".to_owned()))
        }
        None => None,
    };
    match (&mut event, fault) {
        (Event::Done(_, task, _) | Event::Rejected(_, Some((_, task))), Some(fault)) => {
            inner.fail_task(core, task, fault.clone());
            return Err(fault);
        }
        (Event::Done(_, _, completion), None) => {
            // A residual can claim more than the target wrote; bytes beyond are not read data.
            let placed = placed.map_or(u32::MAX, |placed| u32::try_from(placed).unwrap_or(u32::MAX));
            completion.received = completion.received.min(placed);
        }
        _ => {}
    }
    Ok(Some(event))
}
