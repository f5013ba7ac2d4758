//! A unit's records of its copies, by I_T nexus and list identifier, for RECEIVE COPY RESULTS.

use std::collections::VecDeque;

use super::MAX_CONCURRENT;
use crate::{SenseBytes, Status};

/// The state of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The copy runs.
    Running,
    /// The copy succeeded.
    Done,
    /// The copy failed with this status and this sense data.
    Failed(Status, SenseBytes),
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CopyProgress {
    /// Segments processed, with the current one.
    pub segments: u16,
    /// Bytes written.
    pub bytes: u64,
}

/// Why a copy cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The nexus already runs a copy with this list identifier: ILLEGAL REQUEST, OPERATION IN
    /// PROGRESS.
    #[error("a copy with this list identifier is in progress")]
    InProgress,
    /// [`MAX_CONCURRENT`] copies already run.
    #[error("too many copies are in progress")]
    TooMany,
}

struct Record {
    session: u64,
    /// `None` with LIST ID USAGE 11b.
    list_id: Option<u8>,
    ticket: u64,
    state: CopyState,
    progress: CopyProgress,
}

/// The copies of one unit: the running ones, and held results.
#[derive(Default)]
pub struct CopyRecords {
    records: VecDeque<Record>,
    next_ticket: u64,
}

impl CopyRecords {
    /// Maximum number of held results; the oldest is discarded first.
    pub(crate) const MAX_HELD: usize = 64;

    /// No copies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a new copy and returns its ticket for progress reports. Discards held results of the
    /// same nexus and list identifier (SPC-4 §5.17.4.4).
    ///
    /// # Errors
    /// A [`RecordError`].
    pub fn start(&mut self, session: u64, list_id: Option<u8>) -> Result<u64, RecordError> {
        let running = |r: &Record| r.state == CopyState::Running;
        let same = |r: &Record| list_id.is_some() && r.session == session && r.list_id == list_id;
        if self.records.iter().any(|r| running(r) && same(r)) {
            return Err(RecordError::InProgress);
        }
        if self.records.iter().filter(|r| running(r)).count() >= usize::from(MAX_CONCURRENT) {
            return Err(RecordError::TooMany);
        }
        self.records.retain(|r| !same(r));
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (state, progress) = (CopyState::Running, CopyProgress::default());
        self.records.push_back(Record { session, list_id, ticket, state, progress });
        Ok(ticket)
    }

    /// Records the progress of a running copy.
    pub fn advance(&mut self, ticket: u64, progress: CopyProgress) {
        if let Some(record) = self.records.iter_mut().find(|r| r.ticket == ticket) {
            record.progress = progress;
        }
    }

    /// Records the end of a copy. Holds its results if `hold` is set and it has a list identifier.
    pub fn finish(&mut self, ticket: u64, state: CopyState, hold: bool) {
        let Some(at) = self.records.iter().position(|r| r.ticket == ticket) else { return };
        if !hold || self.records[at].list_id.is_none() || state == CopyState::Running {
            self.records.remove(at);
            return;
        }
        self.records[at].state = state;
        let held = self.records.iter().filter(|r| r.state != CopyState::Running).count();
        if held > Self::MAX_HELD {
            if let Some(oldest) = self.records.iter().position(|r| r.state != CopyState::Running) {
                self.records.remove(oldest);
            }
        }
    }

    /// Handles the loss of a nexus: discards its held results. Running copies continue to their
    /// end.
    pub fn nexus_lost(&mut self, session: u64) {
        self.records.retain(|r| r.session != session || r.state == CopyState::Running);
    }

    /// Handles a reset of the unit: discards all records.
    pub fn reset(&mut self) {
        self.records.clear();
    }

    /// RECEIVE COPY STATUS(LID1) data (SPC-4 §6.17). The result of a finished copy without failure
    /// details is returned only once. `None` if there is no such copy: INVALID FIELD IN CDB.
    pub fn status(&mut self, session: u64, list_id: u8) -> Option<[u8; 12]> {
        let at = self.find(session, list_id)?;
        let record = &self.records[at];
        let manager = match record.state {
            CopyState::Running => 0,
            CopyState::Done => 1,
            CopyState::Failed(..) => 2,
        };
        let (units, count) = transfer_count(record.progress.bytes);
        let mut data = [0; 12];
        data[3] = 8;
        data[4] = manager;
        data[5..7].copy_from_slice(&record.progress.segments.to_be_bytes());
        data[7] = units;
        data[8..].copy_from_slice(&count.to_be_bytes());
        if record.state == CopyState::Done {
            self.records.remove(at);
        }
        Some(data)
    }

