//! What every protocol's server needs of a core, and no protocol.
//!
//! A [`Hub`] is the server as all cores share it: its cores, who may come in, and whether it lets anybody in. A [`Core`] is what one
//! of them has for itself: budgets, pings, counts, listening tasks. Front ends plug in at two places: a [`Service`] takes the
//! connections of a portal that begin as its protocol does, and serves each to its end; a [`drain::Audience`] knows which
//! clients are concerned when a part of the server is drained.
//!
//! Nothing here knows a PDU, a session or a unit.
#![forbid(unsafe_code)]

pub mod admission;
pub mod ahead;
pub mod audit;
pub mod backlog;
mod core;
pub mod drain;
pub mod gate;
pub mod grants;
mod hub;
pub mod listen;
pub mod pings;
pub mod portals;
pub mod qos;
pub mod retention;
pub mod tally;

pub use core::{Core, Post, TcpAccount, TcpCounters};
pub use hub::{CoreStatus, Hub};
pub use listen::{Arrival, Link, Place, Service, Sniff};

/// Names a connection for as long as the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);
