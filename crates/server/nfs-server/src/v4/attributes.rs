//! Attributes: which are served, their values, and what a client may set (RFC 8881 §5).

use std::fmt::Write;

use arrayvec::ArrayString;
use nfs::v4::attribute::*;
use nfs::v4::{
    Attributes, Bitmap, Device, Fattr, FileType, Fsid, Handle, Outcome, SETTABLE, SetTime, Status, Text,
    Time, WRITE_ONLY,
};
use rpc::xdr::Opaque;
use tree::{NodeId, SetAttributes, Space};

use super::compound::{Compound, Place};
use super::convert;
use crate::file::File;
use crate::handle::Bytes;
use crate::pseudo::ROOT;
use crate::records::MOST_DATA;

/// Attributes that can be read.
const READABLE: Bitmap = Bitmap::of(&[
    SUPPORTED_ATTRS,
    TYPE,
    FH_EXPIRE_TYPE,
    CHANGE,
    SIZE,
    LINK_SUPPORT,
    SYMLINK_SUPPORT,
    NAMED_ATTR,
    FSID,
    UNIQUE_HANDLES,
    LEASE_TIME,
    RDATTR_ERROR,
    CANSETTIME,
    CASE_INSENSITIVE,
    CASE_PRESERVING,
    CHOWN_RESTRICTED,
    FILEHANDLE,
    FILEID,
    FILES_AVAIL,
    FILES_FREE,
    FILES_TOTAL,
    HOMOGENEOUS,
    MAXFILESIZE,
    MAXLINK,
    MAXNAME,
    MAXREAD,
    MAXWRITE,
    MODE,
    NO_TRUNC,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    RAWDEV,
    SPACE_AVAIL,
    SPACE_FREE,
    SPACE_TOTAL,
    SPACE_USED,
    TIME_ACCESS,
    TIME_DELTA,
    TIME_METADATA,
    TIME_MODIFY,
    MOUNTED_ON_FILEID,
    SUPPATTR_EXCLCREAT,
]);

/// Attributes that EXCLUSIVE4_1 can set.
pub(super) const WITH_EXCLUSIVE: Bitmap = Bitmap::of(&[SIZE, MODE, OWNER, OWNER_GROUP, MODE_UMASK]);

/// Those that the file system has to be asked for.
const OF_SPACE: Bitmap =
    Bitmap::of(&[FILES_AVAIL, FILES_FREE, FILES_TOTAL, SPACE_AVAIL, SPACE_FREE, SPACE_TOTAL]);

/// Attributes that can be read or set.
fn supported(minor: u32) -> Bitmap {
    let all = READABLE.with(TIME_ACCESS_SET).with(TIME_MODIFY_SET);
    if minor < 2 { all } else { all.with(MODE_UMASK).with(XATTR_SUPPORT) }
}

/// Bytes that an attribute takes in an entry of a directory at most.
pub(super) fn size(requested: Bitmap) -> usize {
    let one = |number| match number {
        FILEHANDLE => 4 + crate::handle::MOST.next_multiple_of(4),
        SUPPORTED_ATTRS | SUPPATTR_EXCLCREAT | OWNER | OWNER_GROUP | FSID => 16,
        TIME_ACCESS | TIME_METADATA | TIME_MODIFY | TIME_DELTA => 12,
        _ => 8,
    };
    requested.and(READABLE.with(XATTR_SUPPORT)).iter().map(one).sum()
}

/// A user or a group in digits.
type Digits = ArrayString<10>;

fn digits(id: u32) -> Digits {
    let mut digits = Digits::new();
    // Ten digits hold 32 bits.
    let _ = write!(digits, "{id}");
    digits
}

/// A file's attributes with what their values lie in.
pub(super) struct Known {
    of: Of,
    handle: Bytes,
    owner: Digits,
    group: Digits,
    space: Option<Space>,
    lease_s: u32,
    minor: u32,
}

/// The attributes whose source differs between files and the directories above them.
enum Of {
    File { attributes: tree::Attributes, limits: tree::TreeLimits, fsid: Fsid, mounted_on: u64 },
    Above { id: u64, change: u64, children: usize, fsid: Fsid },
}

impl Known {
    fn new(c: &Compound<'_>, of: Of, handle: Bytes, (owner, group): (u32, u32)) -> Self {
        Self {
            of,
            handle,
            owner: digits(owner),
            group: digits(group),
            space: None,
            lease_s: c.client.shared.state.lease_s,
            minor: c.minor,
        }
    }

