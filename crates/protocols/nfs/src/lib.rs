//! NFS without I/O: the calls and results of NFS version 3, of MOUNT version 3 (RFC 1813) and of
//! NFS version 4.1 and 4.2 (RFC 8881, RFC 7862), in both directions, so that a server and a client
//! use the same types.
//!
//! Sans-IO: no I/O, no clock, no thread. Decoded values borrow from the record and allocate
//! nothing. The payload of READ and WRITE is never part of a value: see [`v3::Located`].
//!
//! - [`v3`]: the 22 procedures of NFS version 3.
//! - [`v3::readdir`]: writes directory entries into a bounded reply.
//! - [`v4`]: COMPOUND, its operations and attributes, and callbacks.
//! - [`v4::state`]: a version 4.1 server's state of its clients, from sessions to locks.
//! - [`mount`]: the 6 procedures of MOUNT.
//! - [`ddp`]: the items that may go apart over RDMA (RFC 8267).
#![forbid(unsafe_code)]

pub mod ddp;
mod listing;
pub mod mount;
pub mod v3;
pub mod v4;

/// The well-known port, TCP (RFC 1813 §2.1).
pub const PORT: u16 = 2049;

/// The bytes of hexadecimal digits in a test's file.
#[cfg(test)]
fn from_hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}
