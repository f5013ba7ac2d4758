//! One write's data on its way in: immediate data, the unsolicited sequence, and the sequences that R2Ts ask for
//! (RFC 7143 §4.2.5, §11.7, §11.8).
//!
//! Data comes strictly in order, because this target always negotiates DataPDUInOrder=Yes and DataSequenceInOrder=Yes.
//! What has arrived is queued here until the logical unit takes it; what is asked for is bounded by what the unit wants.

use smallvec::SmallVec;

use super::payload::{Data, Payload};
use crate::pdu::RESERVED_TAG;
use crate::sn;

/// The limits that a connection's negotiation set for writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteLimits {
    /// MaxBurstLength, bytes: the longest solicited sequence.
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

/// An RDMA Read that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where it begins, counted in bytes from the first byte that did not come unsolicited: what an iSER header's base offset
    /// of a write stands for (RFC 7145 §9.2).
    pub offset: u32,
    /// The same, counted from the first byte of the data-out.
    pub at: u32,
    /// Bytes.
    pub len: u32,
}

/// What is wrong with a data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboundError {
    /// Immediate or unsolicited data where negotiation allowed none: NON-ZERO… the sense is UNEXPECTED UNSOLICITED DATA (0C/0C).
    #[error("unsolicited data that negotiation does not allow")]
    UnexpectedUnsolicited,
    /// More than FirstBurstLength, or more than the sequence was to carry.
    #[error("data beyond the end of its sequence")]
    TooMuch,
    /// The offset is not where the last PDU ended.
    #[error("data out of order")]
    OutOfOrder,
    /// DataSN is not the next.
    #[error("a DataSN out of order")]
    DataSn,
    /// The F bit came before the sequence was complete.
    #[error("a sequence that ended early")]
    Incorrect,
}

/// A sequence of Data-Out PDUs that is due.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    /// The Target Transfer Tag of its R2T, where each has one of its own.
    tag: u32,
    /// R2Ts up to its own.
    r2ts: u32,
    /// End offset.
    end: u32,
    /// Next DataSN.
    data_sn: u32,
}

/// Payloads in the order of their arrival. Most writes come in one or two pieces, which take no allocation.
#[derive(Debug)]
struct Queue<P> {
    pieces: SmallVec<[Option<P>; 2]>,
    head: usize,
}

/// Pieces that are kept where they were received, however small they are.
const FEW: usize = 4;
/// A piece of fewer bytes keeps much more memory alive than it has: a driver receives into buffers of many KiB.
const SMALL: usize = 16 << 10;

impl<P: Payload> Queue<P> {
    fn new() -> Self {
        Self { pieces: SmallVec::new(), head: 0 }
    }

    fn push(&mut self, piece: P) {
        let kept = self.pieces.len() - self.head;
        if kept < FEW || piece.len() >= SMALL {
            return self.pieces.push(Some(piece));
        }
        // Many small pieces are joined, so that a peer that cuts its data into crumbs pins no buffer with each. A piece is joined
        // with those before it that are shorter than twice itself: that leaves few, and copies no byte often.
        let mut bytes = piece.to_vec();
        while self.pieces.len() - self.head > FEW
            && let Some(Some(last)) = self.pieces.last()
            && last.len() < SMALL.min(2 * bytes.len())
        {
            let mut joined = last.to_vec();
            joined.append(&mut bytes);
            bytes = joined;
            self.pieces.pop();
        }
        self.pieces.push(Some(P::copied(bytes)));
    }

    fn front_mut(&mut self) -> Option<&mut P> {
        self.pieces.get_mut(self.head)?.as_mut()
    }

    fn pop(&mut self) -> Option<P> {
        let piece = self.pieces.get_mut(self.head)?.take();
        self.head += 1;
        if self.head == self.pieces.len() {
            self.clear();
        }
        piece
    }

    #[inline]
    fn clear(&mut self) {
        if !self.pieces.is_empty() {
            self.pieces.clear();
        }
        self.head = 0;
    }
}

