//! What a target's PDUs mean to the session.

use crate::pdu::{
    AsyncMessage, Bhs, LogoutResult, PduRef, RESERVED_TAG, RejectReason, Residual, ResponseCode,
    TaskManagementResult,
};
use crate::target::Payload;
use crate::text::TextError;

use super::Place;
use super::session::{ConnectionId, Session};
use super::tasks::{Kind, TaskKey};

/// PDUs that may wait to be sent because the target asked for them.
const MAX_READY: usize = 256;

/// A PDU's data segment.
#[derive(Debug, Clone)]
pub enum Segment<D> {
    /// Its bytes, without padding.
    Here(D),
    /// The driver has placed them already, by [`Session::expect_data`].
    Placed,
}

/// Why a target's PDU cannot be accepted. At error recovery level 0 the session must end (RFC 7143 §7.4, §7.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The connection is not of this session.
    #[error("the connection is gone")]
    NoConnection,
    /// An initiator's PDU, a Login Response, or an opcode that is not defined.
    #[error("opcode {0:#04x} has no place here")]
    Opcode(u8),
    /// No task has that tag.
    #[error("task tag {0:#010x} belongs to no task")]
    UnknownTask(u32),
    /// The PDU does not suit the task that its tag names, or the task is another connection's.
    #[error("the PDU does not suit task {0:#010x}")]
    WrongTask(u32),
    /// StatSN is not the expected one.
    #[error("StatSN {got} where {expected} was expected")]
    StatSn {
        /// What came.
        got: u32,
        /// What was expected.
        expected: u32,
    },
    /// DataSN or R2TSN is not the expected one.
    #[error("DataSN or R2TSN {got} where {expected} was expected")]
    DataSn {
        /// What came.
        got: u32,
        /// What was expected.
        expected: u32,
    },
    /// Data-In outside of what the command reads, or out of order.
    #[error("Data-In of {len} bytes at {offset} does not fit a read of {expected}, {received} received")]
    DataIn {
        /// Buffer offset.
        offset: u32,
        /// Bytes.
        len: u32,
        /// What the command reads.
        expected: u32,
        /// What came before.
        received: u32,
    },
    /// An R2T for what the command does not write, out of order, or longer than MaxBurstLength.
    #[error("R2T for {len} bytes at {offset} does not fit a write of {expected}")]
    R2t {
        /// Buffer offset.
        offset: u32,
        /// Bytes.
        len: u32,
        /// What the command writes.
        expected: u32,
    },
    /// More R2Ts than MaxOutstandingR2T, or pings without end while nothing can be sent.
    #[error("the target asks for more than it may at once")]
    Flood,
    /// Flags contradict each other, or a length does not suit the PDU.
    #[error("a field of the PDU makes no sense")]
    Field,
    /// A text is too long.
    #[error("text: {0}")]
    Text(#[from] TextError),
}

/// How a SCSI command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The SCSI status; meaningless after [`ResponseCode::TargetFailure`].
    pub status: u8,
    /// Whether the target ran the command at all.
    pub response: ResponseCode,
    /// Bytes that were placed.
    pub received: u32,
    /// Of the write, or of the read if there is no write.
    pub residual: Residual,
    /// Of the read of a bidirectional command.
    pub read_residual: Residual,
    /// Sense data, if there are any.
    pub sense: Vec<u8>,
}

/// What happened.
#[derive(Debug)]
pub enum Event<T> {
    /// A SCSI command ended.
    Done(TaskKey, T, Completion),
    /// A task management function ended. `None` is a response that RFC 7143 does not define.
    TaskManagement(TaskKey, T, Option<TaskManagementResult>),
    /// The answer to a ping.
    Pong(TaskKey, T),
    /// The whole answer to a text.
    Text(TaskKey, T, Vec<u8>),
    /// The answer to a logout. `None` is a response that RFC 7143 does not define.
    LoggedOut(TaskKey, T, Option<LogoutResult>),
    /// The target tells something.
    Async(AsyncMessage),
    /// The target rejected a PDU, and with it the task if it had one.
    Rejected(Option<RejectReason>, Option<(TaskKey, T)>),
}

