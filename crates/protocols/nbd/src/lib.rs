//! The client's side of the Network Block Device protocol (NBD), by the document `doc/proto.md` of
//! <https://github.com/NetworkBlockDevice/nbd>; comments cite its headings as `NBD "…"`.
//!
//! Sans-IO: no I/O, no clock, no thread. A server is a peer that may lie: every length is checked
//! before it is used, and a server makes nothing grow beyond the limits that each module states.
//!
//! - [`uri`]: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`.
//! - [`handshake`]: fixed newstyle negotiation, up to an [`Export`].
//! - [`export`]: the size, the abilities and the block sizes of an export.
//! - [`request`]: commands, their checks against an export, and their bytes.
//! - [`session`]: outstanding requests, and the stream of their replies.
//! - [`failure`]: errors of a server, with its own words.
//!
//! A caller opens a connection, and drives a [`Handshake`] until it returns the export. It gives
//! that to a [`Session`], writes the header of each [`Command`] (and the data of a write behind
//! it), and gives what it receives to [`Session::next`]. Data is returned where it was received;
//! [`Session::direct`] says how much of it may be received straight into its destination.
//!
//! Not supported: TLS, oldstyle and non-fixed newstyle negotiation, the experimental extensions,
//! NBD_CMD_CACHE, and NBD_CMD_FLAG_DF.
#![forbid(unsafe_code)]

mod cover;
pub mod export;
pub mod failure;
pub mod handshake;
pub mod request;
pub mod session;
pub mod uri;
mod wire;

#[cfg(test)]
mod tests;

pub use export::{BlockSizes, Export, Flags};
pub use failure::{ErrorCode, Failure};
pub use handshake::{Handshake, HandshakeError};
pub use request::{Command, DISCONNECT, HEADER_LEN, Refused};
pub use session::{Cookie, Event, Session, State, Violation};
pub use uri::{Address, Uri, UriError};
pub use wire::{MAX_STRING, PORT};
