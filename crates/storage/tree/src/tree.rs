//! [`Tree`]: the operations that a file server needs of a tree of files.

use runtime::Chain;

use crate::{
    Attributes, Caller, Changed, Committed, Contents, Created, DirRoom, Entries, Found, Granted, Linked, New,
    NodeId, Permissions, Read, Removed, RemovedKind, Renamed, SetAttributes, Space, Stability, Target, Time,
    TreeError, TreeLimits, Written,
};

/// The end of an operation, or the operation in flight on this core.
pub type Answer<T> = runtime::Answer<Result<T, TreeError>>;

/// A tree of files.
///
/// Each method does its operation whole or not at all, checks the caller's permission, and never
/// follows a symbolic link. Names are single components: the server refuses empty names and names
/// with `/` or NUL, and passes `.` and `..` to [`Self::lookup`] only.
///
/// A change of a directory or of attributes is on the medium before it is answered, unless the tree
/// was told to be asynchronous.
///
/// An id of another tree, or of a file that is gone, is [`TreeError::Stale`].
pub trait Tree: Send + Sync + 'static {
    /// The tree's root. Its `..` is itself.
    fn root(&self) -> NodeId;

    /// Limits and capabilities of the tree.
    fn limits(&self) -> TreeLimits;

    /// A file's attributes. Any caller may read them.
    fn attributes(&self, node: &NodeId) -> Answer<Attributes>;

    /// Sets attributes: those of `set` in one step. With `guard`, only if that is the file's ctime.
    ///
    /// # Errors
    /// [`TreeError::NotSync`] if it is not; [`TreeError::NotOwner`] for what only the owner may
    /// set.
    fn set_attributes(
        &self,
        caller: &Caller,
        node: &NodeId,
        set: &SetAttributes,
        guard: Option<Time>,
    ) -> Answer<Changed>;

    /// The permissions among `wanted` that the caller has, as for opening the file. The result may
    /// include one that a later operation refuses. It omits none that a later one accepts, but for
    /// those of [`Caller::may_read_data`] and [`Caller::may_write_data`].
    fn access(&self, caller: &Caller, node: &NodeId, wanted: Permissions) -> Answer<Granted>;

    /// Looks up `name` in a directory. `..` of the root is the root.
    fn lookup(&self, caller: &Caller, directory: &NodeId, name: &[u8]) -> Answer<Found>;

    /// Reads a symbolic link.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if it is none.
    fn read_link(&self, caller: &Caller, node: &NodeId) -> Answer<Target>;

    /// Reads up to `len` bytes of a regular file at `at`. At or beyond its size it returns no
    /// bytes, and the end of the file.
    ///
    /// # Errors
    /// [`TreeError::IsDirectory`], and [`TreeError::Invalid`] for another file without data.
    fn read(&self, caller: &Caller, node: &NodeId, at: u64, len: usize) -> Answer<Read>;

    /// Writes `data` to a regular file at `at`. A gap behind its size becomes zeros.
    fn write(
        &self,
        caller: &Caller,
        node: &NodeId,
        at: u64,
        data: Chain,
        stability: Stability,
    ) -> Answer<Written>;

    /// Makes written data of the range durable. `len` 0 is everything behind `at`.
    fn commit(&self, caller: &Caller, node: &NodeId, at: u64, len: u64) -> Answer<Committed>;

    /// Makes a file. It belongs to the caller and its group; to the directory's group, if that has
    /// set-group-ID.
    fn create(&self, caller: &Caller, directory: &NodeId, name: &[u8], new: New<'_>) -> Answer<Created>;

    /// Removes a name, and the file with its last one.
    fn remove(&self, caller: &Caller, directory: &NodeId, name: &[u8], kind: RemovedKind) -> Answer<Removed>;

    /// Moves a name, and replaces an existing new one: a file by a file, an empty directory by a
    /// directory. Nothing happens if both name the same file.
    fn rename(&self, caller: &Caller, from: (&NodeId, &[u8]), to: (&NodeId, &[u8])) -> Answer<Renamed>;

    /// Gives a file another name. Directories have one only.
    fn link(&self, caller: &Caller, node: &NodeId, directory: &NodeId, name: &[u8]) -> Answer<Linked>;

    /// Lists a directory behind `cookie`: 0 is its begin.
    fn read_dir(&self, caller: &Caller, directory: &NodeId, cookie: u64, room: DirRoom) -> Answer<Entries>;

    /// The space of the file system that a file lies in.
    fn space(&self, caller: &Caller, node: &NodeId) -> Answer<Space>;

    /// Reserves space for a range of a regular file; it becomes longer if the range is behind its
    /// size.
    fn allocate(&self, _caller: &Caller, _node: &NodeId, _at: u64, _len: u64) -> Answer<Changed> {
        Answer::err(TreeError::Unsupported)
    }

    /// Gives the space of a range back; it reads as zeros. The size stays.
    fn deallocate(&self, _caller: &Caller, _node: &NodeId, _at: u64, _len: u64) -> Answer<Changed> {
        Answer::err(TreeError::Unsupported)
    }

    /// The first byte of such contents at or behind `at`.
    ///
    /// # Errors
    /// [`TreeError::NoEntry`] if there is none: `at` is behind the end, or no data follows.
    fn seek(&self, _caller: &Caller, _node: &NodeId, _at: u64, _contents: Contents) -> Answer<u64> {
        Answer::err(TreeError::Unsupported)
    }

    /// Copies up to `len` bytes from one regular file to another, or within one to a range that
    /// does not overlap. Returns how many: fewer if they are many, 0 at the end of the source. With
    /// `share`, both share the blocks afterwards, and all is done or nothing; `len` 0 is
    /// everything.
    fn copy(
        &self,
        _caller: &Caller,
        _from: (&NodeId, u64),
        _to: (&NodeId, u64),
        _len: u64,
        _share: bool,
    ) -> Answer<u64> {
        Answer::err(TreeError::Unsupported)
    }

    /// Reads an extended attribute of the name space `user.`, which its name is without.
    fn extended_attribute(&self, _caller: &Caller, _node: &NodeId, _name: &[u8]) -> Answer<Vec<u8>> {
        Answer::err(TreeError::Unsupported)
    }

    /// Sets an extended attribute, or removes it with `None`. `create`: it must not exist yet, or
    /// must exist.
    fn set_extended_attribute(
        &self,
        _caller: &Caller,
        _node: &NodeId,
        _name: &[u8],
        _value: Option<&[u8]>,
        _create: Option<bool>,
    ) -> Answer<Changed> {
        Answer::err(TreeError::Unsupported)
    }

    /// The names of a file's extended attributes, in an order that stays while they stay.
    fn extended_attributes(&self, _caller: &Caller, _node: &NodeId) -> Answer<Vec<Vec<u8>>> {
        Answer::err(TreeError::Unsupported)
    }
}