    /// Those of a file whose attributes are known already, in the export of `beside`.
    fn of(c: &Compound<'_>, beside: &File, node: &NodeId, of: tree::Attributes, mounted_on: u64) -> Self {
        let fsid = Fsid { major: beside.export.id.0, minor: of.fsid };
        let owners = (of.uid, of.gid);
        let of = Of::File { attributes: of, limits: beside.tree().limits(), fsid, mounted_on };
        Self::new(c, of, c.model.handle(&beside.export, node), owners)
    }

    /// Those of a directory's entry.
    pub(super) fn entry(c: &Compound<'_>, directory: &File, node: &NodeId, of: tree::Attributes) -> Self {
        Self::of(c, directory, node, of, of.fileid)
    }

    fn above(c: &Compound<'_>, place: &Place, node: usize) -> Self {
        let pseudo = &c.model.pseudo;
        let fsid = Fsid { major: pseudo.export.0, minor: 0 };
        let node = &pseudo.nodes[node];
        let of = Of::Above { id: node.id, change: node.change, children: node.children.len(), fsid };
        Self::new(c, of, c.handle(place), (0, 0))
    }

    /// Those of a place as they are now, as far as they are requested.
    pub(super) async fn now(c: &Compound<'_>, place: &Place, requested: Bitmap) -> Result<Self, Status> {
        let file = match place {
            Place::File(file) => file,
            Place::Above(node) => return Ok(Self::above(c, place, *node)),
        };
        let of = file.now().await?;
        let mounted_on = match c.mounted(file) {
            Some(node) if node != ROOT => c.model.pseudo.nodes[node].id,
            _ => of.fileid,
        };
        let mut known = Self::of(c, file, &file.node, of, mounted_on);
        if !requested.and(OF_SPACE).is_empty() {
            known.space = Some(file.done(file.tree().space(&file.caller, &file.node).await)?);
        }
        Ok(known)
    }

    /// The values.
    pub(super) fn attributes(&self) -> Attributes<'_> {
        let common = Attributes {
            supported_attrs: Some(supported(self.minor)),
            fh_expire_type: Some(0),
            link_support: Some(true),
            symlink_support: Some(true),
            named_attr: Some(false),
            unique_handles: Some(true),
            lease_time_s: Some(self.lease_s),
            rdattr_error: Some(Outcome::Ok(())),
            can_set_time: Some(true),
            case_insensitive: Some(false),
            case_preserving: Some(true),
            chown_restricted: Some(true),
            filehandle: Handle::new(&self.handle).ok(),
            homogeneous: Some(true),
            max_read: Some(MOST_DATA.into()),
            max_write: Some(MOST_DATA.into()),
            no_truncation: Some(true),
            owner: Opaque::new(self.owner.as_bytes()).ok(),
            owner_group: Opaque::new(self.group.as_bytes()).ok(),
            suppattr_exclcreat: Some(WITH_EXCLUSIVE.and(supported(self.minor))),
            files_avail: Some(self.space.map_or(0, |space| space.files_free)),
            files_free: Some(self.space.map_or(0, |space| space.files_free)),
            files_total: Some(self.space.map_or(0, |space| space.files)),
            space_avail: Some(self.space.map_or(0, |space| space.available)),
            space_free: Some(self.space.map_or(0, |space| space.free)),
            space_total: Some(self.space.map_or(0, |space| space.bytes)),
            ..Attributes::default()
        };
        match &self.of {
            Of::File { attributes: of, limits, fsid, mounted_on } => Attributes {
                kind: Some(convert::kind(of.kind)),
                change: Some(of.change),
                size: Some(of.size),
                fsid: Some(*fsid),
                fileid: Some(of.fileid),
                max_file_size: Some(limits.file_size),
                max_links: Some(limits.links),
                max_name: Some(limits.name),
                mode: Some(of.mode & 0o7777),
                links: Some(of.links),
                device: Some(Device { major: of.device.major, minor: of.device.minor }),
                space_used: Some(of.used),
                atime: Some(convert::time(of.atime)),
                time_delta: Some(convert::time(limits.time)),
                ctime: Some(convert::time(of.ctime)),
                mtime: Some(convert::time(of.mtime)),
                mounted_on_fileid: Some(*mounted_on),
                xattr_support: (self.minor > 1).then_some(limits.extended_attributes),
                ..common
            },
            Of::Above { id, change, children, fsid } => Attributes {
                kind: Some(FileType::Directory),
                change: Some(*change),
                size: Some(4096),
                fsid: Some(*fsid),
                fileid: Some(*id),
                max_file_size: Some(i64::MAX as u64),
                max_links: Some(u32::MAX),
                max_name: Some(255),
                mode: Some(0o555),
                links: Some(2 + *children as u32),
                device: Some(Device::default()),
                space_used: Some(0),
                atime: Some(Time::default()),
                time_delta: Some(Time { seconds: 0, nanoseconds: 1 }),
                ctime: Some(Time::default()),
                mtime: Some(Time::default()),
                mounted_on_fileid: Some(*id),
                xattr_support: (self.minor > 1).then_some(false),
                ..common
            },
        }
    }
}

