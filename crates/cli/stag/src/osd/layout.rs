//! The layout of a tree of files in a partition: the attributes of a file, and the parts of the OSD
//! standard that it uses. docs/src/objects/tree.md describes it; change both together.
//!
//! Every file is a user object. A directory is a user object and a collection, whose members are
//! the files in it; the object names the collection. A file that has several names is an object in
//! no directory. Each of its names is a user object of kind [`Kind::Link`] that points to it.

use iscsi_client::objects::{Attribute, Listed, number};
use osd::attributes::numbers::user_information;
use osd::{AttributeId, ObjectType, Page};

use super::local::{Kind, Meta, Time};

pub const FILE: Page = Page::of(ObjectType::User, 0x53_5446);
/// The page of a file's extended attributes.
pub const XATTRS: Page = Page::of(ObjectType::User, 0x53_5458);
/// The page of a partition that holds a tree.
pub const TREE: Page = Page::of(ObjectType::Partition, 0x53_5454);

/// The file's name in its directory, as bytes.
pub const NAME: AttributeId = AttributeId::new(FILE, 1);
/// Its kind: 1 byte.
pub const KIND: AttributeId = AttributeId::new(FILE, 2);
/// Its permissions: 4 bytes.
pub const MODE: AttributeId = AttributeId::new(FILE, 3);
/// Its owner and group: 4 bytes each.
pub const OWNER: AttributeId = AttributeId::new(FILE, 4);
/// Time of the last modification: 8 bytes of seconds since 1970, two's complement, and 4 of
/// nanoseconds.
pub const MTIME: AttributeId = AttributeId::new(FILE, 5);
/// Time of the last read, in the same form.
pub const ATIME: AttributeId = AttributeId::new(FILE, 6);
/// Target of a symlink, as bytes.
pub const TARGET: AttributeId = AttributeId::new(FILE, 7);
/// A device's major and minor number: 4 bytes each.
pub const DEVICE: AttributeId = AttributeId::new(FILE, 8);
/// A directory's collection: 8 bytes.
pub const COLLECTION: AttributeId = AttributeId::new(FILE, 9);
/// The object that a link is a name of: 8 bytes.
pub const LINK: AttributeId = AttributeId::new(FILE, 10);
/// On an object that is incomplete or has no name yet: the time at which it was begun, 8 bytes of
/// milliseconds since 1970. Removed once the object is complete.
pub const UNFINISHED: AttributeId = AttributeId::new(FILE, 11);
/// On an unfinished object that is about to be removed as one that was left behind: 1 byte. A put
/// that finishes it fails.
pub const LEFT_BEHIND: AttributeId = AttributeId::new(FILE, 12);
/// Number of extended attributes: 2 bytes; 0 if it is missing.
pub const XATTR_COUNT: AttributeId = AttributeId::new(XATTRS, 1);
/// The user object of the tree's top directory: 8 bytes.
pub const TOP: AttributeId = AttributeId::new(TREE, 1);

/// Numbers of an extended attribute: its name, and the pieces of its value.
const XATTR_STEP: u32 = 16;
/// Bytes of a value's piece: the longest extended attribute of Linux has 65536, more than an
/// attribute holds.
const XATTR_PIECE: usize = 32 << 10;
/// Extended attributes of a file at most.
const XATTRS_MOST: usize = 4096;

/// The attributes requested for a listing.
pub const LISTED: [AttributeId; 12] = [
    NAME,
    KIND,
    MODE,
    OWNER,
    MTIME,
    ATIME,
    TARGET,
    DEVICE,
    COLLECTION,
    LINK,
    XATTR_COUNT,
    user_information::LOGICAL_LENGTH,
];

/// A file of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u64,
    pub name: Vec<u8>,
    /// Its properties, without extended attributes.
    pub meta: Meta,
    /// Whether it has extended attributes.
    pub has_xattrs: bool,
    pub collection: Option<u64>,
    /// The object that a link is a name of.
    pub link: Option<u64>,
}

/// The attributes that make `meta` a file of the tree, except for its name and place.
pub fn attributes(meta: &Meta) -> Vec<Attribute> {
    let pair = |(a, b): (u32, u32)| [a.to_be_bytes(), b.to_be_bytes()].concat();
    let time = |time: Time| [&time.s.to_be_bytes()[..], &time.ns.to_be_bytes()].concat();
    let mut set = vec![
        Attribute::new(KIND, [meta.kind as u8]),
        Attribute::new(MODE, meta.mode.to_be_bytes()),
        Attribute::new(OWNER, pair((meta.uid, meta.gid))),
        Attribute::new(MTIME, time(meta.mtime)),
        Attribute::new(ATIME, time(meta.atime)),
    ];
    set.extend(meta.target.as_ref().map(|target| Attribute::new(TARGET, target.as_slice())));
    if matches!(meta.kind, Kind::Character | Kind::Block) {
        set.push(Attribute::new(DEVICE, pair(meta.device)));
    }
    let count = meta.xattrs.len().min(XATTRS_MOST);
    if count > 0 {
        set.push(Attribute::new(XATTR_COUNT, (count as u16).to_be_bytes()));
    }
    for ((name, value), at) in meta.xattrs.iter().take(XATTRS_MOST).zip(1u32..) {
        let first = at * XATTR_STEP;
        set.push(Attribute::new(AttributeId::new(XATTRS, first), name.as_slice()));
        for (piece, number) in value.chunks(XATTR_PIECE).zip(first + 1..) {
            set.push(Attribute::new(AttributeId::new(XATTRS, number), piece));
        }
    }
    set
}

