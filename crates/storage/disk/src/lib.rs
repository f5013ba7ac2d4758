//! Logical units of blocks: the SCSI disk (`unit`) over any store of `backing`.
//!
//! The stores know bytes and durability but no SCSI; the unit knows SCSI but no files.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

pub mod unit;
