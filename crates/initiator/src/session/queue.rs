//! Commands by the batch: many submitted, sent together, and their ends collected together, without a future, a wake-up or
//! an allocation for each.
//!
//! It is a second way to the same session: what the protocol demands, reconnecting and repeating are those of
//! [`super::state`]. It must never wait for a single command.

use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use iscsi::initiator::{Command as ProtocolCommand, Completion, TaskKey};
use iscsi::pdu::{Lun, Residual, ResponseCode, TaskAttribute};
use ring::{BufMut, Chain};

use super::state::{Buffers, Core, Inner, State, Task};
use super::{MAX_READ, Session};
use crate::error::{Error, ScsiError};
use crate::payload::{Data, Destination};

/// What a queued command moves.
#[derive(Debug)]
pub enum Transfer {
    /// Nothing.
    None,
    /// As many bytes at most to the initiator, which counts and drops them.
    Discard(u32),
    /// To the initiator, as many bytes at most as the buffer's length; it comes back with [`Completed`].
    Read(BufMut),
    /// To the target.
    Write(Chain),
}

/// A queued command that has ended.
#[derive(Debug)]
pub struct Completed {
    /// What [`Queue::submit`] was given.
    pub token: u64,
    /// Bytes that were read.
    pub received: u32,
    /// Whether the command moved more or less than was expected.
    pub residual: Residual,
    /// The buffer of [`Transfer::Read`], cut to what was received.
    pub buffer: Option<BufMut>,
    /// [`Error::Scsi`] for a status other than GOOD and CONDITION MET; else as for a [`super::Ticket`].
    pub outcome: Result<(), Error>,
    /// When its last byte was received, or its end was known.
    pub at: Instant,
}

/// A queued command that has not ended.
#[derive(Debug)]
pub(super) struct Queued {
    pub key: TaskKey,
    pub token: u64,
    /// When it was last sent, or queued.
    pub since: Instant,
    pub replays: u8,
}

/// Submission and completion of commands by the batch. A session has at most one, and its other interface beside it.
///
/// Nothing is sent before [`Queue::flush`]: what was submitted between two flushes goes out in one system call, as far as
/// the target's window lets it. It belongs to the session's thread.
///
/// ```no_run
/// # async fn example(session: &initiator::Session) -> Result<(), initiator::Error> {
/// use initiator::{Lun, Transfer};
/// use scsi::cdb::build;
///
/// let mut queue = session.queue()?;
/// let mut ended = Vec::new();
/// for lba in 0..32 {
///     queue.submit(lba.into(), Lun::ZERO, &build::read10(lba, 8, build::Flags::default()), Transfer::Discard(4096))?;
/// }
/// queue.flush();
/// while queue.in_flight() > 0 {
///     queue.completions(&mut ended).await?;
///     for command in ended.drain(..) {
///         command.outcome?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Queue {
    session: Session,
}

impl Session {
    /// Opens the session's queue.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is open already, and whatever ended the session.
    pub fn queue(&self) -> Result<Queue, Error> {
        self.inner().check_open()?;
        let mut core = self.inner().core.borrow_mut();
        if core.has_queue {
            return Err(Error::Argument("the session's queue is open already"));
        }
        core.has_queue = true;
        core.ended.clear();
        drop(core);
        Ok(Queue { session: self.clone() })
    }
}

impl Queue {
    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    fn inner(&self) -> &Rc<Inner> {
        self.session.inner()
    }

    /// Commands that were submitted and have not ended, or whose end was not collected.
    pub fn in_flight(&self) -> usize {
        let core = self.inner().core.borrow();
        core.queued.len() + core.ended.len()
    }

    /// Commands that may be submitted now.
    pub fn room(&self) -> usize {
        let core = self.inner().core.borrow();
        self.inner().queue_depth().saturating_sub(core.protocol.commands())
    }

