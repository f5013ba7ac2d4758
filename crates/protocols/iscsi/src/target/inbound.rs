//! The incoming data of one write: immediate data, the unsolicited sequence, and the solicited
//! sequences of R2Ts (RFC 7143 §4.2.5, §11.7, §11.8).
//!
//! Data arrives strictly in order, because this target always negotiates DataPDUInOrder=Yes and
//! DataSequenceInOrder=Yes. Data that has arrived is queued here until the logical unit takes it.
//! The data requested by R2Ts is bounded by the unit's requests.

use invariant::{broken, invariant};
use smallvec::SmallVec;

use super::payload::{Data, Payload};
use super::queue::Queue;
use crate::pdu::RESERVED_TAG;
use crate::sn;

/// The negotiated limits of a connection for writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteLimits {
    /// MaxBurstLength, bytes: the maximum length of a solicited sequence.
    pub max_burst: u32,
    /// FirstBurstLength, bytes: immediate and unsolicited data together.
    pub first_burst: u32,
    /// MaxOutstandingR2T.
    pub max_r2t: u16,
    /// InitialR2T: no unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate: bool,
}

/// An R2T to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// R2TSN, from 0 in each task.
    pub r2t_sn: u32,
    /// Buffer Offset, bytes.
    pub offset: u32,
    /// Desired Data Transfer Length, bytes.
    pub len: u32,
}

/// An RDMA Read to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Its start in bytes from the first solicited byte: the base offset of a write in the iSER
    /// header refers to that byte (RFC 7145 §9.2).
    pub offset: u32,
    /// Its start in bytes from the first byte of the data-out.
    pub at: u32,
    /// Its length, bytes.
    pub len: u32,
}

/// Why a data PDU is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InboundError {
    /// Immediate or unsolicited data that negotiation forbids: the sense is UNEXPECTED UNSOLICITED
    /// DATA (0C/0C).
    #[error("unsolicited data that negotiation does not allow")]
    UnexpectedUnsolicited,
    /// More data than FirstBurstLength, or than the sequence's length.
    #[error("data beyond the end of its sequence")]
    TooMuch,
    /// The offset is not the end of the last PDU.
    #[error("data out of order")]
    OutOfOrder,
    /// DataSN is not the next one.
    #[error("a DataSN out of order")]
    DataSn,
    /// The F bit was set before the end of the sequence.
    #[error("a sequence that ended early")]
    Incorrect,
}

/// An open sequence of Data-Out PDUs.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    /// The Target Transfer Tag of its R2T, if each R2T has its own.
    tag: u32,
    /// The number of R2Ts up to its own.
    r2ts: u32,
    /// The offset of its end, bytes.
    end: u32,
    /// The minimum offset at which the F bit is permitted.
    least: u32,
    /// The next DataSN.
    data_sn: u32,
}

/// The data of one write.
#[derive(Debug)]
pub struct Inbound<P> {
    /// Expected data transfer length, bytes.
    expected: u32,
    /// The offset of the next byte from the wire.
    received: u32,
    /// The offset of the next byte for the logical unit.
    taken: u32,
    /// The end of the data that the logical unit has requested.
    wanted: u32,
    /// The end of the data that R2Ts or RDMA Reads have requested.
    asked: u32,
    /// The end of the unsolicited data.
    unasked: u32,
    /// Bytes of outstanding RDMA Reads.
    reading: u32,
    /// Bytes of immediate data that have not arrived: all of it, or 0.
    due: u32,
    /// The unsolicited sequence, while it is open.
    unsolicited: Option<Sequence>,
    /// Open solicited sequences, oldest first.
    solicited: SmallVec<[Sequence; 2]>,
    next_r2t_sn: u32,
    queue: Queue<P>,
    /// The logical unit has finished or the task is aborted: further data is dropped.
    discard: bool,
    /// The peer violated the rules: no more data is available.
    failed: bool,
    /// ErrorRecoveryLevel 1: a PDU of an open sequence was lost. The rest of the sequence is
    /// dropped.
    damaged: bool,
    /// The number of retransmission requests since data last arrived.
    recoveries: u8,
    /// The number of R2Ts up to the last one with a Data-Out received.
    answered: u32,
    /// Lost unsolicited data was requested by R2T: further unsolicited data is late and is dropped.
    gave_up_unsolicited: bool,
}

