//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862) with extended attributes (RFC 8276).
//!
//! - [`Call`], [`Reply`] and their writers: COMPOUND as a stream of operations.
//! - [`Arguments`] and [`Results`]: a variant for each operation.
//! - [`Attributes`]: values of attributes; [`Fattr`] is their form on the wire, [`Bitmap`] their
//!   set.
//! - [`readdir`]: writes directory entries into a bounded reply.
//! - [`callback`]: the operations of CB_COMPOUND.
//! - [`flags`]: bits of words.

use rpc::xdr::Opaque;

mod attributes;
mod basic;
mod bitmap;
pub mod callback;
mod compound;
mod fattr;
pub mod flags;
mod operations;
pub mod readdir;
pub mod state;
mod status;
mod table;
#[cfg(test)]
mod tests;

pub use crate::v3::Located;
pub use attributes::{
    Ace, Attributes, ChangeAttrType, ChangePolicy, Device, FileType, FsLocation, FsLocations, Fsid,
    ModeMasked, ModeUmask, SETTABLE, SecLabel, SetTime, Time, WRITE_ONLY, attribute,
};
pub use basic::{
    ChannelFromClient, ChannelFromServer, ClaimType, ClientId, ClientOwner, DelegationType, LockType,
    OwnerId, SessionId, ShareAccess, ShareDeny, Stateid, Verifier,
};
pub use bitmap::Bitmap;
pub use compound::{Answered, Answers, Asked, Call, CallWriter, Items, Operations, Reply, ReplyWriter, Role};
pub use fattr::Fattr;
pub use operations::*;
pub use status::{Outcome, OutcomeOr, Status};
pub use table::{Answer, ILLEGAL, Item, Program, Refused};

/// Program number.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 4;
/// The procedure COMPOUND; 0 does nothing.
pub const COMPOUND: u32 = 1;
/// The longest file handle, bytes: `NFS4_FHSIZE`.
pub const MAX_HANDLE: usize = 128;
/// The longest owner and server scope, bytes: `NFS4_OPAQUE_LIMIT`.
pub const MAX_OPAQUE: usize = 1024;
/// No limit but the record's.
const UNBOUNDED: usize = u32::MAX as usize;

/// `nfs_fh4`.
pub type Handle<'a> = Opaque<'a, MAX_HANDLE>;
/// `component4`: any bytes. The server answers NAMETOOLONG, INVAL or BADNAME.
pub type Name<'a> = Opaque<'a, UNBOUNDED>;
/// Other strings and opaque data without a limit of their own.
pub type Text<'a> = Opaque<'a, UNBOUNDED>;
