//! [`Node`]: a file of any type, with the common state and the state of each type.

use std::collections::BTreeMap;

use tree::{Attributes, Before, Changed, Device, Kind, Time};

use crate::data::Data;
use crate::directory::Directory;

/// Bytes charged for each file, beside its content.
pub(crate) const NODE_COST: u64 = 384;

/// Set-user-ID.
pub(crate) const SETUID: u32 = 0o4000;
/// Set-group-ID.
pub(crate) const SETGID: u32 = 0o2000;
/// Only owners may remove entries.
pub(crate) const STICKY: u32 = 0o1000;

/// Extended attributes by name.
pub(crate) type Extended = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Content of a file, by type.
pub(crate) enum Body {
    /// A regular file.
    Regular(Data),
    /// A directory.
    Directory(Box<Directory>),
    /// A symbolic link to this path.
    Symlink(Box<[u8]>),
    /// A device, a socket or a named pipe.
    Special(Kind, Device),
}

/// A file.
pub(crate) struct Node {
    pub(crate) fileid: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) change: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) created: Time,
    /// The day of the tree's life on which `atime` was last set.
    pub(crate) read_on: u32,
    /// Verifier of the exclusive create that made it, until its attributes are set.
    pub(crate) exclusive: Option<[u8; 8]>,
    pub(crate) extended: Option<Box<Extended>>,
    pub(crate) body: Body,
}

impl Node {
    pub(crate) fn kind(&self) -> Kind {
        match &self.body {
            Body::Regular(_) => Kind::Regular,
            Body::Directory(_) => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub(crate) fn attributes(&self) -> Attributes {
        let (size, used, device) = match &self.body {
            Body::Regular(data) => (data.size(), data.allocated(), Device::default()),
            Body::Directory(entries) => (entries.cost(), entries.cost(), Device::default()),
            Body::Symlink(path) => (path.len() as u64, path.len() as u64, Device::default()),
            Body::Special(_, device) => (0, 0, *device),
        };
        Attributes {
            kind: self.kind(),
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            size,
            used,
            device,
            fsid: 0,
            fileid: self.fileid,
            change: self.change,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            created: Some(self.created),
        }
    }

    /// A change since `before`, with no other change in between.
    pub(crate) fn changed(&self, before: Before) -> Changed {
        Changed { before: Some(before), after: self.attributes() }
    }

    /// The same attributes before and after.
    pub(crate) fn unchanged(&self) -> Changed {
        self.changed(self.before())
    }

    pub(crate) fn before(&self) -> Before {
        Before::from(&self.attributes())
    }

    /// Its attributes change at `now`: its ctime becomes later than it was, whatever the clock
    /// says. Returns it.
    pub(crate) fn touch(&mut self, now: Time) -> Time {
        let Time { mut seconds, nanoseconds } = self.ctime;
        let mut nanoseconds = nanoseconds + 1;
        if nanoseconds == 1_000_000_000 {
            (seconds, nanoseconds) = (seconds.saturating_add(1), 0);
        }
        self.ctime = now.max(Time { seconds, nanoseconds });
        self.change += 1;
        self.ctime
    }

    /// Its data or entries change at `now`.
    pub(crate) fn touch_data(&mut self, now: Time) {
        self.mtime = self.touch(now);
    }

    /// Bytes charged for it beside its pages.
    pub(crate) fn cost(&self) -> u64 {
        let body = match &self.body {
            Body::Regular(data) => data.cost(),
            Body::Directory(entries) => entries.cost(),
            Body::Symlink(path) => path.len() as u64,
            Body::Special(..) => 0,
        };
        let extended = self.extended.iter().flat_map(|all| all.iter());
        NODE_COST + body + extended.map(|(name, value)| extended_cost(name, value)).sum::<u64>()
    }
}

/// Bytes charged for an extended attribute.
pub(crate) fn extended_cost(name: &[u8], value: &[u8]) -> u64 {
    (128 + name.len() + value.len()) as u64
}
