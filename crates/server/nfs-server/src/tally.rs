//! Counts of the exports' calls and bytes, and of operations by their outcomes: one set for each
//! core, which are added up on request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use nfs::{v3, v4};

use crate::handle::ExportId;

/// Calls and bytes of an export, of all clients since it was first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that failed because of the medium, or because it is full.
    pub errors: u64,
    /// READs, WRITEs and COPYs that waited for a limit of service.
    pub limit_waits: u64,
    /// How long they waited, nanoseconds.
    pub limit_wait_ns: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors += other.errors;
        self.limit_waits += other.limit_waits;
        self.limit_wait_ns += other.limit_wait_ns;
    }
}

/// One export's counts on one core.
#[derive(Default)]
pub(crate) struct Tally(Cell<Counts>);

impl Tally {
    /// Changes the counts.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }

    /// A limit of service has delayed an operation.
    pub(crate) fn waited(&self, time: Duration) {
        self.count(|counts| {
            counts.limit_waits += 1;
            counts.limit_wait_ns += time.as_nanos() as u64;
        });
    }
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done = 0,
    /// The client asked for something that is not there, that it may not do, or that is wrong.
    Refused = 1,
    /// The client has to ask again later: JUKEBOX, DELAY, GRACE.
    Delayed = 2,
    /// The medium or the server failed, or there is no space.
    Failed = 3,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Done, Self::Refused, Self::Delayed, Self::Failed];

    /// That of an operation with this `nfsstat3` or `nfsstat4`; 0 is OK.
    fn of(status: u32) -> Self {
        const DELAY: u32 = v4::Status::Delay as u32;
        const GRACE: u32 = v4::Status::Grace as u32;
        const IO: u32 = v4::Status::Io as u32;
        const NXIO: u32 = v4::Status::NxIo as u32;
        const NODEV: u32 = v3::Status::NoDev as u32;
        const NOSPC: u32 = v4::Status::NoSpc as u32;
        const DQUOT: u32 = v4::Status::DQuot as u32;
        const FAULT: u32 = v4::Status::ServerFault as u32;
        match status {
            0 => Self::Done,
            DELAY | GRACE => Self::Delayed,
            IO | NXIO | NODEV | NOSPC | DQUOT | FAULT => Self::Failed,
            _ => Self::Refused,
        }
    }
}

/// Counts of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCounts {
    /// 3, or 4.
    pub version: u32,
    /// Its name in small letters; `illegal` for numbers that name none.
    pub name: String,
    /// How often it had each outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; 4],
}

/// Procedures of version 3.
const PROCEDURES: usize = v3::Procedure::ALL.len();
/// Numbers of operations of version 4: those below are none, and 0 counts them.
const NUMBERS: usize = 76;

/// The counts of all operations of one core.
type Table = [[u64; 4]; PROCEDURES + NUMBERS];

/// Operations by their outcomes, on one core.
pub(crate) struct Operations(RefCell<Box<Table>>);

impl Default for Operations {
    fn default() -> Self {
        Self(RefCell::new(Box::new([[0; 4]; PROCEDURES + NUMBERS])))
    }
}

impl Operations {
    /// Counts a call of version 3.
    pub(crate) fn v3(&self, procedure: v3::Procedure, status: u32) {
        self.count(procedure.code() as usize, status);
    }

    /// Counts an operation of version 4, by its number.
    pub(crate) fn v4(&self, operation: u32, status: u32) {
        let known = v4::Operation::from_code(operation).map_or(0, |known| known.code() as usize);
        self.count(PROCEDURES + known, status);
    }

    fn count(&self, row: usize, status: u32) {
        self.0.borrow_mut()[row][Outcome::of(status) as usize] += 1;
    }

    /// The counts by number; [`named`] names them.
    pub(crate) fn counts(&self) -> Box<Table> {
        self.0.borrow().clone()
    }
}