impl<P: Payload, T> Session<P, T> {
    /// Checks the header of a Data-In whose data is still coming, and says which task's data it is and at what offset.
    /// The driver then calls [`Session::place`] with each piece, and [`Session::handle`] with [`Segment::Placed`].
    ///
    /// # Errors
    /// As [`Session::handle`].
    pub fn expect_data(&self, on: ConnectionId, bhs: &Bhs) -> Result<(TaskKey, u32), ProtocolError> {
        let Some(PduRef::DataIn(pdu)) = bhs.view() else {
            return Err(ProtocolError::Opcode(bhs.opcode_code()));
        };
        let itt = pdu.itt.get();
        let key = TaskKey(itt);
        let task = self.tasks.get(key).ok_or(ProtocolError::UnknownTask(itt))?;
        let Kind::Scsi(scsi) = &task.kind else { return Err(ProtocolError::WrongTask(itt)) };
        let Some(expected) = scsi.read_len.filter(|_| task.connection == Some(on)) else {
            return Err(ProtocolError::WrongTask(itt));
        };
        let (got, data_sn) = (pdu.data_sn.get(), scsi.data_sn);
        if got != data_sn {
            return Err(ProtocolError::DataSn { got, expected: data_sn });
        }
        let (offset, len, received) = (pdu.buffer_offset.get(), bhs.data_segment_len(), scsi.received);
        // We insist on DataPDUInOrder and DataSequenceInOrder, so what fits is exactly what is next.
        if len > 0 && (offset != received || len > expected - received) {
            return Err(ProtocolError::DataIn { offset, len, expected, received });
        }
        Ok((key, received))
    }

    /// Hands a piece of a read's data to its task. Answers false if the task is gone.
    pub fn place<D>(&mut self, key: TaskKey, offset: usize, data: D) -> bool
    where
        T: Place<D>,
    {
        let token = self.token_mut(key);
        token.map(|token| token.place(offset, data)).is_some()
    }

