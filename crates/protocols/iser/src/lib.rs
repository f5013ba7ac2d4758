//! iSER (RFC 7145) without I/O: its header, its CM private data, and the steering tags of each
//! task.
//!
//! - [`header`]: the 28 bytes before every message, for iSCSI control-type PDUs, Hello and
//!   HelloReply.
//! - [`message`]: the layout of header, BHS, AHSs and data in a Send, and the checks of their
//!   bounds.
//! - [`private_data`]: the capabilities that both sides exchange while connecting.
//!
//! It knows no iSCSI types: a BHS is 48 bytes, of which it reads the two lengths. It moves no data
//! and posts no work.
#![forbid(unsafe_code)]

pub mod header;
pub mod message;
pub mod private_data;

pub use header::{Control, HEADER_LEN, Header, HeaderError, Hello, HelloReply, Remote, VERSION};
pub use message::{BHS_LEN, HEAD_LEN, Layout, Limits, MessageError, UNTIL_FULL_FEATURE_DATA};
pub use private_data::PrivateData;

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
