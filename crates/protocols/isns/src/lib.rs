//! iSNS (RFC 4171), the naming service of iSCSI: encodes and decodes messages, a target's
//! registrations, and an initiator's queries.
//!
//! Sans-IO: no I/O, no clock, no thread. Memory for received data is bounded: [`MAX_MESSAGE`] per
//! message, whatever length its peer claims.
//!
//! - [`header`]: the twelve bytes before each PDU, and the functions.
//! - [`attribute`]: tags and values.
//! - [`message`]: whole messages, split into PDUs and reassembled.
//! - [`registration`]: the registration of an entity with its portals and targets.
//! - [`query`]: the targets of the server, and their portals.
#![forbid(unsafe_code)]

pub mod attribute;
pub mod header;
pub mod message;
pub mod query;
pub mod registration;

pub use attribute::{Attribute, Attributes, Tag};
pub use header::{Function, Header, Status};
pub use message::{Joiner, Message, Numbers};

/// The well-known port of iSNS servers, TCP and UDP (RFC 4171 §2.1).
pub const PORT: u16 = 3205;
/// The longest accepted message in bytes, over all its PDUs.
pub const MAX_MESSAGE: usize = 4 << 20;

/// The error in a peer's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A version other than 1.
    #[error("unsupported iSNS version {0}")]
    Version(u16),
    /// A length that is not a multiple of 4, or exceeds the data.
    #[error("the length is invalid")]
    Length,
    /// PDUs of one message that do not belong together.
    #[error("a message's PDUs are out of order")]
    Sequence,
    /// A message longer than [`MAX_MESSAGE`].
    #[error("the message is too long")]
    TooLong,
    /// A message without a required part.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
