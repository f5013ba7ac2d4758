//! The link between two gateways of a group: one forwards commands, the other owns the unit and
//! executes them.
//!
//! Sans-IO: no I/O, no clock, no thread, no randomness. The caller hands in bytes, the time and
//! nonces. Each end is a machine that outlives its connections:
//!
//! - [`Forwarder`]: nexuses, commands, task management, and Data-Out.
//! - [`Owner`]: what has begun, Data-In, outcomes, and what nexuses must learn.
//!
//! A connection begins with a handshake ([`handshake`]), in which both ends prove that they have
//! the group's secret ([`secret`]). Then it carries frames ([`frame`]), each of one message
//! ([`message`]), with a MAC and a number that is never sent.
//!
//! The rule of the link: **a command ends once, by the owner's word.** It has an outcome, or it has
//! not begun and never will, or it began and nothing of it is in flight any more. A lost connection
//! ends no command. The next connection asks for each one. Without a next connection, the fence of
//! the owner ends them as unknown ([`Forwarder::fenced`]).
//!
//! A peer may be hostile or defective: each length is checked before it is used, and neither end
//! keeps more than its own [`Limits`] allow. Data moves only as far as its receiver has given room
//! for, so neither end ever stops reading, and no command waits for the data of another one.
//!
//! `docs/src/design/gateways.md` says how the link carries `device::LogicalUnit`.
#![forbid(unsafe_code)]

pub mod forwarder;
pub mod frame;
pub mod handshake;
pub mod limits;
mod line;
pub mod message;
pub mod number;
pub mod owner;
pub mod secret;
#[cfg(test)]
mod tests;
mod wire;

pub use forwarder::{Final, Forwarder, Refused};
pub use frame::Keys;
pub use handshake::{Answering, Calling, Claim, HandshakeError, Own, Reason, Said, Welcome};
pub use limits::Limits;
pub use message::{Attach, Attention, Command, Function, Managed, NotBegun, Outcome, Principal, View};
pub use number::Number;
pub use owner::{Owner, Progress};
pub use secret::Secret;
pub use wire::Violation;

/// A time of one end's own monotonic clock. It means nothing to the other end.
pub type Time = std::time::Duration;

/// The connection of a machine: a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub(crate) u64);

/// The newest version of the protocol that this release speaks, and the oldest.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
