//! iSNS (RFC 4171), the naming service of iSCSI: messages as bytes and back, what a target registers, and what an initiator asks.
//!
//! Bytes in, meaning out: no I/O, no clock, no thread. Everything read is bounded: a message by [`MAX_MESSAGE`], whatever its peer
//! claims.
//!
//! - [`header`]: the twelve bytes before each PDU, and the functions.
//! - [`attribute`]: tags and values.
//! - [`message`]: whole messages, cut into PDUs and joined again.
//! - [`registration`]: what an entity with its portals and targets registers.
//! - [`query`]: which targets there are, and where.
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
/// The longest message that is read, bytes, over however many PDUs.
pub const MAX_MESSAGE: usize = 4 << 20;

/// What is wrong with what a peer has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Another version than 1.
    #[error("iSNS version {0}")]
    Version(u16),
    /// A length that is no multiple of 4, or more than there is.
    #[error("a length that does not fit")]
    Length,
    /// PDUs of one message that do not belong together.
    #[error("a message's parts are out of order")]
    Sequence,
    /// A message that is longer than any should be.
    #[error("the message is too long")]
    TooLong,
    /// A message without what it must have.
    #[error("{0} is missing")]
    Missing(&'static str),
}

#[cfg(test)]
mod tests;
