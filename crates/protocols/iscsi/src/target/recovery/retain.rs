//! Sent and unacknowledged PDUs: statuses by StatSN, and the Data-In PDUs and R2Ts of each task.
//!
//! Payload is retained by reference, in memory that does not change. Limits bound the memory that
//! an initiator without acknowledgements can pin.

use std::collections::VecDeque;
use std::time::Instant;

use invariant::{broken, invariant};

use super::{Limits, MAX_R2TS, OVERRUN};
use crate::pdu::{self, Bhs, ReadyToTransfer, SnackRequest};
use crate::sn;
use crate::target::events::Completion;
use crate::target::inbound::R2t;
use crate::target::payload::Payload;
use crate::target::tasks::Task;

/// A Data-In PDU as sent.
#[derive(Debug, Clone)]
pub(in crate::target) struct SentData<P> {
    pub header: pdu::DataIn,
    pub data: P,
    /// The number of retransmissions.
    pub resent: u8,
}

/// An R2T as sent.
#[derive(Debug, Clone, Copy)]
pub(in crate::target) struct SentR2t {
    pub tag: u32,
    pub r2t: R2t,
    pub resent: u8,
}

/// The retained PDUs of one task.
#[derive(Debug)]
pub(crate) struct History<P> {
    /// Data-In PDUs, in the order of their DataSNs.
    pub(in crate::target) data: VecDeque<SentData<P>>,
    /// The data acknowledgement reference number: the first unacknowledged DataSN (RFC 7143
    /// §11.5.6).
    pub(in crate::target) acked: u32,
    /// Bytes of acknowledged data-in.
    pub(in crate::target) acked_bytes: u32,
    /// The Target Transfer Tag of its Data-In PDUs that request acknowledgement.
    pub(in crate::target) ack_tag: Option<u32>,
    pub(in crate::target) r2ts: VecDeque<SentR2t>,
    /// The tag of the last accepted R-Data SNACK, or 0 (§11.4.4).
    pub(in crate::target) snack_tag: u32,
    /// Bytes that it may send before it must request room again.
    pub(in crate::target) promised: usize,
    /// Unacknowledged data-in was discarded: it cannot be resent.
    pub(in crate::target) lost: bool,
    /// The time of the last data-out. `None`: an R2T was sent since the last timeout check.
    pub(in crate::target) heard: Option<Instant>,
}

impl<P: Payload> History<P> {
    pub(in crate::target) fn new(now: Instant) -> Self {
        Self {
            data: VecDeque::new(),
            acked: 0,
            acked_bytes: 0,
            ack_tag: None,
            r2ts: VecDeque::new(),
            snack_tag: 0,
            promised: 0,
            lost: false,
            heard: Some(now),
        }
    }

    /// The history of a task whose data-in before `data_sn`, of `bytes` bytes, has arrived on
    /// another connection.
    pub(in crate::target) fn resumed(data_sn: u32, bytes: u32) -> Self {
        Self {
            data: VecDeque::new(),
            acked: data_sn,
            acked_bytes: bytes,
            ack_tag: None,
            r2ts: VecDeque::new(),
            snack_tag: 0,
            promised: 0,
            lost: false,
            heard: None,
        }
    }

    fn bytes(&self) -> usize {
        self.data.iter().map(|sent| sent.data.len()).sum()
    }

    /// Discards data-in that may still be requested. Returns its length, bytes.
    pub(in crate::target) fn give_up(&mut self) -> usize {
        let bytes = self.bytes();
        if let Some(last) = self.data.back() {
            self.acked = last.header.data_sn.get().wrapping_add(1);
            self.acked_bytes += bytes as u32;
            self.lost = true;
        }
        self.data.clear();
        bytes
    }

    /// Whether a request covers discarded data-in.
    pub(in crate::target) fn misses(&self, request: &SnackRequest) -> bool {
        let (first, len) = (request.beg_run.get(), request.run_length.get());
        self.lost && (sn::lt(first, self.acked) || first == 0 && len == 0)
    }

