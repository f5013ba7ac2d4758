//! [`Base`]: state shared by all operations on a folder. Owns the open files, and the reading of
//! their attributes.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};

use backing::Presence;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use tree::{Attributes, Batch, Caller, Changed, Kind, NodeId, Permissions, Time, TreeError, TreeLimits};

use crate::cache::Cache;
use crate::durable::Durability;
use crate::locator::Locator;
use crate::names::Names;
use crate::node::{Descriptors, Node};
use crate::permit::Permit;
use crate::stat::{Changes, Stat};

/// Why a folder without a name cannot be used.
const REMOVED: &str = "the folder was removed";

thread_local! {
    /// The last file, and the last directory.
    static SEEN: RefCell<[Option<Seen>; 2]> = const { RefCell::new([None, None]) };
}

fn saw(batch: NonZeroU64, node: &Node, written: u64, file: Attributes) {
    let place = usize::from(node.kind == Kind::Directory);
    SEEN.with_borrow_mut(|seen| seen[place] = Some(Seen { batch, id: node.id, written, file }));
}

/// A file's state, as seen by one call of a batch.
struct Seen {
    batch: NonZeroU64,
    id: NodeId,
    /// Writes that had ended.
    written: u64,
    file: Attributes,
}

/// Results of earlier calls, by which the core decides whether it makes a read or write itself.
#[derive(Default)]
pub(crate) struct Refused {
    /// Whether the file system does not support such reads.
    pub(crate) reads: AtomicBool,
    /// Number of the next writes that use the ring, after a slow one.
    pub(crate) not_prompt: AtomicU32,
}

/// State shared by all operations.
pub(crate) struct Base {
    pub(crate) me: Weak<Base>,
    /// Keeps the state directory for this process.
    pub(crate) _held: OwnedFd,
    /// Its path when it was opened.
    pub(crate) path: PathBuf,
    pub(crate) root: Arc<Node>,
    pub(crate) descriptors: Descriptors,
    pub(crate) locator: Locator,
    pub(crate) cache: Cache,
    pub(crate) names: Names,
    pub(crate) changes: Changes,
    pub(crate) permit: Permit,
    pub(crate) durability: Durability,
    pub(crate) limits: TreeLimits,
    /// Whether the file system lies on this machine, so that cached metadata is at hand.
    pub(crate) is_local: bool,
    /// Whether it keeps its files in memory, so that no operation blocks.
    pub(crate) in_memory: bool,
    pub(crate) patience: Refused,
}

/// Result of an operation, and the files that must be durable before it is answered.
pub(crate) type Done<T> = Result<(T, SmallVec<[Arc<Node>; 2]>), TreeError>;

impl Base {
    /// The file, if it is open.
    pub(crate) fn cached(&self, id: &NodeId) -> Option<Arc<Node>> {
        if *id == self.root.id { Some(Arc::clone(&self.root)) } else { self.cache.get(id) }
    }

    /// Keeps a file open. Returns the one that is open already, if there is one.
    pub(crate) fn keep(&self, node: Arc<Node>) -> Arc<Node> {
        if node.id == self.root.id {
            return Arc::clone(&self.root);
        }
        let (node, dirty) = self.cache.add(node);
        if let (Some(dirty), Some(base)) = (dirty, self.me.upgrade()) {
            // It may be closed once it is flushed.
            drop(runtime::blocking(move || base.durability.flush(&base.descriptors, &dirty, true)));
        }
        node
    }

    /// The file, if it is open, for calls that a core may make.
    pub(crate) fn at_hand(&self, id: &NodeId) -> Option<Arc<Node>> {
        if self.is_local { self.cached(id) } else { None }
    }

    /// Attributes from the result of statx(2).
    pub(crate) fn shown(&self, node: &Node, stat: &Stat) -> Attributes {
        let mut attributes = stat.attributes(self.locator.root.0);
        self.changes.show(&node.id, &mut attributes);
        attributes
    }

