//! [`Change`]: a list of steps that is done as a whole or not at all.

use runtime::Chain;
use smallvec::SmallVec;

use super::{CollectionType, Error, Id, MAX_STEPS, TimesUpdate};

/// An attribute's value; a short one is held in place.
pub type Value = SmallVec<[u8; 40]>;

/// What a duplicate of a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicate {
    /// Changes by itself from then on.
    Clone,
    /// Does not change, but by [`Step::Refresh`].
    Snapshot,
}

/// One step. Ids of what is created are asked for by the initiator, or come from [`super::ObjectStore::reserve_ids`].
#[derive(Clone, Debug)]
pub enum Step {
    /// Removes everything, the root's attributes and times too. The only step but for attributes and times of the root.
    Format,
    /// Creates an empty partition.
    CreatePartition(u64),
    /// Removes a partition; one that is not empty only with `contents`.
    RemovePartition {
        /// Which.
        id: u64,
        /// Whether what is in it goes too.
        contents: bool,
    },
    /// Creates an empty user object.
    CreateUser(Id),
    /// Creates a collection without members.
    CreateCollection(Id, CollectionType),
    /// Removes a user object, and its memberships.
    RemoveUser(Id),
    /// Removes a collection; one that has members only with `members`, which are not removed.
    RemoveCollection {
        /// Which.
        id: Id,
        /// Whether there may be members.
        members: bool,
    },
    /// Writes at `at`; the object becomes long enough. No data changes nothing.
    Write {
        /// Which user object.
        id: Id,
        /// First byte.
        at: u64,
        /// What to write. It must not change until the change has resolved.
        data: Chain,
    },
    /// Writes at the end; [`Applied::appended`] says where that was.
    Append {
        /// Which user object.
        id: Id,
        /// What to write.
        data: Chain,
        /// How long the object may be afterwards, in bytes; [`super::Error::TooLong`] if it would be longer.
        most: u64,
    },
    /// Deletes a range and moves what follows to its place. [`super::Error::OutOfRange`] if it begins past the end.
    Punch {
        /// Which user object.
        id: Id,
        /// First byte.
        at: u64,
        /// Bytes; what is beyond the end does not matter.
        len: u64,
    },
    /// Makes a range zeros and gives its whole blocks back; the object becomes long enough.
    Clear {
        /// Which user object.
        id: Id,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Cuts an object off, or makes it longer with a hole.
    SetLength {
        /// Which user object.
        id: Id,
        /// In bytes.
        length: u64,
    },
    /// Creates the user object `to` with the data of `from`, which both share until one is written, and with its attributes if
    /// `attributes` is set. Memberships and times are not copied.
    Copy {
        /// Which user object.
        from: Id,
        /// The new one, of the same partition or another.
        to: Id,
        /// Whether attributes are copied.
        attributes: bool,
    },
    /// Sets an attribute of an object of any kind; an empty value deletes it.
    SetAttribute {
        /// Whose.
        id: Id,
        /// Page.
        page: u32,
        /// Number.
        number: u32,
        /// Value: up to [`super::MAX_VALUE`] bytes.
        value: Value,
    },
    /// Sets times of an object of any kind.
    SetTimes {
        /// Whose.
        id: Id,
        /// Which, and to what.
        times: TimesUpdate,
    },
    /// Makes a user object a member of a collection of its partition, or gives the membership another number.
    Join {
        /// The user object.
        object: Id,
        /// The collection's id.
        collection: u64,
        /// The number by which the object names the membership (the attribute's number in the collections page).
        number: u32,
    },
    /// Ends a membership; if there is none, nothing happens.
    Leave {
        /// The user object.
        object: Id,
        /// The collection's id.
        collection: u64,
    },
    /// Creates the partition `id` with everything that is in `source`, its attributes too; data is shared until one of them is
    /// written. Goes only with steps on attributes and times of partitions and of the root, as the next four do.
    Duplicate {
        /// The partition to duplicate.
        source: u64,
        /// The new one.
        id: u64,
        /// What it is.
        kind: Duplicate,
        /// When, in milliseconds since 1970: [`super::Origin::made_ms`].
        made_ms: u64,
    },
    /// A clone or snapshot gets the present content of its source in place of its own. [`super::Error::NoSource`] if that is gone,
    /// though another partition may have its id; the same of the next step.
    Refresh {
        /// The clone or snapshot.
        id: u64,
        /// When, in milliseconds since 1970.
        made_ms: u64,
    },
    /// The source of a clone or snapshot gets its content in place of its own.
    Restore {
        /// The clone or snapshot.
        id: u64,
    },
    /// A clone or snapshot becomes a partition of its own.
    Detach {
        /// The clone or snapshot.
        id: u64,
    },
}

/// Steps that are done in their order, all or none.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// What is done.
    pub steps: SmallVec<[Step; 4]>,
}

impl Change {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }
    /// A change of one step.
    pub fn of(step: Step) -> Self {
        let mut change = Self::new();
        change.push(step);
        change
    }
    /// One step more.
    pub fn push(&mut self, step: Step) -> &mut Self {
        self.steps.push(step);
        self
    }
    /// One step more, of an attribute: an empty value deletes it.
    pub fn set_attribute(&mut self, id: Id, page: u32, number: u32, value: &[u8]) -> &mut Self {
        self.push(Step::SetAttribute { id, page, number, value: Value::from_slice(value) })
    }
    /// Whether the change is about whole partitions.
    ///
    /// # Errors
    /// [`Error::BadChange`]: there are too many steps, or they do not go together.
    pub(super) fn is_whole(&self) -> Result<bool, Error> {
        let whole = |step: &Step| {
            matches!(
                step,
                Step::Format
                    | Step::Duplicate { .. }
                    | Step::Refresh { .. }
                    | Step::Restore { .. }
                    | Step::Detach { .. }
                    | Step::RemovePartition { contents: true, .. }
            )
        };
        let described = |step: &Step| match step {
            Step::SetAttribute { id, .. } | Step::SetTimes { id, .. } => id.object == 0,
            _ => false,
        };
        match self.steps.iter().filter(|step| whole(step)).count() {
            _ if self.steps.len() > MAX_STEPS => Err(Error::BadChange),
            0 => Ok(false),
            1 if self.steps.iter().all(|step| whole(step) || described(step)) => Ok(true),
            _ => Err(Error::BadChange),
        }
    }
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Where each [`Step::Append`] began to write, in order.
    pub appended: SmallVec<[u64; 2]>,
    /// By how many bytes the used capacity of all objects of the change has grown (that of a shared block counts for each).
    /// 0 of a change that is about whole partitions.
    pub used_change: i64,
}

impl From<Step> for Change {
    fn from(step: Step) -> Self {
        Self::of(step)
    }
}
