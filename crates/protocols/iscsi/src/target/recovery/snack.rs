//! SNACK requests (RFC 7143 §11.16): resends PDUs, unchanged except for the command window's
//! numbers, and discards acknowledged data.
//!
//! A request for PDUs that were never sent, or were acknowledged, is rejected. The number of
//! retransmissions of each PDU is limited.

use invariant::broken;

use super::{MAX_RESENDS, StatusData};
use crate::pdu::{self, Bhs, RESERVED_TAG, RejectReason, SnackRequest, SnackType};
use crate::sn;
use crate::target::events::Fatal;
use crate::target::numbering::Numbering;
use crate::target::payload::{Payload, Sink};
use crate::target::respond::{scsi_response, snack_rejected};
use crate::target::tasks::{Task, TaskKey, TaskTable};

/// The place of a task's history.
#[derive(Clone, Copy)]
enum Place {
    /// The task has not ended.
    Task(TaskKey),
    /// The task has ended with this retained status.
    Ended(usize),
}

/// The result of a SNACK; the error has the next DataSN or R2TSN.
type Result<T> = std::result::Result<T, (RejectReason, u32)>;

/// The numbers that a request covers, as a half-open range.
fn run(request: &SnackRequest, acked: u32, next: u32) -> Result<std::ops::Range<u32>> {
    let (first, len) = (request.beg_run.get(), request.run_length.get());
    if first == 0 && len == 0 {
        // All unacknowledged PDUs.
        return Ok(acked..next);
    }
    let end = if len == 0 { next } else { first.wrapping_add(len) };
    let sent = sn::distance(acked, next);
    let (from, to) = (sn::distance(acked, first), sn::distance(acked, end));
    match from < to && to <= sent && (len == 0 || len <= sent) {
        true => Ok(first..end),
        // Never sent, or already acknowledged (§11.16).
        false => Err((RejectReason::ProtocolError, next)),
    }
}

/// Resends what was sent on one connection.
pub(in crate::target) struct Resend<'a, P> {
    pub tasks: &'a mut TaskTable<P>,
    pub numbering: &'a mut Numbering<P>,
    /// MaxBurstLength, bytes.
    pub max_burst: u32,
}

