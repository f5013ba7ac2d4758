//! SCSI commands, data, sense and reservations as bytes and state machines.
//!
//! This crate owns the bytes and states that T10's standards define: it converts CDBs and parameter
//! data to typed values and back. It never does I/O, reads a clock or starts a thread. No input
//! from a peer makes it panic.
#![forbid(unsafe_code)]

pub mod alua;
pub mod attention;
pub mod cdb;
pub mod copy;
pub mod data;
pub mod mode;
pub mod reservation;
pub mod sense;
pub mod status;

pub use attention::UnitAttention;
pub use sense::{AdditionalSense, FieldPointer, KeySpecific, Sense, SenseBytes, SenseKey};
pub use status::Status;

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