/// The attribute of an unfinished object begun now.
pub fn unfinished() -> Attribute {
    Attribute::number(UNFINISHED, now_ms())
}

pub fn finished() -> Attribute {
    Attribute::new(UNFINISHED, [])
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a file of a list; `None` for an object that is no file.
pub fn entry(listed: &Listed) -> Option<Entry> {
    let value = |id| listed.value(id);
    let pair = |id| -> Option<(u32, u32)> {
        let (a, b) = value(id)?.split_at_checked(4)?;
        Some((u32::from_be_bytes(a.try_into().ok()?), u32::from_be_bytes(b.try_into().ok()?)))
    };
    let time = |id| -> Option<Time> {
        let (s, ns) = value(id)?.split_at_checked(8)?;
        let ns = u32::from_be_bytes(ns.try_into().ok()?);
        Some(Time { s: i64::from_be_bytes(s.try_into().ok()?), ns: ns.min(999_999_999) })
    };
    let kind = Kind::from_code(*value(KIND)?.first()?)?;
    let (uid, gid) = pair(OWNER).unwrap_or_default();
    let mode = value(MODE).and_then(number).unwrap_or(0o600);
    Some(Entry {
        id: listed.id.object,
        name: value(NAME).unwrap_or_default().to_vec(),
        meta: Meta {
            kind,
            mode: u32::try_from(mode).unwrap_or(0) & 0o7777,
            uid,
            gid,
            mtime: time(MTIME).unwrap_or_default(),
            atime: time(ATIME).unwrap_or_default(),
            size: match kind {
                Kind::Regular => listed.number(user_information::LOGICAL_LENGTH).unwrap_or(0),
                _ => 0,
            },
            device: pair(DEVICE).unwrap_or_default(),
            target: value(TARGET).map(<[u8]>::to_vec),
            xattrs: Vec::new(),
            shared: None,
        },
        has_xattrs: value(XATTR_COUNT).is_some(),
        collection: listed.number(COLLECTION),
        link: listed.number(LINK),
    })
}

/// Reads extended attributes from all attributes of their page.
pub fn xattrs(attributes: &[Attribute]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found: Vec<(u32, &[u8])> = attributes
        .iter()
        .filter(|one| one.id.page == XATTRS && one.id.number >= XATTR_STEP && !one.value.is_empty())
        .map(|one| (one.id.number, one.value.as_slice()))
        .collect();
    found.sort_unstable();
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut current = 0;
    for (number, value) in found {
        match number % XATTR_STEP {
            0 => {
                current = number;
                xattrs.push((value.to_vec(), Vec::new()));
            }
            // A piece without a name before it is ignored.
            _ if number - number % XATTR_STEP == current && current != 0 => {
                if let Some((_, whole)) = xattrs.last_mut() {
                    whole.extend_from_slice(value);
                }
            }
            _ => {}
        }
    }
    xattrs
}

/// Whether a name may be made in a directory here: one that came from elsewhere could lead out of
/// it.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use osd::Id;

    use super::*;

    fn meta(kind: Kind) -> Meta {
        Meta {
            kind,
            mode: 0o4755,
            uid: 1000,
            gid: u32::MAX - 1,
            mtime: Time { s: -1, ns: 5 },
            atime: Time { s: 1 << 40, ns: 0 },
            size: 77,
            device: (0, 0),
            target: None,
            xattrs: Vec::new(),
            shared: None,
        }
    }

    fn listed(mut attributes: Vec<Attribute>, name: &[u8]) -> Listed {
        attributes.push(Attribute::new(NAME, name));
        attributes.push(Attribute::number(user_information::LOGICAL_LENGTH, 77));
        Listed { id: Id::new(0x10000, 0x10009), attributes }
    }

    #[test]
    fn what_is_kept_of_a_file_is_the_file() {
        let link = Meta { target: Some(b"../x\xff".to_vec()), size: 0, ..meta(Kind::Symlink) };
        let device = Meta { device: (8, 1 << 20), size: 0, ..meta(Kind::Block) };
        for one in [meta(Kind::Regular), link, device] {
            let entry = entry(&listed(attributes(&one), b"n\n")).unwrap();
            assert_eq!((entry.meta, entry.name.as_slice(), entry.id), (one, &b"n\n"[..], 0x10009));
        }
        assert_eq!(entry(&listed(Vec::new(), b"no file")), None);
        assert_eq!(entry(&listed(vec![Attribute::new(KIND, [99])], b"x")), None);
    }

    #[test]
    fn extended_attributes_of_every_length_come_back() {
        let long = |len: usize| (0..len).map(|n| n as u8).collect::<Vec<u8>>();
        let mut one = meta(Kind::Regular);
        one.xattrs = [0, 1, XATTR_PIECE - 1, XATTR_PIECE, XATTR_PIECE + 1, 65536]
            .into_iter()
            .map(|len| (format!("user.{len}").into_bytes(), long(len)))
            .collect();
        let kept = attributes(&one);
        assert!(kept.iter().all(|one| one.value.len() <= XATTR_PIECE));
        assert_eq!(xattrs(&kept), one.xattrs);
        // Pieces without a name are ignored.
        let stray = [Attribute::new(AttributeId::new(XATTRS, 17), b"x".to_vec())];
        assert_eq!(xattrs(&stray), []);
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_none() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_name(b"\xff\n..") && is_name(&[b'x'; 255]));
    }
}
