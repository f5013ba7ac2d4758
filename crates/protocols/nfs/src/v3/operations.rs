//! Arguments and results of the procedures (RFC 1813 §3.3).

use rpc::xdr::{Chain, Opaque};
use rpc::{xdr_enum, xdr_struct, xdr_union};

use super::attributes::{Attributes, Device, SetAttributes, Time, Wcc};
use super::readdir::{Entry, EntryPlus};
use super::{MAX_HANDLE, MAX_PATH, Verifier};

/// `nfs_fh3`.
pub type Handle<'a> = Opaque<'a, MAX_HANDLE>;
/// `filename3`: any bytes. The server answers NAMETOOLONG to more than
/// [`MAX_NAME`](super::MAX_NAME).
pub type Name<'a> = Opaque<'a, { u32::MAX as usize }>;
/// `nfspath3`: any bytes.
pub type Path<'a> = Opaque<'a, MAX_PATH>;

xdr_struct! {
    /// `diropargs3`: a name in a directory.
    #[derive(Copy)]
    pub struct DirOp<'a> {
        /// The directory.
        pub directory: Handle<'a>,
        /// The name.
        pub name: Name<'a>,
    }

    /// `SETATTR3args`.
    #[derive(Copy)]
    pub struct SetAttr<'a> {
        /// The file.
        pub object: Handle<'a>,
        /// The attributes to set.
        pub attributes: SetAttributes,
        /// Fails with NOTSYNC unless the file's ctime is this.
        pub guard: Option<Time>,
    }

    /// `LOOKUP3resok`.
    pub struct LookupOk<'a> {
        /// The file.
        pub object: Handle<'a>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory's attributes.
        pub directory: Option<Attributes>,
    }

    /// `ACCESS3args`.
    #[derive(Copy)]
    pub struct Access<'a> {
        /// The file.
        pub object: Handle<'a>,
        /// Bits of [`access`](super::access) that the client asks about.
        pub access: u32,
    }

    /// `ACCESS3resok`.
    pub struct AccessOk {
        /// The file's attributes.
        pub attributes: Option<Attributes>,
        /// Those of the asked bits that are granted.
        pub access: u32,
    }

    /// `READLINK3resok`.
    pub struct ReadLinkOk<'a> {
        /// The link's attributes.
        pub attributes: Option<Attributes>,
        /// The link's path.
        pub path: Path<'a>,
    }

    /// `READ3args`.
    #[derive(Copy)]
    pub struct Read<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// Offset, bytes.
        pub offset: u64,
        /// The most to read, bytes.
        pub count: u32,
    }

    /// `READ3resok` up to its data. The data and its padding follow.
    pub struct ReadOk {
        /// The file's attributes.
        pub attributes: Option<Attributes>,
        /// Bytes read.
        pub count: u32,
        /// The read reached the end of the file.
        pub eof: bool,
        /// Length of the data that follows, bytes; equals `count`, which the receiver checks.
        pub length: u32,
    }

    /// `WRITE3args` up to its data. The data and its padding follow.
    #[derive(Copy)]
    pub struct Write<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes to write.
        pub count: u32,
        /// Stability that the data must have before the reply.
        pub stable: Stable,
        /// Length of the data that follows, bytes; equals `count`, which the receiver checks.
        pub length: u32,
    }

    /// `WRITE3resok`.
    pub struct WriteOk {
        /// The file's consistency data.
        pub file: Wcc,
        /// Bytes written.
        pub count: u32,
        /// Stability of the written data; at least the requested one.
        pub committed: Stable,
        /// Changes when the server may have lost data that was not stable.
        pub verifier: Verifier,
    }

    /// `CREATE3args`.
    #[derive(Copy)]
    pub struct Create<'a> {
        /// Directory and name.
        pub place: DirOp<'a>,
        /// Behaviour for an existing name, and the attributes.
        pub how: CreateHow,
    }

    /// `CREATE3resok`, `MKDIR3resok`, `SYMLINK3resok` and `MKNOD3resok`.
    pub struct Created<'a> {
        /// The new object.
        pub object: Option<Handle<'a>>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory's consistency data.
        pub directory: Wcc,
    }

    /// `MKDIR3args`.
    #[derive(Copy)]
    pub struct MkDir<'a> {
        /// Directory and name.
        pub place: DirOp<'a>,
        /// The new directory's attributes.
        pub attributes: SetAttributes,
    }

    /// `SYMLINK3args`.
    #[derive(Copy)]
    pub struct Symlink<'a> {
        /// Directory and name.
        pub place: DirOp<'a>,
        /// The link's attributes.
        pub attributes: SetAttributes,
        /// The link's path.
        pub path: Path<'a>,
    }

    /// `MKNOD3args`.
    #[derive(Copy)]
    pub struct MkNod<'a> {
        /// Directory and name.
        pub place: DirOp<'a>,
        /// Type and attributes.
        pub what: NodeData,
    }

    /// `devicedata3`.
    #[derive(Copy)]
    pub struct DeviceData {
        /// The new node's attributes.
        pub attributes: SetAttributes,
        /// The device's numbers.
        pub device: Device,
    }

    /// `RENAME3args`.
    #[derive(Copy)]
    pub struct Rename<'a> {
        /// The old name.
        pub from: DirOp<'a>,
        /// The new name.
        pub to: DirOp<'a>,
    }

    /// `RENAME3resok` and `RENAME3resfail`.
    pub struct Renamed {
        /// Consistency data of the old name's directory.
        pub from: Wcc,
        /// Consistency data of the new name's directory.
        pub to: Wcc,
    }

    /// `LINK3args`.
    #[derive(Copy)]
    pub struct Link<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// Its new name.
        pub link: DirOp<'a>,
    }

    /// `LINK3resok` and `LINK3resfail`.
    pub struct Linked {
        /// The file's attributes.
        pub file: Option<Attributes>,
        /// Consistency data of the new name's directory.
        pub directory: Wcc,
    }

    /// `READDIR3args`.
    #[derive(Copy)]
    pub struct ReadDir<'a> {
        /// The directory.
        pub directory: Handle<'a>,
        /// The last entry that the client has; 0 at the start.
        pub cookie: u64,
        /// Verifier of the reply that the cookie came with; zero at the start.
        pub verifier: Verifier,
        /// The most bytes of `READDIR3resok`.
        pub count: u32,
    }

    /// `READDIR3resok`. A server writes it with [`readdir`](super::readdir).
    pub struct ReadDirOk<'a> {
        /// The directory's attributes.
        pub attributes: Option<Attributes>,
        /// For the next call.
        pub verifier: Verifier,
        /// The entries.
        pub entries: Chain<'a, Entry<'a>>,
        /// No entry comes after these.
        pub eof: bool,
    }

    /// `READDIRPLUS3args`.
    #[derive(Copy)]
    pub struct ReadDirPlus<'a> {
        /// The directory.
        pub directory: Handle<'a>,
        /// The last entry that the client has; 0 at the start.
        pub cookie: u64,
        /// Verifier of the reply that the cookie came with; zero at the start.
        pub verifier: Verifier,
        /// The most bytes of file IDs, names and cookies.
        pub dir_count: u32,
        /// The most bytes of `READDIRPLUS3resok`.
        pub max_count: u32,
    }

    /// `READDIRPLUS3resok`. A server writes it with [`readdir`](super::readdir).
    pub struct ReadDirPlusOk<'a> {
        /// The directory's attributes.
        pub attributes: Option<Attributes>,
        /// For the next call.
        pub verifier: Verifier,
        /// The entries.
        pub entries: Chain<'a, EntryPlus<'a>>,
        /// No entry comes after these.
        pub eof: bool,
    }

    /// `FSSTAT3resok`.
    pub struct FsStatOk {
        /// Attributes of the file system's root.
        pub attributes: Option<Attributes>,
        /// Size, bytes.
        pub total_bytes: u64,
        /// Free, bytes.
        pub free_bytes: u64,
        /// Free for the caller, bytes.
        pub available_bytes: u64,
        /// Files that there can be.
        pub total_files: u64,
        /// Files that can be added.
        pub free_files: u64,
        /// Files that the caller can add.
        pub available_files: u64,
        /// Seconds in which this is not expected to change.
        pub invariant_s: u32,
    }

    /// `FSINFO3resok`.
    pub struct FsInfoOk {
        /// Attributes of the file system's root.
        pub attributes: Option<Attributes>,
        /// The most bytes of a READ.
        pub read_max: u32,
        /// The preferred bytes of a READ.
        pub read_preferred: u32,
        /// The suggested multiple for the bytes of a READ.
        pub read_multiple: u32,
        /// The most bytes of a WRITE.
        pub write_max: u32,
        /// The preferred bytes of a WRITE.
        pub write_preferred: u32,
        /// The suggested multiple for the bytes of a WRITE.
        pub write_multiple: u32,
        /// The preferred `count` of a READDIR, bytes.
        pub dir_preferred: u32,
        /// The largest file, bytes.
        pub max_file_size: u64,
        /// The steps of times.
        pub time_delta: Time,
        /// Bits of [`properties`](super::properties).
        pub properties: u32,
    }

    /// `PATHCONF3resok`.
    pub struct PathConfOk {
        /// The file's attributes.
        pub attributes: Option<Attributes>,
        /// The most hard links of a file.
        pub max_links: u32,
        /// The longest name, bytes.
        pub max_name: u32,
        /// A longer name is an error, and is not truncated.
        pub no_truncation: bool,
        /// Only root changes owners.
        pub chown_restricted: bool,
        /// Case does not distinguish names.
        pub case_insensitive: bool,
        /// Case of names is kept.
        pub case_preserving: bool,
    }

    /// `COMMIT3args`.
    #[derive(Copy)]
    pub struct Commit<'a> {
        /// The file.
        pub file: Handle<'a>,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; 0 is all up to the end.
        pub count: u32,
    }

    /// `COMMIT3resok`.
    pub struct CommitOk {
        /// The file's consistency data.
        pub file: Wcc,
        /// As in [`WriteOk`].
        pub verifier: Verifier,
    }
}

