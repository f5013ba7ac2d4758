//! The object that a command is about, as the store knows it: the source of its attributes.

use osd::{Id, ObjectType};

use super::OsdUnit;
use super::failure::{Failure, field};
use crate::store::{Kind, ObjectInfo, PartitionInfo, RootInfo, Times};

#[derive(Clone, Copy, Debug)]
pub(super) enum Info {
    Root(RootInfo),
    Partition(PartitionInfo),
    Object(ObjectInfo),
}

/// An object, as it was when it was looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub id: Id,
    pub info: Info,
}

impl Subject {
    pub fn object_type(&self) -> ObjectType {
        match &self.info {
            Info::Root(_) => ObjectType::Root,
            Info::Partition(_) => ObjectType::Partition,
            Info::Object(info) => match info.kind {
                Kind::User => ObjectType::User,
                Kind::Collection(_) => ObjectType::Collection,
            },
        }
    }

    pub fn times(&self) -> &Times {
        match &self.info {
            Info::Root(info) => &info.times,
            Info::Partition(info) => &info.times,
            Info::Object(info) => &info.times,
        }
    }
}

impl OsdUnit {
    pub(super) fn subject(&self, id: Id) -> Result<Subject, Failure> {
        let info = if id.is_root() {
            Info::Root(self.store.root())
        } else if id.is_partition() {
            Info::Partition(self.store.partition(id.partition)?)
        } else {
            Info::Object(self.object(id)?)
        };
        Ok(Subject { id, info })
    }

    pub(super) fn object(&self, id: Id) -> Result<ObjectInfo, Failure> {
        match self.store.object(id) {
            Ok(info) => Ok(info),
            Err(crate::store::Error::NotFound(_)) => Err(self.missing(id)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn user_object(&self, id: Id) -> Result<ObjectInfo, Failure> {
        match self.object(id)? {
            info @ ObjectInfo { kind: Kind::User, .. } => Ok(info),
            _ => Err(Failure::cdb(field::OBJECT)),
        }
    }

    pub(super) fn collection(&self, id: Id) -> Result<ObjectInfo, Failure> {
        match self.object(id)? {
            info @ ObjectInfo { kind: Kind::Collection(_), .. } => Ok(info),
            _ => Err(Failure::cdb(field::OBJECT)),
        }
    }

    /// Whether there is no object at `id` any more.
    pub(super) fn is_gone(&self, id: Id) -> bool {
        matches!(self.store.object(id), Err(crate::store::Error::NotFound(_)))
    }

    /// The failure for an object that does not exist: its partition's id is wrong, or its own.
    #[cold]
    fn missing(&self, id: Id) -> Failure {
        let there = self.store.partition(id.partition).is_ok();
        Failure::cdb(if there { field::OBJECT } else { field::PARTITION })
    }
}
