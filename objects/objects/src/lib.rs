//! Objects: their stores ([`store`]), and the logical unit of type 11h above them ([`unit`]).
//!
//! The store knows partitions, collections, user objects, their attributes and their bytes, and
//! nothing of SCSI. The unit knows T10 OSD and calls the store through [`store::ObjectStore`] only:
//! it never touches a file.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

// Models that the integration tests and the fuzz target use too.
#[cfg(test)]
extern crate self as objects;
#[cfg(test)]
#[path = "../tests/support/oracle/mod.rs"]
mod oracle;

pub mod store;
pub mod unit;
