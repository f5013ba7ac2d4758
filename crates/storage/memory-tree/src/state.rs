//! [`State`]: state shared by all operations of a tree, and checks that many of them make.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tree::{Caller, NodeId, Permissions, Space, Time, TreeError};

use crate::arena::Arena;
use crate::budget::Budget;
use crate::directory::{Directory, Key};
use crate::node::{Body, NODE_COST, Node, STICKY};
use crate::table::{Locked, Table};

/// Longest name, bytes.
pub(crate) const NAME: usize = 255;
/// Most hard links of a file.
pub(crate) const LINKS: u32 = 65_000;
/// Largest file, bytes.
pub(crate) const FILE_SIZE: u64 = i64::MAX as u64;
/// Number of the root.
pub(crate) const ROOT: Key = Key { slot: 0, fileid: 1 };

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Capacity of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory: data in whole pages of 4 KiB, and the charges for files, names and extended
    /// attributes. More than 16 TiB are 16 TiB.
    pub bytes: u64,
    /// Files of all kinds.
    pub files: u64,
}

/// The files of a tree, and their memory.
pub(crate) struct State {
    pub(crate) table: Table,
    pub(crate) arena: Arena,
    pub(crate) bytes: Arc<Budget>,
    pub(crate) files: Budget,
    /// Held while a directory moves to another one: the hierarchy of directories then cannot
    /// change.
    pub(crate) moves: Mutex<()>,
    /// Random: this tree, for as long as it is handed from process to process.
    pub(crate) verifier: u64,
    fileids: AtomicU64,
    begun: Instant,
}

impl State {
    /// A tree without files, not even a root. `fileid`: the number of the next one.
    pub(crate) fn empty(limits: Limits, verifier: u64, fileid: u64) -> io::Result<Self> {
        let bytes = Arc::new(Budget::new(limits.bytes.min(Arena::MOST)));
        Ok(Self {
            table: Table::new(),
            arena: Arena::new(bytes.clone())?,
            bytes,
            files: Budget::new(limits.files.min(u32::MAX.into())),
            moves: Mutex::new(()),
            verifier,
            fileids: AtomicU64::new(fileid),
            begun: Instant::now(),
        })
    }

    /// A tree that has a root only.
    pub(crate) fn new(limits: Limits, mode: u32, uid: u32, gid: u32) -> io::Result<Self> {
        let mut verifier = [0; 8];
        runtime::random(&mut verifier)?;
        let state = Self::empty(limits, u64::from_ne_bytes(verifier), ROOT.fileid)?;
        let now = now();
        let root = Node {
            fileid: state.new_fileid(),
            mode: mode & 0o7777,
            uid,
            gid,
            links: 2,
            change: 1,
            atime: now,
            mtime: now,
            ctime: now,
            created: now,
            read_on: 0,
            exclusive: None,
            extended: None,
            body: Body::Directory(Box::new(Directory::new(ROOT))),
        };
        if !state.bytes.take(NODE_COST) || !state.files.take(1) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let key = state.table.insert(Box::new(root)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        debug_assert_eq!(key, ROOT);
        Ok(state)
    }

    pub(crate) fn root(&self) -> Key {
        ROOT
    }

    /// A number that no file has ever had.
    pub(crate) fn new_fileid(&self) -> u64 {
        self.fileids.fetch_add(1, Ordering::Relaxed)
    }

    /// What the server calls a node.
    pub(crate) fn id(&self, key: Key) -> NodeId {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.verifier.to_be_bytes());
        bytes[8..16].copy_from_slice(&key.fileid.to_be_bytes());
        bytes[16..].copy_from_slice(&key.slot.to_be_bytes());
        NodeId::new(&bytes).expect("20 bytes fit")
    }

