//! Lost Data-Out: PDUs dropped for their digests, gaps in their DataSNs, and sequences that stop
//! (RFC 7143 §7.8, §7.9, §7.1.4.1). A recovery R2T (§11.8) requests the missing data, once the
//! sequence that lacks it has ended.
//!
//! Data after a gap is dropped and retransmitted with the gap: errors are rare, and a write stays
//! in order.

use std::time::{Duration, Instant};

use invariant::broken;

use super::{MAX_RECOVERIES, StatusData};
use crate::pdu::{self, Bhs, PduRef, RESERVED_TAG, RejectReason};
use crate::target::events::{Event, Fatal};
use crate::target::inbound::InboundError;
use crate::target::numbering::Numbering;
use crate::target::payload::{Data, Payload, Sink};
use crate::target::respond::{refusal, scsi_response};
use crate::target::tasks::TaskKey;
use crate::target::transfers::Transfers;

fn tag_of(out: &pdu::DataOut) -> Option<u32> {
    Some(out.ttt.get()).filter(|ttt| *ttt != RESERVED_TAG)
}

/// Handles losses in the tasks of one connection, and the repeated requests for lost PDUs.
pub(in crate::target) struct Loss<'a, P> {
    pub transfers: &'a mut Transfers<P>,
    pub numbering: &'a mut Numbering<P>,
}

impl<P: Payload> Loss<'_, P> {
    /// Handles a PDU with a valid header and a wrong data digest: drops it and sends a Reject (RFC
    /// 7143 §7.8). Lost Data-Out is requested again by R2T; the initiator resends other PDUs
    /// itself. At ErrorRecoveryLevel 0 a write with lost data fails.
    pub fn damaged(&mut self, bhs: &Bhs, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.numbering.keepalive.heard(now);
        self.numbering.check_overrun()?;
        self.numbering.recovered.digest_errors += 1;
        if self.numbering.recovery.is_none() {
            self.numbering.reject(RejectReason::DataDigestError, bhs, sink)?;
            self.fail_data_out(bhs, sink);
            return Ok(());
        }
        // Not counted as a violation: a bad cable is not a hostile peer, and unacknowledged
        // responses are bounded.
        self.numbering.send_reject(RejectReason::DataDigestError, bhs, sink);
        let Some(PduRef::DataOut(out)) = bhs.view() else { return Ok(()) };
        let Some(key) = self.transfers.tasks.find(out.itt.get()) else { return Ok(()) };
        if let Some(task) = self.transfers.tasks.get_mut(key) {
            task.inbound.lose(out.is_final(), tag_of(out));
            if let Some(history) = &mut task.history {
                history.heard = Some(now);
            }
        }
        self.after_data(key, sink);
        Ok(())
    }

    /// Fails the task of a lost Data-Out with PROTOCOL SERVICE CRC ERROR, after its outstanding
    /// data has arrived.
    fn fail_data_out(&mut self, bhs: &Bhs, sink: &mut impl Sink<P>) {
        let Some(PduRef::DataOut(out)) = bhs.view() else { return };
        let Some(key) = self.transfers.tasks.find(out.itt.get()) else { return };
        let Some(task) = self.transfers.tasks.get_mut(key) else {
            broken!("a tag of a task that has ended");
            return;
        };
        task.inbound.fail();
        task.refused.get_or_insert_with(|| refusal(InboundError::DataSn));
        task.inbound.pass(out.is_final(), tag_of(out).is_some());
        if task.finished.is_some() && !task.inbound.owed() {
            self.transfers.settle(key, self.numbering, sink);
        }
    }

    /// Handles a Data-Out at ErrorRecoveryLevel 1 or 2: the ITT identifies its task, the Target
    /// Transfer Tag its sequence.
    pub fn data_out(
        &mut self,
        out: &pdu::DataOut,
        data: impl Data<P>,
        now: Instant,
        sink: &mut impl Sink<P>,
    ) -> Option<Event> {
        let key = self.transfers.tasks.find(out.itt.get())?;
        let task = self.transfers.tasks.get_mut(key)?;
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
        let Some(task) = self.transfers.tasks.get_mut(key) else {
            broken!("a task that ended with its data-out");
            return None;
        };
        match task.inbound.recover(MAX_RECOVERIES) {
            Ok(asks) => self.numbering.recovered.recovery_r2ts += u64::from(asks),
            Err(_) if task.inbound.failed() => {}
            Err(error) => {
                task.inbound.fail();
                task.refused = Some(refusal(error));
            }
        }
        self.transfers.data_came(key, self.numbering, sink)
    }

    /// Handles timeouts: stopped sequences, and missing acknowledgements of a silent initiator.
    /// Returns the tasks with a timed-out sequence, whose logical units may continue.
    pub fn recover(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Vec<TaskKey> {
        let Some(recovery) = &self.numbering.recovery else { return Vec::new() };
        let timeout = recovery.limits.data_timeout;
        // TCP loses nothing except PDUs dropped here for their digests: data in flight behind other
        // data is late, not lost.
        let quiet = now.saturating_duration_since(self.numbering.keepalive.last_heard()) >= timeout / 5;
        let limit: Duration = if quiet { timeout / 5 } else { timeout };
        let mut late = Vec::new();
        for (key, task) in self.transfers.tasks.iter_mut() {
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
        self.numbering.ask_for_acknowledgement(now, sink);
        late
    }

    /// Whether a logical unit may send more of a task's data-in. False while too much data is
    /// unacknowledged. In that case the initiator was pinged, and `Connection::take_made_room`
    /// tells when to call this again.
    pub fn may_put(&mut self, key: TaskKey, now: Instant, sink: &mut impl Sink<P>) -> bool {
        let max_burst = self.transfers.limits.max_burst.max(1);
        let Some(recovery) = &mut self.numbering.recovery else { return true };
        let Some(task) = self.transfers.tasks.get_mut(key) else {
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
        self.numbering.ask_for_acknowledgement(now, sink);
        false
    }

    /// Discards all retained data-in: a SNACK for it will be rejected, and its command will end
    /// with an error (RFC 7143 §11.4.7.2). Returns false if there was none. The remaining ping data
    /// and text can only be discarded by ending the connection.
    pub fn give_up_data(&mut self, now: Instant) -> bool {
        let max_segment = self.numbering.output.max_segment();
        let Some(recovery) = &mut self.numbering.recovery else { return false };
        let mut bytes = 0;
        for (_, task) in self.transfers.tasks.iter_mut() {
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
        self.numbering.give_owed_places();
        bytes > 0
    }
}
