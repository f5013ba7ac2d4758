//! A batching load generator for iSCSI and NFS that does not hide the target's cost.
//!
//! Most clients spend more processor time on an I/O than a good target does, so all targets look
//! alike to them. This one takes as many responses as one receive yields, answers them all with new
//! commands in one send, and looks at no payload byte. It takes well under a microsecond of its own
//! for a 4 KiB read at depth 32. The loop, its clocks and its counts are crate `load`'s, as those
//! of `stag bench` are.
//!
//! It must never use the project's own protocol crates: it is a second opinion of the wire, written
//! from RFC 7143 and RFC 1813 alone.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

pub mod args;
pub mod error;
pub mod floor;
pub mod hold;
pub mod login;
mod many;
pub mod nfs;
pub mod null;
pub mod outbox;
mod ready;
pub mod report;
pub mod run;
pub mod session;
pub mod socket;
pub mod wire;

pub use error::LoadError;