    /// The key of the server's id of a node.
    ///
    /// # Errors
    /// [`TreeError::Stale`] if it never was one of this tree.
    pub(crate) fn key(&self, id: &NodeId) -> Result<Key, TreeError> {
        let bytes: &[u8; 20] = id.bytes().try_into().map_err(|_| TreeError::Stale)?;
        let [verifier @ .., _, _, _, _] = bytes;
        let [a, b, c, d, e, f, g, h, fileid @ ..] = verifier;
        if u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) != self.verifier {
            return Err(TreeError::Stale);
        }
        let [.., a, b, c, d] = bytes;
        Ok(Key { slot: u32::from_be_bytes([*a, *b, *c, *d]), fileid: u64::from_be_bytes(*fileid) })
    }

    /// Locks the node with this id of the server.
    #[inline]
    pub(crate) fn lock(&self, id: &NodeId) -> Result<Locked<'_>, TreeError> {
        self.table.lock(self.key(id)?)
    }

    /// Takes memory from the limit.
    ///
    /// # Errors
    /// [`TreeError::NoSpace`]; [`TreeError::Delay`] if pages that are still being sent would
    /// suffice.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), TreeError> {
        if self.bytes.take(bytes) {
            return Ok(());
        }
        self.arena.collect_all();
        loop {
            if self.bytes.take(bytes) {
                return Ok(());
            }
            if !self.arena.free_slice() {
                break;
            }
        }
        let soon = self.arena.retired();
        let later = self.bytes.used().saturating_sub(soon).saturating_add(bytes);
        Err(if soon > 0 && later <= self.bytes.limit() { TreeError::Delay } else { TreeError::NoSpace })
    }

    /// Charges the cost `now` of a node instead of its former cost `before`.
    pub(crate) fn recount(&self, before: u64, now: u64) {
        if now > before {
            self.bytes.take_anyway(now - before);
        } else {
            self.bytes.give(before - now);
        }
    }

    /// Releases everything charged for a node that no name refers to any more.
    pub(crate) fn discard(&self, key: Key, node: Option<Box<Node>>) {
        let Some(mut node) = node else { return };
        self.bytes.give(node.cost());
        self.files.give(1);
        if let Body::Regular(data) = &mut node.body {
            data.free(&self.arena, key.slot);
        }
    }

    /// Used and free space. Counts retired pages, which are still being sent, as free.
    pub(crate) fn space(&self) -> Space {
        self.arena.collect();
        let free = |budget: &Budget| budget.limit().saturating_sub(budget.used());
        let bytes = self.bytes.limit();
        let free_bytes = (free(&self.bytes) + self.arena.retired()).min(bytes);
        Space {
            bytes,
            free: free_bytes,
            available: free_bytes,
            files: self.files.limit(),
            files_free: free(&self.files),
        }
    }

    /// Its data or entries are being read. As with Linux's `relatime`: the time is noted if it
    /// would be older than a change, and once a day.
    #[inline]
    pub(crate) fn note_read(&self, node: &mut Node) {
        let today = runtime::now().saturating_duration_since(self.begun).as_secs() / DAY;
        if node.atime <= node.mtime || node.atime <= node.ctime || u64::from(node.read_on) != today {
            node.atime = now();
            node.read_on = today as u32;
        }
    }
}

/// The time.
pub(crate) fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

/// Its entries.
///
/// # Errors
/// [`TreeError::NotDirectory`].
pub(crate) fn entries(node: &Node) -> Result<&Directory, TreeError> {
    match &node.body {
        Body::Directory(entries) => Ok(entries),
        _ => Err(TreeError::NotDirectory),
    }
}

/// As [`entries`], to change.
pub(crate) fn entries_mut(node: &mut Node) -> Result<&mut Directory, TreeError> {
    match &mut node.body {
        Body::Directory(entries) => Ok(entries),
        _ => Err(TreeError::NotDirectory),
    }
}

/// # Errors
/// [`TreeError::Access`] if the mode does not permit it.
pub(crate) fn permit(caller: &Caller, node: &Node, wanted: Permissions) -> Result<(), TreeError> {
    if caller.permissions(&node.attributes()).contains(wanted) { Ok(()) } else { Err(TreeError::Access) }
}

/// Whether a caller may change the entries of a directory.
///
/// # Errors
/// [`TreeError::NotDirectory`], [`TreeError::Access`].
pub(crate) fn permit_change(caller: &Caller, directory: &Node) -> Result<(), TreeError> {
    entries(directory)?;
    permit(caller, directory, Permissions::WRITE.or(Permissions::EXECUTE))
}

/// Whether a caller may remove a file's name from a directory: from a sticky one, only the owner of
/// either may.
///
/// # Errors
/// [`TreeError::NotOwner`].
pub(crate) fn permit_removal(caller: &Caller, directory: &Node, owner: u32) -> Result<(), TreeError> {
    let owns = caller.uid == 0 || caller.uid == owner || caller.uid == directory.uid;
    if directory.mode & STICKY == 0 || owns { Ok(()) } else { Err(TreeError::NotOwner) }
}

/// # Errors
/// [`TreeError::NameTooLong`]; [`TreeError::Invalid`] for an invalid name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), TreeError> {
    match name {
        b"" | b"." | b".." => Err(TreeError::Invalid),
        _ if name.len() > NAME => Err(TreeError::NameTooLong),
        _ => Ok(()),
    }
}
