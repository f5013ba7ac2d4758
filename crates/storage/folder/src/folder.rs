//! [`Folder`]: a folder of the host as a [`Tree`]. It decides which part of each operation runs on
//! the core, and which on threads.
//!
//! Cached metadata is read on the core. A file that is not open, a name that the system would have
//! to read, listings and all changes go to `runtime::blocking`.

use std::path::Path;
use std::sync::Arc;

use runtime::Chain;
use tree::{
    Answer, Attributes, Caller, Changed, Committed, Contents, Created, DirRoom, Entries, Found, Granted,
    Linked, New, NodeId, Permissions, Read, Removed, RemovedKind, Renamed, SetAttributes, Space, Stability,
    Target, Time, Tree, TreeError, TreeLimits, Written,
};

use crate::base::{Base, Done};
use crate::locator::By;
use crate::node::Node;
use crate::open::{self, OpenError, Options};
use crate::{change, create, data, extended, flush, listing, locate, metadata};

/// A folder of the host.
#[derive(Clone)]
pub struct Folder(Arc<Base>);

impl Folder {
    /// Opens the folder at `path`. Makes system calls that may block.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(open::open(path, options)?))
    }

    /// The user that all callers act as; `None` if each acts as itself.
    pub fn acts_as(&self) -> Option<u32> {
        self.0.permit.own.as_ref().map(|own| own.uid)
    }

    /// Whether files are known by the file system's own handles, which no move can make stale.
    pub fn has_handles(&self) -> bool {
        matches!(self.0.locator.by, By::Handles(_))
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The health of the folder's medium.
    pub fn health(&self) -> &Arc<backing::Health> {
        self.0.durability.health()
    }

    /// Checks that the folder is still the one at its path, and reports to its health. Makes system
    /// calls: for every few seconds.
    pub fn inspect(&self) {
        self.0.inspect();
    }

    /// Reports to the health if the medium has failed an operation that only reads.
    fn seen<T>(&self, done: Result<T, TreeError>) -> Result<T, TreeError> {
        done.map_err(|error| self.0.durability.report(error, false))
    }

    /// Runs `f` on a thread that may block.
    fn apart<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Arc<Base>) -> Result<T, TreeError> + Send + 'static,
    ) -> Answer<T> {
        let folder = self.clone();
        Answer::running(runtime::blocking(move || folder.seen(f(&folder.0))))
    }

    /// Runs `f` at once if the file is open, and on a thread if it is not, or if `f` would block.
    fn at_once<T: Send + 'static>(
        &self,
        id: &NodeId,
        f: impl Fn(&Base, &Node, bool) -> Result<T, TreeError> + Send + 'static,
    ) -> Answer<T> {
        if let Some(node) = self.0.at_hand(id) {
            match f(&self.0, &node, true) {
                Err(error) if locate::must_wait(error) => {}
                done => return Answer::ready(self.seen(done)),
            }
        }
        let id = *id;
        self.apart(move |base| f(base, &*locate::find(base, &id)?, false))
    }

    /// Runs `f` on a thread, and then waits until its changes are durable.
    fn change<T: Send + 'static>(&self, f: impl FnOnce(&Arc<Base>) -> Done<T> + Send + 'static) -> Answer<T> {
        let base = Arc::clone(&self.0);
        Answer::running(async move {
            let theirs = Arc::clone(&base);
            let failures = base.durability.failures();
            let done = runtime::blocking(move || f(&theirs)).await;
            let (answer, changed) = done.map_err(|error| base.durability.report(error, true))?;
            for node in &changed {
                flush::kept(&base, node, true, failures).await?;
            }
            Ok(answer)
        })
    }
}

impl Tree for Folder {
    fn root(&self) -> NodeId {
        self.0.root.id
    }

    fn limits(&self) -> TreeLimits {
        self.0.limits
    }

    fn attributes(&self, node: &NodeId) -> Answer<Attributes> {
        self.at_once(node, |base, node, _| base.attributes_in_batch(node))
    }

    fn set_attributes(
        &self,
        caller: &Caller,
        node: &NodeId,
        set: &SetAttributes,
        guard: Option<Time>,
    ) -> Answer<Changed> {
        let (caller, node, set) = (caller.clone(), *node, *set);
        self.change(move |base| change::set_attributes(base, &caller, &node, &set, guard))
    }

    fn access(&self, caller: &Caller, node: &NodeId, wanted: Permissions) -> Answer<Granted> {
        let caller = caller.clone();
        self.at_once(node, move |base, node, _| metadata::access(base, &caller, node, wanted))
    }

    fn lookup(&self, caller: &Caller, directory: &NodeId, name: &[u8]) -> Answer<Found> {
        if let Some(node) = self.0.at_hand(directory) {
            match metadata::lookup(&self.0, caller, &node, name, true) {
                Err(error) if locate::must_wait(error) => {}
                done => return Answer::ready(self.seen(done)),
            }
        }
        let (caller, directory, name) = (caller.clone(), *directory, name.to_vec());
        self.apart(move |base| {
            metadata::lookup(base, &caller, &*locate::find(base, &directory)?, &name, false)
        })
    }

    fn read_link(&self, _caller: &Caller, node: &NodeId) -> Answer<Target> {
        self.at_once(node, |base, node, _| metadata::read_link(base, node))
    }

