//! Exports of NBD servers as stores of units.
//!
//! - `store`: an export's bytes, a `backing::BlockStore`.
//! - `dial`: from a URI to a connection in its transmission phase.
//! - `link`: the connection of one core, its requests, and its replacement.
//! - `request`: one request, and what has come of its reply.
//! - `operations`: a store's operations as requests.
//! - `common`: what all connections of a store share.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: names that say all need no comment")]

mod common;
mod dial;
mod link;
mod operations;
mod request;
mod store;

pub use dial::{DialError, Source};
pub use nbd::{Export, Uri, UriError};
pub use store::NbdStore;
