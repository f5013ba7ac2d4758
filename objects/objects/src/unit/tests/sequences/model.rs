//! The contents that a unit should hold, in simple maps: nothing of the store is used here. Each
//! function does its command's work, or returns the sense data that the command ends with. It
//! checks in the order in which a unit finds faults.

use std::collections::BTreeMap;

use osd::attributes::numbers::{partition_quotas, user_quotas};
use osd::attributes::{AttributeId, Page};
use osd::{Id, ObjectType};

use super::harness::Fault;

pub const FIRST: u64 = 0x1_0000;

pub type Attributes = BTreeMap<(u32, u32), Vec<u8>>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    pub data: Vec<u8>,
    pub attributes: Attributes,
    /// Collections that it is in, each with the number by which it names it; 0 for one that it does
    /// not name.
    pub memberships: BTreeMap<u64, u32>,
}

/// Result of the last command on a tracking collection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tracked {
    Never,
    Ended { processed: u64 },
    Failed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Collection {
    pub tracking: bool,
    pub attributes: Attributes,
    pub tracked: Tracked,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Origin {
    pub source: u64,
    /// Number of the source among the partitions that have had its id.
    pub generation: u64,
    pub snapshot: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partition {
    pub users: BTreeMap<u64, User>,
    pub collections: BTreeMap<u64, Collection>,
    pub attributes: Attributes,
    /// Number of the partition among those that have had its id.
    pub generation: u64,
    pub origin: Option<Origin>,
}

impl Partition {
    pub fn is_snapshot(&self) -> bool {
        self.origin.is_some_and(|origin| origin.snapshot)
    }

    pub fn members(&self, collection: u64) -> Vec<u64> {
        let of = |user: &User| user.memberships.contains_key(&collection);
        self.users.iter().filter(|(_, user)| of(user)).map(|(id, _)| *id).collect()
    }

    fn number(&self, attribute: AttributeId) -> u64 {
        number(&self.attributes, attribute)
    }

    fn room_for(&self, count: u64) -> Result<(), Fault> {
        let there = (self.users.len() + self.collections.len()) as u64;
        if there + count > self.number(partition_quotas::OBJECTS) { Err(Fault::Quota) } else { Ok(()) }
    }

    /// A new user object as this partition prescribes it.
    fn new_user(&self) -> User {
        let mut user = User::default();
        self.inherit(&mut user);
        user
    }

    fn inherit(&self, user: &mut User) {
        let default = self.number(partition_quotas::DEFAULT_MAX_OBJECT_LENGTH);
        if default != u64::MAX {
            let attribute = user_quotas::MAX_LENGTH;
            user.attributes.insert((attribute.page.0, attribute.number), default.to_be_bytes().to_vec());
        }
    }

    fn changeable(&self) -> Result<(), Fault> {
        if self.is_snapshot() { Err(Fault::Protected) } else { Ok(()) }
    }
}

fn number(attributes: &Attributes, attribute: AttributeId) -> u64 {
    attributes
        .get(&(attribute.page.0, attribute.number))
        .map_or(u64::MAX, |value| value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn max_length(user: &User) -> u64 {
    number(&user.attributes, user_quotas::MAX_LENGTH)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub partitions: BTreeMap<u64, Partition>,
    pub attributes: Attributes,
    /// Partitions that there have been.
    pub generations: u64,
}

/// One attribute that a set list sets.
pub type Setting = (AttributeId, Vec<u8>);

impl Model {
    pub fn partition(&self, id: u64) -> Result<&Partition, Fault> {
        self.partitions.get(&id).ok_or(Fault::Cdb(16))
    }

    fn partition_mut(&mut self, id: u64) -> Result<&mut Partition, Fault> {
        self.partitions.get_mut(&id).ok_or(Fault::Cdb(16))
    }

    pub fn user(&self, id: Id) -> Result<&User, Fault> {
        self.partition(id.partition)?.users.get(&id.object).ok_or(Fault::Cdb(24))
    }

    fn user_mut(&mut self, id: Id) -> Result<&mut User, Fault> {
        self.partition_mut(id.partition)?.users.get_mut(&id.object).ok_or(Fault::Cdb(24))
    }

    pub fn collection(&self, id: Id) -> Result<&Collection, Fault> {
        self.partition(id.partition)?.collections.get(&id.object).ok_or(Fault::Cdb(24))
    }

    pub fn type_of(&self, id: Id) -> Result<ObjectType, Fault> {
        if id.is_root() {
            return Ok(ObjectType::Root);
        }
        let partition = self.partition(id.partition)?;
        if id.object == 0 {
            Ok(ObjectType::Partition)
        } else if partition.users.contains_key(&id.object) {
            Ok(ObjectType::User)
        } else if partition.collections.contains_key(&id.object) {
            Ok(ObjectType::Collection)
        } else {
            Err(Fault::Cdb(24))
        }
    }

    /// Whether `requested` may be the id of something new; 0 may.
    fn new_id(&self, partition: u64, requested: u64) -> Result<(), Fault> {
        let found = self.partition(partition)?;
        let taken = found.users.contains_key(&requested) || found.collections.contains_key(&requested);
        if requested != 0 && (requested < FIRST || taken) { Err(Fault::Cdb(24)) } else { Ok(()) }
    }

    /// Whether the creation is allowed, apart from ids that the unit chooses.
    pub fn may_create(&self, partition: u64, requested: u64, count: u64) -> Result<(), Fault> {
        if count > 1 && requested != 0 {
            return Err(Fault::Cdb(24));
        }
        self.new_id(partition, requested)?;
        self.partition(partition)?.room_for(count)
    }

    /// Creates user objects with the attributes of `set`.
    pub fn create(&mut self, partition: u64, ids: &[u64], set: &[Setting]) -> Result<(), Fault> {
        self.partition(partition)?;
        let before = self.clone();
        for &id in ids {
            let user = self.partition(partition)?.new_user();
            self.partition_mut(partition)?.users.insert(id, user);
            if let Err(fault) = self.set(Id::new(partition, id), set, true) {
                *self = before;
                return Err(fault);
            }
        }
        let changeable = self.partition(partition)?.changeable();
        if changeable.is_err() {
            *self = before;
        }
        changeable
    }

    pub fn create_collection(
        &mut self,
        partition: u64,
        id: u64,
        tracking: bool,
        source: u64,
    ) -> Result<(), Fault> {
        let found = self.partition_mut(partition)?;
        found.changeable()?;
        let mut tracked = Tracked::Never;
        if source != 0 {
            let members = found.members(source);
            tracked = Tracked::Ended { processed: members.len() as u64 };
            for member in members {
                if let Some(user) = found.users.get_mut(&member) {
                    user.memberships.insert(id, 0);
                }
            }
        }
        let collection = Collection { tracking, attributes: Attributes::new(), tracked };
        found.collections.insert(id, collection);
        Ok(())
    }

    pub fn remove_collection(&mut self, id: Id, force: bool) -> Result<(), Fault> {
        self.collection(id)?;
        let found = self.partition_mut(id.partition)?;
        if !force && !found.members(id.object).is_empty() {
            return Err(Fault::NotEmpty);
        }
        found.changeable()?;
        found.collections.remove(&id.object);
        for user in found.users.values_mut() {
            user.memberships.remove(&id.object);
        }
        Ok(())
    }

    fn new_generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    pub fn create_partition(&mut self, id: u64) {
        let generation = self.new_generation();
        self.partitions.insert(id, Partition { generation, ..Partition::default() });
    }

    pub fn may_create_partition(&self, requested: u64) -> Result<(), Fault> {
        let wrong = requested != 0 && (requested < FIRST || self.partitions.contains_key(&requested));
        if wrong { Err(Fault::Cdb(16)) } else { Ok(()) }
    }

    pub fn remove_partition(&mut self, id: u64, contents: bool) -> Result<(), Fault> {
        let found = self.partition(id)?;
        let empty = found.users.is_empty() && found.collections.is_empty();
        if !contents && !empty {
            return Err(Fault::NotEmpty);
        }
        self.partitions.remove(&id);
        Ok(())
    }

    pub fn remove(&mut self, id: Id) -> Result<(), Fault> {
        self.user(id)?;
        let found = self.partition_mut(id.partition)?;
        found.changeable()?;
        found.users.remove(&id.object);
        Ok(())
    }

    /// Writes pieces of data, one after the other; the object becomes long enough for all of them.
    pub fn write(&mut self, id: Id, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        let user = self.user(id)?;
        let end = pieces.iter().map(|(at, data)| at + data.len() as u64).max().unwrap_or(0);
        if end > user.data.len() as u64 && end > max_length(user) {
            return Err(Fault::Quota);
        }
        self.partition(id.partition)?.changeable()?;
        let user = self.user_mut(id)?;
        for (at, data) in pieces {
            let (at, end) = (*at as usize, *at as usize + data.len());
            user.data.resize(user.data.len().max(end), 0);
            user.data[at..end].copy_from_slice(data);
        }
        Ok(())
    }

    pub fn create_and_write(&mut self, id: Id, at: u64, data: &[u8]) -> Result<(), Fault> {
        let found = self.partition(id.partition)?;
        let end = at + data.len() as u64;
        if end > found.number(partition_quotas::DEFAULT_MAX_OBJECT_LENGTH) {
            return Err(Fault::Quota);
        }
        found.changeable()?;
        let mut user = found.new_user();
        user.data.resize(end as usize, 0);
        user.data[at as usize..].copy_from_slice(data);
        self.partition_mut(id.partition)?.users.insert(id.object, user);
        Ok(())
    }

    pub fn append(&mut self, id: Id, data: &[u8]) -> Result<u64, Fault> {
        let at = self.user(id)?.data.len() as u64;
        self.write(id, &[(at, data)])?;
        Ok(at)
    }

    pub fn clear(&mut self, id: Id, at: u64, len: u64) -> Result<(), Fault> {
        self.write(id, &[(at, &vec![0; len as usize])])
    }

    pub fn punch(&mut self, id: Id, at: u64, len: u64) -> Result<(), Fault> {
        let length = self.user(id)?.data.len() as u64;
        if at > length {
            return Err(Fault::Cdb(40));
        }
        self.partition(id.partition)?.changeable()?;
        self.user_mut(id)?.data.drain(at as usize..(at + len).min(length) as usize);
        Ok(())
    }

    /// Sets attributes of any object; of one that is being `created` before it is known whether it
    /// can be.
    pub fn set(&mut self, id: Id, set: &[Setting], created: bool) -> Result<(), Fault> {
        let of_type = self.type_of(id)?;
        let before = self.clone();
        let mut changes = false;
        for (attribute, value) in set {
            match self.set_one(id, of_type, *attribute, value) {
                Ok(changed) => changes |= changed,
                Err(fault) => {
                    *self = before;
                    return Err(fault);
                }
            }
        }
        let inside = matches!(of_type, ObjectType::User | ObjectType::Collection);
        if inside && changes && !created && self.partition(id.partition)?.is_snapshot() {
            *self = before;
            return Err(Fault::Protected);
        }
        Ok(())
    }

    /// Whether the setting changes anything at all.
    fn set_one(
        &mut self,
        id: Id,
        of_type: ObjectType,
        attribute: AttributeId,
        value: &[u8],
    ) -> Result<bool, Fault> {
        use osd::attributes::numbers::{collections, user_information as info};
        let AttributeId { page, number } = attribute;
        if !page.suits(of_type) {
            return Err(Fault::Parameter);
        }
        let eight = || value.try_into().map(u64::from_be_bytes).map_err(|_| Fault::Parameter);
        match attribute {
            info::LOGICAL_LENGTH => {
                let length = eight()?;
                let user = self.user_mut(id)?;
                if length > user.data.len() as u64 && length > max_length(user) {
                    return Err(Fault::Quota);
                }
                user.data.resize(length as usize, 0);
                return Ok(true);
            }
            AttributeId { page: collections::PAGE, number: 1.. } => {
                let before = self.user(id)?.memberships.iter().find(|(_, n)| **n == number).map(|(c, _)| *c);
                let wanted = if value.is_empty() { None } else { Some(eight()?) };
                if let Some(collection) = wanted {
                    if before != wanted {
                        let found = Id::new(id.partition, collection);
                        self.collection(found).map_err(|_| Fault::Parameter)?;
                    }
                }
                if before == wanted {
                    return Ok(false);
                }
                let user = self.user_mut(id)?;
                if let Some(before) = before {
                    user.memberships.remove(&before);
                }
                if let Some(wanted) = wanted {
                    user.memberships.insert(wanted, number);
                }
                return Ok(true);
            }
            user_quotas::MAX_LENGTH
            | partition_quotas::OBJECTS
            | partition_quotas::DEFAULT_MAX_OBJECT_LENGTH => {
                if !value.is_empty() {
                    eight()?;
                }
            }
            _ if number == 9 && page == Page::of(of_type, 1) => {}
            _ if page.is_free() && number != 0 => {}
            _ => return Err(Fault::Parameter),
        }
        let attributes = self.attributes_mut(id)?;
        match value {
            [] => attributes.remove(&(page.0, number)),
            value => attributes.insert((page.0, number), value.to_vec()),
        };
        Ok(true)
    }

    fn attributes_mut(&mut self, id: Id) -> Result<&mut Attributes, Fault> {
        Ok(match self.type_of(id)? {
            ObjectType::Root => &mut self.attributes,
            ObjectType::Partition => &mut self.partition_mut(id.partition)?.attributes,
            ObjectType::User => &mut self.user_mut(id)?.attributes,
            ObjectType::Collection => {
                let found = self.partition_mut(id.partition)?.collections.get_mut(&id.object);
                &mut found.ok_or(Fault::Cdb(24))?.attributes
            }
        })
    }

    fn attributes(&self, id: Id) -> Result<&Attributes, Fault> {
        Ok(match self.type_of(id)? {
            ObjectType::Root => &self.attributes,
            ObjectType::Partition => &self.partition(id.partition)?.attributes,
            ObjectType::User => &self.user(id)?.attributes,
            ObjectType::Collection => &self.collection(id)?.attributes,
        })
    }

    /// Value of an attribute; empty if it does not exist.
    pub fn value(&self, id: Id, attribute: AttributeId) -> Result<Vec<u8>, Fault> {
        use osd::attributes::numbers::{
            collection_information as of_collection, collections, command_tracking as tracking,
            partition_information as of_partition, root_information as of_root, user_information as of_user,
        };
        let of_type = self.type_of(id)?;
        let AttributeId { page, number } = attribute;
        if !page.suits(of_type) {
            return Ok(Vec::new());
        }
        let eight = |value: u64| Ok(value.to_be_bytes().to_vec());
        match attribute {
            of_root::PARTITIONS => return eight(self.partitions.len() as u64),
            of_partition::ID | of_user::PARTITION_ID | of_collection::PARTITION_ID => {
                return eight(id.partition);
            }
            of_user::ID | of_collection::ID => return eight(id.object),
            of_partition::OBJECTS => {
                let found = self.partition(id.partition)?;
                return eight((found.users.len() + found.collections.len()) as u64);
            }
            of_user::LOGICAL_LENGTH => return eight(self.user(id)?.data.len() as u64),
            of_collection::TYPE => return Ok(vec![u8::from(self.collection(id)?.tracking)]),
            AttributeId { page: collections::PAGE, number: 1.. } => {
                let user = self.user(id)?;
                let found = user.memberships.iter().find(|(_, n)| **n == number);
                return found.map_or(Ok(Vec::new()), |(collection, _)| eight(*collection));
            }
            AttributeId { page, .. } if page == tracking::PAGE => {
                let found = self.collection(id)?;
                return Ok(match (attribute, found.tracked) {
                    (tracking::MEMBERS, _) if found.tracking => {
                        let members = self.partition(id.partition)?.members(id.object);
                        (members.len() as u64).to_be_bytes().to_vec()
                    }
                    (tracking::PERCENT_COMPLETE, Tracked::Ended { .. }) => vec![100],
                    (tracking::ACTIVE_COMMAND | tracking::ENDED_STATUS, Tracked::Ended { .. }) => vec![0, 0],
                    (tracking::PROCESSED, Tracked::Ended { processed }) => processed.to_be_bytes().to_vec(),
                    (tracking::NEWER_SKIPPED | tracking::MISSING_SKIPPED, Tracked::Ended { .. }) => {
                        vec![0; 8]
                    }
                    _ => Vec::new(),
                });
            }
            _ => {}
        }
        let found = self.attributes(id)?.get(&(page.0, number)).cloned();
        let quota = matches!(
            attribute,
            user_quotas::MAX_LENGTH | partition_quotas::OBJECTS | partition_quotas::DEFAULT_MAX_OBJECT_LENGTH
        );
        Ok(found.unwrap_or_else(|| if quota { vec![0xFF; 8] } else { Vec::new() }))
    }

    /// Attributes that number "all" of a client-defined page gives: the page's identification
    /// first.
    pub fn all_of(&self, id: Id, page: Page) -> Result<Vec<(u32, Vec<u8>)>, Fault> {
        let found = self.attributes(id)?.range((page.0, 0)..=(page.0, u32::MAX));
        let found: Vec<_> = found.map(|((_, number), value)| (*number, value.clone())).collect();
        if found.is_empty() || !page.suits(self.type_of(id)?) {
            return Ok(Vec::new());
        }
        let mut all = vec![(0, osd::attributes::numbers::unnamed_page_id().to_vec())];
        all.extend(found);
        Ok(all)
    }

    pub fn copy(&mut self, from: Id, to: Id, attributes: bool) -> Result<(), Fault> {
        let source = self.user(from).map_err(|_| Fault::Parameter)?.clone();
        let found = self.partition_mut(to.partition)?;
        found.room_for(1)?;
        if source.data.len() as u64 > found.number(partition_quotas::DEFAULT_MAX_OBJECT_LENGTH) {
            return Err(Fault::Quota);
        }
        found.changeable()?;
        let mut copy = User { memberships: BTreeMap::new(), ..source };
        if !attributes {
            copy.attributes.clear();
        }
        found.inherit(&mut copy);
        found.users.insert(to.object, copy);
        Ok(())
    }

    pub fn duplicate(&mut self, source: u64, id: u64, snapshot: bool) {
        let generation = self.new_generation();
        if let Some(found) = self.partitions.get(&source) {
            let origin = Some(Origin { source, generation: found.generation, snapshot });
            let copy = Partition { generation, origin, ..found.clone() };
            self.partitions.insert(id, copy);
        }
    }

    pub fn may_duplicate(&self, requested: u64, source: u64) -> Result<(), Fault> {
        self.may_create_partition(requested)?;
        self.partition(source).map(drop).map_err(|_| Fault::Cdb(40))
    }

    pub fn detach(&mut self, id: u64) -> Result<(), Fault> {
        let found = self.partition_mut(id)?;
        match found.origin {
            Some(Origin { snapshot: false, .. }) => found.origin = None,
            _ => return Err(Fault::Cdb(16)),
        }
        Ok(())
    }

    fn replace(&mut self, id: u64, content: Partition) {
        if let Some(found) = self.partitions.get_mut(&id) {
            *found = Partition { generation: found.generation, origin: found.origin, ..content };
        }
    }

    pub fn refresh(&mut self, id: u64) -> Result<(), Fault> {
        let origin = self.partition(id)?.origin.ok_or(Fault::Cdb(16))?;
        let content = self.partition(origin.source)?.clone();
        if content.generation != origin.generation {
            return Err(Fault::Cdb(16));
        }
        self.replace(id, content);
        Ok(())
    }

    pub fn restore(&mut self, id: u64, snapshot: u64) -> Result<(), Fault> {
        let generation = self.partition(id)?.generation;
        let found = self.partition(snapshot).map_err(|_| Fault::Cdb(40))?;
        if found.origin != Some(Origin { source: id, generation, snapshot: true }) {
            return Err(Fault::Cdb(40));
        }
        let content = found.clone();
        self.replace(id, content);
        Ok(())
    }

    pub fn remove_members(&mut self, id: Id) -> Result<(), Fault> {
        let tracking = self.collection(id)?.tracking;
        let found = self.partition_mut(id.partition)?;
        let members = found.members(id.object);
        if tracking || !members.is_empty() {
            found.changeable()?;
        }
        for member in &members {
            found.users.remove(member);
        }
        self.track(id, Tracked::Ended { processed: members.len() as u64 });
        Ok(())
    }

    pub fn set_members(&mut self, id: Id, set: &[Setting]) -> Result<(), Fault> {
        let tracking = self.collection(id)?.tracking;
        let members = self.partition(id.partition)?.members(id.object);
        if set.is_empty() {
            return Ok(());
        }
        if tracking {
            self.partition(id.partition)?.changeable()?;
        }
        for &member in &members {
            if let Err(fault) = self.set(Id::new(id.partition, member), set, false) {
                self.track(id, Tracked::Failed);
                return Err(fault);
            }
        }
        self.track(id, Tracked::Ended { processed: members.len() as u64 });
        Ok(())
    }

    pub fn track(&mut self, id: Id, tracked: Tracked) {
        let found = self.partitions.get_mut(&id.partition);
        if let Some(found) = found.and_then(|found| found.collections.get_mut(&id.object)) {
            if found.tracking {
                found.tracked = tracked;
            }
        }
    }

    /// Makes what a query has found members of `matches`.
    pub fn join(&mut self, matches: Id, found: &[u64], seen: u64) -> Result<(), Fault> {
        let tracking = self.collection(matches)?.tracking;
        let partition = self.partition_mut(matches.partition)?;
        let new = found.iter().any(|id| !partition.users[id].memberships.contains_key(&matches.object));
        if tracking || new {
            partition.changeable()?;
        }
        for id in found {
            let Some(user) = partition.users.get_mut(id) else { continue };
            if user.memberships.contains_key(&matches.object) {
                continue;
            }
            let taken = |number: &u32| user.memberships.values().any(|n| n == number);
            let number = if tracking { 0 } else { (1..).find(|number| !taken(number)).unwrap_or(0) };
            user.memberships.insert(matches.object, number);
        }
        self.track(matches, Tracked::Ended { processed: seen });
        Ok(())
    }
}
