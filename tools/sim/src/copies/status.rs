//! Reports on copies, as bytes and as what a session may be told (SPC-4 §6.3, §6.21, §6.24, §6.25):
//! RECEIVE COPY STATUS while a copy runs and after its end, RECEIVE COPY FAILURE DETAILS, and COPY
//! OPERATION ABORT.
//!
//! A report never goes back, counts what was written, and says at last how the copy ended.

use std::cell::Cell;

use iscsi_client::Command;
use scsi::{Sense, SenseKey};

use super::cdb::{reading, sixteen, writing};

/// Options of EXTENDED COPY.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// List identifiers have four bytes.
    pub lid4: bool,
    /// The results are held after the end.
    pub held: bool,
    /// IMMED: the copy runs in the background.
    pub immediate: bool,
}

/// A sense key and an additional sense code.
pub(super) type Code = (SenseKey, u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Done,
    /// LID1 reports its sense data elsewhere.
    Failed(Option<Code>),
    Terminated,
}

/// A report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub state: State,
    /// Segments that were begun.
    pub segments: usize,
    bytes: u64,
}

/// A copy, as its session knows it.
pub(super) struct Copy {
    pub how: How,
    pub lun: u16,
    pub id: u32,
    /// Bytes of each segment.
    bytes: Vec<u64>,
    /// The latest report.
    pub told: Cell<Option<Told>>,
    /// Whether its command has ended.
    pub ended: Cell<bool>,
    pub aborted: Cell<bool>,
    /// Before it: [`super::Books::era`], and the session's reconnects.
    pub before: (u64, u64),
}

impl Copy {
    pub fn new(how: How, lun: u16, id: u32, bytes: Vec<u64>, before: (u64, u64)) -> Self {
        let (told, ended, aborted) = (Cell::new(None), Cell::new(false), Cell::new(false));
        Self { how, lun, id, bytes, told, ended, aborted, before }
    }

    /// RECEIVE COPY STATUS.
    pub fn ask(&self) -> Command {
        match self.how.lid4 {
            true => reading(self.lun, &sixteen(0x84, 5, 2, self.id, 1024), 1024),
            false => reading(self.lun, &sixteen(0x84, 0, 2, self.id << 24, 1024), 1024),
        }
    }

    /// RECEIVE COPY FAILURE DETAILS(LID1).
    pub fn ask_for_details(&self) -> Command {
        reading(self.lun, &sixteen(0x84, 4, 2, self.id << 24, 1024), 1024)
    }

    /// COPY OPERATION ABORT.
    pub fn abort(&self) -> Command {
        writing(self.lun, &sixteen(0x83, 0x1c, 2, self.id, 0), Vec::new())
    }

    /// Reads the data of [`Self::ask`], and checks them.
    pub fn read(&self, data: &[u8]) -> Result<Told, String> {
        let told = if self.how.lid4 { self.lid4(data) } else { lid1(data) };
        let told = told.ok_or_else(|| format!("a copy's status is malformed: {data:02x?}"))?;
        match self.check(told) {
            Ok(()) => Ok(told),
            Err(what) => {
                Err(format!("{what}: {told:?} after {:?}, of {:?} bytes", self.told.get(), self.bytes))
            }
        }
    }

    fn check(&self, told: Told) -> Result<(), &'static str> {
        let all = self.bytes.len();
        if told.segments > all {
            return Err("more segments than there are");
        }
        let sum = |segments: usize| self.bytes[..segments].iter().sum::<u64>();
        if !(sum(told.segments.saturating_sub(1))..=sum(told.segments)).contains(&told.bytes) {
            return Err("the bytes are not those of the segments");
        }
        match told.state {
            State::Done if (told.segments, told.bytes) != (all, sum(all)) => return Err("done too soon"),
            State::Terminated if !self.aborted.get() => return Err("terminated without an abort"),
            _ => {}
        }
        if let Some(before) = self.told.get() {
            if before.state != State::Running && before != told {
                return Err("another end");
            }
            if before.segments > told.segments || before.bytes > told.bytes {
                return Err("it went back");
            }
        }
        self.told.set(Some(told));
        Ok(())
    }

    fn lid4(&self, data: &[u8]) -> Option<Told> {
        let word = |at: usize| Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?));
        let sense = data.get(32..32 + usize::from(*data.get(14)?))?;
        let state = match (data[5], data[12], sense) {
            (0x11, _, []) if !self.how.immediate => State::Running,
            (0x12, _, []) if self.how.immediate => State::Running,
            (0x01, 0, []) => State::Done,
            (0x02, 2, sense) => State::Failed(Some(code(sense)?)),
            (0x60, 0x40, []) => State::Terminated,
            _ => return None,
        };
        // An ended copy has no later status.
        let is_last = word(8)? == 0xffff_fffe;
        let is_formed = word(0)? as usize + 4 == data.len()
            && data[4] == 0x01
            && data[13] % 4 == 0
            && data[13] >= data[14]
            && data[15] == 0
            && is_last == (state != State::Running);
        let bytes = u64::from_be_bytes(data.get(16..24)?.try_into().ok()?);
        let segments = usize::from(u16::from_be_bytes([data[24], data[25]]));
        is_formed.then_some(Told { state, segments, bytes })
    }
}

fn lid1(data: &[u8]) -> Option<Told> {
    let data: &[u8; 12] = data.try_into().ok()?;
    let [0, 0, 0, 8, state, s1, s2, 0, count @ ..] = *data else { return None };
    let state = *[State::Running, State::Done, State::Failed(None)].get(usize::from(state))?;
    let segments = usize::from(u16::from_be_bytes([s1, s2]));
    Some(Told { state, segments, bytes: u32::from_be_bytes(count).into() })
}

fn code(sense: &[u8]) -> Option<Code> {
    let sense = Sense::parse(sense)?;
    Some((sense.key, sense.additional.asc, sense.additional.ascq))
}

/// The sense data in RECEIVE COPY FAILURE DETAILS(LID1).
pub(super) fn details_in(data: &[u8]) -> Option<Code> {
    let len = usize::from(u16::from_be_bytes([*data.get(58)?, *data.get(59)?]));
    let is_formed = data.len() == 60 + len && data[56] == 2;
    code(data.get(60..)?).filter(|_| is_formed)
}
