//! The PDUs that a target sends on one connection in full-feature phase, in the order of their
//! StatSNs.
//!
//! Each call appends whole PDUs to the sink, with the negotiated digests and padding. The last
//! piece of a read's data is held until the status is known, so that both are sent in one PDU (RFC
//! 7143 §11.7.2).

use std::cmp::Ordering;

use invariant::broken;

use super::connection::Connection;
use super::events::{Completion, LogoutRequest, TaskManagement, TextExchange};
use super::inbound::WriteLimits;
use super::payload::{Payload, Sink};
use super::recovery::{Status, StatusData};
use super::tasks::{Task, TaskKey};
use crate::pdu::{
    self, AsyncEvent, Bhs, LogoutResult, Lun, RejectReason, Residual, ResponseCode, TaskManagementResult,
};

/// Writes the numbers of a target's PDU into its fields.
macro_rules! number {
    ($header:ident, $numbers:expr $(, $stat_sn:expr)?) => {
        let (exp_cmd_sn, max_cmd_sn) = $numbers;
        $header.exp_cmd_sn.set(exp_cmd_sn);
        $header.max_cmd_sn.set(max_cmd_sn);
        $($header.stat_sn.set($stat_sn);)?
    };
}

impl<P: Payload> Connection<P> {
    /// The current ExpCmdSN and MaxCmdSN.
    fn numbers(&mut self) -> (u32, u32) {
        self.order.numbers()
    }