    /// Handles a PDU whose digests are verified.
    ///
    /// # Errors
    /// Any [`ProtocolError`] must end the session.
    pub fn handle<D>(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        data: Segment<D>,
    ) -> Result<Option<Event<T>>, ProtocolError>
    where
        D: AsRef<[u8]>,
        T: Place<D>,
    {
        let Some(rdma) = self.connection(on).map(|c| c.rdma) else {
            return Err(ProtocolError::NoConnection);
        };
        let wrong = Err(ProtocolError::Opcode(bhs.opcode_code()));
        let Some(pdu) = bhs.view() else { return wrong };
        // ExpCmdSN and MaxCmdSN are in bytes 28 to 35 of every PDU that a target sends (RFC 7143 §11.4 and on).
        let word = |at: usize| {
            let s = &bhs.specific_20;
            u32::from_be_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
        };
        let (exp_cmd_sn, max_cmd_sn) = (word(8), word(12));
        let event = match pdu {
            // They are the datamover's to turn into RDMA (RFC 7145 §7.3.5, §7.3.6).
            PduRef::DataIn(_) | PduRef::ReadyToTransfer(_) if rdma => return wrong,
            PduRef::DataIn(pdu) => {
                let (key, offset) = self.expect_data(on, bhs)?;
                if pdu.has_status() {
                    self.take_stat_sn(on, pdu.stat_sn.get())?;
                }
                if let Segment::Here(data) = data {
                    if data.as_ref().len() != bhs.data_segment_len() as usize {
                        return Err(ProtocolError::Field);
                    }
                    self.place(key, offset as usize, data);
                }
                if let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) {
                    scsi.received += bhs.data_segment_len();
                    scsi.data_sn = scsi.data_sn.wrapping_add(1);
                }
                if pdu.has_status() {
                    let residual = pdu.residual().ok_or(ProtocolError::Field)?;
                    self.complete(
                        key,
                        pdu.status,
                        ResponseCode::CommandCompleted,
                        residual,
                        Residual::Exact,
                        &[],
                    )?
                } else {
                    None
                }
            }
            PduRef::ScsiResponse(pdu) => {
                let key = self.task_of(on, bhs, |k| matches!(k, Kind::Scsi(_)))?;
                self.take_stat_sn(on, pdu.stat_sn.get())?;
                let response = pdu.response_code().unwrap_or(ResponseCode::TargetFailure);
                let residual = pdu.residual().ok_or(ProtocolError::Field)?;
                let read_residual = pdu.bidi_residual().ok_or(ProtocolError::Field)?;
                let sense = match &data {
                    Segment::Here(data) => sense_of(data.as_ref()),
                    Segment::Placed => &[],
                };
                if rdma {
                    self.count_received(key, residual, read_residual)?;
                }
                self.complete(key, pdu.status, response, residual, read_residual, sense)?
            }
            PduRef::ReadyToTransfer(pdu) => {
                let key = self.task_of(on, bhs, |k| matches!(k, Kind::Scsi(s) if s.write.is_some()))?;
                let (max_burst, max_open) = (self.params.max_burst_length, self.params.max_outstanding_r2t);
                let (offset, len) = (pdu.buffer_offset.get(), pdu.desired_length.get());
                let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) else {
                    return Err(ProtocolError::UnknownTask(key.0));
                };
                let (got, expected) = (pdu.r2t_sn.get(), scsi.r2t_sn);
                if got != expected {
                    return Err(ProtocolError::DataSn { got, expected });
                }
                let expected = scsi.write_len;
                let fits = offset == scsi.solicited && len <= expected - scsi.solicited;
                if len == 0 || len > max_burst || !fits {
                    return Err(ProtocolError::R2t { offset, len, expected });
                }
                // A target that keeps to MaxOutstandingR2T waits for data that we have not even sent.
                if scsi.r2ts_open >= max_open {
                    return Err(ProtocolError::Flood);
                }
                scsi.r2ts_open += 1;
                scsi.r2t_sn = scsi.r2t_sn.wrapping_add(1);
                scsi.solicited += len;
                self.put_solicited(on, key, pdu.ttt.get(), offset, len);
                None
            }
            PduRef::NopIn(pdu) => {
                let event = if pdu.itt.get() == RESERVED_TAG {
                    None
                } else {
                    let key = self.task_of(on, bhs, |k| matches!(k, Kind::Ping))?;
                    self.take_stat_sn(on, pdu.stat_sn.get())?;
                    self.take_task(key).map(|(token, _)| Event::Pong(key, token))
                };
                if pdu.ttt.get() != RESERVED_TAG {
                    if self.connection(on).is_some_and(|c| c.ready >= MAX_READY) {
                        return Err(ProtocolError::Flood);
                    }
                    self.answer_ping(on, pdu.ttt.get(), pdu.lun);
                }
                event
            }
            PduRef::TaskManagementResponse(pdu) => {
                let key = self.task_of(on, bhs, |k| matches!(k, Kind::TaskManagement))?;
                self.take_stat_sn(on, pdu.stat_sn.get())?;
                self.take_task(key).map(|(token, _)| Event::TaskManagement(key, token, pdu.result()))
            }
            PduRef::TextResponse(pdu) => {
                let key = self.task_of(on, bhs, |k| matches!(k, Kind::Text(_)))?;
                self.take_stat_sn(on, pdu.stat_sn.get())?;
                let more = !bhs.is_final();
                let (ttt, lun) = (pdu.ttt.get(), pdu.lun);
                let Some(Kind::Text(assembler)) = self.tasks.get_mut(key).map(|t| &mut t.kind) else {
                    return Err(ProtocolError::UnknownTask(key.0));
                };
                if let Segment::Here(data) = &data {
                    assembler.push(data.as_ref(), more)?;
                }
                if more {
                    if ttt == RESERVED_TAG {
                        return Err(ProtocolError::Field);
                    }
                    self.continue_text(on, key, ttt, lun);
                    None
                } else {
                    let text = assembler.take();
                    self.take_task(key).map(|(token, _)| Event::Text(key, token, text))
                }
            }
            PduRef::LogoutResponse(pdu) => {
                let key = self.task_of(on, bhs, |k| matches!(k, Kind::Logout))?;
                self.take_stat_sn(on, pdu.stat_sn.get())?;
                self.take_task(key).map(|(token, _)| Event::LoggedOut(key, token, pdu.result()))
            }
            PduRef::AsyncMessage(pdu) => {
                self.take_stat_sn(on, pdu.stat_sn.get())?;
                Some(Event::Async(*pdu))
            }
            PduRef::Reject(pdu) => {
                self.take_stat_sn(on, pdu.stat_sn.get())?;
                let rejected = match &data {
                    // The data segment holds the header of the PDU that was rejected (RFC 7143 §11.17).
                    Segment::Here(data) => Bhs::ref_from(data.as_ref()).map(|b| TaskKey(b.itt())),
                    Segment::Placed => None,
                };
                let ours = rejected.filter(|k| self.tasks.get(*k).is_some_and(|t| t.connection == Some(on)));
                let task = ours.and_then(|key| Some((key, self.take_task(key)?.0)));
                Some(Event::Rejected(pdu.reason_code(), task))
            }
            _ => return wrong,
        };
        self.update_window(exp_cmd_sn, max_cmd_sn);
        Ok(event)
    }

    fn task_of(
        &self,
        on: ConnectionId,
        bhs: &Bhs,
        suits: impl FnOnce(&Kind<P>) -> bool,
    ) -> Result<TaskKey, ProtocolError> {
        let key = TaskKey(bhs.itt());
        let task = self.tasks.get(key).ok_or(ProtocolError::UnknownTask(key.0))?;
        if task.connection == Some(on) && suits(&task.kind) {
            Ok(key)
        } else {
            Err(ProtocolError::WrongTask(key.0))
        }
    }

    fn take_stat_sn(&mut self, on: ConnectionId, got: u32) -> Result<(), ProtocolError> {
        let connection = self.connections.get_mut(on.0).and_then(Option::as_mut);
        let connection = connection.ok_or(ProtocolError::NoConnection)?;
        let expected = connection.exp_stat_sn;
        if got != expected {
            return Err(ProtocolError::StatSn { got, expected });
        }
        connection.exp_stat_sn = got.wrapping_add(1);
        Ok(())
    }

    /// Over RDMA nobody saw the data pass: what was read is what the command expected, less what the response says is
    /// missing.
    fn count_received(
        &mut self,
        key: TaskKey,
        residual: Residual,
        read_residual: Residual,
    ) -> Result<(), ProtocolError> {
        let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) else { return Ok(()) };
        let Some(expected) = scsi.read_len else { return Ok(()) };
        let missing = match if scsi.write.is_some() { read_residual } else { residual } {
            Residual::Underflow(missing) => missing,
            Residual::Exact | Residual::Overflow(_) => 0,
        };
        scsi.received = expected.checked_sub(missing).ok_or(ProtocolError::Field)?;
        Ok(())
    }

    fn complete(
        &mut self,
        key: TaskKey,
        status: u8,
        response: ResponseCode,
        residual: Residual,
        read_residual: Residual,
        sense: &[u8],
    ) -> Result<Option<Event<T>>, ProtocolError> {
        let (token, received) = self.take_task(key).ok_or(ProtocolError::UnknownTask(key.0))?;
        let sense = sense.to_vec();
        let completion = Completion { status, response, received, residual, read_residual, sense };
        Ok(Some(Event::Done(key, token, completion)))
    }
}

/// The sense data of a SCSI Response's data segment: after a length of two bytes (RFC 7143 §11.4.7).
fn sense_of(data: &[u8]) -> &[u8] {
    match data {
        [a, b, rest @ ..] => {
            let len = usize::from(u16::from_be_bytes([*a, *b]));
            rest.get(..len).unwrap_or(rest)
        }
        _ => &[],
    }
}