    fn read(&self, caller: &Caller, node: &NodeId, at: u64, len: usize) -> Answer<Read> {
        if let Some(open) = self.0.at_hand(node)
            && let Some(done) = data::read_at_once(&self.0, caller, &open, at, len)
        {
            return Answer::ready(self.seen(done));
        }
        let read = data::read(Arc::clone(&self.0), caller.clone(), *node, at, len);
        let folder = self.clone();
        Answer::running(async move { folder.seen(read.await) })
    }

    fn write(
        &self,
        caller: &Caller,
        node: &NodeId,
        at: u64,
        data: Chain,
        stability: Stability,
    ) -> Answer<Written> {
        if stability == Stability::Unstable || self.0.durability.is_asynchronous() {
            if let Some(open) = self.0.at_hand(node)
                && let Some(done) = data::write_at_once(&self.0, caller, &open, at, &data, stability)
            {
                return Answer::ready(done);
            }
        }
        Answer::running(data::write(Arc::clone(&self.0), caller.clone(), *node, at, data, stability))
    }

    fn commit(&self, _caller: &Caller, node: &NodeId, _at: u64, _len: u64) -> Answer<Committed> {
        Answer::running(data::commit(Arc::clone(&self.0), *node))
    }

    fn create(&self, caller: &Caller, directory: &NodeId, name: &[u8], new: New<'_>) -> Answer<Created> {
        let (caller, directory, name) = (caller.clone(), *directory, name.to_vec());
        let new = create::Wanted::from(new);
        self.change(move |base| create::create(base, &caller, &directory, &name, &new))
    }

    fn remove(&self, caller: &Caller, directory: &NodeId, name: &[u8], kind: RemovedKind) -> Answer<Removed> {
        let (caller, directory, name) = (caller.clone(), *directory, name.to_vec());
        self.change(move |base| change::remove(base, &caller, &directory, &name, kind))
    }

    fn rename(&self, caller: &Caller, from: (&NodeId, &[u8]), to: (&NodeId, &[u8])) -> Answer<Renamed> {
        let caller = caller.clone();
        let (from, to) = ((*from.0, from.1.to_vec()), (*to.0, to.1.to_vec()));
        self.change(move |base| change::rename(base, &caller, (&from.0, &from.1), (&to.0, &to.1)))
    }

    fn link(&self, caller: &Caller, node: &NodeId, directory: &NodeId, name: &[u8]) -> Answer<Linked> {
        let (caller, node, directory, name) = (caller.clone(), *node, *directory, name.to_vec());
        self.change(move |base| change::link(base, &caller, &node, &directory, &name))
    }

    fn read_dir(&self, caller: &Caller, directory: &NodeId, cookie: u64, room: DirRoom) -> Answer<Entries> {
        let (caller, directory) = (caller.clone(), *directory);
        self.apart(move |base| listing::read_dir(base, &caller, &directory, cookie, room))
    }

    fn space(&self, caller: &Caller, node: &NodeId) -> Answer<Space> {
        let (caller, node) = (caller.clone(), *node);
        self.apart(move |base| metadata::space(base, &caller, &*locate::find(base, &node)?))
    }

    fn allocate(&self, caller: &Caller, node: &NodeId, at: u64, len: u64) -> Answer<Changed> {
        let (caller, node) = (caller.clone(), *node);
        self.change(move |base| data::allocate(base, &caller, &node, at, len, true))
    }

    fn deallocate(&self, caller: &Caller, node: &NodeId, at: u64, len: u64) -> Answer<Changed> {
        let (caller, node) = (caller.clone(), *node);
        self.change(move |base| data::allocate(base, &caller, &node, at, len, false))
    }

    fn seek(&self, caller: &Caller, node: &NodeId, at: u64, contents: Contents) -> Answer<u64> {
        let (caller, node) = (caller.clone(), *node);
        self.apart(move |base| data::seek(base, &caller, &node, at, contents))
    }

    fn copy(
        &self,
        caller: &Caller,
        from: (&NodeId, u64),
        to: (&NodeId, u64),
        len: u64,
        share: bool,
    ) -> Answer<u64> {
        let caller = caller.clone();
        let (from, to) = ((*from.0, from.1), (*to.0, to.1));
        self.change(move |base| data::copy(base, &caller, from, to, len, share))
    }

    fn extended_attribute(&self, caller: &Caller, node: &NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        let (caller, node, name) = (caller.clone(), *node, name.to_vec());
        self.apart(move |base| extended::get(base, &caller, &node, &name))
    }

    fn set_extended_attribute(
        &self,
        caller: &Caller,
        node: &NodeId,
        name: &[u8],
        value: Option<&[u8]>,
        create: Option<bool>,
    ) -> Answer<Changed> {
        let (caller, node, name) = (caller.clone(), *node, name.to_vec());
        let value = value.map(<[u8]>::to_vec);
        self.change(move |base| extended::set(base, &caller, &node, &name, value.as_deref(), create))
    }

    fn extended_attributes(&self, caller: &Caller, node: &NodeId) -> Answer<Vec<Vec<u8>>> {
        let (caller, node) = (caller.clone(), *node);
        self.apart(move |base| extended::list(base, &caller, &node))
    }
}
