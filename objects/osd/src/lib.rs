//! T10 object-based storage on the wire: OSD-1 (INCITS 400-2004) and OSD-2 (INCITS 458-2011), both
//! directions.
//!
//! This crate owns the standards' encodings: it converts commands, capabilities, attribute
//! parameters and lists, CDB continuations, parameter data and sense descriptors between bytes and
//! typed values. An initiator, a target and their tests share it. It never does I/O, reads a clock
//! or draws random numbers (the caller passes them in). It knows no object store, and no input from
//! a peer can make it panic.
#![forbid(unsafe_code)]

pub mod action;
pub mod attributes;
pub mod capability;
pub mod cdb;
pub mod continuation;
pub mod data;
pub mod ids;
pub mod offset;
pub mod security;
pub mod sense;
mod version;

mod bytes;

pub use action::Action;
pub use attributes::{AttributeId, Page};
pub use capability::{Capability, Permissions};
pub use cdb::{Cdb, CdbError, Command, Form};
pub use ids::{Id, ObjectType};
pub use version::Version;

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
