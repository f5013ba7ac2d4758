//! Exchange of a session with its target: its tasks, the connections with their output, the command
//! window, and the commands that wait for one. It judges by the numbers whether a PDU is the next
//! one.
//!
//! At error recovery level 0 any PDU out of order ends the session. From level 1 on, a repeated PDU
//! is dropped. An early one is dropped and requested again by SNACK, together with all missing PDUs
//! before it (RFC 7143 §11.16). So a task's received data is always a prefix of its transfer, and
//! statuses are processed in the order of their numbers.

use std::collections::VecDeque;

use invariant::{broken, invariant};

use crate::keys::Params;
use crate::pdu::{Bhs, Lun, NopOut, PduRef, RESERVED_TAG, SnackRequest, SnackType, TextRequest};
use crate::sn;
use crate::target::Payload;

use super::emit::{self, Emit};
use super::event::ProtocolError;
use super::ids::{ConnectionId, TaskKey};
use super::links::{Connection, Links, Out, Snack};
use super::session::SessionConfig;
use super::tasks::{Aborted, Kind, Tasks};
use super::trouble::{MAX_GAP, Recoveries};
use super::window::Window;

/// The maximum number of PDUs that the target's requests may queue.
pub(super) const MAX_READY: usize = 256;

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

/// A session's tasks, and all that they are sent and answered by.
#[derive(Debug)]
pub(super) struct Exchange<P, T> {
    pub params: Params,
    pub tasks: Tasks<P, T>,
    /// Tasks that wait for the window or a connection, in order.
    pub waiting: VecDeque<TaskKey>,
    pub links: Links<P>,
    pub window: Window,
    /// Aborted tasks of which PDUs may still arrive.
    pub aborted: Aborted,
    /// Outstanding immediate requests as last sent; kept for retransmission.
    pub requests: Vec<(TaskKey, Bhs, Option<P>)>,
    pub recoveries: Recoveries,
}

impl<P: Payload, T> Exchange<P, T> {
    pub fn new(config: SessionConfig) -> Self {
        Self {
            params: Params::default(),
            tasks: Tasks::new(config.max_tasks),
            waiting: VecDeque::new(),
            links: Links::new(),
            window: Window::new(config.first_cmd_sn),
            aborted: Aborted::default(),
            requests: Vec::new(),
            recoveries: Recoveries::default(),
        }
    }

