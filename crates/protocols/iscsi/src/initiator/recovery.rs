//! Error recovery levels 1 and 2 (RFC 7143 §7): it sees to silent tasks and missing PDUs, resends
//! what is not acknowledged, and moves tasks from a lost connection to another.
//!
//! The driver decides when a connection or a session is dead.

use invariant::{broken, invariant};

use crate::pdu::{
    Bhs, LogoutReason, LogoutRequest, Lun, NopOut, PduRef, RESERVED_TAG, RejectReason, SnackType,
    TaskManagementFunction, TaskManagementRequest, TaskManagementResult,
};
use crate::sn;
use crate::target::Payload;

use super::event::{Completion, Event, ProtocolError};
use super::exchange::{Arrival, Exchange, in_order};
use super::gaps::{Gaps, MAX_TRIES};
use super::ids::{ConnectionId, TaskKey};
use super::links::{Connection, Out};
use super::tasks::{Kind, Task};
use super::trouble::{Failed, MAX_GAP};

/// The maximum number of times that a task moves to another connection.
const MAX_MOVES: u8 = 32;
/// The maximum number of times that an immediate request is resent. The target may also just be
/// slow.
const MAX_REPEATS: u8 = 4;
/// The maximum number of outstanding TASK REASSIGNs: targets accept few immediate commands.
const MAX_REASSIGNS: usize = 4;
/// Ticks before a request is repeated, and before a silent task is examined.
const PATIENCE: u8 = 2;

/// Ticks of silence before the same PDU is requested again. The interval grows: on a slow
/// connection, repeated requests would only delay the data in flight.
fn patience(tries: u8) -> u8 {
    PATIENCE << tries.saturating_sub(1).min(4)
}

/// The connection that [`super::Session::tick`] gives up, or `None` for the whole session, with the
/// reason.
pub type GivenUp = (Option<ConnectionId>, ProtocolError);

/// State of a session's recovery, beside its tasks and connections.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub gaps: Gaps,
    /// Lost connections whose tasks wait to be reassigned.
    failed: Vec<Failed>,
    /// The number of outstanding TASK REASSIGNs.
    reassigning: usize,
}

impl Recovery {
    /// The session's connections are gone, and their tasks with them.
    pub fn forget(&mut self) {
        self.failed.clear();
        self.reassigning = 0;
    }

