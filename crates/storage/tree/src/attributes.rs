//! Attributes of files: those that a tree reports, and those that it can set.

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    Block,
    /// A character device.
    Character,
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// A device's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Device {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// A time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹.
    pub nanoseconds: u32,
}

/// A file's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Type.
    pub kind: Kind,
    /// Permission bits, set-user-ID, set-group-ID and sticky: 07777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size, bytes.
    pub size: u64,
    /// Space that it takes, bytes.
    pub used: u64,
    /// Numbers, if it is a device.
    pub device: Device,
    /// The file system within the tree; 0 if the tree has one only.
    pub fsid: u64,
    /// Number of the file, unique within its file system for as long as the file exists.
    pub fileid: u64,
    /// Differs after each change of data or attributes (RFC 8881 §5.8.1.4).
    pub change: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// Time of creation, if known.
    pub created: Option<Time>,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's time. Requires write permission.
    Now,
    /// This time. Only the owner may set it.
    To(Time),
}

/// Attributes to set. `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits: 07777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, bytes: cut, or extended with zeros.
    pub size: Option<u64>,
    /// Last read.
    pub atime: SetTime,
    /// Last change of the data.
    pub mtime: SetTime,
}

impl SetAttributes {
    /// Whether nothing is to be set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Attributes of a file before a change. A client learns from them whether another change came
/// between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Size, bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// [`Attributes::change`].
    pub change: u64,
}

impl From<&Attributes> for Before {
    fn from(file: &Attributes) -> Self {
        Self { size: file.size, mtime: file.mtime, ctime: file.ctime, change: file.change }
    }
}

/// A file around a change. `before` is present only if no other change can have come between it and
/// `after`. Without it a client drops its cache; with a wrong one it keeps stale data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Before.
    pub before: Option<Before>,
    /// After.
    pub after: Attributes,
}

impl Attributes {
    /// A file for tests.
    #[cfg(test)]
    pub(crate) fn example(kind: Kind) -> Self {
        Self {
            kind,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            device: Device::default(),
            fsid: 0,
            fileid: 1,
            change: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            created: None,
        }
    }
}
