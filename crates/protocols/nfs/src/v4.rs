//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862) with extended attributes (RFC 8276).

mod basic;
pub mod flags;
mod status;

pub use basic::{
    ChannelFromClient, ChannelFromServer, ClaimType, ClientId, ClientOwner, DelegationType, LockType,
    OwnerId, SessionId, ShareAccess, ShareDeny, Stateid, Verifier, WhyNoDelegation,
};
pub use status::{Outcome, Status};

/// Program number.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 4;
/// The longest file handle, bytes: `NFS4_FHSIZE`.
pub const MAX_HANDLE: usize = 128;
/// The longest owner, tag of state and server scope, bytes: `NFS4_OPAQUE_LIMIT`.
pub const MAX_OPAQUE: usize = 1024;
