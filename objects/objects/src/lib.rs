//! Objects: what keeps them ([`store`]), and the logical unit of type 11h above it ([`unit`]).
//!
//! The store knows partitions, collections, user objects, their attributes and their bytes, and nothing of SCSI. The unit
//! knows T10 OSD and calls the store through [`store::ObjectStore`] only: it never touches a file.
#![forbid(unsafe_code)]

// The model of commands is used by tests of this crate too.
#[cfg(test)]
extern crate self as objects;

pub mod store;
pub mod unit;
