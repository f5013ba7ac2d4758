//! Attributes of files, and weak cache consistency data (RFC 1813 §2.6).

use rpc::{xdr_enum, xdr_struct, xdr_union};

xdr_enum! {
    /// `ftype3`.
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
    }
}

xdr_struct! {
    /// `specdata3`: a device's numbers.
    #[derive(Copy, Default)]
    pub struct Device {
        /// The major number.
        pub major: u32,
        /// The minor number.
        pub minor: u32,
    }

    /// `nfstime3`, since 1970.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds, below 10⁹.
        pub nanoseconds: u32,
    }

    /// `fattr3`, 84 bytes on the wire.
    #[derive(Copy)]
    pub struct Attributes {
        /// Type of the file.
        pub kind: FileType,
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
        /// Space that the file takes, bytes.
        pub used: u64,
        /// Numbers, if it is a device.
        pub device: Device,
        /// File system.
        pub fsid: u64,
        /// Identity within the file system: the inode number.
        pub fileid: u64,
        /// Last read.
        pub atime: Time,
        /// Last change of the data.
        pub mtime: Time,
        /// Last change of the attributes.
        pub ctime: Time,
    }

    /// `wcc_attr`: the attributes before an operation that show whether another one came between.
    #[derive(Copy)]
    pub struct PreAttributes {
        /// Size, bytes.
        pub size: u64,
        /// Last change of the data.
        pub mtime: Time,
        /// Last change of the attributes.
        pub ctime: Time,
    }

    /// `wcc_data`: weak cache consistency. Both parts are optional; `before` is of use only if no
    /// other change came between it and `after`.
    #[derive(Copy, Default)]
    pub struct Wcc {
        /// Before the operation.
        pub before: Option<PreAttributes>,
        /// After the operation.
        pub after: Option<Attributes>,
    }

    /// `sattr3`: the attributes to set.
    #[derive(Copy, Default)]
    pub struct SetAttributes {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size, bytes.
        pub size: Option<u64>,
        /// Last read.
        pub atime: SetTime,
        /// Last change of the data.
        pub mtime: SetTime,
    }
}

xdr_union! {
    /// `set_atime` and `set_mtime`.
    #[derive(Copy)]
    pub enum SetTime {
        /// DONT_CHANGE.
        Keep(()) = 0,
        /// SET_TO_SERVER_TIME: now.
        Server(()) = 1,
        /// SET_TO_CLIENT_TIME: this time.
        Client(Time) = 2,
    }
}

impl Default for SetTime {
    fn default() -> Self {
        SetTime::Keep(())
    }
}