    /// RECEIVE COPY FAILURE DETAILS(LID1) data (SPC-4 §6.20), returned only once. `None` if there
    /// is no such failed copy: INVALID FIELD IN CDB.
    pub fn failure_details(&mut self, session: u64, list_id: u8) -> Option<Vec<u8>> {
        let at = self.find(session, list_id)?;
        let CopyState::Failed(status, sense) = &self.records[at].state else { return None };
        let sense: &[u8] = sense.as_ref();
        let mut data = vec![0; 60];
        data[56] = *status as u8;
        data[58..60].copy_from_slice(&(sense.len() as u16).to_be_bytes());
        data.extend_from_slice(sense);
        let available = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&available.to_be_bytes());
        self.records.remove(at);
        Some(data)
    }

    fn find(&self, session: u64, list_id: u8) -> Option<usize> {
        self.records.iter().position(|r| r.session == session && r.list_id == Some(list_id))
    }
}

/// TRANSFER COUNT UNITS and TRANSFER COUNT (SPC-4 table 238), in the smallest unit for which the
/// count fits 32 bits.
fn transfer_count(bytes: u64) -> (u8, u32) {
    (0u8..7)
        .find_map(|unit| u32::try_from(bytes >> (10 * unit)).ok().map(|count| (unit, count)))
        .unwrap_or((6, u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdditionalSense, Sense, SenseKey};

    #[test]
    fn a_status_is_told_while_the_copy_runs_and_once_after_it_ended() {
        let mut records = CopyRecords::new();
        assert_eq!(records.status(1, 1), None);
        let ticket = records.start(1, Some(1)).unwrap();
        assert_eq!(records.start(1, Some(1)), Err(RecordError::InProgress));
        records.advance(ticket, CopyProgress { segments: 1, bytes: 512 });
        assert_eq!(records.status(1, 1), Some([0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 2, 0]));
        assert_eq!(records.status(2, 1), None);
        records.finish(ticket, CopyState::Done, true);
        assert_eq!(records.status(1, 1).unwrap()[4], 1);
        assert_eq!(records.status(1, 1), None);
    }

    #[test]
    fn a_failure_keeps_its_sense_data_until_it_is_read() {
        let mut records = CopyRecords::new();
        let ticket = records.start(1, Some(7)).unwrap();
        let sense =
            Sense::new(SenseKey::CopyAborted, AdditionalSense::THIRD_PARTY_DEVICE_FAILURE).emit_fixed();
        records.finish(ticket, CopyState::Failed(Status::CheckCondition, sense.clone()), true);
        assert_eq!(records.status(1, 7).unwrap()[4], 2);
        let details = records.failure_details(1, 7).unwrap();
        assert_eq!(details[..4], ((details.len() - 4) as u32).to_be_bytes());
        assert_eq!(details[56], 2);
        assert_eq!(&details[60..], &sense[..]);
        assert_eq!(records.failure_details(1, 7), None);
    }

    #[test]
    fn nothing_is_held_without_a_list_identifier_or_after_the_nexus() {
        let mut records = CopyRecords::new();
        for (id, hold) in [(None, true), (Some(3), false)] {
            let ticket = records.start(1, id).unwrap();
            records.finish(ticket, CopyState::Done, hold);
        }
        assert_eq!(records.status(1, 3), None);
        let ticket = records.start(1, Some(3)).unwrap();
        records.finish(ticket, CopyState::Done, true);
        records.nexus_lost(1);
        assert_eq!(records.status(1, 3), None);
    }

    #[test]
    fn running_and_held_copies_are_bounded() {
        let mut records = CopyRecords::new();
        for id in 0..MAX_CONCURRENT {
            records.start(1, Some(id)).unwrap();
        }
        assert_eq!(records.start(1, Some(99)), Err(RecordError::TooMany));
        let mut records = CopyRecords::new();
        for id in 0..200u8 {
            let ticket = records.start(1, Some(id)).unwrap();
            records.finish(ticket, CopyState::Done, true);
        }
        assert_eq!(records.records.len(), CopyRecords::MAX_HELD);
    }

    #[test]
    fn large_counts_are_told_in_larger_units() {
        assert_eq!(transfer_count(u64::from(u32::MAX)), (0, u32::MAX));
        assert_eq!(transfer_count(1 << 32), (1, 1 << 22));
        assert_eq!(transfer_count(1 << 50), (2, 1 << 30));
    }
}
