//! Logical units of blocks: the SCSI disk (`unit`) over any store of `backing`.
//!
//! The stores know bytes and durability and nothing of SCSI; the unit knows SCSI and nothing of files.
#![forbid(unsafe_code)]

pub mod unit;
