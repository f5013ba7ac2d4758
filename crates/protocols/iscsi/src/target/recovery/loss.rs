//! Lost Data-Out: PDUs dropped for their digests, gaps in their DataSNs, and sequences that stop
//! (RFC 7143 §7.8, §7.9, §7.1.4.1). A recovery R2T (§11.8) requests the missing data, once the
//! sequence that lacks it has ended.
//!
//! Data after a gap is dropped and retransmitted with the gap: errors are rare, and a write stays
//! in order.

use std::time::{Duration, Instant};

use invariant::broken;

use super::{ASK_AGAIN, MAX_RECOVERIES, PATIENCE, Recovered, Recovery, StatusData};
use crate::pdu::{self, Bhs, PduRef, RESERVED_TAG, RejectReason};
use crate::target::connection::{Connection, refusal};
use crate::target::events::{Event, Fatal};
use crate::target::inbound::InboundError;
use crate::target::payload::{Data, Payload, Sink};
use crate::target::respond::scsi_response;
use crate::target::tasks::TaskKey;

fn tag_of(out: &pdu::DataOut) -> Option<u32> {
    Some(out.ttt.get()).filter(|ttt| *ttt != RESERVED_TAG)
}

impl<P: Payload> Connection<P> {
    /// The connection's ErrorRecoveryLevel.
    pub fn error_recovery_level(&self) -> u8 {
        self.recovery.as_ref().map_or(0, |recovery| recovery.limits.level)
    }

    /// Handles a PDU with a valid header and a wrong data digest: drops it and sends a Reject (RFC
    /// 7143 §7.8). Lost Data-Out is requested again by R2T; the initiator resends other PDUs
    /// itself. At ErrorRecoveryLevel 0 a write with lost data fails.
    pub fn damaged(&mut self, bhs: &Bhs, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.heard(now);
        self.check_overrun()?;
        self.recovered.digest_errors += 1;
        if self.recovery.is_none() {
            self.reject(RejectReason::DataDigestError, bhs, sink)?;
            self.fail_data_out(bhs, sink);
            return Ok(());
        }
        // Not counted as a violation: a bad cable is not a hostile peer, and unacknowledged
        // responses are bounded.
        self.send_reject(RejectReason::DataDigestError, bhs, sink);
        let Some(PduRef::DataOut(out)) = bhs.view() else { return Ok(()) };
        let Some(key) = self.tasks.find(out.itt.get()) else { return Ok(()) };
        if let Some(task) = self.tasks.get_mut(key) {
            task.inbound.lose(out.is_final(), tag_of(out));
            if let Some(history) = &mut task.history {
                history.heard = Some(now);
            }
        }
        self.after_data(key, sink);
        Ok(())
    }

    /// Records a PDU that was dropped for a wrong header digest.
    pub fn damaged_header(&mut self) {
        self.recovered.digest_errors += 1;
    }

