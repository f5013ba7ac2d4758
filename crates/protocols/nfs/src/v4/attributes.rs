//! Attributes of files (RFC 8881 §5, RFC 7862 §12, RFC 8275 §5, RFC 8276 §8): their types, and
//! [`Attributes`], a set of values.

use rpc::xdr::{List, Opaque};
use rpc::{xdr_enum, xdr_struct, xdr_union};

use super::fattr::attributes;
use super::{Bitmap, Handle, Name, Outcome, Text};
pub use crate::v3::Device;

xdr_enum! {
    /// `nfs_ftype4`.
    pub enum FileType {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3,
        /// A character device.
        Character = 4,
        /// A symbolic link.
        Symlink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
        /// A directory of named attributes.
        AttrDir = 8,
        /// A named attribute.
        NamedAttr = 9,
    }

    /// `change_attr_type4`: the way in which `change` changes (RFC 7862 §12.2.3).
    pub enum ChangeAttrType {
        /// It grows with every change.
        MonotonicIncr = 0,
        /// It counts the changes.
        VersionCounter = 1,
        /// It counts the changes, unless pNFS is in use.
        VersionCounterNoPnfs = 2,
        /// It is the time of the last change of the metadata.
        TimeMetadata = 3,
        /// Nothing.
        Undefined = 4,
    }
}

xdr_struct! {
    /// `nfstime4`, since 1970.
    #[derive(Copy, Default, Hash, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds.
        pub seconds: i64,
        /// Nanoseconds, below 10⁹.
        pub nanoseconds: u32,
    }

    /// `fsid4`: a file system.
    #[derive(Copy, Default, Hash)]
    pub struct Fsid {
        /// The first part.
        pub major: u64,
        /// The second part.
        pub minor: u64,
    }

    /// `change_policy4`.
    #[derive(Copy, Default)]
    pub struct ChangePolicy {
        /// The first part.
        pub major: u64,
        /// The second part.
        pub minor: u64,
    }

    /// `fs_location4`.
    #[derive(Copy)]
    pub struct FsLocation<'a> {
        /// Names or addresses of the server.
        pub servers: List<'a, Text<'a>>,
        /// The file system's path there.
        pub root: List<'a, Name<'a>>,
    }

    /// `fs_locations4`.
    #[derive(Copy)]
    pub struct FsLocations<'a> {
        /// The file system's path here.
        pub root: List<'a, Name<'a>>,
        /// Other places of the file system.
        pub locations: List<'a, FsLocation<'a>>,
    }

    /// `mode_masked4`.
    #[derive(Copy, Default)]
    pub struct ModeMasked {
        /// The bits to set.
        pub value: u32,
        /// The bits of the mode that change.
        pub mask: u32,
    }

    /// `mode_umask4` (RFC 8275 §5).
    #[derive(Copy, Default)]
    pub struct ModeUmask {
        /// The mode without the umask.
        pub mode: u32,
        /// The umask, which an inherited ACL replaces.
        pub umask: u32,
    }

    /// `sec_label4` (RFC 7862 §12.2.4).
    #[derive(Copy)]
    pub struct SecLabel<'a> {
        /// The label's format.
        pub lfs: u32,
        /// The policy identifier.
        pub pi: u32,
        /// The label.
        pub data: Text<'a>,
    }

    /// `nfsace4`, an entry of an access control list.
    #[derive(Copy)]
    pub struct Ace<'a> {
        /// `ACE4_*_ACE_TYPE`.
        pub kind: u32,
        /// `ACE4_*_ACE` and others.
        pub flag: u32,
        /// The accesses.
        pub mask: u32,
        /// Whom it is about.
        pub who: Text<'a>,
    }
}

xdr_union! {
    /// `settime4`.
    #[derive(Copy)]
    pub enum SetTime {
        /// SET_TO_SERVER_TIME: now.
        Server(()) = 0,
        /// SET_TO_CLIENT_TIME: this time.
        Client(Time) = 1,
    }
}