    /// Records a PDU with a valid header and a wrong data digest (RFC 7143 §7.8). The PDU is
    /// dropped, and its content is requested again.
    ///
    /// # Errors
    /// [`ProtocolError::DataDigest`] at error recovery level 0; else as `Session::handle`.
    pub fn bad_data_digest<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        bhs: &Bhs,
    ) -> Result<(), ProtocolError> {
        if !exchange.recovers() {
            return Err(ProtocolError::DataDigest);
        }
        exchange.recoveries.digest_errors += 1;
        let stat_sn = match bhs.view() {
            Some(PduRef::DataIn(pdu)) => {
                use Arrival::{Early, Next};
                let (got, arrival) = (pdu.data_sn.get(), exchange.judge_data(on, bhs)?);
                if let Next(key, _) | Early(key) = arrival {
                    return self.gaps.data_missing(exchange, on, key, got);
                }
                pdu.has_status().then(|| pdu.stat_sn.get())
            }
            Some(PduRef::ScsiResponse(pdu)) => Some(pdu.stat_sn.get()),
            Some(PduRef::TextResponse(pdu)) => Some(pdu.stat_sn.get()),
            Some(PduRef::AsyncMessage(pdu)) => Some(pdu.stat_sn.get()),
            Some(PduRef::Reject(pdu)) => Some(pdu.stat_sn.get()),
            Some(PduRef::NopIn(pdu)) => (pdu.itt.get() != RESERVED_TAG).then(|| pdu.stat_sn.get()),
            _ => None,
        };
        let Some(got) = stat_sn else { return Ok(()) };
        let expected = exchange.links.get(on).map_or(got, |c| c.exp_stat_sn);
        if sn::lt(got, expected) {
            return Ok(());
        }
        if sn::distance(expected, got) > MAX_GAP {
            return Err(ProtocolError::StatSn { got, expected });
        }
        self.gaps.status_missing(exchange, on, got)
    }

    /// Handles a Reject from error recovery level 1 on. `None` if it ends the task that it names.
    pub fn rejected<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        reason: Option<RejectReason>,
        header: &Bhs,
    ) -> Result<Option<Option<Event<T>>>, ProtocolError> {
        let key = TaskKey(header.itt());
        if exchange.is_answered(key, header) {
            return Ok(Some(None));
        }
        let task = exchange.tasks.get_mut(key).filter(|task| task.connection == Some(on));
        match (header.view(), reason) {
            // The target requests the data again, or ends the command itself (§7.8).
            (Some(PduRef::DataOut(_)), _) => Ok(Some(None)),
            (Some(PduRef::SnackRequest(pdu)), _) => match pdu.kind() {
                Some(SnackType::DataAck) | None => Ok(Some(None)),
                Some(SnackType::Status) => match exchange.links.get(on) {
                    // The requested statuses have arrived meanwhile.
                    Some(c) if !c.status.gap.open || sn::lt(pdu.beg_run.get(), c.exp_stat_sn) => {
                        Ok(Some(None))
                    }
                    _ => Err(ProtocolError::Unrecoverable),
                },
                Some(SnackType::DataR2t | SnackType::RData) => {
                    let Some(Kind::Scsi(scsi)) = task.map(|task| &mut task.kind) else {
                        return Ok(Some(None));
                    };
                    if scsi.write.is_none() && sn::lt(pdu.beg_run.get(), scsi.data_sn) {
                        return Ok(Some(None));
                    }
                    let Some(trouble) = &mut scsi.trouble else { return Ok(Some(None)) };
                    if trouble.r2t.open {
                        return Err(ProtocolError::Unrecoverable);
                    }
                    if trouble.data.open {
                        // The target will end the command with CHECK CONDITION (§11.17.1); a
                        // command already ended as GOOD lacks data.
                        (trouble.data.open, trouble.refused) = (false, true);
                        // Without a gap in the numbers, only the residual indicated missing data.
                        match trouble.held.take_if(|(_, needed)| *needed == sn::next(scsi.data_sn)) {
                            Some((completion, _)) if !trouble.seen => {
                                return Ok(Some(self.done(exchange, on, key, completion)));
                            }
                            None if trouble.held.is_none() => {}
                            _ => return Err(ProtocolError::Unrecoverable),
                        }
                    }
                    Ok(Some(None))
                }
            },
            // The target never accepted it as a command: the retry carries it and all of its data
            // (§7.2.1, §7.8).
            (Some(PduRef::ScsiCommand(_)), Some(RejectReason::DataDigestError)) => {
                let Some(task) = task else { return Ok(Some(None)) };
                task.tries += 1;
                if task.tries > MAX_TRIES {
                    return Ok(None);
                }
                exchange.retry(on, key);
                Ok(Some(None))
            }
            // The resent request had arrived before.
            (
                Some(PduRef::ScsiCommand(_) | PduRef::TaskManagementRequest(_)),
                Some(RejectReason::TaskInProgress),
            ) => Ok(Some(None)),
            // The target dropped the request.
            (
                Some(PduRef::TextRequest(_) | PduRef::LogoutRequest(_) | PduRef::TaskManagementRequest(_)),
                Some(RejectReason::DataDigestError),
            ) => {
                let Some(task) = task.filter(|task| task.tries < MAX_TRIES) else { return Ok(None) };
                task.tries += 1;
                exchange.repeat(on, key);
                Ok(Some(None))
            }
            _ => {
                let Some(kind) = task.map(|task| &task.kind) else { return Ok(Some(None)) };
                match kind {
                    Kind::Reassign { .. } => {
                        // Too many immediate commands: the next tick reassigns the task.
                        self.end_internal(exchange, key);
                        Ok(Some(None))
                    }
                    Kind::Probe => {
                        self.end_internal(exchange, key);
                        Ok(Some(None))
                    }
                    Kind::Removal(_) => Err(ProtocolError::NoReassignment),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Examines silent tasks and missing PDUs. The driver must call it at regular intervals; a task
    /// is examined after a few of them without a PDU for it. Does nothing at error recovery level
    /// 0.
    ///
    /// Returns the connection that must be given up, if any, or the session.
    pub fn tick<P: Payload, T>(&mut self, exchange: &mut Exchange<P, T>) -> Option<GivenUp> {
        if !exchange.recovers() {
            return None;
        }
        for on in exchange.links.ids() {
            let Some(connection) = exchange.links.get_mut(on) else { continue };
            let status = &mut connection.status;
            if status.gap.open && status.held.is_none() {
                status.ticks += 1;
                if status.ticks >= patience(status.tries) {
                    if let Err(error) = self.gaps.ask_status(exchange, on) {
                        return Some((Some(on), error));
                    }
                }
            }
        }
        let mut due = Vec::new();
        for (key, task) in exchange.tasks.iter_mut() {
            let immediate = !matches!(task.kind, Kind::Scsi(_));
            let Some(on) = task.connection.filter(|_| task.sent || immediate) else { continue };
            task.idle = task.idle.saturating_add(1);
            if task.idle >= PATIENCE && task.idle % PATIENCE == 0 {
                due.push((task.cmd_sn, (key, on)));
            }
        }
        // The oldest first: the target waits for it.
        in_order(&mut due);
        for (_, (key, on)) in due {
            if let Err(error) = self.look_after(exchange, key, on) {
                return Some((Some(on), error));
            }
        }
        self.move_orphans(exchange).err().map(|error| (None, error))
    }

    /// Examines a task that has received no PDU for a while.
    fn look_after<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        key: TaskKey,
        on: ConnectionId,
    ) -> Result<(), ProtocolError> {
        let exp_cmd_sn = exchange.window.exp_cmd_sn();
        let status = exchange.links.get(on).map(|c| c.status);
        let (Some(status), Some(task)) = (status, exchange.tasks.get_mut(key)) else {
            broken!("a silent task that has ended, or whose connection is lost");
            return Ok(());
        };
        let scsi = match &mut task.kind {
            Kind::Scsi(scsi) => scsi,
            // Unanswered: a new one can be sent later.
            Kind::Probe | Kind::Reassign { .. } if task.idle >= 4 * PATIENCE => {
                self.end_internal(exchange, key);
                return Ok(());
            }
            // A ping has no number that would show its loss, and the target answers each copy.
            Kind::Ping if task.idle >= 2 * PATIENCE => {
                task.idle = 0;
                let mut pdu = NopOut::ping(key.0);
                pdu.cmd_sn.set(exchange.window.cmd_sn());
                exchange.put(on, pdu.into(), true, None);
                return Ok(());
            }
            // If the response is lost, the StatSN in a ping's answer shows that. If no status is
            // missing, and the ping was sent after the request, then the request is lost or slow. A
            // copy of a slow request is rejected or executed twice, which is harmless for all of
            // these.
            Kind::TaskManagement(_) | Kind::Text(_) | Kind::Logout | Kind::Removal(_) => {
                if task.idle == PATIENCE {
                    task.probe = status.probes.wrapping_add(1);
                }
                let nothing_missing = !status.gap.open && status.held.is_none();
                let seen = task.idle > PATIENCE && sn::ge(status.probe_answered, task.probe);
                if seen
                    && nothing_missing
                    && task.tries < MAX_REPEATS
                    && task.idle >= 2 * patience(task.tries + 1)
                {
                    task.tries += 1;
                    exchange.repeat(on, key);
                } else if status.probing.is_none() {
                    exchange.probe(on);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        let trouble = scsi.trouble.as_deref();
        let late = task.idle >= patience(task.tries);
        if trouble.is_some_and(|t| t.data.open || t.held.is_some()) {
            return if late { self.gaps.ask_data(exchange, on, key) } else { Ok(()) };
        }
        if trouble.is_some_and(|t| t.r2t.open) {
            return if late { self.gaps.ask_r2t(exchange, on, key) } else { Ok(()) };
        }
        // The target waits for the first of the commands that it has not seen. An answered ping
        // that was sent after that command proves that it is lost, not late.
        if task.idle == PATIENCE {
            task.probe = status.probes.wrapping_add(1);
        }
        let lost = task.cmd_sn == exp_cmd_sn && sn::ge(status.probe_answered, task.probe);
        if lost && task.idle > PATIENCE {
            task.tries += 1;
            if task.tries > MAX_TRIES {
                return Err(ProtocolError::Unrecoverable);
            }
            exchange.retry(on, key);
            return Ok(());
        }
        if sn::lt(task.cmd_sn, exp_cmd_sn) {
            if task.moved {
                // The target had received it after all, on the lost connection.
                task.moved = false;
                return self.reassign(exchange, key, on, true);
            }
            let waits = scsi.solicited < scsi.write_len && scsi.r2ts_open == 0;
            if waits && task.idle == 4 * PATIENCE {
                // An R2T may be lost; if there was none, the target rejects the SNACK without harm.
                let from = scsi.r2t_sn;
                self.gaps.snack(exchange, on, SnackType::DataR2t, (key.0, RESERVED_TAG), from, Lun::ZERO)?;
            }
        }
        if status.probing.is_none() {
            exchange.probe(on);
        }
        Ok(())
    }

    /// Handles the answer to an internal ping.
    pub fn probed<P: Payload, T>(&mut self, exchange: &mut Exchange<P, T>, on: ConnectionId, key: TaskKey) {
        if let Some(connection) = exchange.links.get_mut(on) {
            connection.status.probe_answered = connection.status.probes;
        }
        self.end_internal(exchange, key);
    }

    /// Ends a command with the expected status.
    pub fn done<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        key: TaskKey,
        mut completion: Completion,
    ) -> Option<Event<T>> {
        let held = exchange.links.get(on).is_some_and(|c| c.status.held == Some(key));
        if !held {
            exchange.advance_status(on);
        }
        // Accepting it releases the statuses behind it.
        let (token, received) = self.take_task(exchange, key)?;
        completion.received = received;
        Some(Event::Done(key, token, completion))
    }

    /// Ends a task. Returns its token, and the number of a read's bytes placed.
    pub fn take_task<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        key: TaskKey,
    ) -> Option<(T, u32)> {
        if exchange.tasks.get(key)?.token.is_none() {
            self.end_internal(exchange, key);
            return None;
        }
        let (token, (connection, received)) = exchange.tasks.remove(key, |task| {
            let received = if let Kind::Scsi(scsi) = &task.kind { scsi.received } else { 0 };
            (task.connection, received)
        })?;
        match connection {
            Some(on) => {
                if let Some(connection) = exchange.links.get_mut(on) {
                    connection.task_ended();
                    if connection.status.held == Some(key) {
                        self.gaps.release_status(exchange, on);
                    }
                }
            }
            None => exchange.waiting.retain(|waiting| *waiting != key),
        }
        Some((token, received))
    }

    /// Ends an internal task.
    pub fn end_internal<P: Payload, T>(&mut self, exchange: &mut Exchange<P, T>, key: TaskKey) {
        let Some(task) = exchange.tasks.get(key) else {
            broken!("an internal task that ends twice");
            return;
        };
        let on = task.connection;
        let meant = match task.kind {
            Kind::Reassign { task, .. } => Some(task),
            _ => None,
        };
        let probe = matches!(task.kind, Kind::Probe);
        exchange.tasks.remove(key, |_| ());
        if let (true, Some(on)) = (probe, on) {
            if let Some(connection) = exchange.links.get_mut(on) {
                connection.status.probing = None;
            }
        }
        if let Some(meant) = meant {
            if invariant!(self.reassigning > 0, "more TASK REASSIGNs ended than began") {
                self.reassigning -= 1;
            }
            // Without an answer the task still has no connection.
            if let Some(task) = exchange.tasks.get_mut(meant) {
                if let (Some(on), Some(_)) = (task.connection, task.orphan) {
                    task.connection = None;
                    if let Some(connection) = exchange.links.get_mut(on) {
                        connection.task_ended();
                    }
                }
            }
        }
    }

    /// Handles the loss of a connection at error recovery level 2. Commands sent on it wait to be
    /// moved to another connection ([`Self::adopt`]). Tasks that cannot be moved (pings, texts,
    /// functions, logouts) are returned.
    pub fn lose_connection<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
    ) -> Vec<(TaskKey, T)> {
        let Some(connection) = exchange.links.take(on) else {
            return Vec::new();
        };
        let cid = connection.cid;
        exchange.recoveries.connections += 1;
        let (mut back, mut internal) = (Vec::new(), Vec::new());
        for (key, task) in exchange.tasks.iter_mut().filter(|(_, task)| task.connection == Some(on)) {
            match &mut task.kind {
                Kind::Scsi(scsi) => {
                    (task.connection, task.orphan) = (None, Some(cid));
                    (task.idle, task.tries) = (0, 0);
                    (scsi.r2ts_open, scsi.trouble) = (0, None);
                }
                _ if task.token.is_none() => internal.push(key),
                _ => back.push(key),
            }
        }
        internal.into_iter().for_each(|key| self.end_internal(exchange, key));
        self.failed.retain(|failed| failed.cid != cid);
        self.failed.push(Failed { cid, removed: false });
        back.into_iter().filter_map(|key| Some((key, exchange.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// The number of commands that wait to be moved to another connection.
    pub fn orphans<P: Payload, T>(&self, exchange: &Exchange<P, T>) -> usize {
        if self.failed.is_empty() {
            return 0;
        }
        exchange.tasks.iter().filter(|(_, task)| task.orphan.is_some()).count()
    }

    /// Sends a logout on connection `on` that removes a lost connection for recovery (RFC 7143
    /// §11.14.1); [`Event::Removed`] follows. Returns false if there is no connection `on`.
    pub fn remove_for_recovery<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        cid: u16,
    ) -> bool {
        if exchange.links.get(on).is_none() {
            return false;
        }
        let Some(key) = exchange.tasks.insert_internal(Kind::Removal(cid), exchange.window.cmd_sn(), on)
        else {
            return false;
        };
        let mut pdu = LogoutRequest::new(key.0, LogoutReason::RemoveForRecovery, cid);
        pdu.cmd_sn.set(exchange.window.cmd_sn());
        exchange.request(on, key, pdu.into(), None);
        true
    }

    /// Moves the tasks of a lost connection to the existing ones, now that the target has removed
    /// it. Call it after the response to [`Self::remove_for_recovery`], or when a new connection
    /// has the same CID.
    ///
    /// # Errors
    /// [`ProtocolError::NoReassignment`] if a task has moved too often: a new session is required.
    pub fn adopt<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        cid: u16,
    ) -> Result<(), ProtocolError> {
        self.failed.iter_mut().filter(|failed| failed.cid == cid).for_each(|failed| failed.removed = true);
        self.move_orphans(exchange)
    }

    /// Resends commands that the target has not seen, and reassigns the others (RFC 7143 §7.2.1,
    /// §7.2.2).
    pub fn move_orphans<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
    ) -> Result<(), ProtocolError> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let removed = |cid: u16| self.failed.iter().any(|failed| failed.cid == cid && failed.removed);
        let orphans = exchange.tasks.iter().filter(|(_, task)| {
            // A command without a number waits in the queue, and one with a connection waits for an
            // answer.
            task.connection.is_none() && task.orphan.is_some_and(|cid| removed(cid) || !task.sent)
        });
        let mut orphans: Vec<_> = orphans.map(|(key, task)| (task.cmd_sn, key)).collect();
        in_order(&mut orphans);
        for (cmd_sn, key) in orphans {
            let unseen = sn::ge(cmd_sn, exchange.window.exp_cmd_sn());
            if !unseen && self.reassigning >= MAX_REASSIGNS {
                continue;
            }
            let Some(on) = exchange.links.choose() else { return Ok(()) };
            let Some(task) = exchange.tasks.get_mut(key) else {
                broken!("a command that ended while others were moved");
                continue;
            };
            task.connection = Some(on);
            task.moves = task.moves.saturating_add(1);
            if task.moves > MAX_MOVES {
                return Err(ProtocolError::NoReassignment);
            }
            if let Some(connection) = exchange.links.get_mut(on) {
                connection.outstanding += 1;
            }
            if unseen {
                task.orphan = None;
                if task.sent {
                    task.moved = true;
                    exchange.recoveries.retries += 1;
                }
                if let Kind::Scsi(scsi) = &mut task.kind {
                    scsi.rewind();
                }
                if let Some(connection) = exchange.links.get_mut(on) {
                    connection.out.push_back(Out::Command(key));
                }
            } else {
                self.reassign(exchange, key, on, false)?;
            }
        }
        let tasks = &exchange.tasks;
        self.failed.retain(|failed| {
            !failed.removed || tasks.iter().any(|(_, task)| task.orphan == Some(failed.cid))
        });
        Ok(())
    }

    /// Sends TASK REASSIGN for a task (RFC 7143 §11.5.1, §7.2.2).
    fn reassign<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        key: TaskKey,
        on: ConnectionId,
        sent_again: bool,
    ) -> Result<(), ProtocolError> {
        let epoch = exchange.links.get(on).map_or(0, |c| c.segment_epoch);
        let request = exchange.tasks.insert_internal(
            Kind::Reassign { task: key, sent_again },
            exchange.window.cmd_sn(),
            on,
        );
        let request = request.ok_or(ProtocolError::Flood)?;
        self.reassigning += 1;
        let Some(Task { idle, tries, kind: Kind::Scsi(scsi), .. }) = exchange.tasks.get_mut(key) else {
            broken!("a TASK REASSIGN for no command");
            return Ok(());
        };
        (*idle, *tries) = (0, 0);
        (scsi.restart_data, scsi.restart_r2t) = (true, true);
        scsi.segment_epoch = epoch;
        let mut pdu = TaskManagementRequest::new(request.0, TaskManagementFunction::TaskReassign, scsi.lun);
        pdu.referenced_task_tag.set(key.0);
        pdu.exp_data_sn.set(if scsi.read_len.is_some() { scsi.data_sn } else { scsi.r2t_sn });
        pdu.cmd_sn.set(exchange.window.cmd_sn());
        exchange.put(on, pdu.into(), true, None);
        Ok(())
    }

    /// Handles the response to a TASK REASSIGN (RFC 7143 §11.6.1).
    pub fn reassigned<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        request: TaskKey,
        result: Option<TaskManagementResult>,
    ) -> Result<Option<Event<T>>, ProtocolError> {
        use TaskManagementResult::{FunctionComplete, LunDoesNotExist, TaskDoesNotExist, TaskStillAllegiant};
        let Some(Kind::Reassign { task: key, sent_again }) =
            exchange.tasks.get(request).map(|task| &task.kind)
        else {
            broken!("the answer to no TASK REASSIGN");
            return Ok(None);
        };
        let (key, sent_again) = (*key, *sent_again);
        let mut event = None;
        if let Some(task) = exchange.tasks.get_mut(key) {
            match result {
                Some(FunctionComplete) => {
                    task.orphan = None;
                    exchange.recoveries.reassigns += 1;
                }
                // Its allegiance is already to this connection.
                Some(TaskStillAllegiant) if sent_again => {}
                // The target has not detected the loss yet: retry with the next tick.
                Some(TaskStillAllegiant) => {}
                Some(TaskDoesNotExist | LunDoesNotExist) => {
                    let again = matches!(&task.kind, Kind::Scsi(scsi) if scsi.may_repeat);
                    if again {
                        let on = task.connection;
                        task.begin_again();
                        exchange.waiting.push_front(key);
                        exchange.recoveries.retries += 1;
                        let connection = on.and_then(|on| exchange.links.get_mut(on));
                        connection.into_iter().for_each(Connection::task_ended);
                    } else if let Some((token, _)) = self.take_task(exchange, key) {
                        event = Some(Event::Lost(key, token));
                    }
                }
                _ => return Err(ProtocolError::NoReassignment),
            }
        }
        self.end_internal(exchange, request);
        if result != Some(TaskStillAllegiant) {
            self.move_orphans(exchange)?;
        }
        Ok(event)
    }
}