xdr_enum! {
    /// `stable_how`.
    #[derive(PartialOrd, Ord)]
    pub enum Stable {
        /// UNSTABLE: until a COMMIT the data may be lost.
        Unstable = 0,
        /// DATA_SYNC: data, and the metadata needed to read them, are stable.
        DataSync = 1,
        /// FILE_SYNC: data and all attributes are stable.
        FileSync = 2,
    }
}

xdr_union! {
    /// `createhow3`.
    #[derive(Copy)]
    pub enum CreateHow {
        /// An existing file is no error.
        Unchecked(SetAttributes) = 0,
        /// An existing file is an error.
        Guarded(SetAttributes) = 1,
        /// An existing file is an error unless it was created with this verifier.
        Exclusive(Verifier) = 2,
    }

    /// `mknoddata3`.
    #[derive(Copy)]
    pub enum NodeData {
        /// A regular file, which MKNOD does not create: BADTYPE.
        Regular(()) = 1,
        /// A directory, which MKNOD does not create: BADTYPE.
        Directory(()) = 2,
        /// A block device.
        Block(DeviceData) = 3,
        /// A character device.
        Character(DeviceData) = 4,
        /// A symbolic link, which MKNOD does not create: BADTYPE.
        Symlink(()) = 5,
        /// A socket.
        Socket(SetAttributes) = 6,
        /// A named pipe.
        Fifo(SetAttributes) = 7,
    }
}
