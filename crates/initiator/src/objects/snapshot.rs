//! Snapshots and clones of partitions, copies of objects, and where objects have data.

use osd::continuation::{Continuation, CopySource, Descriptor};
use osd::data::{self, MapType};
use osd::{Action, Command, Id};

use super::{New, ObjectError, Objects, Operation};

/// Bytes of one answer with a map.
const PAGE: u64 = 64 << 10;

/// A range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// What it is.
    pub kind: MapType,
    /// Its first byte.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
}

impl Objects {
    /// Makes a snapshot of a partition: one that stays as it is now. Answers its id.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_snapshot(&self, source: u64, requested: u64) -> Result<u64, ObjectError> {
        let command = Command::CreateSnapshot { requested, source, method: 0 };
        self.creating_partition(Operation::new(command)).await
    }

    /// Makes a clone of a partition: one that begins as it is now, and can be changed. Answers its id.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_clone(&self, source: u64, requested: u64) -> Result<u64, ObjectError> {
        let command = Command::CreateClone { requested, source, method: 0 };
        self.creating_partition(Operation::new(command)).await
    }

    /// Makes a snapshot or clone what its source is now.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn refresh(&self, partition: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::RefreshSnapshotOrClone { partition })).await.map(drop)
    }

    /// Makes a partition what its snapshot is.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn restore(&self, partition: u64, snapshot: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::RestorePartition { partition, snapshot })).await.map(drop)
    }

    /// Makes a clone a partition like any other.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn detach(&self, partition: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::DetachClone { partition })).await.map(drop)
    }

    /// Copies an object, with its attributes, into a partition; what can be shared is not copied.
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

    /// What each range of an object is, from its beginning to its end.
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

    /// Where an object differs from its namesake in another partition: the ranges, and what they are in this one.
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
            // The command has no place to go on from: all of it in one answer.
            allocation *= 8;
        }
    }

    /// Appends a page of a map. Whether there is more.
    async fn map_page(&self, command: Command, entries: &mut Vec<MapEntry>) -> Result<bool, ObjectError> {
        let data = self.run(Operation::new(command)).await?.data.to_vec();
        let (total, found) = data::map(&data).ok_or(ObjectError::Data("a map"))?;
        let before = entries.len();
        entries.extend(found.map(|part| MapEntry { kind: part.kind, at: part.offset, len: part.len.into() }));
        let found = entries.len() - before;
        Ok(found > 0 && total > found as u64)
    }
}