/// Whether attributes can be asked for.
///
/// # Errors
/// INVAL for those that can only be set.
pub(super) fn readable(requested: Bitmap) -> Result<(), Status> {
    if requested.and(WRITE_ONLY).is_empty() { Ok(()) } else { Err(Status::Inval) }
}

/// Whether VERIFY and NVERIFY can compare these.
///
/// # Errors
/// INVAL, ATTRNOTSUPP.
pub(super) fn comparable(given: Bitmap, minor: u32) -> Result<(), Status> {
    readable(given)?;
    if given.contains(RDATTR_ERROR) {
        return Err(Status::Inval);
    }
    if given.minus(supported(minor)).is_empty() { Ok(()) } else { Err(Status::AttrNotSupp) }
}

fn id(text: Text<'_>) -> Result<u32, Status> {
    text.text().and_then(|digits| digits.parse().ok()).ok_or(Status::BadOwner)
}

/// The attributes that a client asks to set.
///
/// # Errors
/// INVAL, ATTRNOTSUPP, BADOWNER, BADXDR.
pub(super) fn to_set(of: &Fattr<'_>, minor: u32) -> Result<SetAttributes, Status> {
    let asked = of.set();
    if !asked.minus(supported(minor)).is_empty() {
        return Err(Status::AttrNotSupp);
    }
    if !asked.minus(SETTABLE).is_empty() {
        return Err(Status::Inval);
    }
    let given = of.attributes()?;
    let time = |time: Option<SetTime>| match time {
        None => Ok(tree::SetTime::Keep),
        Some(SetTime::Server(())) => Ok(tree::SetTime::Now),
        Some(SetTime::Client(Time { seconds, nanoseconds })) if nanoseconds < 1_000_000_000 => {
            Ok(tree::SetTime::To(tree::Time { seconds, nanoseconds }))
        }
        Some(SetTime::Client(_)) => Err(Status::Inval),
    };
    let mode = match (given.mode, given.mode_umask) {
        (Some(_), Some(_)) => return Err(Status::Inval),
        (Some(mode), None) => Some(mode),
        (None, masked) => masked.map(|masked| masked.mode & !(masked.umask & 0o777)),
    };
    if mode.is_some_and(|mode| mode & !0o7777 != 0) {
        return Err(Status::Inval);
    }
    Ok(SetAttributes {
        mode,
        uid: given.owner.map(id).transpose()?,
        gid: given.owner_group.map(id).transpose()?,
        size: given.size,
        atime: time(given.atime_set)?,
        mtime: time(given.mtime_set)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(of: &Attributes<'_>) -> Result<SetAttributes, Status> {
        to_set(&Fattr::of(of), 2)
    }

    #[test]
    fn owners_are_digits() {
        let owner = |owner: &'static [u8]| Attributes {
            owner: Some(Opaque::new(owner).unwrap()),
            ..Attributes::default()
        };
        assert_eq!(set(&owner(b"4294967295")).unwrap().uid, Some(u32::MAX));
        for bad in [&b"root@example.org"[..], b"", b"4294967296", b"-1", &[0xff]] {
            assert_eq!(set(&owner(bad)), Err(Status::BadOwner));
        }
    }

    #[test]
    fn a_mode_is_given_once_and_masked() {
        let umask = Some(nfs::v4::ModeUmask { mode: 0o666, umask: 0o027 });
        let masked = Attributes { mode_umask: umask, ..Attributes::default() };
        assert_eq!(set(&masked).unwrap().mode, Some(0o640));
        assert_eq!(to_set(&Fattr::of(&masked), 1), Err(Status::AttrNotSupp));
        let both = Attributes { mode: Some(0o600), mode_umask: umask, ..Attributes::default() };
        assert_eq!(set(&both), Err(Status::Inval));
        let far = Attributes { mode: Some(0o10000), ..Attributes::default() };
        assert_eq!(set(&far), Err(Status::Inval));
    }

    #[test]
    fn what_can_only_be_read_is_not_set_and_the_other_way_round() {
        let change = Attributes { change: Some(1), ..Attributes::default() };
        assert_eq!(set(&change), Err(Status::Inval));
        assert_eq!(readable(Bitmap::of(&[TIME_ACCESS_SET])), Err(Status::Inval));
        assert_eq!(comparable(Bitmap::of(&[SIZE, TIME_BACKUP]), 2), Err(Status::AttrNotSupp));
    }
}
