//! Units of iSCSI targets as stores of units: `iscsi://` and `iser://` as a medium.
//!
//! - `store`: a far unit's bytes, a `backing::BlockStore`.
//! - `look`: what a far unit is, asked after each login.
//! - `link`: the session of one core and its replacement, and what becomes of commands without an
//!   answer.
//! - `judge`: what an answer with another status than GOOD means.
//! - `operations`: a store's operations as commands.
//! - `common`: what all links of a store share.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: names that say all need no comment")]

mod common;
mod judge;
mod link;
mod look;
mod operations;
mod store;

pub use common::Source;
pub use iscsi_client::{Chap, Credential, Provider, Secret, Transport, Url, UrlError};
pub use look::OpenError;
pub use store::IscsiStore;