impl Ace<'_> {
    /// An entry that grants no access: a delegation without a promise of access.
    pub const NONE: Self = Ace { kind: 0, flag: 0, mask: 0, who: Opaque::EMPTY };
}

attributes! {
    /// Attributes of a file: those that are Some. ACLs, retention, `fs_status`,
    /// `fs_locations_info` and layout hints are unknown here.
    pub struct Attributes<'a>;
    /// The attributes that the server supports.
    0 SUPPORTED_ATTRS supported_attrs: Bitmap;
    /// Type of the file.
    1 TYPE kind: FileType;
    /// Whether and when handles expire; 0 is never.
    2 FH_EXPIRE_TYPE fh_expire_type: u32;
    /// Differs after each change of data or metadata.
    3 CHANGE change: u64;
    /// Size, bytes.
    4 SIZE size: u64;
    /// The file system has hard links.
    5 LINK_SUPPORT link_support: bool;
    /// The file system has symbolic links.
    6 SYMLINK_SUPPORT symlink_support: bool;
    /// The file has named attributes.
    7 NAMED_ATTR named_attr: bool;
    /// File system.
    8 FSID fsid: Fsid;
    /// Two handles that differ are two files.
    9 UNIQUE_HANDLES unique_handles: bool;
    /// The lease, seconds.
    10 LEASE_TIME lease_time_s: u32;
    /// READDIR: why this entry has no attributes.
    11 RDATTR_ERROR rdattr_error: Outcome<()>;
    /// The supported kinds of ACL entries.
    13 ACLSUPPORT acl_support: u32;
    /// The file is archived.
    14 ARCHIVE archive: bool;
    /// SETATTR can set times.
    15 CANSETTIME can_set_time: bool;
    /// Case does not distinguish names.
    16 CASE_INSENSITIVE case_insensitive: bool;
    /// Case of names is kept.
    17 CASE_PRESERVING case_preserving: bool;
    /// Only root changes owners.
    18 CHOWN_RESTRICTED chown_restricted: bool;
    /// The file's handle.
    19 FILEHANDLE filehandle: Handle<'a>;
    /// Identity within the file system: the inode number.
    20 FILEID fileid: u64;
    /// Files that the caller can add.
    21 FILES_AVAIL files_avail: u64;
    /// Files that can be added.
    22 FILES_FREE files_free: u64;
    /// Files that there can be.
    23 FILES_TOTAL files_total: u64;
    /// Other places of the file system.
    24 FS_LOCATIONS fs_locations: FsLocations<'a>;
    /// The file is hidden.
    25 HIDDEN hidden: bool;
    /// `maxlink`, `maxname` and others are the same for all files.
    26 HOMOGENEOUS homogeneous: bool;
    /// The largest file, bytes.
    27 MAXFILESIZE max_file_size: u64;
    /// The most hard links of a file.
    28 MAXLINK max_links: u32;
    /// The longest name, bytes.
    29 MAXNAME max_name: u32;
    /// The most bytes of a READ.
    30 MAXREAD max_read: u64;
    /// The most bytes of a WRITE.
    31 MAXWRITE max_write: u64;
    /// The MIME type.
    32 MIMETYPE mime_type: Text<'a>;
    /// Permission bits, set-user-ID, set-group-ID and sticky: 07777.
    33 MODE mode: u32;
    /// A longer name is an error, and is not truncated.
    34 NO_TRUNC no_truncation: bool;
    /// Hard links.
    35 NUMLINKS links: u32;
    /// Owner: `user@domain`, or the user ID in digits.
    36 OWNER owner: Text<'a>;
    /// Group: `group@domain`, or the group ID in digits.
    37 OWNER_GROUP owner_group: Text<'a>;
    /// Left of the hard quota, bytes.
    38 QUOTA_AVAIL_HARD quota_avail_hard: u64;
    /// Left of the soft quota, bytes.
    39 QUOTA_AVAIL_SOFT quota_avail_soft: u64;
    /// Used of the quota, bytes.
    40 QUOTA_USED quota_used: u64;
    /// Numbers, if it is a device.
    41 RAWDEV device: Device;
    /// Free for the caller, bytes.
    42 SPACE_AVAIL space_avail: u64;
    /// Free, bytes.
    43 SPACE_FREE space_free: u64;
    /// Size of the file system, bytes.
    44 SPACE_TOTAL space_total: u64;
    /// Space that the file takes, bytes.
    45 SPACE_USED space_used: u64;
    /// A system file.
    46 SYSTEM system: bool;
    /// Last read.
    47 TIME_ACCESS atime: Time;
    /// SETATTR: the time of the last read.
    48 TIME_ACCESS_SET atime_set: SetTime;
    /// Last backup.
    49 TIME_BACKUP time_backup: Time;
    /// Creation.
    50 TIME_CREATE time_create: Time;
    /// The steps of times.
    51 TIME_DELTA time_delta: Time;
    /// Last change of the metadata.
    52 TIME_METADATA ctime: Time;
    /// Last change of the data.
    53 TIME_MODIFY mtime: Time;
    /// SETATTR: the time of the last change of the data.
    54 TIME_MODIFY_SET mtime_set: SetTime;
    /// The identity of the directory that the file system's root is mounted on; else `fileid`.
    55 MOUNTED_ON_FILEID mounted_on_fileid: u64;
    /// Delay of notifications of a directory's changes.
    56 DIR_NOTIF_DELAY dir_notif_delay: Time;
    /// Delay of notifications of changes of a directory's files.
    57 DIRENT_NOTIF_DELAY dirent_notif_delay: Time;
    /// Differs after a change of policies.
    60 CHANGE_POLICY change_policy: ChangePolicy;
    /// Layout types of the file system.
    62 FS_LAYOUT_TYPES fs_layout_types: List<'a, u32>;
    /// Layout types of the file.
    64 LAYOUT_TYPES layout_types: List<'a, u32>;
    /// Preferred block size of I/O through a layout, bytes.
    65 LAYOUT_BLKSIZE layout_blksize: u32;
    /// Preferred alignment of I/O through a layout, bytes.
    66 LAYOUT_ALIGNMENT layout_alignment: u32;
    /// SETATTR: some bits of the mode.
    74 MODE_SET_MASKED mode_set_masked: ModeMasked;
    /// Attributes that EXCLUSIVE4_1 of OPEN can set.
    75 SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap;
    /// Whether names are UTF-8.
    76 FS_CHARSET_CAP fs_charset_cap: u32;
    /// Alignment of CLONE's ranges, bytes.
    77 CLONE_BLKSIZE clone_blksize: u32;
    /// Space that removing the file would free, bytes.
    78 SPACE_FREED space_freed: u64;
    /// The way in which `change` changes, from which a client may draw conclusions.
    79 CHANGE_ATTR_TYPE change_attr_type: ChangeAttrType;
    /// The security label.
    80 SEC_LABEL sec_label: SecLabel<'a>;
    /// OPEN and CREATE: the mode, and the umask apart.
    81 MODE_UMASK mode_umask: ModeUmask;
    /// The file can have extended attributes.
    82 XATTR_SUPPORT xattr_support: bool;
}

/// Attributes that SETATTR, CREATE or OPEN may set; all else is read-only (RFC 8881 §5.5).
pub const SETTABLE: Bitmap = Bitmap::of(&[
    attribute::SIZE,
    attribute::ARCHIVE,
    attribute::HIDDEN,
    attribute::MIMETYPE,
    attribute::MODE,
    attribute::OWNER,
    attribute::OWNER_GROUP,
    attribute::SYSTEM,
    attribute::TIME_BACKUP,
    attribute::TIME_CREATE,
    attribute::SEC_LABEL,
])
.or(WRITE_ONLY);

/// Attributes that can be set and not read: INVAL in GETATTR, READDIR, VERIFY and NVERIFY (RFC 8881
/// §5.5).
pub const WRITE_ONLY: Bitmap = Bitmap::of(&[
    attribute::TIME_ACCESS_SET,
    attribute::TIME_MODIFY_SET,
    attribute::MODE_SET_MASKED,
    attribute::MODE_UMASK,
]);
