//! The seam between a file server and what it serves: a tree of files.
//!
//! A server names a file by its [`NodeId`], and says for whom it asks: a [`Caller`], whose numbers
//! the export's rules have already replaced. A [`Tree`] checks the caller's permission, does the
//! operation whole, and returns the attributes that the answer needs. It knows no handle of a
//! protocol, no connection, no lock and no lease: those are the server's.
//!
//! An operation outlives the connection that asked for it. Its client will ask for the answer
//! again, so a server never drops an [`Answer`] to abort it.
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
