//! Attributes and results of both versions of NFS, in one form.

use std::rc::Rc;

use nfs::{v3, v4};

use crate::error::Error;

pub use nfs::v4::{FileType, Time};

/// A file handle: the server's name for a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Handle(Rc<[u8]>);

impl Handle {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Handle(bytes.into())
    }

    pub(crate) fn v3(&self) -> v3::Handle<'_> {
        // Handles come from the server, whose type has this limit.
        v3::Handle::new(&self.0).unwrap_or(v3::Handle::EMPTY)
    }

    pub(crate) fn v4(&self) -> v4::Handle<'_> {
        v4::Handle::new(&self.0).unwrap_or(v4::Handle::EMPTY)
    }
}

/// Attributes of a file. An attribute that the server does not have is 0 or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Type of the file.
    pub kind: FileType,
    /// Permission bits, set-user-ID, set-group-ID and sticky: 07777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner: a number, or `user@domain`.
    pub owner: String,
    /// Group: a number, or `group@domain`.
    pub group: String,
    /// Size, bytes.
    pub size: u64,
    /// Space that the file takes, bytes.
    pub used: u64,
    /// Identity within the file system: the inode number.
    pub fileid: u64,
    /// Last change of the data.
    pub mtime: Time,
}

impl From<v3::Attributes> for Attributes {
    fn from(of: v3::Attributes) -> Self {
        Attributes {
            // Version 4 has the same numbers, and more.
            kind: FileType::from_code(of.kind.code()).unwrap_or(FileType::Regular),
            mode: of.mode & 0o7777,
            links: of.links,
            owner: of.uid.to_string(),
            group: of.gid.to_string(),
            size: of.size,
            used: of.used,
            fileid: of.fileid,
            mtime: Time { seconds: of.mtime.seconds.into(), nanoseconds: of.mtime.nanoseconds },
        }
    }
}

/// The attributes that [`Attributes`] has in version 4.
pub(crate) const WANTED: v4::Bitmap = v4::Bitmap::of(&[
    v4::attribute::TYPE,
    v4::attribute::SIZE,
    v4::attribute::FILEID,
    v4::attribute::MODE,
    v4::attribute::NUMLINKS,
    v4::attribute::OWNER,
    v4::attribute::OWNER_GROUP,
    v4::attribute::SPACE_USED,
    v4::attribute::TIME_MODIFY,
]);

impl TryFrom<&v4::Attributes<'_>> for Attributes {
    type Error = Error;

    fn try_from(of: &v4::Attributes<'_>) -> Result<Self, Error> {
        let text = |text: Option<v4::Text<'_>>| {
            text.map_or_else(String::new, |text| String::from_utf8_lossy(text.bytes()).into_owned())
        };
        Ok(Attributes {
            kind: of.kind.ok_or(Error::Nonsense("a file without a type"))?,
            mode: of.mode.unwrap_or(0) & 0o7777,
            links: of.links.unwrap_or(0),
            owner: text(of.owner),
            group: text(of.owner_group),
            size: of.size.unwrap_or(0),
            used: of.space_used.unwrap_or(0),
            fileid: of.fileid.unwrap_or(0),
            mtime: of.mtime.unwrap_or_default(),
        })
    }
}

/// Attributes to set: those that are Some.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Size, bytes.
    pub size: Option<u64>,
    /// Last change of the data.
    pub mtime: Option<Time>,
    /// Owner.
    pub owner: Option<Id>,
    /// Group.
    pub group: Option<Id>,
}

/// A user or group, as both versions write it: version 4 has decimals (RFC 8881 §5.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id {
    number: u32,
    digits: [u8; 10],
    length: u8,
}

impl From<u32> for Id {
    fn from(number: u32) -> Self {
        let (mut digits, mut length) = ([0; 10], 0);
        for (place, digit) in digits.iter_mut().zip(number.to_string().bytes()) {
            *place = digit;
            length += 1;
        }
        Id { number, digits, length }
    }
}

impl Id {
    fn text(&self) -> Option<v4::Text<'_>> {
        v4::Text::new(self.digits.get(..self.length.into())?).ok()
    }
}

impl SetAttributes {
    pub(crate) fn v3(&self) -> v3::SetAttributes {
        let time = |time: Time| {
            let seconds = u32::try_from(time.seconds.max(0)).unwrap_or(u32::MAX);
            v3::SetTime::Client(v3::Time { seconds, nanoseconds: time.nanoseconds })
        };
        v3::SetAttributes {
            mode: self.mode,
            uid: self.owner.map(|id| id.number),
            gid: self.group.map(|id| id.number),
            size: self.size,
            mtime: self.mtime.map(time).unwrap_or_default(),
            ..v3::SetAttributes::default()
        }
    }

    pub(crate) fn v4(&self) -> v4::Attributes<'_> {
        v4::Attributes {
            mode: self.mode,
            size: self.size,
            owner: self.owner.as_ref().and_then(Id::text),
            owner_group: self.group.as_ref().and_then(Id::text),
            mtime_set: self.mtime.map(v4::SetTime::Client),
            ..v4::Attributes::default()
        }
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name: no `/`, no NUL, and neither `.` nor `..`.
    pub name: Vec<u8>,
    /// The file.
    pub handle: Handle,
    /// Its attributes.
    pub attributes: Attributes,
}

/// An entry as the server gave it, possibly without a handle or attributes.
pub(crate) type Listed = (Vec<u8>, Option<(Handle, Attributes)>);

/// A place in a directory's listing.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    pub(crate) cookie: u64,
    pub(crate) verifier: [u8; 8],
    pub(crate) end: bool,
}

/// The name of a received entry. `None` for `.` and `..`.
///
/// # Errors
/// A name that no file can have: it could lead out of a directory that it is copied to.
pub(crate) fn entry_name(name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    match name {
        b"." | b".." => Ok(None),
        _ if name.is_empty() || name.contains(&b'/') || name.contains(&0) => {
            Err(Error::Nonsense("an entry of a directory has an impossible name"))
        }
        _ => Ok(Some(name.to_vec())),
    }
}

/// Space of a file system, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Size.
    pub total: u64,
    /// Free for the caller.
    pub available: u64,
}

/// Stability of written data, and the server's write verifier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub count: u32,
    pub stable: bool,
    pub verifier: [u8; 8],
}
