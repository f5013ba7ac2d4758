//! Collections: creating, filling, querying and emptying them.

use osd::attributes::numbers::{collection_information, collections};
use osd::cdb::FlushScope;
use osd::continuation::{self, Continuation, Criterion, Descriptor};
use osd::data::query_ids;
use osd::{Action, AttributeId, Command, Id, ObjectType};

use super::{Attribute, New, ObjectError, Objects, Operation};
use crate::session::MAX_READ;

/// A criterion of a query: the attribute's value is in the range. Values are compared as bytes; a
/// missing end is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The attribute.
    pub attribute: AttributeId,
    /// The least value.
    pub min: Option<Vec<u8>>,
    /// The greatest value.
    pub max: Option<Vec<u8>>,
}

impl Range {
    /// Matches exactly this value.
    pub fn exactly(attribute: AttributeId, value: impl Into<Vec<u8>>) -> Self {
        let value = value.into();
        Self { attribute, min: Some(value.clone()), max: Some(value) }
    }
}

/// Whether an object must match one range or all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// Objects in all ranges.
    #[default]
    All,
    /// Objects in at least one range.
    Any,
}

/// A query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The criteria.
    pub ranges: Vec<Range>,
    /// Whether all or any of the criteria must match.
    pub want: Match,
    /// A collection to which the matching objects are added; 0 for none.
    pub into: u64,
}

impl Query {
    /// Adds a range.
    #[must_use]
    pub fn with(mut self, range: Range) -> Self {
        self.ranges.push(range);
        self
    }
}

