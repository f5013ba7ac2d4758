//! An NFS client: calls to any server, with no kernel's mount and no privileges.
//!
//! It runs on [`runtime`], with one io_uring per thread. A [`Caller`] has many calls outstanding on
//! one connection, matches replies by XID, and sends outstanding calls again over a new connection
//! when the old one is lost.
#![forbid(unsafe_code)]

mod calls;
mod error;
mod link;
mod options;

pub use calls::{Answer, Caller};
pub use error::Error;
pub use options::{Auth, Options, Sys};
