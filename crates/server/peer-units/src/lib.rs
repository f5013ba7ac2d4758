//! Units over the peer link, on `runtime`: the driver of `peer_link`.
//!
//! - [`Host`]: executes commands that other gateways forward, on units of this gateway.
//! - [`RemoteUnit`]: a unit of another gateway. It forwards each command to its owner, which
//!   [`Peers`] names.
//!
//! Who owns a unit, and who is fenced, decides the group (`cluster`), never this crate. The owner
//! executes everything, so reservations, unit attentions and aborts are its own.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

mod host;
mod line;
mod remote;

pub use host::{Gate, Host, HostConfig};
pub use remote::{Life, OwnerAt, Peers, PeersConfig, RemoteUnit};
