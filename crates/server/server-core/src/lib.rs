//! The protocol-independent part of a server: cores, portals, admission, budgets, pings, limits of
//! service, drain.
//!
//! A [`Hub`] is the state that all cores share: the cores, the admission, and whether the server
//! accepts connections. A [`Core`] is the state of one core: budgets, pings, counts, listening
//! tasks. A [`Server`] is both, with the front ends that serve on them.
//!
//! A front end plugs in by three traits. A [`FrontEnd`] is paused, handed over and ended with the
//! others. A [`Service`] takes the connections of a portal that begin with its protocol, and serves
//! each to its end. A [`drain::Audience`] selects the clients of a drain.
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
pub mod refusals;
pub mod retention;
mod served;
mod server;
pub mod slow;
pub mod tally;

pub use core::{Core, Post, TcpAccount, TcpCounters};
pub use hub::{CoreStatus, Hub};
pub use listen::{Arrival, Link, Place, Service, Services, Sniff};
pub use served::{Applied, Change, Changing, Edition, Portals, Served};
pub use server::{CoresConfig, FrontEnd, Handle, Server};

/// Names a connection for as long as the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);
