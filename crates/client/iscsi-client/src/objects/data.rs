//! User objects: creating and removing them, reading and writing their bytes.

use osd::attributes::numbers::{current_command, user_information};
use osd::cdb::{FlushScope, ObjectRange};
use osd::{Command, Id};
use runtime::{Chain, pool};
use smallvec::SmallVec;

use super::operation::number;
use super::{Attribute, ObjectError, Objects, Operation};

/// Bytes per command of a longer read or write.
const PIECE: u64 = pool::MAX_ALLOC as u64;

/// The properties of a new object.
#[derive(Clone, Debug, Default)]
pub struct New {
    /// Its id; 0 lets the device choose.
    pub id: u64,
    /// Its initial attributes.
    pub attributes: Vec<Attribute>,
    /// Whether it must be on the medium when the command ends.
    pub durable: bool,
}

impl New {
    /// Sets the id.
    #[must_use]
    pub fn id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn set(mut self, attribute: Attribute) -> Self {
        self.attributes.push(attribute);
        self
    }

    /// Requires it on the medium when the command ends.
    #[must_use]
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    fn of(self, command: Command) -> Operation {
        let operation = Operation::new(command).set_all(self.attributes);
        if self.durable { operation.durable() } else { operation }
    }
}

impl Objects {
    /// Creates an object without bytes.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create(&self, partition: u64, new: New) -> Result<Id, ObjectError> {
        let command = Command::Create { partition, requested: new.id, count: 1 };
        self.creating(partition, new.of(command)).await
    }

    /// Creates `count` objects with consecutive ids chosen by the device, in one command, all with
    /// the same attributes. Returns the first id.
    ///
    /// # Errors
    /// [`ObjectError`]; then none is created.
    pub async fn create_many(&self, partition: u64, count: u16, new: New) -> Result<Id, ObjectError> {
        if count == 0 || new.id != 0 && count > 1 {
            return Err(ObjectError::Argument(
                "many objects have ids of the device's choice, and are at least one".into(),
            ));
        }
        let command = Command::Create { partition, requested: new.id, count };
        let highest = self.creating(partition, new.of(command).of_first()).await?;
        let first = highest.object.checked_sub(u64::from(count) - 1);
        let first = first.ok_or(ObjectError::Data("the ids of new objects"))?;
        Ok(Id::new(partition, first))
    }

    /// Creates an object with `data` at its beginning, in one command.
    ///
    /// # Errors
    /// [`ObjectError`]; then no object is created.
    pub async fn create_with(
        &self,
        partition: u64,
        new: New,
        data: impl Into<Chain>,
    ) -> Result<Id, ObjectError> {
        let data = data.into();
        let range = ObjectRange { start: 0, len: data.len() as u64 };
        let command = Command::CreateAndWrite { partition, requested: new.id, range };
        self.creating(partition, new.of(command).writing(data)).await
    }

    /// Runs an operation that creates an object, and returns its id.
    pub(super) async fn creating(&self, partition: u64, operation: Operation) -> Result<Id, ObjectError> {
        let reply = self.run(operation.get([current_command::OBJECT_ID])).await?;
        let object = reply.number(current_command::OBJECT_ID);
        object.map(|object| Id::new(partition, object)).ok_or(ObjectError::Data("the id of a new object"))
    }

    /// Removes an object.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn remove(&self, id: Id) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::Remove(id))).await.map(drop)
    }

    /// Reads up to `len` bytes from `at` on; fewer at the end of the object. Long reads run as
    /// several concurrent commands.
    ///
    /// # Errors
    /// [`ObjectError`]; [`ObjectError::Argument`] for a read longer than half of the buffer pool.
    pub async fn read(&self, id: Id, at: u64, len: u64) -> Result<Chain, ObjectError> {
        if len > pool::stats().limit as u64 / 2 {
            return Err(ObjectError::Argument("the read is longer than half of the buffer pool".into()));
        }
        let mut parts = SmallVec::<[_; 4]>::new();
        for range in pieces(at, len)? {
            parts.push((range.len, self.start(Operation::new(Command::Read(id, range))).await?));
        }
        let (mut data, mut ended) = (Chain::new(), false);
        for (wanted, part) in parts {
            let read = match part.finish().await {
                Ok(reply) => reply.data,
                // The object ends before this piece.
                Err(error) if error.begins_past_end() => Chain::new(),
                Err(error) => return Err(error),
            };
            if ended && !read.is_empty() {
                // The object grew between the commands: return its old state, not a mixture with a
                // gap.
                continue;
            }
            ended |= (read.len() as u64) < wanted;
            data.append(read);
        }
        Ok(data)
    }

    /// Writes `data` from `at` on; the object grows as needed. Long writes run as several
    /// concurrent commands. The data may stay in the device's memory until a flush.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn write(&self, id: Id, at: u64, data: impl Into<Chain>) -> Result<(), ObjectError> {
        self.write_with(id, at, data.into(), false).await
    }

    /// Like [`Self::write`], and the data is on the medium when it completes (FUA).
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn write_durably(&self, id: Id, at: u64, data: impl Into<Chain>) -> Result<(), ObjectError> {
        self.write_with(id, at, data.into(), true).await
    }

    async fn write_with(&self, id: Id, at: u64, mut data: Chain, durable: bool) -> Result<(), ObjectError> {
        let mut parts = SmallVec::<[_; 4]>::new();
        for range in pieces(at, data.len() as u64)? {
            // A piece is shorter than a buffer.
            let operation =
                Operation::new(Command::Write(id, range)).writing(data.split_to(range.len as usize));
            parts.push(self.start(if durable { operation.durable() } else { operation }).await?);
        }
        for part in parts {
            part.finish().await?;
        }
        Ok(())
    }

    /// Appends `data` to the object, in one command. Returns the offset at which it begins.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn append(&self, id: Id, data: impl Into<Chain>) -> Result<u64, ObjectError> {
        let data = data.into();
        let command = Command::Append { id, len: data.len() as u64 };
        let operation = Operation::new(command).writing(data).get([current_command::APPEND_ADDRESS]);
        let reply = self.run(operation).await?;
        reply.number(current_command::APPEND_ADDRESS).ok_or(ObjectError::Data("where an append began"))
    }

    /// Removes a range: the bytes after it move down.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn punch(&self, id: Id, at: u64, len: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::Punch(id, ObjectRange { start: at, len }))).await.map(drop)
    }

    /// Zeroes a range, without sending zeros.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn clear(&self, id: Id, at: u64, len: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::Clear(id, ObjectRange { start: at, len }))).await.map(drop)
    }

    /// Waits until the object's data and attributes are on the medium.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn flush(&self, id: Id) -> Result<(), ObjectError> {
        let range = ObjectRange::default();
        self.run(Operation::new(Command::Flush { id, scope: FlushScope::Contents, range })).await.map(drop)
    }

    /// The object's length, bytes.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn len(&self, id: Id) -> Result<u64, ObjectError> {
        let value = self.attribute(id, user_information::LOGICAL_LENGTH).await?;
        value.as_deref().and_then(number).ok_or(ObjectError::Data("an object's length"))
    }

    /// Truncates the object, or extends it with a hole.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn set_len(&self, id: Id, len: u64) -> Result<(), ObjectError> {
        self.set_attributes(id, [Attribute::number(user_information::LOGICAL_LENGTH, len)]).await
    }

    /// Some of an object's attributes, in the requested order. A missing one has no bytes. Objects
    /// of any kind have attributes.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn attributes(
        &self,
        id: Id,
        ids: impl IntoIterator<Item = osd::AttributeId>,
    ) -> Result<Vec<Attribute>, ObjectError> {
        Ok(self.run(Operation::new(Command::GetAttributes(id)).get(ids)).await?.attributes)
    }

    /// One attribute; `None` if it is missing.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn attribute(&self, id: Id, which: osd::AttributeId) -> Result<Option<Vec<u8>>, ObjectError> {
        let found = self.attributes(id, [which]).await?.into_iter().find(|found| found.id == which);
        Ok(found.map(|found| found.value).filter(|value| !value.is_empty()))
    }

    /// All attributes of an object.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn all_attributes(&self, id: Id) -> Result<Vec<Attribute>, ObjectError> {
        let all = osd::AttributeId::new(osd::Page::ALL, osd::AttributeId::ALL);
        self.attributes(id, [all]).await
    }

    /// Sets attributes, all or none. A value without bytes removes the attribute.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn set_attributes(
        &self,
        id: Id,
        attributes: impl IntoIterator<Item = Attribute>,
    ) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::SetAttributes(id)).set_all(attributes)).await.map(drop)
    }
}

/// Splits a range into one range per command.
fn pieces(at: u64, len: u64) -> Result<impl Iterator<Item = ObjectRange>, ObjectError> {
    let end = at.checked_add(len).ok_or_else(|| ObjectError::Argument("the range has no end".into()))?;
    let mut at = at;
    Ok(std::iter::from_fn(move || {
        let len = (end - at).min(PIECE);
        let piece = ObjectRange { start: at, len };
        at += len;
        (len > 0).then_some(piece)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_without_a_gap() {
        let found: Vec<_> = pieces(5, 2 * PIECE + 1).unwrap().collect();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].start, found[1].start, found[2].len), (5, 5 + PIECE, 1));
        assert_eq!(pieces(7, 0).unwrap().count(), 0);
        assert!(pieces(u64::MAX, 1).is_err());
    }
}
