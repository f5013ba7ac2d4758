//! Snapshots and clones of partitions, copies of objects, and maps of their data.

use osd::continuation::{Continuation, CopySource, Descriptor};
use osd::data::{self, MapType};
use osd::{Action, Command, Id};

use super::{New, ObjectError, Objects, Operation};

/// Bytes per answer with a map.
const PAGE: u64 = 64 << 10;

/// A range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The kind of range.
    pub kind: MapType,
    /// Offset of its first byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Objects {
    /// Creates a snapshot of a partition, which keeps its current state. Returns its id.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_snapshot(&self, source: u64, requested: u64) -> Result<u64, ObjectError> {
        let command = Command::CreateSnapshot { requested, source, method: 0 };
        self.creating_partition(Operation::new(command)).await
    }

    /// Creates a clone of a partition, which begins with its current state and can change. Returns
    /// its id.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_clone(&self, source: u64, requested: u64) -> Result<u64, ObjectError> {
        let command = Command::CreateClone { requested, source, method: 0 };
        self.creating_partition(Operation::new(command)).await
    }

    /// Updates a snapshot or clone to the current state of its source.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn refresh(&self, partition: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::RefreshSnapshotOrClone { partition })).await.map(drop)
    }

    /// Restores a partition to the state of its snapshot.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn restore(&self, partition: u64, snapshot: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::RestorePartition { partition, snapshot })).await.map(drop)
    }

    /// Turns a clone into an independent partition.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn detach(&self, partition: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::DetachClone { partition })).await.map(drop)
    }

    /// Copies an object, with its attributes, into a partition. Shares data where possible.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn copy(&self, source: Id, partition: u64, new: New) -> Result<Id, ObjectError> {
        let command = Command::CopyUserObjects { partition, requested: new.id, method: 0 };
        let source = CopySource { id: source, attributes: true, freeze: true, time: 0 };
        let continuation = Continuation::new(vec![Descriptor::CopySource(source)]);
        let continuation = continuation.encode(Action::CopyUserObjects).unwrap_or_default();
        let operation = Operation::new(command).set_all(new.attributes).continuing(continuation);
        self.creating(partition, operation).await
    }

    /// The kinds of all ranges of an object, from its beginning to its end.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn map(&self, id: Id) -> Result<Vec<MapEntry>, ObjectError> {
        let mut entries: Vec<MapEntry> = Vec::new();
        loop {
            let start = entries.last().map_or(0, |last| last.at.saturating_add(last.len));
            let command = Command::ReadMap { id, allocation: PAGE, start, map_type: 0 };
            if !self.map_page(command, &mut entries).await? {
                return Ok(entries);
            }
        }
    }

    /// The ranges in which an object differs from the object with the same id in another partition,
    /// and their kinds in this one.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn compare(&self, id: Id, other: u64) -> Result<Vec<MapEntry>, ObjectError> {
        let mut allocation = PAGE;
        loop {
            let mut entries = Vec::new();
            let command = Command::ReadMapsAndCompare { id, allocation, other, map_type: 0 };
            if !self.map_page(command, &mut entries).await? {
                return Ok(entries);
            }
            // The command cannot continue at an offset: request everything in one answer.
            allocation *= 8;
        }
    }

    /// Appends a page of a map. Returns whether there is more.
    async fn map_page(&self, command: Command, entries: &mut Vec<MapEntry>) -> Result<bool, ObjectError> {
        let data = self.run(Operation::new(command)).await?.data.to_vec();
        let (total, found) = data::map(&data).ok_or(ObjectError::Data("a map"))?;
        let before = entries.len();
        entries.extend(found.map(|part| MapEntry { kind: part.kind, at: part.offset, len: part.len.into() }));
        let found = entries.len() - before;
        Ok(found > 0 && total > found as u64)
    }
}
