//! A unit's records of copies with 32-bit list identifiers (LID4 commands and tokens), by I_T
//! nexus. They serve RECEIVE COPY STATUS(LID4), RECEIVE ROD TOKEN INFORMATION and COPY OPERATION
//! ABORT.

use std::collections::VecDeque;

use super::MAX_CONCURRENT;
use super::rod::TOKEN_LEN;
use super::status::RecordError;
use crate::{SenseBytes, Status};

/// The command that began a copy: RESPONSE TO SERVICE ACTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Originator {
    /// EXTENDED COPY(LID4).
    ExtendedCopy = 0x01,
    /// POPULATE TOKEN.
    PopulateToken = 0x10,
    /// WRITE USING TOKEN.
    WriteUsingToken = 0x11,
}

/// The result of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The copy succeeded.
    Done,
    /// The copy succeeded, but had less data than requested.
    Partial,
    /// The copy failed with this sense data.
    Failed(SenseBytes),
    /// It was aborted.
    Terminated,
}

#[derive(Clone, Debug)]
struct Operation {
    session: u64,
    list_id: u32,
    ticket: u64,
    by: Originator,
    background: bool,
    aborted: bool,
    /// `None` while the copy runs.
    ending: Option<Ending>,
    /// Progress: bytes for EXTENDED COPY, blocks for tokens.
    count: u64,
    segments: u16,
    counter: u16,
    token: Option<Box<[u8; TOKEN_LEN]>>,
}

/// The copies of one unit: the running ones, and held results.
#[derive(Default)]
pub struct Operations {
    list: VecDeque<Operation>,
    next_ticket: u64,
}

/// TRANSFER COUNT UNITS: bytes.
const BYTES: u8 = 0x00;
/// TRANSFER COUNT UNITS: logical blocks (SPC-4 table 277).
const BLOCKS: u8 = 0xF1;
/// ESTIMATED STATUS UPDATE DELAY of a running copy, milliseconds.
const UPDATE_DELAY_MS: u32 = 100;
/// The same of a copy that has ended (SPC-4 §6.24).
const NO_UPDATE: u32 = 0xffff_fffe;

impl Operations {
    /// Maximum number of held results; the oldest is discarded first.
    pub(crate) const MAX_HELD: usize = 64;

    /// Records a new copy and returns its ticket for progress reports. Discards held results with
    /// the same list identifier.
    ///
    /// # Errors
    /// A [`RecordError`].
    pub fn start(
        &mut self,
        session: u64,
        list_id: u32,
        by: Originator,
        background: bool,
    ) -> Result<u64, RecordError> {
        let same = |op: &Operation| (op.session, op.list_id) == (session, list_id);
        if self.list.iter().any(|op| same(op) && op.ending.is_none()) {
            return Err(RecordError::InProgress);
        }
        if self.list.iter().filter(|op| op.ending.is_none()).count() >= usize::from(MAX_CONCURRENT) {
            return Err(RecordError::TooMany);
        }
        self.list.retain(|op| !same(op));
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.list.push_back(Operation {
            session,
            list_id,
            ticket,
            by,
            background,
            aborted: false,
            ending: None,
            count: 0,
            segments: 0,
            counter: 0,
            token: None,
        });
        Ok(ticket)
    }

    fn running(&mut self, ticket: u64) -> Option<&mut Operation> {
        self.list.iter_mut().find(|op| op.ticket == ticket && op.ending.is_none())
    }

    /// Records the progress of a copy. Returns false if the copy must stop because it was aborted.
    pub fn advance(&mut self, ticket: u64, count: u64, segments: u16) -> bool {
        // A copy that a reset has removed must stop, too.
        let Some(op) = self.running(ticket) else { return false };
        (op.count, op.segments) = (count, segments);
        op.counter = op.counter.wrapping_add(1);
        !op.aborted
    }

    /// Records the end of a copy, and the token that it created.
    pub fn finish(&mut self, ticket: u64, ending: Ending, token: Option<Box<[u8; TOKEN_LEN]>>) {
        let Some(op) = self.running(ticket) else { return };
        op.ending =
            Some(if op.aborted && matches!(ending, Ending::Failed(_)) { Ending::Terminated } else { ending });
        op.token = token;
        if self.list.iter().filter(|op| op.ending.is_some()).count() > Self::MAX_HELD {
            if let Some(oldest) = self.list.iter().position(|op| op.ending.is_some()) {
                self.list.remove(oldest);
            }
        }
    }

    /// Requests that a running copy stop: returns its ticket, or `None` if no such copy runs.
    pub fn abort(&mut self, session: u64, list_id: u32) -> Option<u64> {
        let same =
            |op: &&mut Operation| (op.session, op.list_id) == (session, list_id) && op.ending.is_none();
        let op = self.list.iter_mut().find(same)?;
        op.aborted = true;
        Some(op.ticket)
    }

    /// Whether the copy with this ticket still runs.
    pub fn runs(&self, ticket: u64) -> bool {
        self.list.iter().any(|op| op.ticket == ticket && op.ending.is_none())
    }

    /// Handles the loss of a nexus: discards its held results. Running copies continue to their end
    /// without a report.
    pub fn nexus_lost(&mut self, session: u64) {
        self.list.retain(|op| op.session != session || op.ending.is_none());
    }

    /// Handles a reset of the unit: discards all held results and stops running copies.
    pub fn reset(&mut self) {
        self.list.clear();
    }

