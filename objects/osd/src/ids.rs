//! Addresses: the root, partitions, collections and user objects, by partition id and object id.

use std::fmt;

use crate::bytes::codes;

/// The lowest id of a partition, a collection or a user object; smaller ones but 0 are reserved.
pub const FIRST_ID: u64 = 0x1_0000;

/// The address of an object: PARTITION_ID and USER_OBJECT_ID or COLLECTION_OBJECT_ID.
///
/// (0, 0) is the root, (p, 0) a partition; collections and user objects share one namespace in each
/// partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// PARTITION_ID; 0 only for the root.
    pub partition: u64,
    /// USER_OBJECT_ID or COLLECTION_OBJECT_ID; 0 for the root and for partitions.
    pub object: u64,
}

impl Id {
    /// The root object.
    pub const ROOT: Self = Self { partition: 0, object: 0 };

    /// An object of `partition`, or the partition itself with `object` 0.
    pub const fn new(partition: u64, object: u64) -> Self {
        Self { partition, object }
    }

    /// The partition itself; the root for 0.
    pub const fn partition(partition: u64) -> Self {
        Self { partition, object: 0 }
    }

    /// Whether it is the root.
    pub const fn is_root(self) -> bool {
        self.partition == 0 && self.object == 0
    }

    /// Whether it is a partition, the root excepted.
    pub const fn is_partition(self) -> bool {
        self.partition != 0 && self.object == 0
    }
}

impl fmt::Display for Id {
    /// `0x10000/0x10001` for an object, `0x10000` for a partition, `root`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.partition, self.object) {
            (0, 0) => f.write_str("root"),
            (partition, 0) => write!(f, "{partition:#x}"),
            (partition, object) => write!(f, "{partition:#x}/{object:#x}"),
        }
    }
}

codes! {
    /// OBJECT TYPE, as capabilities, multi-object lists and the Current Command page state it.
    ObjectType: u8 {
        Root = 0x01 "The root object: the whole unit.",
        Partition = 0x02 "A partition.",
        Collection = 0x40 "A collection.",
        User = 0x80 "A user object.",
    }
}

impl ObjectType {
    /// The byte on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Partition => "partition",
            Self::Collection => "collection",
            Self::User => "user object",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ObjectType;

    #[test]
    fn an_object_type_is_its_code() {
        let is_code = |code: &u8| ObjectType::from_code(*code).is_some_and(|kind| kind.code() == *code);
        assert!((0..=u8::MAX).filter(is_code).eq(ObjectType::ALL.map(ObjectType::code)));
    }
}