impl<P: Payload> Resend<'_, P> {
    /// Handles a SNACK request at ErrorRecoveryLevel 1 or 2.
    pub fn answer(
        &mut self,
        request: &SnackRequest,
        bhs: &Bhs,
        sink: &mut impl Sink<P>,
    ) -> std::result::Result<(), Fatal> {
        let tagged = bhs.itt() != RESERVED_TAG;
        let result = match request.kind() {
            Some(SnackType::Status) if !tagged => self.status_snack(request, sink),
            Some(SnackType::DataAck) if !tagged => self.data_ack(request),
            Some(SnackType::DataR2t) if tagged => self.data_snack(request, sink),
            Some(SnackType::RData) if tagged => self.r_data_snack(request, sink),
            _ => Err((RejectReason::InvalidPduField, 0)),
        };
        if request.kind() != Some(SnackType::DataAck) {
            self.numbering.recovered.snacks += 1;
            self.numbering.recovered.rejected_snacks += u64::from(result.is_err());
        }
        match result {
            Ok(()) => Ok(()),
            Err((reason, data_sn)) => self.numbering.reject_with(reason, bhs, data_sn, sink),
        }
    }

    fn status_snack(&mut self, request: &SnackRequest, sink: &mut impl Sink<P>) -> Result<()> {
        let next = self.numbering.output.stat_sn();
        let Some(recovery) = &self.numbering.recovery else {
            broken!("a SNACK at ErrorRecoveryLevel 0");
            return Ok(());
        };
        let oldest = recovery.statuses.front().map_or(next, |status| status.stat_sn);
        let run = run(request, oldest, next).map_err(|(reason, _)| (reason, 0))?;
        let first = recovery.place_of(run.start).unwrap_or(recovery.statuses.len());
        let count = sn::distance(run.start, run.end) as usize;
        (first..first + count).try_for_each(|at| self.resend_status(at, sink))
    }

    fn resend_status(&mut self, at: usize, sink: &mut impl Sink<P>) -> Result<()> {
        let numbers = self.numbering.order.numbers();
        let status = self.numbering.recovery.as_mut().and_then(|recovery| recovery.statuses.get_mut(at));
        let Some(status) = status else {
            broken!("status {at} is not retained");
            return Ok(());
        };
        if status.resent >= MAX_RESENDS {
            return Err((RejectReason::SnackReject, 0));
        }
        status.resent += 1;
        self.numbering.recovered.resent_pdus += 1;
        let mut bhs = status.bhs;
        bhs.set_command_window(numbers);
        match &status.data {
            StatusData::Small(bytes) => {
                let bytes = bytes.clone();
                self.numbering.output.send_small(bhs, &bytes, sink);
            }
            StatusData::Payload(payload) => {
                let payload = payload.clone();
                self.numbering.output.send(bhs, payload, sink);
            }
        }
        Ok(())
    }

    /// Handles a DataACK: discards the Data-In PDUs that have arrived.
    fn data_ack(&mut self, request: &SnackRequest) -> Result<()> {
        const INVALID: (RejectReason, u32) = (RejectReason::InvalidDataAck, 0);
        let (tag, exp_data_sn) = (request.ttt.get(), request.beg_run.get());
        if request.run_length.get() != 0 {
            return Err((RejectReason::InvalidPduField, 0));
        }
        let lun = request.lun;
        let is_it = |task: &Task<P>| {
            let history = task.history.as_ref();
            task.lun_field == lun
                && tag != RESERVED_TAG
                && history.is_some_and(|history| history.ack_tag == Some(tag))
        };
        let running = self.tasks.iter().find(|(_, task)| is_it(task)).map(|(key, _)| Place::Task(key));
        // Its status may already be in flight.
        let ended = || {
            let mut statuses = self.numbering.recovery.as_ref()?.statuses.iter();
            statuses
                .position(|status| status.ended.as_ref().is_some_and(|ended| is_it(&ended.0)))
                .map(Place::Ended)
        };
        let place = running.or_else(ended).ok_or(INVALID)?;
        let task = self.task_at(place).ok_or(INVALID)?;
        let next = task.data_sn;
        let mut history = task.history.take().ok_or(INVALID)?;
        let now = self.numbering.keepalive.last_heard();
        // Discarded data may be acknowledged later.
        let given_up = history.lost && sn::lt(exp_data_sn, history.acked);
        let fits = given_up || sn::le(history.acked, exp_data_sn) && sn::le(exp_data_sn, next);
        if let (true, false, Some(recovery)) = (fits, given_up, &mut self.numbering.recovery) {
            recovery.ack_data(&mut history, exp_data_sn, now);
        }
        if let Some(task) = self.task_at(place) {
            task.history = Some(history);
        }
        self.numbering.give_owed_places();
        fits.then_some(()).ok_or(INVALID)
    }

    fn place(&self, itt: u32) -> Option<Place> {
        let ended = || self.numbering.recovery.as_ref()?.ended(itt).map(Place::Ended);
        self.tasks.find(itt).map(Place::Task).or_else(ended)
    }

    fn task_at(&mut self, place: Place) -> Option<&mut Task<P>> {
        match place {
            Place::Task(key) => self.tasks.get_mut(key),
            Place::Ended(at) => self
                .numbering
                .recovery
                .as_mut()?
                .statuses
                .get_mut(at)?
                .ended
                .as_mut()
                .map(|ended| &mut ended.0),
        }
    }

    /// Resends Data-In PDUs or R2Ts of one task.
    fn data_snack(&mut self, request: &SnackRequest, sink: &mut impl Sink<P>) -> Result<()> {
        const UNKNOWN: (RejectReason, u32) = (RejectReason::ProtocolError, 0);
        let place = self.place(request.itt.get()).ok_or(UNKNOWN)?;
        let numbers = self.numbering.order.numbers();
        let stat_sn = self.numbering.output.stat_sn();
        let task = self.task_at(place).ok_or(UNKNOWN)?;
        let next = task.next_data_sn();
        let (itt, lun) = (task.itt, task.lun_field);
        let history = task.history.as_mut().ok_or(UNKNOWN)?;
        if history.misses(request) {
            return Err(lost(task));
        }
        let oldest = history.oldest().unwrap_or(next);
        let mut pdus: Vec<(Bhs, Option<P>)> = Vec::new();
        for number in serial_range(run(request, oldest, next)?) {
            let (resent, pdu) = history.again(number, itt, lun, stat_sn).ok_or((UNKNOWN.0, next))?;
            if *resent >= MAX_RESENDS {
                return Err((RejectReason::SnackReject, next));
            }
            *resent += 1;
            pdus.push(pdu);
        }
        self.numbering.recovered.resent_pdus += pdus.len() as u64;
        for (mut bhs, data) in pdus {
            bhs.set_command_window(numbers);
            match data {
                Some(data) => self.numbering.output.send(bhs, data, sink),
                None => self.numbering.output.send_small(bhs, &[], sink),
            }
        }
        Ok(())
    }

    /// Resends all unacknowledged data-in of a task, divided for another MaxRecvDataSegmentLength
    /// (§11.16.3). The status follows in a SCSI Response with the SNACK's tag, whether or not it
    /// was sent before.
    fn r_data_snack(&mut self, request: &SnackRequest, sink: &mut impl Sink<P>) -> Result<()> {
        const UNKNOWN: (RejectReason, u32) = (RejectReason::ProtocolError, 0);
        let tag = request.ttt.get();
        if tag == 0 || tag == RESERVED_TAG || request.beg_run.get() != 0 || request.run_length.get() != 0 {
            return Err((RejectReason::InvalidPduField, 0));
        }
        let place = self.place(request.itt.get()).ok_or(UNKNOWN)?;
        let (max_segment, max_burst) = (self.numbering.output.max_segment(), self.max_burst);
        let fresh_tag = self.numbering.output.tag();
        let task = self.task_at(place).ok_or(UNKNOWN)?;
        let history = task.history.as_mut().ok_or(UNKNOWN)?;
        if history.lost {
            return Err(lost(task));
        }
        if history.data.iter().any(|sent| sent.resent >= MAX_RESENDS) {
            return Err((RejectReason::SnackReject, task.data_sn));
        }
        // The R2Ts of a bidirectional command share the numbers of its data, and keep theirs: the
        // data takes the other numbers in order. The number of data PDUs never decreases, so no
        // number stays unused.
        let r2ts: Vec<u32> = match task.bidirectional {
            true => history.r2ts.iter().map(|sent| sent.r2t.r2t_sn).collect(),
            false => Vec::new(),
        };
        if r2ts.first().is_some_and(|first| sn::lt(history.acked, *first) && r2ts.len() >= super::MAX_R2TS) {
            // There were more R2Ts than are retained.
            return Err((RejectReason::SnackReject, task.data_sn));
        }
        let resent = history.data.iter().map(|sent| sent.resent + 1).max().unwrap_or(1);
        let pieces: Vec<P> = std::mem::take(&mut history.data).into_iter().map(|sent| sent.data).collect();
        history.snack_tag = tag;
        task.data_sn = history.acked;
        task.sent = history.acked_bytes;
        let count = pieces.len();
        for (at, mut data) in pieces.into_iter().enumerate() {
            let ends = matches!(place, Place::Ended(_)) && at + 1 == count;
            while !data.is_empty() {
                let task = self.task_at(place).ok_or(UNKNOWN)?;
                let in_burst = max_burst - task.sent % max_burst;
                let len = data.len().min(max_segment as usize).min(in_burst as usize);
                let piece = data.split_to(len);
                let is_final = ends && data.is_empty() || len == in_burst as usize || len % 4 != 0;
                while r2ts.contains(&task.data_sn) {
                    task.data_sn = task.data_sn.wrapping_add(1);
                }
                let mut header = pdu::DataIn::new(task.itt, task.data_sn, task.sent);
                header.set_final(is_final);
                let lun = task.lun_field;
                task.data_sn = task.data_sn.wrapping_add(1);
                task.sent += len as u32;
                let history = task.history.as_mut().ok_or(UNKNOWN)?;
                if len == in_burst as usize && !(ends && data.is_empty()) {
                    header.set_wants_ack(true);
                    header.lun = lun;
                    header.ttt.set(*history.ack_tag.get_or_insert(fresh_tag));
                }
                history.data.push_back(super::retain::SentData { header, data: piece.clone(), resent });
                let mut bhs = Bhs::from(header);
                bhs.set_command_window(self.numbering.order.numbers());
                self.numbering.recovered.resent_pdus += 1;
                self.numbering.output.send(bhs, piece, sink);
            }
        }
        if let Some(task) = self.task_at(place) {
            while r2ts.contains(&task.data_sn) {
                task.data_sn = task.data_sn.wrapping_add(1);
            }
        }
        if let Place::Ended(at) = place {
            self.answer_again(at)?;
            self.resend_status(at, sink)?;
        }
        Ok(())
    }

    /// Converts the status of an ended command into a SCSI Response with its newest SNACK Tag and
    /// its old StatSN.
    fn answer_again(&mut self, at: usize) -> Result<()> {
        const GONE: (RejectReason, u32) = (RejectReason::ProtocolError, 0);
        let max_segment = self.numbering.output.max_segment();
        let status = self
            .numbering
            .recovery
            .as_mut()
            .and_then(|recovery| recovery.statuses.get_mut(at))
            .ok_or(GONE)?;
        let (task, completion) = &**status.ended.as_ref().ok_or(GONE)?;
        let (mut response, segment) = scsi_response(task, completion, max_segment);
        response.stat_sn.set(status.stat_sn);
        status.bhs = response.into();
        status.data = StatusData::Small(segment);
        Ok(())
    }
}

fn serial_range(range: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
    (0..sn::distance(range.start, range.end)).map(move |n| range.start.wrapping_add(n))
}

/// The reason to reject a SNACK for discarded data. Unless its status is already in flight, the
/// command ends with ABORTED COMMAND, READ ERROR - FAILED RETRANSMISSION REQUEST (§11.4.7.2).
fn lost<P: Payload>(task: &mut Task<P>) -> (RejectReason, u32) {
    task.refused.get_or_insert_with(snack_rejected);
    (RejectReason::SnackReject, task.next_data_sn())
}
