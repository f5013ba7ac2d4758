//! Lists of partitions, objects, collections and members: page by page, each beginning where the
//! last one ended.

use std::collections::VecDeque;

use osd::cdb::{List as ListCdb, ListCollection};
use osd::data::{ListHeader, list_ids, list_objects};
use osd::{AttributeId, Command, Id, Version};

use super::{Attribute, ObjectError, Objects, Operation};

/// Default bytes per page.
const PAGE: u64 = 256 << 10;

/// The kind of list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Partitions,
    Objects(u64),
    Collections(u64),
    Members(Id),
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Id of the object.
    pub id: Id,
    /// Its requested attributes. A missing one has no bytes.
    pub attributes: Vec<Attribute>,
}

impl Listed {
    /// The value of an attribute, if it exists.
    pub fn value(&self, id: AttributeId) -> Option<&[u8]> {
        let found = self.attributes.iter().find(|one| one.id == id)?;
        Some(found.value.as_slice()).filter(|value| !value.is_empty())
    }

    /// The same for a number of up to 8 bytes.
    pub fn number(&self, id: AttributeId) -> Option<u64> {
        super::number(self.value(id)?)
    }
}

/// A list being read. Objects created or removed meanwhile may appear or not. All others appear
/// once, in the order of their ids.
#[derive(Debug)]
pub struct List {
    device: Objects,
    what: What,
    attributes: Vec<AttributeId>,
    page: u64,
    /// The unread entries of the newest page.
    ready: VecDeque<Listed>,
    /// Start of the next page, and the list's identifier; `None` at the end.
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

    /// Lists the partitions.
    pub fn partitions(&self) -> List {
        self.list_of(What::Partitions)
    }

    /// Lists the user objects of a partition.
    pub fn objects(&self, partition: u64) -> List {
        self.list_of(What::Objects(partition))
    }

    /// Lists the collections of a partition.
    pub fn collections(&self, partition: u64) -> List {
        self.list_of(What::Collections(partition))
    }

    /// Lists the members of a collection.
    pub fn members(&self, collection: Id) -> List {
        self.list_of(What::Members(collection))
    }
}

impl List {
    /// Also returns these attributes of each entry.
    #[must_use]
    pub fn with(mut self, attributes: impl IntoIterator<Item = AttributeId>) -> Self {
        self.attributes.extend(attributes);
        self
    }

    /// Starts at this id.
    #[must_use]
    pub fn from(mut self, id: u64) -> Self {
        self.next = Some((id, 0));
        self
    }

    /// Sets the page size in bytes.
    #[must_use]
    pub fn page(mut self, bytes: u64) -> Self {
        self.page = bytes.clamp(1024, 16 << 20);
        self
    }

    /// The next entry; `None` at the end.
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

    /// The next entries, as many as are available; empty at the end.
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

    /// All remaining entries.
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

    /// The id at which to continue the list later, with [`Self::from`]. `None` at the end.
    pub fn place(&self) -> Option<u64> {
        match (self.ready.front(), self.next) {
            (Some(listed), _) if self.what == What::Partitions => Some(listed.id.partition),
            (Some(listed), _) => Some(listed.id.object),
            (None, next) => next.map(|(id, _)| id),
        }
    }

    /// Fetches a page; false at the end.
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
            // An empty page without an end would be requested forever.
            next if next <= initial && last.is_none() => {
                if allocation < 16 << 20 {
                    // One entry with its attributes is longer than the page.
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
