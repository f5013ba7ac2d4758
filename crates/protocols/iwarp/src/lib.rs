//! iWARP without I/O: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306) over
//! a byte stream.
//!
//! [`mpa`]'s request and reply set up a connection. After that a [`stream::Stream`] turns received
//! bytes into events and into payload with its destination, and turns operations into bytes to
//! send. It owns no payload memory, does no I/O and reads no clock. It never names a byte outside
//! the registered ([`stag`]) or posted memory.
//!
//! A peer that breaks a rule is sent the [`rdmap::Terminate`] that the RFCs name for it; the stream
//! then ends.
#![forbid(unsafe_code)]

pub mod crc;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod stag;
pub mod stream;

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