    /// The recovery actions on this connection.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Fails the task of a lost Data-Out with PROTOCOL SERVICE CRC ERROR, after its outstanding
    /// data has arrived.
    fn fail_data_out(&mut self, bhs: &Bhs, sink: &mut impl Sink<P>) {
        let Some(PduRef::DataOut(out)) = bhs.view() else { return };
        let Some(key) = self.tasks.find(out.itt.get()) else { return };
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("a tag of a task that has ended");
            return;
        };
        task.inbound.fail();
        task.refused.get_or_insert_with(|| refusal(InboundError::DataSn));
        task.inbound.pass(out.is_final(), tag_of(out).is_some());
        if task.finished.is_some() && !task.inbound.owed() {
            self.settle(key, sink);
        }
    }

    /// Handles a Data-Out at ErrorRecoveryLevel 1 or 2: the ITT identifies its task, the Target
    /// Transfer Tag its sequence.
    pub(in crate::target) fn data_out_recoverable(
        &mut self,
        out: &pdu::DataOut,
        data: impl Data<P>,
        now: Instant,
        sink: &mut impl Sink<P>,
    ) -> Option<Event> {
        let key = self.tasks.find(out.itt.get())?;
        let task = self.tasks.get_mut(key)?;
        if let Some(history) = &mut task.history {
            history.heard = Some(now);
        }
        let (is_final, tag) = (out.is_final(), tag_of(out));
        let inbound = &mut task.inbound;
        if inbound.failed() {
            inbound.lose(is_final, tag);
        } else if let Err(error) =
            inbound.data_out_again(out.buffer_offset.get(), out.data_sn.get(), data, is_final, tag)
        {
            inbound.fail();
            task.refused = Some(refusal(error));
            task.inbound.lose(is_final, tag);
        }
        self.after_data(key, sink)
    }

    /// Continues a task after data-out arrived or was lost.
    fn after_data(&mut self, key: TaskKey, sink: &mut impl Sink<P>) -> Option<Event> {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("a task that ended with its data-out");
            return None;
        };
        match task.inbound.recover(MAX_RECOVERIES) {
            Ok(asks) => self.recovered.recovery_r2ts += u64::from(asks),
            Err(_) if task.inbound.failed() => {}
            Err(error) => {
                task.inbound.fail();
                task.refused = Some(refusal(error));
            }
        }
        self.data_came(key, sink)
    }

    /// The interval between calls of [`Self::recover`] while [`Self::is_pending`].
    pub fn recovery_interval(&self) -> Duration {
        self.recovery.as_ref().map_or(PATIENCE, |recovery| (recovery.limits.data_timeout / 5).min(PATIENCE))
    }

    /// Whether anything can be lost: there are tasks, or unacknowledged statuses. Always false at
    /// ErrorRecoveryLevel 0.
    pub fn is_pending(&self) -> bool {
        let kept = |recovery: &Recovery<P>| recovery.wants_room || !recovery.statuses.is_empty();
        self.recovery.as_ref().is_some_and(|recovery| kept(recovery) || !self.tasks.is_empty())
    }

    /// Handles timeouts: stopped sequences, and missing acknowledgements of a silent initiator.
    /// Returns the tasks with a timed-out sequence, whose logical units may continue.
    pub fn recover(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Vec<TaskKey> {
        let Some(recovery) = &self.recovery else { return Vec::new() };
        let timeout = recovery.limits.data_timeout;
        // TCP loses nothing except PDUs dropped here for their digests: data in flight behind other
        // data is late, not lost.
        let quiet = now.saturating_duration_since(self.keepalive.last_heard()) >= timeout / 5;
        let limit: Duration = if quiet { timeout / 5 } else { timeout };
        let mut late = Vec::new();
        for (key, task) in self.tasks.iter_mut() {
            let Some(history) = &mut task.history else {
                broken!("a task without a history");
                continue;
            };
            let heard = *history.heard.get_or_insert(now);
            if !task.aborted && task.inbound.is_open() && now.saturating_duration_since(heard) >= limit {
                task.inbound.time_out();
                late.push(key);
            }
        }
        for key in &late {
            self.after_data(*key, sink);
        }
        self.ask_for_acknowledgement(now, sink);
        late
    }

    /// Pings an initiator that does not acknowledge a status, because it has lost it or is silent.
    /// The NOP-In shows the next StatSN, and the answer the StatSN that the initiator expects (RFC
    /// 7143 §11.19).
    fn ask_for_acknowledgement(&mut self, now: Instant, sink: &mut impl Sink<P>) {
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

    /// Whether a logical unit may send more of a task's data-in. False while too much data is
    /// unacknowledged. In that case the initiator was pinged, and [`Self::take_made_room`] tells
    /// when to call this again.
    pub fn may_put(&mut self, key: TaskKey, now: Instant, sink: &mut impl Sink<P>) -> bool {
        let max_burst = self.limits.max_burst.max(1);
        let Some(recovery) = &mut self.recovery else { return true };
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("more data-in of a task that has ended");
            return true;
        };
        let Some(history) = &mut task.history else {
            broken!("a task without a history");
            return true;
        };
        let burst = (max_burst - task.put % max_burst).min(task.expected_in - task.put);
        if burst == 0 || recovery.promise(history, burst as usize) {
            return true;
        }
        self.ask_for_acknowledgement(now, sink);
        false
    }

    /// Whether a read may begin. False while too much data is unacknowledged, as in
    /// [`Self::may_put`].
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

    /// Discards all retained data-in: a SNACK for it will be rejected, and its command will end
    /// with an error (RFC 7143 §11.4.7.2). Returns false if there was none. The remaining ping data
    /// and text can only be discarded by ending the connection.
    pub fn give_up_data(&mut self, now: Instant) -> bool {
        let max_segment = self.output.max_segment();
        let Some(recovery) = &mut self.recovery else { return false };
        let mut bytes = 0;
        for (_, task) in self.tasks.iter_mut() {
            bytes += task.history.as_mut().map_or(0, |history| history.give_up());
        }
        for status in &mut recovery.statuses {
            let Some(ended) = &mut status.ended else { continue };
            bytes += ended.0.history.as_mut().map_or(0, |history| history.give_up());
            if matches!(status.data, StatusData::Payload(_)) {
                // The status was sent with the last data; without that data, a SCSI Response
                // carries the same status.
                let (mut response, segment) = scsi_response(&ended.0, &ended.1, max_segment);
                response.stat_sn.set(status.stat_sn);
                status.bhs = response.into();
                status.data = StatusData::Small(segment);
            }
        }
        recovery.gave_up(bytes, now);
        self.give_owed_places();
        bytes > 0
    }

    /// Handles an acknowledgement: statuses before the initiator's ExpStatSN have arrived.
    pub(in crate::target) fn acknowledge(&mut self, exp_stat_sn: u32, now: Instant) {
        let next = self.output.stat_sn();
        let Some(recovery) = &mut self.recovery else {
            broken!("a status to acknowledge at ErrorRecoveryLevel 0");
            return;
        };
        recovery.ack_statuses(exp_stat_sn, next, now);
        self.give_owed_places();
    }

    /// Returns the places in the command window that waited for room.
    pub(in crate::target) fn give_owed_places(&mut self) {
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.made_room && !recovery.is_full() {
            recovery.wants_room = false;
        }
        for _ in 0..recovery.take_owed() {
            self.order.complete();
        }
    }

    pub(in crate::target) fn check_overrun(&self) -> Result<(), Fatal> {
        match self.recovery.as_ref().is_some_and(|recovery| recovery.is_overrun()) {
            true => Err(Fatal::Unacknowledged),
            false => Ok(()),
        }
    }
}