    /// Put_Data: sends the next bytes of a task's data-in. Drops bytes beyond the expected length.
    pub fn put_data(&mut self, key: TaskKey, mut data: P, sink: &mut impl Sink<P>) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("data-in of a task that has ended");
            return;
        };
        if task.aborted || data.is_empty() {
            return;
        }
        let room = (task.expected_in - task.put) as usize;
        if data.len() > room {
            data = data.split_to(room);
        }
        if data.is_empty() {
            return;
        }
        task.put += data.len() as u32;
        let earlier = task.tail.replace(data);
        if let Some(earlier) = earlier {
            self.send_data(key, earlier, None, sink);
        }
    }

    /// Ends a task after its logical unit has finished: sends the response at once, or after the
    /// outstanding data-out has arrived.
    #[inline]
    pub fn finish(&mut self, key: TaskKey, completion: Completion, sink: &mut impl Sink<P>) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("a task that ends twice");
            return;
        };
        if task.aborted && !task.inbound.is_reading() {
            self.drop_task(key);
            return;
        }
        task.inbound.discard();
        if task.inbound.owed() {
            task.finished = Some(completion);
            return;
        }
        let plain = completion.sense.is_none() && task.refused.is_none() && !task.bidirectional;
        if plain && self.recovery.is_none() {
            return self.answer_plainly(key, &completion, sink);
        }
        self.answer(key, completion, sink);
    }

    /// Ends a task with at most one direction and a status without sense data, at
    /// ErrorRecoveryLevel 0.
    fn answer_plainly(&mut self, key: TaskKey, completion: &Completion, sink: &mut impl Sink<P>) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("an answer to a task that has ended");
            return;
        };
        let residual = Residuals::of(task, completion).main;
        let (itt, immediate, next_data_sn) = (task.itt, task.immediate, task.next_data_sn());
        let (mut sent, mut data_sn) = (task.sent, task.data_sn);
        let tail = task.tail.take();
        self.tasks.close(key);
        // The task's place in the window is freed before its status is sent, so that the status
        // advances MaxCmdSN.
        self.end_count(immediate);
        let numbers = self.numbers();
        let stat_sn = self.output.next_stat_sn();
        let Some(mut data) = tail else {
            let mut response = pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, completion.status);
            response.exp_data_sn.set(next_data_sn);
            response.set_residual(residual);
            number!(response, numbers, stat_sn);
            sink.ends(key);
            return self.output.send_small(response.into(), &[], sink);
        };
        let (max_burst, max_segment) = (self.limits.max_burst, self.output.max_segment());
        loop {
            let len = data.len().min(max_segment as usize);
            // Data that ends within one burst needs no check for the burst's end.
            let in_burst = if sent == 0 { max_burst } else { max_burst - sent % max_burst };
            let len = len.min(in_burst as usize);
            let mut header = pdu::DataIn::new(itt, data_sn, sent);
            number!(header, numbers);
            if len == data.len() {
                header.set_status(completion.status, residual);
                header.stat_sn.set(stat_sn);
                return self.output.send(header.into(), data, sink);
            }
            header.set_final(len == in_burst as usize);
            data_sn = data_sn.wrapping_add(1);
            sent += len as u32;
            self.output.send(header.into(), data.split_to(len), sink);
        }
    }

    /// Sends the response of a task whose outstanding data has arrived.
    pub(super) fn settle(&mut self, key: TaskKey, sink: &mut impl Sink<P>) {
        if self.is_aborted(key) {
            self.drop_task(key);
            return;
        }
        if let Some(completion) = self.tasks.get_mut(key).and_then(|task| task.finished.take()) {
            self.answer(key, completion, sink);
        }
    }

    fn answer(&mut self, key: TaskKey, completion: Completion, sink: &mut impl Sink<P>) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("an answer to a task that has ended");
            return;
        };
        let completion = task.refused.take().unwrap_or(completion);
        let residuals = Residuals::of(task, &completion);
        // After an R-Data SNACK the status is sent in a SCSI Response with the SNACK's tag
        // (§11.16.3).
        let asked_again = task.history.as_ref().is_some_and(|history| history.snack_tag != 0);
        let collapsed = completion.sense.is_none() && !task.bidirectional && !asked_again;
        if let Some(tail) = task.tail.take() {
            let status = collapsed.then_some((&completion, residuals.main));
            self.send_data(key, tail, Some(status), sink);
            if collapsed {
                return;
            }
        }
        let Some(task) = self.forget(key) else {
            broken!("a task that ended with its last data");
            return;
        };
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let (mut response, segment) = scsi_response(&task, &completion, self.output.max_segment());
        number!(response, numbers, stat_sn);
        sink.ends(key);
        let bhs = Bhs::from(response);
        self.output.send_small(bhs, &segment, sink);
        if self.recovery.is_some() {
            let ended = Some(Box::new((task, completion)));
            self.keep_status(Status { stat_sn, bhs, data: StatusData::Small(segment), ended, resent: 0 });
        }
    }

    /// Sends part of a task's data-in. `end` is `None` while more follows; at the end it may
    /// contain the status.
    fn send_data(
        &mut self,
        key: TaskKey,
        mut data: P,
        end: Option<Option<(&Completion, Residual)>>,
        sink: &mut impl Sink<P>,
    ) {
        let collapse = matches!(end, Some(Some(_)));
        // The task's place in the window is freed before its status is sent, so that the status
        // advances MaxCmdSN.
        let mut ended = None;
        if collapse {
            ended = self.forget(key);
        }
        let numbers = self.numbers();
        let stat_sn = if collapse { self.output.next_stat_sn() } else { 0 };
        let (max_burst, max_segment) = (self.limits.max_burst, self.output.max_segment());
        let mut kept = None;
        while !data.is_empty() {
            let Some(task) = ended.as_mut().or_else(|| self.tasks.get_mut(key)) else {
                broken!("data-in of a task that has ended");
                return;
            };
            let in_burst = max_burst - task.sent % max_burst;
            let len = data.len().min(max_segment as usize).min(in_burst as usize);
            let mut piece = data.split_to(len);
            let last = data.is_empty() && end.is_some();
            // A logical unit may send pieces of odd lengths. Such a piece ends its sequence, so
            // that padding occurs at a sequence's end only.
            let is_final = last || len == in_burst as usize || len % 4 != 0;
            let mut header = pdu::DataIn::new(task.itt, task.data_sn, task.sent);
            header.set_final(is_final);
            task.data_sn = task.data_sn.wrapping_add(1);
            task.sent += len as u32;
            number!(header, numbers);
            if last && let Some(Some((completion, residual))) = end {
                header.set_status(completion.status, residual);
                header.stat_sn.set(stat_sn);
            }
            if let (Some(recovery), Some(history)) = (&mut self.recovery, &mut task.history) {
                if is_final && !last {
                    // At the end of a sequence, usually every MaxBurstLength bytes, the PDU
                    // requests an acknowledgement (§11.7.2).
                    let tag = *history.ack_tag.get_or_insert_with(|| self.output.tag());
                    header.set_wants_ack(true);
                    header.ttt.set(tag);
                    header.lun = task.lun;
                }
                piece = piece.stable();
                recovery.keep_data(history, header, piece.clone(), self.keepalive.last_heard());
                kept = Some((header, piece.clone()));
            }
            self.output.send(header.into(), piece, sink);
        }
        if let (Some(task), Some((header, piece)), Some(Some((completion, _)))) = (ended, kept, end) {
            let (bhs, data) = (header.into(), StatusData::Payload(piece));
            let ended = Some(Box::new((task, completion.clone())));
            self.keep_status(Status { stat_sn, bhs, data, ended, resent: 0 });
        }
    }

    /// Sends a task's due R2Ts.
    pub(super) fn solicit(&mut self, key: TaskKey, limits: &WriteLimits, sink: &mut impl Sink<P>) {
        let rdma = self.rdma;
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("R2Ts for a task that has ended");
            return;
        };
        if task.aborted || rdma {
            return;
        }
        let (itt, lun) = (task.itt, task.lun);
        loop {
            let Some(task) = self.tasks.get_mut(key) else {
                broken!("a task that ended with its R2T");
                return;
            };
            let Some(mut r2t) = task.inbound.next_r2t(limits) else { return };
            if task.bidirectional {
                r2t.r2t_sn = task.data_sn;
                task.data_sn = task.data_sn.wrapping_add(1);
            }
            let mut tag = key.tag();
            if let Some(history) = &mut task.history {
                tag = self.output.tag();
                task.inbound.label(tag);
                history.asked(tag, r2t, task.inbound.outstanding());
                history.heard = None;
            }
            let numbers = self.numbers();
            let mut header = pdu::ReadyToTransfer::new(itt, tag, lun, r2t.r2t_sn, r2t.offset, r2t.len);
            // An R2T has the next StatSN without advancing it (RFC 7143 §11.8.3).
            number!(header, numbers, self.output.stat_sn());
            self.output.send_small(header.into(), &[], sink);
        }
    }

    /// Answers a NOP-Out (RFC 7143 §11.19).
    pub(super) fn pong(&mut self, nop: &pdu::NopOut, mut data: P, immediate: bool, sink: &mut impl Sink<P>) {
        self.done_with(immediate);
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        if data.len() > self.output.max_segment() as usize {
            data = data.split_to(self.output.max_segment() as usize);
        }
        let mut header = pdu::NopIn::answer(nop.itt.get());
        number!(header, numbers, stat_sn);
        let bhs = header.into();
        if self.recovery.is_some() {
            let data = StatusData::Payload(data.clone());
            self.keep_status(Status { stat_sn, bhs, data, ended: None, resent: 0 });
        }
        self.output.send(bhs, data, sink);
    }

    /// Pings the initiator.
    pub(super) fn send_ping(&mut self, tag: u32, sink: &mut impl Sink<P>) {
        let numbers = self.numbers();
        let mut header = pdu::NopIn::ping(tag, Lun::default());
        number!(header, numbers, self.output.stat_sn());
        self.output.send_small(header.into(), &[], sink);
    }

    /// Answers a task management request (RFC 7143 §11.6.1).
    pub fn task_management_response(
        &mut self,
        request: &TaskManagement,
        result: TaskManagementResult,
        sink: &mut impl Sink<P>,
    ) {
        self.order.end_managing(request.immediate);
        self.done_with(request.immediate);
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let mut header = pdu::TaskManagementResponse::new(request.itt, result);
        number!(header, numbers, stat_sn);
        self.send_status(stat_sn, header.into(), &[], sink);
    }

    /// Answers a text request with `keys`, in as many PDUs as the initiator's
    /// MaxRecvDataSegmentLength requires.
    pub fn text_response(&mut self, exchange: &TextExchange, keys: Vec<u8>, sink: &mut impl Sink<P>) {
        self.text.reply(keys);
        self.send_text(exchange.itt, exchange.lun, exchange.immediate, exchange.is_final, sink);
    }

    /// Rejects a text request; its exchange ends without effect (RFC 7143 §6.4, §7.12).
    pub fn text_reject(&mut self, exchange: &TextExchange, reason: RejectReason, sink: &mut impl Sink<P>) {
        self.done_with(exchange.immediate);
        self.text.end();
        self.send_reject(reason, &exchange.header, sink);
    }

    /// Requests more of the initiator's text, or sends more of ours.
    pub(super) fn continue_text(&mut self, itt: u32, lun: Lun, immediate: bool, sink: &mut impl Sink<P>) {
        self.send_text(itt, lun, immediate, true, sink);
    }

    fn send_text(&mut self, itt: u32, lun: Lun, immediate: bool, is_final: bool, sink: &mut impl Sink<P>) {
        self.done_with(immediate);
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let segment = self.text.next(self.output.max_segment(), is_final, || self.output.tag());
        let mut header = pdu::TextResponse::new(itt, segment.tag);
        header.lun = lun;
        header.set_continues(segment.continues);
        number!(header, numbers, stat_sn);
        self.send_status(stat_sn, header.into(), &segment.text, sink);
    }

    /// Answers a logout request (RFC 7143 §11.15). After it is sent, the driver closes the
    /// connection or session. If the logout fails, later requests are rejected.
    pub fn logout_response(
        &mut self,
        request: &LogoutRequest,
        result: LogoutResult,
        sink: &mut impl Sink<P>,
    ) {
        self.order.end_managing(request.immediate);
        self.done_with(request.immediate);
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let mut header = pdu::LogoutResponse::new(request.itt, result, self.times.0, self.times.1);
        number!(header, numbers, stat_sn);
        self.send_status(stat_sn, header.into(), &[], sink);
        if result != LogoutResult::Success {
            for late in self.order.stay() {
                self.send_reject_with(RejectReason::ProtocolError, &late, 0, sink);
            }
        }
    }

    /// Sends an Asynchronous Message (RFC 7143 §11.9): a logout request of the target, or the
    /// announcement of a dropped connection or session. `parameters` are Parameter1 to 3 of the
    /// event.
    pub fn async_message(&mut self, event: AsyncEvent, parameters: [u16; 3], sink: &mut impl Sink<P>) {
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let mut header = pdu::AsyncMessage::new(event, Lun::default(), parameters);
        number!(header, numbers, stat_sn);
        self.send_status(stat_sn, header.into(), &[], sink);
    }

    pub(super) fn send_reject(&mut self, reason: RejectReason, bhs: &Bhs, sink: &mut impl Sink<P>) {
        self.send_reject_with(reason, bhs, 0, sink);
    }

    /// Sends a Reject. `data_sn` is the next DataSN or R2TSN if a SNACK for data is rejected (RFC
    /// 7143 §11.17.3).
    pub(super) fn send_reject_with(
        &mut self,
        reason: RejectReason,
        bhs: &Bhs,
        data_sn: u32,
        sink: &mut impl Sink<P>,
    ) {
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let mut header = pdu::Reject::new(reason);
        header.data_sn.set(data_sn);
        number!(header, numbers, stat_sn);
        self.send_status(stat_sn, header.into(), bhs.bytes(), sink);
    }

    /// Returns the place in the window of a numbered PDU other than a SCSI command.
    fn done_with(&mut self, immediate: bool) {
        if !immediate {
            self.give_place();
        }
    }

    /// Returns a place in the command window: now, or after the initiator has acknowledged enough.
    pub(super) fn give_place(&mut self) {
        if self.recovery.as_mut().is_none_or(|recovery| recovery.may_give_place()) {
            self.order.complete();
        }
    }

    /// Retains a PDU that advanced StatSN until it is acknowledged.
    fn keep_status(&mut self, status: Status<P>) {
        let now = self.keepalive.last_heard();
        if let Some(recovery) = &mut self.recovery {
            recovery.keep_status(status, now);
        }
    }

    /// Sends a PDU that advances StatSN and ends no SCSI command.
    fn send_status(&mut self, stat_sn: u32, bhs: Bhs, segment: &[u8], sink: &mut impl Sink<P>) {
        if self.recovery.is_some() {
            let data = StatusData::Small(segment.to_vec());
            self.keep_status(Status { stat_sn, bhs, data, ended: None, resent: 0 });
        }
        self.output.send_small(bhs, segment, sink);
    }
}