/// The sums of the cores' counts, of operations that there were.
pub(crate) fn named(cores: impl Iterator<Item = Box<Table>>) -> Vec<OperationCounts> {
    let mut sums = [[0; 4]; PROCEDURES + NUMBERS];
    for core in cores {
        for (sum, row) in sums.iter_mut().zip(core.iter()) {
            sum.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
    }
    let name = |row: usize| match row.checked_sub(PROCEDURES) {
        None => (3, v3::Procedure::from_code(row as u32).map(|it| format!("{it:?}"))),
        Some(number) => (4, v4::Operation::from_code(number as u32).map(|it| format!("{it:?}"))),
    };
    let counted = sums.into_iter().enumerate().filter(|(_, outcomes)| *outcomes != [0; 4]);
    counted
        .map(|(row, outcomes)| {
            let (version, name) = name(row);
            let name = name.map_or_else(|| "illegal".to_owned(), |name| name.to_ascii_lowercase());
            OperationCounts { version, name, outcomes }
        })
        .collect()
}

/// All counts of one core.
#[derive(Default)]
pub(crate) struct Tallies {
    /// Those too of exports that are served no more, since a name may come back.
    exports: RefCell<Vec<(ExportId, Rc<Tally>)>>,
    pub operations: Operations,
}

impl Tallies {
    /// An export's.
    pub(crate) fn of(&self, export: ExportId) -> Rc<Tally> {
        let mut all = self.exports.borrow_mut();
        if let Some((_, known)) = all.iter().find(|(id, _)| *id == export) {
            return known.clone();
        }
        let new = Rc::<Tally>::default();
        all.push((export, new.clone()));
        new
    }

    /// All exports'.
    pub(crate) fn all(&self) -> Vec<(ExportId, Counts)> {
        self.exports.borrow().iter().map(|(id, tally)| (*id, tally.0.get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_an_exports_own() {
        let tallies = Tallies::default();
        tallies.of(ExportId(1)).count(|counts| counts.calls += 2);
        tallies.of(ExportId(2)).count(|counts| counts.read_bytes += 5);
        tallies.of(ExportId(1)).count(|counts| counts.calls += 1);
        let calls = Counts { calls: 3, ..Counts::default() };
        let bytes = Counts { read_bytes: 5, ..Counts::default() };
        assert_eq!(tallies.all(), [(ExportId(1), calls), (ExportId(2), bytes)]);
    }

    #[test]
    fn operations_are_counted_by_version_and_outcome_with_a_bound() {
        let operations = Operations::default();
        operations.v3(v3::Procedure::Read, 0);
        operations.v3(v3::Procedure::ReadDirPlus, v3::Status::Jukebox.code());
        operations.v4(v4::Operation::Read.code(), 0);
        operations.v4(v4::Operation::Write.code(), v4::Status::NoSpc.code());
        operations.v4(v4::Operation::Open.code(), v4::Status::Grace.code());
        for number in [0, 1, 2, 76, v4::ILLEGAL, u32::MAX] {
            operations.v4(number, v4::Status::OpIllegal.code());
        }
        let twice = named([operations.counts(), operations.counts()].into_iter());
        let told: Vec<_> = twice.iter().map(|it| (it.version, it.name.as_str(), it.outcomes)).collect();
        assert_eq!(
            told,
            [
                (3, "read", [2, 0, 0, 0]),
                (3, "readdirplus", [0, 0, 2, 0]),
                (4, "illegal", [0, 12, 0, 0]),
                (4, "open", [0, 0, 2, 0]),
                (4, "read", [2, 0, 0, 0]),
                (4, "write", [0, 0, 0, 2]),
            ]
        );
    }

    #[test]
    fn every_operation_has_a_row() {
        let numbers = v4::Operation::ALL.iter().map(|it| it.code() as usize);
        assert_eq!(numbers.max(), Some(NUMBERS - 1));
        let procedures = v3::Procedure::ALL.iter().map(|it| it.code() as usize);
        assert_eq!(procedures.max(), Some(PROCEDURES - 1));
    }
}
