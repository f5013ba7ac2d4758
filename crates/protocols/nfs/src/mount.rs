//! MOUNT version 3 (RFC 1813 appendix I): from a path to the file handle of its directory.

use arrayvec::ArrayVec;
use rpc::xdr::{Chain, Opaque};
use rpc::{rpc_program, xdr_enum, xdr_struct};

use crate::v3::{Handle, Outcome};

/// Program number.
pub const PROGRAM: u32 = 100_005;
/// Version of the program.
pub const VERSION: u32 = 3;
/// The longest path, bytes: `MNTPATHLEN`.
pub const MAX_PATH: usize = 1024;
/// The longest name of a host or group, bytes: `MNTNAMLEN`.
pub const MAX_NAME: usize = 255;
/// The most authentication flavors of an export. RFC 1813 gives no limit.
pub const MAX_FLAVORS: usize = 32;

/// A directory's path.
pub type Path<'a> = Opaque<'a, MAX_PATH>;
/// A name of a host or group.
pub type Name<'a> = Opaque<'a, MAX_NAME>;

xdr_enum! {
    /// Errors of MNT, `mountstat3` without MNT3_OK (RFC 1813 §5.1.5).
    pub enum Status {
        /// Not owner.
        Perm = 1,
        /// No such file or directory.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// Permission denied.
        Acces = 13,
        /// Not a directory.
        NotDir = 20,
        /// Invalid argument.
        Inval = 22,
        /// The path is too long.
        NameTooLong = 63,
        /// Not supported.
        NotSupp = 10004,
        /// The server failed.
        ServerFault = 10006,
    }
}

xdr_struct! {
    /// `mountres3_ok`.
    pub struct Mounted<'a> {
        /// The directory's handle.
        pub handle: Handle<'a>,
        /// Numbers of the accepted authentication flavors, the preferred first.
        pub flavors: ArrayVec<u32, MAX_FLAVORS>,
    }

    /// `mountbody`: one client's mount.
    pub struct Mount<'a> {
        /// The client's name.
        pub host: Name<'a>,
        /// The directory's path.
        pub directory: Path<'a>,
    }

    /// `groupnode`.
    pub struct Group<'a> {
        /// Name of the group.
        pub name: Name<'a>,
    }

    /// `exportnode`.
    pub struct Export<'a> {
        /// The directory's path.
        pub directory: Path<'a>,
        /// The hosts and groups that may mount it. Without any, all may.
        pub groups: Chain<'a, Group<'a>>,
    }
}

rpc_program! {
    /// Procedures.
    pub enum Procedure;
    /// Arguments.
    pub enum Arguments<'a>;
    /// Results.
    pub enum Results<'a>;
    /// Does nothing.
    0 Null(()) -> ();
    /// The handle of a directory.
    1 Mnt(Path<'a>) -> Outcome<Mounted<'a>, (), Status>;
    /// All mounts that the server remembers.
    2 Dump(()) -> Chain<'a, Mount<'a>>;
    /// Forgets the client's mount of a directory.
    3 Umnt(Path<'a>) -> ();
    /// Forgets all mounts of the client.
    4 UmntAll(()) -> ();
    /// All exports.
    5 Export(()) -> Chain<'a, Export<'a>>;
}

#[cfg(test)]
mod tests;
