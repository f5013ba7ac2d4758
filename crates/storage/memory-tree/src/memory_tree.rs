//! [`MemoryTree`]: the operations of [`Tree`], each passed to the module that has it.

use std::io;

use runtime::Chain;
use tree::{
    Answer, Attributes, Caller, Changed, Committed, Contents, Created, DirRoom, Entries, Found, Granted,
    Linked, New, NodeId, Permissions, Read, Removed, RemovedKind, Renamed, SetAttributes, Space, Stability,
    Target, Time, Tree, TreeError, TreeLimits, Written,
};

use crate::state::{FILE_SIZE, LINKS, Limits, NAME, State};
use crate::{attributes, extended, file, names, saved};

/// Owner and mode of a tree's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Permission bits: 07777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A tree of files in memory.
pub struct MemoryTree(State);

impl MemoryTree {
    /// A tree that has a root only.
    ///
    /// # Errors
    /// The address space has no room for so many bytes, or the limits none for a root.
    pub fn new(limits: Limits, root: Root) -> io::Result<Self> {
        State::new(limits, root.mode, root.uid, root.gid).map(Self)
    }

    /// Writes the whole tree for another process. No operation may run meanwhile.
    ///
    /// # Errors
    /// The writer's.
    pub fn save(&self, to: &mut impl io::Write) -> io::Result<()> {
        saved::save(&self.0, to)
    }

    /// The tree that [`Self::save`] has written, with its ids and verifier.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]: it does not fit the limits. [`io::ErrorKind::InvalidData`]:
    /// it is of another format. Or the reader's.
    pub fn load(limits: Limits, from: &mut impl io::Read) -> io::Result<Self> {
        saved::load(limits, from).map(Self)
    }

    /// Bytes of the limit that are in use, pages that are still being sent included.
    pub fn used(&self) -> u64 {
        self.0.bytes.used()
    }
}

impl Tree for MemoryTree {
    fn root(&self) -> NodeId {
        self.0.id(self.0.root())
    }

    fn limits(&self) -> TreeLimits {
        TreeLimits {
            file_size: FILE_SIZE,
            name: NAME as u32,
            links: LINKS,
            time: Time { seconds: 0, nanoseconds: 1 },
            extended_attributes: true,
        }
    }

    fn attributes(&self, node: &NodeId) -> Answer<Attributes> {
        Answer::ready(attributes::get(&self.0, node))
    }

    fn set_attributes(
        &self,
        caller: &Caller,
        node: &NodeId,
        set: &SetAttributes,
        guard: Option<Time>,
    ) -> Answer<Changed> {
        Answer::ready(attributes::set(&self.0, caller, node, set, guard))
    }

    fn access(&self, caller: &Caller, node: &NodeId, wanted: Permissions) -> Answer<Granted> {
        Answer::ready(attributes::access(&self.0, caller, node, wanted))
    }

    fn lookup(&self, caller: &Caller, directory: &NodeId, name: &[u8]) -> Answer<Found> {
        Answer::ready(names::lookup(&self.0, caller, directory, name))
    }

    fn read_link(&self, _caller: &Caller, node: &NodeId) -> Answer<Target> {
        Answer::ready(attributes::read_link(&self.0, node))
    }

    fn read(&self, caller: &Caller, node: &NodeId, at: u64, len: usize) -> Answer<Read> {
        Answer::ready(file::read(&self.0, caller, node, at, len))
    }

    fn write(
        &self,
        caller: &Caller,
        node: &NodeId,
        at: u64,
        data: Chain,
        _stability: Stability,
    ) -> Answer<Written> {
        Answer::ready(file::write(&self.0, caller, node, at, data))
    }

    fn commit(&self, caller: &Caller, node: &NodeId, _at: u64, _len: u64) -> Answer<Committed> {
        Answer::ready(file::commit(&self.0, caller, node))
    }

    fn create(&self, caller: &Caller, directory: &NodeId, name: &[u8], new: New<'_>) -> Answer<Created> {
        Answer::ready(names::create(&self.0, caller, directory, name, new))
    }

    fn remove(&self, caller: &Caller, directory: &NodeId, name: &[u8], kind: RemovedKind) -> Answer<Removed> {
        Answer::ready(names::remove(&self.0, caller, directory, name, kind))
    }

    fn rename(&self, caller: &Caller, from: (&NodeId, &[u8]), to: (&NodeId, &[u8])) -> Answer<Renamed> {
        Answer::ready(names::rename(&self.0, caller, from, to))
    }

    fn link(&self, caller: &Caller, node: &NodeId, directory: &NodeId, name: &[u8]) -> Answer<Linked> {
        Answer::ready(names::link(&self.0, caller, node, directory, name))
    }

    fn read_dir(&self, caller: &Caller, directory: &NodeId, cookie: u64, room: DirRoom) -> Answer<Entries> {
        Answer::ready(names::read_dir(&self.0, caller, directory, cookie, room))
    }

    fn space(&self, _caller: &Caller, node: &NodeId) -> Answer<Space> {
        Answer::ready(self.0.lock(node).map(drop).map(|()| self.0.space()))
    }

    fn allocate(&self, caller: &Caller, node: &NodeId, at: u64, len: u64) -> Answer<Changed> {
        Answer::ready(file::allocate(&self.0, caller, node, at, len))
    }

    fn deallocate(&self, caller: &Caller, node: &NodeId, at: u64, len: u64) -> Answer<Changed> {
        Answer::ready(file::deallocate(&self.0, caller, node, at, len))
    }

    fn seek(&self, caller: &Caller, node: &NodeId, at: u64, contents: Contents) -> Answer<u64> {
        Answer::ready(file::seek(&self.0, caller, node, at, contents))
    }

    fn copy(
        &self,
        caller: &Caller,
        from: (&NodeId, u64),
        to: (&NodeId, u64),
        len: u64,
        share: bool,
    ) -> Answer<u64> {
        if share {
            return Answer::err(TreeError::Unsupported);
        }
        Answer::ready(file::copy(&self.0, caller, from, to, len))
    }

    fn extended_attribute(&self, caller: &Caller, node: &NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        Answer::ready(extended::get(&self.0, caller, node, name))
    }

    fn set_extended_attribute(
        &self,
        caller: &Caller,
        node: &NodeId,
        name: &[u8],
        value: Option<&[u8]>,
        create: Option<bool>,
    ) -> Answer<Changed> {
        Answer::ready(extended::set(&self.0, caller, node, name, value, create))
    }

    fn extended_attributes(&self, caller: &Caller, node: &NodeId) -> Answer<Vec<Vec<u8>>> {
        Answer::ready(extended::list(&self.0, caller, node))
    }
}
