//! Logical units of blocks: the SCSI disk (`unit`) over any store of `backing`.
//!
//! The stores know bytes and durability but no SCSI; the unit knows SCSI but no files.
#![forbid(unsafe_code)]

pub mod unit;
