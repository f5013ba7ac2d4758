//! Facts about the objects of a store, and the types of queries.

/// The durability of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Visible to all and safe from the end of the process. Until a sync, a power cut may take it:
    /// its metadata as a whole, and any part of its data.
    Relaxed,
    /// On the medium.
    Durable,
}

/// The scope of a sync. A store may sync more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    Partition(u64),
    /// A user object or a collection, data and attributes.
    Object(super::Id),
    /// The attributes of an object of any kind, or a collection's list of members.
    Attributes(super::Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    User,
    Collection(CollectionType),
}

/// A collection's type, as attribute Ah of its information page has it: 00h linked, 01h tracking,
/// EFh spontaneous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectionType(pub u8);

impl CollectionType {
    /// Members name their collections by attributes.
    pub const LINKED: Self = Self(0);
    /// Follows a command on many objects.
    pub const TRACKING: Self = Self(1);
    /// Has no members of its own.
    pub(crate) const SPONTANEOUS: Self = Self(0xef);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    pub kind: Kind,
    /// Logical length in bytes; 0 of a collection.
    pub length: u64,
    /// Bytes allocated for its data, whole [`super::BLOCK`]s; 0 of a collection.
    pub used: u64,
    /// Members of a collection; 0 of a user object.
    pub members: u64,
    /// Collections that a user object is a member of; 0 of a collection.
    pub collections: u32,
    pub times: Times,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    pub objects: u64,
    pub collections: u64,
    /// Sum of [`ObjectInfo::used`] of its user objects, in bytes.
    pub used: u64,
    /// Sum of the logical lengths of its user objects, in bytes.
    pub length: u64,
    /// Number of the partition among those that have had this id: no two of them that anything
    /// names share it. It stays when the content is replaced.
    pub generation: u64,
    /// The source of a clone or snapshot.
    pub origin: Option<Origin>,
    pub times: Times,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The partition that was duplicated. It may be gone, and another may have its id.
    pub source: u64,
    /// [`PartitionInfo::generation`] of the one that was duplicated.
    pub generation: u64,
    pub kind: super::Duplicate,
    /// When it was made or last refreshed, in milliseconds since 1970.
    pub made_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// Bytes that objects' data may occupy.
    pub capacity: u64,
    /// Bytes of them that are taken; blocks that several objects share count once. Space that was
    /// just given up may count for a while.
    pub used: u64,
    pub partitions: u64,
    pub objects: u64,
    pub times: Times,
}

/// The times that every object has, in milliseconds since 1970; 0 if never set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub created: u64,
    pub attributes_accessed: u64,
    pub attributes_modified: u64,
    pub data_accessed: u64,
    pub data_modified: u64,
}

/// Times to be set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimesUpdate {
    pub created: Option<u64>,
    pub attributes_accessed: Option<u64>,
    pub attributes_modified: Option<u64>,
    pub data_accessed: Option<u64>,
    pub data_modified: Option<u64>,
}

impl TimesUpdate {
    pub fn apply_to(&self, times: &mut Times) {
        let pairs = [
            (self.created, &mut times.created),
            (self.attributes_accessed, &mut times.attributes_accessed),
            (self.attributes_modified, &mut times.attributes_modified),
            (self.data_accessed, &mut times.data_accessed),
            (self.data_modified, &mut times.data_modified),
        ];
        for (new, old) in pairs {
            if let Some(new) = new {
                *old = new;
            }
        }
    }

    /// Merges both: sets all that `later` sets, and the rest as this does.
    pub fn then(self, later: Self) -> Self {
        Self {
            created: later.created.or(self.created),
            attributes_accessed: later.attributes_accessed.or(self.attributes_accessed),
            attributes_modified: later.attributes_modified.or(self.attributes_modified),
            data_accessed: later.data_accessed.or(self.data_accessed),
            data_modified: later.data_modified.or(self.data_modified),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    All,
    Page(u32),
    /// Those of all pages from the first to the last, both included.
    Pages(u32, u32),
    /// Those of a page from a number on.
    From(u32, u32),
}

impl Attributes {
    /// The first and the last of them, each a page and a number.
    pub const fn range(self) -> ((u32, u32), (u32, u32)) {
        let (first, last) = match self {
            Self::All => (0, u32::MAX),
            Self::Page(page) => (page, page),
            Self::Pages(first, last) => (first, last),
            Self::From(page, number) => return ((page, number), (page, u32::MAX)),
        };
        ((first, 0), (last, u32::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    pub page: u32,
    pub number: u32,
    /// Its value, never empty.
    pub value: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Partitions,
    Collections(u64),
    Users(u64),
    /// The user objects that are members of a collection.
    Members(super::Id),
}

/// Membership of a user object in a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    pub collection: u64,
    /// The number by which the object names it.
    pub number: u32,
}

/// A piece of a user object's data, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    pub len: u64,
    /// Whether it was written; a hole reads as zeros.
    pub data: bool,
}

/// A range in which two objects may differ, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub at: u64,
    pub len: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub partitions: u64,
    pub objects: u64,
    pub extents: u64,
    /// Things that are wrong, each in a sentence: the first [`CheckReport::MAX_FINDINGS`].
    pub findings: Vec<String>,
    /// Number of things that are wrong.
    pub wrong: u64,
    pub repaired: u64,
}

impl CheckReport {
    pub const MAX_FINDINGS: usize = 256;

    pub fn found(&mut self, what: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.findings.len() < Self::MAX_FINDINGS {
            self.findings.push(what());
        }
    }
}