    /// The smallest retained DataSN or R2TSN.
    pub(in crate::target) fn oldest(&self) -> Option<u32> {
        let data = self.data.front().map(|sent| sent.header.data_sn.get());
        let r2t = self.r2ts.front().map(|sent| sent.r2t.r2t_sn);
        match (data, r2t) {
            (Some(a), Some(b)) => Some(if sn::lt(a, b) { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    /// The PDU with this DataSN or R2TSN as sent, and its number of retransmissions.
    pub(in crate::target) fn again(
        &mut self,
        number: u32,
        itt: u32,
        lun: pdu::Lun,
        stat_sn: u32,
    ) -> Option<(&mut u8, (Bhs, Option<P>))> {
        if let Some(first) = self.data.front().map(|sent| sent.header.data_sn.get()) {
            // The R2Ts of a bidirectional command share the numbers of its data: the index then
            // differs from the distance.
            let guess = sn::distance(first, number) as usize;
            let found = match self.data.get(guess) {
                Some(sent) if sent.header.data_sn.get() == number => Some(guess),
                _ => self.data.iter().position(|sent| sent.header.data_sn.get() == number),
            };
            if let Some(sent) = found.and_then(|at| self.data.get_mut(at)) {
                return Some((&mut sent.resent, (sent.header.into(), Some(sent.data.clone()))));
            }
        }
        let sent = self.r2ts.iter_mut().find(|sent| sent.r2t.r2t_sn == number)?;
        let mut header = ReadyToTransfer::new(itt, sent.tag, lun, number, sent.r2t.offset, sent.r2t.len);
        // A resent R2T has the current StatSN (§11.16).
        header.stat_sn.set(stat_sn);
        Some((&mut sent.resent, (header.into(), None)))
    }

    /// Retains an R2T, and discards those answered long ago.
    pub(in crate::target) fn asked(&mut self, tag: u32, r2t: R2t, outstanding: usize) {
        self.r2ts.push_back(SentR2t { tag, r2t, resent: 0 });
        while self.r2ts.len() > MAX_R2TS.max(outstanding) {
            self.r2ts.pop_front();
        }
    }
}

/// The data segment of a status PDU.
#[derive(Debug)]
pub(in crate::target) enum StatusData<P> {
    Small(Vec<u8>),
    Payload(P),
}

impl<P: Payload> StatusData<P> {
    fn len(&self) -> usize {
        match self {
            Self::Small(bytes) => bytes.len(),
            Self::Payload(payload) => payload.len(),
        }
    }
}

/// A PDU that advanced StatSN.
#[derive(Debug)]
pub(in crate::target) struct Status<P> {
    pub stat_sn: u32,
    pub bhs: Bhs,
    pub data: StatusData<P>,
    /// The SCSI command that ended with it.
    pub ended: Option<Box<(Task<P>, Completion)>>,
    pub resent: u8,
}

/// The retained PDUs of one connection.
#[derive(Debug)]
pub(in crate::target) struct Recovery<P> {
    pub limits: Limits,
    /// The part of [`Limits::keep_bytes`] that the driver permits now.
    pub room: usize,
    /// In the order of their StatSNs, without gaps.
    pub statuses: VecDeque<Status<P>>,
    /// Bytes retained.
    pub kept: usize,
    /// Retained bytes that belong to no task: ping data, text, rejected headers.
    others: usize,
    /// Bytes that tasks may still send of their begun bursts.
    promised: usize,
    /// Places in the command window that are still withheld.
    owed: u32,
    /// Data was acknowledged since the last `Connection::take_made_room`.
    pub made_room: bool,
    /// Room was requested and denied.
    pub wants_room: bool,
    /// The next StatSN at the time of the last ping for acknowledgement.
    pub asked: Option<u32>,
    /// The time at which a status was first sent, acknowledged or pinged for.
    pub since: Instant,
    /// The time at which the first retained PDU was sent, or one was last acknowledged.
    pub moved: Instant,
}

/// Names of [`Recovery`]'s counts.
const KEPT: &str = "retained";
const PROMISED: &str = "promised";

/// Takes `bytes` off a count of what is retained.
fn take_off(count: &mut usize, bytes: usize, what: &str) {
    invariant!(bytes <= *count, "{bytes} bytes of {count} {what}");
    *count = count.saturating_sub(bytes);
}

impl<P: Payload> Recovery<P> {
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            room: limits.keep_bytes,
            statuses: VecDeque::new(),
            kept: 0,
            others: 0,
            promised: 0,
            owed: 0,
            made_room: false,
            wants_room: false,
            asked: None,
            since: now,
            moved: now,
        }
    }

    /// Whether a limit is exceeded.
    pub fn is_full(&self) -> bool {
        self.kept > self.room || self.statuses.len() > self.limits.keep_statuses
    }

    /// Whether a status or a command waits for an acknowledgement.
    pub fn is_pending(&self) -> bool {
        self.wants_room || !self.statuses.is_empty()
    }

    /// Whether the status of a SCSI command is retained.
    pub fn keeps_ended(&self) -> bool {
        self.statuses.iter().any(|status| status.ended.is_some())
    }

    /// Whether far more is retained than an acknowledging peer can cause.
    pub fn is_overrun(&self) -> bool {
        self.others > OVERRUN * self.limits.keep_bytes
            || self.statuses.len() > OVERRUN * self.limits.keep_statuses
    }

    /// Returns a free place in the command window: true if it is available now, false if it waits
    /// for acknowledgements.
    pub fn may_give_place(&mut self) -> bool {
        if self.is_full() {
            self.owed += 1;
            self.wants_room = true;
            return false;
        }
        true
    }

    /// Takes the withheld places that are now available.
    pub fn take_owed(&mut self) -> u32 {
        match self.is_full() {
            true => 0,
            false => std::mem::take(&mut self.owed),
        }
    }

    /// Whether a task may send the next `burst` bytes. One task may always continue, so that its
    /// data can be acknowledged.
    pub fn promise(&mut self, history: &mut History<P>, burst: usize) -> bool {
        if history.promised > 0 {
            return true;
        }
        let committed = self.kept + self.promised;
        if committed > 0 && committed + burst > self.room {
            self.wants_room = true;
            return false;
        }
        history.promised = burst;
        self.promised += burst;
        true
    }

    /// Retains a Data-In PDU.
    pub fn keep_data(&mut self, history: &mut History<P>, header: pdu::DataIn, data: P, now: Instant) {
        let len = data.len();
        if self.kept == 0 {
            self.moved = now;
        }
        let used = history.promised.min(len);
        history.promised -= used;
        take_off(&mut self.promised, used, PROMISED);
        self.kept += len;
        history.data.push_back(SentData { header, data, resent: 0 });
    }

    /// Ends a task's burst: it will send no more data.
    pub fn end_promise(&mut self, history: &mut History<P>) {
        take_off(&mut self.promised, std::mem::take(&mut history.promised), PROMISED);
    }

    /// Discards all retained PDUs of a task.
    pub fn release(&mut self, history: &mut History<P>) {
        self.end_promise(history);
        take_off(&mut self.kept, history.bytes(), KEPT);
        history.data.clear();
        self.made_room = true;
    }

    /// Handles an acknowledgement of the Data-In PDUs before `exp_data_sn`.
    pub fn ack_data(&mut self, history: &mut History<P>, exp_data_sn: u32, now: Instant) {
        while let Some(sent) = history.data.front()
            && sn::lt(sent.header.data_sn.get(), exp_data_sn)
        {
            take_off(&mut self.kept, sent.data.len(), KEPT);
            history.acked = sent.header.data_sn.get().wrapping_add(1);
            history.acked_bytes += sent.data.len() as u32;
            history.data.pop_front();
            self.moved = now;
        }
        self.made_room = true;
    }

    /// Retains a PDU that advanced StatSN.
    pub fn keep_status(&mut self, mut status: Status<P>, now: Instant) {
        match &mut status.ended {
            Some(ended) => {
                if let Some(history) = &mut ended.0.history {
                    self.end_promise(history);
                }
            }
            None => {
                if self.kept == 0 {
                    self.moved = now;
                }
                self.kept += status.data.len();
                self.others += status.data.len();
            }
        }
        if self.statuses.is_empty() {
            self.since = now;
        }
        self.statuses.push_back(status);
    }

    /// Handles an acknowledgement of the statuses before `exp_stat_sn`. `next` is the next StatSN:
    /// a number that was never assigned acknowledges nothing.
    pub fn ack_statuses(&mut self, exp_stat_sn: u32, next: u32, now: Instant) {
        if sn::lt(next, exp_stat_sn) {
            return;
        }
        while let Some(status) = self.statuses.front()
            && sn::lt(status.stat_sn, exp_stat_sn)
        {
            let Some(mut status) = self.statuses.pop_front() else {
                broken!("a first status that is not there");
                break;
            };
            match &mut status.ended {
                Some(ended) => {
                    if let Some(history) = &mut ended.0.history {
                        self.release(history);
                    }
                }
                None => {
                    take_off(&mut self.kept, status.data.len(), KEPT);
                    take_off(&mut self.others, status.data.len(), "retained besides data-in");
                }
            }
            self.made_room = true;
            self.since = now;
            self.moved = now;
        }
    }

    /// Records discarded bytes.
    pub fn gave_up(&mut self, bytes: usize, now: Instant) {
        take_off(&mut self.kept, bytes, KEPT);
        self.made_room = true;
        self.moved = now;
    }

    /// The index of a StatSN among the retained statuses.
    pub fn place_of(&self, stat_sn: u32) -> Option<usize> {
        let first = self.statuses.front()?.stat_sn;
        let at = stat_sn.wrapping_sub(first) as usize;
        (at < self.statuses.len()).then_some(at)
    }

    /// The index of the unacknowledged status of the SCSI command with Initiator Task Tag `itt`:
    /// the last one, if a tag was reused.
    pub fn ended(&self, itt: u32) -> Option<usize> {
        self.statuses.iter().rposition(|status| status.ended.as_ref().is_some_and(|ended| ended.0.itt == itt))
    }
}
