//! SCSI commands, data, sense and reservations as bytes and state machines.
//!
//! This crate owns what T10's standards say about bytes and states: it turns CDBs and parameter data into typed values
//! and back. It never does I/O, reads a clock or starts a thread, and nothing that a peer sends can make it panic.
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