impl<P: Payload> Inbound<P> {
    /// For a command without data-out.
    pub(crate) fn none() -> Self {
        Self::with(0)
    }

    fn with(expected: u32) -> Self {
        Self {
            expected,
            received: 0,
            taken: 0,
            wanted: 0,
            asked: 0,
            unasked: 0,
            reading: 0,
            due: 0,
            unsolicited: None,
            solicited: SmallVec::new(),
            next_r2t_sn: 0,
            queue: Queue::new(),
            discard: false,
            failed: false,
            damaged: false,
            recoveries: 0,
            answered: 0,
            gave_up_unsolicited: false,
        }
    }

    /// Begins a write command of `expected` bytes with its `immediate` data. `is_final` is its F
    /// bit: no unsolicited Data-Out follows. `self` must contain nothing of another command.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        expected: u32,
        immediate: impl Data<P>,
        is_final: bool,
        limits: &WriteLimits,
    ) -> Result<(), InboundError> {
        let len = immediate.len() as u64;
        if len > 0 && !limits.immediate {
            return Err(InboundError::UnexpectedUnsolicited);
        }
        if !is_final && limits.initial_r2t {
            return Err(InboundError::UnexpectedUnsolicited);
        }
        let bound = expected.min(limits.first_burst);
        if len > u64::from(bound) {
            return Err(InboundError::TooMuch);
        }
        self.expected = expected;
        if !is_final {
            self.unsolicited =
                Some(Sequence { tag: RESERVED_TAG, r2ts: 0, end: bound, least: bound, data_sn: 0 });
        }
        if immediate.due() > 0 {
            // At most `bound`, which is a u32.
            self.due = immediate.due() as u32;
        }
        immediate.give(|piece| self.store(piece));
        self.came_unasked();
        Ok(())
    }

    /// Permits unsolicited data to end before FirstBurstLength. Over iSER,
    /// MaxOutstandingUnexpectedPDUs may limit it (RFC 7145 §6.7), and the command states where RDMA
    /// Reads continue.
    pub(crate) fn allow_short_burst(&mut self) {
        if let Some(sequence) = &mut self.unsolicited {
            sequence.least = 0;
        }
    }

    /// Adds the outstanding immediate data of a [begun](Self::begin) command, exactly as many bytes
    /// as were due. Returns false and drops the data if none were due.
    pub(crate) fn rest(&mut self, immediate: impl Data<P>) -> bool {
        // None is due for a refused command.
        if std::mem::take(&mut self.due) == 0 {
            return false;
        }
        immediate.give(|piece| self.store(piece));
        self.came_unasked();
        true
    }

    /// Whether the logical unit will receive the outstanding immediate data.
    pub(crate) fn awaits_immediate(&self) -> bool {
        self.due > 0 && !self.discard
    }

    /// Resets it to [`Self::none`].
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.solicited.clear();
        // One long write must not enlarge the connection's memory forever.
        if self.queue.is_spilled() || self.solicited.spilled() {
            (self.queue, self.solicited) = (Queue::new(), SmallVec::new());
        }
        (self.expected, self.received, self.taken, self.wanted) = (0, 0, 0, 0);
        (self.asked, self.unasked, self.reading, self.next_r2t_sn, self.answered) = (0, 0, 0, 0, 0);
        self.due = 0;
        self.unsolicited = None;
        (self.discard, self.failed, self.damaged, self.gave_up_unsolicited) = (false, false, false, false);
        self.recoveries = 0;
    }

    fn came_unasked(&mut self) {
        self.asked = self.received;
        self.unasked = self.received;
    }

    fn store(&mut self, data: P) {
        // The callers checked the lengths against `expected`, a u32.
        self.received += data.len() as u32;
        if self.discard {
            self.taken = self.received;
        } else if !data.is_empty() {
            self.queue.push(data);
        }
    }

    /// Handles a Data-Out. `solicited`: it carried the Target Transfer Tag of an R2T.
    pub(crate) fn data_out(
        &mut self,
        offset: u32,
        data_sn: u32,
        data: impl Data<P>,
        is_final: bool,
        solicited: bool,
    ) -> Result<(), InboundError> {
        self.check(offset, data_sn, data.len(), is_final, solicited)?;
        let open = if solicited { self.solicited.first_mut() } else { self.unsolicited.as_mut() };
        if let Some(sequence) = open {
            sequence.data_sn = data_sn.wrapping_add(1);
        }
        match (is_final, solicited) {
            (true, true) => {
                self.solicited.remove(0);
            }
            (true, false) => self.unsolicited = None,
            (false, _) => {}
        }
        data.give(|piece| self.store(piece));
        if !solicited {
            self.came_unasked();
        }
        Ok(())
    }

    /// Checks that a Data-Out with `len` bytes is the next of its sequence.
    fn check(
        &self,
        offset: u32,
        data_sn: u32,
        len: usize,
        is_final: bool,
        solicited: bool,
    ) -> Result<(), InboundError> {
        let sequence = match solicited {
            true => self.solicited.first().ok_or(InboundError::TooMuch)?,
            false => self.unsolicited.as_ref().ok_or(InboundError::UnexpectedUnsolicited)?,
        };
        if offset != self.received {
            return Err(InboundError::OutOfOrder);
        }
        if data_sn != sequence.data_sn {
            return Err(InboundError::DataSn);
        }
        let end = u64::from(offset) + len as u64;
        if end > u64::from(sequence.end) {
            return Err(InboundError::TooMuch);
        }
        // A solicited sequence has exactly the requested length (RFC 7143 §11.8.2). Unsolicited
        // data continues to FirstBurstLength, or to the end of the data (§11.4.7.2).
        let too_early = is_final && end < u64::from(sequence.least);
        let too_late = solicited && !is_final && end == u64::from(sequence.end);
        if too_early || too_late {
            return Err(InboundError::Incorrect);
        }
        Ok(())
    }

    /// Whether the logical unit will receive the data of a Data-Out with `len` bytes whose header
    /// has arrived.
    pub(crate) fn awaits(
        &self,
        offset: u32,
        data_sn: u32,
        len: usize,
        is_final: bool,
        solicited: bool,
    ) -> bool {
        let wanted = !self.discard && !self.failed && !self.damaged;
        wanted && self.check(offset, data_sn, len, is_final, solicited).is_ok()
    }

    /// Handles a Data-Out at ErrorRecoveryLevel 1 or 2, where each R2T has its own `tag` (`None`:
    /// unsolicited). Ignores duplicates and the data of abandoned sequences. A gap means that a PDU
    /// was lost (RFC 7143 §7.9). The caller must call [`Self::recover`] afterwards.
    pub(crate) fn data_out_again(
        &mut self,
        offset: u32,
        data_sn: u32,
        data: impl Data<P>,
        is_final: bool,
        tag: Option<u32>,
    ) -> Result<(), InboundError> {
        let Some(sequence) = self.arrived(tag)? else { return Ok(()) };
        let expected = sequence.data_sn;
        if self.damaged || sn::lt(expected, data_sn) {
            self.damaged = true;
            self.pass(is_final, tag.is_some());
            return Ok(());
        }
        if data_sn != expected {
            return Ok(());
        }
        let before = self.received;
        self.data_out(offset, data_sn, data, is_final, tag.is_some())?;
        if self.received != before {
            self.recoveries = 0;
        }
        Ok(())
    }

    /// The sequence of a Data-Out. Sequences arrive in the order of their R2Ts: an older open
    /// sequence has lost its end.
    fn arrived(&mut self, tag: Option<u32>) -> Result<Option<&mut Sequence>, InboundError> {
        let Some(tag) = tag else {
            return match &mut self.unsolicited {
                None if self.gave_up_unsolicited => Ok(None),
                None => Err(InboundError::UnexpectedUnsolicited),
                open => Ok(open.as_mut()),
            };
        };
        let Some(at) = self.solicited.iter().position(|sequence| sequence.tag == tag) else {
            return Ok(None);
        };
        if at > 0 {
            self.damaged = true;
            self.solicited.drain(..at);
        }
        self.answered = self.solicited.first().map_or(self.answered, |sequence| sequence.r2ts);
        Ok(self.solicited.first_mut())
    }

    /// Records a Data-Out whose data is unusable. The caller must call [`Self::recover`]
    /// afterwards.
    pub(crate) fn lose(&mut self, is_final: bool, tag: Option<u32>) {
        if let Ok(Some(_)) = self.arrived(tag) {
            self.damaged = true;
            self.pass(is_final, tag.is_some());
        }
    }

    /// Abandons all open sequences (a sequence reception timeout, RFC 7143 §7.1.4.1). The caller
    /// must call [`Self::recover`] afterwards.
    pub(crate) fn time_out(&mut self) {
        self.damaged = true;
        self.gave_up_unsolicited |= self.unsolicited.take().is_some();
        self.solicited.clear();
    }

    /// Prepares retransmission of lost data by [`Self::next_r2t`], once no sequence is open. An R2T
    /// is outstanding until the F bit of its data arrives or a timeout has passed (§13.17), so
    /// nothing is requested before. Returns true if a retransmission is required.
    pub(crate) fn recover(&mut self, most: u8) -> Result<bool, InboundError> {
        if !self.damaged || self.unsolicited.is_some() || !self.solicited.is_empty() {
            return Ok(false);
        }
        self.damaged = false;
        self.asked = self.received;
        self.gave_up_unsolicited = true;
        self.recoveries += 1;
        match self.recoveries > most {
            true => Err(InboundError::OutOfOrder),
            false => Ok(true),
        }
    }

    /// Sets the tag of the R2T that [`Self::next_r2t`] has just returned.
    pub(crate) fn label(&mut self, tag: u32) {
        match self.solicited.last_mut() {
            Some(sequence) => sequence.tag = tag,
            None => broken!("a tag for an R2T that was not sent"),
        }
    }

    /// Whether a sequence of Data-Out PDUs is open.
    pub(crate) fn is_open(&self) -> bool {
        self.unsolicited.is_some() || !self.solicited.is_empty()
    }

    /// The number of outstanding R2Ts.
    pub(crate) fn outstanding(&self) -> usize {
        self.solicited.len()
    }

    /// The length of the transfer, bytes.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Bytes that have arrived.
    pub fn received(&self) -> u32 {
        self.received
    }

    /// The number of R2Ts up to the last one with a Data-Out received.
    pub(crate) fn r2ts_answered(&self) -> u32 {
        self.answered
    }

    /// The state of a transfer of `expected` bytes that continues on another connection at the byte
    /// `received` and the R2TSN `next_r2t_sn`.
    pub(crate) fn resumed(expected: u32, received: u32, next_r2t_sn: u32) -> Self {
        let at = received;
        let fresh = Self::with(expected);
        Self {
            received: at,
            taken: at,
            wanted: at,
            asked: at,
            unasked: at,
            next_r2t_sn,
            gave_up_unsolicited: true,
            answered: next_r2t_sn,
            ..fresh
        }
    }

    /// Adds data that arrived on the task's former connection.
    pub(crate) fn came(&mut self, data: P) {
        self.store(data);
        self.came_unasked();
    }

    /// Bytes of the transfer that were not taken.
    pub(crate) fn left(&self) -> usize {
        (self.expected - self.taken) as usize
    }

    /// Requests the next `len` bytes for the logical unit. Returns the number of bytes that remain
    /// of them.
    #[inline]
    pub(crate) fn want(&mut self, len: usize) -> usize {
        let len = len.min(self.left());
        self.wanted = self.wanted.max(self.taken + len as u32);
        len
    }

    /// The next R2T for the requested data, within the limits. `None` while the unsolicited
    /// sequence is open.
    pub(crate) fn next_r2t(&mut self, limits: &WriteLimits) -> Option<R2t> {
        if self.discard
            || self.unsolicited.is_some()
            || self.due > 0
            || self.asked >= self.wanted
            || self.solicited.len() >= usize::from(limits.max_r2t.max(1))
        {
            return None;
        }
        let len = (self.wanted - self.asked).min(limits.max_burst);
        let r2t = R2t { r2t_sn: self.next_r2t_sn, offset: self.asked, len };
        self.next_r2t_sn += 1;
        self.asked += len;
        self.solicited.push(Sequence {
            tag: RESERVED_TAG,
            r2ts: self.next_r2t_sn,
            end: self.asked,
            least: self.asked,
            data_sn: 0,
        });
        Some(r2t)
    }

    /// The next RDMA Read for the requested data, of at most `max` bytes. `None` while the
    /// unsolicited sequence is open. It is outstanding until [`Self::placed`] has received its
    /// bytes.
    pub(crate) fn next_read(&mut self, max: u32) -> Option<Read> {
        if self.discard || self.unsolicited.is_some() || self.asked >= self.wanted {
            return None;
        }
        let len = (self.wanted - self.asked).min(max.max(1));
        let read = Read { offset: self.asked - self.unasked, at: self.asked, len };
        self.asked += len;
        self.reading += len;
        Some(read)
    }

    /// Adds a piece of the data of RDMA Reads. Pieces must be in the order of [`Self::next_read`].
    pub(crate) fn placed(&mut self, data: P) {
        // A driver passes exactly the requested bytes; more would exceed the transfer.
        let len = data.len();
        if !invariant!(len <= self.reading as usize, "{len} bytes by RDMA Reads of {}", self.reading) {
            return;
        }
        self.reading -= len as u32;
        self.store(data);
    }

    /// Whether the logical unit will receive the data of the outstanding RDMA Reads.
    pub(crate) fn awaits_reads(&self) -> bool {
        self.reading > 0 && !self.discard && !self.failed
    }

    /// Whether RDMA Reads are outstanding.
    #[inline]
    pub(crate) fn is_reading(&self) -> bool {
        self.reading > 0
    }

    /// Forgets the outstanding RDMA Reads: the connection is lost.
    pub(crate) fn forget_reads(&mut self) {
        self.reading = 0;
    }

    /// Bytes that have arrived and were not taken.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        (self.received - self.taken) as usize
    }

    /// Whether less than `len` bytes (or the remaining bytes of the transfer) have arrived or are
    /// arriving.
    #[inline]
    pub(crate) fn is_short(&self, len: usize) -> bool {
        self.available() + (self.due as usize) < len.min(self.left())
    }

    /// Takes exactly `len` bytes, which must be [`Self::available`].
    pub(crate) fn take(&mut self, len: usize, mut give: impl FnMut(P)) {
        let mut left = len;
        while left > 0 {
            let Some(front) = self.queue.front_mut() else {
                broken!("{left} bytes taken that have not arrived");
                break;
            };
            if front.len() > left {
                give(front.split_to(left));
                left = 0;
            } else if let Some(whole) = self.queue.pop() {
                left -= whole.len();
                give(whole);
            }
        }
        self.taken += (len - left) as u32;
    }

    /// Drops the queued data and all further data: the logical unit has finished the command.
    #[inline]
    pub(crate) fn discard(&mut self) {
        self.discard = true;
        self.queue.clear();
        self.taken = self.received;
    }

    /// Fails the transfer after invalid data. Outstanding data is dropped when it arrives.
    pub(crate) fn fail(&mut self) {
        self.discard();
        self.failed = true;
    }

    /// Handles a Data-Out of failed data: an F bit at any offset ends its sequence.
    pub(crate) fn pass(&mut self, is_final: bool, solicited: bool) {
        match (is_final, solicited) {
            (true, true) if !self.solicited.is_empty() => {
                self.solicited.remove(0);
            }
            (true, false) => self.unsolicited = None,
            _ => {}
        }
    }

    /// Whether [`Self::fail`] was called.
    #[inline]
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Whether data is outstanding, so that the response must wait (RFC 7143 §11.4.2). It waits for
    /// RDMA Reads too: after the response the initiator invalidates its memory, and a Read of
    /// invalid memory ends the connection.
    #[inline]
    pub fn owed(&self) -> bool {
        self.unsolicited.is_some() || !self.solicited.is_empty() || self.reading > 0 || self.due > 0
    }

    /// The number of R2Ts sent: the R2TSN of the next one, reported as ExpDataSN of a write's
    /// response (§11.4.8).
    pub(crate) fn r2ts(&self) -> u32 {
        self.next_r2t_sn
    }
}

#[cfg(test)]
mod tests;
