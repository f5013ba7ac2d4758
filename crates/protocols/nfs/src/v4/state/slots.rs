//! Owns the slots of a fore channel: sequence IDs, and the replies that are kept for retries
//! (RFC 8881 §2.10.6.1).

use super::saved::saved;
use crate::v4::{SequenceOk, Status};

/// A slot's verdict on a request with its sequence ID or the next one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// It is new.
    Run,
    /// A retry of a request whose SEQUENCE had these results.
    Retry(SequenceOk),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    /// Of the last request. 0 before the first.
    sequence: u32,
    busy: bool,
    checksum: u64,
    /// The results of its SEQUENCE.
    answer: Option<SequenceOk>,
    reply: Option<Box<[u8]>>,
}

/// The slots of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slots {
    slots: Vec<Slot>,
}

saved! {
    Slot { sequence, busy, checksum, answer, reply }
    Slots { slots }
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        let fresh = Slot { sequence: 0, busy: false, checksum: 0, answer: None, reply: None };
        Slots { slots: vec![fresh; count as usize] }
    }

    pub(super) fn highest(&self) -> u32 {
        (self.slots.len() as u32).saturating_sub(1)
    }

    /// Requests that are being run.
    pub(super) fn busy(&self) -> usize {
        self.slots.iter().filter(|it| it.busy).count()
    }

    /// Checks a request against its slot. The slot does not change before [`Self::run`].
    ///
    /// # Errors
    /// BADSLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY; DELAY for a retry of a request that is being run.
    pub(super) fn begin(&self, slot: u32, sequence: u32, checksum: u64) -> Result<Begin, Status> {
        let slot = self.slots.get(slot as usize).ok_or(Status::BadSlot)?;
        let next = sequence == slot.sequence.wrapping_add(1);
        if slot.busy {
            return Err(if sequence == slot.sequence { Status::Delay } else { Status::SeqMisordered });
        }
        if next {
            return Ok(Begin::Run);
        }
        let answer = slot.answer.filter(|_| sequence == slot.sequence).ok_or(Status::SeqMisordered)?;
        if checksum != slot.checksum {
            return Err(Status::SeqFalseRetry);
        }
        Ok(Begin::Retry(answer))
    }

    /// The reply that is kept for a retry.
    pub(super) fn reply(&self, slot: u32) -> Option<&[u8]> {
        self.slots.get(slot as usize)?.reply.as_deref()
    }

    /// Takes the slot for the next request.
    pub(super) fn run(&mut self, checksum: u64, answer: SequenceOk) {
        if let Some(slot) = self.slots.get_mut(answer.slot as usize) {
            let sequence = answer.sequence;
            *slot = Slot { sequence, busy: true, checksum, answer: Some(answer), reply: None };
        }
    }

    /// Ends the request, and keeps its reply.
    pub(super) fn finish(&mut self, slot: u32, reply: Option<&[u8]>) {
        if let Some(slot) = self.slots.get_mut(slot as usize).filter(|it| it.busy) {
            slot.busy = false;
            slot.reply = reply.map(Box::from);
        }
    }

    /// Bytes of the replies that are kept.
    pub(super) fn kept(&self) -> usize {
        self.slots.iter().filter_map(|it| it.reply.as_ref()).map(|it| it.len()).sum()
    }

    /// Ends all requests that are being run: the process that ran them is gone. Their retries get
    /// RETRY_UNCACHED_REP.
    pub(super) fn abandon(&mut self) {
        self.slots.iter_mut().for_each(|it| it.busy = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v4::SessionId;

    fn answer(sequence: u32) -> SequenceOk {
        SequenceOk {
            session: SessionId([1; 16]),
            sequence,
            slot: 0,
            highest_slot: 1,
            target_highest_slot: 1,
            status_flags: 0,
        }
    }

    /// RFC 8881 §2.10.6.1: the three comparisons of sequence IDs.
    #[test]
    fn a_slot_runs_the_next_request_and_replays_the_last() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.begin(2, 1, 0), Err(Status::BadSlot));
        assert_eq!(slots.begin(0, 0, 0), Err(Status::SeqMisordered));
        assert_eq!(slots.begin(0, 2, 0), Err(Status::SeqMisordered));
        assert_eq!(slots.begin(0, 1, 7), Ok(Begin::Run));
        slots.run(7, answer(1));
        assert_eq!(slots.begin(0, 1, 7), Err(Status::Delay));
        assert_eq!(slots.begin(0, 2, 7), Err(Status::SeqMisordered));
        slots.finish(0, Some(b"reply"));
        assert_eq!(slots.begin(0, 1, 7), Ok(Begin::Retry(answer(1))));
        assert_eq!(slots.reply(0), Some(&b"reply"[..]));
        assert_eq!(slots.begin(0, 1, 8), Err(Status::SeqFalseRetry));
        assert_eq!(slots.begin(0, 2, 8), Ok(Begin::Run));
        slots.run(8, answer(2));
        assert_eq!(slots.kept(), 0);
        slots.finish(0, None);
        assert_eq!(slots.begin(0, 2, 8), Ok(Begin::Retry(answer(2))));
        assert_eq!(slots.reply(0), None);
    }

    #[test]
    fn a_sequence_id_wraps_to_zero() {
        let mut slots = Slots::new(1);
        slots.slots[0].sequence = u32::MAX;
        assert_eq!(slots.begin(0, 0, 7), Ok(Begin::Run));
        slots.run(7, answer(0));
        slots.finish(0, Some(b"reply"));
        assert_eq!(slots.begin(0, 0, 7), Ok(Begin::Retry(answer(0))));
    }
}
