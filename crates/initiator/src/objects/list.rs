//! Lists of partitions, objects, collections and members: page by page, each beginning where the last one ended.

use std::collections::VecDeque;

use osd::cdb::{List as ListCdb, ListCollection};
use osd::data::{ListHeader, list_ids, list_objects};
use osd::{AttributeId, Command, Id, Version};

use super::{Attribute, ObjectError, Objects, Operation};

/// Bytes of one page, if nobody says otherwise.
const PAGE: u64 = 256 << 10;

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Partitions,
    Objects(u64),
    Collections(u64),
    Members(Id),
}

/// One of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which object.
    pub id: Id,
    /// The attributes that were asked for, of it. One that there is not has no bytes.
    pub attributes: Vec<Attribute>,
}

impl Listed {
    /// The value of an attribute that there is.
    pub fn value(&self, id: AttributeId) -> Option<&[u8]> {
        let found = self.attributes.iter().find(|one| one.id == id)?;
        Some(found.value.as_slice()).filter(|value| !value.is_empty())
    }

    /// The same for a number of up to 8 bytes.
    pub fn number(&self, id: AttributeId) -> Option<u64> {
        super::number(self.value(id)?)
    }
}

/// A list under way. What is made or removed meanwhile may be in it or not; all else is, once, in the order of the ids.
#[derive(Debug)]
pub struct List {
    device: Objects,
    what: What,
    attributes: Vec<AttributeId>,
    page: u64,
    /// What is there of the newest page.
    ready: VecDeque<Listed>,
    /// Where the next page begins, and the list's identifier; `None` at the end.
    next: Option<(u64, u32)>,
}

impl Objects {
    fn list_of(&self, what: What) -> List {
        List {
            device: self.clone(),
            what,
            attributes: Vec::new(),
            page: PAGE,
            ready: VecDeque::new(),
            next: Some((0, 0)),
        }
    }

    /// The partitions.
    pub fn partitions(&self) -> List {
        self.list_of(What::Partitions)
    }

    /// The user objects of a partition.
    pub fn objects(&self, partition: u64) -> List {
        self.list_of(What::Objects(partition))
    }

    /// The collections of a partition.
    pub fn collections(&self, partition: u64) -> List {
        self.list_of(What::Collections(partition))
    }

    /// The members of a collection.
    pub fn members(&self, collection: Id) -> List {
        self.list_of(What::Members(collection))
    }
}

impl List {
    /// Each with these attributes.
    #[must_use]
    pub fn with(mut self, attributes: impl IntoIterator<Item = AttributeId>) -> Self {
        self.attributes.extend(attributes);
        self
    }

    /// Only ids that are not less.
    #[must_use]
    pub fn from(mut self, id: u64) -> Self {
        self.next = Some((id, 0));
        self
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page(mut self, bytes: u64) -> Self {
        self.page = bytes.clamp(1024, 16 << 20);
        self
    }

    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn next(&mut self) -> Result<Option<Listed>, ObjectError> {
        loop {
            if let Some(listed) = self.ready.pop_front() {
                return Ok(Some(listed));
            }
            if !self.turn().await? {
                return Ok(None);
            }
        }
    }

    /// The next ones, as they come; empty at the end.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn some(&mut self) -> Result<Vec<Listed>, ObjectError> {
        while self.ready.is_empty() {
            if !self.turn().await? {
                break;
            }
        }
        Ok(self.ready.drain(..).collect())
    }

    /// All that are left.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn all(mut self) -> Result<Vec<Listed>, ObjectError> {
        let mut all = Vec::new();
        while let Some(listed) = self.next().await? {
            all.push(listed);
        }
        Ok(all)
    }

    /// Where a list would go on that is not to be finished now: for [`Self::from`]. `None` at the end.
    pub fn place(&self) -> Option<u64> {
        match (self.ready.front(), self.next) {
            (Some(listed), _) if self.what == What::Partitions => Some(listed.id.partition),
            (Some(listed), _) => Some(listed.id.object),
            (None, next) => next.map(|(id, _)| id),
        }
    }

    /// Gets a page; false at the end.
    async fn turn(&mut self) -> Result<bool, ObjectError> {
        let Some((initial, list_id)) = self.next.take() else { return Ok(false) };
        let (attributes, allocation) = (!self.attributes.is_empty(), self.page);
        let (command, partition) = match self.what {
            What::Partitions => (list(0, allocation, initial, list_id, attributes), 0),
            What::Objects(partition) => {
                (list(partition, allocation, initial, list_id, attributes), partition)
            }
            What::Collections(partition) => {
                let id = Id::partition(partition);
                (members(id, allocation, initial, list_id, attributes), partition)
            }
            What::Members(id) => (members(id, allocation, initial, list_id, attributes), id.partition),
        };
        let operation = Operation::new(command).get(self.attributes.iter().copied()).in_list();
        let data = self.device.run(operation).await?.data.to_vec();
        let header = ListHeader::parse(&data, Version::Osd2).ok_or(ObjectError::Data("a list"))?;
        let of = |id| match self.what {
            What::Partitions => Id::partition(id),
            _ => Id::new(partition, id),
        };
        let mut last = None;
        if header.attributes {
            for entry in list_objects(&data).map_err(|_| ObjectError::Data("a list with attributes"))? {
                let attributes = entry.values.iter().map(Attribute::from).collect();
                last = Some(entry.id);
                self.ready.push_back(Listed { id: of(entry.id), attributes });
            }
        } else {
            for id in list_ids(&data) {
                last = Some(id);
                self.ready.push_back(Listed { id: of(id), attributes: Vec::new() });
            }
        }
        self.next = match header.continuation {
            0 => None,
            // A page that brings nothing and ends nowhere would be asked for again and again.
            next if next <= initial && last.is_none() => {
                if allocation < 16 << 20 {
                    // One entry, with its attributes, is longer than the page.
                    self.page = allocation * 4;
                    Some((initial, list_id))
                } else {
                    return Err(ObjectError::Data("a list that does not go on"));
                }
            }
            next if last.is_some_and(|last| next <= last) => {
                return Err(ObjectError::Data("a list that goes on behind its end"));
            }
            next => Some((next, header.list_id)),
        };
        Ok(true)
    }
}

fn list(partition: u64, allocation: u64, initial: u64, list_id: u32, attributes: bool) -> Command {
    Command::List(ListCdb { partition, allocation, initial, list_id, attributes, sort: 0 })
}

fn members(id: Id, allocation: u64, initial: u64, list_id: u32, attributes: bool) -> Command {
    Command::ListCollection(ListCollection { id, allocation, initial, list_id, attributes })
}