    pub fn task_of(
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

    /// Whether the session recovers from faults within a connection (level 1 and up).
    #[inline]
    pub fn recovers(&self) -> bool {
        self.params.error_recovery_level > 0
    }

    /// Whether a PDU of an unknown task is to be dropped: the task was aborted, or error recovery
    /// made the target send the PDU twice.
    pub fn is_stray(&self, bhs: &Bhs) -> bool {
        self.recovers() || self.aborted.has(TaskKey(bhs.itt()))
    }

    /// Creates a task that is sent at once.
    pub fn begin(&mut self, on: ConnectionId, kind: Kind<P>, token: T) -> Result<TaskKey, T> {
        let Some(connection) = self.links.get_mut(on) else {
            return Err(token);
        };
        let key = self.tasks.insert(token, kind, self.window.cmd_sn(), Some(on))?;
        connection.outstanding += 1;
        Ok(key)
    }

    pub fn put(&mut self, on: ConnectionId, mut header: Bhs, immediate: bool, data: Option<P>) {
        header.set_immediate(immediate);
        match self.links.get_mut(on) {
            Some(connection) => connection.put(header, data),
            None => broken!("a PDU for a lost connection"),
        }
    }

    pub fn put_solicited(&mut self, on: ConnectionId, key: TaskKey, ttt: u32, offset: u32, len: u32) {
        match self.links.get_mut(on) {
            Some(connection) => connection.out.push_back(Out::Solicited { key, ttt, offset, len }),
            None => broken!("data-out for a lost connection"),
        }
    }

    /// As [`Self::put`], for an immediate request of a task, which may have to be resent.
    pub fn request(&mut self, on: ConnectionId, key: TaskKey, header: Bhs, data: Option<P>) {
        if self.recovers() {
            let tasks = &self.tasks;
            self.requests.retain(|(other, ..)| *other != key && tasks.get(*other).is_some());
            self.requests.push((key, header, data.clone()));
        }
        self.put(on, header, true, data);
    }

    /// Answers the target's ping.
    pub fn answer_ping(&mut self, on: ConnectionId, ttt: u32, lun: Lun) {
        let mut pdu = NopOut::answer(ttt, lun);
        pdu.cmd_sn.set(self.window.cmd_sn());
        self.put(on, pdu.into(), true, None);
    }

    /// Requests the rest of a text.
    pub fn continue_text(&mut self, on: ConnectionId, key: TaskKey, ttt: u32, lun: Lun) {
        let mut pdu = TextRequest::new(key.0, ttt);
        pdu.cmd_sn.set(self.window.cmd_sn());
        pdu.lun = lun;
        self.request(on, key, pdu.into(), None);
    }

    /// Assigns a CmdSN and a connection to waiting commands, as far as the window permits. Returns
    /// whether `on` has output; other connections may have some too.
    pub fn schedule(&mut self, on: ConnectionId) -> bool {
        let mut outstanding = if self.window.is_limited() { self.links.outstanding() } else { 0 };
        while let Some(&key) = self.waiting.front() {
            if !self.window.admits(outstanding) {
                break;
            }
            let Some(chosen) = self.links.choose() else { break };
            self.waiting.pop_front();
            let Some(task) = self.tasks.get_mut(key) else {
                broken!("a command that waits and has ended");
                continue;
            };
            task.cmd_sn = self.window.take();
            task.connection = Some(chosen);
            outstanding += 1;
            if let Some(connection) = self.links.get_mut(chosen) {
                connection.outstanding += 1;
                connection.out.push_back(Out::Command(key));
            }
        }
        self.has_output(on)
    }

    /// Whether a connection has output.
    pub fn has_output(&self, on: ConnectionId) -> bool {
        self.links.get(on).is_some_and(Connection::has_output)
    }

    pub fn emit(&mut self, on: ConnectionId, max_bytes: usize, writer: &mut impl Emit<P, T>) -> usize {
        while writer.written() < max_bytes {
            let Some(connection) = self.links.get_mut(on) else {
                broken!("a connection lost while it sends");
                break;
            };
            if let Some(Snack { kind, itt, tag, from, lun }) = connection.snacks.pop_front() {
                // PDUs that arrived since the SNACK was queued are acknowledged now, and must not
                // be requested (§11.16.1).
                if let Some(from) = self.still_missing(on, kind, TaskKey(itt), from) {
                    // The Target Transfer Tag alone identifies the task of a DataACK (§11.16.2).
                    let itt = if kind == SnackType::DataAck { RESERVED_TAG } else { itt };
                    let mut pdu = SnackRequest::new(kind, itt, tag, from, 0);
                    pdu.lun = lun;
                    writer.pdu(&mut pdu.into(), &[], None);
                }
                continue;
            }
            let Some(out) = connection.out.pop_front() else { break };
            let (room, epoch) = (connection.room, connection.segment_epoch);
            match out {
                Out::Ready { mut header, data } => {
                    if invariant!(connection.ready > 0, "more PDUs sent than were queued") {
                        connection.ready -= 1;
                    }
                    writer.pdu(&mut header, &[], data);
                }
                Out::Command(key) => {
                    if let Some(task) = self.tasks.get_mut(key).filter(|task| task.connection == Some(on)) {
                        (task.sent, task.idle) = (true, 0);
                        if let Kind::Scsi(scsi) = &mut task.kind {
                            scsi.segment_epoch = epoch;
                        }
                        emit::command(writer, key, task, &self.params, room);
                    }
                }
                Out::Solicited { key, ttt, offset, len } => {
                    // The task may have ended meanwhile; its data is then not needed.
                    if let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) {
                        scsi.r2ts_open = scsi.r2ts_open.saturating_sub(1);
                        emit::data_out(writer, key, scsi, ttt, offset, len, room);
                    }
                }
            }
        }
        writer.written()
    }

