//! The numbers of a connection's PDUs: CmdSN and the window in one direction ([`Order`]), StatSN
//! and pings in the other. It sends the PDUs that belong to no SCSI command, and at
//! ErrorRecoveryLevel 1 and 2 it keeps each status until the initiator has acknowledged it.
//!
//! A place in the command window is returned before the status that ends it is sent, so that the
//! status advances MaxCmdSN.

use std::time::{Duration, Instant};

use invariant::broken;

use super::events::{Config, Fatal, LogoutRequest, TaskManagement};
use super::keepalive::Keepalive;
use super::order::Order;
use super::output::Output;
use super::payload::{Payload, Sink};
use super::recovery::{ASK_AGAIN, PATIENCE, Recovered, Recovery, Status, StatusData};
use super::text::Segment;
use crate::frame::Digests;
use crate::pdu::{self, AsyncEvent, Bhs, LogoutResult, Lun, RejectReason, TaskManagementResult};

/// Numbers the PDUs of one connection, and keeps the numbered ones.
#[derive(Debug)]
pub(super) struct Numbering<P> {
    pub order: Order<P>,
    pub output: Output,
    pub keepalive: Keepalive,
    /// The state for retransmission; `None` at ErrorRecoveryLevel 0.
    pub recovery: Option<Box<Recovery<P>>>,
    /// The recovery actions so far.
    pub recovered: Recovered,
}

impl<P: Payload> Numbering<P> {
    /// The numbers of a connection that has just completed its login, with at most `max` tasks.
    pub fn new(config: Config, max: usize, now: Instant) -> Self {
        let digests = Digests { header: config.header_digest, data: config.data_digest };
        Self {
            order: Order::new(config.cid, config.window, max),
            output: Output::new(config.stat_sn, config.peer_max_data_segment, digests),
            keepalive: Keepalive::new(config.nop_interval, config.nop_timeout, now),
            recovery: config.recovery.map(|limits| Box::new(Recovery::new(limits, now))),
            recovered: Recovered::default(),
        }
    }

    /// The current ExpCmdSN and MaxCmdSN.
    pub fn numbers(&self) -> (u32, u32) {
        self.order.numbers()
    }

    /// Updates the counts at a task's end: its immediate count, or its place in the window.
    #[inline]
    pub fn end_count(&mut self, immediate: bool, cmd_sn: u32) {
        match immediate {
            true => self.order.end_immediate(),
            false => {
                self.order.lift(cmd_sn);
                self.give_place();
            }
        }
    }

    /// Returns the place in the window of a numbered PDU that is refused.
    pub fn refuse(&mut self, bhs: &Bhs) {
        if let Some(cmd_sn) = bhs.cmd_sn() {
            self.order.lift(cmd_sn);
        }
        self.give_place();
    }

    /// Returns the place in the window of a numbered PDU other than a SCSI command.
    pub fn done_with(&mut self, immediate: bool) {
        if !immediate {
            self.give_place();
        }
    }

    /// Returns a place in the command window: now, or after the initiator has acknowledged enough.
    pub fn give_place(&mut self) {
        if self.recovery.as_mut().is_none_or(|recovery| recovery.may_give_place()) {
            self.order.complete();
        }
    }

