//! What a target's PDUs mean to the session.

use crate::pdu::{
    AsyncMessage, Bhs, DataIn, LogoutResult, Opcode, PduRef, RESERVED_TAG, ReadyToTransfer, RejectReason,
    Residual, ResponseCode, ScsiResponse, TaskManagementResult,
};
use crate::sn;
use crate::target::Payload;
use crate::text::TextError;

use super::Place;
use super::arrival::{Arrival, Turn};
use super::recovery::MAX_GAP;
use super::session::{ConnectionId, Session};
use super::tasks::{Kind, TaskKey};

/// PDUs that may wait to be sent because the target asked for them.
pub(super) const MAX_READY: usize = 256;

/// A PDU's data segment.
#[derive(Debug, Clone)]
pub enum Segment<D> {
    /// Its bytes, without padding.
    Here(D),
    /// The driver has placed them already, by [`Session::expect_data`].
    Placed,
}

/// Why a target's PDU cannot be accepted. At error recovery levels 0 and 1 the session must end (RFC 7143 §7.4, §7.12), at
/// level 2 the connection, unless [`ProtocolError::ends_session`].
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
    /// A data digest is wrong, and the session does not recover from that.
    #[error("wrong data digest")]
    DataDigest,
    /// What is missing was asked for again in vain.
    #[error("the target does not send again what was lost on the way")]
    Unrecoverable,
    /// Tasks of a lost connection cannot go on on another.
    #[error("the target does not reassign tasks")]
    NoReassignment,
    /// A text is too long.
    #[error("text: {0}")]
    Text(#[from] TextError),
}

impl ProtocolError {
    /// Whether a new connection would not help.
    pub fn ends_session(&self) -> bool {
        matches!(self, ProtocolError::NoReassignment)
    }
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
    /// A command that must not be repeated was lost with its connection: the target does not know it, and whether it ran
    /// is unknown.
    Lost(TaskKey, T),
    /// The answer to [`Session::remove_for_recovery`]. `None` is a response that RFC 7143 does not define.
    Removed {
        /// The lost connection's CID.
        cid: u16,
        /// What became of it.
        result: Option<LogoutResult>,
        /// Seconds to wait before its tasks are reassigned.
        time2wait_s: u16,
        /// Seconds after that for which the target keeps them.
        time2retain_s: u16,
    },
}

