//! A tree whose changes wait at a gate. New files are there before they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use memory_tree::MemoryTree;
use runtime::Chain;
use tree::{
    Answer, Attributes, Caller, Changed, Committed, Created, DirRoom, Entries, Found, Granted, Linked, New,
    NodeId, Permissions, Read, Removed, RemovedKind, Renamed, SetAttributes, Space, Stability, Target, Time,
    Tree, TreeLimits, Written,
};

/// A gate before which changes wait.
#[derive(Default)]
pub struct Gate {
    closed: AtomicBool,
    waiting: AtomicUsize,
}

impl Gate {
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Waits until the gate is open.
    async fn passed(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.closed.load(Ordering::SeqCst) {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Blocks until a change waits.
    pub fn reached(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A tree in memory, behind a gate.
pub struct Gated {
    pub tree: Arc<MemoryTree>,
    pub gate: Arc<Gate>,
}

impl Gated {
    /// An operation that waits until the gate is open.
    fn later<T: Unpin + 'static>(&self, act: impl FnOnce(&MemoryTree) -> Answer<T> + 'static) -> Answer<T> {
        let (tree, gate) = (self.tree.clone(), self.gate.clone());
        Answer::running(async move {
            gate.passed().await;
            act(&tree).await
        })
    }
}

impl Tree for Gated {
    fn root(&self) -> NodeId {
        self.tree.root()
    }

    fn limits(&self) -> TreeLimits {
        self.tree.limits()
    }

    fn attributes(&self, node: &NodeId) -> Answer<Attributes> {
        self.tree.attributes(node)
    }

    fn set_attributes(
        &self,
        caller: &Caller,
        node: &NodeId,
        set: &SetAttributes,
        guard: Option<Time>,
    ) -> Answer<Changed> {
        let (caller, node, set) = (caller.clone(), *node, *set);
        self.later(move |tree| tree.set_attributes(&caller, &node, &set, guard))
    }

    fn access(&self, caller: &Caller, node: &NodeId, wanted: Permissions) -> Answer<Granted> {
        self.tree.access(caller, node, wanted)
    }

    fn lookup(&self, caller: &Caller, directory: &NodeId, name: &[u8]) -> Answer<Found> {
        self.tree.lookup(caller, directory, name)
    }

    fn read_link(&self, caller: &Caller, node: &NodeId) -> Answer<Target> {
        self.tree.read_link(caller, node)
    }

    fn read(&self, caller: &Caller, node: &NodeId, at: u64, len: usize) -> Answer<Read> {
        self.tree.read(caller, node, at, len)
    }

    fn write(
        &self,
        caller: &Caller,
        node: &NodeId,
        at: u64,
        data: Chain,
        stability: Stability,
    ) -> Answer<Written> {
        let (caller, node) = (caller.clone(), *node);
        self.later(move |tree| tree.write(&caller, &node, at, data, stability))
    }

    fn commit(&self, caller: &Caller, node: &NodeId, at: u64, len: u64) -> Answer<Committed> {
        self.tree.commit(caller, node, at, len)
    }

    fn create(&self, caller: &Caller, directory: &NodeId, name: &[u8], new: New<'_>) -> Answer<Created> {
        // The file is there, and its maker is told later.
        let (made, gate) = (self.tree.create(caller, directory, name, new), self.gate.clone());
        Answer::running(async move {
            gate.passed().await;
            made.await
        })
    }

    fn remove(&self, caller: &Caller, directory: &NodeId, name: &[u8], kind: RemovedKind) -> Answer<Removed> {
        let (caller, directory, name) = (caller.clone(), *directory, name.to_vec());
        self.later(move |tree| tree.remove(&caller, &directory, &name, kind))
    }

    fn rename(&self, caller: &Caller, from: (&NodeId, &[u8]), to: (&NodeId, &[u8])) -> Answer<Renamed> {
        let caller = caller.clone();
        let (from, to) = ((*from.0, from.1.to_vec()), (*to.0, to.1.to_vec()));
        self.later(move |tree| tree.rename(&caller, (&from.0, &from.1), (&to.0, &to.1)))
    }

    fn link(&self, caller: &Caller, node: &NodeId, directory: &NodeId, name: &[u8]) -> Answer<Linked> {
        let (caller, node, directory, name) = (caller.clone(), *node, *directory, name.to_vec());
        self.later(move |tree| tree.link(&caller, &node, &directory, &name))
    }

    fn read_dir(&self, caller: &Caller, directory: &NodeId, cookie: u64, room: DirRoom) -> Answer<Entries> {
        self.tree.read_dir(caller, directory, cookie, room)
    }

    fn space(&self, caller: &Caller, node: &NodeId) -> Answer<Space> {
        self.tree.space(caller, node)
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
        self.later(move |tree| tree.set_extended_attribute(&caller, &node, &name, value.as_deref(), create))
    }
}
