//! Commands in batches: many are submitted and sent together, and their completions collected
//! together, without a future, a wake-up or an allocation for each.
//!
//! It is a second interface to the same session: [`super::state`] implements the protocol,
//! reconnecting and repeating. It must never wait for a single command.

use std::fmt;
use std::rc::Rc;

use invariant::broken;
use iscsi::initiator::{Command as ProtocolCommand, Completion};
use iscsi::pdu::{Lun, Residual, ResponseCode, TaskAttribute};
use runtime::{BufMut, Chain};

use super::queued::{Completed, Queued};
use super::state::{Buffers, Core, Inner, State, Task};
use super::{MAX_READ, Session};
use crate::error::{Error, ScsiError};
use crate::payload::{Data, Destination};

/// The data transfer of a queued command.
#[derive(Debug)]
pub enum Transfer {
    /// No data.
    None,
    /// A read of at most this many bytes, which are counted and dropped.
    Discard(u32),
    /// A read of at most the buffer's length; [`Completed`] returns the buffer.
    Read(BufMut),
    /// A write of this data.
    Write(Chain),
}

/// Submission and completion of commands in batches. A session has at most one queue, besides its
/// other interface.
///
/// Nothing is sent before [`Queue::flush`]: commands submitted between two flushes are sent with
/// one system call, as far as the target's window allows. It belongs to the session's thread.
///
/// ```no_run
/// # async fn example(session: &iscsi_client::Session) -> Result<(), iscsi_client::Error> {
/// use iscsi_client::{Lun, Transfer};
/// use scsi::cdb::build;
///
/// let mut queue = session.queue()?;
/// let mut ended = Vec::new();
/// for lba in 0..32 {
///     let cdb = build::read10(lba, 8, build::Flags::default());
///     queue.submit(lba.into(), Lun::ZERO, &cdb, Transfer::Discard(4096))?;
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
    /// [`Error::Argument`] if it is already open; otherwise the reason why the session ended.
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

    /// Commands that were submitted but not yet collected.
    pub fn in_flight(&self) -> usize {
        let core = self.inner().core.borrow();
        core.queued.len() + core.ended.len()
    }

    /// Number of commands that may be submitted now.
    pub fn room(&self) -> usize {
        let core = self.inner().core.borrow();
        self.inner().queue_depth().saturating_sub(core.protocol.commands())
    }

    /// Queues a repeatable SIMPLE command with a CDB of 6 to 260 bytes. Its [`Completed`] has the
    /// `token`.
    ///
    /// # Errors
    /// [`Error::Argument`] without [`Queue::room`], or if the command fits no PDU; otherwise the
    /// reason why the session ended.
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
                // The pool's buffers are far shorter than the maximum of the length field.
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
        entry.insert(Queued { key, token, since: runtime::now(), replays: 0 });
        Ok(())
    }

    /// Sends the submitted commands.
    pub fn flush(&mut self) {
        self.inner().core.borrow_mut().ring_links();
    }

    /// Moves ended commands to `into`, without waiting. Returns their number.
    pub fn take(&mut self, into: &mut Vec<Completed>) -> usize {
        let mut core = self.inner().core.borrow_mut();
        let count = core.ended.len();
        into.append(&mut core.ended);
        count
    }

    /// Waits until a command has ended, and moves all ended ones to `into`. Returns at once if no
    /// command is in flight. Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// The reason why the session ended, once all commands were collected.
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
    /// Completes a queue's command that was answered.
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

    /// Completes a queue's command that was not answered.
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
        let Some(Queued { token, .. }) = self.queued.try_remove(slot) else {
            broken!("a queued command that ends twice");
            return;
        };
        // Without an open queue the completion is dropped.
        if self.has_queue {
            self.ended.push(Completed { token, received, residual, buffer, outcome, at: runtime::now() });
        }
    }
}