    /// Resends a command on its connection, with its old numbers (RFC 7143 §7.2.1).
    pub fn retry(&mut self, on: ConnectionId, key: TaskKey) {
        let connection = self.links.get_mut(on);
        let (Some(task), Some(connection)) = (self.tasks.get_mut(key), connection) else {
            broken!("a retry without a command or a connection");
            return;
        };
        if let Kind::Scsi(scsi) = &mut task.kind {
            scsi.rewind();
            connection.out.push_back(Out::Command(key));
            task.idle = 0;
            self.recoveries.retries += 1;
        }
    }

    /// Resends an immediate request unchanged.
    pub fn repeat(&mut self, on: ConnectionId, key: TaskKey) {
        let Some((_, header, data)) = self.requests.iter().find(|(other, ..)| *other == key) else {
            broken!("an outstanding request that was not kept");
            return;
        };
        let (header, data) = (*header, data.clone());
        if let Some(task) = self.tasks.get_mut(key) {
            task.idle = 0;
        }
        self.recoveries.requests += 1;
        self.put(on, header, true, data);
    }

    /// Whether `header` is a text request that was resent and then answered: the exchange has
    /// advanced, so that the target rejects its Target Transfer Tag.
    pub fn is_answered(&self, key: TaskKey, header: &Bhs) -> bool {
        let tag = |header: &Bhs| match header.view() {
            Some(PduRef::TextRequest(pdu)) => Some(pdu.ttt.get()),
            _ => None,
        };
        let Some(refused) = tag(header) else { return false };
        let now = self.requests.iter().find(|(other, ..)| *other == key);
        now.and_then(|(_, header, _)| tag(header)).is_some_and(|now| now != refused)
    }

    /// Sends an internal ping: the answer's numbers show whether a status or a command is missing.
    pub fn probe(&mut self, on: ConnectionId) {
        let Some(key) = self.tasks.insert_internal(Kind::Probe, self.window.cmd_sn(), on) else { return };
        let mut pdu = NopOut::ping(key.0);
        pdu.cmd_sn.set(self.window.cmd_sn());
        self.put(on, pdu.into(), true, None);
        if let Some(connection) = self.links.get_mut(on) {
            connection.status.probing = Some(key);
            connection.status.probes = connection.status.probes.wrapping_add(1);
        }
    }

    pub fn judge_data(&self, on: ConnectionId, bhs: &Bhs) -> Result<Arrival, ProtocolError> {
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
    pub fn turn(&self, on: ConnectionId, got: u32) -> Result<Turn, ProtocolError> {
        let connection = self.links.get(on).ok_or(ProtocolError::NoConnection)?;
        let expected = connection.exp_stat_sn;
        match self.recovers() {
            _ if got == expected => Ok(Turn::Now),
            true if sn::distance(expected, got) <= MAX_GAP => Ok(Turn::Early),
            true if sn::lt(got, expected) => Ok(Turn::Old),
            _ => Err(ProtocolError::StatSn { got, expected }),
        }
    }

    /// Advances ExpStatSN after the expected status.
    pub fn advance_status(&mut self, on: ConnectionId) {
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

    /// The first missing number for a queued SNACK. `None` if the missing PDUs have arrived, or the
    /// task has ended.
    pub fn still_missing(&self, on: ConnectionId, kind: SnackType, key: TaskKey, from: u32) -> Option<u32> {
        if kind == SnackType::Status {
            return self.links.get(on).filter(|c| c.status.gap.open).map(|c| c.exp_stat_sn);
        }
        let Kind::Scsi(scsi) = &self.tasks.get(key)?.kind else { return None };
        let trouble = scsi.trouble.as_deref();
        match kind {
            SnackType::DataAck => Some(from),
            _ if trouble.is_some_and(|t| t.data.open) => Some(scsi.data_sn),
            // With or without a gap: an unnecessary request is harmless.
            _ if scsi.write.is_some() => Some(scsi.r2t_sn),
            _ => None,
        }
    }

    pub fn data_sn_of(&self, key: TaskKey) -> u32 {
        match self.tasks.get(key).map(|t| &t.kind) {
            Some(Kind::Scsi(scsi)) => scsi.data_sn,
            _ => 0,
        }
    }
}

/// Sorts commands by CmdSN. Outstanding commands span far less than half of the number space.
pub(super) fn in_order<T>(commands: &mut [(u32, T)]) {
    commands.sort_by(
        |(a, _), (b, _)| if sn::lt(*a, *b) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater },
    );
}
