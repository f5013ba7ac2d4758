//! Data-Out that is lost: PDUs dropped for their digests, gaps in their DataSNs, and sequences that stop coming (RFC 7143 §7.8, §7.9,
//! §7.1.4.1). What is missing is asked for again by a recovery R2T (§11.8), once the sequence that lacks it is over.
//!
//! Data behind a gap is dropped and comes again with it: errors are rare, and a write is kept in order.

use std::time::{Duration, Instant};

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
    /// How far the connection goes to recover: ErrorRecoveryLevel.
    pub fn error_recovery_level(&self) -> u8 {
        self.recovery.as_ref().map_or(0, |recovery| recovery.limits.level)
    }

    /// A PDU came whose header is right and whose data digest is wrong: it is dropped, and the initiator told so (RFC 7143 §7.8).
    /// A lost Data-Out is asked for again; anything else the initiator sends again by itself. At ErrorRecoveryLevel 0 a write that has
    /// lost data fails.
    pub fn damaged(&mut self, bhs: &Bhs, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.heard(now);
        self.check_overrun()?;
        self.recovered.digest_errors += 1;
        if self.recovery.is_none() {
            self.reject(RejectReason::DataDigestError, bhs, sink)?;
            self.fail_data_out(bhs, sink);
            return Ok(());
        }
        // Not counted among what a peer may not do: a bad cable is no bad peer, and unacknowledged answers are bounded.
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

    /// A PDU was dropped whose header's digest was wrong.
    pub fn damaged_header(&mut self) {
        self.recovered.digest_errors += 1;
    }

    /// What recovery had to do here.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The task of a Data-Out that is lost ends with PROTOCOL SERVICE CRC ERROR, once all that is owed to it has come.
    fn fail_data_out(&mut self, bhs: &Bhs, sink: &mut impl Sink<P>) {
        let Some(PduRef::DataOut(out)) = bhs.view() else { return };
        let Some(key) = self.tasks.find(out.itt.get()) else { return };
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.inbound.fail();
        task.refused.get_or_insert_with(|| refusal(InboundError::DataSn));
        task.inbound.pass(out.is_final(), tag_of(out).is_some());
        if task.finished.is_some() && !task.inbound.owed() {
            self.settle(key, sink);
        }
    }

    /// A Data-Out at ErrorRecoveryLevel 1 or 2: its task is known by its ITT, its sequence by its Target Transfer Tag.
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

    /// A task's data-out came, or was found to be lost.
    fn after_data(&mut self, key: TaskKey, sink: &mut impl Sink<P>) -> Option<Event> {
        let task = self.tasks.get_mut(key)?;
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

    /// How often [`Self::recover`] is to be called while [`Self::is_pending`].
    pub fn recovery_interval(&self) -> Duration {
        self.recovery.as_ref().map_or(PATIENCE, |recovery| (recovery.limits.data_timeout / 5).min(PATIENCE))
    }

    /// Whether there is something that may be lost: tasks in hand, or statuses that are not acknowledged. Never at
    /// ErrorRecoveryLevel 0.
    pub fn is_pending(&self) -> bool {
        let kept = |recovery: &Recovery<P>| recovery.wants_room || !recovery.statuses.is_empty();
        self.recovery.as_ref().is_some_and(|recovery| kept(recovery) || !self.tasks.is_empty())
    }

    /// Looks after what does not come by itself: sequences that have stopped, and acknowledgements of an initiator that says
    /// nothing. Gives the tasks of which a sequence has timed out: their unit may be told to go on.
    pub fn recover(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Vec<TaskKey> {
        let Some(recovery) = &self.recovery else { return Vec::new() };
        let timeout = recovery.limits.data_timeout;
        // TCP loses nothing that was not dropped here for its digest: what is on its way behind other data is late, not lost.
        let quiet = now.saturating_duration_since(self.last_heard) >= timeout / 5;
        let limit: Duration = if quiet { timeout / 5 } else { timeout };
        let mut late = Vec::new();
        for (key, task) in self.tasks.iter_mut() {
            let Some(history) = &mut task.history else { continue };
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

    /// A status that the initiator does not acknowledge, because it has lost it or has nothing to say, is asked about: a NOP-In shows
    /// the StatSN that comes next, and its answer the one that the initiator expects (RFC 7143 §11.19).
    fn ask_for_acknowledgement(&mut self, now: Instant, sink: &mut impl Sink<P>) {
        let next = self.stat_sn;
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.statuses.is_empty() && !recovery.wants_room {
            return;
        }
        let waited = now.saturating_duration_since(recovery.since);
        // Once for each StatSN, and again if even that was lost.
        let due = match recovery.asked == Some(next) {
            true => waited >= ASK_AGAIN,
            false => recovery.wants_room || waited >= PATIENCE,
        };
        if !due {
            return;
        }
        recovery.asked = Some(next);
        recovery.since = now;
        let tag = self.tag();
        self.send_ping(tag, sink);
    }

    /// Whether a unit may put more of a task's data-in. False while too much waits for its acknowledgement: then the initiator has
    /// been asked for it, and [`Self::take_made_room`] tells when to ask again.
    pub fn may_put(&mut self, key: TaskKey, now: Instant, sink: &mut impl Sink<P>) -> bool {
        let max_burst = self.limits.max_burst.max(1);
        let Some(recovery) = &mut self.recovery else { return true };
        let Some(task) = self.tasks.get_mut(key) else { return true };
        let Some(history) = &mut task.history else { return true };
        let burst = (max_burst - task.put % max_burst).min(task.expected_in - task.put);
        if burst == 0 || recovery.promise(history, burst as usize) {
            return true;
        }
        self.ask_for_acknowledgement(now, sink);
        false
    }

    /// Whether a read may be begun at all. False while too much waits for its acknowledgement, as for [`Self::may_put`].
    pub fn may_begin(&mut self, now: Instant, sink: &mut impl Sink<P>) -> bool {
        let Some(recovery) = &mut self.recovery else { return true };
        if !recovery.is_full() {
            return true;
        }
        recovery.wants_room = true;
        self.ask_for_acknowledgement(now, sink);
        false
    }

    /// Whether something was acknowledged since this was asked last, so that what waited for room may go on.
    pub fn take_made_room(&mut self) -> bool {
        self.recovery.as_mut().is_some_and(|recovery| std::mem::take(&mut recovery.made_room))
    }

    /// Bytes that are kept until the initiator acknowledges them.
    pub fn kept_bytes(&self) -> usize {
        self.recovery.as_ref().map_or(0, |recovery| recovery.kept)
    }

    /// Since when nothing of that has been acknowledged.
    pub fn kept_since(&self) -> Instant {
        self.recovery.as_ref().map_or(self.last_heard, |recovery| recovery.moved)
    }

    /// The driver has room for so many bytes to be kept here, if the limits allow as many. What is kept already stays.
    pub fn set_keep_room(&mut self, bytes: usize) {
        if let Some(recovery) = &mut self.recovery {
            recovery.room = bytes.min(recovery.limits.keep_bytes);
        }
    }

    /// Whether something waits for room.
    pub fn wants_keep_room(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.wants_room)
    }

    /// There is more room than there was: [`Self::take_made_room`] says so.
    pub fn more_keep_room(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.made_room = true;
        }
        self.give_owed_places();
    }

    /// Gives up all data-in that is kept: a SNACK for it will be rejected, and its command end with an error (RFC 7143 §11.4.7.2). False
    /// if there was none: what is left are pings' data and text, which cannot be given up without the connection.
    pub fn give_up_data(&mut self, now: Instant) -> bool {
        let max_segment = self.peer_max_data_segment;
        let Some(recovery) = &mut self.recovery else { return false };
        let mut bytes = 0;
        for (_, task) in self.tasks.iter_mut() {
            bytes += task.history.as_mut().map_or(0, |history| history.give_up());
        }
        for status in &mut recovery.statuses {
            let Some(ended) = &mut status.ended else { continue };
            bytes += ended.0.history.as_mut().map_or(0, |history| history.give_up());
            if matches!(status.data, StatusData::Payload(_)) {
                // It came with the last of the data: without that, a SCSI Response says the same.
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

    /// The initiator's PDU says which status it expects next: those before it have arrived.
    pub(in crate::target) fn acknowledge(&mut self, exp_stat_sn: u32, now: Instant) {
        let next = self.stat_sn;
        let Some(recovery) = &mut self.recovery else { return };
        recovery.ack_statuses(exp_stat_sn, next, now);
        self.give_owed_places();
    }

    /// Gives the places back that waited for room.
    pub(in crate::target) fn give_owed_places(&mut self) {
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.made_room && !recovery.is_full() {
            recovery.wants_room = false;
        }
        for _ in 0..recovery.take_owed() {
            self.window.complete();
        }
    }

    pub(in crate::target) fn check_overrun(&self) -> Result<(), Fatal> {
        match self.recovery.as_ref().is_some_and(|recovery| recovery.is_overrun()) {
            true => Err(Fatal::Unacknowledged),
            false => Ok(()),
        }
    }
}
