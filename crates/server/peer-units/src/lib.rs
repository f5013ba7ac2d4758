//! Units over the peer link, on `runtime`: the driver of `peer_link`.
//!
//! - [`Host`]: executes commands that other gateways forward, on units of this gateway.
//! - [`GroupUnit`]: a unit of the group, as this gateway's initiators see it. If another gateway
//!   owns it, each command goes there.
//! - [`Peers`]: who owns which unit.
//!
//! Who owns a unit, and who is fenced, decides the group (`cluster`), never this crate. The owner
//! executes everything, so reservations, unit attentions and aborts are its own.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

mod host;
mod line;
mod peers;
mod seat;
mod unit;

pub use host::{Host, HostConfig};
pub use peers::{Forwarded, Life, LinkSeen, OwnerAt, Peers, PeersConfig};
pub use unit::{Begun, Gate, GroupUnit};