impl Objects {
    /// Creates a collection without members.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_collection(&self, partition: u64, new: New) -> Result<Id, ObjectError> {
        let command = Command::CreateCollection { partition, requested: new.id };
        let operation = Operation::new(command).set_all(new.attributes);
        let operation = if new.durable { operation.durable() } else { operation };
        self.creating(partition, operation).await
    }

    /// Creates a tracking collection: commands on its members record their progress in it. With
    /// `source`, it gets that collection's members.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_tracking_collection(
        &self,
        partition: u64,
        new: New,
        source: u64,
    ) -> Result<Id, ObjectError> {
        let command = Command::CreateUserTrackingCollection { partition, requested: new.id, source };
        self.creating(partition, Operation::new(command).set_all(new.attributes)).await
    }

    /// Removes a collection. With `force`, even a non-empty one, whose members stay.
    ///
    /// # Errors
    /// [`ObjectError`], [`super::Why::NotEmpty`] among them.
    pub async fn remove_collection(&self, id: Id, force: bool) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::RemoveCollection { id, force })).await.map(drop)
    }

    /// Adds an object to a collection of its partition. Does nothing if it already is a member.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn add_member(&self, object: Id, collection: u64) -> Result<(), ObjectError> {
        let (free, found) = self.membership(object, collection).await?;
        match found {
            Some(_) => Ok(()),
            None => self.set_attributes(object, [member(free, collection)]).await,
        }
    }

    /// Removes an object from a collection. Returns whether it was a member.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn take_member(&self, object: Id, collection: u64) -> Result<bool, ObjectError> {
        let (_, found) = self.membership(object, collection).await?;
        let Some(number) = found else { return Ok(false) };
        let gone = Attribute::new(AttributeId::new(collections::PAGE, number), Vec::new());
        self.set_attributes(object, [gone]).await.map(|()| true)
    }

    /// The collections of an object.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn collections_of(&self, object: Id) -> Result<Vec<u64>, ObjectError> {
        let pointers = self.pointers(object).await?;
        Ok(pointers.into_iter().map(|(_, collection)| collection).collect())
    }

    /// The object's pointers: their numbers, and the collections.
    async fn pointers(&self, object: Id) -> Result<Vec<(u32, u64)>, ObjectError> {
        let all = AttributeId::new(collections::PAGE, AttributeId::ALL);
        let found = self.attributes(object, [all]).await?;
        let pointer = |one: Attribute| match one.id.number {
            collections::FIRST..=collections::LAST if one.value.len() == 8 => {
                super::number(&one.value).map(|collection| (one.id.number, collection))
            }
            _ => None,
        };
        Ok(found.into_iter().filter_map(pointer).collect())
    }

    /// An unused pointer number of the object, and the number of its pointer to `collection`.
    async fn membership(&self, object: Id, collection: u64) -> Result<(u32, Option<u32>), ObjectError> {
        let mut pointers = self.pointers(object).await?;
        pointers.sort_unstable();
        let found = pointers.iter().find(|(_, of)| *of == collection).map(|(number, _)| *number);
        let mut free = collections::FIRST;
        for (number, _) in pointers {
            if number > free {
                break;
            }
            free = number.saturating_add(1);
        }
        Ok((free, found))
    }

    /// The kind of collection: 0 linked, 1 tracking, EFh spontaneous.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn collection_type(&self, id: Id) -> Result<Option<u8>, ObjectError> {
        let value = self.attribute(id, collection_information::TYPE).await?;
        Ok(value.and_then(|value| value.first().copied()))
    }

    /// Whether an id names a collection, or a user object; `None` if it names neither.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn kind(&self, id: Id) -> Result<Option<ObjectType>, ObjectError> {
        if id.is_root() {
            return Ok(Some(ObjectType::Root));
        }
        let kind = osd::attributes::numbers::current_command::OBJECT_TYPE;
        let asked = self.run(Operation::new(Command::GetAttributes(id)).get([kind])).await;
        match asked {
            Ok(reply) => Ok(reply.value(kind).and_then(|value| ObjectType::from_code(*value.first()?))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The user objects that match a query, in the order of their ids. It searches the members of a
    /// collection, or a whole partition.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn query(&self, within: Id, query: &Query) -> Result<Vec<Id>, ObjectError> {
        let criteria = query.ranges.iter().map(|range| Criterion {
            attribute: range.attribute,
            min: range.min.clone().unwrap_or_default(),
            max: range.max.clone().unwrap_or_default(),
        });
        let list = continuation::Query { all: query.want == Match::All, criteria: criteria.collect() };
        let continuation = Continuation::new(vec![Descriptor::Query(list)]).encode(Action::Query);
        let continuation = continuation
            .ok_or_else(|| ObjectError::Argument("a value is longer than a query holds".into()))?;
        let mut allocation = 4096;
        loop {
            let command = Command::Query { id: within, immediate: false, allocation, matches: query.into };
            let operation = Operation::new(command).continuing(continuation.clone());
            let data = self.run(operation).await?.data.to_vec();
            let (total, ids) = query_ids(&data).ok_or(ObjectError::Data("what a query found"))?;
            let ids: Vec<Id> = ids.map(|id| Id::new(within.partition, id)).collect();
            if total <= ids.len() as u64 {
                return Ok(ids);
            }
            // Room for all of them in one answer, and for some created meanwhile.
            let needed = total.saturating_mul(8).saturating_add(1024);
            if needed <= allocation || needed > MAX_READ.into() {
                return Err(ObjectError::Argument("the query finds too many objects for one answer".into()));
            }
            allocation = needed;
        }
    }

    /// Deletes all members of a collection from the device.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn remove_members(&self, collection: Id) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::RemoveMemberObjects(collection))).await.map(drop)
    }

    /// Sets attributes of all members of a collection.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn set_member_attributes(
        &self,
        collection: Id,
        attributes: impl IntoIterator<Item = Attribute>,
    ) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::SetMemberAttributes(collection)).set_all(attributes)).await.map(drop)
    }

    /// Waits until a collection, its members and all their data are on the medium.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn flush_collection(&self, id: Id) -> Result<(), ObjectError> {
        let command = Command::FlushCollection { id, scope: FlushScope::RangeOrAll };
        self.run(Operation::new(command)).await.map(drop)
    }
}

/// The attribute that makes an object a member of a collection: pointer `number`, from 1. For
/// [`Operation::set`], so that an object is a member from its creation.
pub fn member(number: u32, collection: u64) -> Attribute {
    Attribute::number(AttributeId::new(collections::PAGE, number), collection)
}
