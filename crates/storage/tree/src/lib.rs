//! Interface between a file server and its storage: a tree of files.
//!
//! A server passes a file's [`NodeId`], and a [`Caller`], whose ids the export's rules have already
//! replaced. A [`Tree`] checks the caller's permission, does the whole operation, and returns the
//! attributes that the answer needs. It knows no file handles of a protocol, connections, locks or
//! leases: the server owns those.
//!
//! An operation outlives the connection that requested it. Its client will retransmit the request,
//! so a server never drops an [`Answer`] to abort it.
#![forbid(unsafe_code)]

mod attributes;
mod batch;
mod caller;
mod error;
mod node;
mod operations;
#[cfg(feature = "testing")]
pub mod testing;
mod tree;

pub use attributes::{Attributes, Before, Changed, Device, Kind, SetAttributes, SetTime, Time};
pub use batch::Batch;
pub use caller::{Caller, Permissions};
pub use error::TreeError;
pub use node::{NodeId, TooLong};
pub use operations::{
    Committed, Contents, Created, DirEntry, DirRoom, Entries, Found, Granted, Linked, New, NewFile, Read,
    Removed, RemovedKind, Renamed, Space, Stability, Target, TreeLimits, Written,
};
pub use tree::{Answer, Tree};