    /// Answers a NOP-Out (RFC 7143 §11.19).
    pub fn pong(&mut self, nop: &pdu::NopOut, mut data: P, immediate: bool, sink: &mut impl Sink<P>) {
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
    pub fn send_ping(&mut self, tag: u32, sink: &mut impl Sink<P>) {
        let numbers = self.numbers();
        let mut header = pdu::NopIn::ping(tag, Lun::default());
        number!(header, numbers, self.output.stat_sn());
        self.output.send_small(header.into(), &[], sink);
    }

    /// Pings a silent initiator, and gives up the connection if it stays silent.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        if self.keepalive.is_due(now)? {
            self.ping(now, sink);
        }
        Ok(())
    }

    /// Pings the initiator, and waits for the answer.
    pub fn ping(&mut self, now: Instant, sink: &mut impl Sink<P>) {
        let tag = self.output.tag();
        self.send_ping(tag, sink);
        self.keepalive.pinged(tag, now);
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

    /// Sends the next part of our text, or requests more of the initiator's.
    pub fn send_text(
        &mut self,
        (itt, lun): (u32, Lun),
        immediate: bool,
        segment: &Segment,
        sink: &mut impl Sink<P>,
    ) {
        self.done_with(immediate);
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
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
        times: (u16, u16),
        sink: &mut impl Sink<P>,
    ) {
        self.order.end_managing(request.immediate);
        self.done_with(request.immediate);
        let stat_sn = self.output.next_stat_sn();
        let numbers = self.numbers();
        let mut header = pdu::LogoutResponse::new(request.itt, result, times.0, times.1);
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

    /// Counts and sends a Reject (RFC 7143 §11.17).
    pub fn reject(&mut self, reason: RejectReason, bhs: &Bhs, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.reject_with(reason, bhs, 0, sink)
    }

    pub fn reject_with(
        &mut self,
        reason: RejectReason,
        bhs: &Bhs,
        data_sn: u32,
        sink: &mut impl Sink<P>,
    ) -> Result<(), Fatal> {
        self.order.count_reject()?;
        self.send_reject_with(reason, bhs, data_sn, sink);
        Ok(())
    }

    pub fn send_reject(&mut self, reason: RejectReason, bhs: &Bhs, sink: &mut impl Sink<P>) {
        self.send_reject_with(reason, bhs, 0, sink);
    }

    /// Sends a Reject. `data_sn` is the next DataSN or R2TSN if a SNACK for data is rejected (RFC
    /// 7143 §11.17.3).
    pub fn send_reject_with(
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

    /// Sends a PDU that advances StatSN and ends no SCSI command.
    fn send_status(&mut self, stat_sn: u32, bhs: Bhs, segment: &[u8], sink: &mut impl Sink<P>) {
        if self.recovery.is_some() {
            let data = StatusData::Small(segment.to_vec());
            self.keep_status(Status { stat_sn, bhs, data, ended: None, resent: 0 });
        }
        self.output.send_small(bhs, segment, sink);
    }

    /// Retains a PDU that advanced StatSN until it is acknowledged.
    pub fn keep_status(&mut self, status: Status<P>) {
        let now = self.keepalive.last_heard();
        if let Some(recovery) = &mut self.recovery {
            recovery.keep_status(status, now);
        }
    }

    /// Handles an acknowledgement: statuses before the initiator's ExpStatSN have arrived.
    pub fn acknowledge(&mut self, exp_stat_sn: u32, now: Instant) {
        let next = self.output.stat_sn();
        let Some(recovery) = &mut self.recovery else {
            broken!("a status to acknowledge at ErrorRecoveryLevel 0");
            return;
        };
        recovery.ack_statuses(exp_stat_sn, next, now);
        self.give_owed_places();
    }

    /// Returns the places in the command window that waited for room.
    pub fn give_owed_places(&mut self) {
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.made_room && !recovery.is_full() {
            recovery.wants_room = false;
        }
        for _ in 0..recovery.take_owed() {
            self.order.complete();
        }
    }

    /// Pings an initiator that does not acknowledge a status, because it has lost it or is silent.
    /// The NOP-In shows the next StatSN, and the answer the StatSN that the initiator expects (RFC
    /// 7143 §11.19).
    pub fn ask_for_acknowledgement(&mut self, now: Instant, sink: &mut impl Sink<P>) {
        let next = self.output.stat_sn();
        let Some(recovery) = &mut self.recovery else {
            broken!("a status to acknowledge at ErrorRecoveryLevel 0");
            return;
        };
        if recovery.statuses.is_empty() && !recovery.wants_room {
            return;
        }
        let waited = now.saturating_duration_since(recovery.since);
        // Once for each StatSN, and again if that ping was lost.
        let due = match recovery.asked == Some(next) {
            true => waited >= ASK_AGAIN,
            false => recovery.wants_room || waited >= PATIENCE,
        };
        if !due {
            return;
        }
        recovery.asked = Some(next);
        recovery.since = now;
        let tag = self.output.tag();
        self.send_ping(tag, sink);
    }

    pub fn check_overrun(&self) -> Result<(), Fatal> {
        match self.recovery.as_ref().is_some_and(|recovery| recovery.is_overrun()) {
            true => Err(Fatal::Unacknowledged),
            false => Ok(()),
        }
    }

    /// Handles the final end of the connection: discards unacknowledged PDUs and returns their
    /// places in the command window.
    pub fn forget_unacknowledged(&mut self) {
        let next = self.output.stat_sn();
        let now = self.keepalive.last_heard();
        let Some(recovery) = &mut self.recovery else { return };
        recovery.ack_statuses(next, next, now);
        recovery.limits.keep_bytes = usize::MAX / 8;
        recovery.room = usize::MAX / 8;
        recovery.limits.keep_statuses = usize::MAX / 8;
        for _ in 0..recovery.take_owed() {
            self.order.complete();
        }
    }

    /// The connection's ErrorRecoveryLevel.
    pub fn error_recovery_level(&self) -> u8 {
        self.recovery.as_ref().map_or(0, |recovery| recovery.limits.level)
    }

    /// The interval between looks for what is lost.
    pub fn recovery_interval(&self) -> Duration {
        self.recovery.as_ref().map_or(PATIENCE, |recovery| (recovery.limits.data_timeout / 5).min(PATIENCE))
    }

    /// Whether a read may begin. False while too much data is unacknowledged, as in
    /// `Loss::may_put`.
    pub fn may_begin(&mut self, now: Instant, sink: &mut impl Sink<P>) -> bool {
        let Some(recovery) = &mut self.recovery else { return true };
        if !recovery.is_full() {
            return true;
        }
        recovery.wants_room = true;
        self.ask_for_acknowledgement(now, sink);
        false
    }

    /// Whether data was acknowledged since the last call, so that waiting tasks may continue.
    pub fn take_made_room(&mut self) -> bool {
        self.recovery.as_mut().is_some_and(|recovery| std::mem::take(&mut recovery.made_room))
    }

    /// Bytes retained until the initiator acknowledges them.
    pub fn kept_bytes(&self) -> usize {
        self.recovery.as_ref().map_or(0, |recovery| recovery.kept)
    }

    /// The time since which none of them has been acknowledged.
    pub fn kept_since(&self) -> Instant {
        self.recovery.as_ref().map_or(self.keepalive.last_heard(), |recovery| recovery.moved)
    }

    /// Sets the driver's limit for retained bytes, up to that of the configuration. Bytes already
    /// retained stay.
    pub fn set_keep_room(&mut self, bytes: usize) {
        if let Some(recovery) = &mut self.recovery {
            recovery.room = bytes.min(recovery.limits.keep_bytes);
        }
    }

    /// Whether a task or a status waits for room.
    pub fn wants_keep_room(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.wants_room)
    }

    /// Records additional room, so that [`Self::take_made_room`] returns true.
    pub fn more_keep_room(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.made_room = true;
        }
        self.give_owed_places();
    }
}