/// The data of one write.
#[derive(Debug)]
pub struct Inbound<P> {
    /// Expected data transfer length, bytes.
    expected: u32,
    /// Where the next byte from the wire belongs.
    received: u32,
    /// Where the next byte to the unit comes from.
    taken: u32,
    /// Up to where the unit wants data.
    wanted: u32,
    /// Up to where R2Ts, or RDMA Reads, have asked for it.
    asked: u32,
    /// Where unsolicited data ended.
    unasked: u32,
    /// Bytes that RDMA Reads are fetching.
    reading: u32,
    /// Bytes of immediate data that are still to come: all of it, or none.
    due: u32,
    /// The unsolicited sequence, while it is open.
    unsolicited: Option<Sequence>,
    /// Solicited sequences that are due, oldest first.
    solicited: SmallVec<[Sequence; 2]>,
    next_r2t_sn: u32,
    queue: Queue<P>,
    /// The unit is finished or the task aborted: what still comes is dropped.
    discard: bool,
    /// The peer broke the rules: no more data is to be had.
    failed: bool,
    /// ErrorRecoveryLevel 1: a PDU of a sequence that is open was lost. What still comes of it is dropped.
    damaged: bool,
    /// How often data was asked for again since some of it came.
    recoveries: u8,
    /// R2Ts up to the last one that has brought anything.
    answered: u32,
    /// Some unsolicited data was lost, and asked for again: what still comes of it is late, and no more.
    gave_up_unsolicited: bool,
}

impl<P: Payload> Inbound<P> {
    /// A command that expects no data-out.
    pub fn none() -> Self {
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

    /// A write command of `expected` bytes arrived with `immediate` data; `is_final` is its F bit: no unsolicited
    /// Data-Out follows. Nothing of another command may be in this.
    #[inline]
    pub fn begin(
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
            self.unsolicited = Some(Sequence { tag: RESERVED_TAG, r2ts: 0, end: bound, data_sn: 0 });
        }
        if immediate.due() > 0 {
            // No more than `bound`.
            self.due = immediate.due() as u32;
        }
        immediate.give(|piece| self.store(piece));
        self.came_unasked();
        Ok(())
    }

    /// The immediate data has come that was still to come when the command was [begun](Self::begin): as many bytes as were due. False: none
    /// were, and these are dropped.
    pub fn rest(&mut self, immediate: impl Data<P>) -> bool {
        // Of a command that was refused none is due.
        if std::mem::take(&mut self.due) == 0 {
            return false;
        }
        immediate.give(|piece| self.store(piece));
        self.came_unasked();
        true
    }

    /// Whether the unit will get the immediate data that is still to come.
    pub fn awaits_immediate(&self) -> bool {
        self.due > 0 && !self.discard
    }

