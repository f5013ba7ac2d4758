//! iSCSI (RFC 7143) without I/O: PDUs, negotiation, login, sessions of targets and initiators.
#![forbid(unsafe_code)]

pub mod chap;
pub mod digest;
pub mod discovery;
pub mod frame;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod name;
pub mod pdu;
pub mod sn;
pub mod stream;
pub mod target;
pub mod text;

pub use stream::Stream;

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