/// The SCSI Response of `task`, without StatSN and window, and its data segment.
pub(super) fn scsi_response<P: Payload>(
    task: &Task<P>,
    completion: &Completion,
    peer_max_data_segment: u32,
) -> (pdu::ScsiResponse, Vec<u8>) {
    let residuals = Residuals::of(task, completion);
    let mut response = pdu::ScsiResponse::new(task.itt, ResponseCode::CommandCompleted, completion.status);
    response.exp_data_sn.set(task.next_data_sn());
    response.set_residual(residuals.main);
    response.set_bidi_residual(residuals.read);
    response.snack_tag.set(task.history.as_ref().map_or(0, |history| history.snack_tag));
    let mut segment = Vec::new();
    if let Some(sense) = &completion.sense {
        // All of it, or as much as the initiator receives: SenseLength has the length (RFC 7143
        // §11.4.7.1).
        let sense = &sense[..sense.len().min(peer_max_data_segment as usize - 2)];
        segment.reserve(2 + sense.len());
        segment.extend_from_slice(&(sense.len() as u16).to_be_bytes());
        segment.extend_from_slice(sense);
    }
    (response, segment)
}

/// The residuals of a command (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Residuals {
    /// Of a unidirectional command, or of a bidirectional command's data-out.
    main: Residual,
    /// Of a bidirectional command's data-in.
    read: Residual,
}

impl Residuals {
    fn of<P>(task: &Task<P>, completion: &Completion) -> Self {
        // A failed command transferred the bytes that were put, regardless of the CDB's length.
        let good = completion.status == 0;
        let wanted_in = if good { completion.wanted_in } else { u64::from(task.put) };
        let read = residual(wanted_in, task.expected_in);
        let write = residual(completion.wanted_out, task.expected_out);
        match (task.bidirectional, task.expected_out > 0) {
            (true, _) => Self { main: write, read },
            (false, true) => Self { main: write, read: Residual::Exact },
            // If R and W are both clear, the CDB's whole data is an overflow of the expected length
            // 0.
            (false, false) if task.expected_in == 0 && completion.wanted_out > 0 => {
                Self { main: write, read: Residual::Exact }
            }
            (false, false) => Self { main: read, read: Residual::Exact },
        }
    }
}

fn residual(wanted: u64, expected: u32) -> Residual {
    let expected = u64::from(expected);
    let clamp = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    match wanted.cmp(&expected) {
        Ordering::Equal => Residual::Exact,
        Ordering::Greater => Residual::Overflow(clamp(wanted - expected)),
        Ordering::Less => Residual::Underflow(clamp(expected - wanted)),
    }
}
