//! [`Change`]: a list of steps that is done as a whole or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::Chain;
use smallvec::SmallVec;

use super::{CollectionType, Error, Id, MAX_STEPS, TimesUpdate};

/// An attribute's value; a short one is held in place.
pub type Value = SmallVec<[u8; 40]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicate {
    Clone,
    /// Does not change, but by [`Step::Refresh`].
    Snapshot,
}

/// One step on the object `id`. Places, lengths and `most` are in bytes. The initiator chooses the
/// ids of new objects, or they come from [`super::ObjectStore::reserve_ids`].
#[derive(Clone, Debug)]
pub enum Step {
    /// Removes everything, the root's attributes and times too. The only step but for attributes
    /// and times of the root.
    Format,
    CreatePartition(u64),
    /// Removes a partition; one that is not empty only with `contents`.
    RemovePartition {
        id: u64,
        /// Whether its contents go too.
        contents: bool,
    },
    CreateUser(Id),
    /// Creates a collection without members.
    CreateCollection(Id, CollectionType),
    RemoveUser(Id),
    /// Removes a collection; one that has members only with `members`, which are not removed.
    RemoveCollection {
        id: Id,
        members: bool,
    },
    /// Writes at `at`; the object becomes long enough. No data changes nothing.
    Write {
        id: Id,
        at: u64,
        /// The data. It must not change until the change has resolved.
        data: Chain,
    },
    /// Writes at the end; [`Applied::appended`] says where that was.
    Append {
        id: Id,
        data: Chain,
        /// Longest length of the object afterwards, bytes; [`super::Error::TooLong`] beyond it.
        most: u64,
    },
    /// Deletes a range and moves what follows to its place. [`super::Error::OutOfRange`] if it
    /// begins past the end.
    Punch {
        id: Id,
        at: u64,
        /// The range may reach beyond the end.
        len: u64,
    },
    /// Makes a range zeros and gives its whole blocks back; the object becomes long enough.
    Clear {
        id: Id,
        at: u64,
        len: u64,
    },
    /// Cuts an object off, or makes it longer with a hole.
    SetLength {
        id: Id,
        length: u64,
    },
    /// Creates the user object `to` with the data of `from`, which both share until one is written,
    /// and with its attributes if `attributes` is set. Memberships and times are not copied.
    Copy {
        from: Id,
        /// The new one, of the same partition or another.
        to: Id,
        attributes: bool,
    },
    /// Sets an attribute of an object of any kind; an empty value deletes it.
    SetAttribute {
        id: Id,
        page: u32,
        number: u32,
        /// Value: up to [`super::MAX_VALUE`] bytes.
        value: Value,
    },
    /// Changes nothing; [`super::Error::NotFound`] unless the object of any kind was created at that
    /// time: another may have got its id.
    Expect {
        id: Id,
        /// [`super::Times::created`], in milliseconds since 1970.
        created: u64,
    },
    /// Sets times of an object of any kind.
    SetTimes {
        id: Id,
        times: TimesUpdate,
    },
    /// Makes a user object a member of a collection of its partition, or gives the membership
    /// another number.
    Join {
        object: Id,
        collection: u64,
        /// The number by which the object names the membership (the attribute's number in the
        /// collections page).
        number: u32,
    },
    /// Ends a membership; if there is none, nothing happens.
    Leave {
        object: Id,
        collection: u64,
    },
    /// Creates the partition `id` with everything that is in `source`, its attributes too; data is
    /// shared until one of them is written. Goes only with steps on attributes and times of
    /// partitions and of the root, expected ones too, as the next four do.
    Duplicate {
        source: u64,
        id: u64,
        kind: Duplicate,
        /// When, in milliseconds since 1970: [`super::Origin::made_ms`].
        made_ms: u64,
    },
    /// A clone or snapshot gets the present content of its source in place of its own.
    /// [`super::Error::NoSource`] if that is gone, though another partition may have its id; the
    /// same of the next step.
    Refresh {
        id: u64,
        made_ms: u64,
    },
    /// The source of a clone or snapshot gets its content in place of its own.
    Restore {
        id: u64,
    },
    /// A clone or snapshot becomes a partition of its own.
    Detach {
        id: u64,
    },
}

/// Steps that are done in their order, all or none.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub steps: SmallVec<[Step; 4]>,
    /// Ends the change early, if it takes long: see [`Stop`].
    pub stop: Option<Stop>,
}

/// By this, a [`Step::Punch`] that copies much data, and a copy of a partition's content, are asked
/// to end between two pieces of it. The change then fails with [`Error::Stopped`], unless it is
/// done before.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// [`Error::Stopped`] once `stop` has been asked.
    pub(super) fn check(stop: Option<&Self>) -> Result<(), Error> {
        if stop.is_some_and(|stop| stop.0.load(Ordering::Relaxed)) { Err(Error::Stopped) } else { Ok(()) }
    }
}

impl Change {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn of(step: Step) -> Self {
        let mut change = Self::new();
        change.push(step);
        change
    }
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
    pub fn is_whole(&self) -> Result<bool, Error> {
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
            Step::SetAttribute { id, .. } | Step::SetTimes { id, .. } | Step::Expect { id, .. } => {
                id.object == 0
            }
            _ => false,
        };
        match self.steps.iter().filter(|step| whole(step)).count() {
            _ if self.steps.len() > MAX_STEPS => Err(Error::BadChange),
            0 => Ok(false),
            1 if self.steps.iter().all(|step| whole(step) || described(step)) => Ok(true),
            _ => Err(Error::BadChange),
        }
    }
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether it may take long: see [`Stop`].
    pub fn may_take_long(&self) -> bool {
        let long = |step: &Step| {
            matches!(
                step,
                Step::Punch { .. } | Step::Duplicate { .. } | Step::Refresh { .. } | Step::Restore { .. }
            )
        };
        self.steps.iter().any(long)
    }
}

impl FromIterator<Step> for Change {
    fn from_iter<T: IntoIterator<Item = Step>>(steps: T) -> Self {
        Self { steps: steps.into_iter().collect(), stop: None }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Offset of the first byte that each [`Step::Append`] wrote, in order.
    pub appended: SmallVec<[u64; 2]>,
    /// Growth of the used capacity of all objects of the change, bytes (a shared block counts for
    /// each). 0 of a change that is about whole partitions.
    pub used_change: i64,
}

impl From<Step> for Change {
    fn from(step: Step) -> Self {
        Self::of(step)
    }
}