    /// Makes it what [`Self::none`] is.
    #[inline]
    pub fn clear(&mut self) {
        self.queue.clear();
        self.solicited.clear();
        // A connection does not keep for ever what one long write took.
        if self.queue.pieces.spilled() || self.solicited.spilled() {
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
        // The lengths were checked against `expected`, a u32, by the callers.
        self.received += data.len() as u32;
        if self.discard {
            self.taken = self.received;
        } else if !data.is_empty() {
            self.queue.push(data);
        }
    }

    /// A Data-Out arrived. `solicited` tells that it named an R2T's Target Transfer Tag.
    pub fn data_out(
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

    /// Whether a Data-Out with `len` bytes is the next of its sequence.
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
        // An R2T's sequence carries exactly what it asked for (RFC 7143 §11.8.2).
        if solicited && is_final != (end == u64::from(sequence.end)) {
            return Err(InboundError::Incorrect);
        }
        Ok(())
    }

    /// Whether the unit will get the data of a Data-Out with `len` bytes whose header has come, once that has come too.
    pub fn awaits(&self, offset: u32, data_sn: u32, len: usize, is_final: bool, solicited: bool) -> bool {
        let wanted = !self.discard && !self.failed && !self.damaged;
        wanted && self.check(offset, data_sn, len, is_final, solicited).is_ok()
    }

    /// A Data-Out arrived at ErrorRecoveryLevel 1 or 2, where each R2T has a `tag` of its own (`None`: it is unsolicited).
    /// Duplicates and what belongs to sequences that were given up change nothing; a gap means that a PDU was lost (RFC 7143
    /// §7.9). Afterwards [`Self::recover`] is due.
    pub fn data_out_again(
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

    /// The sequence that a Data-Out belongs to. Sequences come in the order of their R2Ts: an older one that is still open has lost
    /// its end.
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

    /// A Data-Out came whose data is of no use. Afterwards [`Self::recover`] is due.
    pub fn lose(&mut self, is_final: bool, tag: Option<u32>) {
        if let Ok(Some(_)) = self.arrived(tag) {
            self.damaged = true;
            self.pass(is_final, tag.is_some());
        }
    }

    /// The rest of all open sequences will not come (a sequence reception timeout, RFC 7143 §7.1.4.1). Afterwards
    /// [`Self::recover`] is due.
    pub fn time_out(&mut self) {
        self.damaged = true;
        self.gave_up_unsolicited |= self.unsolicited.take().is_some();
        self.solicited.clear();
    }

    /// Once no sequence is open any more: what was lost is to be asked for again, by [`Self::next_r2t`]. An R2T is outstanding
    /// until the F bit of its data has come or a timeout has passed (§13.17), so that nothing is asked for before that.
    /// True: something is to be asked for again.
    pub fn recover(&mut self, most: u8) -> Result<bool, InboundError> {
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

    /// Gives the R2T that [`Self::next_r2t`] has just given a tag of its own.
    pub fn label(&mut self, tag: u32) {
        if let Some(sequence) = self.solicited.last_mut() {
            sequence.tag = tag;
        }
    }

    /// Whether a sequence of Data-Out PDUs is open.
    pub fn is_open(&self) -> bool {
        self.unsolicited.is_some() || !self.solicited.is_empty()
    }

    /// R2Ts outstanding.
    pub fn outstanding(&self) -> usize {
        self.solicited.len()
    }

    /// Bytes of the transfer.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Bytes that have arrived.
    pub fn received(&self) -> u32 {
        self.received
    }

    /// How many R2Ts there were up to the last one that has brought anything.
    pub fn r2ts_answered(&self) -> u32 {
        self.answered
    }

    /// What goes on with a transfer of `expected` bytes on another connection, where the next byte is the one at `received` and
    /// the next R2TSN is `next_r2t_sn`.
    pub fn resumed(expected: u32, received: u32, next_r2t_sn: u32) -> Self {
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

    /// Data that came on another connection, unasked.
    pub fn came(&mut self, data: P) {
        self.store(data);
        self.came_unasked();
    }

    /// Bytes of the transfer that were not taken.
    pub fn left(&self) -> usize {
        (self.expected - self.taken) as usize
    }

    /// The unit wants the next `len` bytes; says how many of them there will be.
    #[inline]
    pub fn want(&mut self, len: usize) -> usize {
        let len = len.min(self.left());
        self.wanted = self.wanted.max(self.taken + len as u32);
        len
    }

    /// The next R2T that what is wanted calls for, within the limits. None while the unsolicited sequence is open.
    pub fn next_r2t(&mut self, limits: &WriteLimits) -> Option<R2t> {
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
            data_sn: 0,
        });
        Some(r2t)
    }

    /// The next RDMA Read that what is wanted calls for, of at most `max` bytes. None while the unsolicited sequence is open. It
    /// is under way until [`Self::placed`] has its bytes.
    pub fn next_read(&mut self, max: u32) -> Option<Read> {
        if self.discard || self.unsolicited.is_some() || self.asked >= self.wanted {
            return None;
        }
        let len = (self.wanted - self.asked).min(max.max(1));
        let read = Read { offset: self.asked - self.unasked, at: self.asked, len };
        self.asked += len;
        self.reading += len;
        Some(read)
    }

    /// A piece of what RDMA Reads fetch has come. They come in the order of [`Self::next_read`].
    pub fn placed(&mut self, data: P) {
        // A driver gives what was asked for; more would pass the transfer's end.
        debug_assert!(data.len() as u64 <= u64::from(self.reading), "more than RDMA Reads asked for");
        self.reading -= (data.len() as u32).min(self.reading);
        self.store(data);
    }

    /// Whether the unit will get what the RDMA Reads under way bring.
    pub fn awaits_reads(&self) -> bool {
        self.reading > 0 && !self.discard && !self.failed
    }

    /// Whether RDMA Reads are under way.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.reading > 0
    }

    /// The RDMA Reads under way will bring nothing: the connection is lost.
    pub fn forget_reads(&mut self) {
        self.reading = 0;
    }

    /// Bytes that have arrived and were not taken.
    #[inline]
    pub fn available(&self) -> usize {
        (self.received - self.taken) as usize
    }

    /// Whether fewer than `len` bytes have arrived, or arrive already, of what the transfer still has to give.
    #[inline]
    pub fn is_short(&self, len: usize) -> bool {
        self.available() + (self.due as usize) < len.min(self.left())
    }

    /// Takes exactly `len` bytes, which are [`Self::available`].
    pub fn take(&mut self, len: usize, mut give: impl FnMut(P)) {
        let mut left = len;
        while left > 0 {
            let Some(front) = self.queue.front_mut() else { break };
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

    /// Drops what is queued and whatever else arrives: the unit is finished with the command.
    #[inline]
    pub fn discard(&mut self) {
        self.discard = true;
        self.queue.clear();
        self.taken = self.received;
    }

    /// Gives up on data that broke the rules: nothing more is to be had. What is still owed comes, and is dropped.
    pub fn fail(&mut self) {
        self.discard();
        self.failed = true;
    }

    /// Lets a PDU of failed data pass: its F bit ends its sequence, wherever it stands.
    pub fn pass(&mut self, is_final: bool, solicited: bool) {
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

    /// Whether a sequence is open, so that the response must wait (RFC 7143 §11.4.2). It waits for RDMA Reads too: after it the
    /// initiator takes its memory back, and a read that finds it gone costs the connection.
    #[inline]
    pub fn owed(&self) -> bool {
        self.unsolicited.is_some() || !self.solicited.is_empty() || self.reading > 0 || self.due > 0
    }

    /// R2Ts sent so far: the R2TSN of the next, reported as ExpDataSN of a write's response (§11.4.8).
    pub fn r2ts(&self) -> u32 {
        self.next_r2t_sn
    }
}

#[cfg(test)]
mod tests {
    use super::super::payload::Due;
    use super::*;

    const LIMITS: WriteLimits =
        WriteLimits { max_burst: 8, first_burst: 6, max_r2t: 2, initial_r2t: false, immediate: true };

    impl Inbound<Vec<u8>> {
        fn command(
            expected: u32,
            immediate: Vec<u8>,
            is_final: bool,
            limits: &WriteLimits,
        ) -> Result<Self, InboundError> {
            let mut inbound = Self::none();
            inbound.begin(expected, immediate, is_final, limits)?;
            Ok(inbound)
        }
    }

    fn taken(inbound: &mut Inbound<Vec<u8>>, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        inbound.take(len, |p| all.extend(p));
        all
    }

    #[test]
    fn immediate_unsolicited_and_solicited_data_arrive_in_order() {
        let mut w = Inbound::command(30, vec![0, 1], false, &LIMITS).unwrap();
        assert_eq!(w.want(100), 30);
        assert_eq!(w.next_r2t(&LIMITS), None, "the unsolicited sequence is open");
        w.data_out(2, 0, vec![2, 3], false, false).unwrap();
        w.data_out(4, 1, vec![4], true, false).unwrap();
        assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 0, offset: 5, len: 8 }));
        assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 1, offset: 13, len: 8 }));
        assert_eq!(w.next_r2t(&LIMITS), None, "MaxOutstandingR2T");
        w.data_out(5, 0, (5..13).collect::<Vec<u8>>(), true, true).unwrap();
        assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 2, offset: 21, len: 8 }));
        w.data_out(13, 0, (13..21).collect::<Vec<u8>>(), true, true).unwrap();
        assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 3, offset: 29, len: 1 }));
        w.data_out(21, 0, (21..25).collect::<Vec<u8>>(), false, true).unwrap();
        assert!(w.owed());
        w.data_out(25, 1, (25..29).collect::<Vec<u8>>(), true, true).unwrap();
        w.data_out(29, 0, vec![29], true, true).unwrap();
        assert!(!w.owed());
        assert_eq!(w.available(), 30);
        assert_eq!(taken(&mut w, 7), (0..7).collect::<Vec<u8>>());
        assert_eq!(taken(&mut w, 23), (7..30).collect::<Vec<u8>>());
    }

    #[test]
    fn data_in_crumbs_is_kept_in_few_pieces() {
        let limits = WriteLimits { first_burst: 5000, ..LIMITS };
        let mut w = Inbound::command(5000, Vec::new(), false, &limits).unwrap();
        w.want(5000);
        for at in 0..5000u32 {
            w.data_out(at, at, vec![at as u8], at == 4999, false).unwrap();
            assert!(w.queue.pieces.len() <= FEW + 14, "{} pieces of {at}", w.queue.pieces.len());
        }
        assert_eq!(taken(&mut w, 5000), (0..5000u32).map(|at| at as u8).collect::<Vec<_>>());
    }

    #[test]
    fn rdma_reads_begin_where_unsolicited_data_ended_and_are_owed_until_they_are_done() {
        let mut w = Inbound::command(30, vec![0, 1], false, &LIMITS).unwrap();
        assert_eq!(w.want(20), 20);
        assert_eq!(w.next_read(10), None, "the unsolicited sequence is open");
        w.data_out(2, 0, vec![2, 3], true, false).unwrap();
        assert_eq!(w.next_read(10), Some(Read { offset: 0, at: 4, len: 10 }));
        assert_eq!(w.next_read(10), Some(Read { offset: 10, at: 14, len: 6 }));
        assert_eq!(w.next_read(10), None, "no more than is wanted");
        assert!(w.owed() && w.is_reading() && w.awaits_reads());
        w.placed((4..9).collect());
        w.placed((9..14).collect());
        w.placed((14..20).collect());
        assert!(!w.owed() && !w.is_reading() && !w.awaits_reads());
        assert_eq!(taken(&mut w, 20), (0..20).collect::<Vec<u8>>());
        assert_eq!(w.want(20), 10);
        assert_eq!(w.next_read(100), Some(Read { offset: 16, at: 20, len: 10 }));
        assert!(w.awaits_reads());
        w.discard();
        assert!(
            w.owed() && !w.awaits_reads(),
            "what was asked for still comes, and the unit does not get it"
        );
        w.placed(vec![0; 10]);
        assert!(!w.owed());
        assert_eq!(w.available(), 0, "and is dropped");
    }

    #[test]
    fn immediate_data_that_is_still_to_come_is_owed_and_nothing_is_asked_for_before_it() {
        let begun = |expected, len| {
            let mut inbound = Inbound::<Vec<u8>>::none();
            inbound.begin(expected, Due(len), true, &LIMITS).map(|()| inbound)
        };
        assert_eq!(begun(30, 7).unwrap_err(), InboundError::TooMuch);
        let mut w = begun(30, 5).unwrap();
        assert_eq!((w.want(30), w.available()), (30, 0));
        assert!(w.owed() && w.awaits_immediate() && !w.is_short(5) && w.is_short(6));
        assert_eq!(w.next_r2t(&LIMITS), None);
        assert!(w.rest(vec![0, 1, 2, 3, 4]) && !w.rest(vec![5]));
        assert!(!w.awaits_immediate() && w.available() == 5);
        assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 0, offset: 5, len: 8 }));
        // A unit that is finished before it has come.
        let mut w = begun(5, 5).unwrap();
        w.discard();
        assert!(w.owed() && !w.awaits_immediate());
        w.rest(vec![0; 5]);
        assert!(!w.owed() && w.available() == 0);
    }

    #[test]
    fn data_is_awaited_if_it_would_be_taken_and_looking_changes_nothing() {
        let mut w = Inbound::command(30, Vec::new(), false, &LIMITS).unwrap();
        w.want(14);
        assert!(w.awaits(0, 0, 6, true, false) && w.awaits(0, 0, 3, false, false));
        assert!(!w.awaits(0, 0, 7, true, false), "more than FirstBurstLength");
        assert!(!w.awaits(0, 0, 6, true, true), "not asked for");
        w.data_out(0, 0, vec![0; 6], true, false).unwrap();
        w.next_r2t(&LIMITS).unwrap();
        for _ in 0..2 {
            assert!(w.awaits(6, 0, 8, true, true) && w.awaits(6, 0, 4, false, true));
            for (offset, data_sn, len, is_final) in [
                (5, 0, 8, true),
                (7, 0, 7, true),
                (6, 1, 8, true),
                (6, 0, 9, true),
                (6, 0, 8, false),
                (6, 0, 4, true),
            ] {
                assert!(
                    !w.awaits(offset, data_sn, len, is_final, true),
                    "{offset} {data_sn} {len} {is_final}"
                );
            }
        }
        w.fail();
        assert!(!w.awaits(6, 0, 8, true, true));
    }

    #[test]
    fn r2ts_ask_for_no_more_than_the_unit_wants() {
        let mut w = Inbound::command(30, Vec::new(), true, &LIMITS).unwrap();
        assert_eq!(w.next_r2t(&LIMITS), None);
        assert_eq!(w.want(3), 3);
        assert_eq!(w.next_r2t(&LIMITS), Some(R2t { r2t_sn: 0, offset: 0, len: 3 }));
        assert_eq!(w.next_r2t(&LIMITS), None);
    }

    #[test]
    fn data_that_breaks_the_rules_is_refused() {
        let none = WriteLimits { initial_r2t: true, immediate: false, ..LIMITS };
        assert_eq!(
            Inbound::command(9, vec![1], true, &none).unwrap_err(),
            InboundError::UnexpectedUnsolicited
        );
        assert_eq!(
            Inbound::command(9, Vec::new(), false, &none).unwrap_err(),
            InboundError::UnexpectedUnsolicited
        );
        assert_eq!(Inbound::command(9, vec![0; 7], true, &LIMITS).unwrap_err(), InboundError::TooMuch);
        assert_eq!(Inbound::command(3, vec![0; 4], true, &LIMITS).unwrap_err(), InboundError::TooMuch);
        let mut w = Inbound::command(30, Vec::new(), true, &LIMITS).unwrap();
        assert_eq!(w.data_out(0, 0, vec![1], true, false).unwrap_err(), InboundError::UnexpectedUnsolicited);
        assert_eq!(w.data_out(0, 0, vec![1], true, true).unwrap_err(), InboundError::TooMuch);
        w.want(8);
        w.next_r2t(&LIMITS).unwrap();
        assert_eq!(w.data_out(1, 0, vec![1], true, true).unwrap_err(), InboundError::OutOfOrder);
        assert_eq!(w.data_out(0, 5, vec![1], true, true).unwrap_err(), InboundError::DataSn);
        assert_eq!(w.data_out(0, 0, vec![1; 9], true, true).unwrap_err(), InboundError::TooMuch);
        assert_eq!(w.data_out(0, 0, vec![1; 7], true, true).unwrap_err(), InboundError::Incorrect);
    }

    #[test]
    fn a_finished_unit_discards_what_is_still_owed() {
        let mut w = Inbound::command(30, vec![1, 2], true, &LIMITS).unwrap();
        w.want(10);
        w.next_r2t(&LIMITS).unwrap();
        w.discard();
        assert!(w.owed());
        w.data_out(2, 0, vec![9; 8], true, true).unwrap();
        assert!(!w.owed());
        assert_eq!(w.available(), 0);
        assert_eq!(w.next_r2t(&LIMITS), None);
    }
}