    /// A file's current attributes; later calls of the batch may use them too.
    pub(crate) fn attributes(&self, node: &Node) -> Result<Attributes, TreeError> {
        let written = node.written();
        match node.stat() {
            Ok(stat) => {
                let file = self.shown(node, &stat);
                if let Some(batch) = Batch::current() {
                    saw(batch, node, written, file);
                }
                Ok(file)
            }
            Err(error) => {
                if error == TreeError::Stale {
                    self.forget(node);
                }
                Err(error)
            }
        }
    }

    /// A file's attributes for a call that only reads. They are those of some time after its batch
    /// of calls arrived, and after the last write of this server.
    pub(crate) fn attributes_in_batch(&self, node: &Node) -> Result<Attributes, TreeError> {
        let Some(batch) = Batch::current() else { return self.attributes(node) };
        let written = node.written();
        let known = SEEN.with_borrow(|seen| {
            let seen = seen[usize::from(node.kind == Kind::Directory)].as_ref()?;
            ((seen.batch, seen.written) == (batch, written) && seen.id == node.id).then_some(seen.file)
        });
        match known {
            Some(file) => Ok(file),
            None => self.attributes(node),
        }
    }

    /// The same from a new result of statx(2).
    pub(crate) fn shown_in_batch(&self, node: &Node, stat: &Stat) -> Attributes {
        let file = self.shown(node, stat);
        if let Some(batch) = Batch::current() {
            saw(batch, node, node.written(), file);
        }
        file
    }

    /// A file after a change by this server, which found `before`. Another process may have changed
    /// it in between, so the attributes before the change are left out.
    pub(crate) fn changed(&self, node: &Node, before: Time) -> Result<Changed, TreeError> {
        let stat = node.stat()?;
        self.changes.made(&node.id, before, stat.ctime());
        Ok(Changed { before: None, after: self.shown(node, &stat) })
    }

    /// Closes a file that is gone.
    #[cold]
    fn forget(&self, node: &Node) {
        self.cache.remove(&node.id);
        if node.id == self.root.id {
            self.durability.health().failed(REMOVED);
        }
    }

    /// Checks that the folder is there, and that its path names it.
    pub(crate) fn inspect(&self) {
        let folder = match self.root.stat() {
            Ok(stat) => (stat.device(), stat.inode()),
            Err(TreeError::Stale) => return self.durability.health().failed(REMOVED),
            Err(error) => {
                self.durability.report(error, false);
                return;
            }
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at_path = rustix::fs::open(&self.path, flags, Mode::empty());
        let presence = match at_path.map(|there| Stat::of(there.as_fd())) {
            Ok(Ok(there)) if (there.device(), there.inode()) == folder => Presence::There,
            Ok(Ok(_)) | Err(Errno::NOENT | Errno::NOTDIR) => Presence::Moved,
            // An inaccessible directory above gives no information about the folder.
            _ => return,
        };
        self.durability.health().saw(&[presence]);
    }

    /// A directory's attributes, if the caller has this permission for it.
    pub(crate) fn directory(
        &self,
        caller: &Caller,
        node: &Node,
        wanted: Permissions,
    ) -> Result<Attributes, TreeError> {
        self.permitted(caller, node, self.attributes(node)?, wanted)
    }

    /// The same for a call that only reads.
    pub(crate) fn directory_in_batch(
        &self,
        caller: &Caller,
        node: &Node,
        wanted: Permissions,
    ) -> Result<Attributes, TreeError> {
        self.permitted(caller, node, self.attributes_in_batch(node)?, wanted)
    }

    fn permitted(
        &self,
        caller: &Caller,
        node: &Node,
        attributes: Attributes,
        wanted: Permissions,
    ) -> Result<Attributes, TreeError> {
        if node.kind != Kind::Directory {
            return Err(TreeError::NotDirectory);
        }
        self.permit.check(caller, node, &attributes, wanted)?;
        Ok(attributes)
    }
}
