//! NFS version 3 (RFC 1813 §3): its procedures. [`Arguments`] and [`Results`] have a variant each.

use std::ops::Range;

use rpc::rpc_program;
use rpc::xdr::{Malformed, Reader};

mod attributes;
mod operations;
pub mod readdir;
mod status;
#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Device, FileType, PreAttributes, SetAttributes, SetTime, Time, Wcc};
pub use operations::{
    Access, AccessOk, Commit, CommitOk, Create, CreateHow, Created, DeviceData, DirOp, FsInfoOk, FsStatOk,
    Handle, Link, Linked, LookupOk, MkDir, MkNod, Name, NodeData, Path, PathConfOk, Read, ReadDir, ReadDirOk,
    ReadDirPlus, ReadDirPlusOk, ReadLinkOk, ReadOk, Rename, Renamed, SetAttr, Stable, Symlink, Write,
    WriteOk,
};
pub use status::{Outcome, Status};

/// Program number.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 3;
/// The longest file handle, bytes: `NFS3_FHSIZE`.
pub const MAX_HANDLE: usize = 64;
/// The longest accepted file name, bytes. RFC 1813 §2.4 leaves it to the server; Linux has 255.
pub const MAX_NAME: usize = 255;
/// The longest accepted path in a symbolic link, bytes. Linux has 4095.
pub const MAX_PATH: usize = 4096;
/// Bytes of a cookie verifier, a write verifier and a create verifier.
pub const VERIFIER_LEN: usize = 8;

/// A verifier: the peer's, compared for equality only.
pub type Verifier = [u8; VERIFIER_LEN];

/// Bits of ACCESS (RFC 1813 §3.3.4).
pub mod access {
    /// Read data, or a directory's entries.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite data, or change a directory's entries.
    pub const MODIFY: u32 = 0x04;
    /// Write beyond the end, or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an entry.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// Bits of [`FsInfoOk::properties`] (RFC 1813 §3.3.19).
pub mod properties {
    /// The file system has hard links.
    pub const LINK: u32 = 0x01;
    /// The file system has symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all files.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times as precisely as `time_delta` says.
    pub const CAN_SET_TIME: u32 = 0x10;
}

rpc_program! {
    /// Procedures (RFC 1813 §3.3).
    pub enum Procedure;
    /// Arguments.
    pub enum Arguments<'a>;
    /// Results.
    pub enum Results<'a>;
    /// Does nothing.
    0 Null(()) -> ();
    /// A file's attributes.
    1 GetAttr(Handle<'a>) -> Outcome<Attributes>;
    /// Changes attributes.
    2 SetAttr(SetAttr<'a>) -> Outcome<Wcc, Wcc>;
    /// The file of a name.
    3 Lookup(DirOp<'a>) -> Outcome<LookupOk<'a>, Option<Attributes>>;
    /// The caller's rights to a file.
    4 Access(Access<'a>) -> Outcome<AccessOk, Option<Attributes>>;
    /// A symbolic link's path.
    5 ReadLink(Handle<'a>) -> Outcome<ReadLinkOk<'a>, Option<Attributes>>;
    /// Reads data. The results' payload follows them.
    6 Read(Read<'a>) -> Outcome<ReadOk, Option<Attributes>>;
    /// Writes data. The arguments' payload follows them.
    7 Write(Write<'a>) -> Outcome<WriteOk, Wcc>;
    /// Creates a file.
    8 Create(Create<'a>) -> Outcome<Created<'a>, Wcc>;
    /// Creates a directory.
    9 MkDir(MkDir<'a>) -> Outcome<Created<'a>, Wcc>;
    /// Creates a symbolic link.
    10 Symlink(Symlink<'a>) -> Outcome<Created<'a>, Wcc>;
    /// Creates a device, a FIFO or a socket.
    11 MkNod(MkNod<'a>) -> Outcome<Created<'a>, Wcc>;
    /// Removes a name that is no directory's.
    12 Remove(DirOp<'a>) -> Outcome<Wcc, Wcc>;
    /// Removes an empty directory.
    13 RmDir(DirOp<'a>) -> Outcome<Wcc, Wcc>;
    /// Renames.
    14 Rename(Rename<'a>) -> Outcome<Renamed, Renamed>;
    /// Makes a hard link.
    15 Link(Link<'a>) -> Outcome<Linked, Linked>;
    /// A directory's entries.
    16 ReadDir(ReadDir<'a>) -> Outcome<ReadDirOk<'a>, Option<Attributes>>;
    /// A directory's entries with handles and attributes.
    17 ReadDirPlus(ReadDirPlus<'a>) -> Outcome<ReadDirPlusOk<'a>, Option<Attributes>>;
    /// The room of a file system.
    18 FsStat(Handle<'a>) -> Outcome<FsStatOk, Option<Attributes>>;
    /// The limits of a file system.
    19 FsInfo(Handle<'a>) -> Outcome<FsInfoOk, Option<Attributes>>;
    /// POSIX limits of a file.
    20 PathConf(Handle<'a>) -> Outcome<PathConfOk, Option<Attributes>>;
    /// Makes written data stable.
    21 Commit(Commit<'a>) -> Outcome<CommitOk, Wcc>;
}

/// Decoded arguments or results, and the place of their payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The arguments or results.
    pub value: T,
    /// The payload's place in the decoded bytes, without its padding; empty for all procedures but
    /// READ and WRITE.
    pub payload: Range<usize>,
}

impl Arguments<'_> {
    /// Bytes of payload that follow the arguments on the wire, before padding. The caller sends
    /// them and [`rpc::xdr::padding`].
    pub fn payload(&self) -> u32 {
        match self {
            Arguments::Write(write) => write.length,
            _ => 0,
        }
    }
}

impl Results<'_> {
    /// Bytes of payload that follow the results on the wire, before padding. The caller sends them
    /// and [`rpc::xdr::padding`].
    pub fn payload(&self) -> u32 {
        match self {
            Results::Read(Outcome::Ok(read)) => read.length,
            _ => 0,
        }
    }
}

/// The arguments that take all of `body`, the part of a call behind its header.
///
/// # Errors
/// [`Malformed`]: the reply is GARBAGE_ARGS.
pub fn arguments(procedure: Procedure, body: &[u8]) -> Result<Located<Arguments<'_>>, Malformed> {
    let mut from = Reader::new(body);
    let value = Arguments::read(procedure, &mut from)?;
    let payload = payload(&mut from, value.payload())?;
    Ok(Located { value, payload })
}

/// The results that take all of `body`, the part of a successful reply behind its header.
///
/// # Errors
/// [`Malformed`].
pub fn results(procedure: Procedure, body: &[u8]) -> Result<Located<Results<'_>>, Malformed> {
    let mut from = Reader::new(body);
    let value = Results::read(procedure, &mut from)?;
    let payload = payload(&mut from, value.payload())?;
    Ok(Located { value, payload })
}

fn payload(from: &mut Reader<'_>, length: u32) -> Result<Range<usize>, Malformed> {
    let payload = from.payload(length as usize)?;
    from.end()?;
    Ok(payload)
}
