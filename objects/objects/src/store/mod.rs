//! Stores of objects: the trait [`ObjectStore`], and the store on a directory or in memory
//! ([`embedded`]).
//!
//! A store has one root, partitions, and in each partition user objects and collections, which
//! share one space of ids. All of them have attributes, named by a page and a number. Queries of
//! metadata return at once; a call that moves data or waits for a medium returns an [`Io`]. A store
//! is shared by all cores, and each call uses the ring of the core that it is made on. Every
//! modification is a [`Change`]: a list of steps that is done as a whole or not at all.
//!
//! Knows ids, bytes and durability; nothing of SCSI, of permissions, of quotas and of the meaning
//! of an attribute.

mod change;
pub mod embedded;
mod error;
mod info;
mod io;
pub(crate) mod passed_on;

use std::sync::Arc;

use backing::Health;
use osd::Id;
use runtime::Chain;

pub use osd::attributes::list::MAX_VALUE;
pub use osd::ids::FIRST_ID;

pub use change::{Applied, Change, Duplicate, Step, Stop, Value};
pub use error::Error;
pub use info::{
    Attribute, Attributes, CheckReport, CollectionType, Commit, Difference, Extent, Kind, List, Membership,
    ObjectInfo, Origin, PartitionInfo, RootInfo, Scope, Times, TimesUpdate,
};
pub use io::{Hold, Io};

/// Bytes that an object's data is allocated in.
pub const BLOCK: u64 = 4096;
/// The longest logical length of a user object, in bytes.
pub const MAX_LENGTH: u64 = 1 << 56;
pub const MAX_STEPS: usize = 65536;

/// A store of objects. See the module. Each method fails with [`Error::NotFound`] if its object or
/// partition does not exist, and with the errors of the medium.
pub trait ObjectStore: Send + Sync + 'static {
    /// Sums over everything: counted as they change, not by a scan.
    fn root(&self) -> RootInfo;

    /// A partition with its sums, which are counted as they change.
    fn partition(&self, id: u64) -> Result<PartitionInfo, Error>;

    /// A user object or collection.
    fn object(&self, id: Id) -> Result<ObjectInfo, Error>;

    /// The times of an object of any kind.
    fn times(&self, id: Id) -> Result<Times, Error>;

    /// Notes times without a commit: for access times, which no command waits for. They are seen at
    /// once, reach the medium with a later change or sync, and may be lost when the process ends
    /// before. An object that does not exist is none of its concern.
    fn touch(&self, id: Id, times: TimesUpdate);

    /// Appends an attribute's value to `value`. Whether there is such an attribute; one of length 0
    /// does not exist.
    fn attribute(&self, id: Id, page: u32, number: u32, value: &mut Vec<u8>) -> Result<bool, Error>;

    /// Shows attributes in the order of (page, number) until `each` says false. `each` may call the
    /// store.
    fn attributes(
        &self,
        id: Id,
        which: Attributes,
        each: &mut dyn FnMut(Attribute<'_>) -> bool,
    ) -> Result<(), Error>;

    /// Appends to `into` up to `limit` ids of a list, in ascending order, none less than `from`.
    /// Whether there are more.
    fn list(&self, list: List, from: u64, limit: usize, into: &mut Vec<u64>) -> Result<bool, Error>;

    /// The number under which `object` names its membership in `collection` (of the same
    /// partition); `None` if it is no member.
    fn membership(&self, collection: Id, object: u64) -> Result<Option<u32>, Error>;

    /// Appends to `into` up to `limit` memberships of a user object, by ascending collection id,
    /// none less than `from`. Whether there are more.
    fn memberships(
        &self,
        object: Id,
        from: u64,
        limit: usize,
        into: &mut Vec<Membership>,
    ) -> Result<bool, Error>;

    /// Ids that are free for a [`Step`] that creates: the first of `count` consecutive ones (1 or
    /// more) of a partition, or of partitions for partition 0. They are given out once while the
    /// store is open, whether they are used or not. [`Error::NoIds`] if there are none.
    fn reserve_ids(&self, partition: u64, count: u32) -> Result<u64, Error>;

    /// Reads up to `len` bytes at `at` of a user object: fewer only at the end of the object. Holes
    /// read as zeros. See [`backing::BlockStore::read`] about the buffers.
    fn read(&self, id: Id, at: u64, len: usize) -> Io<Chain>;

    /// Like [`Self::read`], for bytes that are only sent: they may be the medium's own memory. See
    /// [`backing::BlockStore::read_to_send`]. To be sent while a [`Hold`] is kept that was taken
    /// before this call.
    fn read_to_send(&self, id: Id, at: u64, len: usize) -> Io<Chain> {
        self.read(id, at, len)
    }

    /// While it is kept, no space that is given up now or later is used for anything else. To be
    /// dropped soon.
    fn hold(&self) -> Hold {
        Hold::none()
    }

    /// Appends to `into` up to `limit` extents of a user object's data between `at` and `at + len`
    /// (cut at the logical length), in order and without gaps. Neighbours are of different kinds
    /// unless `limit` or the store's own chunks part them. Whether there are more.
    fn extents(&self, id: Id, at: u64, len: u64, limit: usize, into: &mut Vec<Extent>)
    -> Result<bool, Error>;

    /// Appends to `into` up to `limit` ranges between `at` and `at + len` in which the data of two
    /// user objects may differ, in order: bytes outside of them are equal. It compares the blocks
    /// that the objects share, not bytes: made for a snapshot and its source. Bytes that only the
    /// longer one has differ. Returns whether there are more.
    fn differences(
        &self,
        ids: [Id; 2],
        at: u64,
        len: u64,
        limit: usize,
        into: &mut Vec<Difference>,
    ) -> Result<bool, Error>;

    /// Does all steps of a change in their order, or none. When it resolves well it is visible to
    /// all, and as durable as `commit` says. Data written over existing data of an object is the
    /// exception: readers may see a part of it meanwhile, and a failure may leave a part, as on any
    /// disk. Of a relaxed change's data, a power cut may leave zeros.
    fn apply(&self, change: Change, commit: Commit) -> Io<Applied>;

    /// Every change that had resolved before this call, as far as it concerns `scope`, is durable
    /// when this resolves.
    fn sync(&self, scope: Scope) -> Io<()>;

    /// Health of the medium; `None` for a store that cannot fail.
    fn health(&self) -> Option<&Arc<Health>> {
        None
    }

    /// Checks that the medium is still the one that was opened, and reports to its health. Makes
    /// system calls: for every few seconds.
    fn inspect(&self) {}

    /// Verifies a partition (0: everything) and, with `repair`, puts right what can be; changes
    /// wait meanwhile where they must.
    fn check(&self, partition: u64, repair: bool) -> Io<CheckReport>;
}