    /// RECEIVE COPY STATUS(LID4) data (SPC-4 §6.24), or with `tokens` RECEIVE ROD TOKEN INFORMATION
    /// data (SPC-4 §6.28). `None` if there is no such copy: INVALID FIELD IN CDB.
    pub fn status(&self, session: u64, list_id: u32, tokens: bool) -> Option<Vec<u8>> {
        let op = self.list.iter().find(|op| (op.session, op.list_id) == (session, list_id))?;
        let (code, status, sense): (u8, Status, &[u8]) = match &op.ending {
            None if op.background => (0x12, Status::Good, &[]),
            None => (0x11, Status::Good, &[]),
            Some(Ending::Done) => (0x01, Status::Good, &[]),
            Some(Ending::Partial) => (0x03, Status::Good, &[]),
            Some(Ending::Failed(sense)) => (0x02, Status::CheckCondition, sense.as_ref()),
            Some(Ending::Terminated) => (0x60, Status::TaskAborted, &[]),
        };
        let sense = &sense[..sense.len().min(252)];
        let field = sense.len().next_multiple_of(4);
        let mut data = vec![0; 32];
        (data[4], data[5]) = (op.by as u8, code);
        data[6..8].copy_from_slice(&op.counter.to_be_bytes());
        let delay = if op.ending.is_none() { UPDATE_DELAY_MS } else { NO_UPDATE };
        data[8..12].copy_from_slice(&delay.to_be_bytes());
        data[12] = status as u8;
        (data[13], data[14]) = (field as u8, sense.len() as u8);
        data[15] = if op.by == Originator::ExtendedCopy { BYTES } else { BLOCKS };
        data[16..24].copy_from_slice(&op.count.to_be_bytes());
        let segments = if op.by == Originator::ExtendedCopy { op.segments } else { 0 };
        data[24..26].copy_from_slice(&segments.to_be_bytes());
        data.extend(sense);
        data.resize(32 + field, 0);
        if tokens {
            match &op.token {
                Some(token) => {
                    data.extend((2 + TOKEN_LEN as u32).to_be_bytes());
                    data.extend([0; 2]);
                    data.extend_from_slice(&token[..]);
                }
                None => data.extend([0; 4]),
            }
        }
        let available = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&available.to_be_bytes());
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sense;

    #[test]
    fn a_copy_is_told_of_while_it_runs_and_after() {
        let mut ops = Operations::default();
        let ticket = ops.start(1, 0x0102_0304, Originator::PopulateToken, true).unwrap();
        assert_eq!(ops.start(1, 0x0102_0304, Originator::PopulateToken, true), Err(RecordError::InProgress));
        assert!(ops.advance(ticket, 7, 1));
        let data = ops.status(1, 0x0102_0304, false).unwrap();
        assert_eq!((data[4], data[5], data[15], data[23], data.len()), (0x10, 0x12, 0xF1, 7, 32));
        // Only EXTENDED COPY has segments.
        assert_eq!(data[24..26], [0, 0]);
        assert_eq!(ops.status(2, 0x0102_0304, false), None);
        ops.finish(ticket, Ending::Done, Some(Box::new([5; TOKEN_LEN])));
        let data = ops.status(1, 0x0102_0304, true).unwrap();
        assert_eq!(data[..4], ((data.len() - 4) as u32).to_be_bytes());
        assert_eq!((data[5], data.len()), (0x01, 32 + 4 + 2 + 512));
        assert_eq!(data[8..12], NO_UPDATE.to_be_bytes());
        assert_eq!(data[32..38], [0, 0, 2, 2, 0, 0]);
        // The token is returned until the list identifier is reused.
        assert!(ops.status(1, 0x0102_0304, true).is_some());
        ops.start(1, 0x0102_0304, Originator::WriteUsingToken, false).unwrap();
        assert_eq!(ops.status(1, 0x0102_0304, true).unwrap()[5], 0x11);
    }

    #[test]
    fn an_abort_ends_what_runs_and_a_failure_keeps_its_sense() {
        let mut ops = Operations::default();
        let sense = Sense::invalid_field_in_cdb(2, None).emit_fixed();
        let one = ops.start(1, 1, Originator::ExtendedCopy, false).unwrap();
        assert_eq!(ops.abort(1, 2), None);
        assert_eq!(ops.abort(1, 1), Some(one));
        assert!(!ops.advance(one, 512, 0) && ops.runs(one));
        ops.finish(one, Ending::Failed(sense.clone()), None);
        assert_eq!((ops.status(1, 1, false).unwrap()[5], ops.runs(one)), (0x60, false));
        let two = ops.start(1, 2, Originator::ExtendedCopy, false).unwrap();
        ops.finish(two, Ending::Failed(sense.clone()), None);
        let data = ops.status(1, 2, true).unwrap();
        assert_eq!((data[5], data[12], usize::from(data[14])), (0x02, 0x02, sense.len()));
        assert_eq!(&data[32..32 + sense.len()], &sense[..]);
        assert_eq!(data.len(), 32 + usize::from(data[13]) + 4);
    }

    #[test]
    fn what_is_held_is_bounded_and_goes_with_the_nexus() {
        let mut ops = Operations::default();
        for id in 0..u32::from(MAX_CONCURRENT) {
            ops.start(1, id, Originator::ExtendedCopy, false).unwrap();
        }
        assert_eq!(ops.start(1, 99, Originator::ExtendedCopy, false), Err(RecordError::TooMany));
        ops.reset();
        for id in 0..200 {
            let ticket = ops.start(1, id, Originator::ExtendedCopy, false).unwrap();
            ops.finish(ticket, Ending::Done, None);
        }
        assert_eq!(ops.list.len(), Operations::MAX_HELD);
        ops.nexus_lost(1);
        assert!(ops.list.is_empty());
    }
}
