//! Handles the target's PDUs.

use invariant::broken;

use crate::pdu::{
    Bhs, DataIn, Opcode, PduRef, RESERVED_TAG, ReadyToTransfer, RejectReason, Residual, ResponseCode,
    ScsiResponse,
};
use crate::sn;
use crate::target::Payload;

use super::Place;
use super::abort::managed;
use super::event::{Completion, Event, ProtocolError};
use super::exchange::{Arrival, Exchange, MAX_READY, Turn};
use super::ids::{ConnectionId, TaskKey};
use super::recovery::Recovery;
use super::tasks::{Kind, Task};
use super::trouble::MAX_GAP;

/// A PDU's data segment.
#[derive(Debug, Clone)]
pub enum Segment<D> {
    /// The bytes, without padding.
    Here(D),
    /// The driver has already placed the bytes, by [`super::Session::expect_data`].
    Placed,
}

/// State that a PDU of the target changes.
pub(super) struct Inbound<'a, P, T> {
    pub exchange: &'a mut Exchange<P, T>,
    pub recovery: &'a mut Recovery,
}

impl<P: Payload, T> Inbound<'_, P, T> {
    /// Passes a piece of a read's data to its task. Returns false if the task has ended.
    pub fn place<D>(&mut self, key: TaskKey, offset: usize, data: D) -> bool
    where
        T: Place<D>,
    {
        let token = self.exchange.tasks.get_mut(key).and_then(|task| task.token.as_mut());
        token.map(|token| token.place(offset, data)).is_some()
    }

    /// Handles a PDU with verified digests.
    ///
    /// # Errors
    /// Any [`ProtocolError`], after which no more PDUs of the connection may be handled.
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
        let Some(rdma) = self.exchange.links.get(on).map(|c| c.rdma) else {
            return Err(ProtocolError::NoConnection);
        };
        let recovers = self.exchange.recovers();
        let wrong = Err(ProtocolError::Opcode(bhs.opcode_code()));
        let Some(pdu) = bhs.view() else { return wrong };
        // ExpCmdSN and MaxCmdSN are in bytes 28 to 35 of every target PDU (RFC 7143 §11.4 and
        // following).
        let word = |at: usize| {
            let s = &bhs.specific_20;
            u32::from_be_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
        };
        let (exp_cmd_sn, max_cmd_sn) = (word(8), word(12));
        let event = match pdu {
            // The datamover converts them into RDMA operations (RFC 7145 §7.3.5, §7.3.6).
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
                } else if self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())? {
                    match self.exchange.task_of(on, bhs, |k| matches!(k, Kind::Ping | Kind::Probe)) {
                        Ok(key)
                            if self.exchange.links.get(on).is_some_and(|c| c.status.probing == Some(key)) =>
                        {
                            self.recovery.probed(self.exchange, on, key);
                            None
                        }
                        Ok(key) => self
                            .recovery
                            .take_task(self.exchange, key)
                            .map(|(token, _)| Event::Pong(key, token)),
                        // The answer to an internal ping that was given up.
                        Err(ProtocolError::UnknownTask(_)) if recovers => None,
                        Err(error) => return Err(error),
                    }
                } else {
                    None
                };
                if pdu.ttt.get() != RESERVED_TAG {
                    if self.exchange.links.get(on).is_some_and(|c| c.ready >= MAX_READY) {
                        return Err(ProtocolError::Flood);
                    }
                    self.exchange.answer_ping(on, pdu.ttt.get(), pdu.lun);
                }
                event
            }
            PduRef::TaskManagementResponse(pdu) => {
                if !self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())? {
                    self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let suits = |k: &Kind<P>| matches!(k, Kind::TaskManagement(_) | Kind::Reassign { .. });
                match self.exchange.task_of(on, bhs, suits) {
                    Ok(key)
                        if matches!(
                            self.exchange.tasks.get(key).map(|t| &t.kind),
                            Some(Kind::Reassign { .. })
                        ) =>
                    {
                        self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
                        self.recovery.reassigned(self.exchange, key, pdu.result())?
                    }
                    Ok(key) => managed(self.exchange, self.recovery, (on, key), pdu.result()),
                    Err(ProtocolError::UnknownTask(_)) if recovers => None,
                    Err(error) => return Err(error),
                }
            }
            PduRef::TextResponse(pdu) => {
                if !self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())? {
                    self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let key = match self.exchange.task_of(on, bhs, |k| matches!(k, Kind::Text(_))) {
                    // The first request of two had arrived after all: it is answered twice.
                    Err(ProtocolError::UnknownTask(_)) if recovers => {
                        self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
                        return Ok(None);
                    }
                    found => found?,
                };
                let more = !bhs.is_final();
                let (ttt, lun) = (pdu.ttt.get(), pdu.lun);
                let Some(Kind::Text(assembler)) = self.exchange.tasks.get_mut(key).map(|t| &mut t.kind)
                else {
                    broken!("a text's task that has ended");
                    return Err(ProtocolError::UnknownTask(key.0));
                };
                if let Segment::Here(data) = &data {
                    assembler.push(data.as_ref(), more)?;
                }
                if more {
                    if ttt == RESERVED_TAG {
                        return Err(ProtocolError::Field);
                    }
                    self.exchange.continue_text(on, key, ttt, lun);
                    None
                } else {
                    let text = assembler.take();
                    self.recovery
                        .take_task(self.exchange, key)
                        .map(|(token, _)| Event::Text(key, token, text))
                }
            }
            PduRef::LogoutResponse(pdu) => {
                // Nothing is resent after the connection's end, so gaps before the response do not
                // matter.
                let key = TaskKey(bhs.itt());
                let last = matches!(self.exchange.tasks.get(key).map(|t| &t.kind), Some(Kind::Logout));
                if !self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())? && !last {
                    self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
                    return Ok(None);
                }
                let key =
                    match self.exchange.task_of(on, bhs, |k| matches!(k, Kind::Logout | Kind::Removal(_))) {
                        Err(ProtocolError::UnknownTask(_)) if recovers => {
                            self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
                            return Ok(None);
                        }
                        found => found?,
                    };
                if let Some(Kind::Removal(cid)) = self.exchange.tasks.get(key).map(|t| &t.kind) {
                    let cid = *cid;
                    self.recovery.end_internal(self.exchange, key);
                    let (time2wait_s, time2retain_s) = (pdu.time2wait.get(), pdu.time2retain.get());
                    Some(Event::Removed { cid, result: pdu.result(), time2wait_s, time2retain_s })
                } else {
                    self.recovery
                        .take_task(self.exchange, key)
                        .map(|(token, _)| Event::LoggedOut(key, token, pdu.result()))
                }
            }
            PduRef::AsyncMessage(pdu) => self
                .recovery
                .gaps
                .in_turn(self.exchange, on, pdu.stat_sn.get())?
                .then_some(Event::Async(*pdu)),
            PduRef::Reject(pdu) => {
                let header = match &data {
                    // The data segment contains the header of the rejected PDU (RFC 7143 §11.17).
                    Segment::Here(data) => Bhs::ref_from(data.as_ref()),
                    Segment::Placed => None,
                };
                // If a status waits for data, the answer to the SNACK for that data follows the
                // status.
                let held = self.exchange.links.get(on).and_then(|c| c.status.held);
                let snack = header.filter(|header| header.opcode() == Some(Opcode::SnackRequest));
                let awaited = snack.is_some_and(|header| held == Some(TaskKey(header.itt())));
                if !self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())? && !awaited {
                    self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
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
                    Some(header) => self.recovery.rejected(self.exchange, on, pdu.reason_code(), header)?,
                    None => None,
                };
                match told {
                    Some(event) => event,
                    None => {
                        let rejected = header.map(|header| TaskKey(header.itt()));
                        let ours = rejected.filter(|k| {
                            self.exchange.tasks.get(*k).is_some_and(|t| t.connection == Some(on))
                        });
                        let task =
                            ours.and_then(|key| Some((key, self.recovery.take_task(self.exchange, key)?.0)));
                        Some(Event::Rejected(pdu.reason_code(), task))
                    }
                }
            }
            _ => return wrong,
        };
        self.exchange.window.update(exp_cmd_sn, max_cmd_sn);
        Ok(event)
    }

    /// Handles a Data-In: its data by its DataSN, its status by its StatSN.
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
        let arrival = self.exchange.judge_data(on, bhs)?;
        let turn = if pdu.has_status() { Some(self.exchange.turn(on, pdu.stat_sn.get())?) } else { None };
        let after = sn::next(pdu.data_sn.get());
        let key = match arrival {
            Arrival::Next(key, offset) => {
                if let Segment::Here(data) = data {
                    self.place(key, offset as usize, data);
                }
                let Some(Task { idle, tries, kind: Kind::Scsi(scsi), .. }) = self.exchange.tasks.get_mut(key)
                else {
                    broken!("data-in of no command");
                    return Ok(None);
                };
                *idle = 0;
                scsi.received = offset + bhs.data_segment_len();
                scsi.data_came(after);
                if scsi.trouble.is_some() {
                    *tries = 0;
                }
                key
            }
            Arrival::Old(key) => key,
            Arrival::Early(key) => {
                self.recovery.gaps.data_missing(self.exchange, on, key, pdu.data_sn.get())?;
                key
            }
            Arrival::Stray => {
                if let Some(Turn::Now) = turn {
                    self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())?;
                }
                return Ok(None);
            }
        };
        // Accepting a status acknowledges its data too (§11.16.1).
        let asks = pdu.wants_ack() && !(turn == Some(Turn::Now) && matches!(arrival, Arrival::Next(..)));
        if asks && self.exchange.recovers() && !matches!(arrival, Arrival::Early(_)) {
            self.recovery.gaps.acknowledge_data(self.exchange, on, key, pdu.ttt.get(), pdu.lun)?;
        }
        match turn {
            None | Some(Turn::Old) => Ok(self.complete_held(on, key)),
            Some(Turn::Early) => {
                self.recovery.gaps.status_missing(self.exchange, on, pdu.stat_sn.get())?;
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

    /// Handles a SCSI Response if its StatSN is the expected one.
    fn scsi_response(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        pdu: &ScsiResponse,
        sense: &[u8],
    ) -> Result<Option<Event<T>>, ProtocolError> {
        match self.exchange.turn(on, pdu.stat_sn.get())? {
            Turn::Now => {}
            Turn::Old => return Ok(None),
            Turn::Early => {
                self.recovery.gaps.status_missing(self.exchange, on, pdu.stat_sn.get())?;
                return Ok(None);
            }
        }
        let key = match self.exchange.task_of(on, bhs, |k| matches!(k, Kind::Scsi(_))) {
            Ok(key) => key,
            // The response of a forgotten task.
            Err(ProtocolError::UnknownTask(_)) if self.exchange.is_stray(bhs) => {
                self.recovery.gaps.in_turn(self.exchange, on, pdu.stat_sn.get())?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let response = pdu.response_code().unwrap_or(ResponseCode::TargetFailure);
        let residual = pdu.residual().ok_or(ProtocolError::Field)?;
        let read_residual = pdu.bidi_residual().ok_or(ProtocolError::Field)?;
        if self.exchange.links.get(on).is_some_and(|c| c.rdma) {
            self.count_received(key, residual, read_residual)?;
        }
        let mut needed = None;
        if let Some(Kind::Scsi(scsi)) = self.exchange.tasks.get(key).map(|t| &t.kind) {
            let tag = scsi.trouble.as_ref().and_then(|trouble| trouble.snack_tag);
            if tag.is_some_and(|tag| tag != pdu.snack_tag.get()) {
                // It was sent before the R-Data SNACK arrived. The target will resend it with the
                // tag (§11.16.1).
                return Ok(None);
            }
            let reads = self.exchange.recovers() && scsi.read_len.is_some();
            if reads && response == ResponseCode::CommandCompleted {
                // The R2Ts of a bidirectional command share the numbers of its data and are counted
                // too (§11.4.8).
                let told = pdu.exp_data_sn.get();
                // Some targets do not count their Data-In; a gap already detected is still open.
                // After an R-Data SNACK earlier numbers are void.
                let gap = scsi.trouble.as_ref().map(|trouble| trouble.data);
                let gap = gap.filter(|gap| gap.open && tag.is_none());
                let mut least = gap.map_or(told, |gap| sn::max(told, sn::next(gap.last)));
                // Some do not resend the data of a Data-In when its status is requested; the
                // residual then shows the missing data.
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
        let needed = needed.unwrap_or_else(|| self.exchange.data_sn_of(key));
        self.end(on, key, completion, needed)
    }

    /// Ends a command whose status has arrived, unless Data-In before `needed` are missing.
    fn end(
        &mut self,
        on: ConnectionId,
        key: TaskKey,
        completion: Completion,
        needed: u32,
    ) -> Result<Option<Event<T>>, ProtocolError> {
        if self.exchange.links.get(on).is_some_and(|c| c.status.held.is_some_and(|held| held != key)) {
            // Another task has this number, and waits for its data.
            return Ok(None);
        }
        let Some(Kind::Scsi(scsi)) = self.exchange.tasks.get_mut(key).map(|t| &mut t.kind) else {
            broken!("the status of no command");
            return Ok(None);
        };
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
                let connection = self.exchange.links.get_mut(on);
                connection.into_iter().for_each(|c| c.status.held = Some(key));
                if !asked {
                    self.recovery.gaps.data_missing(self.exchange, on, key, needed.wrapping_sub(1))?;
                }
                return Ok(None);
            }
        }
        Ok(self.recovery.done(self.exchange, on, key, completion))
    }

    /// Ends a command whose status waited for its data, if the data is complete.
    fn complete_held(&mut self, on: ConnectionId, key: TaskKey) -> Option<Event<T>> {
        let Some(Kind::Scsi(scsi)) = self.exchange.tasks.get_mut(key).map(|t| &mut t.kind) else {
            broken!("data-in of no command");
            return None;
        };
        let data_sn = scsi.data_sn;
        let held = &mut scsi.trouble.as_mut()?.held;
        let (completion, _) = held.take_if(|(_, needed)| sn::ge(data_sn, *needed))?;
        self.recovery.done(self.exchange, on, key, completion)
    }

    /// Answers an R2T with the requested data. From error recovery level 1 on it may request any of
    /// the command's data, sent before or not (RFC 7143 §11.8, recovery R2T).
    fn ready_to_transfer(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        pdu: &ReadyToTransfer,
    ) -> Result<(), ProtocolError> {
        let recovers = self.exchange.recovers();
        let key = match self.exchange.task_of(on, bhs, |k| matches!(k, Kind::Scsi(s) if s.write.is_some())) {
            Ok(key) => key,
            Err(ProtocolError::UnknownTask(_)) if self.exchange.is_stray(bhs) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (max_burst, max_open) =
            (self.exchange.params.max_burst_length, self.exchange.params.max_outstanding_r2t);
        let (offset, len) = (pdu.buffer_offset.get(), pdu.desired_length.get());
        let Some(Task { idle, tries, kind: Kind::Scsi(scsi), .. }) = self.exchange.tasks.get_mut(key) else {
            broken!("an R2T for no command");
            return Err(ProtocolError::UnknownTask(key.0));
        };
        let (got, expected) = (pdu.r2t_sn.get(), scsi.r2t_sn);
        if got != expected && !(scsi.restart_r2t && sn::le(got, expected)) {
            return match recovers && sn::distance(expected, got) <= MAX_GAP {
                true => self.recovery.gaps.r2t_missing(self.exchange, on, key, got),
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
        // A target that respects MaxOutstandingR2T waits for queued data of ours. One that recovers
        // may request the same data again.
        let most = if recovers { max_open.saturating_mul(2).saturating_add(8) } else { max_open };
        if scsi.r2ts_open >= most {
            return Err(ProtocolError::Flood);
        }
        *idle = 0;
        scsi.r2ts_open += 1;
        scsi.r2t_came(sn::next(got));
        scsi.solicited = scsi.solicited.max(offset + len);
        if scsi.trouble.is_some() {
            *tries = 0;
        }
        self.exchange.put_solicited(on, key, pdu.ttt.get(), offset, len);
        Ok(())
    }

    /// The target's own ping carries the next StatSN: all statuses before it were sent (RFC 7143
    /// §11.19.2).
    fn next_status_is(&mut self, on: ConnectionId, next: u32) -> Result<(), ProtocolError> {
        if !self.exchange.recovers() || self.exchange.turn(on, next)? != Turn::Early {
            return Ok(());
        }
        let open = self.exchange.links.get(on).is_none_or(|c| c.status.gap.open || c.status.held.is_some());
        if open { Ok(()) } else { self.recovery.gaps.status_missing(self.exchange, on, next.wrapping_sub(1)) }
    }

    /// Over RDMA the session does not see the data. The bytes read are the command's expected
    /// length, less the residual of the response.
    fn count_received(
        &mut self,
        key: TaskKey,
        residual: Residual,
        read_residual: Residual,
    ) -> Result<(), ProtocolError> {
        let Some(Kind::Scsi(scsi)) = self.exchange.tasks.get_mut(key).map(|t| &mut t.kind) else {
            broken!("the response of no command");
            return Ok(());
        };
        let Some(expected) = scsi.read_len else { return Ok(()) };
        let missing = match if scsi.write.is_some() { read_residual } else { residual } {
            Residual::Underflow(missing) => missing,
            Residual::Exact | Residual::Overflow(_) => 0,
        };
        scsi.received = expected.checked_sub(missing).ok_or(ProtocolError::Field)?;
        Ok(())
    }
}

/// The sense data in a SCSI Response's data segment, after a length of two bytes (RFC 7143
/// §11.4.7).
fn sense_of(data: &[u8]) -> &[u8] {
    match data {
        [a, b, rest @ ..] => {
            let len = usize::from(u16::from_be_bytes([*a, *b]));
            rest.get(..len).unwrap_or(rest)
        }
        _ => &[],
    }
}