    /// Queues a simple command of 6 to 260 bytes that may be repeated when the session is made anew. `token` comes back
    /// with its end.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no [`Queue::room`], or the command fits no PDU; whatever ended the session.
    pub fn submit(&mut self, token: u64, lun: Lun, cdb: &[u8], transfer: Transfer) -> Result<(), Error> {
        let mut core = self.inner().core.borrow_mut();
        let core = &mut *core;
        match &core.state {
            State::Up | State::Down(_) => {}
            State::Closing => return Err(Error::Closed),
            State::Over(error) => return Err(error.clone()),
        }
        if !(6..=260).contains(&cdb.len()) {
            return Err(Error::Argument("a CDB has 6 to 260 bytes"));
        }
        if core.protocol.commands() >= self.inner().queue_depth() {
            return Err(Error::Argument("as many commands are under way as the session takes"));
        }
        let (destination, read_len, write) = match transfer {
            Transfer::None => (Destination::Nothing, None, None),
            Transfer::Discard(len) => (Destination::Discard, Some(len), None),
            Transfer::Read(buf) => {
                // The pool's buffers are far shorter than what a length field holds.
                let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
                (Destination::Pool(buf), Some(len), None)
            }
            Transfer::Write(data) => (Destination::Nothing, None, Some(Data(data))),
        };
        if read_len.is_some_and(|len| len > MAX_READ) {
            return Err(Error::Argument("the read is too long"));
        }
        let command =
            ProtocolCommand { lun, attribute: TaskAttribute::Simple, cdb, write, read_len, may_repeat: true };
        let write_len = command.write.as_ref().map_or(0, |data| data.0.len());
        let buffers = Buffers::new(destination, write_len);
        let entry = core.queued.vacant_entry();
        let key = core.protocol.submit(command, Task::Queued { slot: entry.key(), buffers });
        let key = key.map_err(|_| Error::Argument("the command fits no PDU"))?;
        entry.insert(Queued { key, token, since: ring::now(), replays: 0 });
        Ok(())
    }

    /// Sends what was submitted.
    pub fn flush(&mut self) {
        self.inner().core.borrow_mut().ring_links();
    }

    /// Moves the commands that have ended to `into`, without waiting. Answers how many there were.
    pub fn take(&mut self, into: &mut Vec<Completed>) -> usize {
        let mut core = self.inner().core.borrow_mut();
        let count = core.ended.len();
        into.append(&mut core.ended);
        count
    }

    /// Waits until a command has ended, and moves all that have to `into`. Returns at once when nothing is in flight.
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// Whatever ended the session, once the ends of all commands were collected.
    pub async fn completions(&mut self, into: &mut Vec<Completed>) -> Result<(), Error> {
        loop {
            if self.take(into) > 0 || self.inner().core.borrow().queued.is_empty() {
                return Ok(());
            }
            self.inner().check_open()?;
            self.inner().queue_bell.heard().await;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut core = self.inner().core.borrow_mut();
        core.has_queue = false;
        core.ended.clear();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} in flight on {:?})", self.in_flight(), self.session)
    }
}

impl Core {
    /// A queue's command ended with an answer.
    pub(super) fn end_queued(&mut self, slot: usize, destination: Destination, completion: &Completion) {
        let outcome = match (completion.response, completion.status) {
            (ResponseCode::CommandCompleted, 0x00 | 0x04) => Ok(()),
            (ResponseCode::CommandCompleted, status) => {
                let sense = scsi::Sense::parse(&completion.sense);
                Err(Error::Scsi(Box::new(ScsiError { status, sense })))
            }
            _ => Err(Error::TargetFailure),
        };
        let buffer = destination.into_buffer(completion.received as usize);
        self.collect(slot, (completion.received, completion.residual), buffer, outcome);
    }

    /// A queue's command ended without an answer.
    pub(super) fn fail_queued(&mut self, slot: usize, error: Error) {
        self.collect(slot, (0, Residual::Exact), None, Err(error));
    }

    fn collect(
        &mut self,
        slot: usize,
        (received, residual): (u32, Residual),
        buffer: Option<BufMut>,
        outcome: Result<(), Error>,
    ) {
        let Some(Queued { token, .. }) = self.queued.try_remove(slot) else { return };
        // Ends that nobody will collect are dropped.
        if self.has_queue {
            self.ended.push(Completed { token, received, residual, buffer, outcome, at: ring::now() });
        }
    }
}
