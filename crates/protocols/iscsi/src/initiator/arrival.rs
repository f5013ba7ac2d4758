//! The order of arrival: each numbered PDU is the expected one, a repetition, or early.
//!
//! At error recovery level 0 any PDU out of order ends the session. From level 1 on, a repeated PDU
//! is dropped. An early one is dropped and requested again by SNACK, together with all missing PDUs
//! before it (RFC 7143 §11.16). So a task's received data is always a prefix of its transfer, and
//! statuses are processed in the order of their numbers.

use invariant::broken;

use crate::pdu::{Bhs, PduRef};
use crate::sn;
use crate::target::Payload;

use super::event::ProtocolError;
use super::ids::{ConnectionId, TaskKey};
use super::session::Session;
use super::tasks::Kind;
use super::trouble::MAX_GAP;

/// The position of a PDU's StatSN relative to the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    Old,
    Early,
}

/// The position of a Data-In relative to the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is next: its data belongs at that offset.
    Next(TaskKey, u32),
    Old(TaskKey),
    Early(TaskKey),
    /// Its task has ended.
    Stray,
}

impl<P: Payload, T> Session<P, T> {
    /// Checks the header of a Data-In whose data segment is still incomplete. Returns the data's
    /// task and offset; `None` for data to be dropped. The driver then calls [`Session::place`]
    /// with each piece. At the end it calls [`Session::handle`] with [`super::Segment::Placed`], or
    /// [`Session::bad_data_digest`].
    ///
    /// # Errors
    /// As [`Session::handle`].
    pub fn expect_data(&self, on: ConnectionId, bhs: &Bhs) -> Result<Option<(TaskKey, u32)>, ProtocolError> {
        Ok(match self.judge_data(on, bhs)? {
            Arrival::Next(key, offset) => Some((key, offset)),
            Arrival::Old(_) | Arrival::Early(_) | Arrival::Stray => None,
        })
    }

    pub(super) fn judge_data(&self, on: ConnectionId, bhs: &Bhs) -> Result<Arrival, ProtocolError> {
        let Some(PduRef::DataIn(pdu)) = bhs.view() else {
            return Err(ProtocolError::Opcode(bhs.opcode_code()));
        };
        let recovers = self.recovers();
        let itt = pdu.itt.get();
        let key = TaskKey(itt);
        let Some(task) = self.tasks.get(key) else {
            return if recovers || self.aborted.has(key) {
                Ok(Arrival::Stray)
            } else {
                Err(ProtocolError::UnknownTask(itt))
            };
        };
        let Kind::Scsi(scsi) = &task.kind else { return Err(ProtocolError::WrongTask(itt)) };
        let Some(expected) = scsi.read_len.filter(|_| task.connection == Some(on)) else {
            return Err(ProtocolError::WrongTask(itt));
        };
        let (got, data_sn) = (pdu.data_sn.get(), scsi.data_sn);
        let (offset, len, received) = (pdu.buffer_offset.get(), bhs.data_segment_len(), scsi.received);
        // We require DataPDUInOrder and DataSequenceInOrder, so valid data is exactly the next
        // data.
        let fits = len == 0 || (offset == received && len <= expected - received);
        if got == data_sn && fits {
            return Ok(Arrival::Next(key, received));
        }
        // After a reassignment the target may resend any of it, in PDUs of other lengths (§7.2.2).
        if scsi.restart_data && sn::le(got, data_sn) && offset <= received && len <= expected - offset {
            return Ok(Arrival::Next(key, offset));
        }
        if got == data_sn {
            return Err(ProtocolError::DataIn { offset, len, expected, received });
        }
        match recovers && sn::distance(data_sn, got) <= MAX_GAP {
            true => Ok(Arrival::Early(key)),
            false if recovers && sn::lt(got, data_sn) => Ok(Arrival::Old(key)),
            false => Err(ProtocolError::DataSn { got, expected: data_sn }),
        }
    }

    /// Compares a StatSN with the expected one, without accepting it.
    pub(super) fn turn(&self, on: ConnectionId, got: u32) -> Result<Turn, ProtocolError> {
        let connection = self.links.get(on).ok_or(ProtocolError::NoConnection)?;
        let expected = connection.exp_stat_sn;
        match self.recovers() {
            _ if got == expected => Ok(Turn::Now),
            true if sn::distance(expected, got) <= MAX_GAP => Ok(Turn::Early),
            true if sn::lt(got, expected) => Ok(Turn::Old),
            _ => Err(ProtocolError::StatSn { got, expected }),
        }
    }

    /// Accepts a StatSN if it is the expected one. Returns whether the PDU is to be processed.
    pub(super) fn in_turn(&mut self, on: ConnectionId, got: u32) -> Result<bool, ProtocolError> {
        match self.turn(on, got)? {
            // A status that waits for its data already has this number.
            Turn::Now if self.links.get(on).is_some_and(|c| c.status.held.is_some()) => Ok(false),
            Turn::Now => {
                self.advance_status(on);
                Ok(true)
            }
            Turn::Old => Ok(false),
            Turn::Early => {
                self.status_missing(on, got)?;
                Ok(false)
            }
        }
    }

    /// Advances ExpStatSN after the expected status.
    pub(super) fn advance_status(&mut self, on: ConnectionId) {
        let Some(connection) = self.links.get_mut(on) else {
            broken!("a status on a lost connection");
            return;
        };
        connection.exp_stat_sn = sn::next(connection.exp_stat_sn);
        let status = &mut connection.status;
        if status.gap.open {
            (status.ticks, status.tries) = (0, 0);
            status.gap.open = sn::le(connection.exp_stat_sn, status.gap.last);
        }
    }

    /// Whether the session recovers from faults within a connection (level 1 and up).
    #[inline]
    pub(super) fn recovers(&self) -> bool {
        self.params.error_recovery_level > 0
    }
}