impl<P: Payload, T> Session<P, T> {
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
    /// Any [`ProtocolError`], after which the connection must not be heard any more.
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
        let recovers = self.recovers();
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
                if let Segment::Here(data) = &data {
                    if data.as_ref().len() != bhs.data_segment_len() as usize {
                        return Err(ProtocolError::Field);
                    }
                }
                self.data_in(on, bhs, pdu, data)?
            }
            PduRef::ScsiResponse(pdu) => {
                let sense = match &data {
                    Segment::Here(data) => sense_of(data.as_ref()),
                    Segment::Placed => &[],
                };
                self.scsi_response(on, bhs, pdu, sense)?
            }
            PduRef::ReadyToTransfer(pdu) => {
                self.ready_to_transfer(on, bhs, pdu)?;
                None
            }
            PduRef::NopIn(pdu) => {
                let event = if pdu.itt.get() == RESERVED_TAG {
                    self.next_status_is(on, pdu.stat_sn.get())?;
                    None
                } else if self.in_turn(on, pdu.stat_sn.get())? {
                    match self.task_of(on, bhs, |k| matches!(k, Kind::Ping | Kind::Probe)) {
                        Ok(key) if self.connection(on).is_some_and(|c| c.status.probing == Some(key)) => {
                            self.probed(on, key);
                            None
                        }
                        Ok(key) => self.take_task(key).map(|(token, _)| Event::Pong(key, token)),
                        // A ping of the session itself that it had given up.
                        Err(ProtocolError::UnknownTask(_)) if recovers => None,
                        Err(error) => return Err(error),
                    }
                } else {
                    None
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
                if !self.in_turn(on, pdu.stat_sn.get())? {
                    self.update_window(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let suits = |k: &Kind<P>| matches!(k, Kind::TaskManagement | Kind::Reassign { .. });
                match self.task_of(on, bhs, suits) {
                    Ok(key)
                        if matches!(self.tasks.get(key).map(|t| &t.kind), Some(Kind::Reassign { .. })) =>
                    {
                        self.update_window(exp_cmd_sn, max_cmd_sn);
                        self.reassigned(key, pdu.result())?
                    }
                    Ok(key) => {
                        self.take_task(key).map(|(token, _)| Event::TaskManagement(key, token, pdu.result()))
                    }
                    Err(ProtocolError::UnknownTask(_)) if recovers => None,
                    Err(error) => return Err(error),
                }
            }
            PduRef::TextResponse(pdu) => {
                if !self.in_turn(on, pdu.stat_sn.get())? {
                    self.update_window(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let key = match self.task_of(on, bhs, |k| matches!(k, Kind::Text(_))) {
                    // A request that was sent again had arrived: it is answered twice.
                    Err(ProtocolError::UnknownTask(_)) if recovers => {
                        self.update_window(exp_cmd_sn, max_cmd_sn);
                        return Ok(None);
                    }
                    found => found?,
                };
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
                // After the end of the connection nothing comes again: what was lost before it does not matter.
                let key = TaskKey(bhs.itt());
                let last = matches!(self.tasks.get(key).map(|t| &t.kind), Some(Kind::Logout));
                if !self.in_turn(on, pdu.stat_sn.get())? && !last {
                    self.update_window(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let key = match self.task_of(on, bhs, |k| matches!(k, Kind::Logout | Kind::Removal(_))) {
                    Err(ProtocolError::UnknownTask(_)) if recovers => {
                        self.update_window(exp_cmd_sn, max_cmd_sn);
                        return Ok(None);
                    }
                    found => found?,
                };
                if let Some(Kind::Removal(cid)) = self.tasks.get(key).map(|t| &t.kind) {
                    let cid = *cid;
                    self.end_internal(key);
                    let (time2wait_s, time2retain_s) = (pdu.time2wait.get(), pdu.time2retain.get());
                    Some(Event::Removed { cid, result: pdu.result(), time2wait_s, time2retain_s })
                } else {
                    self.take_task(key).map(|(token, _)| Event::LoggedOut(key, token, pdu.result()))
                }
            }
            PduRef::AsyncMessage(pdu) => self.in_turn(on, pdu.stat_sn.get())?.then_some(Event::Async(*pdu)),
            PduRef::Reject(pdu) => {
                let header = match &data {
                    // The data segment holds the header of the PDU that was rejected (RFC 7143 §11.17).
                    Segment::Here(data) => Bhs::ref_from(data.as_ref()),
                    Segment::Placed => None,
                };
                // The answer to a SNACK for data that a status waits for comes after that status.
                let held = self.connection(on).and_then(|c| c.status.held);
                let snack = header.filter(|header| header.opcode() == Some(Opcode::SnackRequest));
                let awaited = snack.is_some_and(|header| held == Some(TaskKey(header.itt())));
                if !self.in_turn(on, pdu.stat_sn.get())? && !awaited {
                    self.update_window(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let carried = header.and_then(Bhs::opcode);
                let damaged = pdu.reason_code() == Some(RejectReason::DataDigestError)
                    && matches!(carried, Some(Opcode::ScsiCommand | Opcode::DataOut));
                if damaged && !recovers {
                    // A new session repeats the command; in this one it is lost, or fails.
                    return Err(ProtocolError::DataDigest);
                }
                let told = match header.filter(|_| recovers) {
                    Some(header) => self.rejected(on, pdu.reason_code(), header)?,
                    None => None,
                };
                match told {
                    Some(event) => event,
                    None => {
                        let rejected = header.map(|header| TaskKey(header.itt()));
                        let ours =
                            rejected.filter(|k| self.tasks.get(*k).is_some_and(|t| t.connection == Some(on)));
                        let task = ours.and_then(|key| Some((key, self.take_task(key)?.0)));
                        Some(Event::Rejected(pdu.reason_code(), task))
                    }
                }
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

    /// Takes a Data-In: its data by its DataSN, its status by its StatSN.
    fn data_in<D>(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        pdu: &DataIn,
        data: Segment<D>,
    ) -> Result<Option<Event<T>>, ProtocolError>
    where
        D: AsRef<[u8]>,
        T: Place<D>,
    {
        let arrival = self.judge_data(on, bhs)?;
        let turn = if pdu.has_status() { Some(self.turn(on, pdu.stat_sn.get())?) } else { None };
        let after = sn::next(pdu.data_sn.get());
        let key = match arrival {
            Arrival::Next(key, offset) => {
                if let Segment::Here(data) = data {
                    self.place(key, offset as usize, data);
                }
                let Some(task) = self.tasks.get_mut(key) else { return Ok(None) };
                let Kind::Scsi(scsi) = &mut task.kind else { return Ok(None) };
                task.idle = 0;
                scsi.received = offset + bhs.data_segment_len();
                scsi.data_came(after);
                if scsi.trouble.is_some() {
                    task.tries = 0;
                }
                key
            }
            Arrival::Old(key) => key,
            Arrival::Early(key) => {
                self.data_missing(on, key, pdu.data_sn.get())?;
                key
            }
            Arrival::Stray => {
                if let Some(Turn::Now) = turn {
                    self.in_turn(on, pdu.stat_sn.get())?;
                }
                return Ok(None);
            }
        };
        // A status that is taken acknowledges its data, too (§11.16.1).
        let asks = pdu.wants_ack() && !(turn == Some(Turn::Now) && matches!(arrival, Arrival::Next(..)));
        if asks && self.recovers() && !matches!(arrival, Arrival::Early(_)) {
            self.acknowledge_data(on, key, pdu.ttt.get(), pdu.lun)?;
        }
        match turn {
            None | Some(Turn::Old) => Ok(self.complete_held(on, key)),
            Some(Turn::Early) => {
                self.status_missing(on, pdu.stat_sn.get())?;
                Ok(None)
            }
            Some(Turn::Now) => {
                let residual = pdu.residual().ok_or(ProtocolError::Field)?;
                let completion = Completion {
                    status: pdu.status,
                    response: ResponseCode::CommandCompleted,
                    received: 0,
                    residual,
                    read_residual: Residual::Exact,
                    sense: Vec::new(),
                };
                self.end(on, key, completion, after)
            }
        }
    }

    /// Takes a SCSI Response, if it is its turn.
    fn scsi_response(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        pdu: &ScsiResponse,
        sense: &[u8],
    ) -> Result<Option<Event<T>>, ProtocolError> {
        match self.turn(on, pdu.stat_sn.get())? {
            Turn::Now => {}
            Turn::Old => return Ok(None),
            Turn::Early => {
                self.status_missing(on, pdu.stat_sn.get())?;
                return Ok(None);
            }
        }
        let key = match self.task_of(on, bhs, |k| matches!(k, Kind::Scsi(_))) {
            Ok(key) => key,
            // Of a task that was forgotten.
            Err(ProtocolError::UnknownTask(_)) if self.recovers() => {
                self.in_turn(on, pdu.stat_sn.get())?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let response = pdu.response_code().unwrap_or(ResponseCode::TargetFailure);
        let residual = pdu.residual().ok_or(ProtocolError::Field)?;
        let read_residual = pdu.bidi_residual().ok_or(ProtocolError::Field)?;
        if self.connection(on).is_some_and(|c| c.rdma) {
            self.count_received(key, residual, read_residual)?;
        }
        let mut needed = None;
        if let Some(Kind::Scsi(scsi)) = self.tasks.get(key).map(|t| &t.kind) {
            let tag = scsi.trouble.as_ref().and_then(|trouble| trouble.snack_tag);
            if tag.is_some_and(|tag| tag != pdu.snack_tag.get()) {
                // It was sent before the R-Data SNACK had arrived: it comes again with the tag (§11.16.1).
                return Ok(None);
            }
            let reads = self.recovers() && scsi.read_len.is_some();
            if reads && response == ResponseCode::CommandCompleted {
                // A bidirectional command's R2Ts have numbers among those of its data, and count too (§11.4.8).
                let told = pdu.exp_data_sn.get();
                // Some targets do not count; what was seen to be missing is missing all the same.
                // After an R-Data SNACK the numbers that were seen before mean nothing.
                let gap = scsi.trouble.as_ref().map(|trouble| trouble.data);
                let gap = gap.filter(|gap| gap.open && tag.is_none());
                let mut least = gap.map_or(told, |gap| sn::max(told, sn::next(gap.last)));
                // Nor do they send the data of a Data-In whose status they are asked for; it is missing if the residual says so.
                let all = match residual {
                    Residual::Underflow(missing) => scsi.read_len.map(|len| len.saturating_sub(missing)),
                    _ => scsi.read_len,
                };
                if pdu.status == 0 && scsi.write.is_none() && all.is_some_and(|all| scsi.received < all) {
                    least = sn::max(least, sn::next(scsi.data_sn));
                }
                needed = Some(least);
            }
        }
        let sense = sense.to_vec();
        let completion =
            Completion { status: pdu.status, response, received: 0, residual, read_residual, sense };
        let needed = needed.unwrap_or_else(|| self.data_sn_of(key));
        self.end(on, key, completion, needed)
    }

    fn data_sn_of(&self, key: TaskKey) -> u32 {
        match self.tasks.get(key).map(|t| &t.kind) {
            Some(Kind::Scsi(scsi)) => scsi.data_sn,
            _ => 0,
        }
    }

    /// A command's status is there: it ends, unless Data-In before `needed` are missing.
    fn end(
        &mut self,
        on: ConnectionId,
        key: TaskKey,
        completion: Completion,
        needed: u32,
    ) -> Result<Option<Event<T>>, ProtocolError> {
        if self.connection(on).is_some_and(|c| c.status.held.is_some_and(|held| held != key)) {
            // Another task has this number, and waits for its data.
            return Ok(None);
        }
        let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) else { return Ok(None) };
        let missing = sn::lt(scsi.data_sn, needed);
        if missing && sn::distance(scsi.data_sn, needed) > MAX_GAP {
            return Err(ProtocolError::DataSn { got: needed, expected: scsi.data_sn });
        }
        if missing {
            let good = completion.status == 0;
            let trouble = scsi.trouble.get_or_insert_default();
            if trouble.refused && good {
                return Err(ProtocolError::Unrecoverable);
            }
            if !trouble.refused {
                trouble.held = Some((completion, needed));
                let asked = trouble.data.open;
                let connection = self.connections.get_mut(on.0).and_then(Option::as_mut);
                connection.into_iter().for_each(|c| c.status.held = Some(key));
                if !asked {
                    self.data_missing(on, key, needed.wrapping_sub(1))?;
                }
                return Ok(None);
            }
        }
        Ok(self.done(on, key, completion))
    }

    /// Ends a command whose status waited for its data, if they are there.
    fn complete_held(&mut self, on: ConnectionId, key: TaskKey) -> Option<Event<T>> {
        let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) else { return None };
        let data_sn = scsi.data_sn;
        let held = &mut scsi.trouble.as_mut()?.held;
        let (completion, _) = held.take_if(|(_, needed)| sn::ge(data_sn, *needed))?;
        self.done(on, key, completion)
    }

    /// The command is over, and its status the one that was expected.
    pub(super) fn done(
        &mut self,
        on: ConnectionId,
        key: TaskKey,
        mut completion: Completion,
    ) -> Option<Event<T>> {
        let held = self.connection(on).is_some_and(|c| c.status.held == Some(key));
        if !held {
            self.advance_status(on);
        }
        // Taking it releases what was held.
        let (token, received) = self.take_task(key)?;
        completion.received = received;
        Some(Event::Done(key, token, completion))
    }

    /// Answers an R2T with the data that it asks for: from error recovery level 1 on any of the command's data, sent
    /// before or not (RFC 7143 §11.8, recovery R2T).
    fn ready_to_transfer(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        pdu: &ReadyToTransfer,
    ) -> Result<(), ProtocolError> {
        let recovers = self.recovers();
        let key = match self.task_of(on, bhs, |k| matches!(k, Kind::Scsi(s) if s.write.is_some())) {
            Ok(key) => key,
            Err(ProtocolError::UnknownTask(_)) if recovers => return Ok(()),
            Err(error) => return Err(error),
        };
        let (max_burst, max_open) = (self.params.max_burst_length, self.params.max_outstanding_r2t);
        let (offset, len) = (pdu.buffer_offset.get(), pdu.desired_length.get());
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::UnknownTask(key.0)) };
        let Kind::Scsi(scsi) = &mut task.kind else { return Err(ProtocolError::UnknownTask(key.0)) };
        let (got, expected) = (pdu.r2t_sn.get(), scsi.r2t_sn);
        if got != expected && !(scsi.restart_r2t && sn::le(got, expected)) {
            return match recovers && sn::distance(expected, got) <= MAX_GAP {
                true => self.r2t_missing(on, key, got),
                false if recovers && sn::lt(got, expected) => Ok(()),
                false => Err(ProtocolError::DataSn { got, expected }),
            };
        }
        let expected = scsi.write_len;
        let begins_right = recovers || offset == scsi.solicited;
        let fits = begins_right && offset <= expected && len <= expected - offset;
        if len == 0 || len > max_burst || !fits {
            return Err(ProtocolError::R2t { offset, len, expected });
        }
        // A target that keeps to MaxOutstandingR2T waits for data that we have not even sent. One that recovers may ask
        // again for what it thinks lost.
        let most = if recovers { max_open.saturating_mul(2).saturating_add(8) } else { max_open };
        if scsi.r2ts_open >= most {
            return Err(ProtocolError::Flood);
        }
        task.idle = 0;
        scsi.r2ts_open += 1;
        scsi.r2t_came(sn::next(got));
        scsi.solicited = scsi.solicited.max(offset + len);
        if scsi.trouble.is_some() {
            task.tries = 0;
        }
        self.put_solicited(on, key, pdu.ttt.get(), offset, len);
        Ok(())
    }

    /// The target's own ping names the StatSN that comes next: those before it were sent (RFC 7143 §11.19.2).
    fn next_status_is(&mut self, on: ConnectionId, next: u32) -> Result<(), ProtocolError> {
        if !self.recovers() || self.turn(on, next)? != Turn::Early {
            return Ok(());
        }
        let open = self.connection(on).is_none_or(|c| c.status.gap.open || c.status.held.is_some());
        if open { Ok(()) } else { self.status_missing(on, next.wrapping_sub(1)) }
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
